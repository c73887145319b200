"""The kernels, or on a CPU-only run the operators, that take most time."""

import numpy as np
import numpy.typing as npt

from profilerkit.analysis.costs.operators import DTYPES
from profilerkit.analysis.device.kernels import BANDWIDTH, COMMUNICATION, MATH, OTHER, KernelNames
from profilerkit.analysis.device.roofline import Roofline
from profilerkit.analysis.enclosing import call_sites
from profilerkit.analysis.intervals import I64
from profilerkit.model.change import revise
from profilerkit.model.finding import Source
from profilerkit.model.report import MOST_KERNELS, Kernel
from profilerkit.trace.columns import Category, TraceColumns

_KINDS = (OTHER, MATH, BANDWIDTH)
#: How many of a kernel's longest calls are looked at for one that Python frames stand around.
_TRIED = 8


def largest(
    columns: TraceColumns,
    kinds: KernelNames,
    roof: Roofline,
    launches: I64,
    rows: I64,
    time_ns: I64,
    steady_ns: int,
    steps: int,
    limit: int = MOST_KERNELS,
) -> tuple[Kernel, ...]:
    """The names with the largest total time, at most ``limit``.

    Args:
        columns: the trace.
        kinds: its classified names.
        roof: those of ``rows`` that compute, against the roofs.
        launches: ``(n_events,)`` int64, row of the launching runtime call, -1 for none.
        rows: device events, or the operators of a CPU-only run.
        time_ns: ``(n_rows,)`` int64, the time each row counts with.
        steady_ns: length of the steady window.
        steps: judged steps in it.
        limit: how many names.
    """
    if not len(rows) or steady_ns <= 0:
        return ()
    names = columns.name[rows]
    total = np.bincount(names, weights=time_ns, minlength=len(columns.strings))
    count = np.bincount(names, minlength=len(columns.strings))
    place = np.full(len(columns), -1, dtype=np.int64)
    place[roof.rows] = np.arange(len(roof.rows))
    found = []
    longest = np.full((limit, _TRIED), -1, dtype=np.int64)
    named = np.flatnonzero(count).tolist()
    for name in sorted(named, key=lambda name: (-total[name], columns.strings[name]))[:limit]:
        own = np.flatnonzero(names == name)
        kernel = Kernel(
            name=columns.strings[name],
            kind=_kind(kinds, name),
            count=int(count[name]),
            total_ns=int(total[name]),
            median_ns=int(np.median(time_ns[own])),
            share=float(total[name]) / steady_ns,
            kind_source="estimated",
            per_step_ns=float(total[name]) / steps if steps else None,
        )
        at = place[rows[own]]
        found.append(_against_the_roof(columns, kinds, roof, kernel, name, at[at >= 0], time_ns[own][at >= 0]))
        chosen = rows[own[np.lexsort((columns.ts_ns[rows[own]], -time_ns[own]))[:_TRIED]]]
        calls = np.where(columns.category[chosen] == Category.CPU_OP, chosen, launches[chosen])
        longest[len(found) - 1, : len(calls)] = calls
    return _placed(columns, found, longest)


def _kind(kinds: KernelNames, name: int) -> str:
    if kinds.communication[name]:
        return COMMUNICATION
    return MATH if kinds.math[name] else BANDWIDTH if kinds.bandwidth[name] else OTHER


def _against_the_roof(
    columns: TraceColumns, kinds: KernelNames, roof: Roofline, kernel: Kernel, name: int, at: I64, time_ns: I64
) -> Kernel:
    """The kernel with what is known of its calls, which stand at places ``at`` of ``roof``."""
    if not len(at):
        return kernel
    by_roof = np.bincount(roof.roof[at], weights=time_ns, minlength=len(_KINDS))
    by_shape = int(time_ns[roof.by_shape[at]].sum()) > int(time_ns.sum()) / 2
    source: Source = "derived" if by_shape else "estimated"
    priced = np.isfinite(roof.bytes[at])
    flops, moved, least = (float(values[at][priced].sum()) for values in (roof.flops, roof.bytes, roof.least_ns))
    priced_ns = int(time_ns[priced].sum())
    operator = roof.operator[at]
    return revise(
        kernel,
        kind=_KINDS[int(by_roof.argmax())] if by_roof.any() else kernel.kind,
        kind_source=source,
        priced_ns=priced_ns or None,
        flops=_whole(flops),
        bytes=_whole(moved),
        efficiency=least / priced_ns if priced_ns and np.isfinite(least) else None,
        precision=_precision(roof.dtype[at][priced], time_ns[priced], bool(kinds.tensor_core[name])),
        tensor_core=bool(kinds.tensor_core[name]) if kinds.math[name] and roof.names_tell_units else None,
        operator=_most_time(columns, operator[operator >= 0], time_ns[operator >= 0]),
    )


def _whole(value: float) -> int | None:
    """A whole number that JSON readers take; only impossible shapes give a larger one."""
    return round(value) if 0 < value < 2**63 else None


def _precision(dtype: npt.NDArray[np.int8], time_ns: I64, tensor_core: bool) -> str | None:
    total = np.bincount(dtype, weights=time_ns, minlength=len(DTYPES))
    total[0] = 0
    found = DTYPES[int(total.argmax())] if total.any() else None
    return "tf32" if found == "fp32" and tensor_core else found


def _most_time(columns: TraceColumns, operators: I64, time_ns: I64) -> str | None:
    if not len(operators):
        return None
    total = np.bincount(columns.name[operators], weights=time_ns)
    return min(columns.strings[name] for name in np.flatnonzero(total == total.max()).tolist())


def _placed(columns: TraceColumns, kernels: list[Kernel], longest: I64) -> tuple[Kernel, ...]:
    """The kernels with where the longest of their calls, ``(n_kernels, _TRIED)`` host rows, were made."""
    calls = longest[: len(kernels)]
    sites = call_sites(columns, calls.ravel())
    out = []
    for index, kernel in enumerate(kernels):
        own = sites[index * _TRIED : (index + 1) * _TRIED]
        site = next((found for found in own if found.module or found.line), own[0])
        out.append(revise(kernel, module=site.module, line=site.line))
    return tuple(out)
