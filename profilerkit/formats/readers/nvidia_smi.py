"""Logs of nvidia-smi: ``--query-gpu=… --format=csv`` in its dialects, and the text of ``nvidia-smi dmon``.

The text of ``dcgmi dmon`` is read like that of dmon.

Read are logs with and without units, with a header once, again at each sample or with names of one's own, with times or
without, and of several devices. A log without a header is refused: two numbers of MiB look alike.
"""

import csv
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import msgspec

from profilerkit.errors import UnreadableInputError
from profilerkit.formats import smi_columns
from profilerkit.formats.blocks import plain_bytes
from profilerkit.rundir.sampled import GpuSample, Sample
from profilerkit.trace.logs import GpuLog, LogClock, SamplerLog

name = "nvidia-smi"
kind = "log"
shared_suffixes = (".csv", ".txt", ".log")

#: A day of six devices once a second has 518,400 rows of about 60 bytes; each takes about 700 bytes while it is read.
MOST_BYTES = 128 * 1024 * 1024
MOST_ROWS = 500_000
#: Devices of one host; rows of more are left out.
MOST_GPUS = 128

#: Every sample may have its header; what stands behind that many lines is left out.
_MOST_LINES = 2 * MOST_ROWS
_LOOKED_AT_LINES = 20
_LONGEST_LINE = 4096
_LONGEST_LABEL = 60
_MOST_REMEMBERED = 100_000
#: Signals that a header of one's own must have to be told from any other table.
_FEWEST_OWN_NAMES = 2
#: A cell that begins with a number: no header has one.
_HAS_NUMBER = re.compile(r"(?:^|,)\s*[-+]?\d")
_BARE = re.compile(r"(?:^|,)\s*\d+(?:\.\d+)? (?:%|MiB|W|MHz)\s*(?:,|$)")
#: How ``dcgmi dmon`` names the device of a row.
_ENTITY = re.compile(r"^\s*GPU[ -]?(\d{1,6})\b")
_PRINTED = re.compile(r"\|\s*NVIDIA-SMI |^\| GPU\s+Name ")
_HINT = "nvidia-smi --query-gpu=timestamp,index,utilization.gpu,memory.used,memory.total,power.draw,temperature.gpu,clocks.sm,clocks_throttle_reasons.active --format=csv -l 1"  # noqa: E501 - it is to be pasted


def sniff(head: bytes) -> bool:
    """Return whether a file that begins like this is a log of nvidia-smi, readable or not."""
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if text[:1] in (b"{", b"["):
        return False
    lines = _lines(text[: _LOOKED_AT_LINES * _LONGEST_LINE])[:_LOOKED_AT_LINES]
    if any(_header(line) for line in lines) or any(map(_PRINTED.search, lines)):
        return True
    # A line of values with units, without a header.
    return bool(lines) and len(lines[0]) < _LONGEST_LINE and "," in lines[0] and _BARE.search(lines[0]) is not None


def read(path: Path) -> SamplerLog:
    """Return the samples of each device of a log.

    Raises:
        UnreadableInputError: the log has no header, no samples, or is the table that nvidia-smi prints for people.
        OSError: the file cannot be opened or read.
    """
    data = plain_bytes(path, MOST_BYTES)
    lines = _lines(data)
    reading = _Reading()
    is_torn = not data.endswith((b"\n", b"\r"))
    for number, line in enumerate(lines):
        if len(reading.rows) >= MOST_ROWS or number == _MOST_LINES - 1:
            reading.is_cut = True
            break
        reading.line(line, is_torn=is_torn and number == len(lines) - 1)
    if not reading.rows:
        raise UnreadableInputError(f"{path} is not a readable nvidia-smi log", cause=_cause(lines), hint=_HINT)
    return reading.log(path.name)


def _lines(data: bytes) -> list[str]:
    # A log that was emptied while its sampler went on writing has zeros where the old text was.
    text = data.replace(b"\0", b"").decode("utf-8", "replace").removeprefix("\ufeff")
    return [line for line in re.split(r"[\r\n]+", text, maxsplit=_MOST_LINES)[:_MOST_LINES] if line.strip()]


def _cause(lines: Sequence[str]) -> str:
    if any(map(_PRINTED.search, lines[:_LOOKED_AT_LINES])):
        return "it is the table that nvidia-smi prints for people"
    if lines and not any(_header(line) for line in lines):
        return "it has no header, so that nobody knows which column is which"
    return "it has no samples"


