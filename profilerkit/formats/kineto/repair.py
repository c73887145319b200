"""Read the events that a damaged piece of text still holds, and count what was repaired and dropped."""

import json
import re
from collections.abc import Iterator
from decimal import Decimal, InvalidOperation
from typing import Any

import msgspec
from msgspec import Raw

from profilerkit.errors import UnreadableInputError
from profilerkit.formats.kineto import records
from profilerkit.formats.kineto.records import STAMPED, InstantArgs, MetadataArgs, SpanArgs
from profilerkit.formats.limits import DROPPED_PIECES, FAILED_REPAIRS, REPAIRED_BYTES, SEARCHED_BYTES
from profilerkit.formats.values import grid_size, whole_number, written_to_ns
from profilerkit.trace.columns import Wanted

_SAMPLES = 5
_SAMPLE_BYTES = 120
_LAYOUT = re.compile(rb"\s{2,}")


class Ledger(msgspec.Struct):
    """Counts over one file.

    Attributes:
        path: the file, for the error.
        strict: whether the first damage is an error.
        events: how many elements of the event list were passed so far, read or dropped.
        repaired: events that were read after a repair.
        dropped: pieces that were given up.
        rejected: events that were read in damaged chunks and are impossible.
        untried: events that were given up without a repair being tried.
        searched_bytes: text that was searched in vain.
        samples: the first few places.
    """

    path: str
    strict: bool = False
    events: int = 0
    repaired: int = 0
    dropped: int = 0
    rejected: int = 0
    untried: int = 0
    searched_bytes: int = 0
    samples: list[str] = msgspec.field(default_factory=list)

    def passed(self, count: int) -> None:
        """Count elements of the event list that need no word."""
        self.events += count

    def repair(self, text: bytes, offset: int, count: int = 1, *, before: int = 0) -> None:
        """Count repaired events, which are yet to be passed.

        Args:
            text: how the first of them is written.
            offset: where in the plain text it begins, in bytes.
            count: how many.
            before: elements yet to be passed before it.
        """
        self._sample("repaired", text, offset, self.events + before)
        self.repaired += count
        self.searched_bytes -= min(len(text), REPAIRED_BYTES)

    def drop(self, text: bytes, offset: int, count: int = 1, *, before: int = 0) -> None:
        """Count and pass pieces that could not be read."""
        self._sample("dropped", text, offset, self.events + before)
        self.dropped += count
        self.events += count
        self.searched_bytes += min(len(text), REPAIRED_BYTES)

    def reject(self, text: bytes, offset: int, event: int) -> None:
        """Show an event that is well formed but impossible; the columns count it."""
        self._sample("impossible", text, offset, event)

    def refuse(self, what: str) -> None:
        """Raise when damage that is not of one event is an error.

        Raises:
            UnreadableInputError: salvage is off.
        """
        if self.strict:
            raise UnreadableInputError(
                f"{self.path} is damaged", cause=f"{what} (after {self.events} events)", hint=_STRICT_HINT
            )

    @property
    def may_repair(self) -> bool:
        """Whether repairs still succeed often enough to be tried."""
        failed = self.dropped + 2 * self.rejected - self.repaired
        return failed <= FAILED_REPAIRS and self.searched_bytes <= SEARCHED_BYTES

    @property
    def is_hopeless(self) -> bool:
        """Whether so much was dropped, and so little read, that reading on makes no sense."""
        return self.dropped > DROPPED_PIECES and self.dropped > 0.9 * self.events

    def _sample(self, what: str, text: bytes, offset: int, event: int) -> None:
        if not self.strict and len(self.samples) >= _SAMPLES:
            return
        place = f"event {event} at byte {offset}"
        shown = printable(_LAYOUT.sub(b" ", text[: 8 * _SAMPLE_BYTES])[:_SAMPLE_BYTES])
        if self.strict:
            raise UnreadableInputError(f"{self.path} is damaged", cause=f"{place}: {shown}", hint=_STRICT_HINT)
        self.samples.append(f"{place}, {what}: {shown}")


_STRICT_HINT = "read it without --strict (strict=False) to get all events that are whole"


