"""Forward code that runs a second time, found by frames or by where forward operators stand."""

import json

import numpy as np
import pytest

from profilerkit.analysis.steps.phases import recomputed
from profilerkit.formats.registry import read_trace
from profilerkit.trace.columns import Category
from tests.recipes import AUTOGRAD, ELEMENTWISE, GEMM, US, Trace

NODE = "autograd::engine::evaluate_function: "


def again(trace):
    """Names of the operators that are recomputation, in file order."""
    columns = trace.read()
    operators = np.flatnonzero(columns.category == Category.CPU_OP)
    return [columns.strings[columns.name[row]] for row in operators[recomputed(columns, operators)].tolist()]


def checkpointed(node="NativeLayerNormBackward0", shape=(8, 16), tid=AUTOGRAD):
    """A forward block and a backward node that runs it again before its own derivative, then an ordinary node."""
    trace = Trace()
    trace.op(100, 110, name="aten::linear", dims=[[8, 16], [32, 16]])
    trace.op(110, 120, name="aten::gelu", dims=[[8, 32]])
    trace.op(1_000, 1_100, name=NODE + node, tid=tid)
    trace.op(1_010, 1_020, name="aten::linear", dims=[list(shape), [32, 16]], tid=tid)
    trace.op(1_012, 1_015, name="aten::addmm", tid=tid)
    trace.op(1_030, 1_040, name="aten::gelu", dims=[[8, 32]], tid=tid)
    trace.op(1_050, 1_060, name="aten::native_layer_norm_backward", tid=tid)
    trace.op(1_100, 1_150, name=NODE + "AddmmBackward0", tid=tid)
    trace.op(1_110, 1_120, name="aten::mm", dims=[[8, 32], [32, 16]], tid=tid)
    return trace


def test_forward_operators_inside_a_backward_node_run_again_up_to_the_last_of_them():
    assert again(checkpointed()) == ["aten::linear", "aten::addmm", "aten::gelu"]


def test_it_is_found_on_the_thread_that_runs_backward_whichever_that_is():
    assert again(checkpointed(tid=100)) == again(checkpointed())


def test_operators_of_other_shapes_than_in_the_forward_code_are_a_derivative_of_their_own():
    trace = checkpointed(shape=(9, 16)).changed(lambda event: [] if event["name"] == "aten::gelu" else event)
    assert again(trace) == []


def test_an_ordinary_backward_recomputes_nothing():
    trace = checkpointed().changed(
        lambda e: [] if e["ts"] > 1_000 and e["name"] in ("aten::linear", "aten::gelu") else e
    )
    assert again(trace) == []


def test_the_nested_backward_of_a_reentrant_checkpoint_is_no_recomputation():
    trace = Trace()
    trace.op(100, 110, name="aten::linear", dims=[[8, 16], [32, 16]])
    trace.op(1_000, 1_300, name=NODE + "CheckpointFunctionBackward", tid=AUTOGRAD)
    trace.op(1_005, 1_295, name="CheckpointFunctionBackward", tid=AUTOGRAD)
    trace.op(1_010, 1_020, name="aten::linear", dims=[[8, 16], [32, 16]], tid=AUTOGRAD)
    trace.op(1_100, 1_200, name=NODE + "AddmmBackward0", tid=AUTOGRAD)
    trace.op(1_110, 1_120, name="aten::mm", tid=AUTOGRAD)
    assert again(trace) == ["aten::linear"]


def test_frames_of_the_checkpoint_module_tell_where_stacks_were_recorded():
    trace = Trace()
    trace.op(1_010, 1_020, name="aten::mul", tid=AUTOGRAD)
    trace.op(1_060, 1_070, name="aten::mul_", tid=AUTOGRAD)
    trace.frame("torch/utils/checkpoint.py(1500): recompute_fn", 1_000, 1_050, tid=AUTOGRAD)
    trace.frame("torch/utils/checkpoint.py(343): checkpoint", 1_055, 1_080, tid=AUTOGRAD)
    assert again(trace) == ["aten::mul"]


def test_recomputed_kernels_have_a_part_of_their_own():
    trace = checkpointed()
    trace.step(0, 0, 2_000)
    trace.step(1, 2_000, 2_100)
    for start, launch, name in ((300, 105, GEMM), (1_200, 1_014, GEMM), (1_500, 1_055, ELEMENTWISE)):
        tid = AUTOGRAD if launch > 1_000 else 100
        trace.kernel(start, start + 100, name=name, launch=(launch, launch + 1), tid=tid)
    trace.kernel(1_400, 1_405, launch=(1_032, 1_033), tid=AUTOGRAD)
    parts = {name: time for name, time in trace.parts().items() if name.startswith(("compute", "mem"))}
    assert parts == {"compute.math": 100 * US, "mem.recompute": 105 * US, "compute.membw": 100 * US}


def test_recomputed_operators_of_a_cpu_run_have_it_too():
    trace = checkpointed(tid=100)
    trace.steps(0, 2_000, 4_000)
    assert trace.parts()["mem.recompute"] == 20 * US  # linear and gelu, with what is nested in them


@pytest.mark.torch
@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing_of_torch_is_seen_and_costs_one_forward_pass(tmp_path, reentrant):
    torch = pytest.importorskip("torch")
    checkpoint = pytest.importorskip("torch.utils.checkpoint").checkpoint
    block = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 16))
    x = torch.randn(8, 16, requires_grad=True)
    path = tmp_path / "trace.json"
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as profiler:
        checkpoint(block, x, use_reentrant=reentrant).sum().backward()
    profiler.export_chrome_trace(str(path))
    columns = read_trace(path)
    products = np.flatnonzero([name == "aten::addmm" for name in np.array(columns.strings, object)[columns.name]])
    # Two forward, two again; which comes first is told by time.
    found = recomputed(columns, products[np.argsort(columns.ts_ns[products])])
    assert found.tolist() == [False, False, True, True]
    assert json.loads(columns.strings[columns.input_dims[products[0]]])[1] == [8, 16]
