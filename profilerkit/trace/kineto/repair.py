"""One damaged piece of text into the events it still holds."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from typing import Any

import msgspec

from profilerkit.trace.columns import Wanted
from profilerkit.trace.kineto import records
from profilerkit.trace.kineto.numbers import whole_number
from profilerkit.trace.kineto.records import WideArgs, InstantArgs, MetadataArgs

_EXACT = records.decoder(records.Detail.EXACT, Wanted.EVERYTHING)
_SAMPLES = 5
_SAMPLE_BYTES = 120
# Longer than any event with its stack; the repairs search a text several times over.
_REPAIRED_BYTES = 256 * 1024
_ELEMENTS = msgspec.json.Decoder(list[msgspec.Raw])
UNDECODABLE = (msgspec.MsgspecError, ValueError, RecursionError)

_BAD_ESCAPE = re.compile(r'\\(?:(["\\/bfnrt]|u[0-9a-fA-F]{4})|)')
_NOT_A_NUMBER = re.compile(r"(?<=[\[,:\s])[-+]?(?:nan|inf|infinity|n/a)(?=\s*[,}\]])", re.IGNORECASE)
_BAD_FRACTION = re.compile(r"(?<=\d)\.-(?=\d)")
_TRAILING_COMMA = re.compile(r",\s*(?=[}\]])")
_EMPTY_VALUE = re.compile(r":\s*(?=[,}])")
# A text runs up to the quote that a known next key, or the end of the object, follows.
_QUOTED_TEXT = re.compile(
    r'("(?:name|Call stack|Module Hierarchy)"\s*:\s*")(.*?)(?="\s*(?:,\s*"[\w ]+"\s*:|\}))', re.DOTALL
)
_BARE_QUOTE = re.compile(r'(\\.)|"', re.DOTALL)


@dataclass(slots=True)
class RepairLog:
    """What was repaired and dropped, with the first few pieces as samples."""

    repaired: int = 0
    dropped: int = 0
    samples: list[str] = field(default_factory=list)

    def note_repaired(self, piece: bytes) -> None:
        """Count one repaired event."""
        self.repaired += 1
        self._sample(piece)

    def note_dropped(self, piece: bytes) -> None:
        """Count one event that could not be read."""
        self.dropped += 1
        self._sample(piece)

    def add(self, other: "RepairLog") -> None:
        """Count what another log counted."""
        self.repaired += other.repaired
        self.dropped += other.dropped
        self.samples += other.samples[: _SAMPLES - len(self.samples)]

    def _sample(self, piece: bytes) -> None:
        if len(self.samples) < _SAMPLES:
            self.samples.append(piece[:_SAMPLE_BYTES].decode("utf-8", "replace"))


def read_exactly(piece: bytes) -> list[records.Event] | None:
    """Return the events of a piece whose every event is well formed; None otherwise."""
    try:
        return _EXACT.decode(b"[%b]" % piece)
    except UNDECODABLE:
        return None


def read_piece(piece: bytes, log: RepairLog) -> list[records.Event] | None:
    """Return the events of a piece, repairing what can be; None when the piece as a whole makes no sense.

    A piece is one event as a rule, and more where something that is no event stands between two of them.
    """
    events = read_exactly(piece)
    if events is not None:
        return events
    try:
        elements = _ELEMENTS.decode(b"[%b]" % piece)
    except UNDECODABLE:
        return _read_damaged(piece, log)
    events = []
    for element in map(bytes, elements):
        found = read_exactly(element)
        if found is None:
            found = _read_damaged(element, log)
        if found is None:
            log.note_dropped(element)
        events += found or []
    return events


def _read_damaged(piece: bytes, log: RepairLog) -> list[records.Event] | None:
    """Return the events of a piece after the mildest repair that lets JSON read it, or None."""
    if len(piece) > _REPAIRED_BYTES:
        return None
    for text in _repairs(piece.decode("utf-8", "replace")):
        try:
            values = json.loads(f"[{text}]", strict=False, parse_float=Decimal)
        except (ValueError, RecursionError, InvalidOperation):
            continue
        events = []
        for value in values:
            event = event_from(value)
            if event is None:
                log.note_dropped(piece)
            else:
                log.note_repaired(piece)
                events.append(event)
        return events
    return None


def _repairs(text: str) -> Iterator[str]:
    yield text
    text = _BAD_ESCAPE.sub(lambda found: found[0] if found[1] else r"\\", text)
    text = _NOT_A_NUMBER.sub("null", text)
    text = _BAD_FRACTION.sub(".", text)
    text = _TRAILING_COMMA.sub("", text)
    text = _EMPTY_VALUE.sub(": null", text)
    yield text
    yield _QUOTED_TEXT.sub(lambda found: found[1] + _BARE_QUOTE.sub(_escaped_quote, found[2]), text)


def _escaped_quote(found: re.Match[str]) -> str:
    return found[1] or r"\""


def event_from(value: object) -> records.Event | None:
    """Return the event a parsed JSON value describes, with fields of the wrong type converted; None if it is none."""
    if not isinstance(value, dict):
        return None
    phase = value.get("ph")
    if phase in records.UNUSED_PHASES:
        return records.Counter()
    name, pid, tid = _text(value.get("name")), _identity(value.get("pid")), _identity(value.get("tid"))
    kind, ts = _text(value.get("cat")), _time(value.get("ts"), Decimal("NaN"))
    args = value.get("args")
    args = args if isinstance(args, dict) else {}
    if phase == "X":
        dur = _time(value.get("dur"), Decimal(0))
        return records.ExactSpan(name, pid, tid, kind, ts, float(dur), _span_args(args))
    if phase in ("s", "f"):
        flow = records.ExactFlowStart if phase == "s" else records.ExactFlowEnd
        return flow(name, pid, tid, kind, ts, whole_number(value.get("id")))
    if phase == "i":
        return records.ExactInstant(name, pid, tid, ts, _instant_args(args))
    if phase == "M":
        return records.Metadata(name, pid, tid, MetadataArgs(_text(args.get("name"))))
    return None


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _identity(value: object) -> int | str | None:
    return value if isinstance(value, int | str) else None


def _time(value: object, absent: Decimal) -> Decimal:
    try:
        time = Decimal(value) if isinstance(value, str | int | Decimal) else absent
    except InvalidOperation:
        return absent
    return absent if time.is_snan() else time


def _number(value: object) -> int:
    return whole_number(float(value) if isinstance(value, Decimal) else value)


def _span_args(args: dict[str, Any]) -> WideArgs:
    found: dict[str, Any] = {}
    for info in msgspec.structs.fields(WideArgs):
        value = args.get(info.encode_name)
        if value is None:
            continue
        if info.name in ("input_dims", "input_types"):
            found[info.name] = msgspec.Raw(json.dumps(value, default=float).encode())
        elif info.name in ("collective", "dtype", "group_name"):
            found[info.name] = str(value)
        else:
            found[info.name] = _number(value)
    return WideArgs(**found)


def _instant_args(args: dict[str, Any]) -> InstantArgs:
    found = {info.name: args.get(info.encode_name) for info in msgspec.structs.fields(InstantArgs)}
    return InstantArgs(**{name: _number(value) for name, value in found.items() if value is not None})
