"""Measure how busy the device is, what could be fused, its copies, and the runtime calls that cost it time."""

from itertools import product
from typing import Literal

import msgspec
import numpy as np

from profilerkit.analysis.device.copies import (
    ELSEWHERE,
    TO_DEVICE,
    TO_HOST,
    CopyFacts,
    are_pageable,
    awaited_copies,
    busiest_streams,
    directions,
)
from profilerkit.analysis.device.kernels import SMALL_KERNEL_NS, device_rows
from profilerkit.analysis.device.roofline import covered_ns
from profilerkit.analysis.enclosing import launching_operators
from profilerkit.analysis.host.activity import captures
from profilerkit.analysis.host.gaps import LATE_LAUNCH_NS
from profilerkit.analysis.host.host_facts import between_ratio
from profilerkit.analysis.host.names import BATCH_COPY_BYTES, BLOCKING_CALL_NS, QUIET_NS
from profilerkit.analysis.intervals import Spans, clip, covered, index_at, intersect, subtract, union
from profilerkit.analysis.partition import TraceView
from profilerkit.model.report import HostCopy
from profilerkit.model.step import DeviceWindow, leaf
from profilerkit.trace.columns import I64, Bools, Category, DeviceProperties, TraceColumns

#: First-use work of this share of the window is what was recorded; below it what is beside can still be named.
MOST_OF_A_WINDOW = 0.5


class DeviceFacts(msgspec.Struct, frozen=True):
    """What ran on the device, per steady step."""

    name: str | None  #: ``None`` when the trace does not say
    kernels_per_step: float
    median_kernel_ns: float
    busy_ratio: float
    #: Share of kernels that started with nothing queued ahead of them; ``None`` without launches.
    queue_empty_ratio: float | None
    #: Share of the idle Python time that lies in short gaps between operators, not in longer stretches.
    between_ratio: float
    #: Share of the idle time in operators that passes for more than 1 ms without another one: none takes that to be
    #: issued, the host computes or compiles in it.
    held_ratio: float = 0.0
    #: Share of the launch latency that lies in gaps longer than 1 ms, which no launch takes.
    late_launch_ratio: float = 0.0


class SyncFacts(msgspec.Struct, frozen=True):
    """Blocking calls per steady step: how many, how long the host waited in them, which names how often.

    ``awaited_ratio`` is the share of the exposed time of copies to the host in those that the host waited for in their
    own call; 0.0 without any. ``idle_after_ns`` is how long the device stood still once the calls had returned,
    whatever the host did then: without the call it would have done that while the device worked. ``reads_per_step``
    counts copies to the host that it waits for, however short: no graph holds one, also where the queue is empty.
    """

    per_step: float
    blocked_ns: float
    culprits: tuple[tuple[str, int], ...]
    awaited_ratio: float
    idle_after_ns: float = 0.0
    reads_per_step: float = 0.0


class AllocatorFacts(msgspec.Struct, frozen=True):
    """cudaMalloc / cudaFree and their kin, per steady step."""

    calls_per_step: float


class ChainFacts(msgspec.Struct, frozen=True):
    """Chains of at least three fusible kernels in a row on one stream, those of the optimizer left out.

    ``mean_length`` is weighted by their time: what fusion saves of a chain grows with its length.
    ``memory_ratio`` is the rate of their compulsory traffic / the device's memory bandwidth, over those whose traffic
    is known; ``None`` where that is less than half of their time.
    """

    share: float
    chains_per_step: float
    mean_length: float
    example: tuple[str, ...]
    memory_ratio: float | None = None


class ColdFacts(msgspec.Struct, frozen=True):
    """First-use work in a short window.

    ``share`` of the window is idle under such calls and captures of graphs, ``capture_share`` under the latter;
    ``calls`` are the names with most of that, and their time, ns.
    """

    share: float
    calls: tuple[tuple[str, int], ...]
    capture_share: float = 0.0

    @property
    def dominates(self) -> bool:
        """Whether most of the window is first-use work, so that the rest says nothing of later steps."""
        return self.share >= MOST_OF_A_WINDOW


SHORTEST_CHAIN = 3  #: shortest run of fusible kernels that a compiler would turn into one


