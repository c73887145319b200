"""CP011: the batch is too small to fill the device."""

from profilerkit.analysis.whatif import larger_batch, peak_memory, room
from profilerkit.model import revise
from profilerkit.model.finding import Fix
from profilerkit.model.step import WAITS
from profilerkit.rules.api import (
    Facts,
    Fired,
    MissingData,
    NotApplicable,
    Passed,
    Result,
    Rule,
    finding_for,
    may_train,
    no_device,
    unsure,
)
from profilerkit.rules.parts import dividing_reads
from profilerkit.units import format_bytes, format_count, format_ratio

_IDLE = ("compute.small", "over.")


class SmallBatch(Rule, frozen=True):
    """Find steps with {smallest_share} in small kernels and host work, and memory use below {memory_ratio}.

    Why it costs: Small kernels keep most of the chip idle, and the host's cost is paid for few samples.

    Example:
        loader = DataLoader(dataset, batch_size=1)
    Use instead:
        loader = DataLoader(dataset, batch_size=8)
    How it is measured: The wait for data must be below {input_share} of the step. The gain is in samples per second:
        batch / max(host, device), where only the device's part grows. Nothing is said where reads of values divide the
        step: what is issued may grow with the batch.
    When it is wrong: A larger batch may need another learning rate, and can converge more slowly per sample. Its memory
        is estimated from the peak.
    Sources: https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html
    """

    code = "CP011"
    summary = "The batch is too small to fill the device"

    smallest_share: float = 0.30
    memory_ratio: float = 0.60
    input_share: float = 0.05

    def check(self, facts: Facts) -> Result:
        if facts.device is None:
            return no_device(facts, "no device to fill")
        if facts.cold is not None and facts.cold.dominates:
            return NotApplicable("the window is dominated by first-use work")
        share = facts.share(*_IDLE) - facts.operator_share
        if share < self.smallest_share:
            return Passed(f"small kernels and host work take {format_ratio(share)} of the step")
        if reads := dividing_reads(facts):
            return Passed(f"{format_count(reads)} reads of values in a step: what it issues may grow with the batch")
        waits = facts.share(*WAITS)
        if waits >= self.input_share:
            return Passed(f"waiting for data takes {format_ratio(waits)} of the step: a larger batch waits longer")
        peak, capacity = peak_memory(facts), facts.memory.capacity_bytes
        if peak is None or not capacity:
            why = "the peak of the device's memory was not recorded"
            return MissingData(why, "torch.profiler: profile_memory=True")
        if peak >= self.memory_ratio * capacity:
            return Passed(f"{format_ratio(peak / capacity)} of the device's memory is in use")
        found = larger_batch(facts)
        if found is None:
            return Passed(f"memory has room for {room(facts) or 0.0:.1f} times the batch, which would gain little")
        times, gain = found
        # The same noise gates it as a saving of the time for each sample.
        gained = 1.0 - 1.0 / (1.0 + gain.expected)
        if not self.worth_saying(facts, gained):
            return unsure("a larger batch gains little per sample", gained)
        size = facts.loader.batch_size if facts.loader else None
        batch = f"batch_size {size} → {size * times}" if size else f"Batch × {times}"
        label = "Peak of the device's memory"
        sharded = " With sharding, shard less in exchange." if (facts.world_size or 1) > 1 else ""
        finding = finding_for(
            facts,
            bound=None,
            title=f"Small kernels and host work take {format_ratio(share)} of the step, with memory to spare",
            why="What the host issues and the smallest kernels take the same time for a larger batch: it adds samples "
            "faster than time.",
            evidence=(
                revise(facts.share_evidence("Small kernels and host work", *_IDLE), value=share),
                facts.share_evidence("Small kernels", "compute.small"),
                revise(facts.share_evidence("Host's own work", "over."), value=share - facts.share("compute.small")),
                facts.evidence(label, peak / capacity, "ratio", f"of {format_bytes(capacity)}", n=None),
            ),
            at_most="medium",
            detail="batch",
            fix=Fix(text=f"{batch}{', and adapt the learning rate' if may_train(facts) else ''}.{sharded}"),
            confirm="Samples per second must rise; the step itself gets longer, not shorter.",
        )
        return Fired((revise(finding, throughput=gain),))
