"""Run every rule and record how it ended; one broken rule must not cost the report."""

import logging
from collections.abc import Sequence

from profilerkit.analysis.facts import Facts
from profilerkit.model.change import revise
from profilerkit.model.finding import Confidence, Evidence, Finding, Outcome, Severity
from profilerkit.rules.rule import Fired, MissingData, NotApplicable, Passed, Rule

logger = logging.getLogger(__name__)

_WITH_DEVICE = "ProfilerActivity.CUDA beside ProfilerActivity.CPU; of a cut file, all of it"

#: How much of a saving counts towards severity at each confidence.
CONFIDENCE_WEIGHT: dict[Confidence, float] = {"high": 1.0, "medium": 0.75, "low": 0.4}
#: Weighted expected saving at which a finding is high or medium.
HIGH_SAVING = 0.10
MEDIUM_SAVING = 0.03


def severity(finding: Finding) -> Severity:
    """Computed, not chosen: expected saving times the weight of the confidence; ``info`` without a saving."""
    if finding.saving is None:
        return "info"
    weighted = finding.saving.expected * CONFIDENCE_WEIGHT[finding.confidence]
    return "high" if weighted >= HIGH_SAVING else "medium" if weighted >= MEDIUM_SAVING else "low"


def run_rules(
    facts: Facts, rules: Sequence[Rule], *, select: Sequence[str] = (), ignore: Sequence[str] = ()
) -> tuple[Outcome, ...]:
    """One outcome per rule, in the order of ``rules``; evidence is numbered E1, E2 … across the report.

    Args:
        facts: what is known.
        rules: the rules to run.
        select: code prefixes to run; empty means all.
        ignore: code prefixes to leave out; wins over ``select``.
    """
    outcomes = [_outcome(rule, facts, select, ignore) for rule in rules]
    numbered = 0
    out = []
    for outcome in outcomes:
        findings = []
        for finding in outcome.findings:
            evidence: list[Evidence] = []
            for entry in finding.evidence:
                numbered += 1
                evidence.append(revise(entry, id=f"E{numbered}"))
            findings.append(revise(finding, evidence=tuple(evidence), severity=severity(finding)))
        out.append(revise(outcome, findings=tuple(findings)))
    return tuple(out)


def _outcome(rule: Rule, facts: Facts, select: Sequence[str], ignore: Sequence[str]) -> Outcome:
    blank = Outcome(rule=rule.code, name=rule.name, summary=rule.summary, status="off", reason="not selected")
    if (select and not rule.code.startswith(tuple(select))) or rule.code.startswith(tuple(ignore)):
        return blank
    try:
        result = rule.check(facts)
        lost = _lost_device_work(facts)
        if lost is not None and isinstance(result, Fired) and any(f.saving for f in result.findings):
            # What looks like the host's own time may be waiting for the device that the trace does not show.
            result = lost
        return _ended(blank, result)
    except Exception as error:
        # The one guard of the rules: what it caught is shown in the report.
        logger.debug("rule %s failed", rule.code, exc_info=True)
        return revise(blank, status="error", reason=f"{type(error).__name__}: {error}")


def _lost_device_work(facts: Facts) -> MissingData | None:
    """Why no saving can be told: the trace lacks what the device did; ``None`` where it does not."""
    if facts.device_events_missing:
        return MissingData("the run used a device, but the trace holds none of its events", _WITH_DEVICE)
    if facts.launches is not None and facts.launches.lost_much:
        return MissingData("the file is damaged and lacks much of what the device did", "save the trace again")
    return None


def _ended(blank: Outcome, result: object) -> Outcome:
    match result:
        case Fired(findings) if findings:
            return revise(blank, status="fired", reason=None, findings=findings)
        case Passed(reason):
            return revise(blank, status="passed", reason=reason)
        case NotApplicable(reason):
            return revise(blank, status="not_applicable", reason=reason)
        case MissingData(reason, hint):
            return revise(blank, status="missing_data", reason=reason, hint=hint)
        case _:  # types do not bind the rules of others
            raise TypeError(f"a rule must end in one of its four results, not in {result!r}")
