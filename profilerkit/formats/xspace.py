"""The wire format of protocol buffers, read within bounds: a length is never believed beyond its message."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence

import msgspec

from profilerkit.errors import UnreadableInputError
from profilerkit.formats import limits

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
#: Of a message for which nobody says less: 2 GiB hold no more.
MOST_FIELDS = 2**31

_FIXED_BYTES = {FIXED64: 8, FIXED32: 4}
# A varint holds 64 bits, seven in each byte.
_VARINT_BITS = 70
_UNSIGNED = 2**64
# The first field has the number 1.
_FIRST_TAG = 1 << 3


class Message(bytearray):
    """The bytes of a message, and how many more of its fields are read: a hostile one may have one in two bytes.

    Attributes:
        fields_left: below 0 once there were more.
    """

    fields_left = MOST_FIELDS


class WireError(ValueError):
    """Bytes that are no message.

    Attributes:
        tag: of the field whose length reaches beyond its message; 0 for other damage.
        at: where what that field holds begins.
    """

    def __init__(self, what: str, *, tag: int = 0, at: int = 0) -> None:
        super().__init__(what)
        self.tag = tag
        self.at = at


def tag_of(number: int, kind: int) -> int:
    """Return what stands before each field of this number and kind.

    >>> tag_of(1, BYTES), tag_of(2, VARINT)
    (10, 16)
    """
    return number << 3 | kind


def fields(data: Message, start: int, end: int) -> Iterator[tuple[int, int, int]]:
    r"""Yield each field of the message in ``data[start:end]``: its tag, its value or where it begins, where it ends.

    Of a varint the value is its number; of anything else it is where its bytes begin. Nothing is copied.
    Where the message has no fields left, they end.

    Raises:
        WireError: the rest of the message is damaged. What came before was yielded.

    >>> list(fields(Message(b"\x08\x96\x01\x12\x02ab"), 0, 7))
    [(8, 150, 3), (18, 5, 7)]
    """
    at = start
    while at < end:
        data.fields_left -= 1
        if data.fields_left < 0:
            return
        tag, at = varint(data, at, end)
        kind = tag & 7
        if tag < _FIRST_TAG:
            raise WireError("a field has no number")
        if kind == VARINT:
            value, at = varint(data, at, end)
            yield tag, value, at
            continue
        if kind == BYTES:
            length, at = varint(data, at, end)
        elif kind in _FIXED_BYTES:
            length = _FIXED_BYTES[kind]
        else:
            raise WireError(f"no field is of kind {kind}")
        if length > end - at:
            raise WireError("a length reaches beyond its message", tag=tag, at=at)
        yield tag, at, at + length
        at += length


def varint(data: bytearray, at: int, end: int) -> tuple[int, int]:
    """Return the number that begins at ``at``, 0 to 2**64 - 1, and where it ends.

    Raises:
        WireError: it does not end before ``end``, or has more than ten bytes.
    """
    value = shift = 0
    while at < end and shift < _VARINT_BITS:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value % _UNSIGNED, at
        shift += 7
    raise WireError("a number does not end")


def signed(value: int) -> int:
    """Return a varint of a signed field as the number it stands for.

    >>> signed(2**64 - 1), signed(5)
    (-1, 5)
    """
    return value - _UNSIGNED if value >= _UNSIGNED // 2 else value


# Field numbers of XLA's tsl/profiler/protobuf/xplane.proto.
PLANE = tag_of(1, BYTES)
_PLANE_NAME, _LINE, _EVENT_NAMES, _STAT_NAMES, _PLANE_STAT = (tag_of(number, BYTES) for number in (2, 3, 4, 5, 6))
_KEY, _VALUE = tag_of(1, VARINT), tag_of(2, BYTES)
_NAME, _DISPLAY_NAME = tag_of(2, BYTES), tag_of(4, BYTES)
_LINE_ID, _LINE_NAME, _LINE_START, _EVENT = tag_of(1, VARINT), tag_of(2, BYTES), tag_of(3, VARINT), tag_of(4, BYTES)
_EVENT_NAME, _OFFSET, _DURATION, _STAT = *(tag_of(number, VARINT) for number in (1, 2, 3)), tag_of(4, BYTES)
_STAT_NAME = tag_of(1, VARINT)
_STAT_UNSIGNED, _STAT_SIGNED, _STAT_TEXT, _STAT_REFERENCE = (
    *(tag_of(number, VARINT) for number in (3, 4)),
    *(tag_of(5, BYTES), tag_of(7, VARINT)),
)

# The names that planes have; the first plane's stands within its first bytes.
_PLANE_NAMES = re.compile(rb"/(?:host|device):|Task Environment|#Chip |Misc ")
# A TPU's operation is named by its whole text: "%copy-start.1 = (f32[5,1024] …".
_OPERATION = re.compile(r"^%?(\S+) = ")
# Longer names are cut: no operation of a real program needs more, and its whole text can be its name.
_LONGEST_TEXT = 65_536
# No event has more; XLA writes about ten.
_MOST_STATS = 256
#: A host has one for each of its devices and a few of its own; the real profiles at hand have fewer than 20.
_MOST_PLANES = 4_096
_STRICT_HINT = "read it without --strict (strict=False) to get all events that are whole"

Place = tuple[int, int]


class Losses:
    """What was lost, counted by what it is; with ``strict`` the first loss is an error."""

    def __init__(self, path: str, *, strict: bool) -> None:
        self.path = path
        self.strict = strict
        self.truncated = False
        self.counts: Counter[str] = Counter()
        self.said: list[str] = []

    def lose(self, what: str) -> None:
        """Count one piece, named in the plural."""
        self._refuse(f"there are {what}")
        self.counts[what] += 1

    def say(self, what: str, *, truncated: bool = False) -> None:
        """Note what is wrong with the file as a whole."""
        self._refuse(what)
        self.said.append(what)
        self.truncated |= truncated

    def notes(self) -> tuple[str, ...]:
        """Everything, one sentence each."""
        return (*self.said, *(f"{count:,} {what} dropped" for what, count in self.counts.items()))

    def _refuse(self, what: str) -> None:
        if self.strict:
            raise UnreadableInputError(f"{self.path} is damaged", cause=what, hint=_STRICT_HINT)


class Line(msgspec.Struct, frozen=True):
    """One line of a plane.

    Attributes:
        id: tells it from others of the plane.
        name: hostile text.
        start_ns: what the offsets of its events count from.
        events: the bytes from its first event on; ``None`` without one.
    """

    id: int
    name: str
    start_ns: int
    events: Place | None


class Event(msgspec.Struct, frozen=True):
    """One event of a line; ``stats`` are only there when they were asked for."""

    name: int
    offset_ps: int | None  # None for one that stands for several
    duration_ps: int
    stats: Sequence[Place] = ()


class Plane(msgspec.Struct):
    """One plane: its name, and where its parts are in ``data``."""

    data: Message
    losses: Losses
    name: str = ""
    lines: list[Place] = msgspec.field(default_factory=list)
    event_names: dict[int, Place] = msgspec.field(default_factory=dict)
    stat_names: dict[int, Place] = msgspec.field(default_factory=dict)
    stats: list[Place] = msgspec.field(default_factory=list)
    referred: dict[int, str | None] = msgspec.field(default_factory=dict)

    def event_name(self, key: int) -> str | None:
        """The short name of an event, ``None`` where it is missing."""
        place = self.event_names.get(key)
        if place is None:
            return None
        found = self._texts(place)
        shown = found.get(_DISPLAY_NAME) or found.get(_NAME, "")
        operation = _OPERATION.match(shown)
        return operation[1] if operation else shown

    def stat_named(self, wanted: str) -> int | None:
        """The number by which the plane's stats of this name are known, ``None`` without any."""
        return next((key for key, place in self.stat_names.items() if self._texts(place).get(_NAME) == wanted), None)

    def stat(self, places: Sequence[Place], key: int | None) -> int | str | None:
        """The value of the stat that is known by ``key`` among ``places``, ``None`` where it is missing."""
        if key is None:
            return None
        for start, stop in places:
            known, found = None, (0, 0, 0)
            try:
                for tag, value, end in fields(self.data, start, stop):
                    if tag == _STAT_NAME:
                        known = signed(value)
                    else:
                        found = (tag, value, end)
            except WireError:
                continue
            if known == key:
                return self._value(*found)
        return None

    def _value(self, tag: int, value: int, end: int) -> int | str | None:
        if tag == _STAT_UNSIGNED:
            return value
        if tag == _STAT_SIGNED:
            return signed(value)
        if tag == _STAT_TEXT:
            return _text(self.data, value, end)
        if tag != _STAT_REFERENCE or signed(value) not in self.stat_names:
            return None
        if value not in self.referred:
            self.referred[value] = self._texts(self.stat_names[signed(value)]).get(_NAME)
        return self.referred[value]

    def _texts(self, place: Place) -> dict[int, str]:
        found: dict[int, str] = {}
        try:
            for tag, start, stop in fields(self.data, *place):
                if tag in (_NAME, _DISPLAY_NAME):
                    found[tag] = _text(self.data, start, stop)
        except WireError:
            self.losses.lose("pieces of names were damaged and")
        return found


