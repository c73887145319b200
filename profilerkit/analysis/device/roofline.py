"""How far each kernel is from the fastest it could run, and which a lower precision makes faster."""

import re
from typing import Literal

import msgspec
import numpy as np

from profilerkit.analysis.device.formulas import FAMILIES
from profilerkit.analysis.device.kernels import MATH_TYPES, NARROW, WIDE, KernelNames
from profilerkit.analysis.device.operator_costs import DTYPES, OperatorCosts
from profilerkit.analysis.intervals import union
from profilerkit.hardware import DeviceSpec, is_by_amd
from profilerkit.trace.columns import F64, I8, I32, I64, Bools, DeviceProperties, TraceColumns


class WideMath(msgspec.Struct, frozen=True):
    """Math of 32 bits on matrix units: ``3xtf32`` or ``tf32``, and how much of its share is of known shapes."""

    type: str
    share: float
    priced_share: float


class MathFacts(msgspec.Struct, frozen=True):
    """Matrix, convolution and attention kernels: time shares of the steady step by what names and arguments tell.

    ``fp32_share`` is FP32 on the vector units, ``wide`` what else computes in 32 bits, ``narrow_share`` what does in 16
    or fewer. ``priced_share`` is that of the FP32 kernels whose shapes are known, ``floor_share`` what the faster type
    would leave of these and of the priced ``wide`` ones at the rates that real kernels reach: never less than their
    bytes take. ``fastest_share`` is the same at the very peaks of arithmetic and memory. ``compute_major`` is ``None``
    also for an unknown device of AMD, where it says nothing of the units.
    """

    fp32_share: float
    tensor_core_share: float
    compute_major: int | None
    example: str | None
    priced_share: float = 0.0
    floor_share: float = 0.0
    fastest_share: float = 0.0
    wide: tuple[WideMath, ...] = ()
    narrow_share: float = 0.0

    @property
    def is_mostly_vector(self) -> bool:
        """Whether FP32 on the vector units takes more time than the matrix units do."""
        return self.fp32_share > self.tensor_core_share

    @property
    def wide_share(self) -> float:
        """Share of the step that computes in 32 bits."""
        return self.fp32_share + sum(found.share for found in self.wide)


UNKNOWN, MATH_ROOF, BANDWIDTH_ROOF = 0, 1, 2  #: the roof a kernel is under

MEMORY_RATIO = 0.9  #: fraction of the memory's peak rate that a streaming kernel reaches
#: More than the peak by this factor is no rounding: data came from a cache, an algorithm saved arithmetic, or the cost
#: is not that of this kernel. Times of releases before 2.4 are whole µs.
BEYOND_PEAK, CLOCK_NS = 1.05, 1_000
#: A kernel that takes more than a hundred times what either roof allows is held by neither, and named for its work.
NEAR_A_ROOF = 0.01
#: No device, known or not, reaches 1e16 FLOP/s or moves 1e14 B/s, from a cache neither (B200 on paper: 4.5e15 in FP8,
#: 8e12 B/s): shapes that say so are not those of the kernel.
MOST_FLOPS_PER_NS, MOST_BYTES_PER_NS = 1e7, 1e5

_ITEM = re.compile(r"OpaqueType<(\d+)u?>|c10::(BFloat16|Half)|\b(double|float)\b")
_ITEM_BYTES = {"BFloat16": 2, "Half": 2, "double": 8, "float": 4}


class Roofline(msgspec.Struct, frozen=True):
    """Compute kernels of one device against its roofs; arrays are ``(n,)`` and NaN is what is not known."""

    rows: I64  #: int64 rows of the kernels, ascending
    operator: I64
    flops: F64
    bytes: F64
    #: float64, the fastest it could run with what real kernels reach of the device's peaks, at most what it took.
    least_ns: F64
    roof: I8  #: int8 ``MATH_ROOF``, ``BANDWIDTH_ROOF`` or ``UNKNOWN``
    by_shape: Bools  #: whether shapes and peaks decided the roof, else the name did
    #: Whether it ran faster than the peaks allow. A product of matrices that did, and what no device can do, is not
    #: priced.
    beyond: Bools
    dtype: I8  #: int8 ids into ``DTYPES``
    spec: DeviceSpec | None  #: the device's peaks; ``None`` for an unknown one

    @property
    def names_tell_units(self) -> bool:
        """Whether kernel names say which units compute: those of NVIDIA's libraries do, those of AMD's do not."""
        return self.spec is None or self.spec.compute_capability is not None


