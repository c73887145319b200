"""OV005: the user's own Python keeps the device waiting."""

import re
from functools import partial

from profilerkit.analysis.host.host_facts import PythonFacts
from profilerkit.analysis.trust import SHOW_FETCHES, SHOW_STACKS, fitting
from profilerkit.analysis.whatif import saving, slowed
from profilerkit.model import revise
from profilerkit.model.finding import Evidence, Fix, Saving
from profilerkit.model.run import OPERATOR_TRACE
from profilerkit.rules.api import Facts, MissingData, NotApplicable, Passed, Result, Rule, each, fired, unsure
from profilerkit.rules.evidence import code_line, frame_text, line_evidence, line_text, placed, told_line
from profilerkit.rules.parts import own_python_share
from profilerkit.units import format_ns, format_ratio

#: A frame of the recording itself, as the profiler writes it.
_OWN = re.compile(r"(?:^|/)profilerkit/capture/\w+\.py\(")
#: How an export without operators gets what the host runs.
_SHOW_THE_HOST = "run the loop within torch.autograd.profiler.emit_nvtx() under nsys, or record with torch.profiler"


class PythonWork(Rule, frozen=True):
    """Find Python between operators, longer than 1 ms at a time, that takes {smallest_share} of the step.

    Why it costs: Logging, metrics and loops over elements run on the thread that has to issue the next kernel.

    Example:
        scores = torch.randn(1000)
        best = max(float(score) for score in scores)
    Use instead:
        scores = torch.randn(1000)
        best = scores.max()
    How it is measured: Time without an operator on the launching thread counts while the GPU is idle. Stacks name the
        function that holds most of it. The saving is the time of these longer stretches. On a busy machine,
        {queued_ratio} of the time that other programs took is added to the threshold.
    When it is wrong: A lock, a socket or a batch without a loader looks the same. The profiler slows Python: without an
        untraced step time, the low end is reduced by {unmeasured_inflation_ratio}.
    Sources: https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html
    """

    code = "OV005"
    summary = "Your own Python keeps the GPU waiting"

    smallest_share: float = 0.05
    queued_ratio: float = 0.1  #: part of the time in the queue for a processor that may look like Python
    #: Share of Python's time that is its own where the profiler's cost is not known (it added 9 to 99 % in tests).
    unmeasured_inflation_ratio: float = 0.5

    def check(self, facts: Facts) -> Result:
        if not facts.trace_read:
            return MissingData("what the host did is only seen in a trace", "profilerkit.profile(..., deep=True)")
        if facts.cold is not None and facts.cold.dominates:
            return NotApplicable("the window is dominated by first-use work, not by Python")
        bound, expected = facts.share("over.python"), own_python_share(facts)
        unseen = any(known.name == OPERATOR_TRACE and known.state == "missing" for known in facts.trust.signals)
        if unseen and not bound:
            return MissingData("nothing recorded shows what the host runs between its calls", _SHOW_THE_HOST)
        if expected < max(self.smallest_share, self.queued_ratio * facts.taken / (1.0 - facts.taken)):
            return Passed(f"the device waits {format_ratio(expected)} of the step for longer stretches of Python")
        if not self.worth_saying(facts, expected):
            return unsure(f"Python costs {format_ratio(expected)} of the step", expected)
        python = facts.host.python
        if python is not None and python.frames and _OWN.search(python.frames[-1]):
            held = format_ratio(python.frames_ratio or 0.0)
            return Passed(f"{held} of the longer stretches of Python are the recording's own")
        value = saving(expected, bound)
        if facts.trust.inflation_ratio is None and facts.mode == "gpu":
            value = slowed(value, self.unmeasured_inflation_ratio)
        return _finding(facts, value)


def _finding(facts: Facts, value: Saving) -> Result:
    time, step = format_ns(value.expected * (facts.mean_step_ns or 0.0)), each(facts)
    python, hook = facts.host.python, facts.lines.get("hook")
    why = "No operator runs on the launching thread in that time: it is Python, or a wait without an event."
    fix = Fix(text="Move logging, metrics and data handling off the loop, or vectorise them.")
    if python is not None and python.frames:
        place, held = frame_text(placed(python.frames)), format_ratio(python.frames_ratio or 0.0)
        why = f"{held} of these stretches are spent in {place}."
        gets = f" If it gets the batch: {fitting(SHOW_FETCHES, facts.recorder)}." if facts.input is None else ""
        fix = revise(fix, text=f"Move {place} off the loop, vectorise it, or call it less often.{gets}")
    elif facts.input is None:
        why += " It may be what gets the batch: the recording does not show it."
        tell = fitting(SHOW_FETCHES, facts.recorder)
        if not facts.measured("Python stacks"):
            tell += f", or record {fitting(SHOW_STACKS, facts.recorder)}"
        fix = revise(fix, text=f"{fix.text} To see what it is: {tell}.")
    if hook is not None and hook.share >= value.expected / 2:
        why += f"{told_line(hook, each(facts))} The backward pass calls it, as a hook."
        fix = revise(fix, text=f"Call {line_text(hook)} less often, every 100 steps for example. {fix.text}")
    known = facts.trust.inflation_ratio is not None
    longer = facts.share_evidence("Longer stretches of Python, share of the step", "over.python")
    return fired(
        facts,
        bound="overhead-bound",
        title=f"The device idles {time} in {step} while Python runs"
        if facts.mode == "gpu"
        else f"Python outside of operators takes {time} of {step}",
        why=why,
        evidence=(
            facts.share_evidence("Idle while Python runs", "over.python"),
            *(_stretches(facts, python) if python is not None else ()),
            *line_evidence(facts, "Share of the step in a hook of the backward pass,", hook),
            revise(longer, value=value.expected),
        ),
        at_most="medium",
        detail="python",
        saving=value,
        fix=fix,
        confirm="Record again: the idle share under Python must fall."
        if known
        else "Time some steps without the profiler: the difference shows how much of this it caused.",
    )


def _stretches(facts: Facts, python: PythonFacts) -> tuple[Evidence, ...]:
    row = partial(facts.evidence, source="derived", n=None)
    start, end = python.longest_ns
    out = (
        row("Stretches longer than 1 ms, per step", python.per_step, "count", "the traced steps"),
        row("Longest of them", end - start, "ns", "the traced steps", range_ns=python.longest_ns),
    )
    if not python.frames or python.frames_ratio is None:
        return out
    sampled = facts.lines.get("python")
    if sampled is not None and sampled.frames == python.frames:
        return (*out, *line_evidence(facts, "Longer stretches, by samples,", sampled))
    frame, calls = placed(python.frames), " → ".join(frame_text(frame) for frame in python.frames)
    label = f"Longer stretches in {frame_text(frame)}"
    return (*out, row(label, python.frames_ratio, "ratio", calls, line=code_line(frame)))
