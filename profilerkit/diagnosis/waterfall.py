"""What the fixes of a run save together: replayed as a set, in the order in which each adds most."""

from collections.abc import Sequence

from profilerkit.analysis.facts import Facts
from profilerkit.analysis.replay.changes import OnlyKernels, Phases
from profilerkit.analysis.replay.gate import MOST_SHARED, Joint, ReplayFacts, joint
from profilerkit.model.change import revise
from profilerkit.model.finding import Finding, Outcome
from profilerkit.model.waterfall import AfterFix, Replay, Waterfall
from profilerkit.rules.replayed import Priced, priced
from profilerkit.rules.rule import SMALLEST_SAVING

#: Replays of the same changes agree to this ratio.
_ROUNDING = 1e-9


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
    """Fixes that no replay tells, of time that no larger one is about."""
    replayed = {id(entry.finding) for entry in found}
    return [
        (outcome.rule, finding)
        for outcome in outcomes
        for finding in outcome.findings
        if finding.saving is not None and finding.fix is not None and not finding.overlaps
        if finding.saving.expected >= SMALLEST_SAVING
        if id(finding) not in replayed
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
    """The fixes worth naming, the best of each kind, largest saving first. A finding may leave its fix to others.

    What a fix that no replay tells saves already is not saved again.
    """
    best: dict[tuple[str, ...], Priced] = {}
    replayed = {entry.rule for entry in found}
    for entry in found:
        kind = _kind(entry)
        known = best.get(kind)
        if entry.finding.fix is None or (entry.finding.overlaps and entry.finding.overlaps not in replayed):
            continue
        if _expected(entry) >= SMALLEST_SAVING and (known is None or _expected(entry) >= _expected(known)):
            best[kind] = entry
    return sorted(best.values(), key=_expected, reverse=True)[:MOST_SHARED]


def _kind(entry: Priced) -> tuple[str, ...]:
    """Return what two fixes share that are ways to the same end; those of different phases are not."""
    change = entry.change
    return (change.fix_class, *(change.leaves if isinstance(change, Phases) else ()))


def _saved(finding: Finding) -> float:
    return finding.saving.expected if finding.saving else 0.0


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
    fair = _fair(chosen, together, saved)
    return tuple(
        AfterFix(
            rule=chosen[place].rule,
            title=chosen[place].finding.title,
            step_ns=now_ns * (1.0 - after),
            saving=after,
            alone=_expected(chosen[place]),
            fair=None if fair is None else fair[place],
        )
        for place, after in zip(together.order, steps, strict=True)
    )


def _fair(chosen: Sequence[Priced], together: Joint, saved: float) -> tuple[float, ...] | None:
    """What is saved in the run's steps, divided as the traced steps divide it; ``None`` where that is not known."""
    if together.fair is None:
        return None
    weights = [max(entry.scale * value, 0.0) for entry, value in zip(chosen, together.fair, strict=True)]
    whole = sum(weights)
    return tuple(saved * weight / whole for weight in weights) if whole else None


def _told(replay: ReplayFacts) -> Replay:
    return Replay(
        steps=replay.steps,
        of=replay.of,
        error_ratio=replay.error,
        worst_step_ratio=max((abs(error) for error in replay.step_errors.tolist()), default=0.0),
        failing=replay.failing,
        refused=replay.refused,
    )
