"""Runtime calls of the host that cost the device time: blocking ones, allocator calls, first-use work."""

import numpy as np
import numpy.typing as npt

from profilerkit.analysis.device.copies import awaited_copies, waiting_calls
from profilerkit.analysis.device.records import AllocatorFacts, ColdFacts, SyncFacts
from profilerkit.analysis.host.loading import captures, loading_rows
from profilerkit.analysis.host.names import BLOCKING_CALL_NS, HostNames
from profilerkit.analysis.intervals import I64, Spans, clip, index_at, intersect, subtract, union
from profilerkit.analysis.steps.find import TraceSteps
from profilerkit.trace.columns import Category, TraceColumns

#: A runtime call this long that neither waits nor copies loads modules, creates a context or grows a heap.
SLOW_CALL_NS = 50_000_000
#: Slow calls, and those that load modules, are first-use work when this much of their time falls into one step.
COLD_CONCENTRATION = 0.8
#: They are told when the device idles under them for this share of a window that has no more steps than this: in a
#: longer one the affected step is an outlier among steady ones.
COLD_SHARE = 0.25
COLD_STEPS = 3


def sync_facts(
    columns: TraceColumns,
    names: HostNames,
    launches: I64,
    judged: npt.NDArray[np.bool_],
    count: int,
    copying: Spans,
    idle: Spans,
) -> SyncFacts:
    """Blocking calls in the judged events, per step of ``count``: waits, and copies that return with their result.

    ``copying`` is when the device did nothing but copy to the host, ``idle`` when it did nothing at all.
    """
    blocking = names.sync_call[columns.name] & (columns.category == Category.RUNTIME)
    blocking[waiting_calls(columns, launches)] = True
    rows = np.flatnonzero(judged & blocking & (columns.dur_ns >= BLOCKING_CALL_NS))
    labels, times = np.unique(columns.name[rows], return_counts=True)
    order = np.argsort(-times)[:3]
    copies = awaited_copies(columns, launches)
    awaited = intersect(copying, union(columns.ts_ns[copies], columns.end_ns[copies]))
    return SyncFacts(
        per_step=len(rows) / count,
        blocked_ns=float(columns.dur_ns[rows].sum()) / count,
        culprits=tuple((columns.strings[labels[i]], int(times[i])) for i in order),
        awaited_ratio=awaited.total_ns / max(copying.total_ns, 1),
        idle_after_ns=_idle_after(np.sort(columns.end_ns[rows]), idle) / count,
    )


def _idle_after(returned: I64, idle: Spans) -> int:
    """Time from the first return in each idle span to the end of the span, ns; ``returned`` ascends.

    >>> _idle_after(np.array([5, 12, 14]), Spans(np.array([2, 10]), np.array([4, 20])))
    8
    """
    gap = index_at(idle, returned)
    inside = gap >= 0
    gap, first = np.unique(gap[inside], return_index=True)
    return int((idle.end[gap] - returned[inside][first]).sum())


def allocator_facts(
    columns: TraceColumns, names: HostNames, judged: npt.NDArray[np.bool_], count: int
) -> AllocatorFacts:
    """Allocator calls in the judged events, per step of ``count``."""
    calls = judged & (columns.category == Category.RUNTIME) & names.allocator[columns.name]
    return AllocatorFacts(calls_per_step=int(calls.sum()) / count)


def cold_facts(
    columns: TraceColumns, names: HostNames, launches: I64, steps: TraceSteps, busy: Spans
) -> ColdFacts | None:
    """First-use work that takes much of a short window; ``None`` where the window is judged as it is.

    A launch can also take long because the launch queue is full: the device works meanwhile, and it does not count.
    """
    waits = names.sync_call | names.copy_call
    slow = (columns.category == Category.RUNTIME) & ~waits[columns.name] & (columns.dur_ns >= SLOW_CALL_NS)
    rows = np.union1d(np.flatnonzero(slow), loading_rows(columns, names, launches))
    captured = captures(columns)
    if not (len(rows) or len(captured)) or len(steps.start) > COLD_STEPS:
        return None
    first_use = union(np.r_[columns.ts_ns[rows], captured.start], np.r_[columns.end_ns[rows], captured.end])
    idle, capturing = subtract(first_use, busy), subtract(captured, busy)
    edges = list(zip(steps.start.tolist(), steps.end.tolist(), strict=True))
    per_step = np.array([clip(idle, start, end).total_ns for start, end in edges])
    worst = int(per_step.argmax())
    window = max(steps.steady.total_ns, 1)
    share = float(per_step[worst]) / window
    if share < COLD_SHARE or per_step[worst] < COLD_CONCENTRATION * per_step.sum() or steps.state[worst] != "steady":
        return None
    time = np.bincount(columns.name[rows], weights=columns.dur_ns[rows], minlength=1)
    longest = [int(name) for name in np.argsort(-time, kind="stable")[:3] if time[name]]
    return ColdFacts(
        share=share,
        calls=tuple((columns.strings[name], int(time[name])) for name in longest),
        capture_share=clip(capturing, *edges[worst]).total_ns / window,
    )
