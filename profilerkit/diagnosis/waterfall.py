"""What the fixes of a run save together: replayed as a set, in the order in which each adds most."""

from collections.abc import Sequence

from profilerkit.analysis.facts import Facts
from profilerkit.analysis.replay.changes import OnlyKernels, Phases
from profilerkit.analysis.replay.gate import ReplayFacts
from profilerkit.analysis.replay.joint import MOST_SHARED, Joint, joint
from profilerkit.model.finding import Outcome
from profilerkit.model.waterfall import AfterFix, Replay, Waterfall
from profilerkit.rules.replayed import Priced, priced
from profilerkit.rules.rule import SMALLEST_SAVING


def waterfall(facts: Facts, outcomes: Sequence[Outcome]) -> Waterfall | None:
    """The step now, after each fix, and its floor; ``None`` where no step could be replayed.

    Of several fixes of one kind, which are other ways to the same end, the one that saves most is taken, the last of
    equals: rules that ask more closely come later.
    """
    replay, now = facts.replay, facts.mean_step_ns
    if replay is None or not now or not replay.steps:
        return None
    if not replay.is_open:
        return Waterfall(now_ns=now, fixes=(), floor_ns=None, replay=_told(replay))
    chosen = _chosen(priced(facts, outcomes))
    bounds = [_bound(entry) / entry.scale for entry in chosen]
    together = joint(replay, [entry.change for entry in chosen], bounds, beyond=OnlyKernels())
    fixes = _fixes(chosen, together, now)
    # A fix may be about the kernels themselves: then there is no telling where it ends.
    least = min([now * (1.0 - max(together.limit, 0.0)), *(fix.step_ns for fix in fixes)])
    return Waterfall(now_ns=now, fixes=fixes, floor_ns=least, replay=_told(replay))


def _chosen(found: Sequence[Priced]) -> list[Priced]:
    """The fixes worth naming, the best of each kind, largest saving first. A finding may leave its fix to others."""
    best: dict[tuple[str, ...], Priced] = {}
    for entry in found:
        kind = _kind(entry)
        known = best.get(kind)
        if entry.finding.fix is None:
            continue
        if _expected(entry) >= SMALLEST_SAVING and (known is None or _expected(entry) >= _expected(known)):
            best[kind] = entry
    return sorted(best.values(), key=_expected, reverse=True)[:MOST_SHARED]


def _kind(entry: Priced) -> tuple[str, ...]:
    """What two fixes share that are ways to the same end; those of different phases are not."""
    change = entry.change
    return (change.fix_class, *(change.leaves if isinstance(change, Phases) else ()))


def _expected(entry: Priced) -> float:
    return entry.finding.saving.expected if entry.finding.saving else 0.0


def _bound(entry: Priced) -> float:
    return entry.finding.saving.most if entry.finding.saving else 1.0


def _fixes(chosen: Sequence[Priced], together: Joint, now_ns: float) -> tuple[AfterFix, ...]:
    """The fixes in order, each as large in the run's steps as its own cause is there.

    One cause may be more frequent there than in the traced steps where another is rarer. No fix saves by itself more
    than its finding says, and those applied so far no more than their bounds together.
    """
    added = [after - before for before, after in zip((0.0, *together.after), together.after, strict=False)]
    alone = [min(max(e.scale * value, 0.0), _expected(e)) for e, value in zip(chosen, together.alone, strict=True)]
    steps: list[float] = []
    saved = bound = 0.0
    for place, gain in zip(together.order, added, strict=True):
        bound = min(bound + _bound(chosen[place]), 1.0)
        # Several save at least what one of them does; the first is by itself.
        more = min(saved + chosen[place].scale * gain, bound) if steps else 0.0
        saved = max(saved, alone[place], more)
        steps.append(saved)
    fair = _fair(chosen, together, saved)
    return tuple(
        AfterFix(
            rule=chosen[place].rule,
            title=chosen[place].finding.title,
            step_ns=now_ns * (1.0 - after),
            saving=after,
            alone=alone[place],
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
