"""CUDA memory snapshots, the pickles of ``torch.cuda.memory._dump_snapshot``, read as plain data and never unpickled.

Seen of all releases from 2.0 on: a dict with ``segments`` and ``device_traces``. The list that
``torch.cuda.memory_snapshot()`` returns holds the segments alone.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

from profilerkit.errors import UnreadableInputError
from profilerkit.formats.blocks import plain_bytes
from profilerkit.trace.logs import BACKWARD, AllocatorAction, AllocatorEvent, Block, DeviceHistory, Segment, SnapshotLog

name = "memory snapshot"
kind = "log"
shared_suffixes = (".pickle", ".pkl")

#: Real ones have 100,000 events, torch's default, in 10 to 100 MB.
MOST_BYTES = 256 * 1024 * 1024
#: Entries of all lists together: a pickle of a few bytes can hold one list many times over.
MOST_ENTRIES = 4_000_000
#: Lines of Python kept of a stack, innermost first.
MOST_FRAMES = 12

_PROTOCOLS = range(2, 6)
_PROTO = 0x80
_WORDS = (b"segments", b"device_traces", b"total_size")
_LARGEST = 1 << 61
_LONGEST_TEXT = 300
_ACTIONS = get_args(AllocatorAction)
#: The setting of segments that grow, as the variable has it.
GROWS = "expandable_segments:True"
#: Names of C++ that only the backward pass has on its stacks: the node that runs, and the engine that runs it.
_NODE = re.compile(r"torch::autograd::(?:generated::)?(\w{1,80}Backward\w{0,80}|AccumulateGrad)\b")
_ENGINE = re.compile(r"torch::autograd::Engine::")
_IN_USE = ("active_allocated", "active_awaiting_free", "active_pending_free")
_HINT = "save one with torch.cuda.memory._dump_snapshot(path), after torch.cuda.memory._record_memory_history()"


def sniff(head: bytes) -> bool:
    """Return whether a file that begins like this is a pickle with the first words of a snapshot."""
    return len(head) > 1 and head[0] == _PROTO and head[1] in _PROTOCOLS and any(word in head for word in _WORDS)


def read(path: Path) -> SnapshotLog:
    """Return the devices of a snapshot that hold or held memory.

    Raises:
        UnreadableInputError: the file is no snapshot, damaged, too large, or its pickle holds more than plain data.
        OSError: the file cannot be opened or read.
    """
    from profilerkit.formats.plain_pickle import NotPlainError, plain_data

    try:
        found = _Reading().snapshot(plain_data(plain_bytes(path, MOST_BYTES)), path.name)
    except NotPlainError as error:
        raise UnreadableInputError(f"{path} is not a readable memory snapshot", cause=str(error), hint=_HINT) from error
    if found is None:
        raise UnreadableInputError(
            f"{path} is not a memory snapshot", cause="it is a pickle without segments and device_traces", hint=_HINT
        )
    return found


class _Reading:
    """One reading of a snapshot's data; counts what it looks at and what is damaged."""

    def __init__(self) -> None:
        self._left = MOST_ENTRIES
        self._damaged = 0
        self._stacks: dict[int, tuple[str, ...]] = {}

    def snapshot(self, data: object, origin: str) -> SnapshotLog | None:
        document = {"segments": data} if isinstance(data, list) else data
        if not isinstance(document, dict) or not ("segments" in document or "device_traces" in document):
            return None
        segments: dict[int, list[Segment]] = {}
        for record in self._items(document.get("segments")):
            segment = self._segment(record)
            if segment is None:
                self._damaged += 1
            else:
                segments.setdefault(_whole(record.get("device")) or 0, []).append(segment)
        events = [
            tuple(event for record in self._items(trace) if (event := self._event(record)) is not None)
            for trace in self._items(document.get("device_traces"))
        ]
        if isinstance(data, list) and not segments:
            return None
        with_events = [device for device, entries in enumerate(events) if entries]
        devices = tuple(
            DeviceHistory(device, tuple(segments.get(device, ())), events[device] if device < len(events) else ())
            for device in sorted({*segments, *with_events})
        )
        damaged = f"{self._damaged:,} of the snapshot's records are damaged and were left out."
        settings = _settings(document.get("allocator_settings"))
        return SnapshotLog(origin, devices, settings, (damaged,) if self._damaged else ())

    def _items(self, value: object) -> Sequence[Any]:
        if not isinstance(value, list | tuple):
            return ()
        self._left -= len(value)
        if self._left < 0:
            from profilerkit.formats.plain_pickle import NotPlainError

            raise NotPlainError(f"its lists have more than {MOST_ENTRIES:,} entries")
        return value

    def _segment(self, record: object) -> Segment | None:
        total = _whole(record.get("total_size")) if isinstance(record, dict) else None
        if total is None or not isinstance(record, dict):
            return None
        blocks = []
        address = _whole(record.get("address")) or 0
        for entry in self._items(record.get("blocks")):
            size = _whole(entry.get("size")) if isinstance(entry, dict) else None
            if size is None:
                self._damaged += 1
                continue
            blocks.append(self._block(entry, size, address))
            address += size
        return Segment(total, tuple(blocks))

    def _block(self, entry: dict[Any, Any], size: int, address: int) -> Block:
        """One block; snapshots before torch 2.1 leave its address to be counted from that of its segment."""
        state, asked = entry.get("state"), _whole(entry.get("requested_size"))
        in_use = isinstance(state, str) and state in _IN_USE
        known = _whole(entry.get("address"))
        frames = self._frames(entry.get("frames")) if in_use else ()
        return Block(address if known is None else known, asked if in_use and asked else size, in_use, frames)

    def _event(self, record: object) -> AllocatorEvent | None:
        """One event; ``None`` for a damaged one, which is counted, and for what says nothing of memory."""
        action = record.get("action") if isinstance(record, dict) else None
        size = _whole(record.get("size")) if isinstance(record, dict) else None
        if not isinstance(record, dict) or not isinstance(action, str) or size is None:
            self._damaged += 1
            return None
        known = next((one for one in _ACTIONS if one == action), None)
        if known is None:
            return None
        time_us = _whole(record.get("time_us"))
        # Of a free the stack tells who freed, which nobody asks.
        keeps_frames = known in ("alloc", "oom")
        return AllocatorEvent(
            action=known,
            address=_whole(record.get("addr")) or 0,
            bytes=size,
            time_ns=time_us * 1000 if time_us and time_us < _LARGEST // 1000 else None,
            frames=self._frames(record.get("frames")) if keeps_frames else (),
            free_bytes=_whole(record.get("device_free")),
        )

    def _frames(self, value: object) -> tuple[str, ...]:
        """The innermost lines of Python, and the node of the backward pass; the same list is read once."""
        known = self._stacks.get(id(value))
        if known is None:
            texts: list[str] = []
            node = engine = False
            for entry in self._items(value):
                text = _frame(entry)
                if text.startswith(BACKWARD):
                    # The engine is said only where no node is: it is on every stack that a node is on.
                    is_engine = text == BACKWARD
                    if node or (is_engine and engine):
                        continue
                    node, engine = node or not is_engine, True
                if text:
                    texts.append(text)
            if node and BACKWARD in texts:
                texts.remove(BACKWARD)
            known = self._stacks[id(value)] = tuple(texts[:MOST_FRAMES])
        return known


