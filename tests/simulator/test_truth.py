"""What the simulator says it knows, against arithmetic that needs no simulator."""

import pytest
from simulator.job import US, Comm, Data, Host, Job, Late, Model, Odd, Reads, Tiny
from simulator.kernels import A100, Maker
from simulator.machine import Rank, Work, run
from simulator.model import device_ns
from simulator.parallel import simulate
from simulator.truth import leaf_ns, shares, steady_spans, step_ns

from tests.recipes import replace

SMALL = Model(tokens=4096)


def truth(job):
    return [shares(job, rank) for rank in simulate(job)]


@pytest.mark.parametrize(
    "job",
    [
        Job(1),
        Job(2, reads=Reads(3, 400.0), tiny=Tiny(12, reads=2), data=Data(bytes=1 << 24, pinned=False, gb_per_s=6)),
        Job(3, comm=Comm("ddp", ranks=2)),
        Job(4, model=Model(layers=2), comm=Comm("fsdp", ranks=2, bytes=1 << 27)),
        Job(5, odd=Odd(graph=True), host=Host(readback=False, python_us=20_000)),
    ],
    ids=["plain", "drained", "ddp", "fsdp", "graph"],
)
def test_leaves_sum_to_the_steady_steps_exactly(job):
    for rank in simulate(job):
        total = sum(end - start for start, end in steady_spans(job, rank))
        assert sum(leaf_ns(job, rank).values()) == total > 0


def test_kernels_of_a_plain_step_take_what_their_roofs_say():
    job = Job(7, host=Host(jitter_ratio=0.0))
    (rank,) = simulate(job)
    compute = sum(share for leaf, share in shares(job, rank).items() if leaf.startswith("compute."))
    assert compute * step_ns(job, rank) == pytest.approx(device_ns(job), rel=1e-3)


def test_a_matrix_product_takes_its_operations_over_the_peak():
    kernel = Maker(A100, reached={"gemm": 1.0}).gemm(4096, 4096, 4096)
    assert kernel.ns == pytest.approx(2 * 4096**3 / (312e12 * 0.869) * 1e9)
    assert kernel.leaf == "compute.math"


def test_a_pointwise_kernel_takes_its_bytes_over_the_bandwidth():
    kernel = Maker(A100, reached={"pointwise": 1.0}).pointwise(1 << 20, 1024)
    assert kernel.ns == pytest.approx(2 * 3 * (1 << 30) / (2039e9 * 0.9) * 1e9)
    assert kernel.leaf == "compute.membw"


@pytest.mark.parametrize(("stages", "batches"), [(2, 3), (3, 4), (4, 4)])
def test_a_pipeline_has_its_textbook_bubble(stages, batches):
    job = Job(3, steps=8, model=Model(lean=True), comm=Comm("pipeline", stages, microbatches=batches, bytes=1 << 20))
    for rank in simulate(job):
        found = shares(job, rank)["comm.skew"]
        assert found == pytest.approx((stages - 1) / (batches + stages - 1), abs=0.03)


def test_others_wait_for_a_late_rank_as_long_as_it_is_late():
    plain = Job(4, before=6, data=Data(workers=1), comm=Comm("ddp", ranks=3, bytes=1 << 20))
    job = replace(plain, late=Late(2, produce_us=25_000.0))
    ranks = simulate(job)
    late_ns = step_ns(job, ranks[0]) - step_ns(plain, simulate(plain)[0])
    assert late_ns > 5_000 * US
    for rank in ranks[:2]:
        assert shares(job, rank)["comm.skew"] * step_ns(job, rank) == pytest.approx(late_ns, rel=0.1)
    assert shares(job, ranks[2]).get("comm.skew", 0.0) < 0.005
    assert shares(job, ranks[2])["input.wait"] > 0.2


@pytest.mark.parametrize(("workers", "wait_ms"), [(1, 45), (2, 15), (3, 5), (4, 0)])
def test_workers_share_the_making_of_batches(workers, wait_ms):
    """A step of 15 ms and batches of 60 ms: w workers deliver one every 60 / w ms."""
    python_us = 15_000 - device_ns(Job(1, model=SMALL)) / US
    job = Job(
        1, before=12, steps=13, model=SMALL, data=Data(workers=workers, produce_us=60_000.0),
        host=Host(python_us=python_us, jitter_ratio=0.0),
    )  # fmt: skip
    (rank,) = simulate(job)
    assert shares(job, rank)["input.wait"] * step_ns(job, rank) == pytest.approx(wait_ms * 1e6, abs=2.5e6)


@pytest.mark.parametrize("index", range(3))
def test_what_a_serial_cause_takes_is_what_its_removal_saves(index):
    plain = Job(11 + index, model=SMALL)
    worse = replace(plain, data=Data(bytes=40 << 20))
    (rank,) = simulate(worse)
    saved = 1.0 - step_ns(plain, simulate(plain)[0]) / step_ns(worse, rank)
    assert saved == pytest.approx(shares(worse, rank)["input.h2d"], abs=0.01)


def test_a_read_with_an_empty_queue_drains_nothing():
    """Launch-bound: the device is idle when the value is asked for, so what follows is the host's own slowness."""
    job = Job(5, model=SMALL, tiny=Tiny(40, operator_us=40.0, kernel_us=4.0, reads=8))
    found = truth(job)[0]
    assert found["over.dispatch"] > 5 * found["sync.drain"]


def test_a_read_behind_queued_work_drains_it():
    job = Job(5, model=SMALL, reads=Reads(4, after_us=500.0))
    assert truth(job)[0]["sync.drain"] > 0.15


def test_a_gap_belongs_to_the_host_until_the_launch_and_to_the_launch_after_it():
    rank = Rank(0, seed=0, jitter_ratio=0.0, queue=9)
    first, second = (Work("k", "kernel", "compute.math", 50 * US, 7) for _ in range(2))

    def program():
        yield from rank.launch([first], "cudaLaunchKernel", 5 * US, 5 * US)
        rank.spend(55 * US, "over.python")
        rank.spend(20 * US, "input.wait")
        yield from rank.launch([second], "cudaLaunchKernel", 10 * US, 4 * US)
        rank.spend(100 * US, "over.python")

    run({rank: program()})
    rank.marks = [(0, 0, 0), (1, first.end, first.end), (2, second.start, second.start), (3, second.end, second.end)]
    # The first kernel ends at 60 µs, as does the Python; the second is issued from 80 to 90 and starts at 94.
    found = leaf_ns(Job(0), rank)
    assert found == {
        "input.wait": 20 * US, "over.dispatch": 10 * US, "over.launch": 4 * US, "compute.math": 50 * US,
    }  # fmt: skip
