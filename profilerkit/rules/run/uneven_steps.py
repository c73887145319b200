"""RU004: some steps are much longer than the others."""

from functools import partial

from profilerkit.analysis.whatif import saving
from profilerkit.model import revise
from profilerkit.model.finding import STEP_LENGTHS
from profilerkit.model.step import PARTS, within
from profilerkit.rules.api import (
    SMALLEST_SAVING,
    STEPS_FOR_HIGH,
    Facts,
    MissingData,
    Passed,
    Result,
    Rule,
    fired,
    used_steps,
)
from profilerkit.units import format_count, format_ns, format_ratio


class UnevenSteps(Rule, frozen=True):
    """Find steps that vary by {largest_cv_ratio}, or whose slowest take {tail_ratio} times the median.

    Why it costs: A few slow steps raise the mean, and with several ranks every rank waits for them.

    Example:
        for step, batch in enumerate(loader):
            train_step(batch)
            print(list(model.parameters()))
    Use instead:
        for step, batch in enumerate(loader):
            loss = train_step(batch)
            if step % 100 == 0:
                print(loss.item())
    How it is measured: The rule uses the coefficient of variation and the 99th percentile of steady steps. The part
        that grew in the slow steps is named, and its rule has the fix. The saving is 1 - median / mean, times the share
        of the excess in that part.
    When it is wrong: Pauses with a finding of their own are left out. Batches of different sizes differ on purpose. One
        slow step may never come again.
    """

    code = "RU004"
    summary = "Some steps are much longer than the others"
    of_any_framework = True

    largest_cv_ratio: float = 0.15
    tail_ratio: float = 1.5

    def check(self, facts: Facts) -> Result:
        times, slow = facts.steps.time_ns, facts.steps.slow
        if times is None or times.cv_ratio is None:
            return MissingData(f"one step has no spread: {used_steps(facts)}", "record at least 10 steady steps")
        tail = times.p99 is not None and times.p99 > self.tail_ratio * times.median
        if not (tail or (times.cv_ratio is not None and times.cv_ratio > self.largest_cv_ratio)):
            return Passed(f"steps vary by {format_ratio(times.cv_ratio)}")
        # The mean is also raised by optimizer steps of accumulated gradients, which are no slow steps.
        most = 1.0 - times.median / times.mean if times.mean else 0.0
        bound = min(most, slow.share) if slow else 0.0
        if slow is None or not self.worth_saying(facts, bound):
            return Passed(f"slow steps raise the mean by {format_ratio(max(bound, 0.0))} of it")
        if slow.part is not None and slow.part.startswith("compute."):
            return Passed("the longer steps hold more device work: larger batches, or work from the steps before")
        bound = min(most, slow.share - _told(facts))
        if not self.worth_saying(facts, bound):
            return Passed("the slow steps are stalls that recur, which have a rule of their own")
        which = f"Step {slow.first} is" if slow.count == 1 else f"{format_count(slow.count)} steps are"
        every = f", every {slow.period} steps" if slow.period else ""
        cause = "No recorded part of the step holds most of that."
        if slow.part is not None and slow.coverage is not None:
            cause = f"{format_ratio(slow.coverage)} of that is in one part: {within(PARTS[slow.part][1])}."
        if slow.count == 1:
            cause += f" One step of {facts.steps.steady} does not show how often it comes."
        expected = bound * (slow.coverage or 0.0)
        is_single = slow.count == 1 and facts.steps.steady < STEPS_FOR_HIGH
        row = partial(facts.evidence, origin="length of the steps", source="derived", behind=(STEP_LENGTHS,))
        excess = row("Time of a slow step beyond the others, mean", slow.excess_ns, "ns", n=slow.count)
        return fired(
            facts,
            bound=None,
            title=f"{which} {format_ns(slow.excess_ns)} longer than the others{every}",
            why=f"{cause} The mean step is {format_ns(times.mean)}, the median {format_ns(times.median)}.",
            evidence=(
                revise(excess, steps=(slow.first, slow.last)),
                row("Steps from one to the next", slow.period or None, "count", n=slow.count),
                row("Share of that time in one part", slow.coverage, "ratio", n=None),
                row("Coefficient of variation of the steps", times.cv_ratio or 0.0, "ratio"),
                row("Step time, mean", times.mean, "ns"),
                row("Step time, median", times.median, "ns"),
            ),
            at_most="medium",
            saving=saving(expected, bound) if expected >= SMALLEST_SAVING and not is_single else None,
            confirm="The slow steps must be gone from the per-step figure.",
        )


def _told(facts: Facts) -> float:
    """Share of the time in stops that have rules of their own, as the steps or as the record of the run tells it."""
    return max(sum(stall.share for stall in facts.stalls), sum(pause.share for pause in facts.pauses))