def _cells(line: str) -> list[str]:
    """The cells of a line of a table, or of dmon's text; none of one that cannot be divided."""
    if len(line) > _LONGEST_LINE:
        return []
    if "," not in line and line.lstrip().startswith("#"):
        return line.lstrip()[1:].split()
    try:
        row = next(csv.reader([line], skipinitialspace=True), [])
    except csv.Error:
        return []
    return [cell.strip().removeprefix("#").strip() for cell in row]


def _header(line: str) -> tuple[smi_columns.Column | None, ...]:
    """The columns that a line names; empty for one that is no header of such a log."""
    if len(line) > _LONGEST_LINE:
        return ()
    dmon = line.lstrip().startswith("#")
    if not dmon and _HAS_NUMBER.search(line):
        return ()
    cells = _cells(line)
    columns = tuple(smi_columns.column(cell, dmon=dmon) for cell in cells)
    signals = {known.field for known in columns if known is not None and known.kind is not None}
    if dmon:
        indexed = any(known is not None and known.field == smi_columns.INDEX for known in columns)
        return columns if signals and (indexed or any(map(smi_columns.is_queried, cells))) else ()
    if any(map(smi_columns.is_queried, cells)) or len(signals) >= _FEWEST_OWN_NAMES:
        return columns
    return ()


class _Row(msgspec.Struct):
    """One line of samples: which device of which time, as far as it says so, and its numbers by field."""

    place: int
    stamp: str = ""
    t_ns: int | None = None
    index: int | None = None
    key: str = ""
    model: str | None = None
    uuid: str | None = None
    values: dict[str, float] = {}


