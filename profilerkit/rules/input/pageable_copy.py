"""IN009: batches are copied from pageable memory."""

from profilerkit.rules.api import Facts, Fix, Passed, Result, Rule, SettingChange, each, fired, no_device, saving
from profilerkit.units import format_ns, format_ratio

_ORIGIN = "Memcpy HtoD (Pageable -> Device)"
_PIN = SettingChange("pin_memory", False, True)
_NOT_BLOCKING = SettingChange("non_blocking", False, True)


class PageableCopy(Rule, frozen=True):
    """Find batch copies from pageable memory below {slow_ratio} of the link's rate.

    Why it costs: The driver first copies pageable memory to a staging buffer, and the host waits for the copy.

    Example:
        loader = DataLoader(dataset, batch_size=4)
        for x, y in loader:
            x = x.to(device)
    Use instead:
        pinned = torch.cuda.is_available()
        loader = DataLoader(dataset, batch_size=4, pin_memory=pinned)
        for x, y in loader:
            x = x.to(device, non_blocking=True)
    How it is measured: The bytes and times of pageable copies of 64 KiB and more give the rate. The saving assumes the
        rate of the run's own pinned copies. Without any it assumes {pinned_ratio} of the link, at most
        {most_times_faster} times as fast as now. For an unknown device the link is taken as {assumed_link_gb_per_s}
        GB/s.
    When it is wrong: Small copies are normal. Systems with a coherent link between CPU and GPU have other rates.
        non_blocking without pinned memory changes nothing.
    Sources:
        https://docs.pytorch.org/tutorials/intermediate/pinmem_nonblock.html
        https://docs.nvidia.com/cuda/cuda-c-best-practices-guide/index.html
    """

    code = "IN009"
    summary = "Batches are copied from pageable memory"

    slow_ratio: float = 0.5  #: ratio of the link below which a copy counts as slow
    pinned_ratio: float = 0.85  #: ratio of the link that pinned copies reach (measured 55.4 of 63 GB/s on PCIe 5)
    #: Pinned copies took 53 and 66 % less time than pageable ones in two recorded pairs, whatever the link could do:
    #: they were 2.1 and 2.9 times as fast.
    most_times_faster: float = 2.5
    #: PCIe 3 x16, the slowest link still in service, for devices that are not in the table.
    assumed_link_gb_per_s: float = 15.8

    def pinned_bytes_per_ns(self, facts: Facts) -> float:
        """Return what a pinned copy moves, bytes per ns: as recorded, else by the link, which a host need not reach."""
        for copy in facts.host_copies:
            if copy.direction == "to device" and copy.memory == "pinned" and copy.bytes_per_s:
                return copy.bytes_per_s * 1e-9
        known = facts.spec.pcie_gb_per_s if facts.spec else None
        link = self.pinned_ratio * (known or self.assumed_link_gb_per_s)
        pageable = facts.copies.bytes_per_s * 1e-9 if facts.copies is not None else 0.0
        return min(link, self.most_times_faster * pageable) if pageable else link

    def check(self, facts: Facts) -> Result:
        if facts.copies is None:
            return no_device(facts, "no device events: nothing is copied to a device")
        if facts.copies.per_step == 0:
            return Passed("no batch is copied from pageable memory")
        known = facts.spec.pcie_gb_per_s if facts.spec else None
        link = (known or self.assumed_link_gb_per_s) * 1e9
        rate = facts.copies.bytes_per_s
        if rate >= self.slow_ratio * link:
            return Passed(f"pageable copies reach {format_ratio(rate / link)} of the link")
        step = facts.mean_step_ns or 1.0
        bound = facts.copies.exposed_ns / step
        pinned_ns = facts.copies.bytes_per_step / self.pinned_bytes_per_ns(facts)
        expected = max(bound - pinned_ns / step, 0.0)
        if not self.worth_saying(facts, expected):
            return Passed(f"pageable copies cost {format_ratio(bound)} of the step")
        return fired(
            facts,
            bound="input-bound",
            title=f"Pageable copies cost {format_ns(bound * step)} in {each(facts)}",
            why="A copy from pageable memory goes through a staging buffer and holds the launching thread meanwhile.",
            evidence=(
                facts.evidence("Pageable bytes per step", facts.copies.bytes_per_step, "bytes", _ORIGIN),
                facts.evidence("Achieved rate", rate / 1e9, "GB/s", _ORIGIN),
                facts.evidence("Device waits for them, share of the step", bound, "ratio", "its streams"),
            ),
            at_most="high" if known else "medium",
            detail="h2d",
            saving=saving(expected, bound),
            fix=Fix(
                text=f"{_PIN.text}, and copy with non_blocking=True.",
                code='DataLoader(..., pin_memory=True)\nbatch = batch.to("cuda", non_blocking=True)',
                changes=(_PIN, _NOT_BLOCKING),
            ),
            confirm="The copies must read Memcpy HtoD (Pinned -> Device) in the next trace.",
        )
