"""IN014 (R03): workers run out of data before the others, because their parts are of unlike length."""

from dataclasses import dataclass
from typing import ClassVar

from profilerkit.analysis.facts import Facts
from profilerkit.analysis.leaves import WAITS
from profilerkit.analysis.whatif import even_parts, saving
from profilerkit.analysis.workers.anatomy import named_wait
from profilerkit.analysis.workers.capacity import WITH_DATA
from profilerkit.model.finding import Finding, Fix
from profilerkit.model.workers import Workers
from profilerkit.rules.input.worker_evidence import measured, recorded_workers
from profilerkit.rules.rule import Fired, MissingData, Passed, Result, Rule, finding_for, share_evidence
from profilerkit.units import format_count, format_ns, format_ratio


@dataclass(frozen=True)
class UnevenParts(Rule):
    """Parts of unlike length (R03: too few workers, of those that have data).

    Claim: Workers of an iterable-style dataset run out of data early, and the others make the rest of the epoch alone.
    Evidence: Workers that still had data, mean over the batches, against all of them; how fast those make a step's
        data. From timers in the worker processes.
    Threshold: A wait of 3 % of the step; less than 75 % of the workers still had data in the mean.
    Fix: Deal the data out so that all workers end together: many small shards, worker i of n takes every n-th.
    Saving: Bound: the input share. Expected: the fluid model of the loader with all workers at work to the end,
        1 - max(compute, producer / workers, CPU / cores) / step.
    Traps: An epoch of a few batches starts and ends its workers one after the other, however even their parts are.
        Parts of as many samples may still take unlike time.
    Confidence: Medium: that the workers keep their pace when all of them work is a model.
    """

    code: ClassVar[str] = "IN014"
    name: ClassVar[str] = "uneven_parts"
    family: ClassVar[str] = "input"
    summary: ClassVar[str] = "Workers run out of data: their parts are of unlike length"

    with_data: float = WITH_DATA

    def check(self, facts: Facts) -> Result:
        """Fires when few of the workers have data in the mean, and the step waits for those."""
        workers = recorded_workers(facts)
        if not isinstance(workers, Workers):
            return workers
        if workers.active is None:
            return MissingData(
                "which workers still had data was not recorded",
                "record at least 10 steps of a loader with workers: profilerkit.profile(...)",
            )
        there = workers.active / max(workers.count, 1)
        if there >= self.with_data:
            return Passed(f"{format_ratio(there)} of the workers still had data, in the mean")
        expected = even_parts(facts)
        if not self.worth_saying(facts, expected):
            return Passed(f"with all workers at work the step would take {format_ratio(expected)} less: too little")
        return Fired((_finding(facts, workers, workers.active, expected),))


def _finding(facts: Facts, workers: Workers, active: float, expected: float) -> Finding:
    left = format_count(round(active, 1))
    return finding_for(
        facts,
        bound="input-bound",
        title=f"Of {workers.count} workers {left} still had data, in the mean",
        why=f"Those that have some left make a step's data in {format_ns(workers.pace_ns)}; the others have ended, as "
        "their parts of the data were shorter.",
        evidence=(
            share_evidence(facts, "Input wait, share of the step", *WAITS),
            measured(facts, workers, "Workers", workers.count, "count"),
            measured(facts, workers, "Workers that still had data", active, "count"),
            measured(facts, workers, "They make a step's data in", workers.pace_ns, "ns"),
        ),
        at_most="medium",
        detail=named_wait(workers, facts.input.cpu_ratio if facts.input else None).removeprefix("input."),
        saving=saving(expected, facts.share(*WAITS)),
        fix=Fix(
            text=f"Deal the data out so that all {workers.count} workers end together: in many small shards, of which "
            "each takes every n-th.",
            code="def __iter__(self):\n"
            "    info = torch.utils.data.get_worker_info()\n"
            "    for shard in self.shards[info.id :: info.num_workers]:\n"
            "        yield from shard",
        ),
        confirm="Count the samples that each worker yields in an epoch: they must be about as many.",
    )
