"""What a device kernel or a CPU operator is, read from its name."""

import re
from collections.abc import Callable
from typing import TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from profilerkit.analysis.communication.registry import Registry, built_in
from profilerkit.analysis.device.math_types import MATH_TYPES, math_name
from profilerkit.analysis.intervals import I64, Spans, covered, innermost_owner
from profilerkit.trace.columns import Category, TraceColumns, kept

Names = npt.NDArray[np.bool_]
T = TypeVar("T")

MATH, BANDWIDTH, COMMUNICATION, OTHER = "math", "membw", "comm", "other"

#: A kernel shorter than this is bound by latency, neither by math nor by bandwidth (TraceLens' short-kernel bound).
SMALL_KERNEL_NS = 10_000

#: Names are hostile: what may stand apart (``.*``) is searched from the first place its beginning is found at only.
_MATH = re.compile(
    r"(?<!fb)gemm|gemv|cutlass|cublas|xmma|nvjet|mma_|_mma|Cijk_|conv(?!ert)|winograd|wgrad|dgrad|fprop|bprop"
    r"|flash|fmha|attention|mha_|_mha|^(?>.*?cudnn).*(?:fwd|bwd)|gcnAsm|^(?>.*?MIOpen).*Conv|splitK|dot_kernel",
    re.IGNORECASE,
)
#: They add up what the kernels of a product that was split along its depth left: memory traffic.
_PARTIAL_SUMS = re.compile(r"split_?K_?reduce|reduce_?split_?K", re.IGNORECASE)
_BANDWIDTH = re.compile(
    r"elementwise|vectorized|unrolled|reduce|softmax|norm|bn_|batch_?norm|multi_tensor_apply|copy|cat|fill|index"
    r"|gather|scatter|embedding|dropout|pool|transpose|permute|nchwToNhwc|nhwcToNchw|sort|scan|triton_(?:poi|red|per)"
    r"|adam|sgd|lamb|relu|gelu|silu|cast|upsample|interpolate|loss|memset|memcpy",
    re.IGNORECASE,
)
_NUMBER = re.compile(r"\d+")
#: What a pattern has that may tell one number from another, or how long it is.
_TELLS_NUMBERS = re.compile(r"[0-9]|\\d(?:\{|\\d)")
#: CPU operators whose cost is arithmetic, not memory traffic.
_MATH_OPERATOR = re.compile(
    r"^aten::(?:(?:mm|addmm|bmm|baddbmm|matmul|linear|conv\d?d?|addmv|addr|dot|einsum)$|.*convolution|mkldnn_|thnn_conv"
    r"|slow_conv|_scaled_dot_product|_flash_attention|lstm|gru)|^mkldnn::|^onednn::",
)
_POINTWISE = re.compile(
    r"^(?!triton).*(?:elementwise|vectorized|unrolled|dropout|norm|softmax|relu|gelu|silu)", re.IGNORECASE | re.DOTALL
)
#: PyTorch's kernels over tensors of one common shape; those that gather by an index or count are none.
_ELEMENTWISE = re.compile(r"(?<!index_)elementwise_kernel(?!_with_index)")


@kept
def in_use(columns: TraceColumns) -> npt.NDArray[np.int64]:
    """Sorted ids of the strings that name an event; the others are categories and raw shapes."""
    return np.flatnonzero(np.bincount(columns.name, minlength=len(columns.strings)))


@kept
def wordings(columns: TraceColumns) -> tuple[list[str], I64]:
    """Strings with every number as 0, each once, and ``(n_strings,)`` which of them each string is.

    Names that a program makes differ by their numbers alone, and there may be as many as events.
    """
    ids: dict[str, int] = {}
    place = [ids.setdefault(_NUMBER.sub("0", text), len(ids)) for text in columns.strings]
    return list(ids), np.array(place, np.int64)


def matching(columns: TraceColumns, used: I64, pattern: re.Pattern[str]) -> Names:
    """``(n_strings,)`` mask of the strings among ``used`` in which ``pattern`` is found."""
    mask = np.zeros(len(columns.strings), dtype=np.bool_)
    if _TELLS_NUMBERS.search(pattern.pattern):
        mask[used] = [pattern.search(columns.strings[index]) is not None for index in used.tolist()]
        return mask
    texts, place = wordings(columns)
    worded = np.unique(place[used])
    found = np.zeros(len(texts), dtype=np.bool_)
    found[worded] = [pattern.search(texts[index]) is not None for index in worded.tolist()]
    mask[used] = found[place[used]]
    return mask


