"""How many of the first steps are warm-up, what they cost, and what made them longer."""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from profilerkit.analysis.intervals import I64, Spans, clip, subtract, union
from profilerkit.analysis.parts import LEAVES
from profilerkit.analysis.stats import median, quantile
from profilerkit.model.step import StepState, Warmup
from profilerkit.trace.columns import TraceColumns

#: A step longer than this multiple of the settled ones is slow.
WARMUP_RATIO = 1.5
#: The settled level is this quantile of the last half: steps that are longer at intervals, up to every fourth, are
#: part of what a run settles to.
SETTLED_QUANTILE = 0.75
#: A slow step left in the window harms more than a settled one left out.
SLOW_WEIGHT = 2
#: After warm-up steps stop getting shorter: the median of the first half of the rest exceeds that of the second by less
#: than this ratio of what the warm-up cost. Where they go on, as in a curriculum, nothing was warmed up. Steps right
#: behind a slow one may be the shorter ones: the host runs ahead while the device catches up.
DRIFT_RATIO = 0.25
#: Below this number of steps none can be told to be warm-up by its length.
FEWEST_TO_TELL = 6


def warmup_length(step_ns: I64) -> int:
    """How many leading steps are warm-up, at most half of all.

    The change point between slow and settled steps: the split that leaves fewest steps on the wrong side, a slow one
    behind it counting ``SLOW_WEIGHT``. So one quick step among compilations does not end the warm-up, and the first
    epoch of a cold data set is told as a whole. A run that does not begin with a slow step has no warm-up.

    >>> warmup_length(np.array([900, 400, 101, 99, 100, 102]))
    2
    >>> warmup_length(np.array([900, 850, 101, 800, 100, 102, 99, 100, 101, 100]))
    4
    >>> warmup_length(np.array([875, 910, 7, 7, 7, 22, 220, 221, 220, 219, 220]))
    2
    >>> warmup_length(np.arange(300, 100, -5))
    0
    """
    if len(step_ns) < FEWEST_TO_TELL:
        return 0
    half = len(step_ns) // 2
    slow = step_ns[:half] > WARMUP_RATIO * quantile(step_ns[half:], SETTLED_QUANTILE)
    if not slow[0]:
        return 0
    settled_before = np.r_[0, np.cumsum(~slow)]
    slow_behind = slow.sum() - np.r_[0, np.cumsum(slow)]
    length = int((settled_before + SLOW_WEIGHT * slow_behind).argmin())
    rest = step_ns[length:]
    early, late = np.array_split(rest, 2)
    cost = median(step_ns[:length]) - median(rest)
    return length if median(early) - median(late) <= DRIFT_RATIO * cost else 0


#: The cause is named when it holds this much of what the first steps took longer, and that is this much of a step.
NAMED_RATIO = 0.5
NOTED_RATIO = 0.05

_WORDS = (
    ("warm.compile", "compilation"),
    ("input.", "the first batches"),
    ("mem.alloc", "growth of the allocator"),
    ("compute.", "more kernels than later, as when cudnn tries algorithms"),
    ("comm.", "the first communication"),
)
LOADING = "loading of modules at their first launch"


def loading_per_step(columns: TraceColumns, rows: I64, steps: Spans, busy: Spans) -> I64:
    """``(n_steps,)`` ns in which a module was loaded, in one of ``rows``, while the device was idle."""
    idle = subtract(union(columns.ts_ns[rows], columns.ts_ns[rows] + columns.dur_ns[rows]), busy)
    edges = zip(steps.start.tolist(), steps.end.tolist(), strict=True)
    return np.array([clip(idle, start, end).total_ns for start, end in edges], dtype=np.int64)


def warmup_cost(state: Sequence[StepState], time: I64, spent: Mapping[str, I64]) -> Warmup | None:
    """The cost of the steps that lead up to the first steady one; ``None`` where there are none.

    Args:
        state: why each step is in or out.
        time: ``(n_steps,)`` int64 ns.
        spent: words for a cause to its time per step, ``(n_steps,)`` int64 ns; a part of another counts first.

    >>> found = warmup_cost(("warmup", "steady", "steady"), np.array([90, 10, 10]), {"x": np.array([70, 0, 0])})
    >>> found.steps, found.time_ns, found.excess_ns, found.cause
    (1, 90, 80, 'x')
    """
    if "steady" not in state:
        return None
    first = state.index("steady")
    leading = np.arange(first)[[value in ("warmup", "compile") for value in state[:first]]]
    if not len(leading):
        return None
    steady = np.array([value == "steady" for value in state], dtype=np.bool_)
    excess = {words: _excess(values, leading, steady) for words, values in spent.items()}
    total = _excess(time, leading, steady)
    cause = next((words for words, value in excess.items() if value >= NAMED_RATIO * total), None)
    noted = total >= NOTED_RATIO * float(np.median(time[steady]))
    return Warmup(
        steps=len(leading),
        time_ns=int(time[leading].sum()),
        excess_ns=max(round(total), 0),
        cause=cause if noted else None,
    )


def _excess(values: I64, leading: npt.NDArray[np.int64], steady: npt.NDArray[np.bool_]) -> float:
    return float(values[leading].sum()) - len(leading) * float(np.median(values[steady]))


def causes(per_step: I64, loading: I64) -> dict[str, I64]:
    """Words for a cause to its time per step, ``(n_steps,)`` int64 ns, of a partition per step."""
    out = {LOADING: loading}
    for group, words in _WORDS:
        leaves = [index for index, name in enumerate(LEAVES) if name.startswith(group)]
        out[words] = per_step[:, leaves].sum(axis=1)
    return out