def roofline(
    columns: TraceColumns, kinds: KernelNames, rows: I64, operator: I64, costs: OperatorCosts, spec: DeviceSpec | None
) -> Roofline:
    """Judge compute kernels.

    The roof is that which takes longer at the rates real kernels reach. Without shapes, far below both roofs, or for a
    device that is not in the table, the name decides.
    """
    name = columns.name[rows]
    flops, moved = _shared_out(columns, kinds, rows, operator, costs)
    longest = BEYOND_PEAK * columns.dur_ns[rows] + CLOCK_NS
    # Arithmetic that is not counted takes no time on any device, known or not.
    math_ns = np.where(flops == 0, 0.0, flops / peak_flops_per_ns(costs.dtype, kinds.math_type[name], spec))
    memory_ns = moved / (spec.hbm_gb_per_s if spec else np.nan)  # GB/s are bytes per ns
    # Convolutions have algorithms with less arithmetic; no product of matrices runs faster than the peak, so its
    # operands were larger than what was computed, as where experts get padded rows.
    wrong = (math_ns > longest) & (costs.family != FAMILIES.index("convolution"))
    impossible = (flops > MOST_FLOPS_PER_NS * longest) | (moved > MOST_BYTES_PER_NS * longest)
    wrong |= impossible
    beyond = impossible | (math_ns > longest) | (memory_ns > longest)
    for values in (flops, moved, math_ns, memory_ns):
        values[wrong] = np.nan
    reached = spec.achievable_ratio if spec else np.nan
    least = np.maximum(math_ns / reached, memory_ns / MEMORY_RATIO)
    computed = np.where(math_ns / reached >= memory_ns / MEMORY_RATIO, MATH_ROOF, BANDWIDTH_ROOF)
    by_shape = np.isfinite(least)
    decides = by_shape & (least >= NEAR_A_ROOF * columns.dur_ns[rows])
    named = np.where(kinds.math[name], MATH_ROOF, np.where(kinds.bandwidth[name], BANDWIDTH_ROOF, UNKNOWN))
    return Roofline(
        rows=rows,
        operator=operator,
        flops=flops,
        bytes=moved,
        least_ns=np.minimum(least, np.maximum(columns.dur_ns[rows], 1)),
        roof=np.where(decides, computed, named).astype(np.int8),
        by_shape=by_shape,
        beyond=beyond,
        dtype=costs.dtype,
        spec=spec,
    )


def _shared_out(
    columns: TraceColumns, kinds: KernelNames, rows: I64, operator: I64, costs: OperatorCosts
) -> tuple[F64, F64]:
    """FLOPs and bytes of each kernel: an operator's are shared by duration among the kernels that do its work.

    Those are its math kernels if it computes, so that a change of layout or a reduction of partial sums next to them
    gets none; its pointwise kernels if the cost is that of one; else all.
    """
    name = columns.name[rows]
    computes = costs.known & (costs.flops > 0)
    able = np.where(computes, kinds.math[name], ~costs.pointwise_only | kinds.elementwise[name])
    at = np.maximum(operator, 0)
    some = np.bincount(at, weights=able & (operator >= 0), minlength=len(columns))[at] > 0
    works = costs.known & (operator >= 0) & (able | (computes & ~some))
    duration = np.where(works, np.maximum(columns.dur_ns[rows], 1), 0).astype(np.float64)
    share = np.where(works, duration / np.maximum(np.bincount(at, weights=duration, minlength=len(columns))[at], 1), 0)
    is_untyped = costs.untyped > 0
    untyped = np.where(is_untyped, costs.untyped * _item_bytes(columns, name[is_untyped])[name], 0.0)
    flops, moved = costs.flops * share, (costs.bytes + untyped) * share
    return np.where(works, flops, np.nan), np.where(works & (moved > 0), moved, np.nan)


def _item_bytes(columns: TraceColumns, names: I32) -> F64:
    """``(n_strings,)`` bytes of an element by the first type in a kernel's name, NaN where there is none."""
    sizes = np.full(len(columns.strings), np.nan)
    for index in np.flatnonzero(np.bincount(names, minlength=1)).tolist():
        found = _ITEM.search(columns.strings[index])
        if found:
            opaque, short, plain = found.groups()
            sizes[index] = int(opaque) if opaque and len(opaque) < 3 else _ITEM_BYTES.get(short or plain or "", np.nan)
    return sizes


def dense_peak(precision: str, spec: DeviceSpec | None) -> float | None:
    """Dense FLOPs per second of a device in a type; ``None`` where not known. TF32 is FP32 on matrix units.

    >>> from profilerkit.hardware import lookup
    >>> dense_peak("bf16", lookup("NVIDIA L4")), dense_peak("fp64", lookup("NVIDIA L4"))
    (121000000000000.0, None)
    """
    if spec is None:
        return None
    tflops = {
        "fp32": spec.fp32_tflops,
        "tf32": spec.tf32_tflops or spec.fp32_tflops,
        "3xtf32": (spec.tf32_tflops or spec.fp32_tflops) / 3,
        "fp16": spec.fp16_tflops,
        "bf16": spec.bf16_tflops,
        "fp8": spec.fp8_tflops,
    }.get(precision)
    return tflops * 1e12 if tflops else None


def peak_flops_per_ns(dtype: I8, math_type: I8, spec: DeviceSpec | None) -> F64:
    """The peak for each kernel; FP32 is multiplied in TF32, once or three times, where the kernel's name says so."""
    by_type = [
        [found if name == "fp32" and found.endswith("tf32") else name for name in DTYPES] for found in MATH_TYPES
    ]
    peaks = np.array([[(dense_peak(name, spec) or np.nan) * 1e-9 for name in names] for names in by_type])
    found: F64 = peaks[math_type, dtype]
    return found


Target = Literal["tf32", "fp16"]


class Slow(msgspec.Struct, frozen=True):
    """The kernels of a roofline that a lower precision makes faster; arrays are ``(n,)``."""

    types: I8  #: int8 ids into ``MATH_TYPES``, by name, or by the operator's arguments where the name does not say
    chosen: Bools  #: those that ``target`` makes faster
    target: Target | None  #: the type that they are to compute in; ``None`` for a device that has none


def slow_math(columns: TraceColumns, kinds: KernelNames, roof: Roofline, judged: Bools) -> Slow:
    """Find what computes in 32 bits, and the type for it.

    Where FP32 on the vector units takes more time than the matrix units do, that is the next faster type of the device:
    TF32 for such kernels, where its peak is higher. Else it is 16 bits, for all of 32: nothing but autocast brings
    attention and what is in TF32 further.
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

    >>> from profilerkit.hardware import lookup
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
