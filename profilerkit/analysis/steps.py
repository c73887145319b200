"""Find the steps of a trace and the steady ones among them."""

import re
from dataclasses import dataclass

import numpy as np

from profilerkit.analysis.host import HostNames, main_thread
from profilerkit.analysis.intervals import I64, Spans
from profilerkit.analysis.kernels import device_rows
from profilerkit.model.step import StepState
from profilerkit.trace.columns import Category, TraceColumns

#: Drops apply only while at least this many steps remain to be judged.
FEWEST_STEPS = 3
#: A step with fewer kernels than this ratio of its predecessor's is cut off (torch-tb's rule).
CUT_KERNEL_RATIO = 0.8
#: The first steps longer than this multiple of the median of the last half are warm-up (R56).
WARMUP_RATIO = 1.5

_MARKER = re.compile(r"^ProfilerStep#(\d+)")


@dataclass(frozen=True, slots=True)
class TraceSteps:
    """Steps of one trace; arrays are ``(n_steps,)`` int64.

    Attributes:
        index: step numbers.
        start: starts, ns on the trace's clock.
        end: start of the next step, or the step's own end.
        state: why each step is in or out.
        found_by: what marks a step.
        inferred: no explicit marker was found.
    """

    index: I64
    start: I64
    end: I64
    state: tuple[StepState, ...]
    found_by: str
    inferred: bool

    @property
    def steady(self) -> Spans:
        """The judged steps, one span each."""
        keep = np.array([state == "steady" for state in self.state], dtype=bool)
        return Spans(self.start[keep], self.end[keep])


def find_steps(
    columns: TraceColumns, names: HostNames, whole: tuple[int, int] | None = None, launches: I64 | None = None
) -> TraceSteps:
    """Steps by ``ProfilerStep#N``, else optimizer steps, else loader fetches, else the whole trace as one step.

    Args:
        columns: the trace.
        names: its classified names.
        whole: first and last step number that capture knows to be whole; steps beyond were cut off.
        launches: ``(n_events,)`` launching runtime row of each device event, -1 for none. With it the last step lasts
            until the device has done what was launched in it: the host's marker closes before.
    """
    return (
        _by_marker(columns, names, whole, launches)
        or _by_optimizer(columns, names)
        or _by_loader(columns, names)
        or _whole(columns)
    )


def _by_marker(
    columns: TraceColumns, names: HostNames, whole: tuple[int, int] | None, launches: I64 | None
) -> TraceSteps | None:
    numbers = np.array([_step_number(text) for text in columns.strings], dtype=np.int64)
    rows = np.flatnonzero((columns.category == Category.ANNOTATION) & (numbers[columns.name] >= 0))
    if not len(rows):
        return None
    rows = rows[columns.thread[rows] == np.bincount(columns.thread[rows]).argmax()]
    rows = rows[np.argsort(columns.ts_ns[rows], kind="stable")]
    _, first = np.unique(numbers[columns.name[rows]], return_index=True)
    rows = rows[np.sort(first)]
    start, own_end = columns.ts_ns[rows], columns.end_ns[rows]
    end = np.r_[start[1:], _last_end(columns, launches, start, int(own_end[-1]))]
    index = numbers[columns.name[rows]]
    keep = (index >= whole[0]) & (index <= whole[1]) if whole else np.ones(len(index), dtype=bool)
    if not keep.any():
        return None
    return _judged(
        columns,
        names,
        index[keep],
        start[keep],
        end[keep],
        "ProfilerStep",
        inferred=False,
        whole_last=whole is not None,
    )


def _last_end(columns: TraceColumns, launches: I64 | None, start: I64, end: int) -> int:
    """Where the last step ends: at ``end``, or in a capture so short that it is judged, when the device was done.

    ``start`` holds the starts of all steps.
    """
    if launches is None or len(start) > FEWEST_STEPS:
        return end
    rows = np.flatnonzero(launches >= 0)
    issued = columns.ts_ns[launches[rows]]
    inside = rows[(issued >= start[-1]) & (issued < end)]
    return max(end, int(columns.end_ns[inside].max())) if len(inside) else end


def _step_number(text: str) -> int:
    match = _MARKER.match(text)
    return int(match.group(1)) if match and len(match.group(1)) < 19 else -1


