"""What a Kineto file says beside its events."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from profilerkit.trace.columns import DeviceProperties, ProcessGroup, TraceMeta
from profilerkit.trace.kineto.numbers import whole_number
from profilerkit.trace.strings import printable_text

_JSON = json.JSONDecoder(strict=False)
_RECORDED = ("record_shapes", "with_stack", "profile_memory", "with_flops", "with_modules")
_KEYS = re.compile(
    r'"(baseTimeNanoseconds|distributedInfo|deviceProperties|host_name|schemaVersion|\w+_version|'
    + "|".join(_RECORDED)
    + r')"\s*:\s*(?=\S)'
)
# Groups that are kept, and members that are kept of one: the order of the members tells stages of a pipeline apart.
_MOST_GROUPS, _MOST_MEMBERS = 256, 64
# The record of a rank that could not say its backend.
_UNKNOWN_BACKENDS = frozenset(("", "undefined"))


@dataclass(frozen=True, slots=True)
class Document:
    """The JSON document around the events.

    Attributes:
        fields: its keys, without the events.
        is_whole: False when it could only be read in parts.
        following: what follows it in the text, without white space and zero bytes around it.
        padded: whether zero bytes follow it.
        holds_events: whether there seem to be events in it beside the event list.
    """

    fields: Mapping[str, object]
    is_whole: bool = True
    following: str = ""
    padded: bool = False
    holds_events: bool = False


def parse_document(head: bytes, tail: bytes) -> Document | None:
    """Return the document made of the texts before and after the events, or None when they are not one.

    Args:
        head: the text before the bracket that opens the events; blank for a bare array.
        tail: the text after the bracket that closes them.
    """
    text = (head + b"[]" + tail).decode("utf-8-sig", "replace").lstrip()
    try:
        value, end = _JSON.raw_decode(text)
    except (ValueError, RecursionError):
        return None
    after = text[end:]
    fields = value if isinstance(value, dict) else {}
    return Document(fields, following=after.strip(" \t\r\n\0"), padded="\0" in after, holds_events='"ph"' in text[:end])


def parse_fields(text: bytes) -> Document:
    """Return what single keys say in a text that is not one document."""
    decoded = text.decode("utf-8", "replace")
    fields: dict[str, object] = {}
    for found in _KEYS.finditer(decoded):
        try:
            fields.setdefault(found[1], _JSON.raw_decode(decoded, found.end())[0])
        except (ValueError, RecursionError):
            continue
    return Document(fields, is_whole=False)


def trace_meta(path: str, fields: Mapping[str, object]) -> TraceMeta:
    """Return the metadata of a trace; ``None`` where the file does not say or says something odd."""
    found = fields.get("distributedInfo")
    distributed: Mapping[str, object] = found if isinstance(found, dict) else {}
    backend = _text(distributed.get("backend"))
    return TraceMeta(
        path=path,
        base_time_ns=_count(fields.get("baseTimeNanoseconds")),
        rank=_count(distributed.get("rank")),
        world_size=_count(distributed.get("world_size")),
        backend=None if backend in _UNKNOWN_BACKENDS else backend,
        host=_text(fields.get("host_name")) or None,
        devices=_devices(fields.get("deviceProperties")),
        groups=_groups(distributed.get("pg_config")),
        recorded=frozenset(key for key in _RECORDED if fields.get(key) in (1, "1", "true")),
        versions={
            printable_text(key): printable_text(str(value))
            for key, value in fields.items()
            if (key.endswith("_version") or key == "schemaVersion") and isinstance(value, str | int | float)
        },
    )


def _devices(records: object) -> tuple[DeviceProperties, ...]:
    devices = []
    for position, record in enumerate(records if isinstance(records, list) else ()):
        if not isinstance(record, dict):
            continue
        number = _count(record.get("id"))
        devices.append(
            DeviceProperties(
                id=position if number is None else number,
                name=_text(record.get("name")),
                memory_bytes=_count(record.get("totalGlobalMem")),
                compute_major=_count(record.get("computeMajor")),
                compute_minor=_count(record.get("computeMinor")),
                multiprocessors=_count(record.get("numSms")),
            )
        )
    return tuple(devices)


def _groups(records: object) -> tuple[ProcessGroup, ...]:
    groups = []
    for record in (records if isinstance(records, list) else ())[:_MOST_GROUPS]:
        if not isinstance(record, dict):
            continue
        found = record.get("ranks")
        members = found if isinstance(found, list) and len(found) <= _MOST_MEMBERS else ()
        ranks = tuple(number for member in members if (number := _count(member)) is not None)
        size = _count(record.get("pg_size"))
        name = record.get("pg_name")
        groups.append(
            ProcessGroup(
                name=printable_text(str(name)) if isinstance(name, str | int) else "",
                description=_text(record.get("pg_desc")),
                size=len(ranks) if size is None else size,
                ranks=ranks,
            )
        )
    return tuple(groups)


def _text(value: object) -> str:
    return printable_text(value) if isinstance(value, str) else ""


def _count(value: object) -> int | None:
    number = whole_number(value)
    return number if number >= 0 else None