def is_xspace(head: bytes) -> bool:
    """Whether a file that begins like this is an XSpace: a plane, whose name is one of XLA's profiler."""
    data = Message(head)
    try:
        tag, at = varint(data, 0, len(data))
        _, at = varint(data, at, len(data))
        if tag != PLANE:
            return False
        for inner, start, stop in fields(data, at, len(data)):
            if inner == _PLANE_NAME:
                return _PLANE_NAMES.match(data, start, stop) is not None
            if inner != _KEY:
                return False
    except WireError:
        pass
    return False


def planes(data: Message, losses: Losses) -> Iterator[Plane]:
    """Yield the planes; one that the file breaks off in is read as far as it goes."""
    try:
        places = (place for place in fields(data, 0, len(data)) if place[0] == PLANE)
        for number, (_, start, stop) in enumerate(places):
            if number == _MOST_PLANES:
                losses.say(f"planes beyond the first {_MOST_PLANES:,} were left out", truncated=True)
                return
            yield _plane(data, start, stop, losses)
    except WireError as error:
        losses.say("the file ends early, or what follows a damaged spot is lost", truncated=True)
        if error.tag == PLANE:
            yield _plane(data, error.at, len(data), losses)


def _plane(data: Message, start: int, stop: int, losses: Losses) -> Plane:
    plane = Plane(data, losses)
    try:
        for tag, at, end in fields(data, start, stop):
            _add(plane, tag, at, end)
    except WireError as error:
        losses.lose("pieces of planes were damaged and")
        if error.tag == _LINE:
            plane.lines.append((error.at, stop))
    return plane


