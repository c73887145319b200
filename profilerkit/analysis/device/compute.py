"""The compute kernels of the steady window: the part of each, which take most time, how far from the peak."""

import numpy as np

from profilerkit.analysis.device.kernels import BANDWIDTH, MATH, OTHER, SMALL_KERNEL_NS, KernelNames, self_times
from profilerkit.analysis.device.operator_costs import DTYPES, operator_costs
from profilerkit.analysis.device.roofline import BANDWIDTH_ROOF, MATH_ROOF, Roofline, dense_peak, roofline
from profilerkit.analysis.enclosing import call_sites, launching_operators
from profilerkit.analysis.partition import TraceView
from profilerkit.analysis.steps.phases import recomputed
from profilerkit.hardware import DeviceSpec
from profilerkit.model import revise
from profilerkit.model.finding import Source
from profilerkit.model.report import MOST_KERNELS, Compute, Kernel
from profilerkit.model.step import leaf
from profilerkit.trace.columns import F64, I8, I64, Bools, Category, TraceColumns

_KINDS = (OTHER, MATH, BANDWIDTH)
_TRIED = 8  #: how many of a kernel's longest calls are looked at for one that Python frames stand around


def largest(view: TraceView, limit: int = MOST_KERNELS) -> tuple[Kernel, ...]:
    """The kernels, or on a CPU-only run the operators, with the largest total time: at most ``limit`` names."""
    columns, kinds, roof, launches, rows = view.columns, view.kinds, view.roof, view.launches, view.rows
    steady_ns, steps = view.steady_ns, view.count
    if not len(rows):
        return ()
    # Operators count without what is nested in them.
    time_ns = columns.dur_ns[rows] if view.on_gpu else self_times(columns, rows)
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
            kind=kinds.kind(name),
            count=int(count[name]),
            total_ns=int(total[name]),
            median_ns=int(np.median(time_ns[own])),
            share=float(total[name]) / steady_ns,
            kind_source="estimated",
            per_step_ns=float(total[name]) / steps,
        )
        at = place[rows[own]]
        found.append(_against_the_roof(columns, kinds, roof, kernel, name, at[at >= 0], time_ns[own][at >= 0]))
        chosen = rows[own[np.lexsort((columns.ts_ns[rows[own]], -time_ns[own]))[:_TRIED]]]
        calls = np.where(columns.category[chosen] == Category.CPU_OP, chosen, launches[chosen])
        longest[len(found) - 1, : len(calls)] = calls
    return _placed(columns, found, longest)


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
    known = roof.operator[at] >= 0
    by_operator = np.bincount(columns.name[roof.operator[at[known]]], weights=time_ns[known])
    longest = np.flatnonzero(by_operator == by_operator.max(initial=0.0)).tolist()
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
        operator=min((columns.strings[name] for name in longest), default=None),
    )


def _whole(value: float) -> int | None:
    """A whole number that JSON readers take; only impossible shapes give a larger one."""
    return round(value) if 0 < value < 2**63 else None


def _precision(dtype: I8, time_ns: I64, tensor_core: bool) -> str | None:
    total = np.bincount(dtype, weights=time_ns, minlength=len(DTYPES))
    total[0] = 0
    found = DTYPES[int(total.argmax())] if total.any() else None
    return "tf32" if found == "fp32" and tensor_core else found


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


PRICED_FOR_MFU = 0.9  #: share of the math kernels' time that must be priced before their FLOPs are those of the step


