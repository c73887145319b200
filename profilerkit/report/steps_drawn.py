"""Every step as a column of families: the data of the figure, its words and its table."""

from collections.abc import Iterator, Sequence
from statistics import median

import msgspec

from profilerkit.model.report import Report
from profilerkit.model.step import Family, SlowSteps, StepRow, family_of, within
from profilerkit.report.blocks import Axis, Block, Chart, Shape, Table, Text, Tick
from profilerkit.report.charts.chart import LEAST_COLUMNS, rectangle, step_axis
from profilerkit.report.inert import inert
from profilerkit.report.wording import FAMILY_LABELS, STATE_WORDS, marks_none, part_label, plural
from profilerkit.units import format_count, format_ns, format_ratio

#: A steady step is called slow above this multiple of the median steady step.
SLOW_FACTOR = 1.3
#: Columns higher than this multiple of the median are cut off, so that one compile step does not flatten the rest.
CUT_FACTOR = 2.5
#: The part of a step that its timers did not split.
REST = "Rest, not split"
_TABLE_ROWS = 40
_MOST_COLUMNS = 200
_SLOWEST_ROWS = 20


class Column(msgspec.Struct, frozen=True):
    """One step: its families in ns (empty where only the length is known), its state, and its largest part."""

    index: int
    time_ns: int
    families: dict[Family, int]
    state: str
    largest: str
    slow: bool
    steady: bool

    @property
    def unsplit_ns(self) -> int:
        """Time of the step that was not split into parts."""
        return max(0, self.time_ns - sum(self.families.values()))


class Timeline(msgspec.Struct, frozen=True):
    """All steps and the scale they are drawn on; ``median_ns`` is 0 without a step."""

    columns: tuple[Column, ...]
    median_ns: float
    cut_ns: float

    @property
    def cut_columns(self) -> list[Column]:
        """Steps that are higher than the scale."""
        return [column for column in self.columns if column.time_ns > self.cut_ns]


def _column(row: StepRow, median_ns: float) -> Column:
    families: dict[Family, int] = {}
    for part, time_ns in row.parts.items():
        family = family_of(part)
        families[family] = families.get(family, 0) + max(0, time_ns)
    largest = max(row.parts, key=lambda part: row.parts[part], default="")
    steady = row.state == "steady"
    return Column(
        index=row.index,
        time_ns=row.time_ns,
        families=families,
        state=STATE_WORDS[row.state],
        largest=part_label(largest) if largest else "",
        slow=steady and row.time_ns > SLOW_FACTOR * median_ns,
        steady=steady,
    )


def timeline_of(report: Report) -> Timeline:
    """The judged rank's steps, ready to draw."""
    rows = report.steps.rows
    steady = [row.time_ns for row in rows if row.state == "steady"]
    median_ns = float(median(steady or [row.time_ns for row in rows] or [0]))
    highest = max((row.time_ns for row in rows), default=0)
    return Timeline(
        columns=tuple(_column(row, median_ns) for row in rows),
        median_ns=median_ns,
        cut_ns=min(float(highest), CUT_FACTOR * median_ns) or 1.0,
    )


