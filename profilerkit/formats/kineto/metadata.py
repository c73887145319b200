"""What a Kineto file says beside its events."""

import json
import re
from collections.abc import Mapping
from functools import cached_property

import msgspec

from profilerkit.formats.values import count_of, printable_text
from profilerkit.trace.columns import DeviceProperties, ProcessGroup, TraceMeta

_JSON = json.JSONDecoder(strict=False)
_RECORDED = ("record_shapes", "with_stack", "profile_memory", "with_flops", "with_modules")
_KEYS = re.compile(
    r'"(baseTimeNanoseconds|distributedInfo|deviceProperties|host_name|schemaVersion|\w+_version|'
    + "|".join(_RECORDED)
    + r')"\s*:\s*(?=\S)'
)
# Groups that are kept, and members that are kept of one: the order of the members tells stages of a pipeline apart.
_MOST_GROUPS, _MOST_MEMBERS = 256, 64
# Stands for the head, with a key that no trace has.
_OPENED = '{"": []'
_BLANK = " \t\r\n\0"
# The record of a rank that could not say its backend.
_UNKNOWN_BACKENDS = frozenset(("", "undefined"))


class Document(msgspec.Struct, frozen=True):
    """The JSON document around the events.

    Attributes:
        is_whole: False when it could only be read in parts.
        following: what follows it in the text, without white space and zero bytes around it.
        padded: whether zero bytes follow it.
        lists_again: whether there is a second list of events in it.
    """

    fields: Mapping[str, object]
    is_whole: bool = True
    following: str = ""
    padded: bool = False
    lists_again: bool = False


class DocumentFrame:
    """The document around the events, whose beginning is known and parsed once, however often an end is tried.

    Args:
        head: the text before the bracket that opens the events.
        is_list: whether the events are all of the document, without an object around them.
    """

    def __init__(self, head: bytes, *, is_list: bool) -> None:
        self.is_list = is_list
        self._head = head

    @cached_property
    def _opened(self) -> Mapping[str, object] | None:
        try:
            value = _JSON.decode((self._head + b"[]}").decode("utf-8-sig", "replace").strip(_BLANK))
        except (ValueError, RecursionError):
            return None
        return value if isinstance(value, dict) else None

    def closed_by(self, tail: bytes) -> Document | None:
        """Return the document that ends with a text, None when the text closes none.

        Args:
            tail: what follows the bracket that closes the events.
        """
        text = tail.decode("utf-8", "replace")
        closing: Mapping[str, object] = {}
        end = 0
        if not self.is_list:
            try:
                closing, end = _JSON.raw_decode(_OPENED + text)
            except (ValueError, RecursionError):
                return None
            end -= len(_OPENED)
        known = self._opened if not self.is_list else {}
        return Document(
            {**(_single_fields(self._head) if known is None else known), **closing},
            is_whole=known is not None,
            following=text[end:].strip(_BLANK),
            padded="\0" in text[end:],
            lists_again=bool(closing.get("traceEvents")),
        )

    def broken_off(self, tail: bytes = b"") -> Document:
        """Return the document that does not end, or whose end is damaged: what single keys say in it."""
        known = self._opened or _single_fields(self._head)
        return Document({**known, **_single_fields(tail)}, is_whole=False)


def _single_fields(text: bytes) -> Mapping[str, object]:
    decoded = text.decode("utf-8", "replace")
    fields: dict[str, object] = {}
    for found in _KEYS.finditer(decoded):
        try:
            fields.setdefault(found[1], _JSON.raw_decode(decoded, found.end())[0])
        except (ValueError, RecursionError):
            continue
    return fields


def trace_meta(path: str, fields: Mapping[str, object]) -> TraceMeta:
    """Return the metadata of a trace; ``None`` where the file does not say or says something odd."""
    found = fields.get("distributedInfo")
    distributed: Mapping[str, object] = found if isinstance(found, dict) else {}
    backend = _text(distributed.get("backend"))
    return TraceMeta(
        path=path,
        base_time_ns=count_of(fields.get("baseTimeNanoseconds")),
        rank=count_of(distributed.get("rank")),
        world_size=count_of(distributed.get("world_size")),
        backend=None if backend in _UNKNOWN_BACKENDS else backend,
        host=_text(fields.get("host_name")) or None,
        devices=_devices(fields.get("deviceProperties")),
        no_device=fields.get("deviceProperties") == [],
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
        number = count_of(record.get("id"))
        devices.append(
            DeviceProperties(
                id=position if number is None else number,
                name=_text(record.get("name")),
                memory_bytes=count_of(record.get("totalGlobalMem")),
                compute_major=count_of(record.get("computeMajor")),
                compute_minor=count_of(record.get("computeMinor")),
                multiprocessors=count_of(record.get("numSms")),
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
        ranks = tuple(number for member in members if (number := count_of(member)) is not None)
        size = count_of(record.get("pg_size"))
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
