"""IN013: samples that cost next to nothing are fetched one by one in Python."""

from functools import partial

import msgspec

from profilerkit.analysis.host.lines import HotLine
from profilerkit.analysis.whatif import batches_per_step, cheaper_batch, workers_now
from profilerkit.model.finding import Fix, Saving
from profilerkit.rules.api import WAITS, Facts, Fired, MissingData, Passed, Result, Rule, fired, saving
from profilerkit.rules.evidence import code_line, line_evidence, line_text, told_line
from profilerkit.rules.input.loader import ORIGIN, SMALLEST_WAIT
from profilerkit.units import format_bytes, format_count, format_ns, format_ratio


class ItemwiseSamples(Rule, frozen=True):
    """Find samples of at most {most_ns} that are fetched one by one, {fewest_samples} or more to a batch.

    Why it costs: Each sample pays for indexing, conversion and a function call that cost more than its data.

    Example:
        x = torch.stack([dataset[index][0] for index in range(8)])
    Use instead:
        x = dataset[torch.arange(8)][0]
    How it is measured: CPU time of a batch is divided by its samples; {computing_share} of it must be computing or
        waiting for a core. Known samples must be at most {most_bytes}. The saving removes {batched_ratio} of that CPU
        time: tests with rows of 64 numbers saved 76 to 95 %.
    When it is wrong: A sample with real computation keeps that cost. A tensor indexed with a list uses several threads,
        which can be slower. A function of the data set that takes over {own_share} of the fetching is no overhead,
        ``__getitem__`` itself from {own_ns} of a sample.
    Sources: https://docs.pytorch.org/docs/stable/data.html
    """

    code = "IN013"
    summary = "Tiny samples are fetched one by one in Python"

    most_ns: float = 200_000
    computing_share: float = 0.7
    #: Fewer samples are not worth one call for all of them, and a larger one costs more than its Python (choices).
    fewest_samples: int = 16
    most_bytes: float = 16 * 1024
    #: Share of the fetching in one function of the data set from which that is what costs: one that ``__getitem__``
    #: calls, or itself from this time of a sample on. To index a row takes 5 to 20 µs (choices). Looks find a function
    #: that keeps the interpreter too seldom: one that held 93 % of the time held 50 % of them.
    own_share: float = 1 / 3
    own_ns: float = 50_000
    batched_ratio: float = 0.75  #: share of the CPU time that a fetch of the whole batch saves: the least of five tests

    def check(self, facts: Facts) -> Result:
        if facts.input is None:
            return MissingData("no loader was seen", "wrap the loader: for batch in prof.wrap(loader)")
        share = facts.share(*WAITS)
        if share < SMALLEST_WAIT:
            return Passed(f"the step waits {format_ratio(share)} of its time for data")
        batch = _batch(facts)
        if isinstance(batch, MissingData):
            return batch
        each_ns = batch.time_ns / max(batch.samples, 1.0)
        if batch.samples < self.fewest_samples or each_ns >= self.most_ns:
            return Passed(f"a batch is {batch.samples:,.0f} samples of {format_ns(each_ns)}")
        if batch.running_ns < self.computing_share * batch.time_ns:
            return Passed(f"a sample computes {format_ratio(batch.running_ns / max(batch.time_ns, 1.0))} of its time")
        size = batch.bytes / batch.samples if batch.bytes is not None else None
        if size is not None and size > self.most_bytes:
            return Passed(f"a sample has {format_bytes(round(size))}: it costs more than its Python")
        made = next((one for one in facts.host.held or () if one.place == "fetch"), None)
        if made is not None and facts.workers is None and made.share > share / 2:
            return Passed(f"samples compute {format_ratio(made.share)} of the step, most of it in {made.operator}")
        line = facts.lines.get("input" if facts.workers is None else "fetch")
        if line is not None and self._is_own_work(line, each_ns):
            held = format_ratio(line.share)
            return Passed(f"{held} of the fetching is spent in {line_text(line)}: it is no overhead")
        removed = self.batched_ratio * batch.cpu_ns
        # What the device hides of a batch is its first part: less work takes the exposed end of it away.
        exposed = min(removed * batches_per_step(facts) / (facts.mean_step_ns or 1.0), share)
        expected = exposed if facts.workers is None else cheaper_batch(facts, removed, removed)
        if not self.worth_saying(facts, expected):
            return Passed(f"samples of {format_ns(each_ns)} cost the step {format_ratio(expected)}")
        return _finding(facts, batch, line, each_ns, size, saving(expected, share))

    def _is_own_work(self, line: HotLine, each_ns: float) -> bool:
        """Whether most of the fetching is the data set's own work, which one call for all samples does not save."""
        if line.share <= self.own_share:
            return False
        place = code_line(line.frames[-1])
        indexes = len(line.frames) == 1 and place is not None and place.function == "__getitem__"
        return len(line.frames) > 1 or (indexes and line.share * each_ns >= self.own_ns)


