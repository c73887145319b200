"""ME006: the job would run as well on less hardware."""

import math

from profilerkit.analysis.communication.table import TRANSFER
from profilerkit.analysis.whatif import host_is_full, overlapped, workers_now
from profilerkit.rules.api import WAITS, Facts, Fix, MissingData, NotApplicable, Passed, Result, Rule, fired
from profilerkit.rules.memory.room import Room, room_of
from profilerkit.units import format_bytes, format_ratio

_HALF_SPEED = 2.0  #: the smaller device that is tried: half the speed


class OversizedHardware(Rule, frozen=True):
    """Find devices below {low_utilization_ratio} utilisation, with less than {small_peak_ratio} of the memory used.

    Why it costs: You pay for device-hours that the job does not need.

    Example:
        $ python train.py
    Use instead:
        $ CUDA_VISIBLE_DEVICES=MIG-7f2d1c34-0000-0000 python train.py
    How it is measured: Utilisation is the 95th percentile of {fewest_samples} samples or more. On a device of half the
        speed the step may take {longest_ratio} times as long. Large kernels count as twice as long there, the rest as
        unchanged. The fix saves money, not time.
    When it is wrong: A device that waits for data, the host or communication is not too large. The rule is silent while
        a fix can save {mendable_share} of the step.
    Sources: https://docs.nvidia.com/datacenter/tesla/mig-user-guide/index.html
    """

    code = "ME006"
    summary = "The job would run as well on less hardware"

    #: SageMaker's rule for low utilisation asks the same quantile.
    low_utilization_ratio: float = 0.50
    small_peak_ratio: float = 0.40
    #: Share of the step from which a wait that can be mended is what keeps the device idle (a choice).
    mendable_share: float = 0.10
    filled_ratio: float = 0.80  #: utilisation that fewer ranks, or a part of the device, should not exceed (a choice)
    longest_ratio: float = 1.10  #: "About as long", in steps of now (a choice)
    fewest_samples: int = 30  #: half a minute of samples (a choice)

    def check(self, facts: Facts) -> Result:
        if facts.mode == "cpu":
            return NotApplicable("no device")
        used, samples = facts.surroundings.utilization_p95, facts.surroundings.utilization_samples
        room = room_of(facts)
        if used is None or samples < self.fewest_samples:
            reason = "the device's utilisation was not sampled" if used is None else f"{samples} samples are too few"
            hint = "let the run go on for half a minute with NVML: profilerkit.profile(..., nvml=True)"
            return MissingData(reason, hint)
        if room is None:
            return MissingData("the device's memory was not recorded", "profilerkit.profile(..., nvml=True)")
        if used >= self.low_utilization_ratio:
            return Passed(f"95 of 100 samples stay below {format_ratio(used)} utilisation")
        if room.ratio >= self.small_peak_ratio:
            return Passed(f"{format_ratio(room.ratio)} of the device's memory is needed")
        if not facts.trace_read:
            return MissingData("why the device idles is only seen in a trace", "profilerkit.profile(..., deep=True)")
        waits, exposed = facts.share(*WAITS), facts.share(*TRANSFER)
        if waits >= self.mendable_share and not host_is_full(facts):
            return Passed(f"the device waits {format_ratio(waits)} of the step for data: fix that first")
        if overlapped(facts, exposed) >= self.mendable_share:
            return Passed(f"{format_ratio(exposed)} of the step is communication that could overlap: fix that first")
        overhead = facts.family("overhead")
        if overhead >= self.mendable_share:
            return Passed(f"the device waits {format_ratio(overhead)} of the step for the host: fix that first")
        slower = _slowed(facts, _HALF_SPEED)
        if slower > self.longest_ratio:
            return Passed(f"on a device of half the speed the step would take {slower:.2f} times as long")
        in_line = 1.0 + (_HALF_SPEED - 1.0) * facts.share("compute.", "mem.recompute")
        label, behind = "Utilisation, 95th percentile", ("gpu.utilization",)
        return fired(
            facts,
            bound=None,
            title=f"The device is used below {format_ratio(used)}, and {format_ratio(room.ratio)} of its memory",
            why=f"On a device of half the speed the step would take {slower:.2f} times as long. It would take "
            f"{in_line:.2f} times as long if nothing ran beside the waiting.",
            evidence=(facts.evidence(label, used, "ratio", "NVML", n=samples, behind=behind), room.evidence(facts)),
            at_most="medium",
            fix=Fix(text=self._smaller(facts, used, room)),
            confirm="The step must take as long as before.",
        )

    def _smaller(self, facts: Facts, used: float, room: Room) -> str:
        """Return what would do, by utilisation and memory."""
        memory = f"memory {format_bytes(room.capacity_bytes)} → {format_bytes(room.needed_bytes / self.filled_ratio)}"
        ranks, smaller = facts.world_size or 1, f"{memory}: a smaller device, or a MIG slice of this one."
        fewer = max(math.ceil(ranks * max(used, room.ratio) / self.filled_ratio), 1)
        while fewer < ranks and _slowed(facts, ranks / fewer) > self.longest_ratio:
            fewer += 1
        if fewer >= ranks:
            return f"Device {smaller}"
        return f"Ranks {ranks} → {fewer} with the same batch in all; or device {smaller}"


def _slowed(facts: Facts, times: float) -> float:
    """Return the step, in steps of now, if the larger kernels took ``times`` as long; at least 1.

    Small kernels are all latency. Workers make batches, and the host issues, while the device computes: the longer
    kernels fill these waits first. A loader without workers makes none meanwhile.
    """
    large = max(facts.share("compute.", "mem.recompute") - facts.share("compute.small"), 0.0)
    filled = facts.family("overhead") + (facts.share(*WAITS) if workers_now(facts) else 0.0)
    return max(1.0 + (times - 1.0) * large - filled, 1.0)
