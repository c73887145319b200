"""The type that a kernel computes in and whether matrix units do it, as its name and template arguments say."""

import re

import msgspec

#: Types that names tell apart, by id; the first stands for every other one and for what is not told. ``3xtf32`` is
#: FP32 in three TF32 products, ``half`` FP16 or BF16, ``fp8`` 8 bits or fewer.
MATH_TYPES = ("unknown", "fp64", "fp32", "3xtf32", "tf32", "half", "fp8", "int8")
#: Those of 32 bits, which matrix units take faster in 16.
WIDE = ("fp32", "3xtf32", "tf32")
#: Those of 16 bits and fewer.
NARROW = ("half", "fp8", "int8")


class MathName(msgspec.Struct, frozen=True):
    """One row of the table.

    Attributes:
        pattern: searched in the name, letter case aside.
        type: what the operands are multiplied in, one of ``MATH_TYPES``.
        on_matrix_units: whether tensor or matrix cores do it.
        source: where the naming is defined.
    """

    pattern: re.Pattern[str]
    type: str
    on_matrix_units: bool
    source: str


def _row(pattern: str, kind: str, source: str, *, matrix: bool) -> MathName:
    return MathName(re.compile(pattern, re.IGNORECASE), kind, matrix, source)


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
    return next((row for row in TABLE if row.pattern.search(name)), None)
