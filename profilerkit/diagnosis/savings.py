"""What fixes save: the best of each bound, which of them are of the same time, and all of them replayed together."""

from collections.abc import Mapping, Sequence

import msgspec

from profilerkit.analysis.facts import Facts
from profilerkit.analysis.replay.changes import OnlyKernels, Phases
from profilerkit.analysis.replay.gate import MOST_SHARED, Joint, ReplayFacts, joint, savings
from profilerkit.diagnosis.refusal import unexplained_share
from profilerkit.model import revise
from profilerkit.model.finding import Bound, Evidence, Finding, Outcome, Saving
from profilerkit.model.step import PARTS, WAITS
from profilerkit.model.verdict import BOUND_FAMILY, AfterFix, Replay, Waterfall
from profilerkit.rules.api import SMALLEST_SAVING
from profilerkit.rules.calibrated import Priced, priced
from profilerkit.rules.parts import PARTS_OF_RULE, shortened
from profilerkit.rules.runner import numbered

#: A second fix that adds less than this of its own saving to what the first one saves is of the same time (a choice).
OWN_RATIO = 0.5
_SHARE_ROUNDING = 1e-6  #: shares are sums of rounded parts

_Entry = tuple[str, Finding]


def with_overlaps(facts: Facts, outcomes: Sequence[Outcome]) -> tuple[Outcome, ...]:
    """The outcomes, in which each finding names the rule whose larger saving is of the same time, if there is one.

    The larger of two stands alone; of equals the one with a fix. A finding of the same cause that leaves its fix to
    that rule is told there, evidence and all: its own rule passes.
    """
    found = [(outcome.rule, finding) for outcome in outcomes for finding in outcome.findings if finding.saving]
    found.sort(key=lambda entry: (-_saved(entry[1]), entry[1].fix is None))
    changes = {id(entry.finding): entry for entry in priced(facts, outcomes)}
    alone: list[_Entry] = []
    beside: dict[int, _Entry] = {}
    within: dict[int, list[Evidence]] = {}
    for entry in found:
        first = next((known for known in alone if _overlap(facts, known, entry, changes)), None)
        if first is None:
            alone.append(entry)
        else:
            beside[id(entry[1])] = first
            if _is_told_by(first, entry[1]):
                within.setdefault(id(first[1]), []).extend(entry[1].evidence)
    return numbered([_revised(outcome, beside, within) for outcome in outcomes])


def _is_told_by(first: _Entry, second: Finding) -> bool:
    """Return whether ``second`` is of the same cause as ``first``, which has the fix that it lacks."""
    rule, known = first
    same = known.detail == second.detail or PARTS_OF_RULE.get(rule) == WAITS
    return second.fix is None is not known.fix and known.bound == second.bound and same


def _revised(outcome: Outcome, beside: Mapping[int, _Entry], within: Mapping[int, Sequence[Evidence]]) -> Outcome:
    """The outcome with what its findings overlap with, without those told by others, and with what these ones tell."""
    findings: list[Finding] = []
    reason = ""
    for finding in outcome.findings:
        rule, first = beside.get(id(finding), ("", None))
        if first is not None and _is_told_by((rule, first), finding):
            reason = f"reported with {rule}, which has the fix"
            continue
        known = {entry.label for entry in finding.evidence}
        more = [entry for entry in within.get(id(finding), ()) if entry.label not in known]
        findings.append(revise(finding, overlaps=rule, evidence=(*finding.evidence, *more)))
    if reason and not findings:
        return revise(outcome, status="passed", reason=reason, findings=(), page={})
    return revise(outcome, findings=tuple(findings))


def _saved(finding: Finding) -> float:
    return finding.saving.expected if finding.saving else 0.0


