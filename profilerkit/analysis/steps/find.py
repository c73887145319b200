"""Find the steps of a trace and the steady ones among them."""

import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from profilerkit.analysis.device.kernels import device_rows
from profilerkit.analysis.host.names import HostNames, main_thread
from profilerkit.analysis.intervals import I64, Spans
from profilerkit.analysis.steps.optimizer_marks import optimizer_rows, step_marks
from profilerkit.analysis.steps.warmup import warmup_length
from profilerkit.model.step import WHOLE_TRACE, StepState
from profilerkit.trace.columns import Category, StepMarks, TraceColumns

#: Drops apply only while at least this many steps remain to be judged.
FEWEST_STEPS = 3
#: A step with fewer kernels than this ratio of its predecessor's is cut off (torch-tb's rule).
CUT_KERNEL_RATIO = 0.8
#: Steps of which a row is kept.
MOST_ROWS = 2_000

_MARKER = re.compile(r"^ProfilerStep#(\d+)")
_NUMBER = re.compile(r"[0-9]{1,18}")


@dataclass(frozen=True, slots=True)
class TraceSteps:
    """Steps of one trace; arrays are ``(n_steps,)`` int64.

    Attributes:
        index: step numbers.
        start: starts, ns on the trace's clock.
        end: start of the next step, or the step's own end.
        state: why each step is in or out.
        optimizes: ``(n_steps,)`` bool, steps in which an optimizer step ends.
        found_by: what marks a step.
        inferred: no explicit marker was found.
    """

    index: I64
    start: I64
    end: I64
    state: tuple[StepState, ...]
    optimizes: npt.NDArray[np.bool_]
    found_by: str
    inferred: bool

    @property
    def steady(self) -> Spans:
        """The judged steps, one span each."""
        return Spans(self.start[self.judged], self.end[self.judged])

    @property
    def judged(self) -> npt.NDArray[np.bool_]:
        """``(n_steps,)`` mask of the steady steps."""
        return np.array([state == "steady" for state in self.state], dtype=bool)


def find_steps(
    columns: TraceColumns, names: HostNames, whole: tuple[int, int] | None = None, launches: I64 | None = None
) -> TraceSteps:
    """Steps by the marks of a format, ``ProfilerStep#N``, optimizer steps, loader fetches, else one: the whole trace.

    Args:
        columns: the trace.
        names: its classified names.
        whole: first and last step number that capture knows to be whole; steps beyond were cut off.
        launches: ``(n_events,)`` launching runtime row of each device event, -1 for none. With it the last step lasts
            until the device has done what was launched in it: the host's marker closes before.
    """
    return (
        _by_own_marks(columns, names)
        or _by_marker(columns, names, whole, launches)
        or _by_optimizer(columns, names)
        or _by_loader(columns, names)
        or _whole(columns)
    )


