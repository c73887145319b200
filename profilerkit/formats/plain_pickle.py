"""Plain data out of a pickle: lists, dicts, tuples, text and numbers, and nothing that could be looked up or called."""

import pickle
import struct
from collections.abc import Callable, Sequence
from sys import getsizeof

#: Instructions of one pickle: a memory snapshot of 100,000 events has about 3 million. Each takes a microsecond.
MOST_INSTRUCTIONS = 64_000_000
#: Lists, dicts and tuples of one pickle; the collector of garbage looks at each again and again.
MOST_CONTAINERS = 4_000_000
#: Bytes that may be held of a pickle, for each byte of it and at least. Whatever is made counts, at what Python says
#: that it takes; what is dropped again counts too. Real snapshots and dumps count 5 to 7 bytes for each of theirs.
HELD_PER_BYTE = 12
FREE_HELD_BYTES = 16 * 1024 * 1024
#: The longest text or number of bytes, which are copied while they are read; real ones are names of files.
MOST_TEXT_BYTES = 4 * 1024 * 1024
#: A place on the stack or in the memo, and what lies around an object: lists grow by an eighth more than they hold, and
#: objects are placed at multiples of 16 bytes.
_PLACE_BYTES, _AROUND_BYTES = 10, 16

#: What names a class or a function, or calls one. A pickle of plain data has none of them.
_CALLING = {
    code[0]
    for code in (
        *(pickle.GLOBAL, pickle.STACK_GLOBAL, pickle.INST, pickle.OBJ, pickle.NEWOBJ, pickle.NEWOBJ_EX, pickle.REDUCE),
        *(pickle.BUILD, pickle.EXT1, pickle.EXT2, pickle.EXT4, pickle.PERSID, pickle.BINPERSID),
    )
}


class NotPlainError(ValueError):
    """The pickle is damaged, too large, or holds more than plain data; the message says which."""


def plain_data(data: bytes) -> object:
    """The object of a pickle of protocol 2 to 5.

    Nothing is imported, called or built but lists, dicts with keys of text and numbers, tuples, text, bytes and
    numbers. The library's own unpickler is not used: with it a few bytes can ask for gigabytes (a number of its memo,
    a declared length), and a key nested deeply enough overflows the stack of the process. No more is held than
    ``FREE_HELD_BYTES`` and ``HELD_PER_BYTE`` for each byte of ``data``, and half of that again while a dict grows.

    Raises:
        NotPlainError: the pickle asks for anything else, is damaged, or is larger than the limits of this module.
    """
    machine = _Machine(data)
    try:
        return machine.run()
    except (IndexError, KeyError, struct.error, OverflowError) as error:
        raise NotPlainError(f"it is damaged at byte {machine.at:,}") from error


class _Machine:
    __slots__ = ("_containers", "_data", "_left", "_marks", "_memo", "_stack", "at")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._stack: list[object] = []
        self._marks: list[list[object]] = []
        self._memo: list[object] = []
        self._containers = 0
        self._left = FREE_HELD_BYTES + HELD_PER_BYTE * len(data)
        self.at = 0

    def run(self) -> object:
        data, handlers, stop = self._data, _HANDLERS, pickle.STOP[0]
        for _ in range(MOST_INSTRUCTIONS):
            code = data[self.at] if self.at < len(data) else None
            if code is None:
                raise NotPlainError("it ends early")
            self.at += 1
            if code == stop:
                return self._stack[-1]
            handler = handlers.get(code)
            if handler is None:
                raise NotPlainError(_refusal(code))
            handler(self)
        raise NotPlainError(f"it has more than {MOST_INSTRUCTIONS:,} instructions")

    def take(self, count: int) -> bytes:
        """The next bytes; what a pickle declares to be longer than it is ends it."""
        found = self._data[self.at : self.at + count]
        if len(found) < count:
            raise NotPlainError("it ends early")
        self.at += count
        return found

    def number(self, count: int) -> int:
        return int.from_bytes(self.take(count), "little")

    def sized(self, length_bytes: int) -> bytes:
        count = self.number(length_bytes)
        if MOST_TEXT_BYTES < count <= len(self._data):
            raise NotPlainError(f"it has a text of more than {MOST_TEXT_BYTES:,} bytes")
        return self.take(count)

    def text(self, length_bytes: int) -> str:
        return self.sized(length_bytes).decode("utf-8", "replace")

    def push_known(self, value: object) -> None:
        self._hold(_PLACE_BYTES)
        self._stack.append(value)

    def push(self, value: object) -> None:
        self._hold(_PLACE_BYTES + _AROUND_BYTES + getsizeof(value))
        self._stack.append(value)

    def push_container(self, value: list[object] | dict[object, object] | tuple[object, ...]) -> None:
        self._count()
        self.push(value)

    def mark(self) -> None:
        self._count()
        self._marks.append(self._stack)
        self._stack = []
        self._hold(_PLACE_BYTES + _AROUND_BYTES + getsizeof(self._stack))

    def since_mark(self) -> list[object]:
        found, self._stack = self._stack, self._marks.pop()
        return found

    def append(self, items: Sequence[object]) -> None:
        target = self._stack[-1]
        if not isinstance(target, list):
            raise NotPlainError(f"it is damaged at byte {self.at:,}")
        before = getsizeof(target)
        target.extend(items)
        self._hold(getsizeof(target) - before)

    def update(self, items: Sequence[object]) -> None:
        target = self._stack[-1]
        if not isinstance(target, dict) or len(items) % 2:
            raise NotPlainError(f"it is damaged at byte {self.at:,}")
        before = getsizeof(target)
        for key, value in zip(items[::2], items[1::2], strict=True):
            # The hash of a deep tuple, or of one that holds itself many times over, would not come back.
            if not isinstance(key, str | int | float | bytes):
                raise NotPlainError("a key is neither text nor a number")
            target[key] = value
        self._hold(getsizeof(target) - before)

    def remember(self, place: int | None = None) -> None:
        """Put the last value into the memo; every pickler numbers its places one by one."""
        if place is None or place == len(self._memo):
            self._hold(_PLACE_BYTES)
            self._memo.append(self._stack[-1])
        elif place < len(self._memo):
            self._memo[place] = self._stack[-1]
        else:
            raise NotPlainError(f"it is damaged at byte {self.at:,}")

    def recall(self, place: int) -> None:
        self.push_known(self._memo[place])

    def last(self, count: int) -> list[object]:
        if len(self._stack) < count:
            raise NotPlainError(f"it is damaged at byte {self.at:,}")
        found = self._stack[-count:]
        del self._stack[-count:]
        return found

    def _hold(self, count: int) -> None:
        self._left -= count
        if self._left < 0:
            raise NotPlainError(f"it unpacks to more than {HELD_PER_BYTE} times its size")

    def _count(self) -> None:
        self._containers += 1
        if self._containers > MOST_CONTAINERS:
            raise NotPlainError(f"it has more than {MOST_CONTAINERS:,} lists, dicts and tuples")


