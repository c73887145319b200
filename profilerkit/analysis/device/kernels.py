"""What a device kernel or a CPU operator is, read from its name, and which call launched it."""

import re
from collections.abc import Callable

import msgspec
import numpy as np

from profilerkit.analysis.communication.registry import Registry, built_in
from profilerkit.analysis.intervals import Spans, covered, innermost_owner
from profilerkit.rundir.layout import NoKernels
from profilerkit.trace.columns import I8, I64, WORK, Bools, Category, TraceColumns, kept, names_of
from profilerkit.trace.launches import issues_to_npu

#: Share of the launched work that a damaged file may lack. Each kernel is a gap that looks like idle time: a trace of
#: eight ranks' training without 4 % of them turned from bound by communication to bound by the host.
MOST_LOST = 0.02


class LaunchFacts(msgspec.Struct, frozen=True):
    """How the device's events are joined to the calls that launched them, over the whole trace."""

    events: int
    #: Of these, without a launch call in the trace; they count in full, what they waited for is less sure.
    unlinked: int
    in_graphs: int  #: of these, launched by a graph
    graph_launches: int  #: calls that launched a graph
    #: Share of the launched work of the judged steps that is not in the trace: calls without their kernel, or math
    #: operators without a runtime call, whichever is more (0 on all whole CUDA and HIP traces tried); ``None`` for a
    #: file that is whole.
    lost_ratio: float | None = None

    @property
    def lost_much(self) -> bool:
        """Whether so much is lost that idle time cannot be told from lost work."""
        return self.lost_ratio is not None and self.lost_ratio >= MOST_LOST


#: Types that names tell apart, by id; the first stands for every other one and for what is not told. ``3xtf32`` is
#: FP32 in three TF32 products, ``half`` FP16 or BF16, ``fp8`` 8 bits or fewer.
MATH_TYPES = ("unknown", "fp64", "fp32", "3xtf32", "tf32", "half", "fp8", "int8")
WIDE = ("fp32", "3xtf32", "tf32")  #: those of 32 bits, which matrix units take faster in 16
NARROW = ("half", "fp8", "int8")  #: those of 16 bits and fewer


class MathName(msgspec.Struct, frozen=True):
    """A pattern of names in small letters, the one of ``MATH_TYPES`` that it means, and where the naming is defined.

    Patterns that ignore case take 2.5 times as long: they know no first letter to look for.
    """

    pattern: re.Pattern[str]
    type: str
    on_matrix_units: bool
    source: str


def _row(pattern: str, kind: str, source: str, *, matrix: bool) -> MathName:
    return MathName(re.compile(pattern.lower()), kind, matrix, source)


