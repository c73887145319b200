"""What a host thread was doing, instant by instant, as layers of priority; start-up and the launch queue among them."""

import re

import msgspec
import numpy as np

from profilerkit.analysis.device.kernels import named
from profilerkit.analysis.host.feeding import Feeding, feeding, split
from profilerkit.analysis.host.names import BLOCKING_CALL_NS, QUIET_NS, HostNames
from profilerkit.analysis.intervals import (
    EMPTY,
    NO_SEGMENTS,
    Segments,
    Spans,
    between,
    paint,
    positive,
    subtract,
    union,
    with_label,
)
from profilerkit.model import revise
from profilerkit.model.step import leaf
from profilerkit.trace.columns import I8, I64, Bools, Category, TraceColumns


class Queue:
    """The work of a device in the order in which it was issued."""

    def __init__(self, columns: TraceColumns, rows: I64, launches: I64) -> None:
        """Take the device events ``rows``; one without a launch counts from when it ran."""
        call = launches[rows]
        issued = np.where(call >= 0, columns.ts_ns[np.maximum(call, 0)], columns.ts_ns[rows])
        order = np.argsort(issued, kind="stable")
        self._issued = issued[order]
        self._done = np.maximum.accumulate((columns.ts_ns[rows] + columns.dur_ns[rows])[order])

    def had_work(self, instants: I64) -> Bools:
        """``(n,)`` whether work that was issued before each instant ended after it."""
        before = np.searchsorted(self._issued, instants, side="left") - 1
        had: Bools = before >= 0
        had[had] = self._done[before[had]] > instants[had]
        return had


#: A first launch of a kernel takes this long when its module is loaded for it; later ones take some 10 µs.
LOADING_CALL_NS = 1_000_000
#: A first launch no longer than this multiple of the median launch is as slow as the others (a choice).
FAR_SLOWER_RATIO = 20

_LOADS = re.compile(r"^(?:Lazy Function Loading|Runtime Triggered Module Loading|Driver Compiler)$")
_BEGINS_CAPTURE, _ENDS_CAPTURE = (
    re.compile(rf"^(?:cuda|hip|cu)Stream{edge}Capture(?:ToGraph)?(?:_\w{{1,20}})?$") for edge in ("Begin", "End")
)


def captures(columns: TraceColumns) -> Spans:
    """When work was captured into a graph, and not run: from each call that begins it to the next that ends it."""
    begin = np.sort(columns.ts_ns[named(columns, _BEGINS_CAPTURE, Category.RUNTIME)])
    end = np.sort(columns.end_ns[named(columns, _ENDS_CAPTURE, Category.RUNTIME)])
    begin = begin[begin < end[-1]] if len(end) else begin[:0]
    return union(begin, end[np.searchsorted(end, begin)])


def loading_rows(columns: TraceColumns, names: HostNames, launches: I64) -> I64:
    """Rows of the calls, and of the profiler's own marks, in which a module was loaded, sorted.

    A call counts where it is the first to launch its kernel, or of those that launch nothing the first of its name,
    and lasts ``LOADING_CALL_NS`` and ``FAR_SLOWER_RATIO`` times as long as the median launch. Waiting, copying and
    allocating have their own parts.
    """
    other = names.sync_call | names.copy_call | names.allocator
    calls = np.flatnonzero(columns.category == Category.RUNTIME)
    calls = calls[~other[columns.name[calls]]]
    # What a call is the first of: the kernel that it launches, else its own name.
    subject = columns.name + len(columns.strings)
    linked = np.flatnonzero((launches >= 0) & (columns.category == Category.KERNEL))[::-1]
    subject[launches[linked]] = columns.name[linked]
    issues = np.zeros(len(columns), dtype=np.bool_)
    issues[launches[linked]] = True
    usual = float(np.median(columns.dur_ns[issues])) if np.count_nonzero(issues) > 1 else 0.0
    last_first = calls[np.argsort(columns.ts_ns[calls], kind="stable")][::-1]
    first = np.full(2 * len(columns.strings), -1)
    first[subject[last_first]] = last_first
    first = first[first >= 0]
    slow = first[columns.dur_ns[first] >= max(LOADING_CALL_NS, FAR_SLOWER_RATIO * usual)]
    marks = np.flatnonzero(named(columns, _LOADS, Category.OVERHEAD))
    rows: I64 = np.union1d(slow, marks).astype(np.int64)
    return rows


NO_ROWS = np.empty(0, dtype=np.int64)


