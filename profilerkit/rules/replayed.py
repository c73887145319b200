"""The savings of findings from the replay, where it met the traced steps: which change the fix of each rule is."""

from collections.abc import Callable, Sequence

import msgspec

from profilerkit.analysis.facts import Facts, belongs
from profilerkit.analysis.parts import WAITS
from profilerkit.analysis.replay.changes import (
    Allocator,
    Change,
    HiddenCollectives,
    HiddenCopies,
    HostTime,
    Kernels,
    LoaderWaits,
    OneLaunch,
    Phases,
    PinnedCopies,
    Syncs,
)
from profilerkit.analysis.replay.gate import ReplayFacts, savings
from profilerkit.model.change import revise
from profilerkit.model.finding import Finding, Outcome
from profilerkit.rules.api import SMALLEST_SAVING
from profilerkit.rules.input.pageable_copy import PageableCopy
from profilerkit.rules.parts import COMPUTING, PHASES, cause_of
from profilerkit.units import format_ratio

#: Traced steps this much longer or shorter than the untraced ones, relative to them, are not replayed for them.
_ALIKE = (0.8, 1.5)
#: A cause whose share of the traced steps is this many times smaller or larger than of all steps is not the same there.
_SAME_CAUSE = 2.0
#: A stretch of Python that is the user's own, not the gap between two operators.
_OWN_PYTHON_NS = 100_000.0


class Priced(msgspec.Struct, frozen=True):
    """A finding whose fix can be replayed.

    Attributes:
        rule: code of its rule.
        change: what the fix does to the steps.
        scale: what a saving of the traced steps is in the run's steps.
    """

    rule: str
    finding: Finding
    change: Change
    scale: float


def _fewer_waits(facts: Facts, finding: Finding) -> Change | None:
    """Return the waits that the model of the loader leaves."""
    kept = _kept(facts, finding, WAITS)
    return LoaderWaits(kept) if kept is not None else None


def _kept(facts: Facts, finding: Finding, parts: tuple[str, ...]) -> float | None:
    """Of the time in ``parts``, what the formula leaves. The bound is no measure of it: the steps' noise is in it."""
    share = facts.share(*parts)
    return max(1.0 - finding.saving.expected / share, 0.0) if finding.saving and share else None


def _copied_aside(facts: Facts, finding: Finding) -> Change | None:
    """Copies that nothing waits for, where there is computation to hide all of them behind."""
    hidden = finding.saving is not None and facts.share(*COMPUTING) >= finding.saving.most
    return HiddenCopies() if hidden else None


def _faster(kind: str) -> Callable[[Facts, Finding], Change | None]:
    """Return the kernels of a kind, so much faster that they alone would save what was expected."""

    def change(facts: Facts, finding: Finding) -> Change | None:
        if facts.replay is None or finding.saving is None:
            return None
        share = facts.replay.share_of(kind)
        if finding.saving.expected >= share:
            return None
        return Kernels(1.0 / (1.0 - finding.saving.expected / share), COMPUTING, kind)

    return change


def _fewer_collectives_exposed(facts: Facts, finding: Finding) -> Change | None:
    known = finding.saving is not None and finding.saving.method != "bound"
    return HiddenCollectives() if finding.detail == "no-overlap" and known and facts.mode == "gpu" else None


def _quicker_host(facts: Facts, finding: Finding) -> Change | None:
    if finding.detail == "launch":
        return OneLaunch() if facts.mode == "gpu" else None
    longer = _OWN_PYTHON_NS if facts.mode == "gpu" else 0.0
    return HostTime(("over.python",), longer_than_ns=longer) if finding.detail == "python" else None


def _shorter_phase(facts: Facts, finding: Finding) -> Change | None:
    part = PHASES.get(finding.detail)
    kept = _kept(facts, finding, (part,)) if part else None
    return Phases((part,), kept) if part and kept is not None else None


