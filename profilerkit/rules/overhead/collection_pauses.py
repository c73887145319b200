"""OV004: Python's garbage collector stops the step."""

from functools import partial

from profilerkit.model.finding import SettingChange
from profilerkit.rules.api import Facts, Fix, MissingData, Passed, Result, Rule, fired, saving, spent, unsure
from profilerkit.units import format_ratio


class CollectionPauses(Rule, frozen=True):
    """Find garbage collections that take {smallest_share} of the step, in {fewest_collections} or more collections.

    Why it costs: A full collection visits every object while training stops. With several ranks, all wait for each one.

    Example:
        for batch in loader:
            train_step(batch)
    Use instead:
        import gc
        gc.freeze()
        gc.disable()
        for step, batch in enumerate(loader):
            train_step(batch)
            if step % 1000 == 0:
                gc.collect()
    How it is measured: The interpreter's callbacks time each collection; a trace with Python stacks shows gc.collect.
        Time in which the device keeps working is subtracted.
    When it is wrong: Without collections, reference cycles pile up until the next manual one: watch the memory.
    Sources: https://docs.python.org/3.12/library/gc.html
    """

    code = "OV004"
    summary = "Python's garbage collector stops the step"

    smallest_share: float = 0.02
    #: Collections seen in the judged steps, below which none is said to come again (a choice: two make no rate).
    fewest_collections: int = 3

    def check(self, facts: Facts) -> Result:
        seen, share = facts.host.collections, facts.share("over.gc")
        if seen is None and not share and not facts.measured("Python stacks"):
            hint = "run the loop under profilerkit.profile(...), or with_stack=True"
            return MissingData("garbage collections were not watched", hint)
        if share < self.smallest_share:
            return Passed(f"garbage collection takes {format_ratio(share)} of the step")
        if not self.worth_saying(facts, share):
            return unsure(f"garbage collection takes {format_ratio(share)} of the step", share)
        times = round(seen.per_step * facts.steps.steady) if seen is not None else None
        if times is not None and times < self.fewest_collections:
            return Passed(f"too few garbage collections for a rate: {times} in {facts.steps.steady} steps")
        several = " The other ranks wait meanwhile, and pause at other steps." if (facts.world_size or 1) > 1 else ""
        evidence = [facts.share_evidence("Garbage collection, share of the step", "over.gc")]
        if seen is not None:
            row = partial(facts.evidence, origin="gc.callbacks")
            evidence += [
                row("Collections of 50 µs or more, per step", seen.per_step, "count"),
                row("One collection, mean", seen.pause_ns, "ns"),
                row("Longest collection", seen.longest_ns, "ns"),
                row("Collections of the oldest generation", seen.full, "count"),
            ]
        return fired(
            facts,
            bound="overhead-bound",
            title=f"Garbage collection takes {spent(facts, share)}",
            why=f"No Python runs while the collector looks through the objects, so no work is issued.{several}",
            evidence=tuple(evidence),
            at_most="high" if seen is not None else "medium",
            detail="gc",
            saving=saving(share, share),
            fix=Fix(
                text="Collect by hand, at the same step on all ranks, and switch the automatic collections off.",
                code="gc.collect(); gc.freeze(); gc.disable()  # before the loop\n"
                "if step % 500 == 0:\n    gc.collect(1)",
                changes=(SettingChange("gc_freeze", False, True),),
            ),
            confirm="The time in collections must be gone, and the memory must not grow.",
        )
