"""Findings gone, new, worse, better and unchanged between two reports."""

import re
from collections.abc import Callable, Hashable

from profilerkit.model.diff import FindingChange, FindingState, Judgement
from profilerkit.model.finding import Finding, Outcome, Saving, Severity, in_order
from profilerkit.model.report import Report

#: Severities from the least on.
ORDER: tuple[Severity, ...] = ("info", "low", "medium", "high")
#: Two expected savings closer than this, in shares of the step, are the same (a choice).
SAME_SAVING = 0.03
_STATES: tuple[FindingState, ...] = ("gone", "new", "worse", "better", "unchanged")
#: Outcomes in which a rule looked and found nothing.
_LOOKED = ("passed", "not_applicable", "fired")
#: A number in a title, with its unit.
_NUMBER = re.compile(r"\d[\d.,]*(?:\s?(?:%|(?:[nµm]?s|min|h|[KMGTk]?i?B)\b))?")

_Entry = tuple[str, Finding]
_Pair = tuple[str, Finding | None, Finding | None]


def finding_changes(before: Report, after: Report, verdict: Judgement) -> tuple[FindingChange, ...]:
    """Every finding of either side, gone first, unchanged last; ``verdict`` is that on the step."""
    summaries = {outcome.rule: outcome.summary for outcome in (*before.outcomes, *after.outcomes)}
    rows = [
        _change(rule, first, second, verdict, _why_silent(after if first else before, rule), summaries[rule])
        for rule, first, second in _pairs(_findings(before), _findings(after))
    ]
    return tuple(sorted(rows, key=lambda row: (_STATES.index(row.state), -_expected(row), row.rule)))


def _findings(report: Report) -> list[_Entry]:
    return [(outcome.rule, finding) for outcome, finding in in_order(report.outcomes)]


def _pairs(before: list[_Entry], after: list[_Entry]) -> list[_Pair]:
    """The findings of both sides by what they say, the closest match first; then those without a partner.

    The rank counts only where a closer match is to be had: which rank is late may change from run to run.
    """
    pairs: list[_Pair] = []
    for key in _KEYS:
        for entry in tuple(before):
            partner = next((other for other in after if key(other) is not None and key(other) == key(entry)), None)
            if partner is not None:
                before.remove(entry)
                after.remove(partner)
                pairs.append((entry[0], entry[1], partner[1]))
    return [*pairs, *((rule, finding, None) for rule, finding in before), *((rule, None, new) for rule, new in after)]


def _stem(title: str) -> str:
    """A title without its numbers, which differ from run to run.

    >>> _stem("Logging takes 1.2 s every 50 steps"), _stem("Logging takes 980 ms every 9 steps")
    ('Logging takes # every # steps', 'Logging takes # every # steps')
    """
    return _NUMBER.sub("#", title)


#: What two findings have in common that are one, the strictest first; ``None`` matches nothing.
_KEYS: tuple[Callable[[_Entry], Hashable], ...] = (
    lambda entry: (entry[0], entry[1].rank, _stem(entry[1].title)),
    lambda entry: (entry[0], _stem(entry[1].title)),
    lambda entry: (entry[0], entry[1].detail) if entry[1].detail else None,
)


def _why_silent(report: Report, rule: str) -> str:
    """Why the rule says nothing there although it did not pass; empty when it looked."""
    outcome: Outcome | None = next((outcome for outcome in report.outcomes if outcome.rule == rule), None)
    if outcome is None:
        return "the rule was not known"
    if outcome.status in _LOOKED:
        return ""
    return f"{outcome.status.replace('_', ' ')}: {outcome.reason}" if outcome.reason else outcome.status


def _change(
    rule: str, before: Finding | None, after: Finding | None, verdict: Judgement, silent: str, summary: str
) -> FindingChange:
    shown = after or before
    assert shown is not None
    return FindingChange(
        rule=rule,
        title=shown.title,
        state=_state(before, after, verdict),
        rank=shown.rank,
        before_severity=before.severity if before else None,
        after_severity=after.severity if after else None,
        before_saving=before.saving if before else None,
        after_saving=after.saving if after else None,
        reason="" if before and after else silent,
        summary=summary,
    )


def _state(before: Finding | None, after: Finding | None, verdict: Judgement) -> FindingState:
    """Of savings, only a change that is more than their intervals leave open, or that the step itself shows, counts."""
    if after is None:
        return "gone"
    if before is None:
        return "new"
    # Before any probe: one of the runs may have had none.
    old, new = before.prediction, after.prediction
    if old and new:
        more = new.expected - old.expected
        is_seen = _disjoint(old, new) or verdict == ("slower" if more > 0 else "faster")
        if abs(more) >= SAME_SAVING and is_seen:
            return "worse" if more > 0 else "better"
        return "unchanged"
    grown = ORDER.index(after.severity) - ORDER.index(before.severity)
    return "unchanged" if not grown else "worse" if grown > 0 else "better"


def _disjoint(first: Saving, second: Saving) -> bool:
    return first.high < second.low or second.high < first.low


def _expected(row: FindingChange) -> float:
    saving = row.before_saving if row.state == "gone" else row.after_saving
    return saving.expected if saving else -1.0
