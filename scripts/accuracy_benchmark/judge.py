"""What a report says about a scenario, held against its label and against what the fixes really save."""

from collections.abc import Sequence
from typing import Any

from accuracy_benchmark.scenario import Fix, Scenario
from accuracy_benchmark.scores import HARM
from profilerkit.model.finding import Finding, Saving, in_order
from profilerkit.model.report import Report
from profilerkit.model.trial import Attempt, Trial
from profilerkit.model.verdict import BOUND_FAMILY, Verdict

#: Expected saving from which advice about a healthy run is a false alarm (§1.8 of the diagnosis method: healthy is what
#: no fix makes 5 % faster).
ALARM = 0.05
ABSTAINED = "abstained"


def family_of(verdict: Verdict, wanted: Sequence[str] = ()) -> str:
    """The family a verdict names: ``mixed`` where it names all of several ``wanted`` bounds, ``healthy`` where none.

    A verdict that the kernels own the step, without anything to save, says that the run is healthy.
    """
    if verdict.bound == "inconclusive":
        return ABSTAINED
    if len(wanted) > 1 and set(wanted) <= {verdict.bound, *verdict.contenders}:
        return "mixed"
    if verdict.bound == "balanced" or (verdict.bound == "compute-bound" and verdict.saving is None):
        return "healthy"
    return BOUND_FAMILY[verdict.bound]


def judge(scenario: Scenario, report: Report, trial: Trial | None, truths: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What was said, whether it is right, and each fix as it was predicted, tried and measured; a truth for each."""
    verdict = report.verdict
    fired = sorted({outcome.rule for outcome, _ in in_order(report.outcomes)})
    said = family_of(verdict, scenario.bounds if scenario.family == "mixed" else ())
    right = said == scenario.family if scenario.family == "mixed" else verdict.bound in scenario.bounds
    right = right and not (scenario.family == "healthy" and said != "healthy")
    right = right and (scenario.rank is None or verdict.rank == scenario.rank)
    leaf = right and (not scenario.details or verdict.detail in scenario.details)
    leaf = leaf and (not scenario.rules or bool(set(scenario.rules) & set(fired)))
    fixes = [fix_record(fix, report, trial, truth) for fix, truth in zip(scenario.fixes, truths, strict=True)]
    return {
        "said": {
            "family": said,
            "bound": verdict.bound,
            "detail": verdict.detail,
            "confidence": verdict.confidence,
            "headline": verdict.headline,
            "rank": verdict.rank,
            "contenders": list(verdict.contenders),
            "saving": saving_record(verdict.saving, None),
            "fired": fired,
            "step_ms": report.steps.time_ns.mean / 1e6 if report.steps.time_ns else None,
            "parts": {part.part: round(part.share, 4) for part in report.breakdown if part.share >= 0.01},
        },
        "family_is_right": right,
        "leaf_is_right": leaf,
        "abstained": said == ABSTAINED,
        "alarm": scenario.family == "healthy" and (said not in ("healthy", ABSTAINED) or _advises(report)),
        "fixes": fixes,
        "tried": trial_record(trial) if trial else None,
    }


def proposed(report: Report, trial: Trial | None) -> dict[str, Any]:
    """The value proposed for each setting: the one that was tried with most success, or that of the best finding."""
    found = sorted((finding for _, finding in in_order(report.outcomes) if finding.fix), key=_expected)
    changes = [change for finding in found if finding.fix for change in finding.fix.changes]
    tried = sorted(trial.attempts, key=_success) if trial else []
    changes += [change for attempt in tried for change in attempt.changes]
    return {change.setting: change.proposed for change in changes}


def _success(attempt: Attempt) -> tuple[bool, float]:
    return attempt.kept, attempt.saving.expected if attempt.saving else -1.0


def trial_record(trial: Trial) -> dict[str, Any]:
    """A trial as a row has it: all that was tried, and what it took."""
    return {
        "step_ms": trial.step_ns and trial.step_ns / 1e6,
        "runs": trial.runs,
        "steps": trial.steps,
        "seconds": round(trial.seconds, 1),
        "attempts": [attempt_record(attempt) for attempt in trial.attempts],
        "together": attempt_record(trial.together) if trial.together else None,
        "notes": list(trial.notes),
    }


def attempt_record(attempt: Attempt) -> dict[str, Any]:
    """What was tried, and what came of it."""
    saving = attempt.saving
    return {
        "what": attempt.text,
        "rules": list(attempt.rules),
        "outcome": attempt.outcome,
        "saving": {"low": saving.low, "expected": saving.expected, "high": saving.high} if saving else None,
        "numbers": attempt.numbers,
        "apart": attempt.apart,
        "runs": attempt.runs,
        "kept": attempt.kept,
        "reason": attempt.reason,
    }


def _advises(report: Report) -> bool:
    """Whether any finding tells to change something for a saving worth having."""
    return any(
        finding.fix is not None and finding.saving is not None and finding.saving.expected >= ALARM
        for _, finding in in_order(report.outcomes)
    )


def fix_record(fix: Fix, report: Report, trial: Trial | None, truth: dict[str, Any]) -> dict[str, Any]:
    """A fix, what it really saves, what ``try`` measured of it, and what the best finding that proposes it promised.

    Where it was tried that is the promise of the run that proposed it: of the value that was tried.
    """
    about = [(outcome.rule, finding) for outcome, finding in in_order(report.outcomes) if outcome.rule in fix.rules]
    best = max(about, key=lambda entry: _expected(entry[1]), default=None)
    predicted = saving_record(best[1].saving, best[0]) if best else None
    tries = [one for one in (trial.attempts if trial else ()) if {c.setting for c in one.changes} == {fix.setting}]
    attempt = max(tries, key=_success, default=None) if fix.is_switch else None
    if attempt and attempt.predicted:
        predicted = saving_record(attempt.predicted, attempt.rules[0])
    tried = attempt_record(attempt) if attempt else None
    advised = any(finding.fix is not None for _, finding in about)
    return {
        "what": fix.what,
        "rules": list(fix.rules),
        "truth": truth,
        "predicted": predicted,
        "advised": advised,
        "proposal": best[1].fix.text if best and best[1].fix else None,
        "error": predicted["expected"] - truth["saving"] if predicted else None,
        "covered": predicted["low"] <= truth["saving"] <= predicted["high"] if predicted else None,
        "harm": advised and truth["saving"] < HARM,
        "is_switch": fix.is_switch,
        "tried": tried,
    }


def _expected(finding: Finding) -> float:
    return finding.saving.expected if finding.saving else -1.0


def saving_record(saving: Saving | None, rule: str | None) -> dict[str, Any] | None:
    """A promised saving as the report has it."""
    if saving is None:
        return None
    low, expected, high = saving.low, saving.expected, saving.high
    return {"low": low, "expected": expected, "high": high, "method": saving.method, "rule": rule}
