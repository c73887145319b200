"""OV001: the host issues work more slowly than the device runs it."""

from collections.abc import Iterator

from profilerkit.analysis.device.kernels import SMALL_KERNEL_NS
from profilerkit.analysis.facts import Facts
from profilerkit.analysis.host.lines import HotLine
from profilerkit.analysis.host.names import QUIET_NS
from profilerkit.analysis.whatif import saving, slowed
from profilerkit.model import revise
from profilerkit.model.finding import Evidence, Fix, Saving, SettingChange
from profilerkit.rules.api import MissingData, NotApplicable, Passed, Result, Rule, each, fired, may_train, unsure
from profilerkit.rules.evidence import line_evidence, line_text
from profilerkit.rules.parts import WARN, dividing_reads, issuing_share
from profilerkit.trace.classify import Phase
from profilerkit.units import format_count, format_ns, format_ratio

#: Share of the step's looks from which a line is what calls the operators (a choice: an optimizer's often have less).
CALLING_SHARE = 1 / 3
#: Share of the step from which the waiting for the host in one phase of it is shown (a choice).
NOTED_PHASE = 0.02
PHASE_WORDS: dict[Phase, str] = {
    "optimizer": "the optimizer step",
    "zero_grad": "zeroing gradients",
    "backward": "the backward pass",
    "loss": "the loss",
    "forward": "the forward pass",
}


