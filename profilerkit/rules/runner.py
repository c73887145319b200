"""Run every rule and record how it ended; one broken rule must not cost the report."""

import logging
import math
from collections.abc import Sequence
from itertools import count, pairwise

from profilerkit.analysis.facts import Facts
from profilerkit.analysis.trust import fitting
from profilerkit.config import Suppression
from profilerkit.model.change import revise
from profilerkit.model.finding import (
    Confidence,
    Finding,
    Outcome,
    Saving,
    Severity,
    Throughput,
    in_order,
    require_writable,
)
from profilerkit.model.step import WHOLE_TRACE, as_judged
from profilerkit.rules.api import Fired, MissingData, NotApplicable, Passed, Rule
from profilerkit.rules.calibrated import calibrated, without_recording
from profilerkit.rules.docs import page_of
from profilerkit.rules.replayed import with_replay

logger = logging.getLogger(__name__)

_WITH_DEVICE = "ProfilerActivity.CUDA beside ProfilerActivity.CPU"
_RECORD_A_RUN = "profilerkit run -- train.py, or a trace of torch.profiler"
_RECORD_STEPS = f"{_RECORD_A_RUN} beside the logs"

#: How much of a saving counts towards severity at each confidence.
CONFIDENCE_WEIGHT: dict[Confidence, float] = {"high": 1.0, "medium": 0.75, "low": 0.4}
#: Weighted expected saving at which a finding is high or medium.
HIGH_SAVING = 0.10
MEDIUM_SAVING = 0.03
#: How far the ends of an interval may be out of order, or beyond the whole: shares are sums of rounded parts.
_ROUNDING = 1e-9


def severity(finding: Finding) -> Severity:
    """Computed, not chosen: expected saving times the weight of the confidence; ``info`` without a saving.

    A gain in samples per second counts as the time that it saves for each sample.
    """
    if finding.saving is not None:
        expected = finding.saving.expected
    elif finding.throughput is not None:
        expected = 1.0 - 1.0 / (1.0 + finding.throughput.expected)
    else:
        return "info"
    weighted = expected * CONFIDENCE_WEIGHT[finding.confidence]
    return "high" if weighted >= HIGH_SAVING else "medium" if weighted >= MEDIUM_SAVING else "low"


def run_rules(
    facts: Facts,
    rules: Sequence[Rule],
    *,
    select: Sequence[str] = (),
    ignore: Sequence[str] = (),
    suppress: Sequence[Suppression] = (),
) -> tuple[Outcome, ...]:
    """One outcome per rule, in the order of ``rules``; evidence is numbered E1, E2 … in the order of the report.

    Args:
        facts: what is known.
        rules: the rules to run.
        select: code prefixes to run; empty means all.
        ignore: code prefixes to leave out; wins over ``select``.
        suppress: rules that run, but whose findings are set aside.
    """
    reasons = {entry.rule: entry for entry in suppress}
    ended = _replayed(facts, [_outcome(rule, facts, select, ignore) for rule in rules])
    ended = calibrated(facts, without_recording(facts, ended))
    return numbered([_set_aside(entry, reasons.get(entry.rule)) for entry in ended])


def numbered(outcomes: Sequence[Outcome]) -> tuple[Outcome, ...]:
    """Return the outcomes with the severity of each finding and the number of each piece of evidence."""
    numbers = count(1)
    # By identity: two findings, or two outcomes, may be equal.
    judged = {
        id(finding): revise(
            finding,
            evidence=tuple(revise(entry, id=f"E{next(numbers)}") for entry in finding.evidence),
            severity=severity(finding),
        )
        for _, finding in in_order(outcomes)
    }
    return tuple(
        revise(outcome, findings=tuple(judged[id(finding)] for finding in outcome.findings)) for outcome in outcomes
    )


def _outcome(rule: Rule, facts: Facts, select: Sequence[str], ignore: Sequence[str]) -> Outcome:
    blank = Outcome(rule=rule.code, name=rule.name, summary=rule.summary, status="off", reason="not selected")
    if (select and not rule.code.startswith(tuple(select))) or rule.code.startswith(tuple(ignore)):
        return blank
    try:
        if facts.framework and not getattr(rule, "of_any_framework", False):
            reason = f"it was made for PyTorch, and this is a profile of {facts.framework}"
            return _ended(blank, NotApplicable(reason), rule)
        if facts.unprofiled and facts.steps.time_ns is None:
            return _ended(blank, NotApplicable("the file holds no events of a profiler"), rule)
        result = _without_steps(rule, facts) or rule.check(facts)
        lost = _lost_device_work(facts)
        if lost is not None and isinstance(result, Fired) and any(f.saving for f in result.findings):
            # What looks like the host's own time may be waiting for the device that the trace does not show.
            result = lost
        if isinstance(result, MissingData):
            result = MissingData(result.reason, fitting(result.hint, facts.recorder))
        outcome = _checked(_ended(blank, result, rule))
        found_by = facts.steps.found_by
        if found_by != WHOLE_TRACE:
            return outcome
        findings = tuple(
            revise(
                finding,
                title=as_judged(finding.title, found_by),
                why=as_judged(finding.why, found_by),
                evidence=tuple(revise(entry, label=as_judged(entry.label, found_by)) for entry in finding.evidence),
            )
            for finding in outcome.findings
        )
        return revise(outcome, findings=findings, reason=as_judged(outcome.reason or "", found_by) or None)
    except (Exception, SystemExit) as error:
        # The one guard of the rules: what it caught is shown in the report.
        logger.debug("rule %s failed", rule.code, exc_info=True)
        return revise(blank, status="error", reason=f"{type(error).__name__}: {error}")


