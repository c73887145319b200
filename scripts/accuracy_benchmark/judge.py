"""What a report says about a scenario, held against its label and against what the fixes really save."""

import re
from collections.abc import Sequence
from typing import Any

from accuracy_benchmark.scenario import Fix, Scenario
from profilerkit.model.finding import Finding, Saving, in_order
from profilerkit.model.report import Report
from profilerkit.model.verdict import BOUND_FAMILY, Verdict

#: A fix that lengthens the step by more than this share of it does harm.
HARM = -0.02
#: Expected saving from which advice about a healthy run is a false alarm (§1.8 of the diagnosis method: healthy is what
#: no fix makes 5 % faster).
ALARM = 0.05
ABSTAINED = "abstained"
_WORKERS = re.compile(r"num_workers \d+ → (\d+)")


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


def judge(scenario: Scenario, report: Report, truths: Sequence[dict[str, float]]) -> dict[str, Any]:
    """What was said, whether it is right, and each fix as it was predicted and measured; ``truths`` has one per fix."""
    verdict = report.verdict
    fired = sorted({outcome.rule for outcome, _ in in_order(report.outcomes)})
    said = family_of(verdict, scenario.bounds if scenario.family == "mixed" else ())
    right = said == scenario.family if scenario.family == "mixed" else verdict.bound in scenario.bounds
    right = right and not (scenario.family == "healthy" and said != "healthy")
    right = right and (scenario.rank is None or verdict.rank == scenario.rank)
    leaf = right and (not scenario.details or verdict.detail in scenario.details)
    leaf = leaf and (not scenario.rules or bool(set(scenario.rules) & set(fired)))
    fixes = [fix_record(fix, report, truth) for fix, truth in zip(scenario.fixes, truths, strict=True)]
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
    }


def proposed_workers(report: Report) -> int | None:
    """Worker processes that the report tells to use, by the finding that saves most; ``None`` where none does."""
    found = [
        (_expected(finding), int(match[1]))
        for _, finding in in_order(report.outcomes)
        if finding.fix is not None and (match := _WORKERS.search(finding.fix.text)) is not None
    ]
    return max(found)[1] if found else None


def _advises(report: Report) -> bool:
    """Whether any finding tells to change something for a saving worth having."""
    return any(
        finding.fix is not None and finding.saving is not None and finding.saving.expected >= ALARM
        for _, finding in in_order(report.outcomes)
    )


def fix_record(fix: Fix, report: Report, truth: dict[str, float]) -> dict[str, Any]:
    """A fix, what it really saves, and what the best finding that proposes it promised."""
    about = [(outcome.rule, finding) for outcome, finding in in_order(report.outcomes) if outcome.rule in fix.rules]
    best = max(about, key=lambda entry: _expected(entry[1]), default=None)
    predicted = saving_record(best[1].saving, best[0]) if best else None
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
    }


def _expected(finding: Finding) -> float:
    return finding.saving.expected if finding.saving else -1.0


def saving_record(saving: Saving | None, rule: str | None) -> dict[str, Any] | None:
    """A promised saving as the report has it."""
    if saving is None:
        return None
    low, expected, high = saving.low, saving.expected, saving.high
    return {"low": low, "expected": expected, "high": high, "method": saving.method, "rule": rule}
