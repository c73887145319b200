"""Which copies carry batches, which results, which state that is kept on the host."""

import pytest

from tests.recipes import AUTOGRAD, LOADER_THREAD, OTHER_KERNEL, US, Trace

BIG = 1 << 24
SIDE = 30
SECOND = (2_000, 3_000)


def computing(steps=2):
    """Steps of 1,000 µs; in each a kernel runs from 10 to 500."""
    trace = Trace()
    begins = [1_000 * (number + 1) for number in range(steps + 1)]
    trace.steps(*begins)
    for at in begins[:-1]:
        trace.kernel(at + 10, at + 500, launch=(at, at + 5))
    return trace


def copy(trace, start, *, kind="HtoD", memory="Pinned -> Device", tid=100, stream=7, size=BIG, issued=None):
    issued = start - 10 if issued is None else issued
    where = {"tid": tid, "stream": stream, "size": size}
    trace.copy(start, start + 100, kind=kind, memory=memory, launch=(issued, issued + 5), **where)


def share_of_copies(trace):
    return {
        name: time // US for name, time in trace.parts().items() if name in ("input.h2d", "mem.offload", "sync.d2h")
    }


def test_copies_that_the_backward_pass_issues_are_offloaded_state():
    trace = computing()
    trace.op(2_505, 2_590, name="autograd::engine::evaluate_function: AddmmBackward0", tid=AUTOGRAD)
    copy(trace, 2_600, tid=AUTOGRAD, issued=2_580)
    assert share_of_copies(trace)["mem.offload"] >= 100


@pytest.mark.parametrize("stream", [7, SIDE])
def test_what_a_hook_of_the_backward_pass_reads_is_a_result_unless_bytes_come_back(stream):
    trace = computing()
    trace.op(2_505, 2_590, name="autograd::engine::evaluate_function: AddBackward0", tid=AUTOGRAD)
    copy(trace, 2_600, kind="DtoH", memory="Device -> Pinned", tid=AUTOGRAD, stream=stream, issued=2_580)
    assert share_of_copies(trace) == {"sync.d2h": 100}
    trace.annotation("Optimizer.step#CPUAdam.step", 2_710, 2_900)
    copy(trace, 2_800)
    assert share_of_copies(trace) == {"mem.offload": 200}


def test_copies_under_the_optimizer_are_offloaded_state():
    trace = computing()
    trace.annotation("Optimizer.step#DeepSpeedCPUAdam.step", 2_510, 2_800)
    copy(trace, 2_600)
    assert share_of_copies(trace) == {"mem.offload": 100}


def test_a_copy_another_thread_makes_during_the_optimizer_is_a_batch():
    trace = computing()
    trace.annotation("Optimizer.step#AdamW.step", 2_510, 2_800)
    copy(trace, 2_600, tid=LOADER_THREAD)
    assert "mem.offload" not in share_of_copies(trace)


@pytest.mark.parametrize(
    "frame",
    [
        "torch/autograd/graph.py(300): unpack_from_cpu",
        "zero/offload.py(9): fetch",
        "accelerate/hooks.py(300): pre_forward",
        "torch/nn/modules/module.py(930): _apply",
    ],
)
@pytest.mark.parametrize("kind", ["HtoD", "DtoH"])
def test_copies_under_a_function_named_for_it_are_offloaded_state(frame, kind):
    trace = computing()
    trace.frame(frame, 2_510, 2_800)
    copy(trace, 2_600, kind=kind)
    assert share_of_copies(trace) == {"mem.offload": 100}


@pytest.mark.parametrize(
    ("name", "is_frame"),
    [
        ("load_checkpoint", False),
        ("torch.load weights", False),
        ("save_state", False),
        ("torch/serialization.py(1500): load", True),
        ("train.py(30): load_state_dict", True),
    ],
)
@pytest.mark.parametrize("kind", ["HtoD", "DtoH"])
def test_weights_and_checkpoints_are_neither_batches_nor_results(name, is_frame, kind):
    trace = computing()
    (trace.frame if is_frame else trace.annotation)(name, 2_510, 2_800)
    copy(trace, 2_600, kind=kind)
    assert share_of_copies(trace) == {}
    assert trace.parts()["other.ckpt"] >= 100 * US


def many(trace, start, count, *, size):
    """So many copies of 1 µs in a row."""
    for number in range(count):
        at = start + 2 * number
        trace.copy(at, at + 1, memory="Pinned -> Device", size=size, launch=(start - 20, start - 19))