def slowest_of_groups(columns: Sequence[Column], limit: int) -> tuple[list[Column], int]:
    """At most ``limit`` columns: the slowest of every ``n`` neighbours, and ``n``."""
    size = -(-len(columns) // limit) if columns else 1
    groups = (columns[start : start + size] for start in range(0, len(columns), size))
    return [max(group, key=lambda column: column.time_ns) for group in groups], size


def _title(timeline: Timeline, *, thinned: bool, is_whole: bool) -> str:
    steady = [column for column in timeline.columns if column.steady]
    if not steady:
        return f"{plural(len(timeline.columns), 'step')} found, none of them steady"
    slow = [column for column in steady if column.slow]
    worst = max(steady, key=lambda column: column.time_ns)
    usual = format_ns(timeline.median_ns)
    if len(steady) == 1 and is_whole:
        return f"Nothing marks a step in this recording of {usual}"
    if len(steady) == 1:
        return f"One steady step was recorded: {usual}"
    shown = " shown" if thinned else ""
    if not slow:
        return f"No steady step stands out: the slowest{shown} takes {format_ns(worst.time_ns)}, the median {usual}"
    return (
        f"{plural(len(slow), 'steady step')} of {format_count(len(steady))}{shown} took more than "
        f"{SLOW_FACTOR} × the median; step {worst.index} took {format_ns(worst.time_ns)}"
    )


def _caption(report: Report, timeline: Timeline) -> str:
    shown = len(timeline.columns)
    pieces = [f"{plural(shown, 'step')} of the judged rank"]
    if report.steps.thinned:
        pieces[0] += f", evenly thinned from {format_count(report.steps.count)}"
    pieces[0] += "."
    cut = timeline.cut_columns
    if cut:
        pieces.append(
            f"{plural(len(cut), 'column')} higher than {format_ns(timeline.cut_ns)} "
            f"{'is' if len(cut) == 1 else 'are'} cut off, with a bar above."
        )
    return " ".join([*pieces, *_slow(report.steps.slow, thinned=report.steps.thinned), *_warmup(report)])


def _slow(slow: SlowSteps | None, *, thinned: bool) -> Iterator[str]:
    """What slow steps take more, and the part that grew in them."""
    if slow is None:
        return
    of_all = " of all" if thinned else ""
    which = f"Slow step {slow.first} is" if slow.count == 1 else f"{format_count(slow.count)} slow steps{of_all} are"
    if slow.count > 1 and slow.ratio != SLOW_FACTOR:
        which = f"{format_count(slow.count)} steps{of_all}, above {slow.ratio:g} × the median, are"
    every = f", every {slow.period} steps" if slow.period else ""
    grown = "no recorded part holds most of that"
    if slow.part is not None and slow.coverage is not None:
        grown = f"{format_ratio(slow.coverage)} of that is {within(part_label(slow.part))}"
    yield f"{which} {format_ns(slow.excess_ns)} longer than the others{every}: {grown}."


def _warmup(report: Report) -> Iterator[str]:
    """What the steps before the window cost beyond usual ones, where that is more than one of those."""
    times, warmup = report.steps.time_ns, report.steps.warmup
    if times is None or warmup is None or warmup.excess_ns <= times.median:
        return
    cause = f": {inert(warmup.cause)}" if warmup.cause else ""
    spent, more = format_ns(warmup.time_ns), format_ns(warmup.excess_ns)
    yield f"{plural(warmup.steps, 'step')} of warm-up took {spent}, {more} more than steady ones{cause}."


def _table(timeline: Timeline) -> Table:
    columns = timeline.columns
    shown: Sequence[Column] = columns
    caption = "Every step."
    if len(columns) > _TABLE_ROWS:
        every = -(-len(columns) // (_TABLE_ROWS - _SLOWEST_ROWS))
        slowest = sorted(columns, key=lambda column: -column.time_ns)[:_SLOWEST_ROWS]
        shown = sorted({id(c): c for c in (*slowest, *columns[::every])}.values(), key=lambda column: column.index)
        caption = f"The {_SLOWEST_ROWS} slowest steps and one of every {every}. The JSON has all of them."
    used: list[Family] = [family for family in FAMILY_LABELS if any(column.families.get(family) for column in columns)]
    rest = any(column.unsplit_ns for column in columns)
    rows = tuple(
        (
            format_count(column.index),
            column.state + (" · slow" if column.slow else ""),
            column.largest or "not split",
            format_ns(column.time_ns),
            *(format_ns(column.families[family]) if family in column.families else "0 ns" for family in used),
            *((format_ns(column.unsplit_ns),) if rest else ()),
        )
        if column.families
        else (
            format_count(column.index),
            column.state,
            "not split",
            format_ns(column.time_ns),
            *("not split" for _ in used),
            *((format_ns(column.unsplit_ns),) if rest else ()),
        )
        for column in shown
    )
    names = (
        "Step",
        "State",
        "Largest part",
        "Time",
        *(FAMILY_LABELS[family] for family in used),
        *((REST,) if rest else ()),
    )
    return Table(caption, names, rows, 3, anchors=tuple(f"step-{column.index}" for column in shown))


def steps_blocks(report: Report) -> tuple[Block, ...]:
    """The steps as a chart with its table; without steps, what is missing."""
    if not report.steps.rows:
        return (Text.of("The times of single steps were not recorded, so steps cannot be compared."),)
    timeline = timeline_of(report)
    title = _title(timeline, thinned=report.steps.thinned, is_whole=marks_none(report))
    return (_chart(report, timeline, title),)


def _chart(report: Report, timeline: Timeline, title: str) -> Chart:
    """A column of families for each step; pale outside the steady window, with a bar above where it is cut off."""
    columns, group = slowest_of_groups(timeline.columns, _MOST_COLUMNS)
    wide = 100.0 / max(len(columns), LEAST_COLUMNS)
    paths: dict[str, str] = {}
    for number, column in enumerate(columns):
        left, right, below = number * wide, (number + 0.8) * wide, 0.0
        layers = [(family, column.families[family]) for family in FAMILY_LABELS if column.families.get(family)]
        for family, time_ns in (*layers, ("unsplit", column.unsplit_ns)):
            key = family if column.steady else f"{family} pale"
            top = min(100.0, below + 100.0 * time_ns / timeline.cut_ns)
            if top > below:
                paths[key] = paths.get(key, "") + rectangle(left, 100.0 - top, right, 100.0 - below)
            below = top
        if column.time_ns > timeline.cut_ns:
            paths["mark"] = paths.get("mark", "") + rectangle(left, -4.0, right, -2.0)
    median_at = 100.0 - 100.0 * min(1.0, timeline.median_ns / timeline.cut_ns)
    used = {key.partition(" ")[0] for key in paths}
    notes = ["Dashed: the median of steady steps."]
    notes += ["Pale: outside the steady window."] if any(key.endswith("pale") for key in paths) else []
    notes += [f"Each column is the slowest of {group} neighbouring steps."] if group > 1 else []
    return Chart(
        anchor="step-by-step",
        title=title,
        caption=" ".join((_caption(report, timeline), *notes)),
        height_px=190,
        shapes=(
            *(Shape(key, "area", path) for key, path in sorted(paths.items())),
            Shape("mark", "dash", f"M0 {median_at:.4g}H100", "Median of steady steps"),
        ),
        x=step_axis([column.index for column in columns]),
        y=Axis("Time of a step", (Tick(0.0, "0"), Tick(100.0, format_ns(timeline.cut_ns)))),
        legend=tuple((key, name) for key, name in (*FAMILY_LABELS.items(), ("unsplit", REST)) if key in used),
        labels=(),
        table=_table(timeline),
    )
