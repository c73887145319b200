"""IN004: the workers are fast enough on average, but a few slow batches drain the queue."""

from profilerkit.analysis.whatif import waited_share
from profilerkit.analysis.workers.capacity import batch_room
from profilerkit.analysis.workers.queue import PREFETCH, QueueFacts
from profilerkit.model import revise
from profilerkit.model.run import Workers
from profilerkit.rules.api import WAITS, Facts, Fix, MissingData, Passed, Result, Rule, SettingChange, fired, saving
from profilerkit.rules.input.loader import measured, part_evidence, recorded_workers, wait_detail
from profilerkit.units import format_ns, format_ratio


class ShallowPrefetch(Rule, frozen=True):
    """Find workers that are fast enough on average, although some batches take much longer.

    Why it costs: With few batches prefetched, one slow batch empties the queue and the step waits for it.

    Example:
        loader = DataLoader(dataset, batch_size=4, num_workers=2, prefetch_factor=2)
    Use instead:
        loader = DataLoader(dataset, batch_size=4, num_workers=2, prefetch_factor=8)
    How it is measured: The standard deviation of the work on a batch must reach {variation_ratio} of its mean. The wait
        must take 3 % of the step. The queue is replayed with a prefetch_factor of 4 and 8. The smallest that gains
        {enough_ratio} of the best is proposed, as far as memory allows.
    When it is wrong: Deeper prefetch does not help workers that are too slow on average. It takes memory for workers ×
        prefetch_factor batches. No saving is given where the replay misses the measured time.
    Sources: https://docs.pytorch.org/docs/stable/data.html
    """

    code = "IN004"
    summary = "A few slow batches drain the prefetch queue"

    variation_ratio: float = 0.5
    #: Share of the most that deeper prefetch gains from which the smaller depth is enough (a choice).
    enough_ratio: float = 0.9

    def check(self, facts: Facts) -> Result:
        workers = recorded_workers(facts)
        if not isinstance(workers, Workers):
            return workers
        uneven = workers.variation_ratio
        if uneven is None or uneven < self.variation_ratio:
            return Passed(f"the work on a batch varies by {format_ratio(uneven or 0.0)} of its mean")
        rest = (facts.mean_step_ns or 0.0) - facts.time_ns(*WAITS)
        if workers.pace_ns > rest:
            made = format_ns(workers.pace_ns)
            return Passed(f"the workers make a batch in {made}, slower than the step: that is no burst")
        queue = facts.loading.queue if facts.loading is not None else None
        if queue is None:
            return MissingData("too few batches were recorded to replay the queue", "record at least 20 steady steps")
        if not queue.is_faithful:
            return MissingData(
                f"the replay of the queue misses the measured time by {format_ratio(abs(queue.error_ratio))}",
                "record more steps, and leave the host to the run alone",
            )
        now = (facts.loader.prefetch_factor if facts.loader else None) or PREFETCH
        room = batch_room(facts)
        deeper = queue.by_prefetch.items()
        fitting = {depth: gain for depth, gain in deeper if room is None or (depth - now) * workers.count <= room}
        if not fitting:
            deep = "free memory has no room for more" if queue.by_prefetch else "that is deep already"
            return Passed(f"prefetch_factor is {now}, and {deep}")
        most = max(fitting.values())
        if most <= 0.0:
            return Passed(f"prefetch_factor {now} → {max(fitting)} would save nothing")
        depth = min(depth for depth, gain in fitting.items() if gain >= self.enough_ratio * most)
        expected = min(fitting[depth], waited_share(facts))
        if not self.worth_saying(facts, expected):
            return Passed(f"prefetch_factor {now} → {depth} would save {format_ratio(expected)}: too little")
        return _finding(facts, workers, queue, now, depth, expected)


def _finding(facts: Facts, workers: Workers, queue: QueueFacts, now: int, depth: int, expected: float) -> Result:
    keep = "1 worker then keeps" if workers.count == 1 else f"{workers.count} workers then keep"
    change = SettingChange("prefetch_factor", now, depth)
    text = f"{change.text}: {keep} {workers.count * depth} batches under way."
    if queue.out_of_order >= expected:
        saved = format_ratio(min(queue.out_of_order, facts.share(*WAITS)))
        text += f" in_order=False saves {saved} without more memory, but changes the order of the samples."
    slowest = f", {format_ns(workers.p99_ns)} at the 99th percentile" if workers.p99_ns is not None else ""
    label = "Replayed with the present prefetch, beside the measured time"
    replayed = facts.evidence(label, 1.0 + queue.error_ratio, "ratio", "the loader's queue replayed", "derived")
    return fired(
        facts,
        bound="input-bound",
        title=f"Uneven batches empty the queue: {format_ns(workers.producer_ns)} of work on average{slowest}",
        why="The workers are fast enough on average. With so few batches prefetched, one slow batch uses up what "
        "is ready.",
        evidence=(
            *part_evidence(facts, workers),
            measured(facts, workers, "Work on a batch, deviation over mean", workers.variation_ratio, "ratio"),
            measured(facts, workers, "Fetches that found no batch ready", workers.queue_empty_ratio, "ratio"),
            measured(facts, workers, "Wait for batches of twice the usual work", queue.slow_ratio, "ratio"),
            measured(facts, workers, "prefetch_factor", now, "count"),
            revise(replayed, n=queue.batches, steps=facts.judged_steps),
        ),
        at_most="high",
        detail=wait_detail(facts, workers),
        saving=saving(expected, facts.share(*WAITS), method="replay"),
        fix=Fix(text=text, code=f"DataLoader(..., prefetch_factor={depth})", changes=(change,)),
        confirm="Train again: fewer fetches must find the queue empty. If the wait stays, the mean rate is the limit.",
    )