def device_facts(view: TraceView, properties: DeviceProperties | None) -> DeviceFacts:
    """How the judged device was used."""
    columns, launches, ran, rows, window = view.columns, view.launches, view.ran, view.rows, view.window
    parts = view.parts
    kernels = rows[columns.category[rows] == Category.KERNEL]
    busy = intersect(window, view.busy)
    launch = intersect(window, parts.segments.only(leaf("over.launch")))
    gaps = launch.end - launch.start
    return DeviceFacts(
        name=properties.name if properties else None,
        kernels_per_step=len(kernels) / max(len(window), 1),
        median_kernel_ns=float(np.median(columns.dur_ns[kernels])) if len(kernels) else 0.0,
        busy_ratio=busy.total_ns / max(window.total_ns, 1),
        queue_empty_ratio=_queue_empty(columns, launches, np.flatnonzero(ran), kernels),
        between_ratio=between_ratio(parts.segments, window),
        held_ratio=_held_ratio(view),
        late_launch_ratio=int(gaps[gaps > LATE_LAUNCH_NS].sum()) / launch.total_ns if launch.total_ns else 0.0,
    )


def _held_ratio(view: TraceView) -> float:
    columns, gaps = view.columns, intersect(view.window, view.parts.segments.only(leaf("over.dispatch")))
    calls = columns.ts_ns[columns.is_a(Category.CPU_OP, Category.RUNTIME)]
    start = np.union1d(gaps.start, calls[covered(gaps, calls)])
    length = np.minimum(np.r_[start[1:], gaps.end[-1:]], gaps.end[index_at(gaps, start)]) - start
    return float(length[length > QUIET_NS].sum()) / max(gaps.total_ns, 1)


def _queue_empty(columns: TraceColumns, launches: I64, rows: I64, kernels: I64) -> float | None:
    """Share of kernels whose launch call returned after every earlier device event had ended."""
    linked = kernels[launches[kernels] >= 0]
    if not len(linked):
        return None
    rows = rows[np.argsort(columns.ts_ns[rows], kind="stable")]
    reach = np.r_[np.iinfo(np.int64).min, np.maximum.accumulate(columns.end_ns[rows])]
    before = np.searchsorted(columns.ts_ns[rows], columns.ts_ns[linked], side="left")
    return float((reach[before] <= columns.end_ns[launches[linked]]).mean())


def chain_facts(view: TraceView, optimizer: I64) -> ChainFacts:
    """Runs of fusible kernels on one stream inside one step; those of the ``optimizer`` have a rule of their own."""
    columns, kinds, roof, rows, window = view.columns, view.kinds, view.roof, view.rows, view.window
    kernels = rows[columns.category[rows] == Category.KERNEL]
    kernels = kernels[np.lexsort((columns.ts_ns[kernels], columns.stream[kernels]))]
    fusible = kinds.pointwise[columns.name[kernels]] & ~np.isin(kernels, optimizer)
    if not fusible.any():
        return ChainFacts(share=0.0, chains_per_step=0.0, mean_length=0.0, example=())
    stream, step = columns.stream[kernels], np.searchsorted(window.start, columns.ts_ns[kernels], side="right")
    breaks = (fusible[1:] != fusible[:-1]) | (stream[1:] != stream[:-1]) | (step[1:] != step[:-1])
    run = np.cumsum(np.r_[True, breaks]) - 1
    counts = fusible & (columns.dur_ns[kernels] >= SMALL_KERNEL_NS)
    length = np.bincount(run, weights=counts)
    long = length >= SHORTEST_CHAIN
    inside = long[run] & counts
    time = np.bincount(run, weights=columns.dur_ns[kernels])
    # Compulsory traffic over what the memory moves at its peak in that time.
    chained = kernels[inside][np.isin(kernels[inside], roof.rows)]
    moved, chained_ns = roof.bytes[np.searchsorted(roof.rows, chained)], columns.dur_ns[chained]
    known = np.isfinite(moved)
    known_ns, memory_ratio = int(chained_ns[known].sum()), None
    if roof.spec is not None and len(chained) and 2 * known_ns >= int(columns.dur_ns[kernels[inside]].sum()):
        memory_ratio = float(moved[known].sum()) / (float(known_ns) * roof.spec.hbm_gb_per_s)
    example = kernels[(run == int(np.argmax(time * long))) & counts][:5] if long.any() else kernels[:0]
    return ChainFacts(
        share=covered_ns(columns, kernels[inside]) / max(window.total_ns, 1),
        chains_per_step=int(long.sum()) / max(len(window), 1),
        mean_length=float(np.average(length[long], weights=time[long])) if long.any() else 0.0,
        example=tuple(columns.strings[name] for name in columns.name[example]),
        memory_ratio=memory_ratio,
    )


