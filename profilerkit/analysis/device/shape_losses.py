"""Losses of single kernels by shape: misaligned products, uneven grids, layouts turned around, searches."""

import re
from collections.abc import Collection, Iterator
from functools import cached_property

import msgspec
import numpy as np

from profilerkit.analysis.device.formulas import Arguments, sizes
from profilerkit.analysis.device.kernels import SMALL_KERNEL_NS, KernelNames, named
from profilerkit.analysis.device.operator_costs import DTYPES, distinct_calls, understood
from profilerkit.analysis.device.roofline import Roofline
from profilerkit.analysis.enclosing import innermost_at
from profilerkit.analysis.intervals import Spans, index_at, intersect, union
from profilerkit.trace.columns import F64, I64, WORK, Bools, Category, TraceColumns


class Layout(msgspec.Struct, frozen=True):
    """Kernels that change the order of a convolution's dimensions; ``example`` is the one with most time.

    ``is_3d`` is whether a convolution goes over three dimensions; ``None`` where neither shapes nor names tell.
    """

    conversion_share: float
    convolution_share: float
    per_step: float
    example: str | None
    is_3d: bool | None = None


class Searches(msgspec.Struct, frozen=True):
    """Operators that time several algorithms for one call before they choose."""

    share: float
    per_step: float
    steps: int
    trials: float  #: timings of the mean search
    shapes: int | None  #: distinct inputs that were searched for; ``None`` without recorded shapes
    operator: str


class Alignment(msgspec.Struct, frozen=True):
    """16-bit matrix products of which a dimension is no multiple of eight elements."""

    share: float
    #: Of it, what is beyond the least time that their shapes allow on the device; ``None`` for a device whose peaks are
    #: not known.
    lost_share: float | None
    sizes: tuple[int, int, int]  #: (M, N, K) of the call that loses most, or without peaks takes most
    operator: str
    calls_per_step: float
    #: What the products of fitting sizes reach of their own least time; ``None`` where they take less than half as long
    #: together, so that they are no measure.
    others_ratio: float | None = None


class Grid(msgspec.Struct, frozen=True):
    """Math kernels of one name and grid."""

    kernel: str
    blocks_per_sm: float  #: blocks of the grid for each multiprocessor
    share: float
    #: Of it, what the least occupied round leaves idle, but no more than what is beyond the least time that shapes
    #: allow.
    idle_share: float
    per_step: float


class DenseTables(msgspec.Struct, frozen=True):
    """Embedding tables with a dense gradient, of which a step looks up few rows."""

    count: int
    rows: int
    width: int
    looked_up: float  #: its rows that a step looks up, at most
    share: float  #: time of what goes over whole tables: their gradients and the optimizer
    unused_share: float  #: of it, what rows take that the step does not look up


# Without slots: what is derived is kept beside the fields.
class Judged(msgspec.Struct, frozen=True, dict=True):
    """The kernels of the steady window that are no communication; arrays are ``(n,)`` in their order."""

    columns: TraceColumns
    kinds: KernelNames
    launches: I64
    roof: Roofline
    at: I64
    window: Spans
    issuing: Spans

    @cached_property
    def rows(self) -> I64:
        """Rows of the kernels."""
        return self.roof.rows[self.at]

    @cached_property
    def name(self) -> I64:
        """Their names, ids into ``columns.strings``."""
        return self.columns.name[self.rows].astype(np.int64)

    @cached_property
    def operator(self) -> I64:
        """Row of the operator that launched each, -1 for none."""
        return self.roof.operator[self.at]

    @cached_property
    def dur_ns(self) -> F64:
        """How long each took, at least 1."""
        return np.maximum(self.columns.dur_ns[self.rows], 1).astype(np.float64)

    @property
    def steps(self) -> int:
        """Steady steps, at least 1."""
        return max(len(self.window), 1)

    def share(self, chosen: Bools) -> float:
        """Share of the steady time in which any of the chosen kernels runs."""
        rows = self.rows[chosen]
        ran = intersect(self.window, union(self.columns.ts_ns[rows], self.columns.end_ns[rows]))
        return ran.total_ns / max(self.window.total_ns, 1)

    def part(self, ns: F64, chosen: Bools) -> float:
        """Share that ``ns`` of each chosen kernel makes, where kernels overlap as much of it as of their time."""
        total = float(self.dur_ns[chosen].sum())
        return self.share(chosen) * float(ns[chosen].sum()) / total if total else 0.0

    def calls(self, chosen: Bools) -> tuple[I64, Iterator[tuple[int, str, Arguments]]]:
        """The distinct calls behind the chosen kernels: ``(n_chosen,)`` which, and index, operator and arguments."""
        calls, member = distinct_calls(self.columns, self.operator[chosen])
        return member, understood(self.columns, calls, member)

    def of_calls(self, chosen: Bools, member: I64, calls: Collection[int]) -> Bools:
        """Which of the chosen kernels belong to these distinct calls; ``member`` says which each is of."""
        found = np.zeros(len(chosen), dtype=np.bool_)
        found[chosen] = np.isin(member, list(calls))
        return found


