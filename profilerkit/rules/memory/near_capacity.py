"""ME003: the device's memory is almost full."""

from profilerkit.rules.api import Evidence, Facts, Fix, MissingData, NotApplicable, Passed, Result, Rule, fired
from profilerkit.units import format_bytes, format_ratio


class NearCapacity(Rule, frozen=True):
    """Find runs that reserve {full_ratio} of the memory at the peak, with {in_use_ratio} of that in use.

    Why it costs: A longer sequence or a little fragmentation ends the run with an out-of-memory error.

    Example:
        layers, x = nn.Sequential(model, model), torch.randn(4, 4)
        y = layers(x)
    Use instead:
        from torch.utils.checkpoint import checkpoint
        layers, x = nn.Sequential(model, model), torch.randn(4, 4)
        y = checkpoint(layers, x, use_reentrant=False)
    How it is measured: The peak comes from memory events of a trace, from samples of the allocator, or from the driver.
        It is a risk: no saving is given.
    When it is wrong: Reserved memory that is not in use is a cache. The driver's number includes other processes and
        the cache, so it is an observation only.
    Sources:
        https://pytorch.org/docs/stable/notes/cuda.html
        https://arxiv.org/abs/1604.06174
    """

    code = "ME003"
    summary = "The device's memory is almost full"
    reads_logs = True

    full_ratio: float = 0.90
    in_use_ratio: float = 0.80

    def check(self, facts: Facts) -> Result:
        memory = facts.memory
        if facts.mode == "cpu" and memory.capacity_bytes is None:
            return NotApplicable("no device")
        on_device, idle = _reserved(facts)
        used = on_device if on_device is not None else memory.peak_device_used_bytes
        if used is None or not memory.capacity_bytes:
            return MissingData("the device's memory was not recorded", "torch.profiler: profile_memory=True")
        ratio = used / memory.capacity_bytes
        if ratio < self.full_ratio:
            return Passed(f"at most {format_ratio(ratio)} of the device's memory is taken")
        if on_device is not None and 1.0 - idle < self.in_use_ratio:
            return Passed(f"{format_ratio(idle)} of the reserved memory is not in use at the peak")
        capacity = memory.capacity_bytes
        by_allocator = on_device is not None
        fix = Fix(text="Recompute activations, or accumulate smaller batches; then 16-bit activations or sharding.")
        why = "A longer sequence or a larger batch than any in these steps would not fit."
        if not by_allocator:
            why = "How much of it is cached was not recorded: use `profile_memory=True`."
        room = f"{format_ratio(used / capacity)} full: {format_bytes(capacity - used)} are left"
        if used > capacity:
            room = f"full: {format_bytes(used)} are taken of {format_bytes(capacity)}"
            why = "That is more than there is: the driver lends memory of the host, or one of the two numbers is wrong."
        origin = "torch's allocator" if by_allocator else "NVML, all processes"
        return fired(
            facts,
            bound=None,
            title=f"Device memory is {room}",
            why=why,
            evidence=(
                facts.evidence(
                    "Peak reserved memory" if by_allocator else "Peak use of the device", used, "bytes", origin, n=None
                ),
                Evidence("Capacity", capacity, "bytes", "measured", "device properties"),
                Evidence("Peak of the capacity", used / capacity, "ratio", "derived", origin),
                Evidence("Left at the peak", max(capacity - used, 0), "bytes", "derived", origin),
            ),
            at_most="high" if by_allocator and used <= capacity else "low",
            fix=fix if by_allocator else None,
            confirm=f"The peak must fall below {format_ratio(self.full_ratio)} of the capacity.",
        )


def _reserved(facts: Facts) -> tuple[int | None, float]:
    """Peak of what the allocator took from the device, ``None`` when not recorded, and the part idle at the peak."""
    memory, sampled = facts.memory, facts.memory_use.allocator
    if memory.place == "device" and memory.peak_reserved_bytes is not None:
        return memory.peak_reserved_bytes, memory.fragmentation_ratio or 0.0
    if sampled is None or not sampled.reserved_bytes or sampled.allocated_bytes is None:
        return None, 0.0
    return sampled.reserved_bytes, max(1.0 - sampled.allocated_bytes / sampled.reserved_bytes, 0.0)
