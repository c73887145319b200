"""Whether a late rank computes more than the others, or the same more slowly."""

from collections.abc import Sequence

from profilerkit.analysis.device.kernels import COMMUNICATION
from profilerkit.analysis.trace_facts import TraceFacts

#: Seeded training repeats its FLOPs exactly; so much is left for a last batch that is short.
SAME_FLOPS_RATIO = 0.02
#: Share of the window from which a kernel, or on a CPU-only run an operator, must run as often on both.
SHOWN_SHARE = 0.05


def same_work(late: TraceFacts, others: Sequence[TraceFacts]) -> bool | None:
    """Whether the rank runs the same kernels on the same amount of work per step as any other rank.

    ``None`` where the shapes that tell the amount were not recorded.
    """
    told = [_same(late, other) for other in others]
    known = [same for same in told if same is not None]
    return any(known) if known else None


def more_work(late: TraceFacts, others: Sequence[TraceFacts]) -> float:
    """Share of the rank's FLOPs per step that no other rank has; 0 where it is not known."""
    ours = late.compute.flops_per_step
    theirs = [flops for other in others if (flops := other.compute.flops_per_step)]
    return max(1.0 - max(theirs) / ours, 0.0) if ours and theirs else 0.0


def _same(one: TraceFacts, other: TraceFacts) -> bool | None:
    ours, theirs = one.compute.flops_per_step, other.compute.flops_per_step
    if not ours or not theirs:
        return None
    if abs(ours - theirs) > SAME_FLOPS_RATIO * max(ours, theirs):
        return False
    first, second = _per_step(one), _per_step(other)
    shown = {name for found in (first, second) for name, (_, share) in found.items() if share >= SHOWN_SHARE}
    return all(name in first and name in second and first[name][0] == second[name][0] for name in shown)


def _per_step(trace: TraceFacts) -> dict[str, tuple[int, float]]:
    """Name to calls per step, rounded, and share of the window, of the largest kernels that compute."""
    count = max(trace.n_steady, 1)
    return {
        kernel.name: (round(kernel.count / count), kernel.share)
        for kernel in trace.kernels
        if kernel.kind != COMMUNICATION
    }
