"""Dumps of torch's flight recorder, of NCCL and of gloo, as pickle and as JSON, read as plain data.

Seen of torch 2.13 (version 2.10 of the dump): a dict with ``entries``, ``pg_config`` and ``pg_status``. The pickles are
what ``_dump_nccl_trace`` and ``_dump_fr_trace`` return and what torch writes itself on a timeout, under the names of
``TORCH_FR_DUMP_TEMP_FILE`` and ``TORCH_NCCL_DEBUG_INFO_TEMP_FILE``.
"""

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from profilerkit.errors import UnreadableInputError
from profilerkit.formats.blocks import plain_bytes
from profilerkit.rundir.documents import Dump, DumpedCall, DumpedGroup, flight_of_dumps, group_size
from profilerkit.trace.logs import FlightDump

name = "flight recorder dump"
kind = "dump"
# The names that torch gives its dumps end in the number of the rank.
shared_suffixes = (".json", ".json.gz", ".pickle", ".pkl", ".bin", ".dump", *"0123456789")

#: 2,000 entries, torch's default, are 1 MB as JSON.
MOST_BYTES = 32 * 1024 * 1024
#: A hundred times torch's default.
MOST_ENTRIES = 200_000
#: A rank of a large job, with a group for each way it is divided and each neighbour of a pipeline, is in some dozens.
MOST_GROUPS = 256
#: Sizes, types and lists of all entries' tensors together: a pickle of a few bytes can hold one list many times over.
MOST_ITEMS = 4_000_000
#: torch's tensors have at most 64 dimensions.
MOST_DIMENSIONS = 64

_PROTO = 0x80
_WORDS = (b"pg_config", b"pg_status", b"collective_seq_id")
#: What a dump as JSON begins with. Kineto's traces have a ``pg_config`` too, further on and beside other keys.
_FIRST_KEY = re.compile(rb'\s*\{\s*"(comm_lib_version|nccl_\w+|version|entries|pg_config|pg_status)"')
_OF_A_TRACE = (b'"traceEvents"', b'"schemaVersion"')
_OF_A_SNAPSHOT = (b"segments", b"device_traces")
_LARGEST = 1 << 61
_NUMBERS = ("record_id", "collective_seq_id", "p2p_seq_id", "time_created_ns")
_LISTS = ("input_sizes", "output_sizes", "input_dtypes", "output_dtypes", "process_group")
_HINT = "save one with torch._C._distributed_c10d._dump_fr_trace() or _dump_nccl_trace(), one file of each rank"


def sniff(head: bytes) -> bool:
    """Return whether a file that begins like this is a dump, by its first key and the words of its keys."""
    if not any(word in head for word in _WORDS):
        return False
    if head[0] == _PROTO:
        return not any(word in head for word in _OF_A_SNAPSHOT)
    return _FIRST_KEY.match(head) is not None and not any(word in head for word in _OF_A_TRACE)


def read(path: Path) -> FlightDump:
    """Return the collectives of a dump; nothing in it is looked up, called or built.

    Raises:
        UnreadableInputError: the file is no dump, damaged, too large, or its pickle holds more than plain data.
        OSError: the file cannot be opened or read.
    """
    data = plain_bytes(path, MOST_BYTES)
    try:
        found = _unpickled(data) if data[:1] == bytes([_PROTO]) else msgspec.json.decode(data)
        if not isinstance(found, dict) or not isinstance(found.get("entries"), list | tuple):
            raise ValueError("it has no list of entries")
        return _dump(found, path.name)
    except (ValueError, msgspec.DecodeError, RecursionError) as error:
        raise UnreadableInputError(
            f"{path} is not a readable flight recorder dump", cause=_cause(error), hint=_HINT
        ) from error


def _unpickled(data: bytes) -> Any:
    from profilerkit.formats.plain_pickle import plain_data

    return plain_data(data)


def _cause(error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        return f"it is damaged at {error.object[error.start : error.end]!r}"
    return "its lists are nested too deeply" if isinstance(error, RecursionError) else str(error)


def _dump(found: Mapping[Any, Any], origin: str) -> FlightDump:
    if len(found["entries"]) > MOST_ENTRIES:
        raise ValueError(f"it has more than {MOST_ENTRIES:,} entries")
    left, damaged = MOST_ITEMS, 0
    calls = []
    for entry in found["entries"]:
        left -= _items(entry)
        if left < 0:
            raise ValueError(f"its entries have more than {MOST_ITEMS:,} sizes and types")
        call = _call(entry)
        if call is None:
            damaged += 1
        else:
            calls.append(call)
    if len({tuple(call.process_group[:2]) for call in calls}) > MOST_GROUPS:
        raise ValueError(f"its entries name more than {MOST_GROUPS} process groups")
    groups = _groups(found.get("pg_config"))
    sizes = [size for group in groups.values() if (size := group_size(group.ranks))]
    notes = (f"{damaged:,} of its entries are damaged and were left out.",) if damaged else ()
    return FlightDump(origin, flight_of_dumps([Dump(entries=calls, pg_config=groups)]), max(sizes, default=None), notes)


def _items(entry: object) -> int:
    if not isinstance(entry, dict):
        return 1
    lists = [value for name in _LISTS if isinstance(value := entry.get(name), list | tuple)]
    inner = sum(len(item) for value in lists for item in value[:MOST_ITEMS] if isinstance(item, list | tuple))
    return 1 + sum(map(len, lists)) + inner


def _call(entry: object) -> DumpedCall | None:
    """An entry; ``None`` for one whose values cannot be what they are said to be."""
    if not isinstance(entry, dict):
        return None
    try:
        used = {name: entry[name] for name in DumpedCall.__struct_fields__ if name in entry}
        call = msgspec.convert(used, DumpedCall)
    except msgspec.ValidationError:
        return None
    numbers = [getattr(call, name) for name in _NUMBERS]
    shapes = [*call.input_sizes, *call.output_sizes]
    is_sized = all(len(shape) <= MOST_DIMENSIONS and all(0 <= size < _LARGEST for size in shape) for shape in shapes)
    duration_ms = call.duration_ms or 0.0
    is_timed = math.isfinite(duration_ms) and 0.0 <= duration_ms * 1e6 < _LARGEST
    return call if is_sized and is_timed and min(numbers) >= 0 and max(numbers) < _LARGEST else None


def _groups(value: object) -> dict[str, DumpedGroup]:
    if not isinstance(value, dict):
        return {}
    found, left = {}, MOST_ITEMS
    for name, config in value.items():
        ranks = config.get("ranks") if isinstance(config, dict) else None
        if isinstance(name, str) and isinstance(ranks, str) and len(ranks) <= left:
            left -= len(ranks)
            found[name] = DumpedGroup(ranks=ranks)
    return found