def _frame(entry: object) -> str:
    """``file.py:12 function`` of a line of Python, ``backward NAME`` of a node of autograd; empty for others."""
    file = entry.get("filename") if isinstance(entry, dict) else None
    if not isinstance(entry, dict) or not isinstance(file, str):
        return ""
    line, function = _whole(entry.get("line")), entry.get("name")
    if not file.endswith(".py"):
        text = function[:_LONGEST_TEXT] if isinstance(function, str) else ""
        node = _NODE.search(text)
        return f"{BACKWARD} {node[1]}" if node else BACKWARD if _ENGINE.search(text) else ""
    called = f" {function[:_LONGEST_TEXT]}" if isinstance(function, str) else ""
    return f"{file[-_LONGEST_TEXT:]}:{line or 0}{called}"


def _settings(value: object) -> str:
    """What ``PYTORCH_CUDA_ALLOC_CONF`` held, and whether segments grow by a call; empty where it is not known."""
    if not isinstance(value, dict):
        return ""
    found = value.get("PYTORCH_CUDA_ALLOC_CONF")
    told = found[:_LONGEST_TEXT] if isinstance(found, str) else ""
    if value.get("expandable_segments") is True and "expandable_segments" not in told:
        told = f"{told},{GROWS}" if told else GROWS
    return told


def _whole(value: object) -> int | None:
    """A number of bytes, an address or a time; ``None`` for what is none."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < _LARGEST:
        return None
    return value
