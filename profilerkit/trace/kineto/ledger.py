"""What was repaired and dropped, and where."""

import re

import msgspec

from profilerkit.errors import UnreadableInputError
from profilerkit.trace.limits import DROPPED_PIECES, FAILED_REPAIRS, REPAIRED_BYTES, SEARCHED_BYTES

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
        """Count and pass pieces that could not be read; the arguments are those of ``repair``."""
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
