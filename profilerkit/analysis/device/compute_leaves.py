"""The part that each kernel, or on a CPU-only run each operator, belongs to."""

import numpy as np
import numpy.typing as npt

from profilerkit.analysis.costs.operators import operator_costs
from profilerkit.analysis.device.kernels import SMALL_KERNEL_NS, KernelNames
from profilerkit.analysis.device.recompute import recomputed
from profilerkit.analysis.device.roofline import BANDWIDTH_ROOF, MATH_ROOF, Roofline, roofline
from profilerkit.analysis.enclosing import launching_operators
from profilerkit.analysis.intervals import I64
from profilerkit.analysis.leaves import leaf
from profilerkit.hardware.lookup import DeviceSpec
from profilerkit.trace.columns import Category, TraceColumns

#: A host operator that reads and writes more than this in one call gets it from memory: a core's share of the last
#: cache is 1 to 4 MiB, and 32 MiB what eight cores share on common servers (a choice).
STREAMED_BYTES = 1 << 25


def compute_leaves(
    columns: TraceColumns,
    kinds: KernelNames,
    launches: I64,
    ran: npt.NDArray[np.bool_],
    spec: DeviceSpec | None,
) -> tuple[Roofline, I64]:
    """Judge what computes against the device's roofs; also ``(n_events,)`` its leaf, -1 for other events.

    Recomputed kernels first, then small ones, then by roof. Operators of a CPU-only run are arithmetic or other by
    name, for the peaks of a CPU are not known; but what streams more than its caches hold waits for memory on any, and
    one below 10 µs is the price of being called: torch takes 1 to 5 µs for that, twice as much while it is traced.

    Args:
        columns: the trace.
        kinds: its classified names.
        launches: ``(n_events,)`` int64, row of the launching runtime call, -1 for none.
        ran: ``(n_events,)`` what ran on the judged device, or the operators of a CPU-only run.
        spec: peaks of the device; ``None`` for an unknown one.
    """
    rows = np.flatnonzero(ran & columns.is_a(Category.KERNEL, Category.CPU_OP) & ~kinds.communication[columns.name])
    on_device = columns.category[rows] == Category.KERNEL
    operator = np.where(on_device, launching_operators(columns, launches, rows), rows)
    roof = roofline(columns, kinds, rows, operator, spec)
    other, math, bandwidth = (leaf(f"compute.{kind}") for kind in ("other", "math", "membw"))
    # By roof, on the host and on the device.
    by_roof = np.full((2, 3), other, dtype=np.int64)
    by_roof[:, MATH_ROOF] = math
    by_roof[1, BANDWIDTH_ROOF] = bandwidth
    found = by_roof[on_device.astype(np.int64), roof.roof]
    found[_streaming(columns, rows, on_device)] = bandwidth
    found[on_device & (columns.dur_ns[rows] < SMALL_KERNEL_NS)] = leaf("compute.small")
    found[~on_device & (columns.dur_ns[rows] < SMALL_KERNEL_NS)] = leaf("over.dispatch")
    found[recomputed(columns, np.where(on_device, launches[rows], rows))] = leaf("mem.recompute")
    leaves = np.full(len(columns), -1, dtype=np.int64)
    leaves[rows] = found
    return roof, leaves


def _streaming(columns: TraceColumns, rows: I64, on_device: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Which of ``rows`` are operators of the host without arithmetic that go over more than its caches hold."""
    costs = operator_costs(columns, np.where(on_device, -1, rows))
    streaming: npt.NDArray[np.bool_] = costs.known & (costs.flops == 0) & (costs.bytes >= STREAMED_BYTES)
    return streaming
