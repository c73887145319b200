"""What holds the steps of a trace without a device."""

import pytest

from tests.recipes import Trace

NODE = "autograd::engine::evaluate_function: "
LEAF = "torch::autograd::AccumulateGrad"


def stepping(fill, steps=3):
    """Steps of 1 ms, each filled by ``fill(trace, start)``."""
    trace = Trace()
    for number in range(steps):
        at = 1_000 + 1_000 * number
        trace.step(number, at, at + 1_000)
        trace.op(at, at + 50, name="aten::mm")
        fill(trace, at)
    return {one.place: one for one in trace.facts().held}


def node(trace, start, end, function, *inside):
    """A node of the backward pass whose own function is its last 10 µs."""
    trace.op(start, end, name=NODE + function)
    trace.op(end - 10, end, name=function)
    for begin, stop, name in inside:
        trace.op(start + begin, start + stop, name=name)


def test_a_hook_holds_what_a_node_runs_beside_its_own_function():
    inside = [(5, 100, "aten::histc"), (10, 60, "aten::linspace")]
    found = stepping(lambda trace, at: node(trace, at + 100, at + 310, "AddmmBackward0", *inside))
    assert found["hook"].operator == "aten::histc"
    assert found["hook"].share == pytest.approx(0.2)
    assert (found["hook"].per_step, found["hook"].operator_share) == (1.0, pytest.approx(0.095))


def test_hooks_of_parameters_run_in_the_function_that_accumulates():
    found = stepping(lambda trace, at: node(trace, at + 100, at + 300, LEAF, (192, 198, "aten::quantile")))
    assert found["hook"].operator == "aten::quantile"


@pytest.mark.parametrize(
    "name", ["aten::add_", "aten::sum", "torch::distributed::reducer::mul_out", "c10d::allreduce_"]
)
def test_what_the_engine_and_ranks_do_between_nodes_is_no_hook(name):
    inside = [(5, 100, name), (10, 90, "aten::copy_")]
    assert "hook" not in stepping(lambda trace, at: node(trace, at + 100, at + 300, "AddmmBackward0", *inside))


def test_the_optimizer_is_known_by_its_class_and_style():
    def fill(trace, at):
        trace.optimizer(at + 100, at + 400)
        trace.op(at + 110, at + 380, name="aten::_foreach_add_")

    found = stepping(fill)["optimizer"]
    assert (found.operator, found.style, found.share) == ("AdamW", "foreach", pytest.approx(0.3))


def test_a_fused_optimizer_counts_its_steps_over_a_list_and_is_fused_all_the_same():
    def fill(trace, at):
        trace.optimizer(at + 100, at + 400)
        trace.op(at + 110, at + 150, name="aten::_foreach_add_")
        trace.op(at + 160, at + 380, name="aten::_fused_adamw_")

    assert stepping(fill)["optimizer"].style == "fused"


def test_single_reads_hold_the_python_between_them():
    def fill(trace, at):
        for read in range(5):
            trace.op(at + 100 + 50 * read, at + 110 + 50 * read, name="aten::item")

    assert stepping(fill)["read"].share == pytest.approx(0.21)


def test_what_a_fused_optimizer_reads_is_not_read_by_the_loop():
    def fill(trace, at):
        trace.op(at + 100, at + 900, name="aten::_fused_adamw_")
        for read in range(5):  # the step of each parameter, with its update before the next
            trace.op(at + 110 + 150 * read, at + 112 + 150 * read, name="aten::item")

    assert "read" not in stepping(fill)


def test_an_operator_is_the_one_that_the_program_calls():
    def fill(trace, at):
        trace.op(at + 100, at + 500, name="aten::quantile")
        trace.op(at + 110, at + 490, name="aten::sort")

    found = stepping(fill)["forward"]
    assert (found.operator, found.share) == ("aten::quantile", pytest.approx(0.4))


def test_one_preempted_call_is_no_cost_of_its_operator():
    def fill(trace, at):
        trace.op(at + 100, at + (900 if at == 2_000 else 130), name="aten::relu")

    assert stepping(fill, steps=5)["forward"].share == pytest.approx(0.06)


def test_a_fetch_is_the_loaders():
    def fill(trace, at):
        trace.loader(at + 100, at + 500)
        trace.op(at + 110, at + 490, name="aten::stack")

    assert "forward" not in stepping(fill)


def test_what_computes_in_a_fetch_is_told_without_small_calls_and_joining():
    def fill(trace, at):
        trace.loader(at + 100, at + 600)
        trace.op(at + 110, at + 310, name="aten::sin")
        trace.op(at + 320, at + 329, name="aten::select")
        trace.op(at + 400, at + 590, name="aten::stack")
        trace.op(at + 410, at + 580, name="aten::cat")

    found = stepping(fill)
    assert (found["fetch"].operator, found["fetch"].share) == ("aten::sin", pytest.approx(0.2))
    assert "forward" not in found
