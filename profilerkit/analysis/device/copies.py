"""What the copies of a device carry: batches, results, offloaded state, or bytes within the device."""

import msgspec
import numpy as np

from profilerkit.analysis.host.names import BATCH_COPY_BYTES, HostNames, backward_threads
from profilerkit.analysis.intervals import EMPTY, Spans, covered, union
from profilerkit.model.step import leaf
from profilerkit.trace.columns import I8, I64, Bools, Category, TraceColumns


class CopyFacts(msgspec.Struct, frozen=True):
    """Copies of batches to the device, at least 64 KiB each, per steady step.

    ``exposed_ns`` is the time in which the device ran nothing else, the host's part of the copies included;
    ``in_line_ratio`` the share of their time on the stream that computes.
    """

    per_step: float
    bytes_per_step: float
    time_ns: float
    exposed_ns: float
    in_line_ratio: float = 1.0

    @property
    def bytes_per_s(self) -> float:
        """Achieved rate."""
        return self.bytes_per_step / (self.time_ns * 1e-9) if self.time_ns else 0.0


ELSEWHERE, TO_DEVICE, TO_HOST = 0, 1, 2

#: Copies that leave the device and come back are offloading when the smaller direction moves this much of the larger:
#: batches only come, results only go.
BOTH_WAYS_RATIO = 0.25
#: A batch is a few tensors, a model hundreds: copies without a kernel launched in between are no batch when there are
#: this many, and so many times as many as usual (choices).
_MANY_COPIES, _MORE_THAN_USUAL = 16, 4
_FEWEST_BATCHES = 3  #: fewer rows of copies show no usual number


def directions(columns: TraceColumns, rows: I64) -> I64:
    """``(n,)`` int64: where each of the copies and memsets ``rows`` goes."""
    names, index = np.unique(columns.name[rows], return_inverse=True)
    known = np.full(len(names), ELSEWHERE, dtype=np.int64)
    for place, name in enumerate(names.tolist()):
        text = columns.strings[name].upper().replace("HOST", "H").replace("DEVICE", "D")
        text = text.replace("_", "").replace(" ", "")
        if "HTOD" in text or "H2D" in text:
            known[place] = TO_DEVICE
        elif "DTOH" in text or "D2H" in text:
            known[place] = TO_HOST
    return known[index]


def leads_of(columns: TraceColumns, launches: I64, kernels: I64, steps: Spans) -> Spans:
    """From the start of each step to its first kernel launch, of the steps that launch one."""
    calls = launches[kernels]
    issued = np.sort(columns.ts_ns[calls[calls >= 0]])
    if not len(issued):
        return EMPTY
    first = issued[np.minimum(np.searchsorted(issued, steps.start), len(issued) - 1)]
    led = (first > steps.start) & (first < steps.end)
    return Spans(steps.start[led], first[led])


def copy_leaves(columns: TraceColumns, names: HostNames, launches: I64, kernels: I64, leads: Spans, main: int) -> I8:
    """``(n_events,)`` leaf of each copy or memset, -1 for other events.

    Host-to-device copies of at least ``BATCH_COPY_BYTES`` (or of unknown size) carry batches; smaller ones count as
    bandwidth, like copies within the device. Large copies of state that is kept on the host are offloading, and what
    is copied while the program saves or loads a checkpoint belongs to that, as do the weights of a whole model.
    """
    rows = np.flatnonzero(columns.is_a(Category.MEMCPY, Category.MEMSET))
    direction = directions(columns, rows)
    large = (columns.bytes[rows] < 0) | (columns.bytes[rows] >= BATCH_COPY_BYTES)
    out = np.full(len(columns), -1, dtype=np.int8)
    out[rows] = leaf("compute.membw")
    out[rows[(direction == TO_DEVICE) & large]] = leaf("input.h2d")
    out[rows[direction == TO_HOST]] = leaf("sync.d2h")
    moves = (direction != ELSEWHERE) & large & (launches[rows] >= 0)
    moved, call = rows[moves], launches[rows[moves]]
    down = direction[moves] == TO_DEVICE
    sure = down & np.isin(columns.thread[call], backward_threads(columns, names, main))
    sure |= _under(columns, names.offloads | names.optimizer, call)
    aside = ~np.isin(columns.stream[moved], busiest_streams(columns, kernels)) & ~covered(leads, columns.ts_ns[call])
    out[moved[_offloaded(columns.bytes[moved], down, sure, aside & ~sure)]] = leaf("mem.offload")
    issued = rows[(direction != ELSEWHERE) & (launches[rows] >= 0)]
    out[issued[_under(columns, names.keeps_state, launches[issued])]] = leaf("other.ckpt")
    batches = np.flatnonzero((out == leaf("input.h2d")) & (launches >= 0))
    out[batches[_weights(columns, launches, kernels, batches)]] = leaf("other.ckpt")
    return out


