"""IN003: all workers are busy and still slower than the step."""

from profilerkit.analysis.whatif import BUSY_WORKERS, consumer_ns, loader_fix, workers_busy
from profilerkit.analysis.workers.capacity import no_use
from profilerkit.model.run import Workers
from profilerkit.rules.api import WAITS, Facts, Passed, Result, Rule, fired, revise, saving, unsure
from profilerkit.rules.evidence import line_evidence, told_line
from profilerkit.rules.input.loader import measured, recorded_workers, wait_detail, worker_fix
from profilerkit.units import format_ns, format_ratio


class TooFewWorkers(Rule, frozen=True):
    """Find workers that are busy {busy_ratio} of the time, each slower with a batch than the step.

    Why it costs: The step waits for a batch that is not ready, while the host has cores left for more workers.

    Example:
        loader = DataLoader(dataset, batch_size=4, num_workers=2)
    Use instead:
        loader = DataLoader(dataset, batch_size=4, num_workers=6)
    How it is measured: Timers in the workers show how busy they are and what a batch takes. At least {awaited_ratio} of
        the wait must be for a batch that was not sent yet. Where no wait is long enough, no batch may be ready at
        {empty_ratio} of the fetches. The queue is replayed with the proposed workers. Memory, CPU quota and cores cap
        their number.
    When it is wrong: Workers that share a lock or a slow disk do not add up. Confidence is medium where {blocked_share}
        of a batch is blocked. Each worker takes memory.
    Sources: https://docs.pytorch.org/docs/stable/data.html
    """

    code = "IN003"
    summary = "All workers are busy and still slower than the step"

    busy_ratio: float = BUSY_WORKERS
    #: Fetches tell little: workers that keep pace deliver in bursts, all but the first batch of which are ready.
    awaited_ratio: float = 0.5
    empty_ratio: float = 0.5
    #: Share of a batch blocked from which what the workers wait for may be shared between them.
    blocked_share: float = 0.5

    def check(self, facts: Facts) -> Result:
        workers = recorded_workers(facts)
        if not isinstance(workers, Workers):
            return workers
        enough = self._enough(facts, workers)
        if enough:
            return Passed(enough)
        useless = no_use(facts)
        if useless is not None:
            return Passed(f"more workers are not what is missing: {useless}")
        fix = loader_fix(facts)
        if fix is None:
            return Passed("the host has no cores or memory for more workers")
        if not self.worth_saying(facts, fix.expected):
            return unsure(f"{fix.workers} workers would do", fix.expected)
        blocked = workers.share("fetch") >= self.blocked_share
        rest = (facts.mean_step_ns or 0.0) - facts.time_ns(*WAITS)
        work = workers.interval_ns * workers.batches_per_step
        count = f"{fix.current} worker{'' if fix.current == 1 else 's'}"
        return fired(
            facts,
            bound="input-bound",
            title=f"{count}, always busy: {format_ns(work)} of work per step, {format_ns(rest)} of other time",
            why="The workers always have a batch to make, and the step still waits: together they are slower than it."
            f"{told_line(facts.lines.get('workers'), 'the time of workers')}",
            evidence=(
                facts.share_evidence("Input wait, share of the step", *WAITS),
                measured(facts, workers, "Work of the workers, per step", work, "ns"),
                revise(measured(facts, workers, "Step without its input wait", rest, "ns"), source="derived"),
                measured(facts, workers, "Workers busy", workers.busy_ratio, "ratio"),
                measured(facts, workers, "Wait for a batch that was not sent yet", workers.awaited_ratio, "ratio"),
                measured(facts, workers, "num_workers", fix.current, "count"),
                *line_evidence(facts, "Workers' time", facts.lines.get("workers")),
            ),
            at_most="medium" if blocked else "high",
            detail=wait_detail(facts, workers),
            saving=saving(fix.expected, facts.share(*WAITS)),
            fix=worker_fix(facts, fix),
            confirm=f"Train again with {fix.workers}; afterwards the step is limited by {fix.limited_by}."
            + (" If nothing changes, the workers wait for something they share, such as a lock." if blocked else ""),
        )

    def _enough(self, facts: Facts, workers: Workers) -> str:
        """Return the number that says that the workers are not the limit; empty where they are."""
        busy = workers_busy(facts)
        if busy is not None and busy < self.busy_ratio:
            return f"the workers are idle {format_ratio(1.0 - busy)} of the time"
        awaited = workers.awaited_ratio
        if awaited is not None and awaited < self.awaited_ratio:
            return f"in {format_ratio(1.0 - awaited)} of the wait its batch had been sent"
        if awaited is None and workers.queue_empty_ratio is not None and workers.queue_empty_ratio < self.empty_ratio:
            return f"a batch was ready at {format_ratio(1.0 - workers.queue_empty_ratio)} of the fetches"
        if workers.pace_ns <= consumer_ns(facts, facts.mean_step_ns or 0.0):
            return f"the workers make a batch in {format_ns(workers.pace_ns)}, the step without its wait takes longer"
        return ""
