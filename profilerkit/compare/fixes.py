"""Fixes that were proposed before and are in force after: what was predicted beside what was measured."""

import re
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from profilerkit.compare.differences import loader_settings
from profilerkit.model.change import revise
from profilerkit.model.diff import AppliedFix, FindingChange, PartChange, Range, StepChange
from profilerkit.model.finding import Bound, Finding
from profilerkit.model.report import Report
from profilerkit.rules.parts import PARTS_OF_RULE

#: ``num_workers 2 → 6`` in the text of a fix; backticks around names are mark-up.
_PROPOSED = re.compile(r"\b([A-Za-z]\w*) (\S+) → ([^\s,;]+)")
#: Parts that take so much of what they took are still there (a choice).
_STILL_THERE = 0.95
#: Rules about other programs, which end without a fix: what they took is taken out of the steps, or in the doubt.
_OF_OTHERS = ("RU005",)
#: A fix that was to save at most so much of what the largest one was to does not keep that from being judged, and a
#: finding that argues for at most so much of what it did has gone for the most part (choices).
_MINOR = 0.1
_LITTLE_LEFT = 0.5
_OPEN = "several fixes were applied at once: what each of them saved was not measured"
_UNCERTAIN = "neither held nor missed: what was measured is too uncertain"
_BESIDE = "gone with the fix above"
_LEFT = "not judged: a part of it is left"
_MINOR_BESIDE = "not judged: the fix above saves more than ten times as much"

_How = Literal["the setting is as proposed", "the finding is gone", "the finding is smaller"]


class Proposal(NamedTuple):
    """A setting, its value before and the one proposed, as the text of a fix names them."""

    name: str
    current: str
    proposed: str


def proposals(text: str) -> list[Proposal]:
    """The settings that a fix names with both values.

    >>> proposals("`num_workers` 0 → 4, and keep them.")
    [Proposal(name='num_workers', current='0', proposed='4')]
    >>> proposals("persistent_workers False → True: the same workers go on.")
    [Proposal(name='persistent_workers', current='False', proposed='True')]
    """
    found = _PROPOSED.findall(text.replace("`", ""))
    return [Proposal(name, current, proposed.rstrip(".:")) for name, current, proposed in found]


class _Group:
    """Fixes that were applied in the same way, and the bounds that their findings argue for."""

    def __init__(self) -> None:
        self.fixes: list[AppliedFix] = []
        self._bounds: list[Bound | None] = []

    def add(self, fix: AppliedFix, finding: Finding) -> None:
        """The fix of ``finding``."""
        self.fixes.append(fix)
        self._bounds.append(finding.bound)

    @property
    def largest(self) -> float:
        """The largest saving that one of them was to bring."""
        return max((fix.predicted.expected for fix in self.fixes if fix.predicted), default=0.0)

    def bounds(self, least: float) -> set[Bound | None]:
        """The bounds of those that have a part in what was measured."""
        return {bound for fix, bound in zip(self.fixes, self._bounds, strict=True) if _counts(fix, bound, least)}


def _counts(fix: AppliedFix, bound: Bound | None, least: float) -> bool:
    """Whether it has a part in what was measured: what argues for no bound and saves nothing has none."""
    return not _is_minor(fix, least) if fix.predicted else bound is not None


def _is_minor(fix: AppliedFix, least: float) -> bool:
    return fix.predicted is not None and fix.predicted.expected < least


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
    settled = _settled(findings, parts)
    measured = _saving(step) if step else None
    set_now, went, left = _Group(), _Group(), _Group()
    for outcome, finding in before.findings():
        if finding.fix is None or outcome.rule in _OF_OTHERS:
            continue
        named = _now(finding.fix.text, before, after)
        how = settled(outcome.rule, finding)
        if named and all(now == proposal.proposed for proposal, now in named):
            set_now.add(_fix(outcome.rule, finding, "the setting is as proposed", measured), finding)
        elif how is not None:
            still = _still(finding.fix.text, named)
            fix = _fix(outcome.rule, finding, how, measured, still or _otherwise(named))
            (left if still else went).add(fix, finding)
    least = _MINOR * (set_now if set_now.fixes else went).largest
    if not set_now.fixes:
        alone = len({fix.text for fix in went.fixes if not _is_minor(fix, least)}) == 1
        alone = alone and left.bounds(least) <= went.bounds(least)
        return (*_judged(went.fixes, least, alone=alone), *left.fixes)
    if not went.bounds(least) | left.bounds(least) <= set_now.bounds(0.0):
        return (*_judged([*set_now.fixes, *went.fixes], least, alone=False), *left.fixes)
    alone = len({proposals(fix.text)[0].name for fix in set_now.fixes}) == 1
    beside = (revise(fix, note=_MINOR_BESIDE if _is_minor(fix, least) else _BESIDE) for fix in went.fixes)
    return (*_judged(set_now.fixes, 0.0, alone=alone), *beside, *left.fixes)


