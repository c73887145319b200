"""Kernel facts of traces that say what cannot be."""

import json
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profilerkit import analyze
from profilerkit.analysis.device.operator_costs import operator_costs
from profilerkit.trace.columns import Category
from tests.recipes import GEMM, Trace

OPERATORS = (
    "aten::mm",
    "aten::addmm",
    "aten::bmm",
    "aten::mv",
    "aten::_grouped_mm",
    "aten::cudnn_convolution",
    "aten::convolution_backward",
    "aten::cudnn_convolution_backward",
    "aten::cudnn_convolution_transpose",
    "aten::_flash_attention_forward",
    "aten::_efficient_attention_backward",
    "aten::_fused_adamw_",
    "aten::_foreach_add_",
    "aten::cat",
    "aten::index_select",
    "aten::copy_",
    "aten::add",
    "triton_poi_fused_0",
)
TYPES = ("float", "c10::BFloat16", "long int", "int", "TensorList", "Scalar", "", "c10::Nothing")
sizes = st.sampled_from((0, 1, 2, 8, 2**20, 2**44, 2**63, -1, 10**30))
shapes = st.lists(sizes, max_size=5)
dims = st.lists(shapes | st.lists(shapes, max_size=3) | st.none() | st.text(max_size=3), max_size=6)
values = st.lists(st.sampled_from(("", "True", "[0, 0]", "[1, 1]", "[2]", "0", "[999, 999]", "[]")), max_size=15)
calls = st.tuples(st.sampled_from(OPERATORS), dims, st.lists(st.sampled_from(TYPES), max_size=6), values)
DEVICES = ("NVIDIA A100-SXM4-80GB", "no such device")


@settings(max_examples=150, deadline=None)
@given(st.lists(calls, min_size=1, max_size=6), st.sampled_from(DEVICES), st.integers(0, 60))
def test_no_arguments_break_the_report(made, device, length):
    trace = Trace(devices=[{"id": 0, "name": device}])
    for number, (name, shape, types, passed) in enumerate(made):
        at = 1_000 + 100 * number
        trace.op(at, at + 20, name=name, dims=shape, types=types or [""], values=passed)
        trace.kernel(at + 30, at + 30 + length, name=GEMM, launch=(at + 2, at + 4))
    trace.steps(1_000, 1_000 + 100 * len(made))
    facts = trace.facts()
    assert sum(facts.totals) == facts.window.total_ns
    for kernel in facts.kernels:
        assert kernel.efficiency is None or 0 <= kernel.efficiency <= 1


@pytest.mark.parametrize("device", DEVICES)
def test_arithmetic_beyond_64_bits_is_written_as_not_known(tmp_path, device):
    trace = Trace(devices=[{"id": 0, "name": device}])
    trace.op(1_000, 1_020, name="aten::mm", dims=[[2**44, 1], [1, 2**44]])
    trace.kernel(1_030, 1_060, launch=(1_002, 1_004))
    trace.steps(1_000, 1_100)
    report = json.loads(analyze(trace.write(tmp_path / "trace.json")).to_json())
    assert report["kernels"][0]["flops"] is None


def test_calls_that_all_differ_are_priced_up_to_a_bound(monkeypatch):
    monkeypatch.setattr("profilerkit.analysis.device.operator_costs._MOST_CALLS", 20)
    trace = Trace()
    for number in range(50):
        at = 1_000 + 100 * number
        trace.op(at, at + 20, name="aten::mm", dims=[[8, number % 40 + 1], [number % 40 + 1, 8]])
        trace.kernel(at + 30, at + 60, launch=(at + 2, at + 4))
    trace.steps(1_000, 6_000)
    # The ten shapes that occur twice come first.
    assert trace.facts().kernels[0].priced_ns == 30 * 30_000


def test_texts_of_arguments_are_parsed_up_to_a_bound(monkeypatch):
    monkeypatch.setattr("profilerkit.analysis.device.formulas._MOST_CHARACTERS", 100)
    trace = Trace()
    for number, extra in enumerate((0, 0, 20, 0)):
        at = 1_000 + 100 * number
        trace.op(at, at + 20, name="aten::mm", dims=[[8, number + 1], [number + 1, 8], *[[8]] * extra])
        trace.kernel(at + 30, at + 60, launch=(at + 2, at + 4))
    trace.steps(1_000, 1_400)
    # The long text does not fit; a short one that follows it does.
    assert trace.facts().kernels[0].priced_ns == 3 * 30_000


def test_memory_and_time_for_arguments_do_not_grow_with_their_texts(tmp_path):
    trace = Trace()
    for number in range(12):
        at = 1_000 + 100 * number
        tensors = [[[1]] * 24_000 + [[number + 1]]]
        trace.op(at, at + 20, name="aten::_foreach_add_", dims=tensors, types=["TensorList"])
        trace.kernel(at + 30, at + 60, launch=(at + 2, at + 4))
    trace.steps(1_000, 2_200)
    columns = trace.read()
    rows = np.flatnonzero(columns.category == Category.CPU_OP)
    tracemalloc.start()
    costs = operator_costs(columns, rows)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert costs.known.any()
    # One text of 120 kB at a time, never all of them.
    assert peak < 5_000_000
