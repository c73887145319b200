"""CP012: one device runs hotter than its neighbours."""

from profilerkit.analysis.surroundings import FEWEST_DEVICES
from profilerkit.rules.api import Evidence, Facts, Fix, MissingData, NotApplicable, Passed, Result, Rule, Source, fired
from profilerkit.units import format_ratio

MORE_POWER_RATIO = 0.05  #: power shown beside the temperature: 5 % between the devices of one node are normal


class HotDevice(Rule, frozen=True):
    """Find a device that is {hotter_c} °C hotter than the median of the others, among three or more.

    Why it costs: A hot device takes more power, and its clock is soon throttled.

    Example:
        $ nvidia-smi --query-gpu=temperature.gpu,power.draw --format=csv
    Use instead:
        $ CUDA_VISIBLE_DEVICES=0,1,3 torchrun --nproc-per-node 3 train.py
    How it is measured: Temperature and power are sampled by NVML, or read from a log, while devices are more than half
        utilised. No saving is given.
    When it is wrong: A device that does more work is expected to be hotter. Slots in one chassis differ by some
        degrees.
    Sources: https://docs.nvidia.com/deploy/nvml-api/api/group__nvmlClocksEventReasons.html
    """

    code = "CP012"
    summary = "One device runs hotter than its neighbours"
    reads_logs = True
    of_any_framework = True

    #: Seven of eight devices of a public log lie within 6 °C of each other, the eighth 22 °C above them (a choice).
    hotter_c: float = 10.0

    def check(self, facts: Facts) -> Result:
        if facts.mode == "cpu":
            return NotApplicable("no device")
        found = facts.surroundings.hottest
        if found is None:
            return MissingData(
                f"the temperatures of fewer than {FEWEST_DEVICES} devices at work were sampled",
                "nvidia-smi --query-gpu=timestamp,index,utilization.gpu,temperature.gpu,power.draw --format=csv -l 1",
            )
        if found.hotter_c < self.hotter_c:
            return Passed(f"no device is more than {max(found.hotter_c, 0.0):.0f} °C hotter than the others")
        more = found.more_power_ratio
        takes_more = more is not None and more >= MORE_POWER_RATIO
        power = f", at {format_ratio(more or 0.0)} more power" if takes_more else ""
        name = f"{found.label[0].upper()}{found.label[1:]}"
        power_mw, others_mw = (None, None) if more is None else (found.power_mw, found.others_power_mw)
        rows: tuple[tuple[str, float | None, str, Source, int], ...] = (
            (f"Temperature of {found.label}, mean at work", found.temperature_c, "°C", "measured", found.n),
            ("Temperature of the others, median", found.others_temperature_c, "°C", "measured", found.others),
            ("Hotter than the others", found.hotter_c, "°C", "derived", found.others),
            (f"Power of {found.label}, mean at work", power_mw, "mW", "measured", found.n),
            ("Power of the others, median", others_mw, "mW", "measured", found.others),
            ("More power than the others", more, "ratio", "derived", found.others),
        )
        return fired(
            facts,
            bound=None,
            title=f"{name} runs {found.hotter_c:.0f} °C hotter than the {found.others} others{power}",
            why="A hot chip needs more power for the same work, and is the first whose clock is held down: the others "
            "then wait for it." + (" It may also have more work." if takes_more else ""),
            evidence=tuple(
                Evidence(label, value, unit, source, "NVML, sampled", n=n) for label, value, unit, source, n in rows
            ),
            at_most="high",
            fix=Fix(
                text=f"Cooling of {found.label}: {found.temperature_c:.0f} → {found.others_temperature_c:.0f} °C, "
                "like the others. Look at its fan, its airflow and its neighbours, or leave it out of the "
                "job."
            ),
            confirm="The temperatures under load must come closer: `nvidia-smi -q -d TEMPERATURE,PERFORMANCE`.",
        )