def _refusal(code: int) -> str:
    if code in _CALLING:
        return "it names a class or a function to be called, and a snapshot holds nothing but plain data"
    return f"its instruction {bytes([code])!r} is none of plain data"


_HANDLERS: dict[int, Callable[[_Machine], object]] = {
    pickle.PROTO[0]: lambda m: m.take(1),
    pickle.FRAME[0]: lambda m: m.take(8),
    pickle.MARK[0]: _Machine.mark,
    pickle.NONE[0]: lambda m: m.push_known(None),
    pickle.NEWTRUE[0]: lambda m: m.push_known(True),
    pickle.NEWFALSE[0]: lambda m: m.push_known(False),
    pickle.BININT[0]: lambda m: m.push(int.from_bytes(m.take(4), "little", signed=True)),
    pickle.BININT1[0]: lambda m: m.push_known(m.number(1)),
    pickle.BININT2[0]: lambda m: m.push(m.number(2)),
    pickle.LONG1[0]: lambda m: m.push(int.from_bytes(m.take(m.number(1)), "little", signed=True)),
    pickle.BINFLOAT[0]: lambda m: m.push(struct.unpack(">d", m.take(8))[0]),
    pickle.SHORT_BINUNICODE[0]: lambda m: m.push(m.text(1)),
    pickle.BINUNICODE[0]: lambda m: m.push(m.text(4)),
    pickle.BINUNICODE8[0]: lambda m: m.push(m.text(8)),
    pickle.SHORT_BINBYTES[0]: lambda m: m.push(m.sized(1)),
    pickle.BINBYTES[0]: lambda m: m.push(m.sized(4)),
    pickle.EMPTY_LIST[0]: lambda m: m.push_container([]),
    pickle.EMPTY_DICT[0]: lambda m: m.push_container({}),
    pickle.EMPTY_TUPLE[0]: lambda m: m.push_known(()),
    pickle.TUPLE1[0]: lambda m: m.push_container(tuple(m.last(1))),
    pickle.TUPLE2[0]: lambda m: m.push_container(tuple(m.last(2))),
    pickle.TUPLE3[0]: lambda m: m.push_container(tuple(m.last(3))),
    pickle.TUPLE[0]: lambda m: m.push_container(tuple(m.since_mark())),
    pickle.APPEND[0]: lambda m: m.append(m.last(1)),
    pickle.APPENDS[0]: lambda m: m.append(m.since_mark()),
    pickle.SETITEM[0]: lambda m: m.update(m.last(2)),
    pickle.SETITEMS[0]: lambda m: m.update(m.since_mark()),
    pickle.MEMOIZE[0]: _Machine.remember,
    pickle.BINPUT[0]: lambda m: m.remember(m.number(1)),
    pickle.LONG_BINPUT[0]: lambda m: m.remember(m.number(4)),
    pickle.BINGET[0]: lambda m: m.recall(m.number(1)),
    pickle.LONG_BINGET[0]: lambda m: m.recall(m.number(4)),
}
