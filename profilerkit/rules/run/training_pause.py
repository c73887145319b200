"""RU002: training stops at intervals for evaluation, logging, or something unnamed."""

from profilerkit.analysis.whatif import at_most, saving
from profilerkit.model import revise
from profilerkit.model.finding import Finding, Fix
from profilerkit.model.step import PARTS, within
from profilerkit.rules.api import Facts, Fired, MissingData, Passed, Result, Rule, finding_for, record_longer
from profilerkit.rules.evidence import in_line, line_text, told_line
from profilerkit.rules.run.stop import Stop, stops
from profilerkit.units import format_about, format_ns, format_ratio

#: What has a rule of its own: RU001, OV006.
_OTHERS = ("checkpoint", "compile")
_UNNAMED = Fix(
    text="Name what runs there, then move it off the loop or make it rarer.",
    code='with prof.phase("evaluation"):\n    ...',
)

#: So many batches below this time are small (choices). A pass over 512 samples took 91 to 95 % less by batches of
#: 64 than one by one, for three sizes of a small model (torch 2.13, one thread, CPU seconds).
_MANY_BATCHES, _SHORT_BATCH_NS = 32, 2_000_000
#: Below this a batch is as good as empty: one by one they took 0.16 to 0.38 ms. What larger ones save of longer batches
#: is not known.
_EMPTY_BATCH_NS = 500_000

#: What an evaluation is advised that nobody called one.
_NOT_NAMED = " Nobody named it: if it makes data to train on, as rollouts do, make it faster instead."


class TrainingPause(Rule, frozen=True):
    """Find evaluation, logging and other pauses that take {smallest_share} of the time.

    Why it costs: The GPU does not train during the pause, or has no work at all.

    Example:
        for step, batch in enumerate(loader):
            train_step(batch)
            evaluate()
    Use instead:
        for step, batch in enumerate(loader):
            train_step(batch)
            if step % 1000 == 0:
                evaluate()
    How it is measured: Named phases, passes over data without a backward pass, and time between eval() and train()
        count. Without names, steps that are longer at regular intervals count. At least {fewest_steps} steps must be
        timed. The saving is {rarer_ratio} of the pause, or {batched_ratio} of an evaluation in small batches.
    When it is wrong: A window of ten traced steps seldom contains a pause. The step that applies accumulated gradients
        is expected to be longer. For a rollout only the bound is known.
    """

    code = "RU002"
    summary = "Training stops at intervals for work other than checkpoints"

    smallest_share: float = 0.05
    rarer_ratio: float = 0.5  #: part that is saved when the work is done half as often
    #: Part of an evaluation by small batches that larger ones save: the least of three sizes of a model.
    batched_ratio: float = 0.9
    fewest_steps: int = 20  #: steps needed before the absence of a stall means anything

    def check(self, facts: Facts) -> Result:
        found = [stop for stop in stops(facts) if stop.kind not in _OTHERS]
        large = tuple(stop for stop in found if stop.lost(facts) >= self.smallest_share)
        if large:
            # Measured by its own time, or found beyond chance: how much the other steps vary says nothing of it.
            return Fired(tuple(self._finding(facts, stop) for stop in large))
        if not found and facts.steps.count < self.fewest_steps:
            few = f"{facts.steps.count} steps are too few to see a period"
            return MissingData(few, record_longer(facts, f"{self.fewest_steps} steps"))
        if found:
            most = format_ratio(max(stop.lost(facts) for stop in found))
            return Passed(f"the largest stop costs {most} of the run")
        return Passed(f"nothing recurs that costs {format_ratio(self.smallest_share)} of the run")

    def _finding(self, facts: Facts, stop: Stop) -> Finding:
        if stop.is_rollout(facts):
            return finding_for(
                facts,
                bound="overhead-bound",
                title=f"What is likely a rollout takes {format_ns(stop.each_ns)} {stop.how_often}",
                why=f"{stop.spread(facts)}{told_line(stop.line, 'one')} It likely generates the training data: "
                "no loader was seen.",
                evidence=stop.evidence(facts, "Rollout"),
                at_most="medium",
                detail="rollout",
                saving=at_most(stop.lost(facts)),
                fix=Fix(
                    text=f"Make the rollout faster{in_line(stop.line)}: step more environments at once, or in separate "
                    "processes. Run the policy on all of them in one call, under torch.no_grad()."
                ),
                confirm="The long steps must get shorter, with as many samples in a rollout.",
            )
        text = _short(stop.kind)
        label = text[:1].upper() + text[1:]
        if stop.kind == "unnamed":
            label = "Something unnamed" if stop.line is None else line_text(stop.line)
        is_empty = _reads_small_batches(stop, _EMPTY_BATCH_NS / (1.0 - facts.taken))
        ratio = self.batched_ratio if is_empty else self.rarer_ratio
        return finding_for(
            facts,
            bound="overhead-bound",
            title=f"{label} stops training for {format_ns(stop.each_ns)} {stop.how_often}",
            why=f"{stop.spread(facts)}{told_line(stop.line, 'one')}{_grown(stop)}",
            evidence=stop.evidence(facts, label),
            at_most="high" if stop.source == "measured" else "medium",
            detail=stop.kind if stop.kind == "evaluation" else "python",
            saving=saving(ratio * stop.lost(facts), stop.lost(facts)),
            fix=_fix(stop, may_be_rollout=facts.input is None and (stop.line is None or "model" in facts.lines)),
            confirm="The long steps must be gone from the per-step figure.",
        )