class HostThread(msgspec.Struct, frozen=True):
    """One thread's activity."""

    layers: tuple[Segments, ...]
    sync_start: I64
    sync_end: I64
    events: Spans
    fed: Feeding  #: how the thread gets its batches
    #: From the first to the last of its operators, frames and calls, and the ranges of its own that reach into that:
    #: there it runs Python, and they would show its work. None where it has no operator and no frame.
    python: Spans


class HostActivity:
    """The threads of one trace, each looked at when it is first asked for."""

    def __init__(
        self,
        columns: TraceColumns,
        names: HostNames,
        main: int,
        *,
        copied: I8 | None = None,
        issues: I64,
        blocks: I64 = NO_ROWS,
        loading: I64 = NO_ROWS,
        queue: Queue | None = None,
        lead_in: Spans = EMPTY,
    ) -> None:
        """Take what is known of the trace's runtime calls.

        copied: ``(n_events,)`` int64, leaf of the copy a runtime row launched, -1 for none; ``None`` without a
            device.
        issues: rows of the calls or operators that issued work other than copies, any number of times.
        blocks: rows of the copy calls that returned only when their copy was done.
        queue: the device's work without the reads of results; ``None`` without a device.
        lead_in: when the main thread leads up to the batch copy of a step; input, unless it is seen to be fed.
        """
        self.main = main
        self._columns = columns
        self._names = names
        self._copied = copied
        self._issues = issues
        self._blocks = blocks
        self.loading = loading
        self._queue = queue
        self._lead_in = lead_in
        # Of the profiler's own work what stands at a thread where nothing else happens: it may be any thread's.
        rows = np.flatnonzero(columns.category == Category.OVERHEAD)
        working = columns.is_a(Category.CPU_OP, Category.RUNTIME, Category.ANNOTATION, Category.PYTHON)
        busy = np.zeros(len(columns.threads) + 1, dtype=np.bool_)
        busy[columns.thread[working]] = True
        self._overhead = rows[~busy[columns.thread[rows]]]
        self._captures = captures(columns)
        self._threads: dict[int, HostThread] = {}

    @property
    def lead_in(self) -> Spans:
        """What leads up to the batch copies, where the main thread's input is only inferred from that."""
        return EMPTY if self.main < 0 or len(self.thread(self.main).fed.rows) else self._lead_in

    def thread(self, key: int) -> HostThread:
        """The activity of one thread."""
        if key not in self._threads:
            self._threads[key] = self._look_at(key)
        return self._threads[key]

    def label(self, start: I64, end: I64, key: int) -> Segments:
        """What thread ``key`` did in the intervals, over what the main thread did, over plain Python.

        Without operators or frames around it nothing shows that it was Python: it was not recorded. A backward thread
        is idle while the main thread prepares its work. Without a thread nothing is known.
        """
        return self._painted(start, end, key, [drained(self.thread(key), start, end)] if key >= 0 else [])

    def did(self, start: I64, end: I64, key: int) -> Segments:
        """What thread ``key`` did in the disjoint, sorted intervals, whether the device noticed or not."""
        return self._painted(start, end, key, [])

    def _painted(self, start: I64, end: I64, key: int, over_dispatch: list[Segments]) -> Segments:
        spans = positive(start, end)
        if key < 0 or not len(spans):
            return with_label(spans, leaf("idle.unknown"))
        *upper, dispatch = self.thread(key).layers
        below = self.thread(self.main).layers if self.main not in (-1, key) else ()
        layers = [*upper, *over_dispatch, dispatch, *below]
        layers += [with_label(self.thread(known).python, leaf("over.python")) for known in {key, self.main}]
        painted = paint(spans, [between(layer, int(spans.start[0]), int(spans.end[-1])) for layer in layers])
        return revise(painted, label=np.where(painted.label < 0, leaf("idle.unknown"), painted.label))

    def _look_at(self, key: int) -> HostThread:
        columns, names = self._columns, self._names
        own = np.flatnonzero(columns.thread == key)
        start, category = columns.ts_ns[own], columns.category[own]
        name = columns.name[own].astype(np.intp)  # which numpy makes of an index each time
        end = start + columns.dur_ns[own]
        runtime = category == Category.RUNTIME

        def spans(chosen: Bools) -> Spans:
            rows = np.flatnonzero(chosen)
            return union(start[rows], end[rows])

        long = columns.dur_ns[own] >= BLOCKING_CALL_NS
        waits = long & runtime & names.sync_call[name]
        blocking = waits | (long & np.isin(own, self._blocks))
        if self._queue is not None:
            blocking &= self._queue.had_work(start)
        events = spans(runtime | (category == Category.CPU_OP))
        issues = self._issues[(columns.thread[self._issues] == key) & (columns.dur_ns[self._issues] > 0)]
        fed = feeding(columns, names, own, np.sort(columns.ts_ns[issues]))
        phase = np.where(category == Category.ANNOTATION, names.annotation[name], -1)
        phase = np.where(category == Category.PYTHON, names.frame_phase[name], phase)
        loading = self.loading[(columns.thread[self.loading] == key) | np.isin(self.loading, self._overhead)]
        profiled = np.r_[own[category == Category.OVERHEAD], self._overhead]
        layers = [
            *_by_leaf(start, end, np.where(names.named[name], phase, -1)),
            fed.segments,
            with_label(spans(runtime & names.allocator[name]), leaf("mem.alloc")),
            *_by_leaf(start, end, np.where(names.named[name], -1, phase)),
            with_label(union(columns.ts_ns[loading], columns.end_ns[loading]), leaf("warm.load")),
            with_label(union(columns.ts_ns[profiled], columns.end_ns[profiled]), leaf("other.prof")),
            with_label(spans(names.collects[name]), leaf("over.gc")),
            with_label(spans(names.compiles[name]), leaf("warm.compile")),
            with_label(self._captures, leaf("warm.compile")),
            *(_by_leaf(start, end, self._copied[own]) if self._copied is not None else ()),
            with_label(spans(waits), leaf("sync.drain")),
        ]
        if key == self.main and len(self._lead_in) and not len(fed.rows):
            layers.append(split(columns, names, own[:0], self._lead_in, own))
        python = _python(columns, own)
        layers.append(with_label(events if len(python) else _issuing(events), leaf("over.dispatch")))
        order = np.argsort(start[blocking], kind="stable")
        return HostThread(tuple(layers), start[blocking][order], end[blocking][order], events, fed, python)


