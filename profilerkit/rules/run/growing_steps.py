"""RU009: each step takes longer than the one before it."""

from profilerkit.analysis.steps.slow import FEWEST_TO_GROW, StepGrowth, step_growth
from profilerkit.analysis.whatif import saving
from profilerkit.model.change import revise
from profilerkit.model.finding import STEP_LENGTHS, Evidence, Fix
from profilerkit.model.step import Family, family_of
from profilerkit.model.verdict import FAMILY_BOUND
from profilerkit.rules.api import WAITS, Facts, MissingData, Passed, Result, Rule, fired, part_words, record_longer
from profilerkit.units import format_ns, format_ratio

#: What usually grows, by the family of the part that does.
_FIXES: dict[Family, Fix] = {
    "input": Fix(text="Look in the data set for what grows: a list that is searched, a cache, files that stay open."),
    "overhead": Fix(text="Look for what collects objects: lists of results, logs kept in memory, hooks added twice."),
    "communication": Fix(text="Look for tensors that get larger from step to step, and for process groups made anew."),
}
#: Share of the step in the queue for a processor from which growth may be the machine's (a choice, as RU005's).
BUSY = 0.1
_KEPT = Fix(
    text="Detach what is carried from step to step, drop retain_graph=True, and keep numbers of losses, not tensors.",
    code="state = state.detach()\ntotal += loss.item()",
)
_GROWING = Fix(
    text="Look for state that grows: a graph kept over steps (detach it), a metric over all batches, longer sequences.",
    code="state = state.detach()",
)


class GrowingSteps(Rule, frozen=True):
    """Find steps that grow by {smallest_growth} from the first to the last third, and keep growing.

    Why it costs: Something is kept from step to step, and is read or copied each time.

    Example:
        history = torch.zeros(0)
        for batch in loader:
            history = torch.cat([history, train_step(batch).reshape(1)])

    Use instead:
        history = []
        for batch in loader:
            history.append(train_step(batch).item())

    How it is measured: The Theil-Sen slope of step times must be above zero with 99 % confidence. The last third must
        gain half as much as the third before it. Waiting for a processor is left out. The part that grows decides the
        fix.

    When it is wrong: A curriculum of longer sequences grows on purpose. A device that gets hotter slows by less than
        this.
    """

    code = "RU009"
    summary = "Each step takes longer than the one before it"

    smallest_growth: float = 0.2

    def check(self, facts: Facts) -> Result:
        if not facts.step_series or facts.steps.steady < FEWEST_TO_GROW:
            least = f"{FEWEST_TO_GROW} steps"
            return MissingData(f"fewer than {least} could be judged", record_longer(facts, least))
        found = step_growth(facts.step_series[0])
        if found is None:
            return Passed("the steps do not grow for good")
        grown = _of_program(facts, found)
        if grown < max(self.smallest_growth, facts.taken):
            busy = " while other programs take the processors" if grown < found.ratio - 1.0 else ""
            return Passed(f"the last steps take {format_ratio(found.ratio - 1.0)} more than the first ones{busy}")
        own = grown / (found.ratio - 1.0)
        # Without what is kept, every step is as long as the first one.
        expected, most = (max(1.0 - base / found.mean_ns, 0.0) * own for base in (found.base_ns, found.least_ns))
        if not self.worth_saying(facts, expected):
            return Passed(f"the growth adds {format_ratio(expected)} to the mean step, which varies as much")
        family = family_of(found.part.part) if found.part is not None else "compute"
        return fired(
            facts,
            bound=FAMILY_BOUND.get(family, "compute-bound"),
            detail="growing",
            title=f"Steps get longer: {format_ns(found.first_ns)} at first, {format_ns(found.last_ns)} at last",
            why=self._why(facts, found),
            evidence=_evidence(facts, found),
            at_most="medium",
            saving=saving(expected, most),
            fix=_FIXES.get(family) or (_KEPT if _memory_grows(facts) else _GROWING),
            confirm="The last steps must take as long as the first ones.",
        )

    def _why(self, facts: Facts, found: StepGrowth) -> str:
        holds = "No part that was timed holds most of the growth."
        if found.part is not None:
            holds = f"{format_ratio(found.part.coverage)} of the growth is in one part: {part_words(found.part.part)}."
        memory = " Memory grows with it: tensors are kept." if _memory_grows(facts) else ""
        later = format_ns(2.0 * found.last_ns - found.first_ns)
        return f"{holds}{memory} After as many steps again, a step takes {later} at this rate."


def _of_program(facts: Facts, found: StepGrowth) -> float:
    """By how much the last steps take longer than the first ones as far as that is not the machine's doing.

    Where other programs take the processors, threads and workers that the training waits for queue as well: what the
    program does more takes CPU time, and of workers that is not known.
    """
    grown = found.ratio - 1.0
    if facts.on_device or max(facts.taken, found.crowding) < BUSY:
        return grown
    if found.computed_ratio is None or (found.part is not None and found.part.part in WAITS):
        return 0.0
    return grown * found.computed_ratio


def _memory_grows(facts: Facts) -> bool:
    return any(row.grows for row in facts.memory.growth)


def _evidence(facts: Facts, found: StepGrowth) -> tuple[Evidence, ...]:
    def row(label: str, value: float) -> Evidence:
        return facts.evidence(
            label, value, "ns", "length of the steps", "derived", steps=found.steps, behind=(STEP_LENGTHS,)
        )

    slope = found.slope
    return (
        revise(row("Growth from step to step", slope.value), low=slope.low, high=slope.high),
        row("Typical step of the first tenth", found.first_ns),
        row("Typical step of the last tenth", found.last_ns),
    )
