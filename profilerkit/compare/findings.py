"""Findings and fixes of two reports: what became of each, and what was predicted beside what was measured."""

from collections.abc import Callable, Hashable, Sequence

from profilerkit.compare.sides import loader_settings
from profilerkit.model.change import revise
from profilerkit.model.diff import AppliedFix, FindingChange, FindingState, Judgement, Range, StepChange
from profilerkit.model.finding import Finding, Outcome, SettingChange, Severity, in_order
from profilerkit.model.report import Report

#: Severities from the least on.
ORDER: tuple[Severity, ...] = ("info", "low", "medium", "high")
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


#: Rules about other programs, which end without a fix: what they took is taken out of the steps, or in the doubt.
_OF_OTHERS = ("RU005",)
#: A finding that was to save less than so much of what the largest was to does not keep that from being judged (a
#: choice).
_MINOR = 0.1
_OPEN = "several fixes were applied at once, so their savings were not measured one by one: profilerkit try does that"
_OTHERWISE = "not judged: its setting is not as proposed"
_NO_SETTING = "not judged: no setting of this fix is known to have changed"
_BESIDE = "not judged beside the fix above"
_UNCERTAIN = "neither held nor missed: the measurement is too uncertain"


def applied_fixes(
    before: Report, after: Report, findings: Sequence[FindingChange], step: StepChange | None
) -> tuple[AppliedFix, ...]:
    """Fixes whose setting changed as proposed, then those whose finding is gone; largest saving first.

    What was measured is the saving of all changes between the runs. It is held against a prediction where that fix
    alone was applied: a finding of the same bound goes with a setting, one of another bound by a fix of its own.
    """
    gone = {(row.rule, row.rank, row.title) for row in findings if row.state == "gone" and not row.reason}
    measured = _saving(step) if step else None
    set_now: list[tuple[Finding, AppliedFix, str]] = []
    went: list[tuple[Finding, AppliedFix, str]] = []
    for outcome, finding in in_order(before.outcomes):
        fix = finding.fix
        if fix is None or outcome.rule in _OF_OTHERS:
            continue
        named = _now(fix.changes, before, after)
        is_set = bool(named) and all(now == str(change.proposed) != str(change.now) for change, now in named)
        if is_set or (outcome.rule, finding.rank, finding.title) in gone:
            made = AppliedFix(
                rule=outcome.rule,
                text=fix.text,
                how="the setting is as proposed" if is_set else "the finding is gone",
                predicted=finding.saving,
                measured=measured,
                holds=None,
                note=_OTHERWISE if named and not is_set else "",
            )
            (set_now if is_set else went).append((finding, made, named[0][0].setting if is_set else fix.text))
    most = max((known.saving.expected for known, *_ in set_now or went if known.saving), default=0.0)
    bounds = {finding.bound for finding, *_ in set_now}
    others = {what for known, _, what in went if known.bound not in bounds and _matters(known, most)}
    is_alone = len({what for *_, what in set_now} | others) == 1
    return (
        *(_held(made) if is_alone else _noted(made, _OPEN) for _, made, _ in set_now),
        *(
            _held(made) if is_alone and what in others else _noted(made, _BESIDE if is_alone else _OPEN)
            for _, made, what in went
        ),
    )


def _matters(finding: Finding, most: float) -> bool:
    """Whether it has a part in what was measured: what argues for no bound and saves nothing has none."""
    return finding.bound is not None if finding.saving is None else finding.saving.high >= _MINOR * most


def _noted(fix: AppliedFix, note: str) -> AppliedFix:
    return fix if fix.note else revise(fix, note=note)


def _held(fix: AppliedFix) -> AppliedFix:
    """A prediction holds where a proven saving lies in it.

    That of a changed setting misses where no saving that may have been measured lies in it. What lies between the two
    is open: noise alone would make a wide interval meet any other.
    """
    if fix.predicted is None:
        return _noted(fix, "no saving was predicted")
    if fix.measured is None:
        return _noted(fix, "the step times cannot be compared")
    if fix.note:
        return fix
    if fix.measured.low > fix.predicted.high or fix.measured.high < fix.predicted.low:
        # A finding may also go with another change: only a setting shows that it was this fix which missed.
        is_applied = fix.how == "the setting is as proposed"
        return revise(fix, holds=False) if is_applied else revise(fix, note=_NO_SETTING)
    if fix.measured.low > 0 and fix.predicted.low <= fix.measured.expected <= fix.predicted.high:
        return revise(fix, holds=True)
    return revise(fix, note=_UNCERTAIN)


def _now(changes: Sequence[SettingChange], before: Report, after: Report) -> list[tuple[SettingChange, str]]:
    """The settings of a fix, with their values now; none where one was not what the fix says before."""
    first, second = ({**side.run.settings, **loader_settings(side)} for side in (before, after))
    named = [change for change in changes if change.setting in first and change.setting in second]
    is_of_it = all(first[change.setting] == str(change.now) for change in named)
    return [(change, second[change.setting]) for change in named] if is_of_it else []


def _saving(step: StepChange) -> Range:
    """The change of the step as a saving: a ratio of the step before that is no longer there.

    Predictions are made of steps as they were timed, other programs and all: by these they are judged.
    """
    timed = step.timed or step.judged
    return Range(low=-timed.high, expected=-timed.expected, high=-timed.low)
