"""CP008: the device is occupied, not used."""

from profilerkit.model.finding import Evidence, Source
from profilerkit.model.step import Part
from profilerkit.rules.api import Facts, MissingData, NotApplicable, Passed, Result, Rule, fired, part_words
from profilerkit.units import format_ratio

_USEFUL = ("compute.math", "compute.membw", "compute.other")


class HollowUtilisation(Rule, frozen=True):
    """Find devices with {busy_ratio} utilisation and little useful work.

    Why it costs: Utilisation counts time with any kernel, even one that uses a corner of the chip or waits.

    Example:
        $ nvidia-smi --query-gpu=utilization.gpu --format=csv
    Use instead:
        $ profilerkit run -- train.py
    How it is measured: One of four signs must hold. Useful kernels take less than {useful_share} of the step. MFU is
        below {low_mfu}. Tensor cores are active below {low_tensor_ratio} with memory below {low_dram_ratio}. Power is
        below {low_power_ratio} of its limit. No saving is given: small kernels, memory traffic and communication have
        their own rules.
    When it is wrong: MFU uses dense peaks, in the type that most of the step computes in. A collective that waits for
        its peers reads as 100 %.
    Sources: https://docs.nvidia.com/deploy/nvml-api/api/group__nvmlClocksEventReasons.html
    """

    code = "CP008"
    summary = "Utilisation looks full, but little of it is useful work"

    busy_ratio: float = 0.90
    useful_share: float = 0.50
    low_mfu: float = 0.20
    low_tensor_ratio: float = 0.20
    low_dram_ratio: float = 0.50
    low_power_ratio: float = 0.60

    def check(self, facts: Facts) -> Result:
        if facts.mode == "cpu":
            return NotApplicable("no device")
        sampled = facts.series("gpu.utilization")
        if facts.device is None:
            return MissingData("no device events were recorded", "ProfilerActivity.CUDA")
        utilisation = sampled.mean if sampled else facts.device.busy_ratio
        useful = facts.share(*_USEFUL)
        if utilisation < self.busy_ratio:
            return Passed(f"the device is busy {format_ratio(utilisation)} of the time: nothing is hidden")
        low = []

        def add(words: str, label: str, value: float, source: Source, origin: str) -> None:
            low.append((f"{words} at {format_ratio(value)}", Evidence(label, value, "ratio", source, origin)))

        mfu = facts.compute.mfu if facts.compute else None
        if mfu is not None and mfu < self.low_mfu:
            add("MFU", "MFU", mfu, "derived", "recorded shapes and dense peaks")
        tensor, dram = facts.series("gpu.tensor_active"), facts.series("gpu.dram_active")
        quiet = tensor is not None and dram is not None and dram.mean < self.low_dram_ratio
        if tensor is not None and quiet and tensor.mean < self.low_tensor_ratio:
            add("tensor cores active", "Tensor cores active", tensor.mean, "measured", "NVML, GPM")
        clock = facts.throttling
        if clock is not None and clock.power_mw is not None and clock.power_limit_mw:
            ratio = clock.power_mw / clock.power_limit_mw
            if ratio < self.low_power_ratio:
                add("power of its limit", "Power of its limit", ratio, "measured", "NVML")
        if useful >= self.useful_share and not low:
            return Passed(f"useful kernels take {format_ratio(useful)} of the step")
        is_filled = useful < self.useful_share
        useful_parts = _USEFUL if is_filled else ("compute.math",)
        others = [part for part in facts.parts if part.part not in useful_parts]
        filler = max(others, key=lambda part: part.share, default=None)
        if filler is None and not low:
            return Passed("nothing but useful kernels runs")
        works = f"{format_ratio(useful)} of the time" if is_filled else f"with {low[0][0]}"
        rest = f"Rest of the time: {part_words(filler.part)}" if filler else ""
        origin, n = ("NVML", sampled.n) if sampled else ("busy share of the trace", facts.steps.steady)
        behind = (sampled.name,) if sampled else ()
        return fired(
            facts,
            bound=None,
            title=f"The device reads {format_ratio(utilisation)} busy, but works {works}",
            why=_why(filler, is_filled=is_filled),
            evidence=(
                Evidence("Utilisation", utilisation, "ratio", "measured", origin, n=n, behind=behind),
                facts.share_evidence("Useful kernels, share of the step", *_USEFUL),
                *((facts.share_evidence(rest, filler.part),) if filler else ()),
                *(evidence for _, evidence in low),
            ),
            at_most="high",
        )


def _why(filler: Part | None, *, is_filled: bool) -> str:
    if filler is None:
        return "Matrix kernels fill the step, and run far below the peak."
    rest = "The rest is mostly" if is_filled else "Beside matrix math it is mostly"
    return f"{rest} {part_words(filler.part)}, with {format_ratio(filler.share)} of the step."