class _Reading:
    def __init__(self) -> None:
        self.rows: list[_Row] = []
        self.is_cut = False
        self._columns: tuple[smi_columns.Column | None, ...] = ()
        self._dmon = False
        self._headers = 0
        self._since_header = 0
        self._zoned = True
        self._damaged = 0
        self._torn = False
        self._last_stamp: tuple[str, tuple[int, bool] | None] = ("", None)
        self._numbers: dict[tuple[smi_columns.Kind | None, str, str], float | None] = {}

    def line(self, line: str, *, is_torn: bool) -> None:
        """Read one line; the last one is torn where the file does not end with it."""
        header = _header(line)
        if header:
            self._columns, self._dmon = header, line.lstrip().startswith("#")
            self._headers += 1
            self._since_header = 0
            return
        if line.lstrip().startswith("#") or not self._columns:
            return
        cells = _ENTITY.sub(r"\1", line).split() if self._dmon and "," not in line else _cells(line)
        if self._dmon and cells[:1] == ["ID"]:
            return  # the units of dcgmi dmon
        if len(cells) != len(self._columns):
            self._torn |= is_torn
            self._damaged += not is_torn
            return
        if is_torn:
            cells[-1] = ""  # of a number its last digits may be missing
        row = self._row(cells)
        if row is None:
            self._damaged += not is_torn
            return
        self.rows.append(row)
        self._since_header += 1

    def _row(self, cells: Sequence[str]) -> _Row | None:
        row = _Row(self._since_header)
        texts: dict[str, str] = {}
        bad = 0
        for cell, known in zip(cells, self._columns, strict=True):
            if known is None:
                continue
            if known.kind is None:
                texts.setdefault(known.field, cell)
                continue
            key = (known.kind, known.unit, cell)
            if key not in self._numbers:
                if len(self._numbers) >= _MOST_REMEMBERED:
                    self._numbers.clear()
                self._numbers[key] = smi_columns.value(cell, known)
            number = self._numbers[key]
            if number is None:
                bad += not smi_columns.is_missing(cell)
            elif known.bit:
                held = row.values.get(known.field, 0.0)
                row.values[known.field] = float(int(held) | (known.bit if number else 0))
            else:
                row.values.setdefault(known.field, number)
        if bad and not row.values:
            return None
        self._name(row, texts)
        return row

    def _name(self, row: _Row, texts: dict[str, str]) -> None:
        row.stamp = f"{texts.get(smi_columns.DATE, '')} {texts.get(smi_columns.TIME, '')}".strip()
        if row.stamp != self._last_stamp[0]:
            self._last_stamp = (row.stamp, smi_columns.time_ns(row.stamp))
        known = self._last_stamp[1]
        if known is not None:
            row.t_ns = known[0]
            self._zoned &= known[1]
        index = texts.get(smi_columns.INDEX, "")
        row.index = int(index) if index.isdecimal() and len(index) <= 6 else None
        row.model = texts.get(smi_columns.MODEL) or None
        row.uuid = texts.get(smi_columns.UUID) or None
        row.key = next(
            (text for text in (index, texts.get(smi_columns.UUID, ""), texts.get(smi_columns.BUS, "")) if text), ""
        )

    def log(self, origin: str) -> SamplerLog:
        notes: list[str] = []
        timed = [row for row in self.rows if row.t_ns is not None]
        if 2 * len(timed) > len(self.rows):
            self._damaged += len(self.rows) - len(timed)
            self.rows = timed
        by_device: dict[str, list[_Row]] = {}
        keys = self._keys(notes)
        dropped = 0
        for row, key in zip(self.rows, keys, strict=True):
            if key not in by_device and len(by_device) >= MOST_GPUS:
                dropped += 1
                continue
            by_device.setdefault(key, []).append(row)
        clock: LogClock = "utc" if self._zoned else "no zone"
        if any(row.t_ns is None for row in self.rows):
            clock = "none"
        gpus = tuple(_gpu(key, rows, timed=clock != "none") for key, rows in by_device.items())
        ordered = sorted(gpus, key=lambda gpu: (gpu.index is None, gpu.index or 0))
        return SamplerLog(origin, tuple(ordered), clock, (*notes, *self._left_out(dropped)))

    def _keys(self, notes: list[str]) -> list[str]:
        """What tells the device of each row: what it names, else its place among the rows of one time or header."""
        if all(row.key for row in self.rows):
            return [row.key for row in self.rows]
        models = {row.model for row in self.rows}
        places, most = _places(self.rows, by_header=self._headers > 1)
        if most > 1:
            notes.append(f"The log names no device: its {most} rows of each time are taken for GPU 0 to {most - 1}.")
            return [str(place) for place in places]
        if len(models) > 1:
            return [row.model or "" for row in self.rows]
        notes.append("The log names no device: all of its rows are taken for one; if it is of several, they are mixed.")
        return ["" for _ in self.rows]

    def _left_out(self, dropped: int) -> list[str]:
        notes = []
        odd = next((row.stamp for row in self.rows if row.t_ns is None and row.stamp), "")
        if odd:
            notes.append(
                f"The log's times are not used: {odd[:_LONGEST_LABEL]!r} is no year-first time of 1970 to 2116."
            )
        elif any(row.t_ns is None for row in self.rows):
            notes.append("The log has no times: nothing tells how fast anything changed, nor when it was.")
        if self._damaged:
            notes.append(f"{self._damaged:,} of the log's lines cannot be read and were left out.")
        if self._torn:
            notes.append("The log's last line is cut off and was left out.")
        if self.is_cut:
            notes.append(f"Only the first {MOST_ROWS:,} samples of the log were read.")
        if dropped:
            notes.append(f"{dropped:,} samples of more than {MOST_GPUS} devices were left out.")
        return notes


def _places(rows: Sequence[_Row], *, by_header: bool) -> tuple[list[int], int]:
    """Return the place of each row among those of its time, or behind its header, and how many each has.

    Where not all have as many rows, all places are 0: a log of one device may have two samples within one second.
    """
    places: list[int] = []
    last = ""
    for row in rows:
        place = row.place if by_header else places[-1] + 1 if places and row.stamp and row.stamp == last else 0
        last = row.stamp
        places.append(place)
    times = Counter(places)
    most = max(places, default=0) + 1
    # The last time may be cut off.
    even = all(times[0] - times[place] <= 1 for place in range(most))
    return (places, most) if even else ([0] * len(places), 1)


def _gpu(key: str, rows: Sequence[_Row], *, timed: bool) -> GpuLog:
    index = int(key) if key.isdecimal() and len(key) <= 6 else rows[0].index
    label = f"GPU {index}" if index is not None else key[:_LONGEST_LABEL] or "the GPU"
    samples = tuple(Sample(t_ns=(row.t_ns or 0) if timed else 0, gpu=_sample(row.values)) for row in rows)
    model, uuid = (text[:_LONGEST_LABEL] if text else None for text in (rows[0].model, rows[0].uuid))
    return GpuLog(label, index, model, samples, uuid)


def _sample(values: dict[str, float]) -> GpuSample:
    """The numbers of a row; those that are counts, sizes or clocks are whole."""
    rounded = {field: number if field.endswith("_ratio") else round(number) for field, number in values.items()}
    return msgspec.convert(rounded, GpuSample)
