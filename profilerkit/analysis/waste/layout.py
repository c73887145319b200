"""Kernels that turn the order of a convolution's dimensions around."""

import re

import numpy as np

from profilerkit.analysis.device.kernels import in_use, matching
from profilerkit.analysis.waste.judged import Judged
from profilerkit.analysis.waste.records import Layout

#: Names of cuDNN's and MIOpen's kernels.
_CONVERSION = re.compile(
    r"nchw\w{0,8}to\w{0,8}nhwc|nhwc\w{0,8}to\w{0,8}nchw|nchw2nhwc|nhwc2nchw|batched_transpose_\d", re.IGNORECASE
)
_CONVOLUTION_OPERATOR = re.compile(r"^aten::\w*conv(?!ert)")


def layout(work: Judged) -> Layout:
    """How much time goes into conversions, and into the convolutions that they serve."""
    used = in_use(work.columns)
    conversion = matching(work.columns, used, _CONVERSION)[work.name]
    calls = matching(work.columns, used, _CONVOLUTION_OPERATOR)
    by_operator = (work.operator >= 0) & calls[work.columns.name[np.maximum(work.operator, 0)]]
    time = np.bincount(work.name[conversion], weights=work.dur_ns[conversion], minlength=1)
    return Layout(
        conversion_share=work.share(conversion),
        convolution_share=work.share(by_operator & ~conversion & work.kinds.math[work.name]),
        per_step=float(conversion.sum()) / work.steps,
        example=work.columns.strings[int(time.argmax())] if time.any() else None,
    )
