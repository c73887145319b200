"""Find the steps of a trace and the steady ones among them."""

import re
from functools import cached_property
from typing import get_args

import msgspec
import numpy as np

from profilerkit.analysis.device.kernels import device_rows
from profilerkit.analysis.host.activity import captures
from profilerkit.analysis.host.names import HostNames, main_thread
from profilerkit.analysis.intervals import Spans, covered, index_at, positive
from profilerkit.analysis.steps.completion import (
    AHEAD_RATIO,
    device_steps,
    earlier_work_ends,
    issued_at,
    repeated_ranges,
    single_range,
    undone_from,
)
from profilerkit.analysis.steps.phases import marked_by_torch, optimizer_rows, step_marks
from profilerkit.analysis.steps.trend import warmup_length
from profilerkit.model import revise
from profilerkit.model.step import WHOLE_TRACE, StepState
from profilerkit.trace import merged
from profilerkit.trace.columns import I64, WORK, Bools, Category, StepMarks, TraceColumns, kept, names_of

FEWEST_STEPS = 3  #: drops apply only while at least this many steps remain to be judged
CUT_KERNEL_RATIO = 0.8  #: a step with fewer kernels than this ratio of its predecessor's is cut off (torch-tb's rule)

#: The states as numbers, for arrays.
STATES: tuple[StepState, ...] = get_args(StepState)
STEADY, WARMUP, COMPILE, CUT, DISTURBED = range(len(STATES))

_CALLED_OR_RUN = (Category.CPU_OP, Category.RUNTIME, *WORK)
_MARKER = re.compile(r"^ProfilerStep#([0-9]{1,18})(?![0-9])")
_NUMBER = re.compile(r"[0-9]{1,18}")


class TraceSteps(msgspec.Struct, frozen=True, dict=True):
    """Steps of one trace; arrays are ``(n_steps,)`` int64 ns; ``end`` is mostly the next one's start."""

    index: I64
    start: I64
    end: I64
    state: tuple[StepState, ...]
    optimizes: Bools
    found_by: str
    inferred: bool
    #: When the host issued each step, where steps are cut when the device had done them; else ``None``.
    issuing: Spans | None = None
    ahead_ns: int | None = None  #: how far the host then runs ahead of the device at most
    #: From the end of each step's own range to the next one's start; ``None`` unless ranges mark the steps.
    between: Spans | None = None

    @cached_property
    def steady(self) -> Spans:
        """The judged steps, one span each."""
        return Spans(self.start[self.judged], self.end[self.judged])

    @cached_property
    def judged(self) -> Bools:
        """``(n_steps,)`` mask of the steady steps."""
        return np.array([state == "steady" for state in self.state], dtype=bool)

    @property
    def by_host(self) -> "TraceSteps":
        """The steps by the host's marks: what the host did in a step lies between these."""
        if self.issuing is None:
            return self
        return revise(self, start=self.issuing.start, end=self.issuing.end, issuing=None)

    def judged_events(self, columns: TraceColumns, launches: I64) -> Bools:
        """``(n_events,)`` events of the steady steps: those that start in them, or that the host issued in them."""
        if self.issuing is None:
            return covered(self.steady, columns.ts_ns)
        return covered(self.by_host.steady, _issued(columns, launches))


def find_steps(
    columns: TraceColumns, names: HostNames, whole: tuple[int, int] | None = None, launches: I64 | None = None
) -> TraceSteps:
    """Steps by marks, optimizer steps, fetches, ranges, else one: the whole trace.

    Steps beyond the numbers of ``whole`` were cut off, as capture knows. With ``launches``, ``(n_events,)`` launching
    row of each device event or -1, the last step lasts until the device has done what was launched in it.
    """
    if len(columns.windows) > 1:
        return _of_windows(columns, names, launches)
    marks = _own_marks(columns) or _markers(columns, whole, launches)
    if marks is None and marked_by_torch(columns):
        marks = _optimizer_ends(columns, names)
    marks = marks or _loader_starts(columns, names) or _ranges(columns, names, launches)
    return _judged(columns, names, marks, launches) if marks else _whole(columns, names, launches)