class _Batch(msgspec.Struct, frozen=True):
    """What one batch costs whoever makes it; ``bytes`` is ``None`` when not measured.

    ``running_ns`` is its CPU time and what it waited for a core.
    """

    samples: float
    time_ns: float
    cpu_ns: float
    running_ns: float
    bytes: int | None


def _batch(facts: Facts) -> _Batch | MissingData:
    """Return the batch as the workers recorded it, or as the waiting thread made it."""
    workers, loading = facts.workers, facts.loading
    if workers is not None:
        items = loading.items if loading is not None else None
        if items is None:
            return MissingData("how many samples a batch has was not recorded", "wrap a torch DataLoader")
        running_ns = workers.cpu_ns + workers.time_ns("core")
        return _Batch(items, workers.producer_ns, workers.cpu_ns, running_ns, workers.batch_bytes)
    samples = facts.loader.batch_size if facts.loader is not None else None
    ratio = facts.input.cpu_ratio if facts.input is not None else None
    if workers_now(facts) != 0 or samples is None or ratio is None or facts.input is None:
        hint = "run the loop under profilerkit.profile(...): it times the batches of torch's DataLoader"
        return MissingData("what a sample costs was not recorded", hint)
    # What the step waits is only what the device does not hide of it.
    held_ns = (facts.input.held_ratio or 0.0) * (facts.mean_step_ns or 0.0)
    time_ns = max(held_ns, facts.time_ns(*WAITS)) / batches_per_step(facts)
    running_ratio = min(ratio + (facts.input.queue_ratio or 0.0), 1.0)
    return _Batch(float(samples), time_ns, ratio * time_ns, running_ratio * time_ns, None)


def _finding(
    facts: Facts, batch: _Batch, line: HotLine | None, each_ns: float, size: float | None, saved: Saving
) -> Fired:
    origin, n = "step timers", facts.input.fetches if facts.input else None
    if facts.workers is not None:
        origin, n = ORIGIN, facts.workers.batches
    evidence = partial(facts.evidence, origin=origin, n=n, steps=facts.judged_steps)
    return fired(
        facts,
        bound="input-bound",
        title=f"{format_count(round(batch.samples))} samples of {format_ns(each_ns)} each are fetched one by one",
        why="With so little time for a sample, most of it is Python: one call for each, and joining them "
        f"again.{told_line(line, 'the fetching')}",
        evidence=(
            facts.share_evidence("Input wait, share of the step", *WAITS),
            evidence("Time of a batch", batch.time_ns, "ns"),
            evidence("CPU time of a batch", batch.cpu_ns, "ns"),
            evidence("Samples in a batch", batch.samples, "count"),
            evidence("Time of a sample", each_ns, "ns"),
            evidence("Bytes of a sample", size, "bytes"),
            *line_evidence(facts, "Fetching", line),
        ),
        at_most="medium",
        detail="prep",
        saving=saved,
        fix=Fix(
            text=f"Fetch all {format_count(round(batch.samples))} samples of a batch in one call.",
            code="def __getitems__(self, indices):  # of the data set; collate_fn=lambda batch: batch\n"
            "    return self.data[torch.as_tensor(indices)]",
        ),
        confirm="Time dataset.__getitems__ of one batch against its samples one by one.",
    )
