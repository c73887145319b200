"""CP009 (R22): the device runs below its normal clock."""

from dataclasses import dataclass
from typing import ClassVar

from profilerkit.analysis.facts import Facts
from profilerkit.analysis.throttling import Throttling
from profilerkit.analysis.whatif import saving
from profilerkit.model.finding import Evidence, Finding, Fix, Saving
from profilerkit.rules.rule import Fired, MissingData, NotApplicable, Passed, Result, Rule, finding_for
from profilerkit.units import format_ratio


@dataclass(frozen=True)
class ThrottledClock(Rule):
    """Clock, thermal or power throttle (R22).

    Claim: The chip runs below its normal clock.
    Evidence: NVML's reasons for a lower clock (hardware slowdown, heat, power brake) and the clock of the
        multiprocessors, in the samples of a device that is more than half utilised.
    Threshold: Reasons in more than 5 % of that time; or a clock below 0.9 of the maximum under the power limit, on a
        rank whose peers are not limited.
    Fix: Cooling, power supply or power limit of this device, or another one.
    Saving: Bound: 1 - clock / maximum, of the share of matrix math; kernels that move memory do not follow the clock.
        Expected: the same against the clock of the samples without a reason, or of the other ranks.
    Traps: A power limit alone is normal at full load on H100 and B200, and so are 5 % between the devices of one node.
        The samples are of the whole run, the share is of the traced steps.
    Confidence: High.
    """

    code: ClassVar[str] = "CP009"
    name: ClassVar[str] = "throttled_clock"
    family: ClassVar[str] = "compute"
    summary: ClassVar[str] = "The device runs below its normal clock"
    reads_logs: ClassVar[bool] = True

    slowed_ratio: float = 0.05
    low_clock_ratio: float = 0.9

    def check(self, facts: Facts) -> Result:
        """Fires when the clock was held down for longer than ``slowed_ratio`` of the time at work."""
        if facts.mode == "cpu":
            return NotApplicable("no device")
        found = facts.throttling
        if found is None:
            return MissingData("the clock of a working device was not sampled", "profilerkit.profile(..., nvml=True)")
        limited = self._is_limited_alone(found)
        if found.slowed_ratio <= self.slowed_ratio and not limited:
            return Passed(f"the clock was held down {format_ratio(found.slowed_ratio)} of the time at work")
        # Of another device than the judged rank's nobody knows what it costs the step.
        value = _saving(facts, found) if facts.trace_read and found.device is None else None
        if value is not None and not self.worth_saying(facts, value.expected):
            cost = format_ratio(value.expected)
            return Passed(f"the clock is {found.clock_mhz:.0f} MHz under load, which costs {cost} of the step")
        return Fired((_finding(facts, found, value, limited=limited),))

    def _is_limited_alone(self, found: Throttling) -> bool:
        """Whether the power limit holds this rank's clock down and no other's."""
        if found.capped_ratio is None or found.others_capped_ratio is None or not found.max_clock_mhz:
            return False
        alone = found.capped_ratio > self.slowed_ratio >= found.others_capped_ratio
        return alone and found.clock_mhz < self.low_clock_ratio * found.max_clock_mhz


def _normal_clock(found: Throttling) -> float | None:
    """The clock that the device would have: its own without a reason or the other ranks', else the highest."""
    known = [clock for clock in (found.other_clock_mhz, found.free_clock_mhz) if clock]
    return max(known) if known else found.max_clock_mhz


def _saving(facts: Facts, found: Throttling) -> Saving | None:
    """What the normal clock would save; ``None`` where no clock is known to compare with."""
    normal = _normal_clock(found)
    if not normal:
        return None
    math = facts.share("compute.math")
    expected = math * (1.0 - found.clock_mhz / normal)
    bound = math * (1.0 - found.clock_mhz / max(normal, found.max_clock_mhz or 0.0))
    return saving(expected, bound)


def _finding(facts: Facts, found: Throttling, value: Saving | None, *, limited: bool) -> Finding:
    normal = _normal_clock(found)
    cause, what = _cause(found, limited=limited)
    clock = f"{found.clock_mhz:.0f} MHz" if normal is None else f"{found.clock_mhz:.0f} → {normal:.0f} MHz"
    ratio = found.capped_ratio if limited else found.slowed_ratio
    whose = "the device's" if found.device is None else f"{found.device}'s"
    return finding_for(
        facts,
        bound="compute-bound" if value is not None else None,
        title=f"{cause} holds {whose} clock down {format_ratio(ratio or 0.0)} of the time at work",
        why=f"Under load the multiprocessors run at {found.clock_mhz:.0f} MHz on average"
        + (f", not at {normal:.0f} MHz." if normal else "."),
        evidence=(
            Evidence(
                label="Time at work with the clock held down",
                value=ratio,
                unit="ratio",
                source="measured",
                origin="NVML, reasons for the clock",
                n=found.n,
                rank=facts.rank.rank,
            ),
            Evidence(
                label="Clock at work",
                value=found.clock_mhz,
                unit="MHz",
                source="measured",
                origin="NVML",
                n=found.n,
                rank=facts.rank.rank,
                behind=("gpu.sm_clock",),
            ),
        ),
        at_most="high",
        detail="clock",
        saving=value,
        fix=Fix(text=f"{what}, so that the clock comes back: {clock}."),
        confirm="`nvidia-smi -q -d PERFORMANCE` must show no active reason for the clock while the run computes.",
    )


def _cause(found: Throttling, *, limited: bool) -> tuple[str, str]:
    """What holds the clock down, and what to do about it."""
    if limited:
        limit = f" of {found.power_limit_mw / 1e3:.0f} W" if found.power_limit_mw else ""
        return "The power limit", f"Raise the power limit{limit} to that of the other devices, or move this rank"
    if found.brake_ratio > 0 and found.brake_ratio >= found.thermal_ratio:
        return "The power supply", "Check the power supply of the host, or move the job"
    if found.thermal_ratio > 0:
        return "Heat", "Check the cooling of this device, or move the job"
    return "The hardware", "Check cooling and power supply of this device, or move the job"