def _of_windows(columns: TraceColumns, names: HostNames, launches: I64 | None) -> TraceSteps:
    """The steps of windows that were put together: of each as if it were alone, so that none lasts to the next."""
    window = np.searchsorted(np.array(columns.windows[1:], np.int64), columns.ts_ns, side="right")
    if launches is not None:  # what was launched in a window is of that window
        window = np.where(launches >= 0, window[launches], window)
    found = []
    for mine in (window == number for number in range(len(columns.windows))):
        own = None if launches is None else np.where(launches >= 0, (np.cumsum(mine) - 1)[launches], -1)[mine]
        found.append(find_steps(revise(merged.kept(columns, mine), windows=()), names, launches=own))
    by_host, ahead = [steps.by_host for steps in found], [s.ahead_ns for s in found if s.ahead_ns is not None]
    issuing = Spans(np.concatenate([s.start for s in by_host]), np.concatenate([s.end for s in by_host]))
    index, start, end = (np.concatenate([getattr(s, of) for s in found]) for of in ("index", "start", "end"))
    return TraceSteps(
        index=index,
        start=start,
        end=end,
        optimizes=np.concatenate([steps.optimizes for steps in found]),
        state=tuple(state for steps in found for state in steps.state),
        found_by=found[0].found_by,
        inferred=any(steps.inferred for steps in found),
        issuing=issuing if ahead else None,
        ahead_ns=max(ahead, default=None),
    )


class _Marks(msgspec.Struct, frozen=True):
    """Where marks put the steps, ``(n_steps,)`` int64; ``last_end`` is by its mark, however long it was put off."""

    index: I64
    start: I64
    end: I64
    found_by: str
    inferred: bool
    whole_last: bool = False
    last_end: int | None = None
    between: Spans | None = None


def _own_marks(columns: TraceColumns) -> _Marks | None:
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
    between = positive(columns.end_ns[rows[:-1]], start[1:])
    return _Marks(index, start, end, marks.found_by, marks.inferred, between=between)


def _markers(columns: TraceColumns, whole: tuple[int, int] | None, launches: I64 | None) -> _Marks | None:
    rows, number = _numbered(columns, Category.ANNOTATION)
    if not len(rows):
        return None
    own = columns.thread[rows] == np.bincount(columns.thread[rows]).argmax()
    rows, number = rows[own], number[own]
    _, first = np.unique(number, return_index=True)
    rows, index = rows[np.sort(first)], number[np.sort(first)]
    start, own_end = columns.ts_ns[rows], columns.end_ns[rows]
    end = np.r_[start[1:], _last_end(columns, launches, start, int(own_end[-1]))]
    # A profiler that is stepped as it stops leaves one empty mark behind all work, shorter than that.
    work = columns.is_a(*_CALLED_OR_RUN)
    is_empty = not covered(positive(start, end), columns.ts_ns[work]).any()
    if is_empty and int((end - start).sum()) < int(columns.dur_ns[work].sum()):
        return None
    marks = columns.meta.step_marks or StepMarks("ProfilerStep")
    keep = (index >= whole[0]) & (index <= whole[1]) if whole else np.ones(len(index), dtype=bool)
    if not keep.any():
        return None
    last_end = int(np.r_[start[1:], own_end[-1]][keep][-1])
    found = _Marks(index[keep], start[keep], end[keep], marks.found_by, marks.inferred, whole is not None)
    return revise(found, last_end=last_end, between=positive(own_end[:-1], start[1:]))


def _numbered(columns: TraceColumns, category: Category) -> tuple[I64, I64]:
    """Rows of the marks ``ProfilerStep#N`` of a category in order of time, and their numbers."""
    numbers = _step_numbers(columns)
    rows = np.flatnonzero((columns.category == category) & (numbers[columns.name] >= 0))
    rows = rows[np.argsort(columns.ts_ns[rows], kind="stable")]
    return rows, numbers[columns.name[rows]]


@kept
def _step_numbers(columns: TraceColumns) -> I64:
    """``(n_strings,)`` number of the step that each name of a range marks, -1 for none."""
    used = names_of(columns, Category.ANNOTATION, Category.GPU_ANNOTATION)
    numbers = np.full(len(columns.strings), -1, dtype=np.int64)
    numbers[used] = [int(mark[1]) if (mark := _MARKER.match(columns.strings[name])) else -1 for name in used.tolist()]
    return numbers


def _last_end(columns: TraceColumns, launches: I64 | None, start: I64, end: int) -> int:
    """Where the last step ends: at ``end``, or of a single step when the device was done."""
    if launches is None or len(start) > 1:
        return end
    rows = np.flatnonzero(launches >= 0)
    issued = columns.ts_ns[launches[rows]]
    inside = rows[(issued >= start[-1]) & (issued < end)]
    return max(end, int(columns.end_ns[inside].max())) if len(inside) else end


