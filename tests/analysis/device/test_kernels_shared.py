"""Kernels of real traces: sums done by hand, and efficiencies that can be true."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest

from profilerkit.analysis.device.compute import compute_leaves
from profilerkit.analysis.device.kernels import KernelNames
from profilerkit.analysis.steps.phases import recomputed
from profilerkit.analysis.trace_facts import device_spec, trace_facts
from profilerkit.formats.registry import read_trace
from profilerkit.model import revise
from profilerkit.trace.columns import Category
from profilerkit.trace.launches import launch_of

TRACES = Path(__file__).resolve().parents[4] / "shared" / "traces"

pytestmark = [
    pytest.mark.shared_traces,
    pytest.mark.skipif(not TRACES.exists(), reason=f"no shared traces beside the repository, at {TRACES}"),
]


@cache
def columns_of(name):
    return read_trace(TRACES / name / f"{name}.json.gz")


@cache
def facts_of(name):
    return trace_facts(columns_of(name))


@cache
def roof_of(name):
    """Every compute kernel of a trace against the roofs."""
    columns = columns_of(name)
    ran = columns.is_a(Category.KERNEL)
    spec = device_spec(columns.meta.devices[0], None)
    return compute_leaves(columns, KernelNames.of(columns), launch_of(columns), ran, spec)


def launched_by(name, operator):
    columns = columns_of(name)
    rows = roof_of(name)[0].operator
    return np.array([row >= 0 and columns.strings[columns.name[row]] == operator for row in rows])


def test_arithmetic_of_a_language_model_is_that_of_its_layers():
    """Qwen1.5-0.5B on 16 sequences of 559 tokens: 24 layers, 1,024 wide, 2,816 in the MLP, 16 heads of 64."""
    tokens, wide, inner = 16 * 559, 1_024, 2_816
    projections = 4 * wide * wide + 3 * wide * inner
    attention = 4 * 16 * 16 * 559**2 * 64 // 2  # causal
    positions = 32 * 559  # one small product for the rotary embedding
    expected = 24 * (2 * tokens * projections + attention) + 2 * positions
    assert facts_of("qwen_h100").compute.flops_per_step == pytest.approx(expected, rel=1e-12)


def test_convolutions_of_resnet50_are_the_published_ones():
    """4,087,136,256 multiply-adds in the convolutions of one 224 x 224 image; 32 images, 6 steps, shapes alone."""
    roof, _ = roof_of("resnet50_workers0")
    forward = launched_by("resnet50_workers0", "aten::cudnn_convolution")
    assert np.nansum(roof.flops[forward]) == pytest.approx(6 * 32 * 2 * 4_087_136_256, rel=1e-12)


@pytest.mark.parametrize(
    ("name", "by_shape"),
    [
        ("owlv2_h100", 0.99),
        ("bert_small_h100", 0.99),
        ("qwen_h100", 0.69),  # 30 % of its kernels were launched before the recording began
        ("resnet50_workers0", 0.95),
        ("resnet50_workers4", 0.95),
        ("sam_launch_bound", 0.85),
        ("moe_with_syncs", 0.6),
        ("ddp8_control", 0.55),
        ("resnet_actckpt_mi300", 0.5),
    ],
)
def test_shapes_tell_the_kind_of_most_kernels_and_no_efficiency_is_impossible(name, by_shape):
    roof, _ = roof_of(name)
    time = columns_of(name).dur_ns[roof.rows]
    assert time[roof.by_shape].sum() / time.sum() >= by_shape
    known = roof.by_shape & (time >= 10_000)
    efficiency = roof.least_ns[known] / time[known]
    assert 0 < efficiency.min() <= efficiency.max() <= 1
    math = known & (roof.flops > 0)
    assert 0.05 <= roof.least_ns[math].sum() / time[math].sum() <= 1
    peak = 1.05 * max(roof.spec.bf16_tflops or 0, roof.spec.fp16_tflops) * 1e3
    assert np.nanmax(roof.flops[math] / (time[math] + 1_000)) <= peak


def test_experts_with_padded_rows_are_not_priced_by_their_padding():
    roof, _ = roof_of("moe_without_syncs")
    padded = launched_by("moe_without_syncs", "aten::_scaled_grouped_mm")
    assert roof.beyond[padded].any()
    assert np.isnan(roof.flops[roof.beyond & padded]).all()


def test_recomputation_shows_with_and_without_frames():
    columns = columns_of("resnet_actckpt_mi300")
    calls = launch_of(columns)[np.flatnonzero(columns.category == Category.KERNEL)]
    hidden = revise(columns, category=np.where(columns.category == Category.PYTHON, Category.OTHER, columns.category))
    with_frames, without = recomputed(columns, calls), recomputed(hidden, calls)
    assert not (without & ~with_frames).any()
    assert without.sum() >= 0.95 * with_frames.sum() > 500
    share = facts_of("resnet_actckpt_mi300")
    assert share.compute.recomputed_flops_per_step / share.compute.flops_per_step == pytest.approx(0.25, abs=0.03)


def test_no_other_trace_recomputes():
    for name in ("owlv2_h100", "qwen_h100", "resnet50_workers4", "ddp8_control", "ns_resolution", "moe_with_syncs"):
        assert facts_of(name).compute.recomputed_flops_per_step in (None, 0)


def test_the_module_and_the_line_of_a_kernel_are_named_from_stacks():
    softmax = facts_of("owlv2_h100").kernels[0]
    assert softmax.operator == "aten::_softmax"
    assert softmax.module.startswith("Owlv2Attention_")
    assert softmax.line.startswith("transformers/models/owlv2/modeling_owlv2.py(")


def test_pageable_copies_are_held_against_the_host_link():
    (copy,) = facts_of("resnet50_workers4").host_copies
    assert (copy.direction, copy.memory) == ("to device", "pageable")
    assert 0.3 < copy.link_ratio < 0.7
