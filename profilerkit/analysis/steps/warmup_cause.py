"""What the steps before the steady window cost, and what made them longer."""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from profilerkit.analysis.intervals import I64, Spans, clip, subtract, union
from profilerkit.analysis.leaves import LEAVES
from profilerkit.model.step import StepState, Warmup
from profilerkit.trace.columns import TraceColumns

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
