"""CO006: the model is sharded more than memory requires, and gathered twice a step for it."""

from collections.abc import Sequence

from profilerkit.analysis.communication.table import Traffic
from profilerkit.analysis.communication.whatif import dimension, exposed_time, less, rows
from profilerkit.analysis.device.formulas import BY_NAME
from profilerkit.rules.api import Facts, Fix, MissingData, NotApplicable, Passed, Result, Rule, each
from profilerkit.rules.comm.transfers import evidence, transfer_saving, transfers_fired, untold
from profilerkit.units import format_bytes, format_ratio


class OvershardedModel(Rule, frozen=True):
    """Find sharded models that gather {gathered_ratio} times what they scatter, with {free_ratio} of the memory free.

    Why it costs: Dropping parameters after forward means gathering them again for backward: three transfers instead of
        two.

    Example:
        from torch.distributed.fsdp import fully_shard
        fully_shard(model, reshard_after_forward=True)
    Use instead:
        from torch.distributed.fsdp import fully_shard
        fully_shard(model, reshard_after_forward=False)
    How it is measured: Elements of all-gathers are compared with those of reduce-scatters: ZeRO stage 3 moves the
        parameters three times a step, other stages twice. The saving is the exposed part of the second gathering.
    When it is wrong: The peak is that of the recorded steps: longer sequences need more. Kept parameters raise it.
        Gathers that are overlapped save nothing.
    Sources: https://arxiv.org/abs/1910.02054
    """

    code = "CO006"
    summary = "The model is sharded more than memory requires"

    gathered_ratio: float = 1.5
    free_ratio: float = 0.40

    def check(self, facts: Facts) -> Result:
        if (unable := untold(facts)) is not None:
            return unable
        sharded = rows(facts, lambda row: dimension(facts, row) == "sharded data")
        gathers = [row for row in sharded if row.kind == "all_gather"]
        scatters = [row for row in sharded if row.kind == "reduce_scatter"]
        if not gathers or not scatters:
            return NotApplicable("no sharded parameters were seen: all-gather and reduce-scatter of one kind of group")
        gathered, scattered = _elements(gathers), _elements(scatters)
        if not gathered or not scattered:
            return MissingData("the sizes of the collectives were not recorded", "torch.profiler: record_shapes=True")
        if gathered < self.gathered_ratio * scattered:
            return Passed(f"{gathered / scattered:.1f} × as much is gathered as scattered: parameters are kept")
        memory = facts.memory
        used = memory.peak_reserved_bytes if memory.place == "device" else None
        used = used if used is not None else memory.peak_device_used_bytes
        if used is None or not memory.capacity_bytes:
            return MissingData("the device's memory was not recorded", "torch.profiler: profile_memory=True")
        free = 1.0 - used / memory.capacity_bytes
        if free < self.free_ratio:
            return Passed(f"{format_ratio(max(free, 0.0))} of the memory is free: sharding is needed")
        kept = sum(row.bytes_per_step or 0.0 for row in gathers) * scattered / gathered
        if used + kept > memory.capacity_bytes * (1.0 - self.free_ratio / 2):
            return Passed(f"the parameters, {format_bytes(kept)}, would leave too little of the free memory")
        second_ns = facts.collective_work.second_gathers_exposed_ns if facts.collective_work else 0.0
        expected = exposed_time(facts, second_ns)
        bound = max(less(facts, gathers, 1.0 - scattered / gathered)[1], expected)
        if not self.worth_saying(facts, expected):
            return Passed("the second gathering is overlapped, or takes little of the step")
        return transfers_fired(
            facts,
            title=f"Parameters are gathered twice in {each(facts)}, with {format_ratio(free)} of the memory free",
            why=f"{gathered / scattered:.1f} × as much is gathered as scattered: each layer's parameters are dropped "
            f"after the forward pass. All of them take {format_bytes(kept)}.",
            evidence=(
                evidence(facts, "Gathered / scattered elements", gathered / scattered, "ratio", "collectives' sizes"),
                evidence(facts, "Memory free at the peak", free, "ratio", "peak and capacity", "measured"),
                evidence(facts, "Parameters that would be kept", kept, "bytes", "all-gathers of a step"),
            ),
            sure="medium",
            detail="bandwidth",
            saving=transfer_saving(facts, expected, bound),
            fix=Fix(
                text="Keep the parameters after the forward pass: reshard_after_forward True → False (FSDP1: "
                f"SHARD_GRAD_OP; DeepSpeed: stage 3 → 2). The peak grows by up to {format_bytes(kept)}.",
                code="fully_shard(model, reshard_after_forward=False)",
            ),
            confirm="as much must be gathered as scattered, and the peak must stay below the capacity.",
        )


def _elements(chosen: Sequence[Traffic]) -> float | None:
    """Elements moved per step; ``None`` where a size or a type is not known."""
    total = 0.0
    for row in chosen:
        kind = BY_NAME.get(row.dtype or "")
        if kind is None or row.bytes_per_step is None:
            return None
        total += row.bytes_per_step / kind.bytes
    return total