#: A pause between kernels that other tools take for the end of an iteration where nothing marks one (nsys-ai 0.3).
_PAUSE_NS = 2_000_000


def device_window(view: TraceView) -> DeviceWindow | None:
    """The exact arithmetic of ``DeviceWindow``; ``None`` when the trace holds no device events."""
    columns, kinds, launches = view.columns, view.kinds, view.launches
    ran = np.flatnonzero(device_rows(columns))
    busy = union(columns.ts_ns[ran], columns.end_ns[ran])
    if not len(busy):
        return None
    copy = columns.category[ran] == Category.MEMCPY
    communicates = (columns.category[ran] == Category.KERNEL) & kinds.communication[columns.name[ran]]

    compute, comm, copies = (
        union(columns.ts_ns[ran[own]], columns.end_ns[ran[own]]) for own in (~copy & ~communicates, communicates, copy)
    )
    # Without the pauses in which another window begins: what was done in them was not recorded.
    before = np.unique(np.searchsorted(busy.start, np.array(columns.windows[1:], np.int64), side="left"))
    before = before[(before > 0) & (before < len(busy))]
    window_ns = int(busy.end[-1] - busy.start[0]) - int((busy.start[before] - busy.end[before - 1]).sum())
    return DeviceWindow(
        window_ns=window_ns,
        busy_ns=busy.total_ns,
        idle_ns=window_ns - busy.total_ns,
        compute_ns=compute.total_ns,
        comm_ns=comm.total_ns,
        exposed_comm_ns=subtract(comm, compute).total_ns,
        copy_ns=copies.total_ns,
        exposed_copy_ns=subtract(subtract(copies, compute), comm).total_ns,
        stretch_ns=_first_stretch_ns(columns, launches),
    )


def _first_stretch_ns(columns: TraceColumns, launches: I64) -> int | None:
    """Of the kernels that were launched while it was recorded, all of them where none is known to be."""
    kernels = device_rows(columns) & (columns.category == Category.KERNEL)
    launched = kernels & (launches >= 0)
    rows = launched if launched.any() else kernels
    work = union(columns.ts_ns[rows], columns.end_ns[rows])
    pauses = np.flatnonzero(work.start[1:] - work.end[:-1] > _PAUSE_NS)
    return int(work.end[pauses[0]] - work.start[0]) if len(pauses) else None


#: A runtime call this long that neither waits nor copies loads modules, creates a context or grows a heap.
SLOW_CALL_NS = 50_000_000
#: Slow calls, and those that load modules, are first-use work when this much of their time falls into one step.
COLD_CONCENTRATION = 0.8
#: They are told when the device idles under them for this share of a window that has no more steps than this: in a
#: longer one the affected step is an outlier among steady ones.
COLD_SHARE = 0.25
COLD_STEPS = 3


