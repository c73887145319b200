"""OV006: the compiled model is compiled again while it trains."""

import re
from functools import partial
from typing import NamedTuple

from profilerkit.analysis.host.host_facts import CompileFacts
from profilerkit.analysis.whatif import saving
from profilerkit.model import revise
from profilerkit.model.finding import Finding, Fix, SettingChange
from profilerkit.rules.api import Facts, Fired, MissingData, NotApplicable, Passed, Result, Rule, finding_for
from profilerkit.units import format_ns, format_ratio


class _Remedy(NamedTuple):
    """What a guard that is written so is about, and what to do about it; ``{}`` is what it looks at."""

    guard: re.Pattern[str]
    why: str
    fix: Fix


_SIZES = Fix(
    text="Compile once for all shapes: mark the sizes that change as dynamic, or pad batches to a few sizes.",
    code='torch.compile(model, dynamic=True)  # TORCH_LOGS="graph_breaks,recompiles" names the reasons',
    changes=(SettingChange("compile_dynamic", False, True),),
)
_REMEDIES = (
    _Remedy(
        re.compile(r"size mismatch|stride mismatch|rank mismatch|\.size\(\)|\.stride\(\)|\blen\(|%"),
        "a size changes",
        revise(_SIZES, code="torch._dynamo.mark_dynamic(batch, 0)  # or torch.compile(model, dynamic=True)"),
    ),
    _Remedy(
        re.compile(r"grad_mode|requires_grad|inference_mode"),
        "gradients are on in some calls and off in others",
        Fix(text="Call it in one gradient mode: compile what evaluates apart, and set requires_grad before training."),
    ),
    _Remedy(
        re.compile(r" == -?\d"),
        "{} is a Python number that changes",
        Fix(text="Pass {} as a tensor: its value is then no reason to compile again.", code="{0} = torch.tensor({0})"),
    ),
    _Remedy(
        re.compile(r"^G\[|self|_modules|__closure__|obj_id|type_id|id match", re.IGNORECASE),
        "{} is replaced between calls",
        Fix(text="Keep {} as it is while training: replace nothing that compiled code reads, or pass it in."),
    ),
)
#: What a guard looks at: an argument or a global variable, with the attributes that lead to it.
_LOOKS_AT = re.compile(r"(?:^|\(|[LG]\[['\"]|tensor ')(?!_{2}|len\b|[LG]\[)([A-Za-z_]\w*)(?:['\"]\])?((?:\.\w+)*)")


class Recompilation(Rule, frozen=True):
    """Find compilations in {fewest_steps} or more steady steps.

    Why it costs: Each compilation takes seconds. After eight compilations of one function, PyTorch runs it uncompiled.

    Example:
        compiled = torch.compile(model, dynamic=False)
        for size in (3, 5, 7):
            compiled(torch.randn(size, 4))
    Use instead:
        compiled = torch.compile(model, dynamic=True)
        for size in (3, 5, 7):
            compiled(torch.randn(size, 4))
    How it is measured: PyTorch's callbacks time the compilations; a trace shows them as events. The guard that failed
        decides the fix. TORCH_LOGS=recompiles prints the guard where the recording lacks it.
    When it is wrong: The first compilation is warm-up and is not counted. If compilation stops at that limit, the steps
        stay slow.
    Sources: https://docs.pytorch.org/docs/2.12/user_guide/torch_compiler/compile/programming_model.recompilation.html
    """

    code = "OV006"
    summary = "The compiled model is compiled again while it trains"

    fewest_steps: int = 2

    def check(self, facts: Facts) -> Result:
        compiles = facts.host.compiles
        if compiles is None:
            if not facts.trace_read and facts.host.collections is None:
                hint = "run the loop under profilerkit.profile(..., light=True)"
                return MissingData("compilations were not watched", hint)
            return NotApplicable("nothing was seen to be compiled by torch.compile")
        if compiles.steps < self.fewest_steps:
            verb = "compiles" if compiles.steps == 1 else "compile"
            return Passed(f"{compiles.steps} of {compiles.of} settled steps {verb}")
        if not self.worth_saying(facts, compiles.share):
            return Passed(f"compiling takes {format_ratio(compiles.share)} of the steps once they have settled")
        return Fired((_finding(facts, compiles),))


def _finding(facts: Facts, compiles: CompileFacts) -> Finding:
    timed = compiles.source == "measured"
    origin = "torch.compile's callbacks" if timed else "events of torch.compile"
    row = partial(facts.evidence, origin=origin, source=compiles.source, n=compiles.of)
    again = f" Compiled again: {', '.join(compiles.recompiled)}." if compiles.recompiled else ""
    why, fix = _by_guard(compiles.guards[0]) if compiles.guards else ("", _SIZES)
    lost_ns = compiles.share * (facts.mean_step_ns or 0.0) * compiles.of / max(compiles.steps, 1)
    return finding_for(
        facts,
        bound="overhead-bound",
        title=f"{compiles.steps} of {compiles.of} settled steps compile, for {format_ns(lost_ns)} each",
        why=f"A compilation for each new shape or value stops the loop until it is done.{again}{why}",
        evidence=(
            row("Compiling, share of the settled steps", compiles.share, "ratio"),
            row("Steps that compile", compiles.steps, "count"),
            row("Compiled regions", compiles.regions, "count"),
            row("Compiling in each step that compiles", lost_ns, "ns"),
        ),
        at_most="high" if timed else "medium",
        detail="compile",
        saving=saving(compiles.share, compiles.longer),
        fix=fix,
        confirm="With TORCH_LOGS=recompiles nothing may be printed after the first steps.",
    )


def _by_guard(guard: str) -> tuple[str, Fix]:
    """Return what the guard that fails most is about, as a sentence after a space, and its fix."""
    found = _LOOKS_AT.search(guard)
    subject = f"{found[1]}{found[2]}" if found else "what it looks at"
    known = next((remedy for remedy in _REMEDIES if remedy.guard.search(guard)), None)
    because = f": {known.why.format(subject)}" if known else ""
    fix = known.fix if known else Fix(text="Keep the value that this guard checks the same from step to step.")
    named = revise(fix, text=fix.text.format(subject), code=fix.code.format(subject))
    return f" The guard that failed is {guard}{because}.", named