class LaunchBound(Rule, frozen=True):
    """Find steps whose GPU idles for {smallest_share} while the CPU issues the next kernels.

    Why it costs: PyTorch spends microseconds on each operator. When kernels are shorter than that, the GPU waits.

    Example:
        x = torch.randn(4, 4)
        for _ in range(100):
            x = x * 1.01 + 0.1
    Use instead:
        @torch.compile(mode="reduce-overhead")
        def update(x):
            for _ in range(100):
                x = x * 1.01 + 0.1
            return x
    How it is measured: Idle time counts while the launching thread dispatches operators, runs short Python, or a launch
        is in flight. An operator that holds a GPU's host for over 1 ms computes or compiles, and is left out. On a CPU,
        the threshold is {host_smallest_share} of the step. There fused optimizers and vectorised operators saved 68 to
        98 % of a share of 51 to 74 %. From {host_main_share} of the step on, {host_main_ratio} of it is expected and
        {host_low_ratio} is the low end. Up to {host_minor_share}, {host_minor_ratio} is expected. Python longer than
        1 ms belongs to OV005.
    When it is wrong: The profiler slows the CPU by up to 100 %. Without an untraced step time, the low end is reduced
        by {unmeasured_inflation_ratio}. Where {late_launch_ratio} of the launches take over 1 ms, something else holds
        the GPU. CUDA graphs need fixed shapes and no host sync: where reads divide the step, the low end is halved.
    Sources:
        https://pytorch.org/blog/accelerating-pytorch-with-cuda-graphs/
        https://pytorch.org/docs/stable/notes/cuda.html
    """

    code = "OV001"
    summary = "The CPU issues work more slowly than the GPU runs it"

    smallest_share: float = 0.05
    host_smallest_share: float = 0.10
    #: Share of the host's time that is its own where the profiler's cost is not known (it added 9 to 99 % in tests).
    unmeasured_inflation_ratio: float = 0.5
    #: Share of the lower end that is kept without a device: fewer operators save what a call costs, and how much of the
    #: arithmetic below 10 µs they keep was seen in two cases only (a choice).
    host_low_ratio: float = 0.5
    #: Share of the step from which calling operators is what a host does: the smallest of which most was saved.
    host_main_share: float = 0.51
    host_main_ratio: float = 0.87  #: of such a share what is expected back: the mean of seven fixes
    #: Share of the step up to which it is what any step needs: the larger of 22 and 24 %, of which 0 and 0.4 went.
    host_minor_share: float = 0.24
    host_minor_ratio: float = 0.2  #: of such a share what is expected back: the mean of these two
    #: Share of the lower end that is kept where reads end what could be a graph: some are there to stay. Of two
    #: programs with 192 and 384 in a step the best fix saved 72 %, where an environment needs each value, and 93 %.
    ended_low_ratio: float = 0.5
    #: Share of the issuing time in launches that took longer than any launch takes, from which those are the cause.
    late_launch_ratio: float = 0.5

    def check(self, facts: Facts) -> Result:
        if not facts.trace_read:
            return MissingData("what the host did is only seen in a trace", "profilerkit.profile(..., deep=True)")
        if facts.cold is not None and facts.cold.dominates:
            return NotApplicable("the window is dominated by first-use work, not by launches")
        issuing = issuing_share(facts)
        on_device = facts.mode == "gpu"
        if issuing < (self.smallest_share if on_device else self.host_smallest_share):
            what = "the device waits" if on_device else "calling operators takes"
            for_what = " for work to be issued" if on_device else ""
            return Passed(f"{what} {format_ratio(issuing)} of the step{for_what}")
        value = saving(issuing, issuing) if on_device else self._of_host(facts, issuing)
        if not self.worth_saying(facts, value.expected):
            return unsure(f"issuing work costs {format_ratio(issuing)} of the step", value.expected)
        if on_device and facts.trust.inflation_ratio is None:
            value = slowed(value, self.unmeasured_inflation_ratio)
        if on_device and dividing_reads(facts):
            value = revise(value, low=self.ended_low_ratio * value.low)
        # Launches that took longer than 1 ms hold most of the issuing time.
        late = (facts.device.late_launch_ratio or 0.0) * facts.share("over.launch") if facts.device else 0.0
        detail = "contention" if late and late >= self.late_launch_ratio * issuing else "launch"
        time = format_ns(issuing * (facts.mean_step_ns or 0.0))
        step = each(facts)
        known = facts.trust.inflation_ratio is not None
        if detail == "contention":
            title = f"Kernels wait {time} in {step} between their launch and their start"
            why = "They were launched in time and the device was idle: another process holds it, or its driver does."
            fix = Fix(text="Look for other processes on this device with nvidia-smi; they take turns of milliseconds.")
        elif not on_device:
            title = f"Calling small operators takes {time} of {step}"
            small = f"Operators below {format_ns(SMALL_KERNEL_NS)}, and the gaps between them,"
            why = f"{small} are the price of each call, not of arithmetic."
            fix = _fewer_operators(facts)
        else:
            title = f"The device idles {time} in {step} while the host issues work"
            empty = facts.device.queue_empty_ratio if facts.device else None
            why = "The queue runs empty: kernels end before the next ones have been launched."
            if empty is not None:
                told = f"{format_ratio(empty)} of the kernels are launched after all work before has ended."
                why = f"The queue runs empty: {told}"
            fix = _one_graph(facts, step)
        return fired(
            facts,
            bound="overhead-bound",
            title=title,
            why=why,
            evidence=_evidence(facts, issuing),
            at_most="high" if known and detail == "launch" and on_device else "medium",
            detail=detail,
            saving=value,
            fix=fix,
            confirm="Record again: the idle share under host work must fall."
            if known
            else "Time some steps without the profiler: the difference shows how much of this it caused.",
        )

    def _of_host(self, facts: Facts, issuing: float) -> Saving:
        """Return what fewer operators save without a device: between the measured shares the part of it in proportion.

        The low end begins in the middle, where the cases that saved all become the nearer ones.
        """
        way = 1.0 if issuing >= self.host_main_share else 0.0
        if self.host_minor_share < issuing < self.host_main_share:
            way = (issuing - self.host_minor_share) / (self.host_main_share - self.host_minor_share)
        part = self.host_minor_ratio + (self.host_main_ratio - self.host_minor_ratio) * way
        value = saving(part * issuing, issuing)
        return revise(value, low=self.host_low_ratio * max(2.0 * way - 1.0, 0.0) * value.low)


def _calling(facts: Facts) -> HotLine | None:
    """Return the line that calls most of the operators; ``None`` where none holds much of the step."""
    line = facts.lines.get("calls")
    return line if line is not None and line.share >= CALLING_SHARE else None


