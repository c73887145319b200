"""The steps as figures: every one as a column of families, and how long each waits for data beside the rest."""

import math
from collections.abc import Iterator, Sequence
from statistics import median

import msgspec

from profilerkit.model.report import Report
from profilerkit.model.step import PARTS, Family, SlowSteps, StepRow, family_of, within
from profilerkit.report import wording
from profilerkit.report.blocks import Axis, Block, Chart, Shape, Table, Text, Tick
from profilerkit.report.chart import LEAST_COLUMNS, Lane, Scale, height_px, lanes, polyline, rectangle, step_axis
from profilerkit.report.inert import inert
from profilerkit.units import format_count, format_ns, format_ratio

SLOW_FACTOR = 1.3  #: a steady step is called slow above this multiple of the median steady step
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
        state=wording.STATE_WORDS[row.state],
        largest=wording.part_label(largest) if largest else "",
        slow=steady and row.time_ns > SLOW_FACTOR * median_ns,
        steady=steady,
    )


def slowest_of_groups(columns: Sequence[Column], limit: int) -> tuple[list[Column], int]:
    """At most ``limit`` columns: the slowest of every ``n`` neighbours, and ``n``."""
    size = -(-len(columns) // limit) if columns else 1
    groups = (columns[start : start + size] for start in range(0, len(columns), size))
    return [max(group, key=lambda column: column.time_ns) for group in groups], size


def _title(columns: Sequence[Column], mean_ns: float, *, thinned: bool, is_whole: bool) -> str:
    steady = [column for column in columns if column.steady]
    if not steady:
        return f"{wording.plural(len(columns), 'step')} found, none of them steady"
    slow = [column for column in steady if column.slow]
    worst = max(steady, key=lambda column: column.time_ns)
    usual = format_ns(mean_ns)
    if len(steady) == 1 and is_whole:
        return f"Nothing marks a step in this recording of {usual}"
    if len(steady) == 1:
        return f"One steady step was recorded: {usual}"
    shown = " shown" if thinned else ""
    if not slow:
        return f"No steady step stands out: the slowest{shown} takes {format_ns(worst.time_ns)}, the mean {usual}"
    return (
        f"{wording.plural(len(slow), 'steady step')} of {format_count(len(steady))}{shown} took more than "
        f"{SLOW_FACTOR} × the median; step {worst.index} took {format_ns(worst.time_ns)}"
    )


def _caption(report: Report, columns: Sequence[Column], cut_ns: float) -> Iterator[str]:
    thinned = f", evenly thinned from {format_count(report.steps.count)}" if report.steps.thinned else ""
    yield f"{wording.plural(len(columns), 'step')} of the judged rank{thinned}."
    if cut := sum(column.time_ns > cut_ns for column in columns):
        higher = f"{wording.plural(cut, 'column')} higher than {format_ns(cut_ns)}"
        yield f"{higher} {'is' if cut == 1 else 'are'} cut off, with a bar above."
    yield from _slow(report.steps.slow, thinned=report.steps.thinned)
    yield from _warmup(report)


def _slow(slow: SlowSteps | None, *, thinned: bool) -> Iterator[str]:
    if slow is None:
        return
    of_all = " of all" if thinned else ""
    which = f"Slow step {slow.first} is" if slow.count == 1 else f"{format_count(slow.count)} slow steps{of_all} are"
    if slow.count > 1 and slow.ratio != SLOW_FACTOR:
        which = f"{format_count(slow.count)} steps{of_all}, above {slow.ratio:g} × the median, are"
    every = f", every {slow.period} steps" if slow.period else ""
    grown = "no recorded part holds most of that"
    if slow.part is not None and slow.coverage is not None:
        grown = f"{format_ratio(slow.coverage)} of that is {within(wording.part_label(slow.part))}"
    yield f"{which} {format_ns(slow.excess_ns)} longer than the others{every}: {grown}."


def _warmup(report: Report) -> Iterator[str]:
    times, warmup = report.steps.time_ns, report.steps.warmup
    if times is None or warmup is None or warmup.excess_ns <= times.median:
        return
    cause = f": {inert(warmup.cause)}" if warmup.cause else ""
    spent, more = format_ns(warmup.time_ns), format_ns(warmup.excess_ns)
    yield f"{wording.plural(warmup.steps, 'step')} of warm-up took {spent}, {more} more than steady ones{cause}."


def _table(columns: Sequence[Column]) -> Table:
    shown: Sequence[Column] = columns
    caption = "Every step."
    if len(columns) > _TABLE_ROWS:
        every = -(-len(columns) // (_TABLE_ROWS - _SLOWEST_ROWS))
        slowest = sorted(columns, key=lambda column: -column.time_ns)[:_SLOWEST_ROWS]
        shown = sorted({id(c): c for c in (*slowest, *columns[::every])}.values(), key=lambda column: column.index)
        caption = f"The {_SLOWEST_ROWS} slowest steps and one of every {every}. The JSON has all of them."
    used: list[Family] = [
        family for family in wording.FAMILY_LABELS if any(column.families.get(family) for column in columns)
    ]
    rest = any(column.unsplit_ns for column in columns)
    rows = tuple(
        (
            format_count(column.index),
            column.state + (" · slow" if column.slow and column.families else ""),
            column.largest or "not split",
            format_ns(column.time_ns),
            *(format_ns(column.families.get(family, 0)) if column.families else "not split" for family in used),
            *((format_ns(column.unsplit_ns),) if rest else ()),
        )
        for column in shown
    )
    names = (
        "Step",
        "State",
        "Largest part",
        "Time",
        *(wording.FAMILY_LABELS[family] for family in used),
        *((REST,) if rest else ()),
    )
    return Table(caption, names, rows, 3, anchors=tuple(f"step-{column.index}" for column in shown))


def steps_blocks(report: Report) -> tuple[Block, ...]:
    """The steps as a chart with its table; without steps, what is missing."""
    if not report.steps.rows:
        return (Text.of("The times of single steps were not recorded, so steps cannot be compared."),)
    rows, times = report.steps.rows, report.steps.time_ns
    median_ns = float(median([row.time_ns for row in rows if row.state == "steady"] or [row.time_ns for row in rows]))
    cut_ns = min(float(max(row.time_ns for row in rows)), CUT_FACTOR * median_ns) or 1.0
    every = [_column(row, median_ns) for row in rows]
    mean_ns, is_whole = times.mean if times is not None else median_ns, wording.marks_none(report)
    columns, group = slowest_of_groups(every, _MOST_COLUMNS)
    wide = 100.0 / max(len(columns), LEAST_COLUMNS)
    paths: dict[str, str] = {}
    for number, column in enumerate(columns):
        left, right, below = number * wide, (number + 0.8) * wide, 0.0
        layers = [(family, column.families[family]) for family in wording.FAMILY_LABELS if column.families.get(family)]
        for family, time_ns in (*layers, ("unsplit", column.unsplit_ns)):
            key = family if column.steady else f"{family} pale"
            top = min(100.0, below + 100.0 * time_ns / cut_ns)
            if top > below:
                paths[key] = paths.get(key, "") + rectangle(left, 100.0 - top, right, 100.0 - below)
            below = top
        if column.time_ns > cut_ns:
            paths["mark"] = paths.get("mark", "") + rectangle(left, -4.0, right, -2.0)
    median_at = 100.0 - 100.0 * min(1.0, median_ns / cut_ns)
    used = {key.partition(" ")[0] for key in paths}
    notes = ["Dashed: the median of steady steps."]
    notes += ["Pale: outside the steady window."] if any(key.endswith("pale") for key in paths) else []
    notes += [f"Each column is the slowest of {group} neighbouring steps."] if group > 1 else []
    return (
        Chart(
            anchor="step-by-step",
            title=_title(every, mean_ns, thinned=report.steps.thinned, is_whole=is_whole),
            caption=" ".join((*_caption(report, every, cut_ns), *notes)),
            height_px=190,
            shapes=(
                *(Shape(key, "area", path) for key, path in sorted(paths.items())),
                Shape("mark", "dash", f"M0 {median_at:.4g}H100", "Median of steady steps"),
            ),
            x=step_axis([column.index for column in columns]),
            y=Axis("Time of a step", (Tick(0.0, "0"), Tick(100.0, format_ns(cut_ns)))),
            legend=tuple(
                (key, name) for key, name in (*wording.FAMILY_LABELS.items(), ("unsplit", REST)) if key in used
            ),
            labels=(),
            table=_table(every),
        ),
    )


#: The parts in which a step waits for its batch; copying it to the device is another matter.
WAITS = tuple(part for part, (family, _) in PARTS.items() if family == "input" and part != "input.h2d")
_FEWEST_STEPS = 10  #: a histogram of fewer steps shows no distribution (a choice)
#: A smaller share of its step is no wait worth a change: the saving below which no bound is named.
_SMALL_SHARE = 0.05
_MOST_BINS = 40
_ROUND = (1.0, 2.0, 5.0, 10.0)
#: A bin that holds any step is at least so high, in percent of its lane: one step of many would not be seen.
_LEAST_PERCENT = 3.0
_GAP = 0.12  #: of a bin's width, left free beside the bar


class _Waits(msgspec.Struct, frozen=True):
    """The steady steps: the wait of each and the rest, ns; ``timed`` by the loop's own timers, else by a trace."""

    wait_ns: tuple[int, ...]
    rest_ns: tuple[int, ...]
    first: int
    last: int
    timed: bool

    @property
    def noticed_ns(self) -> list[int]:
        """The waits that are no small share of their step."""
        both = zip(self.wait_ns, self.rest_ns, strict=True)
        return [wait for wait, rest in both if wait >= _SMALL_SHARE * (wait + rest)]


class _Bins(msgspec.Struct, frozen=True):
    """``count`` bins of ``width_ns`` from 0; the last one also holds everything beyond."""

    width_ns: float
    count: int

    def counts(self, values: Sequence[int]) -> list[int]:
        """How many of the values lie in each."""
        found = [0] * self.count
        for value in values:
            found[min(self.count - 1, int(value / self.width_ns))] += 1
        return found

    @property
    def end_ns(self) -> float:
        """Where the last bin ends on the axis."""
        return self.width_ns * self.count


def loader_wait(report: Report) -> Chart | None:
    """The figure; ``None`` where no step is known to wait, or too few steps are steady."""
    waits = _waits(report)
    if waits is None:
        return None
    bins = _bins(waits)
    x = Scale(0.0, bins.end_ns)
    upper, lower = lanes(2)
    wait, rest = bins.counts(waits.wait_ns), bins.counts(waits.rest_ns)
    thinned = f", evenly thinned from {format_count(report.steps.steady)}" if report.steps.thinned else ""
    which = f"{wording.plural(len(waits.wait_ns), 'steady step')} ({waits.first} to {waits.last}){thinned}"
    pieces = [f"{which}{wording.drawn_rank(report)}. Dashed: medians.", _source(report, waits)]
    beyond = sum(max(pair) >= bins.end_ns for pair in zip(waits.wait_ns, waits.rest_ns, strict=True))
    if beyond:
        pieces.append(f"The last bar also holds {wording.plural(beyond, 'longer step')}.")
    return Chart(
        anchor="loader-wait",
        title=_wait_title(report, waits),
        caption=" ".join(pieces),
        height_px=height_px(2),
        shapes=(
            *_histogram("input", wait, upper, x.at(median(waits.wait_ns))),
            *_histogram("other", rest, lower, x.at(median(waits.rest_ns))),
        ),
        x=x.across("Time in one step", format_ns),
        y=Axis(
            "Steps",
            (
                *(upper.tick(0.0, "0"), upper.tick(100.0, format_count(max(wait)))),
                *(lower.tick(0.0, "0"), lower.tick(100.0, format_count(max(rest)))),
            ),
        ),
        legend=(),
        labels=(
            upper.words(f"Waiting for data: median {format_ns(median(waits.wait_ns))}"),
            lower.words(f"Rest of the step: median {format_ns(median(waits.rest_ns))}"),
        ),
        table=_wait_table(bins, wait, rest, waits),
    )


def _waits(report: Report) -> _Waits | None:
    rows = [row for row in report.steps.rows if row.state == "steady" and row.time_ns > 0]
    wait = tuple(max(0, min(row.time_ns, sum(row.parts.get(part, 0) for part in WAITS))) for row in rows)
    if len(rows) < _FEWEST_STEPS or max(wait) <= 0:
        return None
    return _Waits(
        wait_ns=wait,
        rest_ns=tuple(row.time_ns - waited for row, waited in zip(rows, wait, strict=True)),
        first=rows[0].index,
        last=rows[-1].index,
        # Timers split off waits, phases and collections alone; a trace also tells what was computed.
        timed=not any(part.startswith("compute.") for row in rows for part in row.parts),
    )


def _bins(waits: _Waits) -> _Bins:
    """Bins of a round width up to the longest time, or to where the strip of the steps is cut off too."""
    longest = max(*waits.wait_ns, *waits.rest_ns)
    usual = median(wait + rest for wait, rest in zip(waits.wait_ns, waits.rest_ns, strict=True))
    top = max(min(longest, CUT_FACTOR * usual), 1.0)
    power = 10.0 ** math.floor(math.log10(top / _MOST_BINS))
    width = next(power * factor for factor in _ROUND if power * factor * _MOST_BINS >= top * (1 - 1e-9))
    return _Bins(width, math.floor(top / width) + 1)


def _histogram(colour: str, counts: Sequence[int], lane: Lane, middle: float) -> tuple[Shape, Shape]:
    width, most = 100.0 / len(counts), max(counts)
    bars = "".join(
        lane.bar(width * place, width * (place + 1 - _GAP), max(_LEAST_PERCENT, 100.0 * count / most))
        for place, count in enumerate(counts)
        if count
    )
    return Shape(colour, "area", bars), Shape("mark", "dash", polyline([(middle, lane.top), (middle, lane.bottom)]))


def _wait_title(report: Report, waits: _Waits) -> str:
    who = "The loop" if waits.timed or report.trust.mode != "gpu" else "The GPU"
    noticed, rest = waits.noticed_ns, median(waits.rest_ns)
    if not noticed:
        largest = max(wait / (wait + rest) for wait, rest in zip(waits.wait_ns, waits.rest_ns, strict=True) if wait)
        return (
            f"{who} hardly waits for data: at most {wording.share_text(largest)} of a step, "
            f"{format_ns(median(waits.wait_ns))} in the median, next to {format_ns(rest)} for the rest"
        )
    usual, pace = format_ns(median(noticed)), _pace(report, waits)
    if len(noticed) == len(waits.wait_ns):
        return f"{who} waits for data in every step, {usual} in the median; {pace}"
    share = format_ratio(len(noticed) / len(waits.wait_ns))
    return f"{who} waits for data in {share} of the steps, {usual} in their median; {pace}"


def _pace(report: Report, waits: _Waits) -> str:
    rest, workers, loader = median(waits.rest_ns), report.workers, report.run.loader
    if workers is not None and workers.count > 0:
        made = format_ns(workers.pace_ns)
        verb = "makes" if workers.count == 1 else "make"
        who = wording.plural(workers.count, "worker")
        return f"{who} {verb} the data of a step in {made}; the rest of a step takes {format_ns(rest)}"
    mostly = 2 * len(waits.noticed_ns) > len(waits.wait_ns)
    if loader is not None and loader.num_workers == 0 and waits.timed and mostly and rest > 0:
        return f"making the data of a step takes {median(waits.wait_ns) / rest:.1f} times as long as the rest of a step"
    return f"the rest of a step takes {format_ns(rest)}"


def _source(report: Report, waits: _Waits) -> str:
    if waits.timed:
        hidden = " The GPU may have worked during the wait." if report.trust.mode == "gpu" or report.run.devices else ""
        return f"The wait is measured in the training loop, the rest of the step is derived.{hidden}"
    sources = [part.source for part in report.breakdown if part.part in WAITS]
    weakest = wording.weakest(sources) if sources else "derived"
    return f"The wait is {weakest} from the trace, the rest of the step is derived."


def _wait_table(bins: _Bins, wait: Sequence[int], rest: Sequence[int], waits: _Waits) -> Table:
    longest = max(*waits.wait_ns, *waits.rest_ns)
    rows = []
    for place, (waited, rested) in enumerate(zip(wait, rest, strict=True)):
        if waited or rested:
            low, high = bins.width_ns * place, bins.width_ns * (place + 1)
            high = max(high, longest) if place == bins.count - 1 else high
            rows.append((f"{format_ns(low)} to {format_ns(high)}", format_count(waited), format_count(rested)))
    columns = ("Time", "Steps by wait", "Steps by rest")
    return Table("The steps by their wait and by the rest", columns, tuple(rows), 1, "Empty intervals are left out.")
