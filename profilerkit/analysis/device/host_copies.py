"""Copies between host and device, judged against the host link: its peak, not that of device memory, is their limit."""

from itertools import product
from typing import Literal

import numpy as np

from profilerkit.analysis.device.copies import ELSEWHERE, TO_DEVICE, TO_HOST, directions
from profilerkit.analysis.host.names import BATCH_COPY_BYTES
from profilerkit.analysis.intervals import I64
from profilerkit.hardware.lookup import DeviceSpec
from profilerkit.model.report import HostCopy
from profilerkit.trace.columns import Category, TraceColumns

Direction = Literal["to device", "to host"]
HostMemory = Literal["pageable", "pinned"]


_DIRECTIONS: tuple[tuple[int, Direction], ...] = ((TO_DEVICE, "to device"), (TO_HOST, "to host"))


def host_copies(columns: TraceColumns, rows: I64, count: int, spec: DeviceSpec | None) -> tuple[HostCopy, ...]:
    """The kinds of copies among the device events in ``rows``, longest first, per step of ``count``."""
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