def _fewer_operators(facts: Facts) -> Fix:
    """Return what makes operators fewer on a host; compiling the model reaches only what it calls."""
    line = _calling(facts)
    if line is None:
        fused = ", fused=True for the optimizer" if may_train(facts) else ""
        return Fix(
            text=f"Fewer, larger operators: vectorise loops over tensors{fused}.",
            code="model = torch.compile(model)",
            changes=(SettingChange("compile", "off", "default"),),
        )
    return Fix(text=f"Vectorise {line_text(line)}: fewer, larger operators.")


def _one_graph(facts: Facts, step: str) -> Fix:
    """Return how the step becomes one graph; where graphs are launched already, with what is still outside of them."""
    if reads := dividing_reads(facts):
        them = f"the {format_count(reads)} reads of values in {step}"
        return Fix(text=f"Remove {them}, as a graph ends at each. Then launch it as one graph.", code=WARN)
    # The read-back of a loss stands outside of the model; more syncs stand within what would be the graph.
    syncs = facts.syncs.per_step if facts.syncs is not None else 0.0
    first = f" Remove the {format_count(syncs)} host syncs in {step} first." if syncs > 1 else ""
    if facts.launches is not None and facts.launches.graph_launches:
        text = "Capture the whole step as one CUDA graph, the optimizer with capturable=True, or enlarge the batch."
        return Fix(text=text + first, code="with torch.cuda.graph(graph := torch.cuda.CUDAGraph()):\n    train_step()")
    if "NPU" in (facts.rank.device or ""):
        text = "Set TASK_QUEUE_ENABLE=2, with which torch_npu issues work faster, or enlarge the batch."
        return Fix(text=text + first)
    return Fix(
        text=f"Launch the step as one graph with torch.compile(mode='reduce-overhead'), or enlarge the batch.{first}",
        code='model = torch.compile(model, mode="reduce-overhead")',
        changes=(SettingChange("compile", "off", "reduce-overhead"),),
    )


def _evidence(facts: Facts, issuing: float) -> tuple[Evidence, ...]:
    whole = facts.share_evidence("Issuing work, share of the step", "over.dispatch", "over.launch", "over.python")
    python = facts.share_evidence(f"Idle while Python runs, up to {format_ns(QUIET_NS)} at a time", "over.python")
    dispatch = facts.share_evidence("Idle while operators are dispatched", "over.dispatch")
    divided = (
        revise(dispatch, value=facts.share("over.dispatch") - facts.operator_share),
        revise(python, value=facts.short_python_ratio * facts.share("over.python")),
        facts.share_evidence("Launch latency", "over.launch"),
    )
    entries = (revise(whole, value=issuing), *(entry for entry in divided if entry.value))
    if facts.mode == "gpu":
        asks = _calling(facts) if dividing_reads(facts) else None
        return (*entries, *_by_phase(facts), *_of_kernels(facts), *line_evidence(facts, "Step", asks))
    small = Evidence("Small operators are shorter than", SMALL_KERNEL_NS, "ns", "estimated", "definition of this tool")
    return (*entries, small, *line_evidence(facts, "Step", _calling(facts)))


def _by_phase(facts: Facts) -> Iterator[Evidence]:
    step, origin = facts.mean_step_ns or 1.0, "ranges that torch or the program marks"
    for phase in facts.host.phases:
        if phase.idle_ns >= NOTED_PHASE * step:
            label = f"Waiting for the host in {PHASE_WORDS[phase.name]}"
            yield facts.evidence(label, phase.idle_ns / step, "ratio", origin, "derived")


def _of_kernels(facts: Facts) -> Iterator[Evidence]:
    device = facts.device
    if device is None:
        return
    n = round(device.kernels_per_step * facts.steps.steady)
    if (empty := device.queue_empty_ratio) is not None:
        label = "Kernels that found the queue empty"
        yield facts.evidence(label, empty, "ratio", "launch and kernel times", "derived", n=n)
    yield facts.evidence("Median kernel", device.median_kernel_ns, "ns", "kernel events", n=n)
