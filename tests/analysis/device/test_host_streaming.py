"""Operators of a host that go over more memory than its caches hold."""

import pytest

from profilerkit.analysis.device.compute import STREAMED_BYTES
from tests.recipes import Trace

#: Elements of an FP32 tensor that a copy in place reads and writes once: together the bytes from which it streams.
LEAST = STREAMED_BYTES // 8


def leaf_of(name, *dims):
    """The part of an operator that fills most of each step of a run without a device."""
    trace = Trace()
    for number in range(6):
        start = 1_000 + 1_000 * number
        trace.op(start, start + 900, name=name, dims=list(dims))
        trace.step(number, start, start + 1_000)
    parts = {part: time for part, time in trace.parts().items() if part.startswith("compute.")}
    (part,) = parts
    return part


@pytest.mark.parametrize(
    ("name", "dims", "part"),
    [
        ("aten::mul_", ([LEAST], []), "compute.membw"),
        ("aten::mul_", ([LEAST - 1], []), "compute.other"),
        ("aten::add", ([LEAST // 2], [LEAST // 2], []), "compute.other"),
        ("aten::fill_", ([2 * LEAST], []), "compute.membw"),
        ("aten::fill_", ([LEAST], []), "compute.other"),
        ("aten::copy_", ([LEAST], [LEAST], []), "compute.membw"),
        ("aten::mm", ([8192, 8192], [8192, 8192]), "compute.math"),
        ("accuracy::compute", ([4 * LEAST], []), "compute.other"),
    ],
)
def test_what_streams_more_than_the_caches_hold_is_bound_by_memory(name, dims, part):
    assert leaf_of(name, *dims) == part


def test_without_shapes_nothing_is_said_of_memory():
    trace = Trace()
    for number in range(6):
        start = 1_000 + 1_000 * number
        trace.op(start, start + 900, name="aten::mul_")
        trace.step(number, start, start + 1_000)
    assert "compute.membw" not in trace.parts()
