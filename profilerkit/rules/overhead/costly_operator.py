"""OV010: hooks, reads of values, or one operator without matrix products hold much of a step."""

import re
from functools import partial

from profilerkit.analysis.host.operators import HeldFacts
from profilerkit.analysis.whatif import saving
from profilerkit.model import revise
from profilerkit.model.finding import Finding, Fix
from profilerkit.model.run import STEP_TIMERS
from profilerkit.rules.api import Facts, Fired, MissingData, NotApplicable, Passed, Result, Rule, finding_for, spent
from profilerkit.rules.evidence import code_line, frame_text, line_evidence, line_text
from profilerkit.rules.overhead.debug_switch import ANOMALY
from profilerkit.rules.parts import COMPUTING
from profilerkit.units import format_about, format_ratio

#: How a place stands in a title, and what to do about it.
_PLACES = {
    "hook": (
        "Gradient hooks",
        "take",
        "Compute statistics of gradients every 100 steps instead of in each, or remove the hooks.",
    ),
    "read": (
        "Reading values one by one",
        "takes",
        "Read a whole tensor in one call, `x.tolist()`, or only every 50 steps.",
    ),
}
_ELSEWHERE = ("optimizer", "fetch")  #: places that other rules are about
#: No place is all of a step (a choice).
_MOST_OF_A_STEP = 0.95
_OPERATOR = "Call {} less often, or on less data; else look for a form of it that does less."
#: What replaces operators that are known to do more than they must.
_INSTEAD = (
    (re.compile("nonzero"), "Keep the mask: torch.where or a product with it needs no list of places."),
    (re.compile("unique"), "Keep the result between steps, or compute it where the data is prepared."),
)
#: The model's own mathematics, which no training does without: kernels of libraries, arithmetic, activations, norms,
#: losses, pooling, copies, and their backward passes. Matrix products are left out before.
_MODEL = re.compile(
    r"^(?!aten::)|^aten::(?:add|sub|mul|div|neg|abs|pow|r?sqrt|exp|log|sin|cos|erf|clamp|where|lerp|sum|mean|max|min)"
    r"[a-z_]*$|elu|silu|sigmoid|tanh|softmax|norm|pool|dropout|loss|copy_|cat$|stack$|upsample|backward"
)


