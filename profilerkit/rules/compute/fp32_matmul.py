"""CP001 (R14): matrix multiplications run in FP32 on a chip with faster units."""

from dataclasses import dataclass
from typing import ClassVar

from profilerkit.analysis.device.records import MathFacts
from profilerkit.analysis.device.roofline import dense_peak
from profilerkit.analysis.facts import Facts
from profilerkit.analysis.whatif import faster_kernels, saving
from profilerkit.model.finding import Evidence, Finding, Fix, Saving
from profilerkit.rules.rule import (
    Fired,
    MissingData,
    NotApplicable,
    Passed,
    Result,
    Rule,
    finding_for,
    no_device_events,
)
from profilerkit.units import format_ratio, format_value

_BF16_MAJOR = 8
_TENSOR_CORE_MAJOR = 7


@dataclass(frozen=True)
class Fp32Matmul(Rule):
    """FP32 matrix math on a tensor-core GPU (R14).

    Claim: Matrix multiplications or convolutions run in FP32 on a chip that has faster units.
    Evidence: Time share of math kernels whose names are FP32 vector kernels; compute capability of the device.
    Threshold: 10 % of the step in such kernels, and less of it in tensor-core kernels.
    Fix: TF32 for matmul from compute capability 8.0, where its peak is above that of FP32; autocast to 16 bit from 7.0.
    Saving: Bound: kernels of known shapes at the peaks of the faster units and of the memory, the others faster by the
        ratio of the peaks. Expected: faster by what real kernels reach of that ratio, and never than their bytes move;
        where shapes are not known by 0.4 of it. None for a device that is not in the hardware table.
    Traps: The step can become launch-bound afterwards. Numerics change. Kernels that use TF32 already say so in their
        names, and are not counted.
    Confidence: Medium: kernel names tell the precision, not whether the model tolerates a lower one.
    """

    code: ClassVar[str] = "CP001"
    name: ClassVar[str] = "fp32_matmul"
    family: ClassVar[str] = "compute"
    summary: ClassVar[str] = "Matrix math runs in FP32 on a tensor-core GPU"

    smallest_share: float = 0.10
    #: Fraction of the peak ratio that kernels of unknown shapes gain (a guess until calibrated).
    reached_ratio: float = 0.4

    def check(self, facts: Facts) -> Result:
        """Fires when FP32 math owns ``smallest_share`` of the step on a device with tensor cores."""
        if facts.math is None:
            return no_device_events(facts, "no device events: there is no tensor core to use")
        if facts.math.compute_major is not None and facts.math.compute_major < _TENSOR_CORE_MAJOR:
            return NotApplicable("the device has no tensor cores")
        share = facts.math.fp32_share
        if share < self.smallest_share or share <= facts.math.tensor_core_share:
            return Passed(f"FP32 math kernels take {format_ratio(share)} of the step")
        if facts.math.compute_major is None:
            return MissingData("the units of the device are not known", "record with torch.profiler, which names it")
        if facts.spec is None:
            return Fired((_finding(facts, facts.math, None, None, ()),))
        faster = facts.spec.faster_than_fp32
        fast = dense_peak(faster or "", facts.spec)
        if not fast or not facts.spec.fp32_tflops:
            return MissingData("the peaks of the device's faster units are not in the table", "name it with --device")
        peak_ratio = fast * 1e-12 / facts.spec.fp32_tflops
        priced = facts.math.priced_share
        expected = faster_kernels(share - priced, self.reached_ratio * peak_ratio) + priced - facts.math.floor_share
        bound = faster_kernels(share - priced, peak_ratio) + priced - facts.math.fastest_share
        if not self.worth_saying(facts, expected):
            return Passed(f"FP32 math kernels take {format_ratio(share)} of the step, within the noise of its time")
        ratio = Evidence(
            label="Ratio of the peaks", value=peak_ratio, unit="×", source="derived", origin=facts.spec.source
        )
        return Fired((_finding(facts, facts.math, faster, saving(facts, expected, bound), (ratio,)),))


def _finding(
    facts: Facts, math: MathFacts, faster: str | None, saved: Saving | None, ratio: tuple[Evidence, ...]
) -> Finding:
    """Say what runs in FP32; ``faster``, ``saved`` and ``ratio`` are empty where the device's peaks are not known."""
    reach = f"reach {format_value(ratio[0].value, '×')} their peak" if ratio else "are faster; their peak is not known"
    return finding_for(
        facts,
        bound="compute-bound",
        title=f"FP32 math takes {format_ratio(math.fp32_share)} of the step on a device with tensor cores",
        why=f"The largest math kernels run on the vector units; the device's matrix units {reach}.",
        evidence=(
            Evidence(
                label="FP32 math kernels, share of the step",
                value=math.fp32_share,
                unit="ratio",
                source="measured",
                origin=math.example or "kernel names",
                n=facts.steps.steady,
            ),
            *ratio,
        ),
        at_most="medium",
        detail="precision",
        saving=saved,
        fix=_fix(has_bf16=(math.compute_major or 0) >= _BF16_MAJOR, has_tf32=faster == "tf32"),
        confirm="Kernel names must change to tensor-core ones; check the loss curve over the first epoch.",
    )


def _fix(*, has_bf16: bool, has_tf32: bool) -> Fix:
    if has_bf16 and has_tf32:
        return Fix(
            text='Matmul precision "highest" → "high" (TF32). Autocast to bfloat16 is a further step, for twice that.',
            code='torch.set_float32_matmul_precision("high")',
        )
    if has_bf16:
        return Fix(
            text="Precision float32 → mixed bfloat16. TF32 is not faster than FP32 on GeForce, A10G and L40.",
            code='with torch.autocast("cuda", torch.bfloat16):\n    loss = model(batch)',
        )
    return Fix(
        text="Precision float32 → mixed float16 with a gradient scaler.",
        code='with torch.autocast("cuda", torch.float16):\n    loss = model(batch)',
    )
