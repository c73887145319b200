"""What the run shares its device with, and how the device is linked to the host."""

import msgspec
import pytest

from profilerkit.analysis.steps.log import read_log
from profilerkit.analysis.surroundings import BUSY_DEVICE, HostLink, Surroundings, surroundings
from profilerkit.rundir.reader import RankRecord
from profilerkit.rundir.sampled import GpuFacts, GpuSample, HostSample, Sample, WorkerSample
from tests.recipes import Log, S, rank_meta

LOG = Log().steps(60, 1_000_000)
OWN = 4000
GPU = GpuFacts(found_by="uuid", pcie_generation_max=4, pcie_width_max=16)


def record(samples, *, rank=0, **meta):
    return RankRecord(
        rank=rank,
        path=None,
        meta=rank_meta(rank, **{"gpu": GPU, **meta}),
        events=LOG.data,
        names={},
        samples=tuple(samples),
        windows=(),
        end=None,
        notes=(),
    )


def at(second, **fields):
    return Sample(t_ns=round((second + 0.5) * S), gpu=GpuSample(**fields))


def around(samples, *others, **meta):
    one = record(samples, **meta)
    return surroundings(one, read_log(LOG.data, {}), [one, *others])


def test_ranks_and_workers_of_the_run_are_no_strangers():
    worker = Sample(t_ns=S, host=HostSample(workers=(WorkerSample(77, 1.0, 1),)))
    busy = at(5, other_processes=3, other_processes_bytes=9, other_pids=(77, 4001, 555))
    found = around([worker, busy], record([], rank=1))
    assert (found.strangers, found.siblings, found.strangers_bytes) == (1, 2, 9)
    elsewhere = record([], rank=1, host="node1")
    assert around([worker, busy], elsewhere).strangers == 2  # that process number is of another host


def test_nobody_else_and_not_known_are_told_apart():
    assert around([at(5, other_processes=0)]).strangers == 0
    assert around([at(5, other_processes=0)]).strangers_bytes is None
    assert around([at(5, utilization_ratio=0.5)]).strangers is None


def test_processes_that_were_only_counted_are_strangers():
    assert around([at(5, other_processes=2)]).strangers == 2
    assert around([at(5, other_processes=70, other_pids=tuple(range(64)))]).strangers == 70


def test_the_most_at_once_count_also_before_the_first_step():
    early = Sample(t_ns=-S, gpu=GpuSample(other_processes=2, other_pids=(1, 2)))
    assert around([early, at(5, other_processes=1, other_pids=(1,))]).strangers == 2


def test_the_best_link_of_the_busy_samples_counts():
    samples = [
        at(1, utilization_ratio=0.0, pcie_generation=4, pcie_width=16),  # idle
        at(2, utilization_ratio=BUSY_DEVICE, pcie_generation=3, pcie_width=8),
        at(3, utilization_ratio=0.9, pcie_generation=1, pcie_width=8),
        at(4, pcie_generation=4, pcie_width=16),  # nobody knows whether it was busy
        at(70, utilization_ratio=0.9, pcie_generation=4, pcie_width=16),  # after the steps
    ]
    assert around(samples).link == HostLink(generation=3, generation_max=4, width=8, width_max=16, samples=2)


@pytest.mark.parametrize("gpu", [None, msgspec.structs.replace(GPU, pcie_width_max=None), GpuFacts(found_by="uuid")])
def test_a_link_without_known_limits_is_not_judged(gpu):
    samples = [at(2, utilization_ratio=0.9, pcie_generation=1, pcie_width=8)]
    assert around(samples, gpu=gpu).link is None


def test_a_link_that_is_not_told_or_never_busy_is_not_judged():
    assert around([at(2, utilization_ratio=0.9)]).link is None
    assert around([at(2, utilization_ratio=0.01, pcie_generation=1, pcie_width=8)]).link is None


def test_a_generation_that_nobody_knows_takes_nothing_from_the_rate():
    assert HostLink(generation=3, generation_max=9, width=16, width_max=16, samples=5).rate_ratio == 1.0


def test_the_utilisation_is_that_of_the_steps():
    samples = [at(second, utilization_ratio=second / 100) for second in range(100)]
    found = around(samples)
    assert found.utilization_samples == 60
    assert found.utilization_p95 == pytest.approx(0.95 * 0.59)


def test_without_samples_nothing_is_known():
    assert around([]) == Surroundings()