def _settled(findings: Sequence[FindingChange], parts: Sequence[PartChange]) -> Callable[[str, Finding], _How | None]:
    """How a finding of the run before is known to be settled; what is returned says ``None`` where it is not."""
    rows = [row for row in findings if row.state in ("gone", "better") and not row.reason]
    rows = [row for row in rows if not _is_still_there(row.rule, parts)]
    gone = {(row.rule, row.rank, row.title) for row in rows if row.state == "gone"}
    less = [(row.rule, row.before_saving) for row in rows if _is_little_left(row)]

    def how(rule: str, finding: Finding) -> _How | None:
        if (rule, finding.rank, finding.title) in gone:
            return "the finding is gone"
        return "the finding is smaller" if (rule, finding.saving) in less else None

    return how


def _is_little_left(row: FindingChange) -> bool:
    before, after = row.before_saving, row.after_saving
    return before is not None and after is not None and after.expected <= _LITTLE_LEFT * before.expected


def _is_still_there(rule: str, parts: Sequence[PartChange]) -> bool:
    """Whether the parts that a fix of the rule is about take as long as before; false where that is not known."""
    about = [row for row in parts if row.part in PARTS_OF_RULE.get(rule, ())]
    before, after = sum(row.before_ns or 0 for row in about), sum(row.after_ns or 0 for row in about)
    return before > 0 and after >= _STILL_THERE * before


def _judged(fixes: Sequence[AppliedFix], least: float, *, alone: bool) -> tuple[AppliedFix, ...]:
    """Each as far as it can be; ``least`` is what it has to save to have a say."""

    def judged(fix: AppliedFix) -> AppliedFix:
        if fix.note:
            return fix
        if alone and _is_minor(fix, least):
            return revise(fix, note=_MINOR_BESIDE)
        return _held(fix) if alone else revise(fix, note=_OPEN)

    return tuple(judged(fix) for fix in fixes)


def _held(fix: AppliedFix) -> AppliedFix:
    """A prediction holds where a proven saving lies in it; it misses where none that may have been measured does.

    What lies between the two is open: noise alone would make a wide interval meet any other. So is less than what was
    predicted of all of a finding where some of it is left.
    """
    if fix.predicted is None:
        return revise(fix, note="no saving was predicted")
    if fix.measured is None:
        return revise(fix, note="the step times cannot be compared")
    if fix.measured.high < fix.predicted.low and fix.how == "the finding is smaller":
        return revise(fix, note=_LEFT)
    if fix.measured.low > fix.predicted.high or fix.measured.high < fix.predicted.low:
        return revise(fix, holds=False)
    if fix.measured.low > 0 and fix.predicted.low <= fix.measured.expected <= fix.predicted.high:
        return revise(fix, holds=True)
    return revise(fix, note=_UNCERTAIN)


def _fix(rule: str, finding: Finding, how: _How, measured: Range | None, note: str = "") -> AppliedFix:
    text = finding.fix.text if finding.fix else ""
    return AppliedFix(rule=rule, text=text, how=how, predicted=finding.saving, measured=measured, holds=None, note=note)


def _still(text: str, named: Sequence[tuple[Proposal, str]]) -> str:
    """That the settings that the fix names first are what they were; later sentences may name other ways."""
    first = proposals(text.partition(". ")[0])
    found = [(proposal, now) for proposal, now in named if proposal in first]
    if not found or any(now != proposal.current for proposal, now in found):
        return ""
    proposal, now = found[0]
    return f"not judged: {proposal.name} is still {now}, so another change did that"


def _otherwise(named: Sequence[tuple[Proposal, str]]) -> str:
    """That a setting was changed to another value than the fix proposes; empty where none was."""
    for proposal, now in named:
        if now not in (proposal.proposed, proposal.current):
            return f"not judged: {proposal.name} is {now} now, and the prediction is of {proposal.proposed}"
    return ""


def _now(text: str, before: Report, after: Report) -> list[tuple[Proposal, str]]:
    """The settings that the fix names, with their values now; none where one was not what the fix says before."""
    first, second = _settings(before), _settings(after)
    named = [proposal for proposal in proposals(text) if proposal.name in first and proposal.name in second]
    is_of_it = all(first[proposal.name] == proposal.current for proposal in named)
    return [(proposal, second[proposal.name]) for proposal in named] if is_of_it else []


def _settings(report: Report) -> dict[str, str]:
    return {**report.run.settings, **loader_settings(report)}


def _saving(step: StepChange) -> Range:
    """The change of the step as a saving: a ratio of the step before that is no longer there.

    Predictions are made of steps as they were timed, other programs and all: by these they are judged.
    """
    timed = step.timed or step.judged
    return Range(low=-timed.high, expected=-timed.expected, high=-timed.low)
