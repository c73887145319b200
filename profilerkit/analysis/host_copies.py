"""Copies between host and device, judged against the host link: its peak, not that of device memory, is their limit."""

from typing import Literal

import numpy as np

from profilerkit.analysis.host import BATCH_COPY_BYTES
from profilerkit.analysis.intervals import I64
from profilerkit.hardware.lookup import DeviceSpec
from profilerkit.model.report import HostCopy
from profilerkit.trace.columns import TraceColumns

Direction = Literal["to device", "to host"]
HostMemory = Literal["pageable", "pinned"]


def host_copies(columns: TraceColumns, rows: I64, count: int, spec: DeviceSpec | None) -> tuple[HostCopy, ...]:
    """The kinds of copies among the device events in ``rows``, longest first, per step of ``count``."""
    kinds = {index: _kind(columns.strings[index]) for index in np.unique(columns.name[rows]).tolist()}
    found = []
    for direction, memory in dict.fromkeys(kind for kind in kinds.values() if kind):
        names = [index for index, kind in kinds.items() if kind == (direction, memory)]
        chosen = rows[np.isin(columns.name[rows], names)]
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


def _kind(name: str) -> tuple[Direction, HostMemory | None] | None:
    """Direction and host memory by a copy's name, ``None`` for other events.

    >>> _kind("Memcpy HtoD (Pageable -> Device)"), _kind("Memcpy DtoD (Device -> Device)"), _kind("CopyDeviceToHost")
    (('to device', 'pageable'), None, ('to host', None))
    """
    text = name.replace("HostToDevice", "HtoD").replace("DeviceToHost", "DtoH")
    direction: Direction | None = "to device" if "HtoD" in text else "to host" if "DtoH" in text else None
    memory: HostMemory | None = "pageable" if "Pageable" in text else "pinned" if "Pinned" in text else None
    return (direction, memory) if direction else None