def _python(columns: TraceColumns, own: I64) -> Spans:
    """``HostThread.python`` of the thread of the rows ``own``: one span, or none."""
    own = own[columns.dur_ns[own] > 0]
    category = columns.category[own]
    if not np.isin(category, (Category.CPU_OP, Category.PYTHON)).any():
        return EMPTY
    told = own[np.isin(category, (Category.CPU_OP, Category.PYTHON, Category.RUNTIME))]
    ranges = own[category == Category.ANNOTATION]
    reach = (columns.ts_ns[ranges] < columns.end_ns[told].max()) & (columns.end_ns[ranges] > columns.ts_ns[told].min())
    rows = np.r_[told, ranges[reach]]
    return Spans(columns.ts_ns[rows].min()[None], columns.end_ns[rows].max()[None])


def _issuing(calls: Spans) -> Spans:
    """Calls with the short gaps between them: without operators, what leads from one launch to the next is a gap."""
    short = calls.start[1:] - calls.end[:-1] <= QUIET_NS
    return union(np.r_[calls.start, calls.end[:-1][short]], np.r_[calls.end, calls.start[1:][short]])


def _by_leaf(start: I64, end: I64, leaves: I8 | I64) -> list[Segments]:
    """One layer for each leaf among the events, lower indices first; -1 for none."""
    found = np.unique(leaves[leaves >= 0]).tolist()
    return [with_label(union(start[leaves == value], end[leaves == value]), value) for value in found]


def drained(thread: HostThread, gap_start: I64, host_end: I64) -> Segments:
    """The part of each gap that a blocking call left behind: from its return until work is issued again.

    The device was busy when the call began and idle when it returned, so the queue ran dry because of it. Long quiet
    stretches are left out: the user's own Python after the call would have kept the device waiting anyway.
    """
    if not len(thread.sync_start) or not len(gap_start):
        return NO_SEGMENTS
    last = np.searchsorted(thread.sync_start, gap_start, side="left") - 1
    caused = (last >= 0) & (thread.sync_end[np.maximum(last, 0)] >= gap_start)
    span = union(gap_start[caused], host_end[caused])
    if not len(span):
        return NO_SEGMENTS
    quiet = subtract(span, thread.events)
    long = (quiet.end - quiet.start) > QUIET_NS
    return with_label(subtract(span, Spans(quiet.start[long], quiet.end[long])), leaf("sync.drain"))
