"""Start-up, which no later step pays again: calls that load a module for a first launch, and captures of graphs."""

import re

import numpy as np

from profilerkit.analysis.host.names import HostNames
from profilerkit.analysis.intervals import I64, Spans, union
from profilerkit.trace.columns import Category, TraceColumns

#: A first launch of a kernel takes this long when its module is loaded for it; later ones take some 10 µs.
LOADING_CALL_NS = 1_000_000
#: A first launch no longer than this multiple of the median launch is as slow as the others (a choice).
FAR_SLOWER_RATIO = 20

_LOADS = re.compile(r"^(?:Lazy Function Loading|Runtime Triggered Module Loading|Driver Compiler)$")
_CAPTURE = re.compile(r"^(?:cuda|hip|cu)Stream(?P<edge>Begin|End)Capture(?:ToGraph)?(?:_\w{1,20})?$")


def captures(columns: TraceColumns) -> Spans:
    """When work was captured into a graph, and not run: from each call that begins it to the next that ends it."""
    edges = [_CAPTURE.match(text) for text in columns.strings]
    begins, ends = (np.array([m is not None and m["edge"] == edge for m in edges], bool) for edge in ("Begin", "End"))
    begin = np.sort(columns.ts_ns[begins[columns.name]])
    end = np.sort(columns.end_ns[ends[columns.name]])
    begin = begin[begin < end[-1]] if len(end) else begin[:0]
    return union(begin, end[np.searchsorted(end, begin)])


def loading_rows(columns: TraceColumns, names: HostNames, launches: I64) -> I64:
    """Rows of the calls, and of the profiler's own marks, in which a module was loaded, sorted.

    A call counts where it is the first to launch its kernel, or of those that launch nothing the first of its name,
    and lasts ``LOADING_CALL_NS`` and ``FAR_SLOWER_RATIO`` times as long as the median launch. Waiting, copying and
    allocating have their own parts.

    Args:
        columns: the trace.
        names: its classified names.
        launches: ``(n_events,)`` launching runtime row of each device event, -1 for none.
    """
    other = names.sync_call | names.copy_call | names.allocator
    calls = np.flatnonzero((columns.category == Category.RUNTIME) & ~other[columns.name])
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
    loads = np.array([_LOADS.match(text) is not None for text in columns.strings], dtype=np.bool_)
    marks = np.flatnonzero((columns.category == Category.OVERHEAD) & loads[columns.name])
    rows: I64 = np.union1d(slow, marks).astype(np.int64)
    return rows
