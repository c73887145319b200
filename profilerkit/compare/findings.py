"""Findings and fixes of two reports: what became of each, and what was predicted beside what was measured."""

import math
from collections.abc import Callable, Hashable, Sequence
from typing import Literal, NamedTuple

from profilerkit.compare.sides import loader_settings
from profilerkit.model import revise
from profilerkit.model.diff import AppliedFix, FindingChange, FindingState, Judgement, PartChange, Range, StepChange
from profilerkit.model.finding import Bound, Finding, Outcome, SettingChange, Severity, in_order
from profilerkit.model.report import Report
from profilerkit.rules.parts import PARTS_OF_RULE

ORDER: tuple[Severity, ...] = ("info", "low", "medium", "high")  #: severities from the least on
#: Two expected savings closer than this, in shares of the step, are the same (a choice).
SAME_SAVING = 0.03
_STATES: tuple[FindingState, ...] = ("gone", "new", "worse", "better", "unchanged")
#: Outcomes in which a rule looked and found nothing.
_LOOKED = ("passed", "not_applicable", "fired")
_Entry = tuple[str, Finding]
_Pair = tuple[str, Finding | None, Finding | None]


def finding_changes(before: Report, after: Report, verdict: Judgement) -> tuple[FindingChange, ...]:
    """Every finding of either side, gone first, unchanged last; ``verdict`` is that on the step."""
    summaries = {outcome.rule: outcome.summary for outcome in (*before.outcomes, *after.outcomes)}
    sides = [[(outcome.rule, finding) for outcome, finding in in_order(side.outcomes)] for side in (before, after)]
    rows = []
    for rule, first, second in _pairs(*sides):
        shown = second or first
        assert shown is not None
        row = FindingChange(
            rule=rule,
            title=shown.title,
            state=_state(first, second, verdict),
            rank=shown.rank,
            before_severity=first.severity if first else None,
            after_severity=second.severity if second else None,
            before_saving=first.saving if first else None,
            after_saving=second.saving if second else None,
            reason="" if first and second else _why_silent(after if first else before, rule),
            summary=summaries[rule],
        )
        saving = row.before_saving if row.state == "gone" else row.after_saving
        rows.append((_STATES.index(row.state), -saving.expected if saving else 1.0, rule, row))
    return tuple(row for *_, row in sorted(rows, key=lambda entry: entry[:3]))


