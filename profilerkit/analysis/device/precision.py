"""Which kernels a lower precision makes faster, by how much, and what of the step they hold."""

from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt

from profilerkit.analysis.costs.operators import DTYPES
from profilerkit.analysis.device.kernels import MATH_TYPES, NARROW, WIDE, KernelNames
from profilerkit.analysis.device.records import MathFacts, WideMath
from profilerkit.analysis.device.roofline import MEMORY_RATIO, Roofline, dense_peak
from profilerkit.analysis.intervals import I64, union
from profilerkit.hardware.lookup import DeviceSpec, is_by_amd
from profilerkit.trace.columns import DeviceProperties, TraceColumns

Bools = npt.NDArray[np.bool_]
F64 = npt.NDArray[np.float64]
Target = Literal["tf32", "fp16"]


class Slow(msgspec.Struct, frozen=True):
    """The kernels of a roofline that a lower precision makes faster; arrays are ``(n,)``.

    Attributes:
        types: int8 ids into ``MATH_TYPES``, by name, or by the operator's arguments where the name does not say.
        chosen: those that ``target`` makes faster.
        target: the type that they are to compute in; ``None`` for a device that has none.
    """

    types: npt.NDArray[np.int8]
    chosen: Bools
    target: Target | None


def slow_math(columns: TraceColumns, kinds: KernelNames, roof: Roofline, judged: Bools) -> Slow:
    """Find what computes in 32 bits, and the type for it.

    Where FP32 on the vector units takes more time than the matrix units do, that is the next faster type of the device:
    TF32 for such kernels, where its peak is higher. Else it is 16 bits, for all of 32: nothing but autocast brings
    attention and what is in TF32 further.

    Args:
        columns: the trace.
        kinds: its classified names.
        roof: kernels of the judged device.
        judged: ``(n_events,)`` those that start in the steady window.
    """
    name = columns.name[roof.rows]
    types = kinds.math_type[name].copy()
    by_operator = (roof.flops > 0) & (roof.dtype == DTYPES.index("fp32")) & ~kinds.tensor_core[name]
    types[(types == 0) & by_operator] = MATH_TYPES.index("fp32")
    types[~kinds.math[name]] = 0
    time = np.where(judged[roof.rows], columns.dur_ns[roof.rows], 0)
    vector = types == MATH_TYPES.index("fp32")
    mostly_vector = time[vector].sum() > time[kinds.tensor_core[name] & kinds.math[name]].sum()
    target = target_type(roof.spec, is_mostly_vector=bool(mostly_vector))
    wide = np.isin(types, [MATH_TYPES.index(found) for found in WIDE])
    return Slow(types, vector if target == "tf32" else wide, target)


def target_type(spec: DeviceSpec | None, *, is_mostly_vector: bool) -> Target | None:
    """Return the type that makes 32-bit math faster; ``None`` for a device that has none.

    Where FP32 on the vector units takes most of the time it is the next faster one of the device, else 16 bits.
    """
    if spec is None or not is_mostly_vector:
        return "fp16"
    return spec.faster_than_fp32


def math_facts(
    columns: TraceColumns,
    kinds: KernelNames,
    roof: Roofline,
    judged: Bools,
    steady_ns: int,
    properties: DeviceProperties | None,
) -> MathFacts:
    """In which types the math kernels that start in the steady window compute, as shares of ``steady_ns``."""
    slow = slow_math(columns, kinds, roof, judged)
    name, counts = columns.name[roof.rows], judged[roof.rows]

    def share(chosen: Bools) -> float:
        return covered_ns(columns, roof.rows[chosen & counts]) / steady_ns

    dur_ns = np.maximum(columns.dur_ns[roof.rows], 1)
    floor_ns, fastest_ns = _on_faster_units(roof, slow, dur_ns)
    known = np.isfinite(floor_ns)
    priced = slow.chosen & known & counts
    per_ns = share(priced) / max(int(dur_ns[priced].sum()), 1)
    of_type = {found: slow.types == MATH_TYPES.index(found) for found in MATH_TYPES}
    wide = np.isin(slow.types, [MATH_TYPES.index(found) for found in WIDE]) & counts
    per_name = np.bincount(name[wide], weights=columns.dur_ns[roof.rows[wide]], minlength=1)
    tells_units = properties is not None and (roof.spec is not None or not is_by_amd(properties.name))
    return MathFacts(
        fp32_share=share(of_type["fp32"]),
        tensor_core_share=share(kinds.tensor_core[name] & kinds.math[name]),
        compute_major=properties.compute_major if properties and tells_units else None,
        example=columns.strings[int(per_name.argmax())] if per_name.any() else None,
        priced_share=share(of_type["fp32"] & priced),
        floor_share=per_ns * float(floor_ns[priced].sum()),
        fastest_share=per_ns * float(fastest_ns[priced].sum()),
        wide=tuple(
            WideMath(found, share(of_type[found]), share(of_type[found] & priced))
            for found in WIDE[1:]
            if (of_type[found] & counts).any()
        ),
        narrow_share=share(np.isin(slow.types, [MATH_TYPES.index(found) for found in NARROW])),
    )


def peak_ratio(slow: str, target: str | None, spec: DeviceSpec | None) -> float | None:
    """Return how many times the peak of ``target`` is that of the type ``slow``; ``None`` where one is not known.

    >>> from profilerkit.hardware.lookup import lookup
    >>> a100 = lookup("NVIDIA A100-SXM4-80GB")
    >>> peak_ratio("fp32", "tf32", a100), peak_ratio("3xtf32", "fp16", a100), peak_ratio("tf32", "fp16", a100)
    (8.0, 6.0, 2.0)
    """
    fast, known = dense_peak(target or "", spec), dense_peak(slow, spec)
    return fast / known if fast and known else None


def _on_faster_units(roof: Roofline, slow: Slow, dur_ns: I64) -> F64:
    """``(2, n)`` ns that each kernel would take in the target type, and takes at least; NaN where not priced.

    It gets faster by the ratio of the peaks as far as real kernels reach them, and never than its traffic, which TF32
    leaves as it is and 16 bit halve. The least is that of its arithmetic and traffic at the very peaks.
    """
    spec = roof.spec
    fast = dense_peak(slow.target or "", spec)
    if spec is None or fast is None:
        return np.full((2, len(roof.rows)), np.nan)
    ratios = np.array([peak_ratio(found, slow.target, spec) or np.nan for found in MATH_TYPES])[slow.types]
    memory_ns = (1.0 if slow.target == "tf32" else 0.5) * roof.bytes / spec.hbm_gb_per_s
    floor_ns = np.maximum(dur_ns / np.maximum(ratios * spec.achievable_ratio, 1.0), memory_ns / MEMORY_RATIO)
    fastest_ns = np.maximum(roof.flops / (fast * 1e-9), memory_ns)
    floor_ns = np.minimum(floor_ns, dur_ns)
    return np.stack([floor_ns, np.minimum(fastest_ns, floor_ns)])


def covered_ns(columns: TraceColumns, rows: I64) -> int:
    """Time in which any of ``rows`` runs: where streams overlap it counts once, so that a share stays below one."""
    return union(columns.ts_ns[rows], columns.end_ns[rows]).total_ns