def _overlap(facts: Facts, first: _Entry, second: _Entry, changes: Mapping[int, Priced]) -> bool:
    """Return whether the fix of ``second`` shortens what that of ``first`` has shortened already.

    Where their rules are about the same parts the two are replayed together. Where that cannot be done, savings that
    are more than these parts take overlap for certain, as any do that are more than the step; and of the very same
    parts a first one of most takes most of the second. Fixes of the wait for data are other ways to one end.
    """
    if first[1].rank != second[1].rank:
        return False
    both = _saved(first[1]) + _saved(second[1])
    own, other = (shortened(facts, rule, finding.detail) for rule, finding in (first, second))
    if not set(own) & set(other):
        return both > 1.0
    if own == other == WAITS:
        return True
    replayed = [changes.get(id(finding)) for _, finding in (first, second)]
    if facts.replay is not None and replayed[0] is not None and replayed[1] is not None:
        one, two = replayed[0].change, replayed[1].change
        before, after, together = savings(facts.replay, [[one], [two], [one, two]])
        return together - before < OWN_RATIO * after
    share = facts.share(*own, *other)
    return both > share or (own == other and _saved(first[1]) >= (1.0 - OWN_RATIO) * share * (1.0 - _SHARE_ROUNDING))


_ROUNDING = 1e-9  #: replays of the same changes agree to this ratio


def waterfall(facts: Facts, outcomes: Sequence[Outcome]) -> Waterfall | None:
    """Return the step now, after each fix, and its floor; ``None`` where no step could be replayed.

    Of several fixes of one kind, which are other ways to the same end, the one that saves most is taken, the last of
    equals: rules that ask more closely come later. A fix that no replay tells takes its part of what the others leave.
    """
    replay, now = facts.replay, facts.mean_step_ns
    if replay is None or not now or not replay.steps:
        return None
    if not replay.is_open:
        return Waterfall(now_ns=now, fixes=(), floor_ns=None, replay=_told(replay))
    found = priced(facts, outcomes)
    chosen = _chosen(found)
    # The replay says how fixes overlap; what each saves alone is what its finding says.
    bounds = [_bound(entry) / entry.scale for entry in chosen]
    alone = [_expected(entry) / entry.scale * (1.0 + _ROUNDING) for entry in chosen]
    together = joint(replay, [entry.change for entry in chosen], bounds, beyond=OnlyKernels(), alone=alone)
    fixes = _merged(_fixes(chosen, together, now), _by_formula(outcomes, found), now)
    # A fix may be about the kernels themselves: then there is no telling where it ends.
    highs = [finding.saving.most for outcome in outcomes for finding in outcome.findings if finding.saving is not None]
    most = max([together.limit, 0.0, *(fix.saving for fix in fixes), *highs])
    return Waterfall(now_ns=now, fixes=fixes, floor_ns=now * (1.0 - most), replay=_told(replay))


def _by_formula(outcomes: Sequence[Outcome], found: Sequence[Priced]) -> list[tuple[str, Finding]]:
    """Fixes that no replay tells, of time that is known, and that no larger one is about."""
    replayed = {id(entry.finding) for entry in found}
    return [
        (outcome.rule, finding)
        for outcome in outcomes
        for finding in outcome.findings
        if finding.saving is not None and finding.fix is not None and not finding.overlaps
        if finding.saving.expected >= SMALLEST_SAVING
        if id(finding) not in replayed and (finding.bound is not None or outcome.rule in PARTS_OF_RULE)
    ]


def _merged(fixes: Sequence[AfterFix], others: Sequence[tuple[str, Finding]], now_ns: float) -> tuple[AfterFix, ...]:
    """Return all of them, the one that saves more alone first; the replayed ones keep their order."""
    left = sorted(others, key=lambda entry: -_saved(entry[1]))[: MOST_SHARED - len(fixes)]
    if not left:
        return tuple(fixes)
    queue, merged, kept, replayed = list(fixes), [], 1.0, 0.0
    while queue or left:
        if queue and (not left or queue[0].alone >= _saved(left[0][1])):
            fix = queue.pop(0)
            replayed = fix.saving
        else:
            rule, finding = left.pop(0)
            kept *= 1.0 - _saved(finding)
            fix = AfterFix(rule=rule, title=finding.title, step_ns=0.0, saving=0.0, alone=_saved(finding))
        saving = 1.0 - kept * (1.0 - replayed)
        merged.append(revise(fix, step_ns=now_ns * (1.0 - saving), saving=saving, fair=None))
    return tuple(merged)