def _optimizer_ends(columns: TraceColumns, names: HostNames) -> _Marks | None:
    ends = step_marks(columns, _fetches(columns, names))
    if len(ends) < 2:
        return None
    if (low := _extent(columns)[0]) < ends[0]:
        ends = np.r_[low, ends]
    return _Marks(np.arange(len(ends) - 1), ends[:-1], ends[1:], "optimizer steps", inferred=True, whole_last=True)


def _fetches(columns: TraceColumns, names: HostNames) -> I64:
    """Sorted starts of the loader's fetches on the main thread, each once."""
    fetches = columns.is_a(Category.ANNOTATION, Category.CPU_OP) & names.loader[columns.name]
    return np.unique(columns.ts_ns[fetches & (columns.thread == main_thread(columns))])


def _loader_starts(columns: TraceColumns, names: HostNames) -> _Marks | None:
    start = _fetches(columns, names)
    if len(start) < 2:
        return None
    return _Marks(np.arange(len(start)), start, np.r_[start[1:], _extent(columns)[1]], "DataLoader fetches", True)


def _ranges(columns: TraceColumns, names: HostNames, launches: I64 | None) -> _Marks | None:
    """Steps by the program's own ranges; a single one that trains is the step."""
    # The readers of formats without operators know their ranges.
    has_operators = bool((columns.category == Category.CPU_OP).any())
    if has_operators and (found := repeated_ranges(columns)) is not None:
        marks, start, end = found
        ends = np.r_[start[1:], end[-1]]
        return _Marks(marks.number, start, ends, f'ranges like "{marks.called}"', inferred=True, last_end=int(end[-1]))
    if (ended := _optimizer_ends(columns, names)) is not None:
        return ended
    if not has_operators or (row := single_range(columns)) is None:
        return None
    start = columns.ts_ns[[row]]
    end = np.array([_last_end(columns, launches, start, int(columns.end_ns[row]))])
    found_by = f'the range "{columns.strings[columns.name[row]]}"'
    return _Marks(np.zeros(1, np.int64), start, end, found_by, inferred=True, whole_last=True)


def _extent(columns: TraceColumns) -> tuple[int, int]:
    """First start and last end of what was traced, without the profiler's own frame around it."""
    rows = (columns.category != Category.OTHER) & (columns.category != Category.PYTHON) & (columns.ts_ns > 0)
    rows = rows if rows.any() else np.ones(len(columns), dtype=bool)
    return (int(columns.ts_ns[rows].min()), int(columns.end_ns[rows].max())) if len(columns) else (0, 0)


def _whole(columns: TraceColumns, names: HostNames, launches: I64 | None) -> TraceSteps:
    """One step from the first kernel, or the fetch before it, to the last work: the rest is set-up or earlier work."""
    low, high = _extent(columns)
    if columns.meta.unprofiled:
        high = low  # nobody knows that it is a step
    kernels = columns.ts_ns[(columns.category == Category.KERNEL) & (columns.dur_ns > 0)]
    if len(kernels):
        high = min(high, int(columns.end_ns[device_rows(columns)].max()))
        feeds = (columns.category == Category.ANNOTATION) & (names.loader | names.feeds)[columns.name]
        low = max(int(np.r_[kernels.min(), columns.ts_ns[feeds]].min()), earlier_work_ends(columns, launches))
    return TraceSteps(
        index=np.zeros(1, dtype=np.int64),
        start=np.array([low]),
        end=np.array([max(high, low)]),
        state=("steady" if high > low else "cut",),
        optimizes=np.zeros(1, dtype=bool),
        found_by=WHOLE_TRACE,
        inferred=True,
    )


def _judged(columns: TraceColumns, names: HostNames, marks: _Marks, launches: I64 | None) -> TraceSteps:
    """The steps by their marks, or where the device had done them, and which of them are steady."""
    launches = launches if launches is not None else np.full(len(columns), -1)
    issued = _issued(columns, launches)
    start, end = marks.start, marks.end
    state = _states(columns, names, marks, issued, end - start, np.ones(len(start), dtype=bool), marks.whole_last)
    steady = np.array([value == "steady" for value in state], dtype=bool)
    done = end <= undone_from(columns, launches)
    # A short capture is judged to its end, so that what the device did behind the last mark counts, for each step.
    least = 0.0 if 1 < len(start) <= FEWEST_STEPS else AHEAD_RATIO
    found = device_steps(columns, issued, start, end, steady & done, marks.last_end, least)
    if found is not None:
        start, end, _ = found
        state = _states(columns, names, marks, issued, end - start, done, whole_last=True)
    # An optimizer step that marks the end of a step ends with it.
    optimizes = _count_in(columns.end_ns[optimizer_rows(columns)] - 1, marks.start, marks.end) > 0
    return TraceSteps(
        index=marks.index.astype(np.int64),
        start=start,
        end=end,
        state=state,
        optimizes=optimizes,
        found_by=marks.found_by,
        inferred=marks.inferred,
        issuing=Spans(marks.start, marks.end) if found else None,
        ahead_ns=found[2] if found else None,
        between=marks.between,
    )