#: What the fix of a rule does to the steps. Rules that are not here keep their bound or formula, as IN011 does: a
#: traced window holds the openings of one epoch or of none, and nothing runs beside them that could be in the way.
_FIXES: dict[str, Callable[[Facts, Finding], Change | None]] = {
    **dict.fromkeys(("IN001", "IN002", "IN003", "IN004", "IN006", "IN007", "IN008"), _fewer_waits),
    **dict.fromkeys(("IN013", "IN014"), _fewer_waits),
    "IN009": lambda facts, _: PinnedCopies(PageableCopy().pinned_bytes_per_ns(facts)),
    "IN010": _copied_aside,
    "ME001": lambda *_: Allocator(),
    **dict.fromkeys(("CO001", "CO002"), _fewer_collectives_exposed),
    "CP001": _faster("fp32"),
    "CP004": _faster("chained"),
    **dict.fromkeys(("OV001", "OV005"), _quicker_host),
    **dict.fromkeys(("OV002", "OV003"), lambda *_: Syncs()),
    # The other stops of RU002 have no part that is theirs alone: they keep their formula.
    **dict.fromkeys(("OV006", "RU001", "RU002"), _shorter_phase),
}


def trusted(facts: Facts) -> ReplayFacts | None:
    """Return the replay, if it meets the traced steps and they are like those of the run."""
    replay, inflation = facts.replay, facts.trust.inflation_ratio
    alike = inflation is None or _ALIKE[0] <= inflation <= _ALIKE[1]
    return replay if replay is not None and replay.is_open and alike else None


def priced(facts: Facts, outcomes: Sequence[Outcome]) -> list[Priced]:
    """Return the findings with a saving whose fix the replay can apply; none where it is not to be trusted."""
    replay = trusted(facts)
    if replay is None:
        return []
    found = []
    for outcome in outcomes:
        change_of = _FIXES.get(outcome.rule)
        if change_of is None:
            continue
        for finding in outcome.findings:
            change = change_of(facts, finding) if finding.saving is not None else None
            if change is None or replay.refuses(change.fix_class):
                continue
            parts = cause_of(outcome.rule, finding.detail)
            traced = sum(share for part, share in replay.shares.items() if belongs(part, parts))
            own = facts.share(*parts)
            scale = own / traced if traced and 1.0 / _SAME_CAUSE <= own / traced <= _SAME_CAUSE else None
            if scale is not None:
                found.append(Priced(outcome.rule, finding, change, scale))
    return found


def with_replay(facts: Facts, outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Return the outcomes with the savings that the replay expects; the bounds stay.

    A finding whose fix saves too little to speak of, once everything else that holds the step is counted, is none.
    """
    found = priced(facts, outcomes)
    if not found or facts.replay is None:
        return list(outcomes)
    saved = savings(facts.replay, [[entry.change] for entry in found])
    revised: dict[int, Finding] = {}
    for entry, gone in zip(found, saved, strict=True):
        own = entry.finding.saving
        assert own is not None
        expected = min(max(entry.scale * gone, 0.0), own.high)
        trust = own.low / own.expected if own.expected else 0.0
        value = revise(own, low=trust * expected, expected=expected, method="replay")
        revised[id(entry.finding)] = revise(entry.finding, saving=value)
    return [_revised(outcome, revised) for outcome in outcomes]


def _revised(outcome: Outcome, revised: dict[int, Finding]) -> Outcome:
    findings = [revised.get(id(finding), finding) for finding in outcome.findings]
    kept = tuple(
        finding
        for finding, before in zip(findings, outcome.findings, strict=True)
        if finding is before or (finding.saving is not None and finding.saving.expected >= SMALLEST_SAVING)
    )
    if outcome.findings and not kept:
        most = max(finding.saving.expected for finding in findings if finding.saving is not None)
        reason = f"replayed without it, the step is {format_ratio(most)} shorter: other work holds it as long"
        return revise(outcome, status="passed", reason=reason, findings=())
    return revise(outcome, findings=kept)