GRANULE = 8  #: elements of 16 bits in one load of 128: the granularity that PyTorch's own pattern matcher asks for


def misaligned(work: Judged) -> Alignment | None:
    """The products of which M, N or K is no multiple of eight; ``None`` without any."""
    halves = np.isin(work.roof.dtype[work.at], [DTYPES.index("fp16"), DTYPES.index("bf16")])
    chosen = halves & work.kinds.math[work.name] & (work.roof.flops[work.at] > 0)
    member, calls = work.calls(chosen)
    found = {
        index: (name, shape)
        for index, name, passed in calls
        if (shape := sizes(name, passed)) and any(size % GRANULE for size in shape)
    }
    odd = work.of_calls(chosen, member, found)
    if not odd.any():
        return None
    member = member[np.isin(member, list(found))]
    least = work.roof.least_ns[work.at]
    lost = work.dur_ns - least
    others = chosen & ~odd & np.isfinite(least)
    others_ns = float(work.dur_ns[others].sum())
    is_priced = bool(np.isfinite(lost[odd]).all())
    weight = np.bincount(member, weights=(lost if is_priced else work.dur_ns)[odd])
    name, shape = found[int(weight.argmax())]
    return Alignment(
        share=work.share(odd),
        lost_share=work.part(lost, odd) if is_priced else None,
        sizes=shape,
        operator=name,
        calls_per_step=len(np.unique(work.operator[odd])) / work.steps,
        others_ratio=float(least[others].sum()) / others_ns if 2 * others_ns >= float(work.dur_ns[odd].sum()) else None,
    )


_MOST_GRIDS = 64  #: kinds of grid that are told, those with most time
#: Files write six digits, the columns hold seven: a grid this close to a whole number of rounds is one.
_ROUNDING = 1e-4


def idle_ratio(blocks_per_sm: F64) -> F64:
    """Share of the multiprocessors' time that the last round of blocks leaves idle, all blocks taking equally long.

    >>> idle_ratio(np.array([0.25, 1.0, 1.25, 4.8])).round(3).tolist()
    [0.75, 0.0, 0.375, 0.04]
    """
    rounds = np.maximum(np.ceil(blocks_per_sm - _ROUNDING), 1.0)
    return np.maximum(1.0 - blocks_per_sm / rounds, 0.0)


def grids(work: Judged) -> tuple[Grid, ...] | None:
    """The grids of math kernels of at least 10 µs; ``None`` where no kernel of the trace says its grid."""
    blocks = work.columns.blocks_per_sm[work.rows].astype(np.float64)
    if not blocks.any():
        return None
    chosen = work.kinds.math[work.name] & (blocks > 0) & (work.dur_ns >= SMALL_KERNEL_NS)
    idle = idle_ratio(blocks) * work.dur_ns
    beyond = work.dur_ns - work.roof.least_ns[work.at]
    idle = np.where(np.isfinite(beyond), np.minimum(idle, beyond), idle)
    places = np.flatnonzero(chosen)
    sizes, size = np.unique(np.round(blocks[places], 4), return_inverse=True)
    _, first, member = np.unique(work.name[places] * len(sizes) + size, return_index=True, return_inverse=True)
    time = np.bincount(member, weights=work.dur_ns[places])
    found = []
    for kind in np.argsort(-time, kind="stable")[:_MOST_GRIDS].tolist():
        own = np.zeros(len(chosen), dtype=np.bool_)
        own[places[member == kind]] = True
        found.append(
            Grid(
                kernel=work.columns.strings[int(work.name[places[first[kind]]])],
                blocks_per_sm=float(blocks[own][0]),
                share=work.share(own),
                idle_share=work.part(idle, own),
                per_step=float(own.sum()) / work.steps,
            )
        )
    return tuple(found)


