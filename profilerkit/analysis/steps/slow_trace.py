"""What a traced slow step took longer than the others: the parts that grew, leaf by leaf."""

import msgspec
import numpy as np

from profilerkit.analysis.leaves import LEAVES
from profilerkit.analysis.trace_facts import TraceFacts
from profilerkit.model.step import PARTS, within
from profilerkit.units import format_ns

#: So many other steps of the same window are compared with it: they are profiled alike. With fewer the typical window
#: stands for them.
_FEWEST_BESIDE = 2
#: A step is told as slow above this multiple of the others.
_SLOW_RATIO = 1.5
#: A part is named when it holds at least this share of what the slow step takes more; at most so many are named.
_NAMED_SHARE = 0.1
_NAMED = 3


class SlowTrace(msgspec.Struct, frozen=True):
    """One traced slow step beside others.

    Attributes:
        step: its number.
        time_ns: what it took.
        usual_ns: mean of the others.
        beside: the others are of the same window; else they are those of the typical one.
        grown: the parts that hold most of the difference and how much they grew, ns, largest first.
    """

    step: int
    time_ns: int
    usual_ns: int
    beside: bool
    grown: tuple[tuple[str, int], ...]

    @property
    def own_ns(self) -> int:
        """How much the largest part that is no waiting for other ranks grew."""
        return max((grown for part, grown in self.grown if not part.startswith("comm.")), default=0)

    def told(self, trigger: str) -> str:
        """The step in a sentence; ``trigger`` says why it was traced."""
        excess = self.time_ns - self.usual_ns
        others = "the steps beside it" if self.beside else "the typical traced step"
        labels = {part: PARTS[part][1] for part, _ in self.grown}
        named = [f"{format_ns(ns)} {within(labels[part])}" for part, ns in self.grown]
        of_that = f"of that {', '.join(named)}" if named else "spread over all parts"
        return (
            f"Slow step {self.step:,} was traced because {trigger}: it took {format_ns(self.time_ns)}, "
            f"{format_ns(excess)} longer than {others}, {of_that}."
        )


def slow_trace(trace: TraceFacts, typical: TraceFacts | None, step: int | None) -> SlowTrace | None:
    """The slow step of a window that was opened to catch one; ``None`` where no step in it is slow.

    Args:
        trace: of that window.
        typical: of the typical window; ``None`` where it cannot be read.
        step: the number of the slow one as capture saw it; ``None`` takes the longest.
    """
    steps, per_step = trace.steps, trace.partition.per_step
    time = steps.end - steps.start
    if not len(time):
        return None
    seen = steps.index == step if step is not None else np.zeros(len(time), dtype=bool)
    slow = int(seen.argmax() if seen.any() else time.argmax())
    others = np.arange(len(time)) != slow
    beside = len(time) > _FEWEST_BESIDE
    if beside:
        usual = per_step[others].mean(axis=0)
    elif typical is not None and typical.n_steady:
        usual = typical.totals / typical.n_steady
    else:
        return None
    usual_ns, excess = float(usual.sum()), per_step[slow] - usual
    if time[slow] < _SLOW_RATIO * usual_ns:
        return None
    largest = np.argsort(-excess)[:_NAMED]
    least = _NAMED_SHARE * float(excess.sum())
    return SlowTrace(
        step=int(steps.index[slow]),
        time_ns=int(time[slow]),
        usual_ns=round(usual_ns),
        beside=beside,
        grown=tuple((LEAVES[leaf], round(float(excess[leaf]))) for leaf in largest if excess[leaf] >= max(least, 1.0)),
    )
