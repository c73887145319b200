"""Copies between host and device against the host link."""

import pytest

from tests.recipes import US, Trace

A100 = {"id": 0, "name": "NVIDIA A100-SXM4-80GB", "totalGlobalMem": 85_899_345_920, "computeMajor": 8}
MB = 1_000_000


def copied(*copies, devices=(A100,)):
    """One step with copies of (kind, memory, bytes, µs)."""
    trace = Trace(devices=devices)
    at = 1_000
    for kind, memory, size, length in copies:
        trace.copy(at, at + length, kind=kind, memory=memory, size=size)
        at += length
    trace.kernel(at, at + 10)
    trace.steps(1_000, at + 20)
    return trace.facts().host_copies


def test_the_rate_is_held_against_the_host_link_and_not_against_device_memory():
    (found,) = copied(("HtoD", "Pinned -> Device", 25 * MB, 1_000))
    assert (found.direction, found.memory, found.per_step) == ("to device", "pinned", 1.0)
    assert found.bytes_per_s == pytest.approx(25e9)
    assert found.link_ratio == pytest.approx(25 / 31)


def test_directions_and_memories_are_told_apart_longest_first():
    found = copied(
        ("HtoD", "Pageable -> Device", 10 * MB, 1_000),
        ("HtoD", "Pinned -> Device", 10 * MB, 400),
        ("DtoH", "Device -> Pageable", MB, 200),
        ("DtoD", "Device -> Device", MB, 5_000),
    )
    assert [(copy.direction, copy.memory) for copy in found] == [
        ("to device", "pageable"),
        ("to device", "pinned"),
        ("to host", "pageable"),
    ]
    assert [copy.time_ns for copy in found] == [1_000 * US, 400 * US, 200 * US]


@pytest.mark.parametrize(
    ("name", "direction"),
    [
        ("Memcpy H2D (Pinned -> Device)", "to device"),
        ("MEMCPY_HOST_TO_DEVICE", "to device"),
        ("CopyHostToDevice", "to device"),
        ("CopyDeviceToHost", "to host"),
        ("Memcpy D2H (Device -> Pinned)", "to host"),
    ],
)
def test_a_copy_goes_where_the_parts_of_the_step_say_it_goes(name, direction):
    trace = Trace(devices=(A100,))
    trace.event(name, "gpu_memcpy", 1_000, 2_000, pid=0, tid=7, device=0, stream=7, bytes=25 * MB)
    trace.kernel(2_000, 2_010)
    trace.steps(1_000, 2_020)
    assert [copy.direction for copy in trace.facts().host_copies] == [direction]


def test_small_copies_count_but_do_not_make_the_rate():
    (found,) = copied(("DtoH", "Device -> Pageable", 4, 10), ("DtoH", "Device -> Pageable", 4, 10))
    assert (found.per_step, found.bytes_per_step, found.bytes_per_s, found.link_ratio) == (2.0, 8.0, None, None)
    (mixed,) = copied(("HtoD", "Pinned -> Device", 4, 900), ("HtoD", "Pinned -> Device", 25 * MB, 1_000))
    assert mixed.bytes_per_s == pytest.approx(25e9)


def test_without_sizes_or_a_known_device_there_is_no_rate_or_no_ratio():
    (unsized,) = copied(("HtoD", "Pinned -> Device", None, 1_000))
    assert (unsized.bytes_per_step, unsized.bytes_per_s) == (None, None)
    (unknown,) = copied(("HtoD", "Pinned -> Device", 25 * MB, 1_000), devices=())
    assert (unknown.bytes_per_s, unknown.link_ratio) == (pytest.approx(25e9), None)


def test_a_run_without_copies_has_none():
    assert copied() == ()