def sync_facts(view: TraceView) -> SyncFacts:
    """Blocking calls in the judged events, per step: waits, and copies that return with their result."""
    columns, names, launches, judged, count = view.columns, view.names, view.launches, view.judged, view.count
    copying = intersect(view.parts.segments.only(leaf("sync.d2h")), view.window)
    # Not cut between adjacent steps: a read-back stands at the end of one more often than not.
    idle = subtract(union(view.window.start, view.window.end), view.busy)
    blocking = names.sync_call[columns.name] & (columns.category == Category.RUNTIME)
    copies = awaited_copies(columns, launches)
    blocking[launches[copies]] = True
    rows = np.flatnonzero(judged & blocking & (columns.dur_ns >= BLOCKING_CALL_NS))
    labels, times = np.unique(columns.name[rows], return_counts=True)
    order = sorted(range(len(times)), key=lambda i: (-times[i], columns.strings[labels[i]]))[:3]
    awaited = intersect(copying, union(columns.ts_ns[copies], columns.end_ns[copies]))
    return SyncFacts(
        per_step=len(rows) / count,
        blocked_ns=float(columns.dur_ns[rows].sum()) / count,
        culprits=tuple((columns.strings[labels[i]], int(times[i])) for i in order),
        awaited_ratio=awaited.total_ns / max(copying.total_ns, 1),
        idle_after_ns=_idle_after(np.sort(columns.end_ns[rows]), idle) / count,
        reads_per_step=np.count_nonzero(judged[_reads(columns, launches, copies, names.sync_call)]) / count,
    )


def _reads(columns: TraceColumns, launches: I64, awaited: I64, sync_call: Bools) -> I64:
    """Calls that copy to the host and that it waits for: in the call, or in its next one, as ``item()`` does."""
    launched = np.flatnonzero(columns.is_a(Category.MEMCPY) & (launches >= 0))
    copying = np.zeros(len(columns), dtype=np.bool_)
    copying[launches[launched[directions(columns, launched) == TO_HOST]]] = True
    calls = np.flatnonzero(columns.category == Category.RUNTIME)
    calls = calls[np.lexsort((columns.ts_ns[calls], columns.thread[calls]))]
    waits = sync_call[columns.name[calls[1:]]] & (columns.thread[calls[1:]] == columns.thread[calls[:-1]])
    return np.union1d(calls[:-1][copying[calls[:-1]] & waits], launches[awaited])


def _idle_after(returned: I64, idle: Spans) -> int:
    """Time from the first return in each idle span to the end of the span, ns; ``returned`` ascends.

    >>> _idle_after(np.array([5, 12, 14]), Spans(np.array([2, 10]), np.array([4, 20])))
    8
    """
    gap = index_at(idle, returned)
    inside = gap >= 0
    gap, first = np.unique(gap[inside], return_index=True)
    return int((idle.end[gap] - returned[inside][first]).sum())


def cold_facts(view: TraceView) -> ColdFacts | None:
    """First-use work that takes much of a short window; ``None`` where the window is judged as it is."""
    columns, names, steps, busy = view.columns, view.names, view.steps, view.busy
    waits = names.sync_call | names.copy_call
    slow = (columns.category == Category.RUNTIME) & (columns.dur_ns >= SLOW_CALL_NS) & ~waits.take(columns.name)
    rows = np.union1d(np.flatnonzero(slow), view.loading)
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


#: A transfer below this many bytes carries a scalar or an index, not data.
SMALL_BYTES = 4096
_MOST_NAMED = 3


class SmallCopyFacts(msgspec.Struct, frozen=True):
    """Transfers below 4 KiB between host and device, per steady step."""

    to_device: float
    to_host: float
    exposed_ns: float
    drained_ns: float
    operators: tuple[tuple[str, int], ...]

    @property
    def per_step(self) -> float:
        """Transfers in both directions."""
        return self.to_device + self.to_host


def batch_copies(view: TraceView) -> tuple[CopyFacts, CopyFacts]:
    """Return the copies of batches from pageable memory, and from pinned memory or such as the trace does not name."""
    columns, launches, parts, rows, count = view.columns, view.launches, view.parts, view.rows, view.count
    kernels = rows[columns.category[rows] == Category.KERNEL]
    computing, exposed = busiest_streams(columns, kernels), parts.segments.only(leaf("input.h2d"))
    batches = rows[(parts.copied(rows) == leaf("input.h2d")) & (columns.bytes[rows] >= BATCH_COPY_BYTES)]
    pageable = are_pageable(columns, batches)

    def told(chosen: I64) -> CopyFacts:
        calls, time_ns = launches[chosen], columns.dur_ns[chosen]
        both = np.r_[chosen, calls[calls >= 0]]
        spans = union(columns.ts_ns[both], columns.end_ns[both])
        in_line = np.isin(columns.stream[chosen], computing)
        return CopyFacts(
            per_step=len(chosen) / count,
            bytes_per_step=float(columns.bytes[chosen].sum()) / count,
            time_ns=float(time_ns.sum()) / count,
            exposed_ns=intersect(exposed, spans).total_ns / count,
            in_line_ratio=float(time_ns[in_line].sum() / time_ns.sum()) if time_ns.any() else 0.0,
        )

    return told(batches[pageable]), told(batches[~pageable])