def _weights(columns: TraceColumns, launches: I64, kernels: I64, rows: I64) -> Bools:
    """Which of the large copies ``rows`` to the device carry a model: many in a row, of sizes that no batch has."""
    calls = launches[kernels]
    launched = np.sort(columns.ts_ns[calls[calls >= 0]])
    before = np.searchsorted(launched, columns.ts_ns[launches[rows]])
    _, row, count = np.unique(before, return_inverse=True, return_counts=True)
    if len(count) < _FEWEST_BATCHES:
        return np.zeros(len(rows), dtype=np.bool_)
    many = ((count >= _MANY_COPIES) & (count > _MORE_THAN_USUAL * np.median(count)))[row.ravel()]
    size = columns.bytes[rows]
    carries: Bools = many & ~np.isin(size, size[~many])
    return carries


def _under(columns: TraceColumns, told: Bools, calls: I64) -> Bools:
    """``(n,)`` which calls were made in an annotation, frame or operator of the names ``told`` on their thread."""
    found: Bools = np.zeros(len(calls), dtype=np.bool_)
    said = np.flatnonzero(columns.is_a(Category.ANNOTATION, Category.PYTHON, Category.CPU_OP) & told[columns.name])
    for key in np.unique(columns.thread[said]).tolist():
        own = said[columns.thread[said] == key]
        spans = union(columns.ts_ns[own], columns.end_ns[own])
        found |= (columns.thread[calls] == key) & covered(spans, columns.ts_ns[calls])
    return found


def _offloaded(moved_bytes: I64, down: Bools, sure: Bools, aside: Bools) -> Bools:
    """Which of the large copies move state that is kept on the host; ``down`` are those to the device.

    For ``sure`` those to the device that the backward pass issues, and those under the optimizer or a frame or
    annotation that says so. Others only where bytes go both ways: ``aside`` on a stream of their own outside the
    lead-in of the step, or to the host when they come back in the backward pass or under such a name. What a hook only
    reads is a result.
    """
    up, size = ~down, np.maximum(moved_bytes, 0)

    def both_ways(going: Bools, coming: Bools) -> bool:
        one, other = sorted((int(size[going].sum()), int(size[coming].sum())))
        return one > 0 and one >= BOTH_WAYS_RATIO * other

    out = sure.copy()
    if both_ways(up & (sure | aside), down & (sure | aside)):
        out |= aside
    if both_ways(up & ~sure & ~aside, down & sure):
        out |= up & ~aside
    return out


def busiest_streams(columns: TraceColumns, kernels: I64) -> I64:
    """The stream with most kernel time, or all that share the first place."""
    streams, index = np.unique(columns.stream[kernels], return_inverse=True)
    time = np.zeros(len(streams), dtype=np.int64)
    np.add.at(time, index.ravel(), columns.dur_ns[kernels])
    busiest: I64 = streams[time == time.max(initial=0)]
    return busiest


def awaited_copies(columns: TraceColumns, launches: I64) -> I64:
    """Rows of the copies to the host whose call returned only when they were done.

    The runtime does so for pageable memory by its own rule; of others it shows in the times.
    """
    rows = np.flatnonzero(columns.is_a(Category.MEMCPY, Category.MEMSET) & (launches >= 0))
    rows = rows[directions(columns, rows) == TO_HOST]
    held: I64 = rows[hold_the_host(columns, launches, rows)]
    return held


def hold_the_host(columns: TraceColumns, launches: I64, rows: I64) -> Bools:
    """``(n,)`` which of the launched copies ``rows`` the host spends in their call, and not only in issuing them."""
    late: Bools = columns.end_ns[launches[rows]] >= columns.end_ns[rows]
    return late | are_pageable(columns, rows)


def are_pageable(columns: TraceColumns, rows: I64) -> Bools:
    """``(n,)`` which of the copies ``rows`` are from or to pageable memory of the host, by their names."""
    return are_of_memory(columns, rows, "pageable")


def are_of_memory(columns: TraceColumns, rows: I64, kind: str) -> Bools:
    """The same of any kind of memory, by the word that names say."""
    names, place = np.unique(columns.name[rows], return_inverse=True)
    told = np.array([kind in columns.strings[name].lower() for name in names.tolist()], dtype=np.bool_)
    found: Bools = told[place.ravel()]
    return found


def leads_to_copies(columns: TraceColumns, launches: I64, copies: I8, leads: Spans, main: int, waits: I64) -> Spans:
    """Where the main thread leads up to the batch copy that is the first device work of a step.

    It begins with the step, or after the last call there that waited for the device or read from it: what comes before
    that ends the step before. Steps whose first device work is no copy of a batch have none.
    """
    rows = np.flatnonzero((copies == leaf("input.h2d")) & (launches >= 0) & (columns.bytes >= BATCH_COPY_BYTES))
    call = launches[rows]
    issued = np.sort(columns.ts_ns[call[columns.thread[call] == main]])
    if not len(issued) or not len(leads):
        return EMPTY
    first = issued[np.minimum(np.searchsorted(issued, leads.start), len(issued) - 1)]
    found = (first >= leads.start) & (first <= leads.end)
    start, end = leads.start[found], first[found]
    mine = waits[columns.thread[waits] == main]
    done = np.r_[np.iinfo(np.int64).min, np.sort(columns.ts_ns[mine] + columns.dur_ns[mine])]
    start = np.maximum(start, done[np.searchsorted(done, end, side="right") - 1])
    keep = end > start
    return Spans(start[keep], end[keep])