def _fix(stop: Stop, *, may_be_rollout: bool) -> Fix:
    rarer = "half as often"
    if stop.steps_apart is not None:
        rarer = f"every {format_about(stop.steps_apart)} → {format_about(2 * stop.steps_apart)} steps"
    match stop.kind:
        case "evaluation":
            told = "" if stop.known_by == "name" or stop.records_graphs else _NOT_NAMED
            where = f" Or make it cheaper{in_line(stop.line)}." if stop.line is not None else ""
            code = "model.eval()\nwith torch.no_grad():\n    ..." if stop.records_graphs else ""
            return Fix(text=f"{_cheaper(stop)}Evaluate {rarer}, or on another device.{where}{told}", code=code)
        case "logging":
            return Fix(text=f"Log {rarer}, or from a background thread{in_line(stop.line)}.")
        case "unnamed":
            fix = _UNNAMED
            if stop.line is not None:
                fix = Fix(text=f"Move {line_text(stop.line)} off the loop, or make it rarer.")
            if may_be_rollout:
                fix = revise(fix, text=f"{fix.text} A rollout is training: make it faster instead.")
            return fix
        case _:
            what = "it" if stop.line is None else line_text(stop.line)
            return Fix(text=f'Run "{_short(stop.kind)}" {rarer}, or move {what} off the loop.')


def _cheaper(stop: Stop) -> str:
    """Return what an evaluation needs not do, as sentences; empty where nothing is known of that."""
    out = "Evaluate under torch.no_grad(): autograd records each of its forward passes. " if stop.records_graphs else ""
    if stop.batches is not None and _reads_small_batches(stop):
        each = format_ns(stop.each_ns / stop.batches)
        out += f"Evaluate in larger batches: it takes {format_about(stop.batches)} of {each} each. "
    return out


def _reads_small_batches(stop: Stop, below_ns: float = _SHORT_BATCH_NS) -> bool:
    many = stop.batches is not None and stop.batches >= _MANY_BATCHES
    return many and stop.each_ns < (stop.batches or 0.0) * below_ns


def _grown(stop: Stop) -> str:
    """Where the extra time of longer steps goes, as a sentence; empty where it is not known or in the stop's name."""
    stall = stop.stall
    if stall is None or stall.grew is None or stall.coverage is None or stall.part is not None:
        return ""
    return f" {format_ratio(stall.coverage)} of it is in one part: {within(PARTS[stall.grew][1])}."


def _short(kind: str) -> str:
    """Return the name of a phase where there is room for six words of it."""
    words = kind.split()
    text = " ".join(words[:6])[:40].rstrip()
    return text + ("" if text == " ".join(words) else "…")