def _add(plane: Plane, tag: int, at: int, end: int) -> None:
    """Keep where a part of the plane is. Raises ``WireError`` where there are more than any plane has."""
    if len(plane.lines) + len(plane.stats) > limits.XPLANE_LINES:
        raise WireError("more lines than any plane has")
    if len(plane.event_names) + len(plane.stat_names) > limits.XPLANE_NAMES:
        raise WireError("more names than any plane has")
    if tag == _PLANE_NAME:
        plane.name = _text(plane.data, at, end)
    elif tag == _LINE:
        plane.lines.append((at, end))
    elif tag == _PLANE_STAT:
        plane.stats.append((at, end))
    elif tag in (_EVENT_NAMES, _STAT_NAMES):
        try:
            entry = {inner: (value, stop) for inner, value, stop in fields(plane.data, at, end)}
        except WireError:
            plane.losses.lose("pieces of names were damaged and")
            return
        if _VALUE in entry:
            names = plane.event_names if tag == _EVENT_NAMES else plane.stat_names
            names[signed(entry.get(_KEY, (0, 0))[0])] = entry[_VALUE]


def line_at(plane: Plane, place: Place) -> Line:
    """The line at a place of the plane. What its profiler writes behind the events is not looked at."""
    number, name, start_ns = 0, "", 0
    at = place[0]
    try:
        for tag, value, end in fields(plane.data, *place):
            if tag == _EVENT:
                return Line(number, name, start_ns, (at, place[1]))
            if tag == _LINE_ID:
                number = signed(value)
            elif tag == _LINE_NAME:
                name = _text(plane.data, value, end)
            elif tag == _LINE_START:
                start_ns = signed(value)
            at = end
    except WireError:
        plane.losses.lose("pieces of lines were damaged and")
    return Line(number, name, start_ns, None)


def events(plane: Plane, line: Line, *, stats: bool) -> Iterator[Event]:
    """Yield the events of a line that are whole, with their stats if those are asked for."""
    if line.events is None:
        return
    try:
        for tag, start, stop in fields(plane.data, *line.events):
            if tag != _EVENT:
                continue
            try:
                yield _event(plane.data, start, stop, stats=stats)
            except WireError:
                plane.losses.lose("events were damaged and")
    except WireError:
        plane.losses.lose("pieces of lines were damaged and")


def _event(data: Message, start: int, stop: int, *, stats: bool) -> Event:
    name = duration_ps = 0
    offset_ps = None
    places: list[Place] = []
    for tag, value, end in fields(data, start, stop):
        if tag == _EVENT_NAME:
            name = signed(value)
        elif tag == _OFFSET:
            offset_ps = signed(value)
        elif tag == _DURATION:
            duration_ps = signed(value)
        elif tag == _STAT:
            if stats and len(places) < _MOST_STATS:
                places.append((value, end))
            elif not stats and offset_ps is not None:
                break  # stats come last and take most of an event
    return Event(name, offset_ps, duration_ps, places)


def _text(data: Message, start: int, stop: int) -> str:
    return data[start : min(stop, start + _LONGEST_TEXT)].decode("utf-8", "replace")
