"""Samples of the allocator, from statistics as torch nests them."""

import pytest

from profilerkit.analysis.samples import summarise
from profilerkit.capture.device_clock import AllocatorWatch

STATISTICS = {
    "allocated_bytes": {"all": {"current": 100, "peak": 150}, "large_pool": {"current": 90, "peak": 140}},
    "reserved_bytes": {"all": {"current": 300, "peak": 400}},
    "active_bytes": {"all": {"current": 110, "peak": 160}},
    "inactive_split_bytes": {"all": {"current": 20, "peak": 30}},
    "num_alloc_retries": 2,
}


def test_a_sample_per_second_and_one_at_the_end():
    written = []
    watch = AllocatorWatch(written.append, lambda: STATISTICS)
    for _ in range(4):
        watch.beat()
    watch.close()
    assert len(written) == 2
    first = written[0].allocator
    assert (first.allocated_bytes, first.allocated_peak_bytes) == (100, 150)
    assert (first.reserved_bytes, first.reserved_peak_bytes) == (300, 400)
    assert (first.active_bytes, first.inactive_split_bytes, first.alloc_retries) == (110, 20, 2)
    assert first.ooms is None  # this torch did not say
    assert watch.reason() == ""
    series = {entry.name: entry.maximum for entry in summarise(written, 0)}
    assert series["allocator.allocated"] == 100
    assert "allocator.ooms" not in series


@pytest.mark.torch
def test_without_cuda_it_is_off_with_a_reason(toy, light, recorded):
    with light() as prof:
        toy.train(toy.batch())
    run = recorded(prof.directory)
    assert run.rank.meta.features["allocator"].reason == "CUDA's allocator is not in use"
    assert run.rank.samples == ()
