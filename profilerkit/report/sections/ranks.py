"""Ranks: how each spends its step, and who waits for whom."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from statistics import median

import msgspec

from profilerkit.model.report import Report
from profilerkit.model.step import Rank, RankSteps
from profilerkit.report.blocks import Axis, Block, Cell, Chart, Heading, Section, Shape, Table, Text, Tick, Value
from profilerkit.report.chart import rectangle
from profilerkit.report.communication import scale_chart, scale_lines, scale_tables, waiting_lines, waiting_table
from profilerkit.report.inert import inert
from profilerkit.report.wording import RANK_ROWS, bar_of, listed, one_device, plural
from profilerkit.units import format_count, format_ns


def section(report: Report) -> Section | None:
    """All ranks side by side; ``None`` for a single one."""
    if len(report.ranks) < 2:
        return None
    slowest = sorted(report.ranks, key=lambda rank: (rank.rank != report.verdict.rank, -(rank.step_ns or 0)))
    shown = sorted(slowest[:RANK_ROWS], key=lambda rank: (rank.rank is None, rank.rank or 0, rank.origin))
    more = f"The {RANK_ROWS} ranks with the longest steps. The JSON has all {len(report.ranks)}."
    columns = ("Rank", "Where its step goes", "Median step", "Device busy")
    blocks: list[Block] = [
        Table(
            " ".join(_caption(report)),
            columns,
            tuple(_row(rank, report) for rank in shown),
            2,
            more if len(report.ranks) > RANK_ROWS else "",
        )
    ]
    chart = scale_chart(report) or (None if report.crowd else rank_chart(report))
    if chart is not None:
        blocks.append(chart)
    lines = (*scale_lines(report), *waiting_lines(report))
    table = waiting_table(report)
    if lines or table:
        blocks += [Heading("Who waits for whom"), *(Text.of(line) for line in lines), *((table,) if table else ())]
    for name, many in scale_tables(report):
        blocks += [Heading(name), many]
    cause = f"rank {report.verdict.rank} is the cause" if report.verdict.rank is not None else "side by side"
    return Section("ranks", plural(len(report.ranks), "rank"), cause, tuple(blocks), short="Ranks")


def _row(rank: Rank, report: Report) -> tuple[Cell, ...]:
    is_cause = rank.rank is not None and rank.rank == report.verdict.rank
    label = inert(rank.origin) if rank.rank is None else f"Rank {rank.rank}"
    device = "" if one_device(report) else inert(rank.device or "", 60)
    named = " · ".join(piece for piece in (label, "cause" if is_cause else "", device) if piece)
    bar: Cell = bar_of(rank.breakdown, label) if any(part.time_ns > 0 for part in rank.breakdown) else "not split"
    step: Cell = "not found" if rank.step_ns is None else Value(rank.step_ns, "ns")
    return (named, bar, step, Value(rank.device_busy_ratio, "ratio"))


def _caption(report: Report) -> Iterator[str]:
    if times := [rank.step_ns for rank in report.ranks if rank.step_ns is not None]:
        yield f"Median steps run from {format_ns(min(times))} to {format_ns(max(times))}."
    if report.run.missing_ranks:
        yield f"{plural(report.run.missing_ranks, 'rank')} of the job could not be read."
    if one_device(report):
        yield f"All on {one_device(report)}."


#: Shares of the median step from which a cell has a shade. From the second on a rank counts as late, as in the
#: analysis; the others are a choice.
_FROM = (0.01, 0.05, 0.25)
_LATE = 2
_SHADES = (" faint", " pale", "")
_UNKNOWN = -1
_ROW_PX, _LEAST_PX, _MOST_PX = 22, 66, 440
_MOST_ROW_NAMES, _MOST_STEP_NAMES = 16, 6
_GAP = 6.0  #: of each row, in percent, left blank below and above its cells


class _Row(msgspec.Struct, frozen=True):
    """One rank, or the slowest of neighbouring ones, and its cells in ns; ``None`` where not known."""

    name: str
    short: str
    cells: tuple[float | None, ...]
    is_late: bool

    @property
    def known(self) -> list[float]:
        """The cells that are known."""
        return [cell for cell in self.cells if cell is not None]

    @property
    def mean_ns(self) -> float:
        """Mean of the known cells, ns; 0 without any."""
        return sum(self.known) / len(self.known) if self.known else 0.0


def rank_chart(report: Report) -> Chart | None:
    """The heat map; ``None`` without the times of several ranks."""
    steps = report.rank_steps
    lengths = [rank.step_ns for rank in report.ranks if rank.step_ns]
    if not lengths and report.steps.time_ns:
        lengths = [report.steps.time_ns.median]
    step_ns = float(median(lengths)) if lengths else 0.0
    if steps is None or not steps.index or not step_ns or len(report.ranks) < 2:
        return None
    rows = _rows(report, steps)
    if not any(row.known for row in rows):
        return None
    base = "communication" if steps.of == "caused" else "mark"
    levels = [[_level(cell, step_ns) for cell in row.cells] for row in rows]
    height = min(max(_ROW_PX * len(rows), _LEAST_PX), _MOST_PX)
    shades = [("blank", _words(0)), *((f"{base}{shade}", _words(level)) for level, shade in enumerate(_SHADES, 1))]
    if any(_UNKNOWN in own for own in levels):
        shades.append(("unknown", _words(_UNKNOWN)))
    stride = -(-len(steps.index) // _MOST_STEP_NAMES)
    ticks = (
        Tick(100.0 * (number + 0.5) / len(steps.index), format_count(steps.index[number]))
        for number in range(0, len(steps.index), stride)
    )
    shown = plural(len(steps.index), "judged step")
    thinned = f", evenly thinned from {format_count(steps.count)}" if len(steps.index) < steps.count else ""
    pieces = [f"{shown} of {plural(len(report.ranks), 'rank')}{thinned}."]
    of_step = f"as a share of the median step of {format_ns(step_ns)}"
    if steps.of == "caused":
        found = report.communication
        source = f" (derived from the collectives matched in {found.matched_in})" if found else ""
        pieces.append(f"A cell shows how long each of the others waited for the rank, on average{source}, {of_step}.")
        if any(row.is_late for row in rows):
            pieces.append(f"Late in a step: {_percent(_FROM[_LATE - 1])} and more.")
        pieces.append("A rank is late if it causes most of the waiting in most steps, beyond chance.")
    elif steps.of == "own":
        pieces.append(f"A cell shows by how much the rank exceeds the median rank of that step (derived), {of_step}.")
        pieces.append(
            "Own time is the step without exposed communication. Waiting is part of that communication, so who waited "
            "for whom is not known."
        )
    else:
        pieces.append(f"A cell shows by how much the rank's step exceeds the median rank's (derived), {of_step}.")
        pieces.append("Who waited for whom is not known, and ranks that train together have equal steps.")
    if steps.group > 1:
        pieces.append(f"Each row is the largest of {steps.group} neighbouring ranks.")
    return Chart(
        anchor="rank-steps",
        title=_title(steps, rows, levels),
        caption=" ".join(pieces),
        height_px=height,
        shapes=tuple(_shapes(levels, base)),
        x=Axis("Step", tuple(ticks)),
        y=_rank_axis(rows),
        legend=tuple(shades),
        labels=(),
        table=_table(steps, rows, levels),
    )


def _rows(report: Report, steps: RankSteps) -> list[_Row]:
    late = {(entry.rank, entry.origin) for entry in report.communication.late} if report.communication else set()
    rows = []
    for number, cells in enumerate(_cells(steps)):
        ranks = report.ranks[number * steps.group : (number + 1) * steps.group]
        blamed = [rank for rank in ranks if steps.of == "caused" and (rank.rank, rank.origin) in late]
        full, short = _names(blamed or ranks, number * steps.group + 1)
        rows.append(_Row(full, short, cells, bool(blamed)))
    return rows


def _names(ranks: Sequence[Rank], place: int) -> tuple[str, str]:
    """Neighbouring ranks in a sentence and at the axis; those whose files do not say their number by file and place."""
    ends = [rank.rank for rank in (ranks[0], ranks[-1])]
    if None in ends:
        return f"{inert(ranks[0].origin, 60)} (#{place})", f"#{place}"
    short = "–".join(dict.fromkeys(map(str, ends)))
    return f"rank{'s' if len(ranks) > 1 else ''} {short}", short


def _cells(steps: RankSteps) -> list[tuple[float | None, ...]]:
    """Waiting as it is; else by how much each row is above the median one of that step."""
    if steps.of == "caused":
        return list(steps.time_ns)
    usual = []
    for column in zip(*steps.time_ns, strict=True):
        known = sorted(value for value in column if value is not None)
        # Of two the lower one, with which the other is compared.
        usual.append(known[(len(known) - 1) // 2] if known else 0)
    return [
        tuple(None if value is None else value - middle for value, middle in zip(row, usual, strict=True))
        for row in steps.time_ns
    ]


def _level(cell: float | None, step_ns: float) -> int:
    return _UNKNOWN if cell is None else sum(cell >= share * step_ns for share in _FROM)


def _shapes(levels: Sequence[Sequence[int]], base: str) -> list[Shape]:
    """One shape for each shade; neighbouring cells of a row that have the same are one rectangle."""
    paths: dict[int, list[str]] = {}
    high = 100.0 / len(levels)
    wide = 100.0 / len(levels[0])
    gap = high * _GAP / 100.0
    for row, own in enumerate(levels):
        for level, cells in groupby(range(len(own)), key=own.__getitem__):
            at = list(cells)
            path = rectangle(at[0] * wide, row * high + gap, (at[-1] + 1) * wide, (row + 1) * high - gap)
            paths.setdefault(level, []).append(path)
    return [
        Shape("unknown" if level == _UNKNOWN else f"{base}{_SHADES[level - 1]}", "area", "".join(own), _words(level))
        for level, own in sorted(paths.items())
        if level
    ]


def _words(level: int) -> str:
    if level == _UNKNOWN:
        return "Not known"
    if level == 0:
        return f"Less than {_percent(_FROM[0])} of the step"
    if level == len(_FROM):
        return f"{_percent(_FROM[-1])} and more"
    return f"{_percent(_FROM[level - 1])} to {_percent(_FROM[level])}"


def _percent(share: float) -> str:
    return f"{100.0 * share:g} %"


def _rank_axis(rows: Sequence[_Row]) -> Axis:
    """Every row that is late has its name, and of the others as many as have room."""
    stride = -(-len(rows) // _MOST_ROW_NAMES)
    late = [number for number, row in enumerate(rows) if row.is_late]
    named = [
        number
        for number in range(0, len(rows), stride)
        if all(number == own or abs(number - own) >= stride for own in late)
    ]
    ticks = (
        Tick(100.0 - 100.0 * (number + 0.5) / len(rows), f"late ▸ {row.short}" if row.is_late else row.short)
        for number in sorted({*named, *late})
        for row in (rows[number],)
    )
    return Axis("Rank", tuple(ticks))


def _title(steps: RankSteps, rows: Sequence[_Row], levels: Sequence[Sequence[int]]) -> str:
    late = [number for number, row in enumerate(rows) if row.is_late and row.known]
    if not late:
        return _waited_title(steps, rows) if steps.of == "caused" else _longest_title(steps, rows, levels)
    mean_ns = sum(rows[number].mean_ns for number in late)
    be, whom = ("is", "it") if len(late) == 1 else ("are", "them")
    names = _capital(listed([rows[number].name for number in late]))
    among = _among([levels[number] for number in late])
    return f"{names} {be} late in {among}: {_others(steps, rows)} {_spent(mean_ns, levels[0])} for {whom}"


def _waited_title(steps: RankSteps, rows: Sequence[_Row]) -> str:
    worst = _longest(rows)
    if not worst.mean_ns:
        return "No rank makes the others wait"
    others = _others(steps, rows)
    return f"No rank is called late: {others} longest for {worst.name}, {_spent(worst.mean_ns, worst.cells)}"


def _longest_title(steps: RankSteps, rows: Sequence[_Row], levels: Sequence[Sequence[int]]) -> str:
    """Whose time exceeds the median rank's; the ranks are even only where none does by much in any step."""
    what = "own time" if steps.of == "own" else "step"
    far = [row for row, own in zip(rows, levels, strict=True) if max(own) >= _LATE]
    worst = _longest(far or rows)
    above = f"{format_ns(worst.mean_ns)} above the median rank's"
    least = f"{_percent(_FROM[_LATE - 1])} of the step"
    if far:
        among = _among([levels[rows.index(worst)]])
        # A rank that is shorter in the mean is still far above in these steps.
        above = above if worst.mean_ns >= 0 else f"up to {format_ns(max(worst.known))} above"
        return f"{_capital(worst.name)} exceeds the median rank by at least {least} in {among}: its {what} is {above}"
    if worst.mean_ns < 0:
        return f"The ranks are even: no {what} is {least} above the median rank's"
    return f"The ranks are even: the longest {what}, that of {worst.name}, is {above}"


