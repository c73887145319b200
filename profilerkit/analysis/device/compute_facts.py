"""What the compute kernels of the steady window do together: how much is known of them, and how far from the peak."""

import numpy as np
import numpy.typing as npt

from profilerkit.analysis.costs.operators import DTYPES
from profilerkit.analysis.device.kernels import SMALL_KERNEL_NS, KernelNames
from profilerkit.analysis.device.roofline import Roofline, dense_peak
from profilerkit.analysis.intervals import I64, Spans
from profilerkit.analysis.leaves import leaf
from profilerkit.hardware.lookup import DeviceSpec
from profilerkit.model.change import revise
from profilerkit.model.report import Compute
from profilerkit.trace.columns import Category, TraceColumns

Bools = npt.NDArray[np.bool_]
F64 = npt.NDArray[np.float64]

#: Share of the math kernels' time that must be priced before their FLOPs are those of the step.
PRICED_FOR_MFU = 0.9


def compute_facts(
    columns: TraceColumns,
    kinds: KernelNames,
    roof: Roofline,
    work: I64,
    judged: Bools,
    window: Spans,
) -> Compute:
    """Sum up the kernels of the steady window; of a CPU-only run, whose operators are nested, only the arithmetic.

    Args:
        columns: the trace.
        kinds: its classified names.
        roof: the compute kernels against the roofs.
        work: ``(n_events,)`` int64, leaf of each of them.
        judged: ``(n_events,)`` what starts in the steady window.
        window: the steady steps.
    """
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
        peaks_flops_per_s=_peaks(spec),
        peak_bytes_per_s=spec.hbm_gb_per_s * 1e9 if spec else None,
        mfu=(total - repeated) / capacity if capacity else None,
        hfu=total / capacity if capacity else None,
    )


def _ratio(part: I64 | F64, whole: I64) -> float | None:
    """Sum over sum, ``None`` for nothing."""
    total = int(whole.sum())
    return float(part.sum()) / total if total else None


def _main_precision(
    flops: F64, dtype: npt.NDArray[np.int8], tensor_core: Bools, spec: DeviceSpec | None
) -> tuple[str | None, float | None]:
    """The type most FLOPs are computed in, and its dense peak in FLOPs per second."""
    total = np.bincount(dtype, weights=flops, minlength=len(DTYPES))
    if not total.any():
        return None, None
    main = int(total.argmax())
    on_matrix_units = float(flops[(dtype == main) & tensor_core].sum()) > total[main] / 2
    name = "tf32" if DTYPES[main] == "fp32" and on_matrix_units else DTYPES[main]
    peak = dense_peak(name, spec)
    return name, peak


def _peaks(spec: DeviceSpec | None) -> dict[str, float]:
    """Dense FLOPs per second by type, without the types that the specification does not give."""
    peaks = {name: dense_peak(name, spec) for name in (*DTYPES, "tf32")}
    return {name: peak for name, peak in peaks.items() if peak is not None}