class CostlyOperator(Rule, frozen=True):
    """Find hooks and reads of single values that take {smallest_share} of a CPU step, or one costly operator.

    Why it costs: A hook or an item() call in a loop runs Python once for each parameter or element.

    Example:
        values = [x.item() for x in torch.randn(1000)]
    Use instead:
        values = torch.randn(1000).tolist()
    How it is measured: Time in hooks comes from the backward pass or from stacks, reads from chains of item(). An
        operator counts from {smallest_operator} of the step where a cheaper form is known, else from
        {smallest_unknown}. Hooks and reads save {avoidable_ratio} of their time.
    When it is wrong: Anomaly detection and DDP also run in hooks, and are left out. A module hook that calls something
        named forward looks like one. Tracing slows small calls.
    """

    code = "OV010"
    summary = "Hooks, reads of values or one operator hold much of the step"

    smallest_share: float = 0.05
    smallest_operator: float = 0.15
    #: The same for an operator of which no form is known that does less (a choice: it is what the step does).
    smallest_unknown: float = 0.5
    #: What is left of hooks and reads that run every 50 or 100 steps is a hundredth or two (a choice for either).
    avoidable_ratio: float = 0.98

    def check(self, facts: Facts) -> Result:
        held, modules = facts.host.held, self._hooks_of_modules(facts)
        if held is None and modules:
            return Fired(modules)
        if held is None and facts.trace_read:
            return NotApplicable("a device runs the operators, or its trace holds none")
        if held is None:
            return MissingData("which operators run is only seen in a trace", "profilerkit.profile(..., deep=True)")
        elsewhere = (*_ELSEWHERE, "hook") if ANOMALY in (facts.host.switches or ()) else _ELSEWHERE
        held = tuple(revise(one, share=_share_of_step(facts, one)) for one in held if one.place not in elsewhere)
        found = [one for one in held if self._is_large(facts, one)]
        if found or modules:
            return Fired((*(self._finding(facts, one) for one in found), *modules))
        most = max((one.share for one in held), default=0.0)
        return Passed(f"the costliest one takes {format_ratio(most)} of the step")

    def _is_large(self, facts: Facts, one: HeldFacts) -> bool:
        if one.place in _PLACES:
            return one.share >= self.smallest_share and self.worth_saying(facts, self.avoidable_ratio * one.share)
        if _instead(one.operator) is None:
            return one.share >= self.smallest_unknown and not _MODEL.search(one.operator)
        return one.share >= self.smallest_operator

    def _hooks_of_modules(self, facts: Facts) -> tuple[Finding, ...]:
        """The finding about hooks that modules call, by sampled stacks; empty where these do not show much in them."""
        line = facts.lines.get("forward_hook")
        # A host that runs ahead of its device may spend its time as it likes.
        most = 1.0 - facts.share(*COMPUTING) if facts.on_device else 1.0
        if line is None or min(line.low, most) < self.smallest_share:
            return ()
        found = finding_for(
            facts,
            bound="overhead-bound",
            title=f"A hook of modules takes {spent(facts, line.share)}: {line_text(line)}",
            why="Every module with this hook calls it in each forward pass.",
            evidence=line_evidence(facts, "Share of the step in a hook of modules,", line),
            at_most="medium",
            detail="hook",
            saving=saving(self.avoidable_ratio * line.share, min(line.high, most)),
            fix=Fix(text=f"Return early from {line_text(line)} in 99 of 100 steps, or remove the hooks."),
            confirm="Its share of the step must fall.",
        )
        return (found,)

    def _finding(self, facts: Facts, one: HeldFacts) -> Finding:
        is_avoidable = one.place in _PLACES
        less = _instead(one.operator) or _OPERATOR.format(one.operator)
        what, takes, fix = _PLACES.get(one.place, (one.operator, "takes", less))
        line = f", from {frame_text(one.line)}" if one.line else ""
        calls = f"{format_about(one.per_step)} calls per step"
        where = "in the hooks" if one.place == "hook" else f"in the {one.place} pass"
        where = "in these reads" if one.place == "read" else where
        most = f": {one.operator}{line}" if is_avoidable else line
        why = f"{one.operator}: {calls} {where}, {format_ratio(one.operator_share)} of the step."
        row = partial(facts.evidence, origin="operators of the traced steps", source="derived", n=None)
        called = facts.evidence(f"{one.operator}, calls per step", one.per_step, "count", "the traced steps", n=None)
        return finding_for(
            facts,
            bound="overhead-bound" if is_avoidable else None,
            title=f"{what} {takes} {spent(facts, one.share)}{most}",
            why=why,
            evidence=(
                row(f"{what}, share of the step", one.share, "ratio"),
                *((row(f"Share of the step in {one.operator}", one.operator_share, "ratio"),) if is_avoidable else ()),
                revise(called, line=code_line(one.line)),
            ),
            at_most="medium",
            detail=one.place if is_avoidable else "",
            # Python around these calls goes with them; the trace does not tell how much of it is theirs.
            saving=saving(self.avoidable_ratio * one.share, one.share + facts.share("over.python"))
            if is_avoidable
            else None,
            fix=Fix(text=fix),
            confirm="Its share of the traced steps must fall.",
        )


def _share_of_step(facts: Facts, one: HeldFacts) -> float:
    """Return what it takes of the untraced step: the trace makes calls of small operators longer, and these hardly."""
    step = facts.mean_step_ns
    if not (step and one.time_ns and facts.measured(STEP_TIMERS)):
        return one.share
    return min(one.time_ns / step, _MOST_OF_A_STEP)


def _instead(operator: str) -> str | None:
    return next((fix for pattern, fix in _INSTEAD if pattern.search(operator)), None)