def _by_optimizer(columns: TraceColumns, names: HostNames) -> TraceSteps | None:
    marks = np.array([text.startswith("Optimizer.step#") for text in columns.strings])
    rows = np.flatnonzero((columns.category == Category.ANNOTATION) & marks[columns.name])
    ends = np.unique(columns.end_ns[_last_of_cycle(columns, rows)])
    if len(ends) < 2:
        return None
    low = _extent(columns)[0]
    if low < ends[0]:
        ends = np.r_[low, ends]
    return _judged(
        columns, names, np.arange(len(ends) - 1), ends[:-1], ends[1:], "optimizer steps", inferred=True, whole_last=True
    )


def _last_of_cycle(columns: TraceColumns, rows: I64) -> I64:
    """Of several optimizers that step equally often, the marks of the one that steps last in each round."""
    names, counts = np.unique(columns.name[rows], return_counts=True)
    if len(names) < 2 or (counts != counts[0]).any():
        return rows
    latest = columns.name[rows[columns.ts_ns[rows].argmax()]]
    chosen: I64 = rows[columns.name[rows] == latest]
    return chosen


def _by_loader(columns: TraceColumns, names: HostNames) -> TraceSteps | None:
    fetches = columns.is_a(Category.ANNOTATION, Category.CPU_OP) & names.loader[columns.name]
    rows = np.flatnonzero(fetches & (columns.thread == main_thread(columns)))
    start = np.unique(columns.ts_ns[rows])
    if len(start) < 2:
        return None
    end = np.r_[start[1:], _extent(columns)[1]]
    return _judged(columns, names, np.arange(len(start)), start, end, "DataLoader fetches", inferred=True)


def _extent(columns: TraceColumns) -> tuple[int, int]:
    """First start and last end of what was traced, without the profiler's own frame around it."""
    rows = (columns.category != Category.OTHER) & (columns.category != Category.PYTHON) & (columns.ts_ns > 0)
    if not rows.any():
        rows = np.ones(len(columns), dtype=bool)
    if not len(columns):
        return 0, 0
    return int(columns.ts_ns[rows].min()), int(columns.end_ns[rows].max())


def _whole(columns: TraceColumns) -> TraceSteps:
    low, high = _extent(columns)
    edge = np.array([low], dtype=np.int64)
    state: StepState = "steady" if high > low else "cut"
    return TraceSteps(
        np.zeros(1, dtype=np.int64), edge, edge + (high - low), (state,), "the whole trace", inferred=True
    )


def _judged(
    columns: TraceColumns,
    names: HostNames,
    index: I64,
    start: I64,
    end: I64,
    found_by: str,
    *,
    inferred: bool,
    whole_last: bool = False,
) -> TraceSteps:
    """Drop cut, compiling and warm-up steps while enough remain."""
    state: list[StepState] = ["steady"] * len(start)

    def drop(rows: list[int], reason: StepState) -> None:
        rows = [row for row in rows if state[row] == "steady"]
        if rows and state.count("steady") - len(rows) >= FEWEST_STEPS:
            for row in rows:
                state[row] = reason

    if not whole_last:
        drop([len(start) - 1], "cut")
    kernels = _count_in(columns.ts_ns[device_rows(columns) & (columns.dur_ns > 0)], start, end)
    last = max((row for row in range(len(start)) if state[row] == "steady"), default=0)
    if last > 0 and kernels[last] < CUT_KERNEL_RATIO * kernels[last - 1]:
        drop([last], "cut")
    compiling = _count_in(columns.ts_ns[names.compiles[columns.name]], start, end)
    drop([row for row in range(len(start)) if compiling[row]], "compile")
    drop([0], "warmup")
    drop(list(range(warmup_length(end - start))), "warmup")
    return TraceSteps(index.astype(np.int64), start, end, tuple(state), found_by, inferred)


def warmup_length(step_ns: I64) -> int:
    """How many leading steps are warm-up: longer than ``WARMUP_RATIO`` times the median of the last half.

    >>> warmup_length(np.array([900, 400, 101, 99, 100, 102]))
    2
    """
    if len(step_ns) < 2 * FEWEST_STEPS:
        return 0
    settled = float(np.median(step_ns[len(step_ns) // 2 :]))
    slow = step_ns > WARMUP_RATIO * settled
    return int(np.argmin(slow)) if not slow.all() else 0


def _count_in(instants: I64, start: I64, end: I64) -> I64:
    ordered = np.sort(instants)
    return np.searchsorted(ordered, end, side="left") - np.searchsorted(ordered, start, side="left")