def small_copies(view: TraceView) -> SmallCopyFacts:
    """Transfers of a few bytes among the judged device events ``rows``, per step of ``count``."""
    columns, launches, window, rows, count = view.columns, view.launches, view.window, view.rows, view.count
    segments = view.parts.segments
    known = (columns.bytes[rows] >= 0) & (columns.bytes[rows] < SMALL_BYTES)
    is_small = (columns.category[rows] == Category.MEMCPY) & known
    is_small[is_small] = directions(columns, rows[is_small]) != ELSEWHERE
    small, others = rows[is_small], rows[~is_small]
    own, beside = (union(columns.ts_ns[chosen], columns.end_ns[chosen]) for chosen in (small, others))
    goes = directions(columns, small)
    drained = intersect(window, segments.only(leaf("sync.drain")))
    order = np.argsort(columns.end_ns[rows], kind="stable")
    last = np.searchsorted(columns.end_ns[rows][order], drained.start, side="right") - 1
    after = (last >= 0) & is_small[order][np.maximum(last, 0)] if len(rows) else np.zeros(len(drained), dtype=bool)
    found = launching_operators(columns, launches, small)
    names, counts = np.unique(columns.name[found[found >= 0]], return_counts=True)
    most = np.argsort(-counts, kind="stable")[:_MOST_NAMED].tolist()
    return SmallCopyFacts(
        to_device=int((goes == TO_DEVICE).sum()) / count,
        to_host=int((goes == TO_HOST).sum()) / count,
        exposed_ns=intersect(window, subtract(own, beside)).total_ns / count,
        drained_ns=int((drained.end - drained.start)[after].sum()) / count,
        operators=tuple((columns.strings[names[place]], int(counts[place])) for place in most),
    )


_DIRECTIONS: tuple[tuple[int, Literal["to device", "to host"]], ...] = ((TO_DEVICE, "to device"), (TO_HOST, "to host"))


def host_copies(view: TraceView) -> tuple[HostCopy, ...]:
    """The kinds of copies among the device events in ``rows``, longest first, per step of ``count``."""
    columns, rows, count, spec = view.columns, view.rows, view.count, view.roof.spec
    rows = rows[columns.is_a(Category.MEMCPY, Category.MEMSET)[rows]]
    goes = directions(columns, rows)
    rows, goes = rows[goes > ELSEWHERE], goes[goes > ELSEWHERE]
    memories: dict[int, Literal["pageable", "pinned"] | None] = {}
    for index in np.unique(columns.name[rows]).tolist():
        text = columns.strings[index].lower()
        memories[index] = "pageable" if "pageable" in text else "pinned" if "pinned" in text else None
    found = []
    for (label, direction), memory in product(_DIRECTIONS, dict.fromkeys(memories.values())):
        names = [index for index, own in memories.items() if own == memory]
        chosen = rows[(goes == label) & np.isin(columns.name[rows], names)]
        if not len(chosen):
            continue
        sized = chosen[columns.bytes[chosen] >= 0]
        large = sized[columns.bytes[sized] >= BATCH_COPY_BYTES]
        large_ns = int(columns.dur_ns[large].sum())
        rate = int(columns.bytes[large].sum()) / (large_ns * 1e-9) if large_ns else None
        found.append(
            HostCopy(
                direction=direction,
                memory=memory,
                per_step=len(chosen) / count,
                bytes_per_step=int(columns.bytes[sized].sum()) / count if len(sized) == len(chosen) else None,
                time_ns=int(columns.dur_ns[chosen].sum()) / count,
                bytes_per_s=rate,
                link_ratio=rate / (spec.pcie_gb_per_s * 1e9) if rate and spec else None,
            )
        )
    return tuple(sorted(found, key=lambda copy: -copy.time_ns))
