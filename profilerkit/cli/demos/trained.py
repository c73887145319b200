"""What a demo's training program hands back: the run, and the fix its report proposes."""

from dataclasses import dataclass

from profilerkit.model.finding import Saving, in_order
from profilerkit.model.report import Report


@dataclass(frozen=True, slots=True)
class Trained:
    """One training run.

    Attributes:
        report: of the run; ``None`` when capture had to switch itself off.
        step_ns: mean of the last ``steps`` steps by the program's own clock, none of them under torch's profiler.
            Not the median: two workers deliver in pairs, so long and short steps alternate.
        compute_ns: mean of what the program computes in these steps, without what the fix changes: where it differs
            between two runs, the machine was busy with something else.
        steps: how many steps the means rest on.
    """

    report: Report | None
    step_ns: float
    compute_ns: float
    steps: int


@dataclass(frozen=True, slots=True)
class Proposal:
    """The fix to apply.

    Attributes:
        settings: for the training program.
        text: names the current and the proposed values.
        saving: what the report predicts; ``None`` when it predicts nothing.
        rule: the rule that predicts it; ``None`` when the report proposed nothing and the program fell back.
    """

    settings: dict[str, int]
    text: str
    saving: Saving | None
    rule: str | None


def proposal(trained: Trained, rule: str, settings: dict[str, int], text: str) -> Proposal:
    """The fix ``text`` with the saving that ``rule`` predicts; without one where it is silent."""
    for outcome, finding in in_order(trained.report.outcomes) if trained.report else ():
        if outcome.rule == rule:
            return Proposal(settings, text, finding.saving, rule)
    return Proposal(settings, text, None, None)
