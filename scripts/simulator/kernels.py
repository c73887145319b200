"""Kernels of a transformer layer on a chip: names, shapes, how long they take and which roof limits them.

Lengths follow from FLOPs, bytes and the peaks of the chip (§5 of the diagnosis method), so the leaf of a kernel is
known from its making. Shapes close to the ridge are marked: there the class depends on what one assumes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

SMALL_NS = 10_000
#: Part of the bandwidth that the best real kernels reach (§1.7).
_MEMORY_RATIO = 0.9
#: A kernel's class is beyond dispute where its two roofs are this far apart.
_CLEAR_RATIO = 1.4

Dims = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Chip:
    """A device: its name as traces give it, its dense peaks, and the part of them that matrix products reach (§5.2)."""

    name: str
    major: int
    minor: int
    sms: int
    memory_bytes: int
    tensor_tflops: float
    fp32_tflops: float
    hbm_gb_per_s: float
    pcie_gb_per_s: float
    half: str
    math_ratio: float


A100 = Chip("NVIDIA A100-SXM4-80GB", 8, 0, 108, 84_987_740_160, 312.0, 19.5, 2039.0, 31.0, "c10::BFloat16", 0.869)
H100 = Chip("NVIDIA H100 80GB HBM3", 9, 0, 132, 85_018_279_936, 989.0, 67.0, 3350.0, 63.0, "c10::BFloat16", 0.803)
V100 = Chip("Tesla V100-SXM2-32GB", 7, 0, 80, 34_072_559_616, 125.0, 15.7, 900.0, 15.8, "c10::Half", 0.75)


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel and the operators above it.

    Attributes:
        leaf: the leaf of its roof, before its length is looked at.
        ns: length without jitter.
        best_ns: length at the roof.
        operators: outermost first; the innermost issues it.
        dims: ``Input Dims`` of the innermost operator, ``types`` its ``Input type``.
        blocks: thread blocks of the grid.
        is_clear: its two roofs are far apart.
    """

    name: str
    leaf: str
    ns: float
    best_ns: float
    operators: tuple[str, ...]
    dims: Dims
    types: tuple[str, ...]
    blocks: int
    threads: int = 128
    is_clear: bool = True

    @property
    def counted_leaf(self) -> str:
        """The leaf with its length looked at."""
        return leaf_of_length(self.leaf, self.ns)

    def slower(self, ratio: float) -> "Kernel":
        """The same kernel at a lower clock."""
        return replace(self, ns=ratio * self.ns)


def leaf_of_length(leaf: str, ns: float) -> str:
    """Below 10 µs neither roof matters (§1.2), except for what is computed again."""
    return "compute.small" if ns < SMALL_NS and leaf != "mem.recompute" else leaf