_CUTLASS = "CUTLASS, tools/library/src/library_internal.h and generator.py: operation names"
_CUDNN = "names in traces of cuDNN 7 to 9"
_CUBLAS = "names in traces of cuBLAS 11 to 13"
#: Tensile writes the data type of the operands behind the indices of A and B.
_TENSILE = r"^Cijk_A\w{3}_B\w{3}_"
_SHORT = r"b?fp?16|bfloat_?16|__half|c10::half|half_t|_half|_Float16|unsigned short|ushort"
#: The first row whose pattern is found decides: what names the operands stands before what only names a unit.
TABLE: tuple[MathName, ...] = (
    _row(r"ffma|simt_s", "fp32", f"{_CUTLASS}: SIMT, single", matrix=False),
    _row(r"simt", "unknown", f"{_CUTLASS}: SIMT", matrix=False),
    _row(r"(?<![a-z0-9])(?:d884|dmma)", "fp64", f"{_CUTLASS}: double on tensor cores", matrix=True),
    _row(rf"(?<![a-z])dgemm|<double\b|{_TENSILE}D", "fp64", f"{_CUBLAS}; Tensile's data types", matrix=False),
    _row(
        rf"e4m3|e5m2|e2m1|nvf4|mxf[48p]|float8|nvjet_(?:sm\d+_)?[oqr]|{_TENSILE}[FB]8",
        "fp8",
        f"{_CUTLASS}: float_e4m3_t and others; cuBLAS's nvjet with q and r; Tensile's F8 and B8",
        matrix=True,
    ),
    _row(r"i8816|i16832|imma_|s8s8", "int8", f"{_CUTLASS}: integer products", matrix=True),
    _row(
        # From compute capability 8.0 the memory-efficient attention of FP32 multiplies with OpMultiplyAddFastF32.
        r"fmha_cutlass[FB]_f32_\w{0,60}sm(?:[89]|1\d)\d|3xtf32|tf32x3|FastF32",
        "3xtf32",
        "PyTorch, mem_eff_attention/gemm_kernel_utils.h: DefaultGemmType of float; CUTLASS, example 27",
        matrix=True,
    ),
    _row(rf"tf32|nvjet_(?:sm\d+_)?s(?!m\d)|{_TENSILE}S\w{{0,6}}_MX_", "tf32", f"{_CUTLASS}; nvjet with s", matrix=True),
    # Products with a vector wait for memory: no unit makes them faster.
    _row(r"gemv|dot_kernel", "unknown", _CUBLAS, matrix=False),
    # gfx9's dot2 is a vector instruction.
    _row(r"_fp16_dot2|naive_conv_.*half", "half", "names in traces of MIOpen", matrix=False),
    _row(
        rf"{_SHORT}|f16_|hgemm|h1688|16816|161616|s884|h884|nvjet_(?:sm\d+_)?[th]|{_TENSILE}[HB]",
        "half",
        f"{_CUTLASS}: 884 and 16816 are shapes of 16 bit; nvjet with t and h; Tensile's H and B",
        matrix=True,
    ),
    # Its fused kernels take FP16 and BF16 alone.
    _row(r"flash(?!infer)", "half", "FlashAttention, README: datatype fp16 and bf16", matrix=True),
    _row(r"1688", "tf32", f"{_CUTLASS}: of FP32 operands where no other type is named", matrix=True),
    _row(r"tensorop|hmma|imma|wgmma|gmma|umma|nvjet", "unknown", f"{_CUTLASS}: matrix units", matrix=True),
    _row(
        rf"(?<![a-z])sgemm|scudnn|winograd|float_engine|fmha_cutlass[FB]_f32|fp32|f32f32|{_TENSILE}S"
        r"|(?:conv|engine|grad|gemmSN|gemmk1)\w*<float\b",
        "fp32",
        f"{_CUBLAS}; {_CUDNN}; PyTorch's attention before compute capability 8.0; Tensile's S",
        matrix=False,
    ),
)


def math_name(name: str) -> MathName | None:
    """The first row of the table that says something of a kernel's name; ``None`` for none.

    >>> [found.type for name in ("ampere_sgemm_128x64_tn", "nvjet_qrtst_128x160", "cutlass_80_tensorop_s1688gemm_128")
    ...  if (found := math_name(name))]
    ['fp32', 'fp8', 'tf32']
    """
    small = name.lower()
    return next((row for row in TABLE if row.pattern.search(small)), None)


MATH, BANDWIDTH, COMMUNICATION, OTHER = "math", "membw", "comm", "other"

#: Names whose type is looked up, those with most time where there are more: real traces hold 75 to 2,100 in all.
MOST_MATH_NAMES = 2**12

#: A kernel shorter than this is bound by latency, neither by math nor by bandwidth (TraceLens' short-kernel bound).
SMALL_KERNEL_NS = 10_000