@pytest.mark.parametrize(
    ("count", "size", "state"),
    [(16, BIG // 2, True), (15, BIG // 2, False), (16, BIG, False)],  # the last are as large as batches are
)
def test_many_more_copies_in_a_row_than_usual_carry_a_model(count, size, state):
    trace = computing(4)
    copy(trace, 1_600)
    copy(trace, 2_600)
    many(trace, 3_600, count, size=size)
    if not state:
        assert share_of_copies(trace) == {"input.h2d": 200 + count}
        return
    assert share_of_copies(trace) == {"input.h2d": 200}
    assert trace.parts()["other.ckpt"] == count * US


def test_batches_of_many_tensors_are_batches():
    trace = Trace()
    trace.steps(1_000, 2_000, 3_000, 4_000)
    for at in (1_000, 2_000, 3_000):
        many(trace, at + 100, 40, size=BIG + at)
        trace.kernel(at + 300, at + 900, launch=(at + 90, at + 95))
    assert share_of_copies(trace) == {"input.h2d": 120}


def test_a_copy_beside_a_checkpoint_is_a_batch_and_so_is_one_under_activation_checkpointing():
    trace = computing()
    trace.annotation("load_checkpoint", 2_510, 2_580)
    trace.annotation("checkpoint_forward", 2_585, 2_800)
    copy(trace, 2_600)
    assert share_of_copies(trace)["input.h2d"] >= 100


def test_the_hooks_of_activation_checkpointing_move_nothing_to_the_host():
    trace = computing()
    trace.frame("torch/utils/checkpoint.py(900): unpack_hook", 2_510, 2_800)
    copy(trace, 2_600)
    assert "mem.offload" not in share_of_copies(trace)


def test_bytes_that_leave_and_come_back_on_a_stream_of_their_own_are_offloaded_state():
    trace = computing()
    copy(trace, 1_600, kind="DtoH", memory="Device -> Pinned", stream=SIDE)
    copy(trace, 2_600, stream=SIDE)
    assert share_of_copies(trace)["mem.offload"] == 200


@pytest.mark.parametrize(("kind", "part"), [("HtoD", "input.h2d"), ("DtoH", "sync.d2h")])
def test_bytes_that_only_come_are_batches_and_those_that_only_go_are_results(kind, part):
    trace = computing()
    copy(trace, 2_600, kind=kind, stream=SIDE)
    assert share_of_copies(trace) == {part: 100}


@pytest.mark.parametrize(("back", "part"), [(BIG // 4, "mem.offload"), (BIG // 4 - 1, "sync.d2h")])
def test_a_small_result_beside_a_prefetched_batch_is_no_offloading(back, part):
    trace = computing()
    copy(trace, 1_600, kind="DtoH", memory="Device -> Pinned", stream=SIDE, size=back)
    copy(trace, 2_600, stream=SIDE)
    assert share_of_copies(trace)[part] >= 100


def test_what_the_forward_pass_sends_away_is_offloaded_when_the_backward_pass_gets_it_back():
    trace = computing()
    copy(trace, 1_600, kind="DtoH", memory="Device -> Pageable")
    trace.op(2_505, 2_590, name="autograd::engine::evaluate_function: AddmmBackward0", tid=AUTOGRAD)
    copy(trace, 2_600, tid=AUTOGRAD, issued=2_580)
    assert "sync.d2h" not in share_of_copies(trace)


def test_a_copy_before_the_first_kernel_of_its_step_is_a_batch_whatever_its_stream():
    trace = Trace()
    trace.steps(1_000, 2_000)
    copy(trace, 1_100, stream=SIDE)
    trace.kernel(1_210, 1_500, launch=(1_200, 1_205))
    copy(trace, 1_600, kind="DtoH", memory="Device -> Pinned", stream=SIDE)
    assert "mem.offload" not in share_of_copies(trace)


@pytest.mark.parametrize("size", [65_535, 4])
def test_small_copies_are_never_offloading(size):
    trace = computing()
    trace.annotation("Optimizer.step#AdamW.step", 2_510, 2_800)
    copy(trace, 2_600, size=size)
    assert "mem.offload" not in share_of_copies(trace)


def test_a_copy_without_a_launch_is_what_its_direction_says():
    trace = computing()
    trace.annotation("Optimizer.step#AdamW.step", 2_510, 2_800)
    trace.copy(2_600, 2_700, size=BIG)
    assert share_of_copies(trace) == {"input.h2d": 100}


@pytest.mark.parametrize(
    ("memory", "issued", "host"),
    [
        ("Pageable -> Device", (2_580, 2_595), 15),  # the host stages the bytes, whatever the times
        ("Pinned -> Device", (2_580, 2_595), 0),  # the host only issues it
        ("Pinned -> Device", (2_580, 2_700), 20),  # the call returned when the copy was done
    ],
)
def test_the_host_is_in_the_copy_only_where_its_call_holds_it(memory, issued, host):
    trace = computing()
    trace.copy(2_600, 2_700, memory=memory, launch=issued)
    assert share_of_copies(trace)["input.h2d"] == 100 + host


def test_the_number_of_a_stream_does_not_decide():
    parts = []
    for streams in ((7, 30), (30, 7)):
        trace = Trace()
        trace.steps(1_000, 2_000)
        trace.kernel(1_010, 1_200, launch=(1_000, 1_005), stream=streams[0])
        trace.kernel(1_200, 1_390, launch=(1_006, 1_009), stream=streams[1], name=OTHER_KERNEL)
        copy(trace, 1_500, kind="DtoH", memory="Device -> Pinned", stream=streams[1])
        copy(trace, 1_700, stream=streams[0])
        parts.append(trace.parts())
    assert parts[0] == parts[1]
    assert "mem.offload" not in parts[0]  # each stream computes as much as the other