def printable(text: bytes) -> str:
    r"""Return text on one line, with what cannot be shown escaped.

    >>> printable(b'a\n\x00\xff')
    'a\\n\\x00\\ufffd'
    """
    decoded = text.decode("utf-8", "replace")
    return "".join(
        char if char.isascii() and char.isprintable() else char.encode("unicode_escape").decode() for char in decoded
    )


UNDECODABLE = (msgspec.MsgspecError, ValueError, RecursionError)
ELEMENTS = msgspec.json.Decoder(list[Raw])

_BAD_ESCAPE = re.compile(r'\\(?:(["\\/bfnrt]|u[0-9a-fA-F]{4})|)')
# A string, or one of the known slips between strings. One without end runs to the end of the text, as to look for
# another at each of its quotes would take time that grows with the square of its length.
_SLIP = re.compile(
    r"""(?P<string>"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z))
    |(?P<no_number>(?<=[\[,:\s])[-+]?(?:nan|inf|infinity|n/a)(?=\s*[,}\]]))
    |(?P<fraction>(?<=\d)\.-(?=\d))
    |(?P<comma>,\s*(?=[}\]]))
    |(?P<no_value>:\s*(?=[,}]))""",
    re.IGNORECASE | re.DOTALL | re.VERBOSE,
)
_MENDED = {"no_number": "null", "fraction": ".", "comma": "", "no_value": ": null"}
_TEXT_KEY = re.compile(r'"(?:name|Call stack|Module Hierarchy)"\s*:')
# An event has a few texts that may hold anything; where there are more the pattern below would search too long.
_TEXTS_SEARCHED = 8
# A text runs up to the quote that a known next key, or the end of the object, follows.
_QUOTED_TEXT = re.compile(
    r'("(?:name|Call stack|Module Hierarchy)"\s*:\s*")(.*?)(?="\s*(?:,\s*"[\w ]+"\s*:|\}))', re.DOTALL
)
_BARE_QUOTE = re.compile(r'(\\.)|"', re.DOTALL)
_NEXT_KEY = r',\s*"(?:ph|cat|pid|tid|ts|dur|id|args)"\s*:'
_NO_OPENING_QUOTE = re.compile(
    rf'("name"\s*:\s*)(?!["\[{{\s\d-]|(?:null|true|false|NaN|Infinity)\b)([^"]*"\s*{_NEXT_KEY})'
)
_NO_CLOSING_QUOTE = re.compile(rf'("name"\s*:\s*"[^"\\]*?)({_NEXT_KEY})')


class Found(msgspec.Struct):
    """The events of a piece of text, and how many of them had to be repaired or given up.

    Attributes:
        events: in order.
        repaired: how many of the events had to be repaired.
        dropped: how many elements of the piece are no events.
        first_damaged: the first repaired or dropped element, where the piece has several, and its index.
    """

    events: list[records.Event] = msgspec.field(default_factory=list)
    repaired: int = 0
    dropped: int = 0
    first_damaged: tuple[int, bytes] = (0, b"")


class Repairer:
    """Reads damaged pieces into the same events as the decoder of whole chunks.

    Args:
        wanted: what is read beside complete events.
    """

    def __init__(self, wanted: Wanted) -> None:
        self._exact = records.decoder(wanted, exact=True)
        self._wanted = wanted

    def read_exactly(self, piece: bytes) -> list[records.Event] | None:
        """Return the events of a piece whose every event is well formed; None otherwise."""
        try:
            events = self._exact.decode(b"[%b]" % piece)
            written_to_ns([event.ts for event in events if isinstance(event, STAMPED)])
        except UNDECODABLE:
            return None
        return events

    def read_piece(self, piece: bytes) -> Found | None:
        """Return the events of a piece, repairing what can be; None when the piece as a whole makes no sense.

        A piece is one event as a rule, and more where something that is no event stands between two of them.
        """
        if len(piece) > REPAIRED_BYTES:
            return None
        try:
            elements = ELEMENTS.decode(b"[%b]" % piece)
        except UNDECODABLE:
            return self._read_damaged(piece)
        found = Found()
        for index, element in enumerate(map(bytes, elements)):
            events = self.read_exactly(element)
            if events is not None:
                found.events += events
                continue
            if not found.first_damaged[1]:
                found.first_damaged = (index, element)
            damaged = self._read_damaged(element, is_json=True)
            if damaged is None:
                found.dropped += 1
            else:
                found.events += damaged.events
                found.repaired += damaged.repaired
                found.dropped += damaged.dropped
        return found

    def _read_damaged(self, piece: bytes, *, is_json: bool = False) -> Found | None:
        """Return the events of a piece after the mildest repair that lets JSON read it, or None."""
        plain = piece.decode("utf-8", "replace")
        for text in (plain, *_repairs(plain)) if is_json else _repairs(plain):
            events = self.read_exactly(text.encode("utf-8", "replace"))
            if events is not None:
                return Found(events, repaired=len(events))
            try:
                values = json.loads(f"[{text}]", strict=False, parse_float=Decimal)
            except (ValueError, RecursionError, InvalidOperation):
                continue
            found = Found()
            for value in values:
                event = event_from(value, self._wanted)
                if event is None:
                    found.dropped += 1
                else:
                    found.repaired += 1
                    found.events.append(event)
            return found
        return None