#: Names are hostile: what may stand apart (``.*``) is searched from the first place its beginning is found at only.
_MATH = re.compile(
    r"(?<!fb)gemm|gemv|cutlass|cublas|xmma|nvjet|mma_|_mma|Cijk_|conv(?!ert)|winograd|wgrad|dgrad|fprop|bprop"
    r"|flash|fmha|attention|mha_|_mha|^(?>.*?cudnn).*(?:fwd|bwd)|gcnAsm|^(?>.*?MIOpen).*Conv|splitK|dot_kernel"
    r"|[shi]\d*cudnn_"  # cuDNN's convolutions: volta_scudnn_128x64_relu_…, volta_fp16_s884cudnn_fp16_…
    r"|matmul|^triton_tem_",  # of programs written in Triton, and the templates of torch.compile
    re.IGNORECASE,
)
#: How the kernels begin that torch.compile fuses of pointwise operators and reductions, by its version. Templates of
#: matrix products have other names.
COMPILED = ("triton_poi_", "triton_red_", "triton_per_", "triton_for_", "triton_fused_")
#: They add up what the kernels of a product that was split along its depth left, or they are torch.compile's pointwise
#: kernels and reductions, named for the operators around them: memory traffic.
_NO_PRODUCT = re.compile(rf"split_?K_?reduce|reduce_?split_?K|^(?:{'|'.join(COMPILED)})", re.IGNORECASE)
_BANDWIDTH = re.compile(
    r"elementwise|vectorized|unrolled|reduce|softmax|norm|bn_|batch_?norm|multi_tensor_apply|copy|cat|fill|index"
    r"|gather|scatter|embedding|dropout|pool|transpose|permute|nchwToNhwc|nhwcToNchw|sort|scan"
    r"|adam|sgd|lamb|relu|gelu|silu|cast|upsample|interpolate|loss|memset|memcpy",
    re.IGNORECASE,
)
#: A number in a name; ``cv2`` and ``h5py`` are words.
_NUMBER = re.compile(r"\d(?<![A-Za-z]\d)\d*")
#: What a pattern has that may tell one number from another, or how long it is.
_TELLS_NUMBERS = re.compile(r"[0-9]|\\d(?:\{|\\d)")
#: CPU operators whose cost is arithmetic, not memory traffic.
_MATH_OPERATOR = re.compile(
    r"^aten::(?:(?:mm|addmm|bmm|baddbmm|matmul|linear|conv\d?d?|addmv|addr|dot|einsum)$|.*convolution|mkldnn_|thnn_conv"
    r"|slow_conv|_scaled_dot_product|_flash_attention|lstm|gru)|^mkldnn::|^onednn::"
)
#: What torch.compile writes itself and so fuses with its neighbours: pointwise kernels, reductions and concatenations.
_FUSIBLE = re.compile(
    r"^(?!triton).*(?:elementwise|vectorized|unrolled|dropout|norm|softmax|relu|gelu|silu|reduce_kernel|CatArray"
    r"|nll_loss|GammaBeta)",
    re.IGNORECASE | re.DOTALL,
)
#: PyTorch's kernels over tensors of one common shape; those that gather by an index or count are none.
_ELEMENTWISE = re.compile(r"(?<!index_)elementwise_kernel(?!_with_index)")


@kept
def wordings(columns: TraceColumns) -> tuple[list[str], I64]:
    """Strings with every number as 0, each once, and ``(n_strings,)`` which of them each string is."""
    ids: dict[str, int] = {}
    place = [ids.setdefault(_NUMBER.sub("0", text), len(ids)) for text in columns.strings]
    return list(ids), np.array(place, np.int64)


def matching(columns: TraceColumns, used: I64, pattern: re.Pattern[str]) -> Bools:
    """``(n_strings,)`` mask of the strings among ``used`` in which ``pattern`` is found."""
    if not _TELLS_NUMBERS.search(pattern.pattern):
        return by_wording(columns, used, lambda text: pattern.search(text) is not None, default=0).astype(np.bool_)
    mask = np.zeros(len(columns.strings), dtype=np.bool_)
    mask[used] = [pattern.search(columns.strings[index]) is not None for index in used.tolist()]
    return mask


def named(columns: TraceColumns, pattern: re.Pattern[str], category: Category, *others: Category) -> Bools:
    """``(n_events,)`` mask of the events of these categories in whose name ``pattern`` is found."""
    wanted = matching(columns, names_of(columns, category, *others), pattern)
    if not wanted.any():
        return np.zeros(len(columns), dtype=np.bool_)
    return wanted.take(columns.name) & columns.is_a(category, *others)


def by_wording(columns: TraceColumns, used: I64, value: Callable[[str], int], default: int = -1) -> I8:
    """``(n_strings,)`` int8, what ``value``, which looks at no number, makes of the strings in ``used``.

    It is asked once for each wording.
    """
    texts, place = wordings(columns)
    found, out = (np.full(length, default, dtype=np.int8) for length in (len(texts), len(columns.strings)))
    worded = np.flatnonzero(np.bincount(place[used], minlength=len(texts)))
    found[worded] = [value(texts[number]) for number in worded.tolist()]
    out[used] = found[place[used]]
    return out