def by_wording(columns: TraceColumns, used: I64, value: Callable[[str], T]) -> list[T]:
    """What ``value``, which looks at no number, makes of each of the strings in ``used``; once for each wording."""
    texts, place = wordings(columns)
    worded, index = np.unique(place[used], return_inverse=True)
    values = [value(texts[number]) for number in worded.tolist()]
    return [values[number] for number in index.tolist()]


class KernelNames(msgspec.Struct, frozen=True):
    """What the names of a trace's events stand for: masks over ``columns.strings``, computed once per trace.

    Attributes:
        communication: collectives and point-to-point transfers.
        math: kernels and operators whose cost is arithmetic.
        bandwidth: kernels whose cost is memory traffic; math wins where both match.
        pointwise: kernels that a compiler can fuse with their neighbours and has not fused yet.
        elementwise: those of them that read and write tensors of one common shape, each element once.
        tensor_core: kernels that run on tensor or matrix cores, as far as names tell.
        math_type: int8 ids into ``MATH_TYPES``: what kernels multiply in, as far as names tell.
    """

    communication: Names
    math: Names
    bandwidth: Names
    pointwise: Names
    elementwise: Names
    tensor_core: Names
    math_type: npt.NDArray[np.int8]

    @classmethod
    def of(cls, columns: TraceColumns, registry: Registry | None = None) -> "KernelNames":
        """Classify every name in use once; names of Python frames, most of a trace with stacks, name no kernel.

        ``registry`` says which are communication, the built-in one unless given.
        """
        work = columns.name[columns.category != Category.PYTHON]
        used = np.flatnonzero(np.bincount(work, minlength=len(columns.strings)))
        registry = registry or built_in()
        communication = matching(columns, used, registry.communication)
        if registry.custom:
            communication[used] |= [registry.communicates(columns.strings[index]) for index in used.tolist()]
        # A kernel with a collective's metadata is one, whatever its name.
        told = np.array([found.row for found in columns.collectives], dtype=np.int64)
        communication[columns.name[told[columns.category[told] == Category.KERNEL]]] = True
        kernel_math = matching(columns, used, _MATH) & ~matching(columns, used, _PARTIAL_SUMS)
        tensor_core = np.zeros(len(columns.strings), dtype=np.bool_)
        math_type = np.zeros(len(columns.strings), dtype=np.int8)
        for index in np.flatnonzero(kernel_math).tolist():
            if (row := math_name(columns.strings[index])) is not None:
                tensor_core[index], math_type[index] = row.on_matrix_units, MATH_TYPES.index(row.type)
        return cls(
            communication=communication,
            math=kernel_math | matching(columns, used, _MATH_OPERATOR),
            bandwidth=matching(columns, used, _BANDWIDTH) & ~kernel_math,
            pointwise=matching(columns, used, _POINTWISE) & ~kernel_math,
            elementwise=matching(columns, used, _ELEMENTWISE),
            tensor_core=tensor_core,
            math_type=math_type,
        )


def in_window(columns: TraceColumns, window: Spans) -> npt.NDArray[np.bool_]:
    """``(n_events,)`` mask of events that start inside ``window``."""
    return covered(window, columns.ts_ns)


def self_times(columns: TraceColumns, rows: I64) -> I64:
    """Time of each row in ``rows`` that no row nested in it on the same thread takes, ``(n_rows,)`` int64 ns.

    Of two with the same extent the one with the higher external id is the inner one: it began later.
    """
    own = np.zeros(len(rows), dtype=np.int64)
    threads = columns.thread[rows]
    for thread in np.unique(threads):
        members = np.flatnonzero(threads == thread)
        members = members[np.argsort(-columns.external_id[rows[members]], kind="stable")]
        chosen = rows[members]
        owned = innermost_owner(columns.ts_ns[chosen], columns.end_ns[chosen], np.arange(len(members)))
        np.add.at(own, members[owned.label], owned.end - owned.start)
    return own


def device_rows(columns: TraceColumns) -> npt.NDArray[np.bool_]:
    """``(n_events,)`` mask of what runs on a device: kernels, copies, memsets."""
    return columns.is_a(Category.KERNEL, Category.MEMCPY, Category.MEMSET)
