"""CP006: the optimizer step runs as many small kernels."""

from profilerkit.analysis.device.kernel_losses import OptimizerWork
from profilerkit.analysis.host.operators import HeldFacts
from profilerkit.model.finding import Evidence, Fix, Saving, SettingChange
from profilerkit.rules.api import Facts, MissingData, NotApplicable, Passed, Result, Rule, fired, no_device, saving
from profilerkit.rules.evidence import kernel_share
from profilerkit.units import format_count, format_ratio

#: Optimizers of torch with a fused form on CUDA (2.13), and those that take a list at a time beside them.
_FUSED = ("Adam", "AdamW", "SGD", "Adagrad")
_BY_LIST = ("ASGD", "Adadelta", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop")
_FUSE = SettingChange("fused", False, True)
#: Share of an optimizer's time on a processor that its fused form saves: 68 to 77 % for three sizes of model, against
#: tensors one at a time, 4 to 27 % for SGD, which only moves bytes (torch 2.13, one thread, CPU seconds).
_FUSED_ON_HOST = {"Adam": 0.7, "AdamW": 0.7}


class UnfusedOptimizer(Rule, frozen=True):
    """Find optimizer steps with over {most_per_tensor} kernels for each parameter, or {smallest_share} of the step.

    Why it costs: Each small kernel needs a launch, and the parameters are read and written several times.

    Example:
        optimizer = torch.optim.Adam(model.parameters(), foreach=False)
    Use instead:
        optimizer = torch.optim.Adam(model.parameters(), fused=True)
    How it is measured: Device time inside the optimizer step is compared with one pass over parameters, gradients and
        state. Adam moves 28 bytes for each FP32 parameter. On a CPU, fused Adam saves 70 % of it; others are named from
        {smallest_on_host} of the step.
    When it is wrong: ZeRO and FSDP shard the state, which shrinks the step anyway. fused and foreach exclude each
        other. fused needs floating-point parameters on a supported device.
    Sources:
        https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html
        https://arxiv.org/abs/1910.02054
    """

    code = "CP006"
    summary = "The optimizer step runs as many small kernels"

    smallest_share: float = 0.05
    most_per_tensor: float = 5.0
    smallest_on_host: float = 0.15  #: on a processor an optimizer without a faster form is named from this share

    def check(self, facts: Facts) -> Result:
        if facts.kernel_losses is None:
            return self._on_host(facts)
        found = facts.kernel_losses.optimizer
        if found is None:
            hint = "torch.profiler marks those of torch.optim; put others into a range that is named optimizer"
            return MissingData("no optimizer step is marked in the trace", hint)
        name = found.name or "the optimizer"
        if found.style == "fused":
            return Passed(f"{name} is fused, and takes {format_ratio(found.share)} of the step")
        if found.style is None:
            return NotApplicable(f"{name} does not run by torch's operators")
        many = found.kernels_per_tensor is not None and found.kernels_per_tensor > self.most_per_tensor
        if found.share < self.smallest_share and not many:
            return Passed(f"the optimizer takes {format_ratio(found.share)} of the step")
        if found.style == "foreach" and found.name not in ("", *_FUSED):
            return Passed(f"{name} takes a list at a time already, and torch has no fused form of it")
        blind = found.least_share is None and (found.parameters is None or facts.spec is not None)
        # Without the bytes that it must move: the idle time between its kernels, which a single one does not have.
        least = found.kernel_share if blind else found.least_share or 0.0
        expected = found.share - least
        if not self.worth_saying(facts, expected):
            if blind:
                why = "how many bytes the optimizer must move is not known"
                return MissingData(why, "torch.profiler: record_shapes=True")
            what = f", {format_ratio(least)} of it for bytes that it must move"
            return Passed(f"the optimizer takes {format_ratio(found.share)} of the step{what}")
        priced = saving(expected, found.share) if blind or found.least_share is not None else None
        return _finding(facts, found, priced)

    def _on_host(self, facts: Facts) -> Result:
        """Return the same of an optimizer that a processor runs."""
        found = next((one for one in facts.host.held or () if one.place == "optimizer"), None)
        if found is None:
            return no_device(facts, "no optimizer step takes 2 % of the step")
        name = found.operator or "the optimizer"
        expected = found.share * (0.0 if found.style == "fused" else _FUSED_ON_HOST.get(found.operator, 0.0))
        gains = self.worth_saying(facts, expected)
        share = found.share if gains else _without_recording(facts, found)
        if not gains and share < self.smallest_on_host:
            return Passed(f"{name} takes {format_ratio(share)} of the step")
        origin, n = f"Optimizer.step#{name}", facts.steps.steady
        calls = Evidence("Operators of the optimizer, per step", found.per_step, "count", "measured", origin, n=n)
        return fired(
            facts,
            bound="overhead-bound" if gains else None,
            title=f"{name} takes {format_ratio(share)} of the step",
            why=f"The optimizer calls {format_count(round(found.per_step))} operators per step.",
            evidence=(kernel_share("Optimizer", share, origin, n), calls),
            at_most="medium",
            detail="optimizer" if gains else "",
            saving=saving(expected, share) if gains else None,
            fix=_fix(found.operator, found.style) if gains else None,
            confirm="Its share of the step must fall." if gains else "",
        )


def _without_recording(facts: Facts, found: HeldFacts) -> float:
    """Return the optimizer's share of an untraced step, at most: each recorded event slowed the traced one by as much.

    As it is where no untraced step was timed.
    """
    ratio, recording = facts.trust.inflation_ratio, facts.host.recording
    if ratio is None or recording is None or not recording.events:
        return found.share
    added = max(ratio - 1.0, 0.0) * min(found.per_step / recording.events, 1.0)
    return min(max(found.share * max(ratio, 1.0) - added, 0.0), found.share)


def _finding(facts: Facts, found: OptimizerWork, saved: Saving | None) -> Result:
    idles = 2 * found.kernel_share < found.share
    inside, steps = "kernels launched inside", facts.steps.steady
    span = f"first to last kernel of {f'Optimizer.step#{found.name}' if found.name else 'its ranges'}"
    parameters = f"{format_count(found.parameters or 0)} parameters, in FP32"
    n = round(found.kernels_per_step)
    kernels = format_count(n)
    many = f"{kernels} kernels" if found.tensors is None else f"{kernels} kernels for {found.tensors:.0f} tensors"
    lost = "the device idles between them" if idles else "each goes over the same parameters again"
    return fired(
        facts,
        bound="overhead-bound" if idles else "memory-bound",
        title=f"{found.name or 'The optimizer'} takes {format_ratio(found.share)} of the step in {kernels} kernels",
        why=f"The optimizer step launches {many}: {lost}.",
        evidence=(
            kernel_share("Optimizer on the device", found.share, span, steps),
            kernel_share("Kernels of the optimizer", found.kernel_share, inside, round(found.kernels_per_step * steps)),
            Evidence("Kernels of the optimizer, per step", n, "count", "measured", inside, n=steps),
            kernel_share("Time for the bytes that must move", found.least_share, parameters, source="estimated"),
        ),
        at_most="high" if found.style == "single" else "medium",
        detail="launch" if idles else "bandwidth",
        saving=saved,
        fix=_fix(found.name, found.style),
        confirm="One kernel per list of parameters must be left in the optimizer step.",
    )


def _fix(name: str, style: str | None) -> Fix:
    now = "One list of tensors at a time" if style == "foreach" else "One tensor at a time"
    if not name:
        return Fix(
            text=f"{now} → fused=True, which {', '.join(_FUSED[:-1])} and {_FUSED[-1]} have; others foreach=True.",
            code="optimizer = torch.optim.AdamW(..., fused=True)",
            changes=(_FUSE,),
        )
    if name in _FUSED:
        code = f"optimizer = torch.optim.{name}(..., fused=True)"
        return Fix(text=f"{now} → all at once: fused=True.", code=code, changes=(_FUSE,))
    if name in _BY_LIST:
        text = f"{now} → lists of tensors: foreach=True."
        code = f"optimizer = torch.optim.{name}(..., foreach=True)"
        return Fix(text=text, code=code, changes=(SettingChange("foreach", False, True),))
    return Fix(text="One tensor at a time → the `torch._foreach_` functions, or torch.compile of the optimizer step.")
