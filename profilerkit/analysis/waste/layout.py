"""Kernels that turn the order of a convolution's dimensions around."""

import re

import numpy as np

from profilerkit.analysis.device.kernels import in_use, matching
from profilerkit.analysis.kernel_losses.records import Layout
from profilerkit.analysis.waste.judged import Bools, Judged

#: Names of cuDNN's and MIOpen's kernels.
_CONVERSION = re.compile(
    r"nchw\w{0,8}to\w{0,8}nhwc|nhwc\w{0,8}to\w{0,8}nchw|nchw2nhwc|nhwc2nchw|batched_transpose_\d", re.IGNORECASE
)
_CONVOLUTION_OPERATOR = re.compile(r"^aten::\w*conv(?!ert)")
#: Kernels that are a convolution's whatever launched them: cuDNN's, CUTLASS', MIOpen's. convolveNd is cuDNN's for 3-D.
_CONVOLUTION = re.compile(
    r"conv(?!ert)|fprop|dgrad|wgrad|winograd|implicit_gemm|scudnn|igemm_(?:fwd|bwd|wrw)", re.IGNORECASE
)
_3D = re.compile(r"convolveNd|3dconv|conv3d", re.IGNORECASE)
#: A tensor of a 3-D convolution has samples, channels and three more dimensions.
_3D_RANK = 5


def layout(work: Judged) -> Layout:
    """How much time goes into conversions, and into the convolutions that they serve."""
    used = in_use(work.columns)
    conversion = matching(work.columns, used, _CONVERSION)[work.name]
    calls = matching(work.columns, used, _CONVOLUTION_OPERATOR)
    by_operator = (work.operator >= 0) & calls[work.columns.name[np.maximum(work.operator, 0)]]
    by_name = (work.operator < 0) & matching(work.columns, used, _CONVOLUTION)[work.name]
    convolution = (by_operator | by_name) & ~conversion & work.kinds.math[work.name]
    time = np.bincount(work.name[conversion], weights=work.dur_ns[conversion], minlength=1)
    return Layout(
        conversion_share=work.share(conversion),
        convolution_share=work.share(convolution),
        per_step=float(conversion.sum()) / work.steps,
        example=work.columns.strings[int(time.argmax())] if time.any() else None,
        is_3d=_is_3d(work, convolution),
    )


def _is_3d(work: Judged, convolution: Bools) -> bool | None:
    """Whether the shapes passed to a convolution, or a kernel's name, are of three dimensions; ``None`` if untold."""
    if matching(work.columns, in_use(work.columns), _3D)[work.name[convolution]].any():
        return True
    passed = [found.tensor(0) for _, _, found in work.calls(convolution & (work.operator >= 0))[1]]
    ranks = [len(tensor.shape) for tensor in passed if tensor is not None]
    return max(ranks) >= _3D_RANK if ranks else None
