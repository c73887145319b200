"""Copies over the bus, judged against the host link: batches, small transfers, and results."""

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
    busiest_streams,
    directions,
)
from profilerkit.analysis.enclosing import launching_operators
from profilerkit.analysis.host.names import BATCH_COPY_BYTES
from profilerkit.analysis.intervals import I64, intersect, subtract, union
from profilerkit.analysis.parts import leaf
from profilerkit.analysis.trace_view import TraceView
from profilerkit.model.report import HostCopy
from profilerkit.trace.columns import Category, TraceColumns

#: A transfer below this many bytes carries a scalar or an index, not data.
SMALL_BYTES = 4096
_MOST_NAMED = 3


class SmallCopyFacts(msgspec.Struct, frozen=True):
    """Transfers below 4 KiB between host and device, per steady step.

    Attributes:
        to_device: count.
        to_host: count.
        exposed_ns: time in which the device ran nothing but such a copy.
        drained_ns: time in which it was idle after one that the host had waited for.
        operators: the operators that issued most of them, and how many of all; hostile text.
    """

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
    alone = subtract(
        union(columns.ts_ns[small], columns.end_ns[small]), union(columns.ts_ns[others], columns.end_ns[others])
    )
    goes = directions(columns, small)
    drained = intersect(window, segments.only(leaf("sync.drain")))
    order = np.argsort(columns.end_ns[rows], kind="stable")
    last = np.searchsorted(columns.end_ns[rows][order], drained.start, side="right") - 1
    after = (last >= 0) & is_small[order][np.maximum(last, 0)] if len(rows) else np.zeros(len(drained), dtype=bool)
    return SmallCopyFacts(
        to_device=int((goes == TO_DEVICE).sum()) / count,
        to_host=int((goes == TO_HOST).sum()) / count,
        exposed_ns=intersect(window, alone).total_ns / count,
        drained_ns=int((drained.end - drained.start)[after].sum()) / count,
        operators=_operators(columns, launches, small),
    )


def _operators(columns: TraceColumns, launches: I64, rows: I64) -> tuple[tuple[str, int], ...]:
    """The operators that launched most of ``rows``."""
    found = launching_operators(columns, launches, rows)
    names, counts = np.unique(columns.name[found[found >= 0]], return_counts=True)
    order = np.argsort(-counts, kind="stable")[:_MOST_NAMED]
    return tuple((columns.strings[names[place]], int(counts[place])) for place in order.tolist())


Direction = Literal["to device", "to host"]
HostMemory = Literal["pageable", "pinned"]


_DIRECTIONS: tuple[tuple[int, Direction], ...] = ((TO_DEVICE, "to device"), (TO_HOST, "to host"))


def host_copies(view: TraceView) -> tuple[HostCopy, ...]:
    """The kinds of copies among the device events in ``rows``, longest first, per step of ``count``."""
    columns, rows, count, spec = view.columns, view.rows, view.count, view.roof.spec
    rows = rows[columns.is_a(Category.MEMCPY, Category.MEMSET)[rows]]
    goes = directions(columns, rows)
    rows, goes = rows[goes > ELSEWHERE], goes[goes > ELSEWHERE]
    memories = {index: _host_memory(columns.strings[index]) for index in np.unique(columns.name[rows]).tolist()}
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


def _host_memory(name: str) -> HostMemory | None:
    """The host's side by a copy's name, ``None`` where it does not say.

    >>> _host_memory("Memcpy HtoD (Pageable -> Device)"), _host_memory("CopyDeviceToHost")
    ('pageable', None)
    """
    text = name.lower()
    return "pageable" if "pageable" in text else "pinned" if "pinned" in text else None