def _longest(rows: Sequence[_Row]) -> _Row:
    return max((row for row in rows if row.known), key=lambda row: row.mean_ns)


def _among(levels: Sequence[Sequence[int]]) -> str:
    """In how many of the steps any of these rows is late, or as far above the median."""
    count, columns = sum(max(column) >= _LATE for column in zip(*levels, strict=True)), len(levels[0])
    return f"{format_count(count)} of {plural(columns, 'step')}" if columns > 1 else "the one step"


def _spent(mean_ns: float, columns: Sequence[object]) -> str:
    return f"{format_ns(mean_ns)} of every step" if len(columns) > 1 else format_ns(mean_ns)


def _others(steps: RankSteps, rows: Sequence[_Row]) -> str:
    return "the others wait" if len(rows) * steps.group > 2 else "the other waits"


def _capital(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}"


def _table(steps: RankSteps, rows: Sequence[_Row], levels: Sequence[Sequence[int]]) -> Table:
    """The rows with most first. The cells themselves are in the JSON."""
    order = sorted(range(len(rows)), key=lambda number: -rows[number].mean_ns)
    cells = tuple(_table_row(rows[number], levels[number], steps.index) for number in order)
    above, what = ("", "Waited for it") if steps.of == "caused" else (" above", "Above the median rank")
    return Table(
        "",
        ("Rank", f"At least {_percent(_FROM[_LATE - 1])}{above} in", f"{what}, mean", "Largest", "In step"),
        cells,
        more="The JSON has every step of every row.",
    )


def _table_row(row: _Row, levels: Sequence[int], index: Sequence[int]) -> tuple[str, ...]:
    if not row.known:
        return (_capital(row.name), *["not known"] * 4)
    largest = max(row.known)
    return (
        _capital(row.name),
        f"{format_count(sum(level >= _LATE for level in levels))} of {format_count(len(row.known))}",
        format_ns(row.mean_ns),
        format_ns(largest),
        format_count(index[row.cells.index(largest)]),
    )


SECTIONS = {60: section}