def _by_own_marks(columns: TraceColumns, names: HostNames) -> TraceSteps | None:
    """Steps as the format marks them; names that are numbers number them, and are told once each."""
    rows, marks = np.flatnonzero(columns.category == Category.STEP), columns.meta.step_marks
    if marks is None or not len(rows):
        return None
    rows = rows[np.argsort(columns.ts_ns[rows], kind="stable")]
    texts = [columns.strings[name] for name in columns.name[rows].tolist()]
    if all(_NUMBER.fullmatch(text) for text in texts):
        index, first = np.unique(np.array(texts, dtype=np.int64), return_index=True)
        order = np.argsort(first)
        rows, index = rows[first[order]], index[order]
    else:
        index = np.arange(len(rows))
    start = columns.ts_ns[rows]
    end = np.r_[start[1:], max(int(start[-1]), int(columns.end_ns[rows].max()))]
    return _judged(columns, names, index, start, end, marks.found_by, inferred=marks.inferred)


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
    marks = columns.meta.step_marks or StepMarks("ProfilerStep")
    keep = (index >= whole[0]) & (index <= whole[1]) if whole else np.ones(len(index), dtype=bool)
    if not keep.any():
        return None
    return _judged(
        columns,
        names,
        index[keep],
        start[keep],
        end[keep],
        marks.found_by,
        inferred=marks.inferred,
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
    ends = step_marks(columns, _fetches(columns, names))
    if len(ends) < 2:
        return None
    low = _extent(columns)[0]
    if low < ends[0]:
        ends = np.r_[low, ends]
    return _judged(
        columns, names, np.arange(len(ends) - 1), ends[:-1], ends[1:], "optimizer steps", inferred=True, whole_last=True
    )


def _fetches(columns: TraceColumns, names: HostNames) -> I64:
    """Sorted starts of the loader's fetches on the main thread, each once."""
    fetches = columns.is_a(Category.ANNOTATION, Category.CPU_OP) & names.loader[columns.name]
    return np.unique(columns.ts_ns[fetches & (columns.thread == main_thread(columns))])


def _by_loader(columns: TraceColumns, names: HostNames) -> TraceSteps | None:
    start = _fetches(columns, names)
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
    work = device_rows(columns)
    if columns.damage.truncated and work.any():
        high = min(high, int(columns.end_ns[work].max()))  # what the device did later was written later
    edge = np.array([low], dtype=np.int64)
    state: StepState = "steady" if high > low else "cut"
    return TraceSteps(
        index=np.zeros(1, dtype=np.int64),
        start=edge,
        end=edge + (high - low),
        state=(state,),
        optimizes=np.zeros(1, dtype=bool),
        found_by=WHOLE_TRACE,
        inferred=True,
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
    """Drop cut, compiling and warm-up steps while enough remain; always those that lost device work to a cut file."""
    kernels = _count_in(columns.ts_ns[device_rows(columns) & (columns.dur_ns > 0)], start, end)
    state: list[StepState] = ["steady"] * len(start)
    if columns.damage.truncated:
        # Kineto writes the device's events after the host's, so these are what such a file lacks.
        fewest = CUT_KERNEL_RATIO * kernels.max()
        state = ["cut" if count < fewest else "steady" for count in kernels.tolist()]

    def drop(rows: list[int], reason: StepState) -> None:
        rows = [row for row in rows if state[row] == "steady"]
        if rows and state.count("steady") - len(rows) >= FEWEST_STEPS:
            for row in rows:
                state[row] = reason

    if not whole_last:
        drop([len(start) - 1], "cut")
    last = max((row for row in range(len(start)) if state[row] == "steady"), default=0)
    if last > 0 and kernels[last] < CUT_KERNEL_RATIO * kernels[last - 1]:
        drop([last], "cut")
    compiling = _count_in(columns.ts_ns[names.compiles[columns.name]], start, end)
    drop([row for row in range(len(start)) if compiling[row]], "compile")
    drop([0], "warmup")
    drop(list(range(warmup_length(end - start))), "warmup")
    # An optimizer step that marks the end of a step ends with it.
    optimizes = _count_in(columns.end_ns[optimizer_rows(columns)] - 1, start, end) > 0
    return TraceSteps(index.astype(np.int64), start, end, tuple(state), optimizes, found_by, inferred)


def in_step(instants: I64, start: I64, stop: I64) -> I64:
    """Position of the step each instant falls into, -1 for none."""
    position = np.searchsorted(start, instants, side="right") - 1
    inside = (position >= 0) & (instants < stop[np.maximum(position, 0)])
    step: I64 = np.where(inside, position, -1)
    return step


def shown_rows(count: int) -> I64:
    """Positions of the steps of which a row is kept: all, or ``MOST_ROWS`` of them at an even distance."""
    return np.unique(np.linspace(0, count - 1, min(count, MOST_ROWS)).round().astype(np.int64))


def _count_in(instants: I64, start: I64, end: I64) -> I64:
    """How many distinct instants lie in each step: an event that was written twice counts once."""
    ordered = np.sort(instants)
    ordered = ordered[np.r_[True, ordered[1:] != ordered[:-1]]] if len(ordered) else ordered
    return np.searchsorted(ordered, end, side="left") - np.searchsorted(ordered, start, side="left")
