"""Read small files of ``/proc`` and ``/sys`` again and again, and tell how fast their counters grow.

Reading a file that stays open costs a tenth of what ``psutil`` takes for the same number: 1 to 2 µs against 12 to 30
µs, measured on a two-core machine.
"""

import os
from pathlib import Path

from profilerkit.rundir.files import Descriptor

#: Enough for the fields that are used of every file that is read here.
_READ_BYTES = 2048


class ProcFile:
    """One file; its text is empty while it cannot be read."""

    def __init__(self, path: Path) -> None:
        try:
            self._file: Descriptor | None = Descriptor(path, os.O_RDONLY)
        except OSError:
            self._file = None

    @property
    def is_open(self) -> bool:
        """Whether the file is there and may be read."""
        return self._file is not None

    def text(self) -> str:
        """What the file says now."""
        if self._file is None or not self._file.is_ours:
            return ""
        try:
            return os.pread(self._file.number, _READ_BYTES, 0).decode("ascii", "replace")
        except OSError:
            return ""

    def close(self) -> None:
        """Close it."""
        if self._file is not None:
            self._file.close()
            self._file = None


class ProcFiles:
    """The files of one source, below ``root``, and their end."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._files: list[ProcFile] = []

    def open(self, path: str | Path) -> ProcFile:
        """The file at ``path`` below the root."""
        file = ProcFile(self.root / path)
        self._files.append(file)
        return file

    def once(self, path: str | Path) -> str:
        """What the file at ``path`` says now, for what is asked once only."""
        file = ProcFile(self.root / path)
        try:
            return file.text()
        finally:
            file.close()

    def names(self, path: str | Path) -> list[str]:
        """What is in the directory at ``path``, sorted; nothing when it cannot be read."""
        try:
            return sorted(entry.name for entry in (self.root / path).iterdir())
        except OSError:
            return []

    def close(self) -> None:
        """Close them all."""
        for file in self._files:
            file.close()


def number(text: str) -> int | None:
    """The whole number that ``text`` is.

    >>> number(" 12 "), number("max"), number("")
    (12, None, None)
    """
    stripped = text.strip()
    return int(stripped) if stripped.isdecimal() else None


def field(text: str, name: str) -> int | None:
    r"""The number after ``name``, given with what separates the two, at the beginning of a line.

    >>> field("oom_kill_disable 0\noom_kill 12\n", "oom_kill "), field("MemFree:   7 kB\n", "MemFree:"), field("", "x ")
    (12, 7, None)
    """
    at = 0 if text.startswith(name) else text.find("\n" + name) + 1
    if not at and not text.startswith(name):
        return None
    words = text[at + len(name) :].split(None, 1)
    return number(words[0]) if words else None


def pressure_ns(text: str) -> int | None:
    r"""Return the total of PSI's ``some`` line, which is in microseconds.

    >>> pressure_ns("some avg10=0.00 avg60=0.00 avg300=0.00 total=12\nfull avg10=0.00 total=9\n")
    12000
    """
    line, _, total = text.partition("\n")[0].rpartition("total=")
    return times(number(total), 1000) if line.startswith("some ") else None


def times(value: int | None, factor: int) -> int | None:
    """Return the product; ``None`` where the value was not measured."""
    return None if value is None else value * factor


#: Counters of processor time step by a hundredth of a second: over less than ten steps a rate is noise. The last
#: sample of a run may follow the one before at once.
_SHORTEST_NS = 100_000_000


class Rates:
    """How fast counters grow between two readings, by name; after a wrap or a reset a counter starts anew."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[int | None, int]] = {}

    def per_s(self, name: str, total: int | None, now_ns: int) -> float | None:
        """Return the growth per second since the last reading; ``None`` for the first, too early or smaller a total.

        >>> rates = Rates()
        >>> [rates.per_s("x", total, s * 10**9) for s, total in ((1, 100), (2, 350), (4, 350), (5, 20), (6, 30))]
        [None, 250.0, 0.0, None, 10.0]
        """
        last, at_ns = self._last.get(name, (None, 0))
        if total is not None and last is not None and now_ns - at_ns < _SHORTEST_NS:
            return None
        self._last[name] = total, now_ns
        if total is None or last is None or total < last:
            return None
        return (total - last) * 1e9 / (now_ns - at_ns)

    def whole(self, name: str, total: int | None, now_ns: int) -> int | None:
        """Return ``per_s`` without a fraction, as for bytes."""
        grown = self.per_s(name, total, now_ns)
        return None if grown is None else round(grown)

    def tenths(self, name: str, total: int | None, now_ns: int) -> float | None:
        """Return ``per_s`` with one digit, as for rare events."""
        grown = self.per_s(name, total, now_ns)
        return None if grown is None else round(grown, 1)

    def cores(self, name: str, total_ns: int | None, now_ns: int) -> float | None:
        """Return by how many nanoseconds a counter of these grows in each."""
        grown = self.per_s(name, total_ns, now_ns)
        return None if grown is None else rounded(grown / 1e9)

    def ratio(self, name: str, total_ns: int | None, now_ns: int) -> float | None:
        """Return ``cores`` as a share of the time, 0 to 1."""
        cores = self.cores(name, total_ns, now_ns)
        return None if cores is None else min(cores, 1.0)

    def forget(self, name: str) -> None:
        """Start a counter anew."""
        self._last.pop(name, None)


def rounded(value: float) -> float:
    """Return ``value`` to a ten-thousandth: more digits would be noise on the disk."""
    return round(value, 4)
