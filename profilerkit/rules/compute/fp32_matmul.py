"""CP001: matrix math runs in 32 bits on a chip with faster units."""

from profilerkit.analysis.device.roofline import MathFacts, WideMath, peak_ratio, target_type
from profilerkit.analysis.whatif import saving
from profilerkit.model import revise
from profilerkit.model.finding import Evidence, Fix, Saving, SettingChange
from profilerkit.rules.api import Facts, MissingData, NotApplicable, Passed, Result, Rule, fired, no_device, unsure
from profilerkit.rules.evidence import kernel_share
from profilerkit.units import format_ratio, format_value

_BF16_MAJOR = 8
_TENSOR_CORE_MAJOR = 7


class Fp32Matmul(Rule, frozen=True):
    """Find matrix math in FP32 that takes {smallest_share} of the step on a GPU with tensor cores.

    Why it costs: Tensor cores are several times faster in TF32 and 16 bits than the FP32 units.

    Example:
        y = model(torch.randn(4, 4))
    Use instead:
        with torch.autocast(device, dtype=torch.bfloat16):
            y = model(torch.randn(4, 4))
    How it is measured: Kernel names and argument types give the precision. The rule also fires when less than
        {most_narrow_ratio} is in 16 bits. TF32 is proposed from compute capability 8.0, autocast from 7.0. Without
        shapes, the gain is the ratio of the peaks to the power of {reached_power}, or {least_power} at the low end.
    When it is wrong: Kernel names do not show whether your model tolerates lower precision. Afterwards the step may be
        launch-bound. Memory-efficient attention ignores the TF32 setting.
    Sources:
        https://pytorch.org/docs/stable/notes/cuda.html
        https://arxiv.org/abs/1710.03740
    """

    code = "CP001"
    summary = "Matrix math runs in 32 bits on a tensor-core GPU"

    smallest_share: float = 0.10
    #: Of the time in 32 bits, that in 16 bits up to which nobody chose a precision: what autocast leaves is far less.
    most_narrow_ratio: float = 0.10
    #: Power of the ratio of the peaks by which kernels of unknown shapes get faster. In NVIDIA's tables for one GPU
    #: (DeepLearningExamples, PyTorch) whole steps of mostly products gained 0.57 to 0.82 on a V100, whose ratio is 8:
    #: ResNet-50, ResNeXt-101, BERT, GNMT, Transformer and 3-D nnU-Net got 3.3 to 5.5 times faster. From TF32 on an
    #: A100, where it is 2, the steps of 26 models gained 0.66, in the median.
    reached_power: float = 0.65
    least_power: float = 0.25  #: the same at least: of 50 such pairs, those above among them, nine tenths gained more

    def check(self, facts: Facts) -> Result:
        math = facts.math
        if math is None:
            return no_device(facts, "no device events: there is no tensor core to use")
        if math.compute_major is not None and math.compute_major < _TENSOR_CORE_MAJOR:
            return NotApplicable("the device has no tensor cores")
        vector = math.is_mostly_vector and math.fp32_share >= self.smallest_share
        wide = math.wide_share >= self.smallest_share and math.narrow_share <= self.most_narrow_ratio * math.wide_share
        if not vector and not wide:
            return Passed(f"32-bit math kernels take {format_ratio(math.wide_share)} of the step")
        if math.compute_major is None:
            return MissingData("the units of the device are not known", "record with torch.profiler, which names it")
        if facts.spec is None:
            return _finding(facts, math, "fp16", None, None)
        target = target_type(facts.spec, is_mostly_vector=math.is_mostly_vector)
        found = [WideMath("fp32", math.fp32_share, math.priced_share), *(() if target == "tf32" else math.wide)]
        ratios = {kind.type: peak_ratio(kind.type, target, facts.spec) for kind in found}
        main = ratios[max(found, key=lambda kind: kind.share).type]
        if target is None or main is None:
            return MissingData("the peaks of the device's faster units are not in the table", "name it with --device")
        priced = sum(kind.priced_share for kind in found)
        unpriced = [(kind.share - kind.priced_share, ratios[kind.type] or 1.0) for kind in found]

        def gained(power: float) -> float:
            return sum(share * (1.0 - 1.0 / max(float(ratio**power), 1.0)) for share, ratio in unpriced)

        expected = priced - math.floor_share + gained(self.reached_power)
        bound = priced - math.fastest_share + gained(1.0)
        share = sum(kind.share for kind in found)
        if not self.worth_saying(facts, expected):
            return unsure(f"32-bit math kernels take {format_ratio(share)} of the step", expected)
        saved = saving(expected, bound)
        low = max(priced - math.floor_share + gained(self.least_power), 0.0)
        return _finding(facts, math, target, revise(saved, low=min(saved.low, low)), main)


def _finding(facts: Facts, math: MathFacts, target: str, saved: Saving | None, ratio: float | None) -> Result:
    """Say what runs in 32 bits; ``saved`` and ``ratio``, of the peaks, are ``None`` where those are not known."""
    faster = f"has {format_value(ratio, '×')} their peak" if ratio else "is faster; its peak is not known"
    share = math.fp32_share if target == "tf32" else math.wide_share
    what = "FP32" if target == "tf32" or not math.wide else "32-bit"
    return fired(
        facts,
        bound="compute-bound",
        title=f"{what} math takes {format_ratio(share)} of the step on a device with tensor cores",
        why=f"The largest math kernels compute in 32 bits; {'TF32' if target == 'tf32' else '16 bits'} {faster}.",
        evidence=(
            kernel_share(f"{what} math kernels", share, math.example or "kernel names", facts.steps.steady),
            Evidence("Ratio of the peaks", ratio, "×", "derived", facts.spec.source if facts.spec else ""),
        ),
        at_most="medium",
        detail="precision",
        saving=saved,
        fix=_fix(has_bf16=(math.compute_major or 0) >= _BF16_MAJOR, has_tf32=target == "tf32"),
        confirm="Kernel names must change to tensor-core ones; check the loss curve over the first epoch.",
    )


def _fix(*, has_bf16: bool, has_tf32: bool) -> Fix:
    if has_bf16 and has_tf32:
        return Fix(
            text='Matmul precision "highest" → "high" (TF32). Autocast to bfloat16 is a further step, for twice that.',
            code='torch.set_float32_matmul_precision("high")',
            changes=(SettingChange("matmul_precision", "highest", "high"),),
        )
    if has_bf16:
        return Fix(
            text="Precision float32 → mixed bfloat16. TF32 does not speed up attention, nor GeForce, A10G and L40.",
            code='with torch.autocast("cuda", torch.bfloat16):\n    loss = model(batch)',
            changes=(SettingChange("autocast", "off", "bf16"),),
        )
    return Fix(
        text="Precision float32 → mixed float16 with a gradient scaler.",
        code='with torch.autocast("cuda", torch.float16):\n    loss = model(batch)',
    )