class KernelNames(msgspec.Struct, frozen=True):
    """What the names of a trace's events stand for: masks over ``columns.strings``, computed once per trace."""

    communication: Bools
    math: Bools
    bandwidth: Bools  #: kernels whose cost is memory traffic; math wins where both match
    pointwise: Bools  #: kernels that a compiler can fuse with their neighbours and has not fused yet
    elementwise: Bools  #: those of them that read and write tensors of one common shape, each element once
    tensor_core: Bools  #: kernels that run on tensor or matrix cores, as far as names tell
    math_type: I8  #: int8 ids into ``MATH_TYPES``: what kernels multiply in, as far as names tell

    @classmethod
    def of(cls, columns: TraceColumns, registry: Registry | None = None) -> "KernelNames":
        """Classify every name in use once; names of Python frames, most of a trace with stacks, name no kernel."""
        used = names_of(columns, *(known for known in Category if known != Category.PYTHON))
        registry = registry or built_in()
        communication = matching(columns, used, registry.communication)
        if registry.custom:
            communication[used] |= [registry.communicates(columns.strings[index]) for index in used.tolist()]
        # A kernel with a collective's metadata is one, whatever its name.
        told = np.array([found.row for found in columns.collectives], dtype=np.int64)
        communication[columns.name[told[columns.category[told] == Category.KERNEL]]] = True
        no_product = matching(columns, used, _NO_PRODUCT)
        kernel_math = matching(columns, used, _MATH) & ~no_product
        tensor_core = np.zeros(len(columns.strings), dtype=np.bool_)
        math_type = np.zeros(len(columns.strings), dtype=np.int8)
        named_math = np.flatnonzero(kernel_math)
        if len(named_math) > MOST_MATH_NAMES:
            time_ns = np.bincount(columns.name, weights=columns.dur_ns)[named_math]
            named_math = named_math[np.argsort(-time_ns, kind="stable")[:MOST_MATH_NAMES]]
        for index in named_math.tolist():
            if (row := math_name(columns.strings[index])) is not None:
                tensor_core[index], math_type[index] = row.on_matrix_units, MATH_TYPES.index(row.type)
        return cls(
            communication=communication,
            math=kernel_math | matching(columns, used, _MATH_OPERATOR),
            bandwidth=(matching(columns, used, _BANDWIDTH) & ~kernel_math) | no_product,
            pointwise=matching(columns, used, _FUSIBLE) & ~kernel_math,
            elementwise=matching(columns, used, _ELEMENTWISE),
            tensor_core=tensor_core,
            math_type=math_type,
        )

    def kind(self, name: int) -> str:
        """What kernels of a name are: ``comm``, ``math``, ``membw`` or ``other``."""
        if self.communication[name]:
            return COMMUNICATION
        return MATH if self.math[name] else BANDWIDTH if self.bandwidth[name] else OTHER


def self_times(columns: TraceColumns, rows: I64) -> I64:
    """Time of each row in ``rows`` that no row nested in it on the same thread takes, ``(n_rows,)`` int64 ns."""
    own = np.zeros(len(rows), dtype=np.int64)
    threads = columns.thread[rows]
    for thread in np.unique(threads):
        members = np.flatnonzero(threads == thread)
        members = members[np.argsort(-columns.external_id[rows[members]], kind="stable")]
        chosen = rows[members]
        owned = innermost_owner(columns.ts_ns[chosen], columns.end_ns[chosen], np.arange(len(members)))
        np.add.at(own, members[owned.label], owned.end - owned.start)
    return own


def device_rows(columns: TraceColumns) -> Bools:
    """``(n_events,)`` mask of what runs on a device: kernels, copies, memsets."""
    return columns.is_a(*WORK)


