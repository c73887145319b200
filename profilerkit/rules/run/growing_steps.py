"""RU009: each step takes longer than the one before it."""

from profilerkit.analysis.steps.trend import FEWEST_TO_GROW, StepGrowth, step_growth
from profilerkit.analysis.whatif import saving
from profilerkit.analysis.workers.capacity import BUSY
from profilerkit.model import revise
from profilerkit.model.finding import STEP_LENGTHS, Bound, Evidence, Fix
from profilerkit.model.step import family_of
from profilerkit.model.verdict import FAMILY_BOUND
from profilerkit.rules.api import WAITS, Facts, MissingData, Passed, Result, Rule, fired, part_words, record_longer
from profilerkit.rules.evidence import in_line, line_evidence, told_line
from profilerkit.units import format_ns, format_ratio

#: What usually grows, by the family of the part that does.
_FIXES: dict[str, Fix] = {
    "input": Fix(text="Look in the data set for what grows: a list that is searched, a cache, files that stay open."),
    "overhead": Fix(text="Look for what collects objects: lists of results, logs kept in memory, hooks added twice."),
    "communication": Fix(text="Look for tensors that get larger from step to step, and for process groups made anew."),
}
#: The stage of the loop that grows: its words, what bounds the run then, and what usually grows there. A forward pass
#: may hold any code.
_PLACES: dict[str, tuple[str, Bound | None, str]] = {
    "forward": (
        "from the batch to the backward pass",
        None,
        "Look in the forward pass for what gets longer: sequences, batches, a cache, hooks added twice.",
    ),
    "backward": (
        "in the backward pass",
        "compute-bound",
        "Look for batches or sequences that get longer, and for layers that are run more often.",
    ),
    "optimizer": (
        "in the optimizer step",
        "compute-bound",
        "Look for parameters that are added to the optimizer during the run.",
    ),
    "after": (
        "between the optimizer step and the next batch",
        "overhead-bound",
        "Look in your code after the optimizer step for what goes over all steps so far: a metric, a list.",
    ),
    "loop": (
        "outside of backward pass and optimizer step",
        None,
        "Look in your loop for what goes over all steps so far: a metric over all batches, a list, a cache.",
    ),
}
#: Share of the growth in the backward pass from which a graph is kept. Of larger batches the forward pass has a third
#: (Kaplan et al. 2020: the backward pass computes twice as much), of a kept graph none: this is midway.
GRAPH_SHARE = 5 / 6
_KEPT = Fix(
    text="Detach what is carried from step to step, drop retain_graph=True, and keep numbers of losses, not tensors.",
    code="state = state.detach()\ntotal += loss.item()",
)
_GROWING = Fix(
    text="Look for what gets longer: sequences, batches, a metric over all batches so far, a graph kept over steps."
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
    How it is measured: The Theil-Sen slope of step times must be above zero with 99 % confidence. Half of the growth
        must be on both sides of the largest jump (Pettitt). The last third must gain half as much as the third before
        it. Waiting for a processor is left out. The part or stage of the loop that grows decides the fix. Steps that
        take longer from one step on are shown without a fix.
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
        # Waiting for a processor adds so much to the rest of a step.
        queue_ratio = facts.taken / (1.0 - facts.taken)
        if grown < max(self.smallest_growth, queue_ratio):
            busy = " while other programs take the processors" if facts.taken or grown < found.ratio - 1.0 else ""
            return Passed(f"the last steps take {format_ratio(max(found.ratio - 1.0, 0.0))} more than the first{busy}")
        if found.jump is not None:
            return _jump(facts, found)
        own = grown / (found.ratio - 1.0)
        # Without what is kept, every step is as long as the first one.
        expected, most = (max(1.0 - base / found.mean_ns, 0.0) * own for base in (found.base_ns, found.least_ns))
        if not self.worth_saying(facts, expected):
            return Passed(f"the growth adds {format_ratio(expected)} to the mean step, which varies as much")
        line = facts.lines.get("growing")
        fix = _fix(facts, found)
        later = format_ns(2.0 * found.last_ns - found.first_ns)
        memory = " Memory grows with it." if _memory_grows(facts) else ""
        return fired(
            facts,
            bound=_bound(facts, found),
            detail="growing",
            title=f"Steps get longer{in_line(line)}: {_lengths(found)}",
            why=f"{_where(facts, found)}{memory}{told_line(line, 'the last third')}"
            f" After as many steps again, a step takes {later} at this rate.",
            evidence=(*_evidence(facts, found), *line_evidence(facts, "Time of the last third", line)),
            at_most="low" if max(facts.taken, found.crowding) >= BUSY else "medium",
            saving=saving(expected, most),
            fix=revise(fix, text=f"Look first{in_line(line)}. {fix.text}") if line else fix,
            confirm="The last steps must take as long as the first ones.",
        )


def _jump(facts: Facts, found: StepGrowth) -> Result:
    """Return an observation: what takes longer for good may be meant to."""
    return fired(
        facts,
        bound=None,
        detail="jump",
        title=f"Steps take longer from step {found.jump:,} on: {_lengths(found, 'before', 'after')}",
        why=f"{_where(facts, found)} Before and after that they hardly grow: nothing piles up from step to step.",
        evidence=_evidence(facts, found),
        at_most="low" if facts.taken >= BUSY else "medium",
        confirm="Compare what the program does before and after that step: larger inputs, unfrozen layers, other data.",
    )


def _lengths(found: StepGrowth, first: str = "at first", last: str = "at last") -> str:
    return f"{format_ns(found.first_ns)} {first}, {format_ns(found.last_ns)} {last}"


def _where(facts: Facts, found: StepGrowth) -> str:
    """The part or the stage that holds most of the growth, in a sentence."""
    place = _place(facts, found)
    if found.part is not None:
        return f"{format_ratio(found.part.coverage)} of the growth is in one part: {part_words(found.part.part)}."
    if place is not None and found.stage is not None:
        return f"{format_ratio(found.stage.coverage)} of the growth is {place[0]}."
    return "No part that was timed holds most of the growth."


def _place(facts: Facts, found: StepGrowth) -> tuple[str, Bound | None, str] | None:
    """The stage of the loop that holds most of the growth; a device works at another one than the host."""
    return _PLACES[found.stage.part] if found.stage is not None and not facts.on_device else None


def _bound(facts: Facts, found: StepGrowth) -> Bound | None:
    if found.part is not None:
        return FAMILY_BOUND.get(family_of(found.part.part))
    place = _place(facts, found)
    return place[1] if place is not None else None


def _fix(facts: Facts, found: StepGrowth) -> Fix:
    if found.part is not None and (fix := _FIXES.get(family_of(found.part.part))) is not None:
        return fix
    place = _place(facts, found)
    if place is None or found.stage is None:
        return _KEPT if _memory_grows(facts) else _GROWING
    kept = found.stage.part == "backward" and (found.stage.coverage >= GRAPH_SHARE or _memory_grows(facts))
    return _KEPT if kept else Fix(text=place[2])


def _of_program(facts: Facts, found: StepGrowth) -> float:
    """By how much the last steps take longer than the first ones as far as that is not the machine's doing.

    Where other programs take the processors, threads and workers that the training waits for queue as well: what the
    program does more takes CPU time, and of workers that is not known.
    """
    grown = found.ratio - 1.0
    if facts.on_device or max(facts.taken, found.crowding) < BUSY:
        return grown
    if found.part is not None and found.part.part in WAITS:
        return 0.0
    return grown if found.computed_ratio is None else grown * found.computed_ratio


def _memory_grows(facts: Facts) -> bool:
    return any(row.grows for row in facts.memory.growth)


def _evidence(facts: Facts, found: StepGrowth) -> tuple[Evidence, ...]:
    slope = found.slope
    row = facts.evidence("Growth from step to step", slope.value, "ns", "length of the steps", "derived")
    row = revise(row, steps=found.steps, behind=(STEP_LENGTHS,))
    first, last = ("of the first tenth", "of the last tenth") if found.jump is None else ("before", "after")
    lengths = ((f"Typical step {first}", found.first_ns), (f"Typical step {last}", found.last_ns))
    return (revise(row, low=slope.low, high=slope.high), *(revise(row, label=of, value=ns) for of, ns in lengths))
