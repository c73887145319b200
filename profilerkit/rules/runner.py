"""Run every rule with its options and suppressions; one broken rule must not cost the report."""

import dataclasses
import json
import logging
import math
from collections.abc import Mapping, Sequence
from datetime import date
from itertools import count, pairwise
from traceback import walk_tb
from typing import Any

from profilerkit.analysis.facts import Facts
from profilerkit.analysis.trust import SHOW_KERNELS, fitting
from profilerkit.config import Options, Suppression, did_you_mean, unknown_word
from profilerkit.errors import ConfigError, raised
from profilerkit.model import revise
from profilerkit.model.finding import Confidence, Finding, Outcome, Severity, in_order, require_writable
from profilerkit.model.step import WHOLE_TRACE, as_judged
from profilerkit.rules.api import Fired, MissingData, NotApplicable, Passed, Rule
from profilerkit.rules.calibrated import calibrated, with_replay, without_recording
from profilerkit.rules.docs import page_of, thresholds

logger = logging.getLogger(__name__)

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
    """Computed, not chosen: expected saving times the weight of the confidence; ``info`` without a saving."""
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
    return tuple(revise(row, findings=tuple(judged[id(finding)] for finding in row.findings)) for row in outcomes)


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
        return revise(blank, status="error", reason=_failed(rule, error))


def _failed(rule: Rule, error: BaseException) -> str:
    """Return what a rule raised, with its module and the last line there, which name the package it is of."""
    module = type(rule).__module__
    lines = [line for frame, line in walk_tb(error.__traceback__) if frame.f_globals.get("__name__") == module]
    return f"{f'line {lines[-1]} of ' if lines else ''}{module} raised {raised(error)}"


def _replayed(facts: Facts, outcomes: Sequence[Outcome]) -> Sequence[Outcome]:
    """The outcomes with the savings of the replay; where it fails the rules' own stay, and the findings say so."""
    try:
        return with_replay(facts, outcomes)
    except Exception as error:
        # Of the same guard: the replay is of all rules at once, and none of them may be lost with it.
        logger.debug("the replay failed", exc_info=True)
        said = f" The replay of the fix failed ({type(error).__name__}: {error})."
        return [
            revise(entry, findings=tuple(revise(f, why=f.why + said) if f.saving else f for f in entry.findings))
            for entry in outcomes
        ]


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
        hint = SHOW_KERNELS[facts.kernels_unseen or "unknown"]
        return MissingData("the run used a device, but the trace holds none of its events", hint)
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
        for gain, most in ((finding.saving, 1.0), (finding.throughput, math.inf)):
            ends = (0.0, gain.low, gain.expected, gain.high, most) if gain is not None else (0.0,)
            # A comparison with NaN is false, so that NaN is out of order too.
            ordered = all(lower <= higher + _ROUNDING for lower, higher in pairwise(ends))
            if not ordered or math.inf in ends[:-1]:
                said = f"a gain of {', '.join(map(str, ends[1:-1]))} (low, expected, high)"
                raise ValueError(f"{finding.title}: {said} is none between 0 and {most:g}")
    return outcome


def with_options(
    rules: Sequence[Rule], options: Mapping[str, Mapping[str, Any]]
) -> tuple[tuple[Rule, ...], tuple[str, ...]]:
    """The rules with options by code or name, and a sentence about each rule that has another option than its own.

    Raises:
        UsageError: there is no such rule.
        ConfigError: the rule has no such option, or the value is not of the option's kind or out of its range.
    """
    changes: dict[str, dict[str, Any]] = {}
    for wanted, values in options.items():
        rule = _find(wanted, rules)
        where = values.where if isinstance(values, Options) else f"the options of {rule.code}"
        checked = {name: _checked_option(rule, name, value, where) for name, value in values.items()}
        changes.setdefault(rule.code, {}).update(checked)
    tuned = tuple(revise(rule, **changes[rule.code]) if rule.code in changes else rule for rule in rules)
    said = []
    for before, after in zip(rules, tuned, strict=True):
        pairs = [(name, old, getattr(after, name)) for name, old in thresholds(before).items()]
        if changed := [f"{name} {old} → {new}" for name, old, new in pairs if old != new]:
            said.append(f"{before.code} was judged with other options than its own: {', '.join(changed)}.")
    return tuned, tuple(said)


def in_force(
    suppressions: Sequence[Suppression], rules: Sequence[Rule], today: date
) -> tuple[tuple[Suppression, ...], tuple[str, ...]]:
    """Return the suppressions that hold today, by the code of their rule, and a sentence about each that has ended.

    Raises ``UsageError`` for a rule that does not exist.
    """
    named = [dataclasses.replace(entry, rule=_find(entry.rule, rules).code) for entry in suppressions]
    ended = [entry for entry in named if entry.until is not None and entry.until < today]
    notes = tuple(f"The suppression of {entry.rule} ended on {entry.until}: {entry.reason}" for entry in ended)
    return tuple(entry for entry in named if entry not in ended), notes


def _find(wanted: str, rules: Sequence[Rule]) -> Rule:
    for rule in rules:
        if wanted.lower() in (rule.code.lower(), rule.name.lower()):
            return rule
    known = [name for rule in rules for name in (rule.code, rule.name)]
    raise unknown_word(wanted, known, what="rule", hint="profilerkit rules lists them")


def _written(name: str, default: Any) -> str:
    return f"write {name} = {json.dumps(default, default=str)}"


def _checked_option(rule: Rule, name: str, value: Any, where: str) -> Any:
    """Return the value in the type of the option's default; a whole number may stand for one with a fraction.

    A share, or a ratio whose default is none above 1, is from 0 to 1; other numbers are above 0, or just finite where
    the default is not.
    """
    known = thresholds(rule)
    if name not in known:
        hint = did_you_mean(name, list(known)) or (f"its options: {', '.join(known)}" if known else "it has no options")
        raise ConfigError(f"{rule.code} has no option {name!r}", cause=f"it is in {where}", hint=hint)
    default: Any = known[name]
    if isinstance(default, float) and type(value) is int:
        value = float(value)
    elif isinstance(default, tuple) and isinstance(value, list):
        value = tuple(value)
    if default is not None and type(value) is not type(default):
        cause = f"{where} says {value!r}, and its default is {default!r}"
        raise ConfigError(
            f"{name} of {rule.code} has the wrong kind of value", cause=cause, hint=_written(name, default)
        )
    if type(value) not in (int, float) or type(default) not in (int, float):
        return value
    if name.endswith(("_share", "_ratio")) and 0 <= default <= 1:
        fits, range_ = 0 <= value <= 1, "from 0 to 1"
    elif default > 0:
        fits, range_ = 0 < value < math.inf, "above 0"
    else:
        fits, range_ = math.isfinite(value), "a finite number"
    if not fits:
        cause = f"{where} says {value}, and it has to be {range_}"
        raise ConfigError(f"{name} of {rule.code} is out of its range", cause=cause, hint=_written(name, default))
    return value
