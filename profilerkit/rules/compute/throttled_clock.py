"""CP009: the device runs below its normal clock."""

from typing import Literal

from profilerkit.analysis.surroundings import Throttling
from profilerkit.rules.api import Facts, Fix, MissingData, NotApplicable, Passed, Result, Rule, Saving, fired, saving
from profilerkit.units import format_ratio

#: The power limit holds this rank's clock down and no other's, or somebody lowered it.
_Limited = Literal["alone", "lowered"]


class ThrottledClock(Rule, frozen=True):
    """Find a GPU that slows down for {slowed_ratio} of its busy time, or runs below {low_clock_ratio} of its clock.

    Why it costs: Matrix math follows the clock. One slow device holds up every rank.

    Example:
        $ nvidia-smi --power-limit 200
    Use instead:
        $ nvidia-smi --query-gpu=clocks_event_reasons.active,power.limit --format=csv
    How it is measured: NVML's reasons and clocks are sampled while the device is more than half utilised. A clock below
        the maximum counts where the peers are not limited, or the power limit is below {low_limit_ratio} of the
        default. The saving is that of matrix math at the clock of the other samples or ranks.
    When it is wrong: A power limit alone is normal at full load on H100 and B200. So is a difference of 5 % between the
        devices of one node. Samples cover the run, the share covers the traced steps.
    Sources: https://docs.nvidia.com/deploy/nvml-api/api/group__nvmlClocksEventReasons.html
    """

    code = "CP009"
    summary = "The device runs below its normal clock"
    reads_logs = True

    slowed_ratio: float = 0.05
    low_clock_ratio: float = 0.9
    low_limit_ratio: float = 0.9  #: of the default limit, below which somebody lowered it (a choice: as of the clock)

    def check(self, facts: Facts) -> Result:
        if facts.mode == "cpu":
            return NotApplicable("no device")
        found = facts.throttling
        if found is None:
            return MissingData("the clock of a working device was not sampled", "profilerkit.profile(..., nvml=True)")
        limited = self._limited(found)
        if found.slowed_ratio <= self.slowed_ratio and limited is None:
            if found.max_clock_mhz and (found.capped_ratio or 0.0) > self.slowed_ratio:
                clocks = f"{found.clock_mhz:.0f} of {found.max_clock_mhz:.0f} MHz"
                return Passed(f"the power limit holds the clock at {clocks}, which is normal at full load")
            return Passed(f"the clock was held down {format_ratio(found.slowed_ratio)} of the time at work")
        # Of another device than the judged rank's nobody knows what it costs the step, nor what another limit gives.
        is_known = facts.trace_read and found.device is None and limited != "lowered"
        value = _saving(facts, found) if is_known else None
        if value is not None and not self.worth_saying(facts, value.expected):
            cost = format_ratio(value.expected)
            return Passed(f"the clock is {found.clock_mhz:.0f} MHz under load, which costs {cost} of the step")
        normal = found.max_clock_mhz if limited == "lowered" else _normal_clock(found)
        cause, what = _cause(found, limited)
        clock = f"{found.clock_mhz:.0f} MHz" if normal is None else f"{found.clock_mhz:.0f} → {normal:.0f} MHz"
        ratio = found.capped_ratio if limited else found.slowed_ratio
        held_down = "Time at work with the clock held down"
        whose = "the device's" if found.device is None else f"{found.device}'s"
        return fired(
            facts,
            bound="compute-bound" if value is not None else None,
            title=f"{cause} holds {whose} clock down {format_ratio(ratio or 0.0)} of the time at work",
            why=f"Under load the multiprocessors run at {found.clock_mhz:.0f} MHz on average"
            + (f", not at {normal:.0f} MHz." if normal else ".")
            + (" At full load the default limit may hold them down too." if limited == "lowered" else ""),
            evidence=(
                facts.evidence(held_down, ratio, "ratio", "NVML, reasons for the clock", n=found.n),
                facts.evidence("Clock at work", found.clock_mhz, "MHz", "NVML", n=found.n, behind=("gpu.sm_clock",)),
            ),
            at_most="high",
            detail="clock",
            saving=value,
            fix=Fix(text=f"{what}, so that the clock comes back: {clock}."),
            confirm="`nvidia-smi -q -d PERFORMANCE` must show no active reason for the clock while the run computes.",
        )

    def _limited(self, found: Throttling) -> _Limited | None:
        """Why the power limit holds the clock down for no other reason than full load; ``None`` where it does not."""
        others, default = found.others_capped_ratio, found.power_limit_default_mw
        is_low = bool(found.max_clock_mhz) and found.clock_mhz < self.low_clock_ratio * (found.max_clock_mhz or 0.0)
        if not is_low or (found.capped_ratio or 0.0) <= self.slowed_ratio:
            return None
        if others is not None and others <= self.slowed_ratio:
            return "alone"
        is_lowered = default and found.power_limit_mw and found.power_limit_mw < self.low_limit_ratio * default
        return "lowered" if is_lowered and found.slowed_ratio <= self.slowed_ratio else None


def _normal_clock(found: Throttling) -> float | None:
    """Return the clock that the device would have: its own without a reason or the other ranks', else the highest."""
    known = [clock for clock in (found.other_clock_mhz, found.free_clock_mhz) if clock]
    return max(known) if known else found.max_clock_mhz


def _saving(facts: Facts, found: Throttling) -> Saving | None:
    """Return what the normal clock would save; ``None`` where no clock is known to compare with."""
    normal = _normal_clock(found)
    if not normal:
        return None
    math = facts.share("compute.math")
    expected = math * (1.0 - found.clock_mhz / normal)
    bound = math * (1.0 - found.clock_mhz / max(normal, found.max_clock_mhz or 0.0))
    return saving(expected, bound)


def _cause(found: Throttling, limited: _Limited | None) -> tuple[str, str]:
    limit = f"{(found.power_limit_mw or 0.0) / 1e3:.0f} W"
    if limited == "lowered":
        watts = f"{(found.power_limit_default_mw or 0.0) / 1e3:.0f}"
        raised = f"Raise the power limit {limit} → {watts} W (`nvidia-smi -pl {watts}`, by an administrator)"
        return f"A power limit of {limit}, where {watts} W is the default,", raised
    if limited:
        of = f" of {limit}" if found.power_limit_mw else ""
        return "The power limit", f"Raise the power limit{of} to that of the other devices, or move this rank"
    if found.brake_ratio > 0 and found.brake_ratio >= found.thermal_ratio:
        return "The power supply", "Check the power supply of the host, or move the job"
    if found.thermal_ratio > 0:
        return "Heat", "Check the cooling of this device, or move the job"
    return "The hardware", "Check cooling and power supply of this device, or move the job"