def _chosen(found: Sequence[Priced]) -> list[Priced]:
    """The fixes worth naming, the best of each kind, largest saving first. A finding may leave its fix to others."""
    best: dict[tuple[str, ...], Priced] = {}
    replayed = {entry.rule for entry in found}
    for entry in found:
        change = entry.change
        kind = (change.fix_class, *(change.leaves if isinstance(change, Phases) else ()))
        known = best.get(kind)
        if entry.finding.fix is None or (entry.finding.overlaps and entry.finding.overlaps not in replayed):
            continue
        if _expected(entry) >= SMALLEST_SAVING and (known is None or _expected(entry) >= _expected(known)):
            best[kind] = entry
    return sorted(best.values(), key=_expected, reverse=True)[:MOST_SHARED]


def _expected(entry: Priced) -> float:
    return _saved(entry.finding)


def _bound(entry: Priced) -> float:
    return entry.finding.saving.most if entry.finding.saving else 1.0


def _fixes(chosen: Sequence[Priced], together: Joint, now_ns: float) -> tuple[AfterFix, ...]:
    """The fixes in order, each alone as large as its finding says, and those applied so far within their bounds."""
    scales = [_expected(e) / value if value > 0 else e.scale for e, value in zip(chosen, together.alone, strict=True)]
    added = [after - before for before, after in zip((0.0, *together.after), together.after, strict=False)]
    steps: list[float] = []
    saved = bound = 0.0
    for place, gain in zip(together.order, added, strict=True):
        bound = min(bound + _bound(chosen[place]), 1.0)
        # Several save at least what one of them does; the first is by itself.
        more = min(saved + scales[place] * gain, bound) if steps else 0.0
        saved = max(saved, _expected(chosen[place]), more)
        steps.append(saved)
    # What is saved in the run's steps, divided as the traced steps divide it where that is known.
    weights = [max(entry.scale * value, 0.0) for entry, value in zip(chosen, together.fair, strict=True)]
    whole = sum(weights)
    return tuple(
        AfterFix(
            rule=chosen[place].rule,
            title=chosen[place].finding.title,
            step_ns=now_ns * (1.0 - after),
            saving=after,
            alone=_expected(chosen[place]),
            fair=saved * weights[place] / whole if whole else None,
        )
        for place, after in zip(together.order, steps, strict=True)
    )


def _told(replay: ReplayFacts) -> Replay:
    return Replay(
        steps=replay.steps,
        of=replay.of,
        error_ratio=replay.error,
        worst_step_ratio=max((abs(error) for error in replay.step_errors.tolist()), default=0.0),
        failing=replay.failing,
        refused=replay.refused,
    )


CONTENDER_SAVING = 0.05  #: a contender is named from this expected saving


class Best(msgspec.Struct, frozen=True):
    """The finding with the largest expected saving for one bound."""

    bound: Bound
    rule: str
    finding: Finding
    saving: Saving  #: its own, or what the fixes of this bound save together
    aside: Outcome | None = None  #: its outcome, where it is suppressed
    fixes: int = 1  #: how many fixes ``saving`` takes

    @property
    def expected(self) -> float:
        """Return the expected saving, share of the step."""
        return self.saving.expected


def best_per_bound(outcomes: Sequence[Outcome], *, suppressed: bool = False) -> dict[Bound, Best]:
    """For every bound with a saving the finding that is expected to save most; one with a fix goes first."""
    best: dict[Bound, Best] = {}
    for outcome in outcomes:
        for finding in (*outcome.findings, *(outcome.suppressed if suppressed else ())):
            if finding.bound is None or finding.saving is None:
                continue
            known = best.get(finding.bound)
            worth = (finding.saving.expected, finding.fix is not None)
            if known is None or worth > (known.expected, known.finding.fix is not None):
                aside = outcome if outcome.suppressed else None
                best[finding.bound] = Best(finding.bound, outcome.rule, finding, finding.saving, aside)
    return best