def _repairs(text: str) -> Iterator[str]:
    yield _mended(text)
    if len(_TEXT_KEY.findall(text)) <= _TEXTS_SEARCHED:
        yield _mended(_NO_OPENING_QUOTE.sub(r'\1"\2', _NO_CLOSING_QUOTE.sub(r'\1"\2', text)))
        escaped = _QUOTED_TEXT.sub(lambda found: found[1] + _BARE_QUOTE.sub(lambda q: q[1] or r"\"", found[2]), text)
        yield _mended(escaped)


def _mended(text: str) -> str:
    return _SLIP.sub(_mended_slip, text)


def _mended_slip(found: re.Match[str]) -> str:
    kind = found.lastgroup or ""
    if kind != "string":
        return _MENDED[kind]
    return _BAD_ESCAPE.sub(lambda escape: escape[0] if escape[1] else r"\\", found[0]) if "\\" in found[0] else found[0]


def event_from(value: object, wanted: Wanted) -> records.Event | None:
    """Return the event a parsed JSON value describes, with fields of the wrong type converted; None if it is none."""
    if not isinstance(value, dict):
        return None
    phase = value.get("ph")
    if not isinstance(phase, str):
        return None
    if phase in records.UNUSED_PHASES:
        return records.UNUSED[phase]()
    name, pid, tid = _text(value.get("name")), _identity(value.get("pid")), _identity(value.get("tid"))
    kind, ts = _text(value.get("cat")), Raw(str(_time(value.get("ts"), Decimal("NaN"))).encode())
    args = value.get("args")
    args = args if isinstance(args, dict) else {}
    if phase == "X":
        dur = _time(value.get("dur"), Decimal(0))
        return records.ExactSpan(name, pid, tid, kind, ts, float(dur), _span_args(args))
    if phase in ("s", "f"):
        if Wanted.FLOWS not in wanted:
            return records.UNUSED[phase]()
        flow = records.ExactFlowStart if phase == "s" else records.ExactFlowEnd
        return flow(name, pid, tid, kind, ts, whole_number(value.get("id")))
    if phase == "i":
        if Wanted.MEMORY not in wanted:
            return records.UNUSED[phase]()
        given = {info.name: args.get(info.encode_name) for info in msgspec.structs.fields(InstantArgs)}
        numbers = {name: _number(value) for name, value in given.items() if value is not None}
        return records.ExactInstant(name, pid, tid, ts, InstantArgs(**numbers))
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


def _span_args(args: dict[str, Any]) -> SpanArgs:
    found: dict[str, Any] = {}
    for info in msgspec.structs.fields(SpanArgs):
        value = args.get(info.encode_name)
        if value is None:
            continue
        if info.type is Raw:
            found[info.name] = Raw(json.dumps(value, default=float).encode())
        elif info.name == "collective":
            found[info.name] = str(value)
        elif info.name == "blocks_per_sm":
            found[info.name] = grid_size(float(value) if isinstance(value, Decimal) else value)
        else:
            found[info.name] = _number(value)
    return SpanArgs(**found)