def _replayed(facts: Facts, outcomes: Sequence[Outcome]) -> Sequence[Outcome]:
    """The outcomes with the savings of the replay; where it fails the rules' own stay, and the findings say so."""
    try:
        return with_replay(facts, outcomes)
    except Exception as error:
        # Of the same guard: the replay is of all rules at once, and none of them may be lost with it.
        logger.debug("the replay failed", exc_info=True)
        said = f"The replay of the fix failed ({type(error).__name__}: {error})."
        return [revise(entry, findings=tuple(_with_reason(f, said) for f in entry.findings)) for entry in outcomes]


def _with_reason(finding: Finding, said: str) -> Finding:
    return finding if finding.saving is None else revise(finding, why=f"{finding.why} {said}")


def _set_aside(outcome: Outcome, suppression: Suppression | None) -> Outcome:
    """Return the outcome, suppressed where somebody wants that, and without the page of a rule that found nothing."""
    if outcome.status != "fired":
        return revise(outcome, page={})  # the replay takes back what is not worth its fix
    if suppression is None:
        return outcome
    until = "" if suppression.until is None else f" (until {suppression.until})"
    known = tuple(revise(finding, severity=severity(finding)) for finding in outcome.findings)
    reason = f"{suppression.reason}{until}"
    return revise(outcome, status="suppressed", reason=reason, findings=(), suppressed=known)


def _without_steps(rule: Rule, facts: Facts) -> MissingData | None:
    """Return how a rule about steps ends where nothing but logs or dumps was given; ``None`` for all others."""
    if facts.by_dumps and not rule.reads_dumps:
        return MissingData("flight recorder dumps show only when collectives were issued", _RECORD_A_RUN)
    if facts.logs is None or not facts.logs.alone or rule.reads_logs:
        return None
    return MissingData("only logs were given, which have no steps", _RECORD_STEPS)


def _lost_device_work(facts: Facts) -> MissingData | None:
    """Return why no saving can be told: the trace lacks what the device did; ``None`` where it does not."""
    if facts.device_events_missing:
        return MissingData("the run used a device, but the trace holds none of its events", _WITH_DEVICE)
    if facts.launches is not None and facts.launches.lost_much:
        return MissingData("the file is damaged and lacks much of what the device did", "save the trace again")
    return None


def _ended(blank: Outcome, result: object, rule: Rule) -> Outcome:
    match result:
        case Fired(findings) if findings:
            return revise(blank, status="fired", reason=None, findings=tuple(findings), page=page_of(rule))
        case Passed(reason):
            return revise(blank, status="passed", reason=reason)
        case NotApplicable(reason):
            return revise(blank, status="not_applicable", reason=reason)
        case MissingData(reason, hint):
            return revise(blank, status="missing_data", reason=reason, hint=hint)
        case _:  # types do not bind the rules of others
            raise TypeError(f"a rule must end in one of its four results, not in {result!r}")


def _checked(outcome: Outcome) -> Outcome:
    """Return the outcome. Raises where it is none that a report can hold: types do not bind the rules of others."""
    for finding in outcome.findings:
        if not isinstance(finding, Finding):
            raise TypeError(f"a rule that fired must hold findings, not {finding!r}")
    require_writable(outcome)
    for finding in outcome.findings:
        if finding.saving is not None:
            _in_order(finding.title, finding.saving, most=1.0)
        if finding.throughput is not None:
            _in_order(finding.title, finding.throughput, most=math.inf)
    return outcome


def _in_order(title: str, gain: Saving | Throughput, most: float) -> None:
    """Raise ``ValueError`` unless 0 ≤ low ≤ expected ≤ high ≤ ``most``, all of them finite."""
    ends = (0.0, gain.low, gain.expected, gain.high, most)
    # A comparison with NaN is false, so that NaN is out of order too.
    ordered = all(lower <= higher + _ROUNDING for lower, higher in pairwise(ends))
    if not ordered or math.isinf(gain.high):
        said = f"{gain.low}, {gain.expected}, {gain.high}"
        raise ValueError(f"{title}: a gain of {said} (low, expected, high) is none between 0 and {most:g}")