@dataclass(frozen=True)
class Maker:
    """Makes kernels for one chip and precision; ``reached`` is what part of the roof a kind of kernel gets to.

    Attributes:
        fp32: compute in FP32 on the vector units.
        tf32: compute FP32 matrices on the tensor cores.
    """

    chip: Chip
    fp32: bool = False
    tf32: bool = False
    reached: Mapping[str, float] = field(default_factory=dict)

    @property
    def dtype(self) -> str:
        """Element type in operator arguments."""
        return "float" if self.fp32 else self.chip.half

    @property
    def size(self) -> int:
        """Bytes per element."""
        return 4 if self.fp32 else 2

    def gemm(self, m: int, n: int, k: int, *, backward: bool = False) -> Kernel:
        """``(m, k) @ (k, n)`` of a linear layer; with a dimension that is no multiple of 8 it reaches less (R15)."""
        aligned = not (m % 8 or n % 8 or k % 8)
        kind = "gemm" if aligned else "misaligned gemm"
        operators = ("aten::mm",) if backward else ("aten::linear", "aten::addmm")
        dims: Dims = ([m, k], [k, n]) if backward else ([n], [m, k], [k, n], [], [])
        types = (self.dtype, self.dtype) if backward else (self.dtype, self.dtype, self.dtype, "Scalar", "Scalar")
        flops, moved = 2.0 * m * n * k, self.size * (m * k + k * n + m * n)
        blocks = -(-m // 128) * -(-n // 128)
        return self._made(self._gemm_name(aligned=aligned), kind, flops, moved, operators, dims, types, blocks, 256)

    def attention(self, batch: int, heads: int, length: int, width: int, *, backward: bool = False) -> Kernel:
        """Fused attention over ``length`` tokens; backward costs 2.5 times the forward."""
        q = [batch, heads, length, width]
        flops = 4.0 * batch * heads * length * length * width * (2.5 if backward else 1.0)
        moved = self.size * batch * heads * length * width * (8 if backward else 4)
        way = "bwd_dq_dk_dv_loop_seqk_parallel" if backward else "fwd"
        name = (
            f"void pytorch_flash::flash_{way}_kernel<pytorch_flash::Flash_{way[:3]}_kernel_traits<{width}, 128, 64, 4>>"
        )
        operators = (
            ("aten::_scaled_dot_product_flash_attention_backward", "aten::_flash_attention_backward")
            if backward
            else ("aten::scaled_dot_product_attention", "aten::_flash_attention_forward")
        )
        count = 4 if backward else 3
        dims, types = tuple(q for _ in range(count)), (self.dtype,) * count
        return self._made(name, "attention", flops, moved, operators, dims, types, batch * heads * (length // 128))

    def pointwise(self, rows: int, width: int, op: str = "aten::add", inputs: int = 2) -> Kernel:
        """One read of every input, one write."""
        moved = self.size * rows * width * (inputs + 1)
        short = op.removeprefix("aten::").rstrip("_")
        name = (
            "void at::native::vectorized_elementwise_kernel<4, at::native::"
            f"{short}_functor<{self._scalar}>, std::array<char*, {inputs + 1}ul> >(int)"
        )
        dims = tuple([rows, width] for _ in range(inputs))
        return self._made(name, "pointwise", 2.0 * rows * width, moved, (op,), dims, (self.dtype,) * inputs,
                          -(-rows * width // 512))  # fmt: skip

    def norm(self, rows: int, width: int, *, backward: bool = False) -> Kernel:
        """Layer normalisation: reads and writes its input once, backward reads one more."""
        way = "layer_norm_grad_input_kernel_vectorized" if backward else "vectorized_layer_norm_kernel"
        name = f"void at::native::(anonymous namespace)::{way}<{self._scalar}, float>(int, float)"
        op = "aten::native_layer_norm_backward" if backward else "aten::native_layer_norm"
        outer = () if backward else ("aten::layer_norm",)
        moved = self.size * rows * width * (3 if backward else 2)
        dims: Dims = ([rows, width], [rows, width]) if backward else ([rows, width], [], [width], [width], [])
        types = (self.dtype, self.dtype) if backward else (self.dtype, "ScalarList", self.dtype, self.dtype, "Scalar")
        return self._made(name, "norm", 8.0 * rows * width, moved, (*outer, op), dims, types, rows)

    def gather(self, rows: int, width: int) -> Kernel:
        """Rows of an embedding table; no compiler fuses it with its neighbours."""
        name = (
            f"void at::native::(anonymous namespace)::indexSelectLargeIndex<{self._scalar}, long, unsigned int, 2, 2>"
        )
        moved = self.size * rows * width * 2 + 8 * rows
        dims: Dims = ([50_304, width], [rows])
        return self._made(name, "gather", 0.0, moved, ("aten::embedding", "aten::index_select"), dims,
                          (self.dtype, "long int"), rows)  # fmt: skip

    def optimizer(self, parameters: int) -> Kernel:
        """Fused AdamW: 28 bytes per parameter (R19)."""
        name = (
            "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::"
            "FusedOptimizerTensorListMetadata<4>, at::native::(anonymous namespace)::FusedAdamMathFunctor<float, 4> >"
        )
        rows = max(parameters // 1024, 1)
        dims: Dims = tuple([[rows, 1024]] for _ in range(4))
        return self._made(name, "optimizer", 12.0 * parameters, 28.0 * parameters, ("aten::_fused_adamw_",), dims,
                          ("TensorList",) * 4, max(parameters // 65_536, self.chip.sms))  # fmt: skip

    def tiny(self, ns: float, op: str = "aten::add") -> Kernel:
        """A kernel of a few kilobytes: its length is latency."""
        made = replace(self, reached={}).pointwise(8, 256, op)
        return replace(made, ns=ns, blocks=4)

    @property
    def _scalar(self) -> str:
        return "float" if self.fp32 else self.chip.half

    def _gemm_name(self, *, aligned: bool) -> str:
        if self.tf32:
            return "void cutlass::Kernel2<cutlass_80_tensorop_s1688tf32gemm_128x128_32x3_tn_align4>(Params)"
        if self.fp32:
            return "volta_sgemm_128x64_tn" if self.chip.major < 8 else "ampere_sgemm_128x64_tn"
        align = "_align8" if aligned else "_align1"
        if self.chip.major == 7:
            tail = "128x128_32x2_tn_align8" if aligned else "128x64_32x2_nn_align1"
            return f"void cutlass::Kernel<cutlass_70_wmma_tensorop_f16_s161616gemm_f16_{tail}>(Params)"
        if self.chip.major >= 9 and aligned:
            return "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_TNT"
        return f"void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_bf16_128x128_32x3_nn{align}>(Params)"

    def _made(
        self, name: str, kind: str, flops: float, moved: float, operators: tuple[str, ...], dims: Dims,
        types: tuple[str, ...], blocks: int, threads: int = 128,
    ) -> Kernel:  # fmt: skip
        tensor_cores = kind in ("gemm", "misaligned gemm", "attention") and not (self.fp32 and not self.tf32)
        peak = self.chip.tensor_tflops / (2 if self.tf32 else 1) if tensor_cores else self.chip.fp32_tflops
        math_ns = flops / (peak * self.chip.math_ratio) * 1e-3
        memory_ns = moved / (self.chip.hbm_gb_per_s * _MEMORY_RATIO)
        clear = min(math_ns, memory_ns) * _CLEAR_RATIO <= max(math_ns, memory_ns)
        best = max(math_ns, memory_ns)
        blocks = max(blocks, 2 * self.chip.sms)  # smaller ones are split along their inner dimension
        leaf = "compute.math" if math_ns > memory_ns else "compute.membw"
        length = best / self.reached.get(kind, 0.85)
        return Kernel(name, leaf, length, best, operators, dims, types, blocks, threads, clear)