def compute_facts(view: TraceView) -> Compute:
    """Sum up the kernels of the steady window; of a CPU-only run, whose operators are nested, only the arithmetic."""
    columns, kinds, roof, judged, window = view.columns, view.kinds, view.roof, view.judged, view.window
    work = view.leaves
    name, spec = columns.name[roof.rows], roof.spec
    counts = judged[roof.rows]
    flops = np.where(counts & (roof.flops > 0), roof.flops, 0.0)
    total, repeated = float(flops.sum()), float(flops[work[roof.rows] == leaf("mem.recompute")].sum())
    precision, peak = _main_precision(flops, roof.dtype, kinds.tensor_core[name], spec)
    steps = max(len(window), 1)
    found = Compute(
        flops_per_step=total / steps if total else None,
        recomputed_flops_per_step=repeated / steps if total else None,
        precision=precision,
    )
    if (columns.category[roof.rows] == Category.CPU_OP).any():
        return found
    time: I64 = np.where(counts, columns.dur_ns[roof.rows], 0)
    math = kinds.math[name]
    priced = _ratio(time[math & (roof.flops > 0)], time[math])
    known = peak is not None and priced is not None and priced >= PRICED_FOR_MFU
    capacity = peak * window.total_ns * 1e-9 if known and peak else None
    return revise(
        found,
        spec=spec.name if spec else None,
        by_shape_ratio=_ratio(time[roof.by_shape], time),
        efficiency=_ratio(roof.least_ns[roof.by_shape & counts], time[roof.by_shape]),
        priced_ratio=priced,
        beyond_ratio=_ratio(time[roof.beyond], time) if spec else None,
        small_ratio=_ratio(time[columns.dur_ns[roof.rows] < SMALL_KERNEL_NS], time),
        tensor_core_ratio=_ratio(time[math & kinds.tensor_core[name]], time[math]) if roof.names_tell_units else None,
        peak_flops_per_s=peak,
        peaks_flops_per_s={name: peak for name in (*DTYPES, "tf32") if (peak := dense_peak(name, spec)) is not None},
        peak_bytes_per_s=spec.hbm_gb_per_s * 1e9 if spec else None,
        mfu=(total - repeated) / capacity if capacity else None,
        hfu=total / capacity if capacity else None,
    )


def _ratio(part: I64 | F64, whole: I64) -> float | None:
    """Sum over sum, ``None`` for nothing."""
    total = int(whole.sum())
    return float(part.sum()) / total if total else None


def _main_precision(
    flops: F64, dtype: I8, tensor_core: Bools, spec: DeviceSpec | None
) -> tuple[str | None, float | None]:
    """The type most FLOPs are computed in, and its dense peak in FLOPs per second."""
    total = np.bincount(dtype, weights=flops, minlength=len(DTYPES))
    if not total.any():
        return None, None
    main = int(total.argmax())
    on_matrix_units = float(flops[(dtype == main) & tensor_core].sum()) > total[main] / 2
    name = "tf32" if DTYPES[main] == "fp32" and on_matrix_units else DTYPES[main]
    return name, dense_peak(name, spec)


#: A host operator that reads and writes more than this in one call gets it from memory: a core's share of the last
#: cache is 1 to 4 MiB, and 32 MiB what eight cores share on common servers (a choice).
STREAMED_BYTES = 1 << 25


def compute_leaves(
    columns: TraceColumns, kinds: KernelNames, launches: I64, ran: Bools, spec: DeviceSpec | None
) -> tuple[Roofline, I8]:
    """Judge what computes against the device's roofs; also ``(n_events,)`` its leaf, -1 for other events.

    Recomputed kernels first, then small ones, then by roof. Operators of a CPU-only run are arithmetic or other by
    name, for the peaks of a CPU are not known; but what streams more than its caches hold waits for memory on any, and
    one below 10 µs is the price of being called: torch takes 1 to 5 µs for that, twice as much while it is traced.
    """
    rows = np.flatnonzero(ran & columns.is_a(Category.KERNEL, Category.CPU_OP) & ~kinds.communication[columns.name])
    on_device = columns.category[rows] == Category.KERNEL
    operator = np.where(on_device, launching_operators(columns, launches, rows), rows)
    costs = operator_costs(columns, operator)
    roof = roofline(columns, kinds, rows, operator, costs, spec)
    other, math, bandwidth = (leaf(f"compute.{kind}") for kind in ("other", "math", "membw"))
    # By roof, on the host and on the device.
    by_roof = np.full((2, 3), other, dtype=np.int64)
    by_roof[:, MATH_ROOF] = math
    by_roof[1, BANDWIDTH_ROOF] = bandwidth
    found = by_roof[on_device.astype(np.int64), roof.roof]
    # Operators of the host without arithmetic that go over more than its caches hold.
    found[~on_device & costs.known & (costs.flops == 0) & (costs.bytes >= STREAMED_BYTES)] = bandwidth
    found[on_device & (columns.dur_ns[rows] < SMALL_KERNEL_NS)] = leaf("compute.small")
    found[~on_device & (columns.dur_ns[rows] < SMALL_KERNEL_NS)] = leaf("over.dispatch")
    found[recomputed(columns, np.where(on_device, launches[rows], rows))] = leaf("mem.recompute")
    leaves = np.full(len(columns), -1, dtype=np.int8)
    leaves[rows] = found
    return roof, leaves
