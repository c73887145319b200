"""Pinned batch copies and tiny transfers, from constructed traces."""

import pytest

from tests.recipes import Trace, named

PINNED = "Pinned -> Device"


def stepped(fill, *, steps=6, length=1_000):
    """Steps of 1,000 µs; ``fill`` puts the events of each behind its start."""
    trace, at = Trace(), 1_000
    for number in range(steps):
        fill(trace, at)
        trace.step(number, at, at + length)
        at += length
    return trace


def pinned(trace, at, *, stream=7, size=1 << 20, memory=PINNED, kind="HtoD"):
    """A copy of 200 µs that a kernel on stream 7 hides for the last 50."""
    trace.op(at, at + 20, name="aten::copy_")
    trace.copy(at + 20, at + 220, kind=kind, memory=memory, size=size, stream=stream, launch=(at + 2, at + 8))
    trace.op(at + 20, at + 60, name="aten::mm")
    trace.kernel(at + 170, at + 900, launch=(at + 30, at + 40))


def test_the_exposed_part_of_pinned_copies_is_counted_per_step():
    found = stepped(pinned).facts().pinned
    assert (found.per_step, found.bytes_per_step) == (1.0, 1 << 20)
    assert (found.time_ns, found.exposed_ns) == (200_000, 150_000)
    assert found.in_line_ratio == 1.0


def test_copies_of_pageable_memory_are_told_apart_with_the_hosts_part_and_those_of_memory_without_a_name_are_not():
    facts = stepped(lambda trace, at: pinned(trace, at, memory="Pageable -> Device")).facts()
    assert (facts.copies.per_step, facts.pinned.per_step) == (1.0, 0.0)
    assert facts.copies.exposed_ns == 150_000 + 6_000
    facts = stepped(lambda trace, at: pinned(trace, at, memory="")).facts()
    assert (facts.copies.per_step, facts.pinned.per_step) == (0.0, 1.0)


def test_copies_under_a_checkpoint_are_no_batches():
    def saving(trace, at):
        trace.annotation("load_checkpoint", at, at + 15)
        pinned(trace, at)

    facts = stepped(saving).facts()
    assert (facts.copies.per_step, facts.pinned.per_step) == (0.0, 0.0)


def test_a_stream_of_its_own_is_told():
    found = stepped(lambda trace, at: pinned(trace, at, stream=21)).facts().pinned
    assert found.in_line_ratio == 0.0


@pytest.mark.parametrize(
    "other",
    [{"memory": "Pageable -> Device"}, {"size": 65_535}, {"kind": "DtoH", "memory": "Device -> Pinned"}],
)
def test_other_copies_are_no_pinned_batches(other):
    found = stepped(lambda trace, at: pinned(trace, at, **other)).facts().pinned
    assert (found.per_step, found.exposed_ns, found.in_line_ratio) == (0.0, 0.0, 0.0)


def read_back(trace, at, *, size=4, count=3):
    """Kernels of 200 µs, each followed by a value that is read back, after which the host takes 40 µs to go on."""
    for _ in range(count):
        trace.op(at, at + 6, name="aten::mm")
        trace.kernel(at + 10, at + 210, launch=(at + 1, at + 5))
        trace.op(at + 6, at + 220, name="aten::item")
        trace.copy(at + 212, at + 214, kind="DtoH", memory="Device -> Pageable", size=size, launch=(at + 8, at + 216))
        at += 250
    trace.op(at, at + 6, name="aten::mm")
    trace.kernel(at + 10, at + 240, launch=(at + 1, at + 5))


def test_values_that_are_read_back_cost_the_copy_and_the_drained_queue():
    facts = stepped(read_back).facts()
    found = facts.small_copies
    assert (found.to_host, found.to_device, found.per_step) == (3.0, 0.0, 3.0)
    assert found.exposed_ns == pytest.approx(6_000)
    assert found.drained_ns * facts.n_steady == named(facts.totals)["sync.drain"] > 0
    assert found.operators == (("aten::item", 3 * facts.n_steady),)


def test_copies_of_data_are_not_tiny():
    found = stepped(lambda trace, at: read_back(trace, at, size=4096)).facts().small_copies
    assert (found.per_step, found.exposed_ns, found.drained_ns, found.operators) == (0.0, 0.0, 0.0, ())
    assert stepped(lambda trace, at: read_back(trace, at, size=4095)).facts().small_copies.per_step == 3.0


def test_a_tiny_copy_beside_a_kernel_is_not_exposed():
    def beside(trace, at):
        trace.op(at, at + 20, name="aten::mm")
        trace.kernel(at + 10, at + 900, launch=(at + 2, at + 6))
        trace.copy(at + 100, at + 102, memory=PINNED, size=8, stream=21, launch=(at + 30, at + 34))

    found = stepped(beside).facts().small_copies
    assert (found.to_device, found.exposed_ns, found.drained_ns) == (1.0, 0.0, 0.0)


def test_without_a_device_there_are_no_copies():
    trace = Trace()
    trace.steps(0, 1_000, 2_000, 3_000, 4_000)
    trace.op(10, 900)
    assert (trace.facts().pinned, trace.facts().small_copies) == (None, None)