def _issued(columns: TraceColumns, launches: I64) -> I64:
    """``issued_at`` with the marks of the steps on the device, where the trace has them."""
    rows, number = _numbered(columns, Category.GPU_ANNOTATION)
    marks, on_host = _numbered(columns, Category.ANNOTATION)
    if not len(rows) or not len(marks):
        return issued_at(columns, launches)
    by_number, first = np.unique(on_host, return_index=True)
    place = np.minimum(np.searchsorted(by_number, number), len(by_number) - 1)
    known = by_number[place] == number
    return issued_at(columns, launches, (rows[known], columns.ts_ns[marks[first[place[known]]]]))


def _states(
    columns: TraceColumns, names: HostNames, marks: _Marks, issued: I64, time: I64, done: Bools, whole_last: bool
) -> tuple[StepState, ...]:
    """Drop cut, compiling and warm-up steps while enough remain; always those that lost device work to a cut file.

    Of the steps that are not ``done`` some work on the device may lie behind the end of the trace: they are cut.
    """
    work = np.flatnonzero(device_rows(columns) & (columns.dur_ns > 0))
    _, once = np.unique(columns.ts_ns[work], return_index=True)
    at = np.sort(issued[work[once]])
    kernels = np.searchsorted(at, marks.end, side="left") - np.searchsorted(at, marks.start, side="left")
    state = np.where(done, STEADY, CUT)
    if columns.damage.truncated:
        # Kineto writes the device's events after the host's, so these are what such a file lacks.
        state = np.where(kernels < CUT_KERNEL_RATIO * kernels.max(), CUT, STEADY)
    operators = columns.ts_ns[columns.category == Category.CPU_OP]
    if columns.damage.truncated and not len(work) and len(operators):
        # The host's events are in the order of time: a step that goes on behind the last one lost its operators.
        state = np.where(marks.end > operators.max(), CUT, STEADY)

    issuing = np.flatnonzero(kernels if len(work) or marks.inferred else _count_in(operators, marks.start, marks.end))
    if len(issuing):
        # A mark behind all of the work begins what was not recorded.
        state[issuing[-1] + 1 :] = CUT
    place = np.arange(len(time))

    def drop(chosen: Bools, reason: int) -> None:
        rows = np.flatnonzero(chosen & (state == STEADY))
        if len(rows) and np.count_nonzero(state == STEADY) - len(rows) >= FEWEST_STEPS:
            state[rows] = reason

    if not whole_last:
        drop(place == len(time) - 1, CUT)
    last = int(place[state == STEADY].max(initial=0))
    if last > 0 and kernels[last] < CUT_KERNEL_RATIO * kernels[last - 1]:
        drop(place == last, CUT)
    prepares = np.r_[columns.ts_ns[names.compiles[columns.name]], captures(columns).start]
    compiling = _count_in(prepares, marks.start, marks.end)
    drop(compiling > 0, COMPILE)
    drop(place == 0, WARMUP)
    # A host that had to catch up shows it in its own marks.
    drop(place < max(warmup_length(time), warmup_length(marks.end - marks.start)), WARMUP)
    return in_words(state)


def in_words(state: I64) -> tuple[StepState, ...]:
    """The states that the numbers mean."""
    return tuple(map(STATES.__getitem__, state.tolist()))


def in_step(instants: I64, start: I64, stop: I64) -> I64:
    """Position of the step each instant falls into, -1 for none."""
    return index_at(Spans(start, stop), instants)


def _count_in(instants: I64, start: I64, end: I64) -> I64:
    """How many distinct instants lie in each step: an event that was written twice counts once."""
    ordered = np.sort(instants)
    ordered = ordered[np.r_[True, ordered[1:] != ordered[:-1]]] if len(ordered) else ordered
    return np.searchsorted(ordered, end, side="left") - np.searchsorted(ordered, start, side="left")


def spent_in(spans: Spans, start: I64, stop: I64) -> I64:
    """Time of the spans that begin in each step, at most the step."""
    out = np.zeros(len(start), dtype=np.int64)
    step = in_step(spans.start, start, stop)
    np.add.at(out, step[step >= 0], (spans.end - spans.start)[step >= 0])
    capped: I64 = np.minimum(out, stop - start)
    return capped