_LAUNCH = re.compile(r"^(?:cuda|hip|cu)(?:Ext)?(?:LaunchKernel|LaunchCooperative|GraphLaunch|ModuleLaunch)")
_GRAPH_LAUNCH = re.compile(r"^(?:cuda|hip|cu)GraphLaunch")
#: What the host does with a device alone, and why a trace that has it lacks the device's events. Operators are those
#: that PyTorch has for a GPU alone (its native_functions.yaml; a CPU asks ``cudnn_is_acceptable`` too), and torch_npu
#: for an NPU.
_OF_A_DEVICE: tuple[tuple[NoKernels, Category, re.Pattern[str]], ...] = (
    ("not_asked", Category.RUNTIME, _LAUNCH),
    ("not_asked", Category.CPU_OP, re.compile(r"^aten::_?(?:cudnn|miopen)_(?!is_)")),
    ("mps", Category.CPU_OP, re.compile(r"^aten::\w*(?<![a-z])mps(?![a-z])")),
    ("npu", Category.CPU_OP, re.compile(r"^npu::|^aclnn[A-Z]|^Hccl[A-Z]")),
)


#: The types of devices whose memory torch's profiler notes (c10::DeviceType) and why such a trace lacks their events.
_ALLOCATES: dict[int, NoKernels] = {1: "not_asked", 13: "mps"}


def launch_facts(columns: TraceColumns, kinds: KernelNames, launches: I64, window: Spans) -> LaunchFacts:
    """Counts over the whole trace; ``launches`` has the launching runtime row of each device event, -1 for none."""
    calls = launches[device_rows(columns)]
    linked = calls[calls >= 0]
    by_graph = linked[named(columns, _GRAPH_LAUNCH, Category.RUNTIME)[linked]]
    lost_ratio = None
    if columns.damage.truncated or columns.damage.dropped:
        launching = launching_rows(columns)
        launching = launching[covered(window, columns.ts_ns[launching])]
        without_kernel = 1.0 - float(np.isin(launching, linked).mean()) if len(launching) else 0.0
        lost_ratio = max(without_kernel, _without_call(columns, kinds, window))
    return LaunchFacts(
        events=len(calls),
        unlinked=len(calls) - len(linked),
        in_graphs=len(by_graph),
        graph_launches=len(np.unique(by_graph)),
        lost_ratio=lost_ratio,
    )


def launching_rows(columns: TraceColumns) -> I64:
    """Runtime calls that launch kernels or graphs of them."""
    return np.flatnonzero(named(columns, _LAUNCH, Category.RUNTIME))


def used_a_device(columns: TraceColumns) -> NoKernels | None:
    """Return why a trace may hold nothing of the device that the host used; ``None`` where it used none.

    It issued work, ran operators that only a device has, allocated its memory, or NCCL was its backend.
    That the file lists a device says nothing: it lists those of the machine. (Of a file that is cut off the device's
    events may be missing without any sign: Kineto writes the host's first.)
    """
    lasting = columns.dur_ns > 0
    signs = (reason for reason, kind, name in _OF_A_DEVICE if (named(columns, name, kind) & lasting).any())
    types = columns.memory.device_type
    # One allocation may be a probe of the device.
    allocated = next((why for kind, why in _ALLOCATES.items() if np.count_nonzero(types == kind) > 1), None)
    is_used = "not_asked" if columns.meta.backend == "nccl" else allocated
    reason = next(signs, "npu" if issues_to_npu(columns).any() else is_used)
    # torch records runtime calls only where the device's events were asked for too; of Nsight each is asked for alone.
    was_asked = columns.meta.recorder == "torch" and (columns.category == Category.RUNTIME).any()
    return "unknown" if reason == "not_asked" and was_asked else reason


def no_device_events(columns: TraceColumns) -> NoKernels | None:
    """Return why a file without device events may lack them; ``None`` of a whole file where no device was used."""
    return "cut" if columns.damage.truncated and not columns.meta.no_device else used_a_device(columns)


def _without_call(columns: TraceColumns, kinds: KernelNames, window: Spans) -> float:
    """Share of the math operators in ``window`` during which their thread calls no runtime."""
    math = np.flatnonzero((columns.category == Category.CPU_OP) & kinds.math[columns.name])
    math = math[covered(window, columns.ts_ns[math])]
    calls = np.flatnonzero(columns.category == Category.RUNTIME)
    silent = 0
    for thread in np.unique(columns.thread[math]).tolist():
        own = math[columns.thread[math] == thread]
        at = np.sort(columns.ts_ns[calls[columns.thread[calls] == thread]])
        silent += int((np.searchsorted(at, columns.end_ns[own]) == np.searchsorted(at, columns.ts_ns[own])).sum())
    return silent / len(math) if len(math) else 0.0
