"""The verdict of a comparison in one sentence, what limits it, and single spans, which have no interval."""

import math
from collections.abc import Iterator, Sequence

from profilerkit.compare.sides import is_traced
from profilerkit.compare.steps import SMALLEST_RATIO, UNSEEN_RATIO, Z99, is_on_device, judged_rank, pool_queue
from profilerkit.model.diff import Judgement, Range, Side, SpanChange, SpanOf, StepChange
from profilerkit.model.report import Report
from profilerkit.model.run import EndKind
from profilerkit.model.step import WHOLE_TRACE
from profilerkit.units import format_change, format_ns, format_ratio

# One span of each side does not show what differs between two spans of one program. What differs between two runs of
# one program is assumed, as for steps (``UNSEEN_RATIO``): a smaller difference is no real change, a larger one is only
# told.

#: What two runs of one program may differ by in any span, as a ratio: the smallest difference that is told as one.
VISIBLE_RATIO = math.expm1(Z99 * math.sqrt(2) * UNSEEN_RATIO)
_WORDS: dict[SpanOf, str] = {
    "step": "the one step",
    "trace": "the whole trace",
    "device": "the device's whole span",
    "stretch": "its kernels up to the first pause",
}


def span_changes(before: Report, after: Report) -> Iterator[SpanChange]:
    """The spans that both sides have one of: the step, else the whole trace and what its device did.

    Empty unless both sides have one judged step, found in the same way.
    """
    sides = (before, after)
    if any(side.steps.steady != 1 or side.steps.time_ns is None for side in sides):
        return
    if before.steps.found_by != after.steps.found_by:
        return
    ranks = [next((rank for rank in side.ranks if rank.rank == judged_rank(side)), None) for side in sides]
    windows = [rank.device_window for rank in ranks if rank and rank.device_window]
    means = [side.step_times.mean if side.step_times else None for side in sides]
    known: dict[SpanOf, list[int | None]] = {"step": means}
    if before.steps.found_by == WHOLE_TRACE:
        known = {"trace": means}
        if len(windows) == len(sides):
            known = {"device": [w.window_ns for w in windows], "stretch": [w.stretch_ns for w in windows]}
    for span, (before_ns, after_ns) in known.items():
        if before_ns and after_ns:
            change = after_ns / before_ns - 1
            seen = abs(math.log(after_ns / before_ns)) > math.log1p(VISIBLE_RATIO)
            yield SpanChange(span=span, before_ns=before_ns, after_ns=after_ns, change=change, is_visible=seen)


def _span_notes(spans: Sequence[SpanChange]) -> Iterator[str]:
    kinds = {row.span for row in spans}
    if not kinds:
        return
    yield (
        "One recording of each does not show how much runs vary: a difference below "
        f"{format_ratio(VISIBLE_RATIO)} may be chance."
    )
    if "step" not in kinds:
        yield "Nothing marks steps in this trace: its length is that of the recording, not of a step."
    if "stretch" in kinds:
        yield (
            "A pause of more than 2 ms between kernels does not mark a step. The work before the first may differ "
            "between the two sides."
        )


_BROKEN_OFF: dict[EndKind | None, str] = {"failed": "failed", "killed": "was killed"}
_QUIET = 0.02  #: below this share of waiting nobody needs to hear of it


def judgement(step: StepChange | None, obstacles: Sequence[str], spans: Sequence[SpanChange] = ()) -> Judgement:
    """Faster or slower only where the change is worth naming and its interval leaves no doubt about its direction.

    What cold caches cost is estimated: without that correction the step has to change in the same direction, too. Of
    single spans only the lack of a change can be told.
    """
    if spans:
        return "not comparable" if spans[0].is_visible else "no real change"
    if obstacles or step is None:
        return "not comparable"
    change = step.judged
    if abs(change.expected) < SMALLEST_RATIO or change.low <= 0 <= change.high:
        return "no real change"
    derived = step.own_after_ns / step.own_before_ns - 1
    if math.copysign(1.0, change.expected) * derived < SMALLEST_RATIO:
        return "no real change"
    return "slower" if change.expected > 0 else "faster"


