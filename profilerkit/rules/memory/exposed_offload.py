"""ME008: offloaded state travels in the open."""

from profilerkit.analysis.whatif import saving
from profilerkit.model.finding import Fix
from profilerkit.rules.api import Facts, MissingData, NotApplicable, Passed, Result, Rule, each, fired, no_device
from profilerkit.rules.memory.room import room_of
from profilerkit.units import format_bytes, format_ns, format_ratio

_CODE = "with torch.cuda.stream(copies):\n    buffer.copy_(state, non_blocking=True)"


class ExposedOffload(Rule, frozen=True):
    """Find copies of offloaded state that run alone for {smallest_share} of the step.

    Why it costs: The device waits for weights or optimizer state to arrive from host memory.

    Example:
        state = torch.zeros(1024)
        state.to(device)
    Use instead:
        state = torch.zeros(1024, pin_memory=torch.cuda.is_available())
        with torch.cuda.stream(torch.cuda.Stream()):
            state.to(device, non_blocking=True)
    How it is measured: Copies that no kernel overlaps are summed. The saving assumes that copies overlap all kernels,
        in both directions at once, at {pinned_ratio} of the link. Pinned copies keep the time that they took. For an
        unknown device the link is taken as {assumed_link_gb_per_s} GB/s. Keeping the state on the device is advised
        below {roomy_ratio} of the memory.
    When it is wrong: Copies of batches and results are not offload. State on a disk is limited by the disk, which is
        not measured.
    Sources:
        https://arxiv.org/abs/2101.06840
        https://docs.pytorch.org/tutorials/intermediate/pinmem_nonblock.html
    """

    code = "ME008"
    summary = "CPU-offload copies are not overlapped with compute"

    smallest_share: float = 0.03
    pinned_ratio: float = 0.85  #: ratio of the link that pinned copies reach (measured 55.4 of 63 GB/s on PCIe 5)
    #: PCIe 3 x16, the slowest link still in service, for devices that are not in the table.
    assumed_link_gb_per_s: float = 15.8
    roomy_ratio: float = 0.70  #: of the capacity, below which more of the state would fit on the device

    def check(self, facts: Facts) -> Result:
        if facts.device is None:
            return no_device(facts, "no device events: nothing is offloaded")
        offload = facts.memory_use.offload
        if offload is None:
            return NotApplicable("nothing is offloaded to the host")
        share = facts.share("mem.offload")
        if share < self.smallest_share:
            return Passed(f"offload copies cost {format_ratio(share)} of the step")
        if not offload.to_device_bytes and not offload.to_host_bytes:
            return MissingData("the trace does not say how large the copies are", "record with torch.profiler")
        known = facts.spec.pcie_gb_per_s if facts.spec else None
        rate = (known or self.assumed_link_gb_per_s) * 1e9 * self.pinned_ratio
        moving_ns = max(max(offload.to_device_bytes, offload.to_host_bytes) / rate * 1e9, offload.pinned_ns)
        compute = facts.share("compute.", "mem.recompute")
        expected = max(share - max(moving_ns / (facts.mean_step_ns or 1.0) - compute, 0.0), 0.0)
        if not self.worth_saying(facts, expected):
            return Passed(f"offload copies cost {format_ratio(share)}, and the link allows hardly less")
        time = format_ns(facts.time_ns("mem.offload"))
        both = offload.to_device_bytes + offload.to_host_bytes
        room, origin = room_of(facts), "bytes of the copies"
        steps = []
        if room is not None and room.ratio < self.roomy_ratio:
            needed = f"{format_ratio(room.ratio)} of {format_bytes(room.capacity_bytes)}"
            steps.append(f"Keep more on the device: {needed} is needed.")
        if offload.pageable_ratio > 0.0:
            steps.append(f"Host buffers {format_ratio(offload.pageable_ratio)} pageable → pinned.")
        steps.append("Copy on a stream of its own, one layer ahead of its use.")
        return fired(
            facts,
            bound="memory-bound",
            title=f"Offloaded state holds the device for {time} in {each(facts)}",
            why=f"{format_bytes(both)} per step go to the host and back while nothing is computed.",
            evidence=(
                facts.share_evidence("Offload copies with nothing beside them, share of the step", "mem.offload"),
                facts.evidence("Offloaded bytes to the host, per step", offload.to_host_bytes, "bytes", origin),
                facts.evidence("Offloaded bytes back, per step", offload.to_device_bytes, "bytes", origin),
            ),
            at_most="medium" if facts.spec is not None else "low",
            detail="capacity",
            saving=saving(expected, share),
            fix=Fix(text=" ".join(steps), code=_CODE),
            confirm="The copies must run beside kernels in the next trace.",
        )