#: Names of cuDNN's and MIOpen's kernels.
_CONVERSION = re.compile(
    r"nchw\w{0,8}to\w{0,8}nhwc|nhwc\w{0,8}to\w{0,8}nchw|nchw2nhwc|nhwc2nchw|batched_transpose_\d", re.IGNORECASE
)
_LAYOUTS = re.compile(r"nchw|nhwc|batched_transpose_", re.IGNORECASE)  #: one of these is in the name of each
_CONVOLUTION_OPERATOR = re.compile(r"^aten::\w*conv(?!ert)")
#: Kernels that are a convolution's whatever launched them: cuDNN's, CUTLASS', MIOpen's. convolveNd is cuDNN's for 3-D.
_CONVOLUTION = re.compile(
    r"conv(?!ert)|fprop|dgrad|wgrad|winograd|implicit_gemm|scudnn|igemm_(?:fwd|bwd|wrw)", re.IGNORECASE
)
_3D = re.compile(r"convolveNd|3dconv|conv3d", re.IGNORECASE)
_3D_RANK = 5  #: a tensor of a 3-D convolution has samples, channels and three more dimensions


def layout(work: Judged) -> Layout:
    """How much time goes into conversions, and into the convolutions that they serve."""
    strings, conversion = work.columns.strings, named(work.columns, _LAYOUTS, *WORK)[work.rows]
    told = [name for name in np.unique(work.name[conversion]).tolist() if _CONVERSION.search(strings[name])]
    conversion &= np.isin(work.name, told)
    by_operator = (work.operator >= 0) & named(work.columns, _CONVOLUTION_OPERATOR, Category.CPU_OP)[work.operator]
    by_name = (work.operator < 0) & named(work.columns, _CONVOLUTION, *WORK)[work.rows]
    convolution = (by_operator | by_name) & ~conversion & work.kinds.math[work.name]
    time = np.bincount(work.name[conversion], weights=work.dur_ns[conversion], minlength=1)
    passed = [found.tensor(0) for _, _, found in work.calls(convolution & (work.operator >= 0))[1]]
    ranks = [len(tensor.shape) for tensor in passed if tensor is not None]
    is_3d = max(ranks) >= _3D_RANK if ranks else None
    if any(_3D.search(strings[name]) for name in np.unique(work.name[convolution]).tolist()):
        is_3d = True
    return Layout(
        conversion_share=work.share(conversion),
        convolution_share=work.share(convolution),
        per_step=float(conversion.sum()) / work.steps,
        example=strings[int(time.argmax())] if time.any() else None,
        is_3d=is_3d,
    )


#: cuDNN's search waits for the whole device before it begins and after the warm-up of each trial, then for the event
#: behind the trial. Older releases of Kineto leave waits for events out. No operator of a model waits for its own
#: kernels, so two trials are no accident.
_WAITS_FOR_EVENT = re.compile(r"^(?:cuda|hip)EventSynchronize|^cuEventSynchronize")
_WAITS_FOR_DEVICE = re.compile(r"^(?:cuda|hip)DeviceSynchronize|^cuCtxSynchronize")
FEWEST_TRIALS = 2


def searches(work: Judged) -> Searches | None:
    """The searches of the steady window; ``None`` where no operator waits for kernels of its own."""
    columns = work.columns
    rows, trials = _trials(work)
    step = index_at(work.issuing, columns.ts_ns[rows])
    computes = np.isin(rows, work.operator[work.kinds.math[work.name]])
    kept = computes & (trials >= FEWEST_TRIALS) & (step >= 0)
    rows, trials, step = rows[kept], trials[kept], step[kept]
    if not len(rows):
        return None
    tried = work.rows[np.isin(work.operator, rows)]
    both: I64 = np.r_[rows, tried]
    took = intersect(work.window, union(columns.ts_ns[both], columns.end_ns[both]))
    shapes = np.unique(np.stack([columns.name[rows], columns.input_dims[rows]]), axis=1)
    most = np.bincount(columns.name[rows], weights=columns.dur_ns[rows])
    return Searches(
        share=took.total_ns / max(work.window.total_ns, 1),
        per_step=len(rows) / work.steps,
        steps=len(np.unique(step)),
        trials=float(trials.mean()),
        shapes=shapes.shape[1] if (columns.input_dims[rows] >= 0).all() else None,
        operator=columns.strings[int(most.argmax())],
    )


def _trials(work: Judged) -> tuple[I64, I64]:
    """Operators that wait for events or the device themselves, and how many trials these waits stand for."""
    columns = work.columns
    kinds = [named(columns, pattern, Category.RUNTIME) for pattern in (_WAITS_FOR_EVENT, _WAITS_FOR_DEVICE)]
    calls = np.flatnonzero(kinds[0] | kinds[1])
    operators = np.flatnonzero(columns.category == Category.CPU_OP)
    around = innermost_at(columns, operators, columns.thread[calls], columns.ts_ns[calls])
    calls, around = calls[around >= 0], around[around >= 0]
    rows, member = np.unique(around, return_inverse=True)
    waits = [np.bincount(member[kind[calls]], minlength=len(rows)) for kind in kinds]
    return rows, np.maximum(waits[0], waits[1] - 1)