def joined(facts: Facts, outcomes: Sequence[Outcome], best: dict[Bound, Best]) -> dict[Bound, Best]:
    """``best`` with what all fixes of a bound save together, where the replay tells and it is more than the best one.

    Waiting for a batch and copying it are one cause in two parts: neither alone says how much it holds.
    """
    return {bound: _joined(facts, outcomes, entry) for bound, entry in best.items()}


def _joined(facts: Facts, outcomes: Sequence[Outcome], best: Best) -> Best:
    own = []
    for row in outcomes:
        mine = [finding for finding in row.findings if finding.bound == best.bound]
        replayed = tuple(finding for finding in mine if finding.saving and finding.saving.method == "replay")
        own.append(revise(row, findings=replayed))
    if sum(bool(row.findings) for row in own) < 2:
        return best
    together = waterfall(facts, own)
    if together is None or not together.fixes or together.fixes[-1].saving < best.expected + SMALLEST_SAVING:
        return best
    rules = {fix.rule for fix in together.fixes}
    savings = [f.saving for row in own if row.rule in rules for f in row.findings if f.saving is not None]
    expected, most = together.fixes[-1].saving, 1.0 - (together.floor_ns or 0.0) / together.now_ns
    low, high = max(saving.low for saving in savings), min(sum(saving.high for saving in savings), most)
    saving = Saving(low=low, expected=expected, high=max(high, expected), method="replay")
    return revise(best, saving=saving, fixes=len(together.fixes))


def best_fix(outcomes: Sequence[Outcome], best: Best) -> Saving:
    """What the best fix for a bound saves: where its best finding leaves the fix to other rules, the best of theirs."""
    if best.finding.fix is not None or best.fixes > 1:
        return best.saving
    found = [finding for outcome in outcomes for finding in outcome.findings if finding.bound == best.bound]
    fixed = [finding.saving for finding in found if finding.saving is not None and finding.fix is not None]
    return max(fixed, key=lambda saving: saving.expected, default=best.saving)


def priced_parts(outcomes: Sequence[Outcome]) -> tuple[str, ...]:
    """Parts whose cost a finding is about that has a saving worth naming."""
    out: list[str] = []
    for outcome in outcomes:
        own = PARTS_OF_RULE.get(outcome.rule)
        out += own if own and outcome.status in ("off", "suppressed") else ()
        for finding in (*outcome.findings, *outcome.suppressed):
            is_worth_it = finding.saving is not None and finding.saving.expected >= CONTENDER_SAVING
            if finding.bound and is_worth_it:
                # A rule of another package says with its bound alone what it is about.
                family = BOUND_FAMILY[finding.bound]
                out += own if own is not None else [name for name, (known, _) in PARTS.items() if known == family]
    return tuple(out)


def largest_unpriced(facts: Facts, priced_parts: Sequence[str]) -> tuple[str, float]:
    """The largest part outside the kernels that no finding prices, and its share; none that later steps do without."""
    others = [part for part in facts.parts if not part.part.startswith("compute.") and part.part not in priced_parts]
    parts = [part for part in others if part.part != "warm.load" and not facts.is_of_one_step(part.part)]
    shares = {part.part: unexplained_share(facts) if part.part == "idle.unknown" else part.share for part in parts}
    largest = max(shares, key=lambda name: shares[name], default="")
    return largest, shares.get(largest, 0.0)


def most_suppressed(outcomes: Sequence[Outcome]) -> float:
    """Return the largest expected saving among the findings that were set aside; 0 without any."""
    savings = [finding.saving for outcome in outcomes for finding in outcome.suppressed]
    return max((saving.expected for saving in savings if saving is not None), default=0.0)
