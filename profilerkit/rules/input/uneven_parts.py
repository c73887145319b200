"""IN014: some workers finish early, because the shards have unequal sizes."""

from profilerkit.analysis.whatif import even_parts
from profilerkit.analysis.workers.capacity import WITH_DATA
from profilerkit.model.run import Workers
from profilerkit.rules.api import WAITS, Facts, Fix, MissingData, Passed, Result, Rule, fired, saving
from profilerkit.rules.input.loader import measured, recorded_workers, wait_detail
from profilerkit.units import format_count, format_ns, format_ratio


class UnevenParts(Rule, frozen=True):
    """Find iterable datasets where, on average, fewer than {with_data} of the workers still have data.

    Why it costs: When the short shards end, the remaining workers feed the rest of the epoch alone.

    Example:
        class Shards(IterableDataset):
            def __iter__(self):
                if torch.utils.data.get_worker_info().id == 0:
                    yield from range(1000)
    Use instead:
        class Shards(IterableDataset):
            def __iter__(self):
                info = torch.utils.data.get_worker_info()
                yield from range(info.id, 1000, info.num_workers)
    How it is measured: Timers count the workers that still have data at each batch. The saving assumes that all workers
        work to the end, at the pace of those that have data.
    When it is wrong: An epoch of a few batches starts and ends its workers one after the other. Shards with equal
        counts may still take unequal time.
    Sources: https://docs.pytorch.org/docs/stable/data.html
    """

    code = "IN014"
    summary = "Workers finish early: shards have unequal sizes"

    with_data: float = WITH_DATA

    def check(self, facts: Facts) -> Result:
        workers = recorded_workers(facts)
        if not isinstance(workers, Workers):
            return workers
        if workers.active is None:
            hint = "record at least 10 steps of a loader with workers: profilerkit.profile(...)"
            return MissingData("which workers still had data was not recorded", hint)
        there = workers.active / max(workers.count, 1)
        if there >= self.with_data:
            return Passed(f"{format_ratio(there)} of the workers still had data, on average")
        expected = even_parts(facts)
        if not self.worth_saying(facts, expected):
            return Passed(f"with all workers at work the step would take {format_ratio(expected)} less: too little")
        return fired(
            facts,
            bound="input-bound",
            title=f"{format_count(round(workers.active, 1))} of {workers.count} workers still had data, on average",
            why=f"They make a step's data in {format_ns(workers.pace_ns)}. The others have ended: their shards were "
            "shorter.",
            evidence=(
                facts.share_evidence("Input wait, share of the step", *WAITS),
                measured(facts, workers, "Workers", workers.count, "count"),
                measured(facts, workers, "Workers that still had data", workers.active, "count"),
                measured(facts, workers, "They make a step's data in", workers.pace_ns, "ns"),
            ),
            at_most="medium",
            detail=wait_detail(facts, workers),
            saving=saving(expected, facts.share(*WAITS)),
            fix=Fix(
                text=f"Divide the data so that all {workers.count} workers end together: in many small shards, every "
                "n-th for each worker.",
                code="def __iter__(self):\n"
                "    info = torch.utils.data.get_worker_info()\n"
                "    for shard in self.shards[info.id :: info.num_workers]:\n"
                "        yield from shard",
            ),
            confirm="Count the samples that each worker yields in an epoch: the counts must be about equal.",
        )