def _pairs(before: list[_Entry], after: list[_Entry]) -> list[_Pair]:
    """The findings of both sides by what they are about, the closest match first; then those without a partner.

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


#: What two findings have in common that are one, the strictest first; ``None`` matches nothing. What a finding is about
#: is named by the number that it shows first.
_KEYS: tuple[Callable[[_Entry], Hashable], ...] = (
    lambda entry: (entry[0], entry[1].rank, entry[1].detail, entry[1].evidence[0].label),
    lambda entry: (entry[0], entry[1].detail, entry[1].evidence[0].label),
    lambda entry: (entry[0], entry[1].detail) if entry[1].detail else None,
    lambda entry: (entry[0], entry[1].evidence[0].label),
)


def _why_silent(report: Report, rule: str) -> str:
    """Why the rule says nothing there although it did not pass; empty when it looked."""
    outcome: Outcome | None = next((outcome for outcome in report.outcomes if outcome.rule == rule), None)
    if outcome is None:
        return "the rule was not known"
    if outcome.status in _LOOKED:
        return ""
    return f"{outcome.status.replace('_', ' ')}: {outcome.reason}" if outcome.reason else outcome.status


def _state(before: Finding | None, after: Finding | None, verdict: Judgement) -> FindingState:
    """Of savings, only a change that is more than their intervals leave open, or that the step itself shows, counts."""
    if after is None:
        return "gone"
    if before is None:
        return "new"
    old, new = before.saving, after.saving
    if old and new:
        more = new.expected - old.expected
        is_seen = (old.high < new.low or new.high < old.low) or verdict == ("slower" if more > 0 else "faster")
        if abs(more) >= SAME_SAVING and is_seen:
            return "worse" if more > 0 else "better"
        return "unchanged"
    grown = ORDER.index(after.severity) - ORDER.index(before.severity)
    return "unchanged" if not grown else "worse" if grown > 0 else "better"


_STILL_THERE = 0.95  #: parts that take so much of what they took are still there (a choice)
#: Rules about other programs, which end without a fix: what they took is taken out of the steps, or in the doubt.
_OF_OTHERS = ("RU005",)
#: Fixes that all together were to save less than so much of what the largest one was to do not keep that from being
#: judged, and a finding has gone for the most part where less than so much of its time is left (choices).
_MINOR = 0.1
_LITTLE_LEFT = 0.5
_OPEN = "several fixes were applied at once, so their savings were not measured one by one"
_NO_SETTING = "not judged: no setting of this fix is known to have changed"
_UNCERTAIN = "neither held nor missed: the measurement is too uncertain"
_BESIDE = "gone with the fix above"
_LEFT = "not judged: part of it remains"
_TOO_LITTLE = "not judged: too small next to the fix above"

_How = Literal["the setting is as proposed", "the finding is gone", "the finding is smaller"]


class _Settled(NamedTuple):
    """A fix that is in force, or whose finding went, the bound that its finding argues for, and the setting it changes.

    The setting is ``None`` where the fix changes none that is recorded.
    """

    fix: AppliedFix
    bound: Bound | None
    setting: str | None = None

    @property
    def counts(self) -> bool:
        """Whether it has a part in what was measured: what argues for no bound and saves nothing has none."""
        return self.bound is not None or self.fix.predicted is not None

    @property
    def expected(self) -> float:
        """The saving that it was to bring; 0 where none was stated."""
        return self.fix.predicted.expected if self.fix.predicted else 0.0


def applied_fixes(
    before: Report,
    after: Report,
    findings: Sequence[FindingChange],
    parts: Sequence[PartChange],
    step: StepChange | None,
) -> tuple[AppliedFix, ...]:
    """Fixes whose setting changed as proposed, then those whose finding is gone, or most of it; largest saving first.

    What was measured is the saving of all changes between the runs. It is held against the prediction of a fix where
    that fix alone was applied. A finding of the same bound that went with a setting is taken for its effect, one of
    another bound for a fix of its own; several independent fixes are not judged, unless all but one are minor. A
    finding whose fix names a setting that is what it was went with something else: it is told, and not judged. One
    whose time is still there, below a threshold of its rule or behind a larger finding, was not fixed; nor was the load
    of other programs.
    """
    how_settled = _how_settled(findings, parts, step)
    measured = _saving(step) if step else None
    set_now: list[_Settled] = []
    went: list[_Settled] = []
    left: list[_Settled] = []
    for outcome, finding in in_order(before.outcomes):
        if finding.fix is None or outcome.rule in _OF_OTHERS:
            continue
        named = _now(finding.fix.changes, before, after)
        how = how_settled(outcome.rule, finding)
        if named and all(now == str(change.proposed) != str(change.now) for change, now in named):
            fix = _fix(outcome.rule, finding, "the setting is as proposed", measured)
            set_now.append(_Settled(fix, finding.bound, named[0][0].setting))
        elif how is not None:
            still = _still(named)
            fix = _fix(outcome.rule, finding, how, measured, still or _otherwise(named))
            (left if still else went).append(_Settled(fix, finding.bound))
    told = _of_settings(set_now, went, left) if set_now else _of_findings(went, left)
    return (*told, *(entry.fix for entry in left))


def _of_settings(set_now: Sequence[_Settled], went: Sequence[_Settled], left: Sequence[_Settled]) -> list[AppliedFix]:
    """Of fixes whose settings are as proposed, and of what went beside them."""
    bounds = {entry.bound for entry in set_now}
    others = [entry for entry in (*went, *left) if entry.counts and entry.bound not in bounds]
    if not _is_minor(others, set_now):
        return [_noted(entry.fix, _OPEN) for entry in (*set_now, *went)]
    alone = len({entry.setting for entry in set_now}) == 1
    judged = [_held(entry.fix) if alone else _noted(entry.fix, _OPEN) for entry in set_now]
    return [*judged, *(_noted(entry.fix, _TOO_LITTLE if entry in others else _BESIDE) for entry in went)]


def _of_findings(went: Sequence[_Settled], left: Sequence[_Settled]) -> list[AppliedFix]:
    """Of fixes that are known by their findings alone: the largest is judged where the others are minor."""
    if not went:
        return []
    largest = max(went, key=lambda entry: entry.expected)
    bounds = {entry.bound for entry in went}
    beside = [entry for entry in went if entry.counts and entry.fix.text != largest.fix.text]
    unknown = [entry for entry in left if entry.counts and entry.bound not in bounds]
    if not _is_minor([*beside, *unknown], [largest]):
        return [_noted(entry.fix, _OPEN) for entry in went]
    return [_noted(entry.fix, _TOO_LITTLE) if entry in beside else _held(entry.fix) for entry in went]


def _is_minor(others: Sequence[_Settled], judged: Sequence[_Settled]) -> bool:
    """Whether all others together can have saved too little to matter beside what is judged; true without any."""
    at_most = sum(entry.fix.predicted.high if entry.fix.predicted else math.inf for entry in others)
    return not others or at_most < _MINOR * max(entry.expected for entry in judged)


def _how_settled(
    findings: Sequence[FindingChange], parts: Sequence[PartChange], step: StepChange | None
) -> Callable[[str, Finding], _How | None]:
    """How a finding of the run before is known to be settled; what is returned says ``None`` where it is not."""
    rows = [row for row in findings if row.state in ("gone", "better") and not row.reason]
    rows = [row for row in rows if not _is_still_there(row.rule, parts)]
    gone = [(row.rule, row.rank, row.title) for row in rows if row.state == "gone"]
    less = [(row.rule, row.rank, row.before_saving) for row in rows if row.state == "better" and _is_less(row, step)]

    def how(rule: str, finding: Finding) -> _How | None:
        if (rule, finding.rank, finding.title) in gone:
            return "the finding is gone"
        return "the finding is smaller" if (rule, finding.rank, finding.saving) in less else None

    return how


def _is_less(row: FindingChange, step: StepChange | None) -> bool:
    """Whether most of the time that a finding is about is gone: savings are ratios of steps, which differ as well."""
    before, after = row.before_saving, row.after_saving
    if before is None or after is None or step is None:
        return False
    timed = step.timed or step.judged
    return after.expected * (1.0 + timed.expected) < _LITTLE_LEFT * before.expected


def _is_still_there(rule: str, parts: Sequence[PartChange]) -> bool:
    """Whether the parts that a fix of the rule is about take as long as before; false where that is not known."""
    about = [row for row in parts if row.part in PARTS_OF_RULE.get(rule, ())]
    before, after = sum(row.before_ns or 0 for row in about), sum(row.after_ns or 0 for row in about)
    return before > 0 and after >= _STILL_THERE * before


def _noted(fix: AppliedFix, note: str) -> AppliedFix:
    return fix if fix.note else revise(fix, note=note)


def _held(fix: AppliedFix) -> AppliedFix:
    """A prediction holds where a proven saving lies in it.

    That of a changed setting misses where no saving that may have been measured lies in it.

    What lies between the two is open: noise alone would make a wide interval meet any other. So is less than what was
    predicted of all of a finding where some of it is left.
    """
    if fix.note:
        return fix
    if fix.predicted is None:
        return revise(fix, note="no saving was predicted")
    if fix.measured is None:
        return revise(fix, note="the step times cannot be compared")
    if fix.measured.high < fix.predicted.low and fix.how == "the finding is smaller":
        return revise(fix, note=_LEFT)
    if fix.measured.low > fix.predicted.high or fix.measured.high < fix.predicted.low:
        # A finding may also go with another change: only a setting shows that it was this fix which missed.
        is_applied = fix.how == "the setting is as proposed"
        return revise(fix, holds=False) if is_applied else revise(fix, note=_NO_SETTING)
    if fix.measured.low > 0 and fix.predicted.low <= fix.measured.expected <= fix.predicted.high:
        return revise(fix, holds=True)
    return revise(fix, note=_UNCERTAIN)


def _fix(rule: str, finding: Finding, how: _How, measured: Range | None, note: str = "") -> AppliedFix:
    text = finding.fix.text if finding.fix else ""
    return AppliedFix(rule=rule, text=text, how=how, predicted=finding.saving, measured=measured, holds=None, note=note)


def _still(named: Sequence[tuple[SettingChange, str]]) -> str:
    """That the settings of the fix are what they were; empty where one is not, or the fix has none."""
    if not named or any(now != str(change.now) for change, now in named):
        return ""
    change, now = named[0]
    return f"not judged: {change.setting} is still {now}, so another change saved this"


def _otherwise(named: Sequence[tuple[SettingChange, str]]) -> str:
    """That a setting was changed to another value than the fix proposes; empty where none was."""
    for change, now in named:
        if now not in (str(change.proposed), str(change.now)):
            return f"not judged: {change.setting} is {now} now, and the prediction is for {change.proposed}"
    return ""


def _now(changes: Sequence[SettingChange], before: Report, after: Report) -> list[tuple[SettingChange, str]]:
    """The settings of a fix, with their values now; none where one was not what the fix says before."""
    first, second = _settings(before), _settings(after)
    named = [change for change in changes if change.setting in first and change.setting in second]
    is_of_it = all(first[change.setting] == str(change.now) for change in named)
    return [(change, second[change.setting]) for change in named] if is_of_it else []


def _settings(report: Report) -> dict[str, str]:
    return {**report.run.settings, **loader_settings(report)}


def _saving(step: StepChange) -> Range:
    """The change of the step as a saving: a ratio of the step before that is no longer there.

    Predictions are made of steps as they were timed, other programs and all: by these they are judged.
    """
    timed = step.timed or step.judged
    return Range(low=-timed.high, expected=-timed.expected, high=-timed.low)