def headline(
    verdict: Judgement,
    step: StepChange | None,
    obstacles: Sequence[str],
    sides: tuple[Side, Side],
    spans: Sequence[SpanChange],
) -> str:
    """The verdict with its numbers; it says so where they are without the time that other programs took.

    The change is that of the times shown: as they were timed, or the estimate that the verdict rests on.
    """
    if spans:
        told = [
            f"{_WORDS[row.span]} {format_ns(row.before_ns)} → {format_ns(row.after_ns)} ({format_change(row.change)})"
            for row in spans
        ]
        return f"{verdict.capitalize()}: {', '.join(told)}; one of each, so no interval"
    if verdict == "not comparable" or step is None:
        return f"Not comparable: {'; '.join(obstacles) or 'no step times'}"
    waited = step.is_taken_out and max(side.queued_ratio or 0.0 for side in sides) >= _QUIET
    estimated, without = ("an estimated ", " without what other programs took") if waited else ("", "")
    times = f"{estimated}{format_ns(step.quiet_before_ns)} → {format_ns(step.quiet_after_ns)}{without}"
    change = step.judged
    if verdict == "no real change":
        what = "No real change" if step.is_surely_small else "No measurable change"
        return f"{what}: {times} ({format_change(change.low)} to {format_change(change.high)})"
    size = format_ratio(abs(change.expected))
    ends = sorted((abs(change.low), abs(change.high)))
    interval = f"{format_ratio(ends[0])} to {format_ratio(ends[1])}"
    return f"The step takes {size} {'longer' if verdict == 'slower' else 'less time'}: {times} ({interval})"


def notes(
    before: Report, after: Report, sides: tuple[Side, Side], step: StepChange | None, spans: Sequence[SpanChange]
) -> Iterator[str]:
    """What limits the comparison, in whole sentences, most important first."""
    yield from _span_notes(spans)
    for name, report in (("before", before), ("after", after)):
        if report.run.ending in _BROKEN_OFF:
            yield f"The run {name} {_BROKEN_OFF[report.run.ending]}: its steps may not be those of a whole run."
    if step is not None:
        waits = [side.queued_ratio for side in sides]
        if None in waits:
            yield (
                "The wait of the training thread for a processor was not recorded on both sides. The runs are compared "
                f"as timed, assuming that runs vary by {format_ratio(step.between_runs_ratio)}."
            )
        elif max(wait for wait in waits if wait is not None) >= _QUIET:
            yield from _queued(step, sides, on_device=is_on_device(before) or is_on_device(after))
        pools = [pool_queue(side) for side in (before, after)]
        if step.is_taken_out and max(pools) >= _QUIET:
            waited = f"{format_ratio(pools[0])} before and {format_ratio(pools[1])} after"
            yield (
                f"Other programs kept threads of operators waiting, too: {waited}. How much of that held the step is "
                "not known; the interval is wider. Record again while nothing else runs."
            )
        counts = [side.recordings for side in sides]
        few = "one recording of each" if counts == [1, 1] else f"{counts[0]} and {counts[1]} recordings"
        yield (
            f"From {few}, a growth of less than {format_ratio(step.visible_ratio)} and a fall of less than "
            f"{format_ratio(step.smallest_fall_ratio)} cannot be distinguished from run-to-run variation."
        )
    for name, report in (("before", before), ("after", after)):
        if report.steps.inferred:
            yield f"The steps {name} were inferred."
        if report.trust.truncated:
            yield f"The recording {name} is cut off."
    if max(side.ranks for side in sides) > 1 and sides[0].rank != sides[1].rank:
        first, second = (f"rank {side.rank}" for side in sides)
        yield f"The step is the mean of all ranks; its parts are those of {first} before and {second} after."
    if is_traced(before) != is_traced(after):
        yield (
            f"Only the run {'before' if is_traced(before) else 'after'} has a trace: "
            "the parts of the two steps are not compared."
        )
    unknown = [
        name
        for name, first, second in (
            ("the batch size", before.run.batch_size, after.run.batch_size),
            ("the world size", before.run.world_size, after.run.world_size),
            ("the hardware", _machine(before), _machine(after)),
        )
        if not (first and second)
    ]
    if unknown:
        yield f"Not known on both sides, and assumed to be the same: {', '.join(unknown)}."


def _queued(step: StepChange, sides: tuple[Side, Side], *, on_device: bool) -> Iterator[str]:
    first, second = (format_ratio(side.queued_ratio or 0.0) for side in sides)
    others = f"Other programs had the training thread's processor for {first} of the time before and {second} after"
    if step.is_taken_out:
        own = f"{format_ns(step.own_before_ns)} → {format_ns(step.own_after_ns)}"
        yield (
            f"{others}; this is subtracted. As timed the step changed by {_ends(step.mean)}. Without the waiting it is "
            f"{own}; the estimated cost of cold caches is subtracted too."
        )
    elif on_device:
        yield f"{others}. The interval is wider, because the device may or may not have waited for it."
    else:
        yield (
            f"The training thread waited for a processor for {first} of the time before and {second} after. The "
            "interval is wider, because ranks of the same job may have caused it: not every rank was sampled."
        )


def _machine(report: Report) -> tuple[str, ...]:
    return report.run.devices or report.run.processors


def _ends(change: Range) -> str:
    """``+40 % (+30 % to +50 %)``."""
    return f"{format_change(change.expected)} ({format_change(change.low)} to {format_change(change.high)})"
