"""How long each step waits for data, beside how long the rest of the step takes: two histograms on one axis."""

import math
from collections.abc import Sequence
from statistics import median

import msgspec

from profilerkit.model.report import Report
from profilerkit.model.step import PARTS
from profilerkit.report.blocks import Axis, Chart, Shape, Table
from profilerkit.report.breakdown import drawn_rank
from profilerkit.report.charts.chart import Lane, Scale, height_px, lanes, polyline
from profilerkit.report.steps_drawn import CUT_FACTOR
from profilerkit.report.wording import plural, share_text, weakest
from profilerkit.units import format_count, format_ns, format_ratio

#: The parts in which a step waits for its batch; copying it to the device is another matter.
WAITS = tuple(part for part, (family, _) in PARTS.items() if family == "input" and part != "input.h2d")
#: A histogram of fewer steps shows no distribution (a choice).
_FEWEST_STEPS = 10
#: A smaller share of its step is no wait worth a change: the saving below which no bound is named.
_SMALL_SHARE = 0.05
_MOST_BINS = 40
_ROUND = (1.0, 2.0, 5.0, 10.0)
#: A bin that holds any step is at least so high, in percent of its lane: one step of many would not be seen.
_LEAST_PERCENT = 3.0
#: Of a bin's width, left free beside the bar.
_GAP = 0.12


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
    return Chart(
        anchor="loader-wait",
        title=_title(report, waits),
        caption=_caption(report, waits, bins),
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
        table=_table(bins, wait, rest, waits),
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
    """The bars of one lane, and a line at the median."""
    width, most = 100.0 / len(counts), max(counts)
    bars = "".join(
        lane.bar(width * place, width * (place + 1 - _GAP), max(_LEAST_PERCENT, 100.0 * count / most))
        for place, count in enumerate(counts)
        if count
    )
    return Shape(colour, "area", bars), Shape("mark", "dash", polyline([(middle, lane.top), (middle, lane.bottom)]))


def _title(report: Report, waits: _Waits) -> str:
    who = "The loop" if waits.timed or report.trust.mode != "gpu" else "The GPU"
    noticed, rest = waits.noticed_ns, median(waits.rest_ns)
    if not noticed:
        largest = max(wait / (wait + rest) for wait, rest in zip(waits.wait_ns, waits.rest_ns, strict=True) if wait)
        return (
            f"{who} hardly waits for data: at most {share_text(largest)} of a step, "
            f"{format_ns(median(waits.wait_ns))} in the median, next to {format_ns(rest)} for the rest"
        )
    usual, pace = format_ns(median(noticed)), _pace(report, waits)
    if len(noticed) == len(waits.wait_ns):
        return f"{who} waits for data in every step, {usual} in the median; {pace}"
    share = format_ratio(len(noticed) / len(waits.wait_ns))
    return f"{who} waits for data in {share} of the steps, {usual} in their median; {pace}"


def _pace(report: Report, waits: _Waits) -> str:
    """What the wait has to be seen beside: how fast data is made, and the rest of the step."""
    rest, workers, loader = median(waits.rest_ns), report.workers, report.run.loader
    if workers is not None and workers.count > 0:
        made = format_ns(workers.pace_ns)
        verb = "makes" if workers.count == 1 else "make"
        who = plural(workers.count, "worker")
        return f"{who} {verb} the data of a step in {made}; the rest of a step takes {format_ns(rest)}"
    mostly = 2 * len(waits.noticed_ns) > len(waits.wait_ns)
    if loader is not None and loader.num_workers == 0 and waits.timed and mostly and rest > 0:
        return f"making the data of a step takes {median(waits.wait_ns) / rest:.1f} times as long as the rest of a step"
    return f"the rest of a step takes {format_ns(rest)}"


def _caption(report: Report, waits: _Waits, bins: _Bins) -> str:
    thinned = f", evenly thinned from {format_count(report.steps.steady)}" if report.steps.thinned else ""
    which = f"{plural(len(waits.wait_ns), 'steady step')} ({waits.first} to {waits.last}){thinned}"
    pieces = [f"{which}{drawn_rank(report)}. Dashed: medians.", _source(report, waits)]
    beyond = sum(max(pair) >= bins.end_ns for pair in zip(waits.wait_ns, waits.rest_ns, strict=True))
    if beyond:
        pieces.append(f"The last bar also holds {plural(beyond, 'longer step')}.")
    return " ".join(pieces)


def _source(report: Report, waits: _Waits) -> str:
    if waits.timed:
        hidden = " The GPU may have worked during the wait." if report.trust.mode == "gpu" or report.run.devices else ""
        return f"The wait is measured in the training loop, the rest of the step is derived.{hidden}"
    sources = [part.source for part in report.breakdown if part.part in WAITS]
    return f"The wait is {weakest(sources) if sources else 'derived'} from the trace, the rest of the step is derived."


def _table(bins: _Bins, wait: Sequence[int], rest: Sequence[int], waits: _Waits) -> Table:
    longest = max(*waits.wait_ns, *waits.rest_ns)
    rows = []
    for place, (waited, rested) in enumerate(zip(wait, rest, strict=True)):
        if waited or rested:
            low, high = bins.width_ns * place, bins.width_ns * (place + 1)
            high = max(high, longest) if place == bins.count - 1 else high
            rows.append((f"{format_ns(low)} to {format_ns(high)}", format_count(waited), format_count(rested)))
    columns = ("Time", "Steps by wait", "Steps by rest")
    return Table("The steps by their wait and by the rest", columns, tuple(rows), 1, "Empty intervals are left out.")
