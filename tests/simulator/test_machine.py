"""The simulated machine: queues, waits and collectives in exact times."""

import pytest
from simulator.machine import Meeting, Rank, Work, run


def rank(index=0, queue=100):
    return Rank(index, seed=1, jitter_ratio=0.0, queue=queue)


def kernel(ns, stream=7, **changes):
    return Work("k", "kernel", "compute.math", ns, stream, **changes)


def spans(works):
    return [(work.start, work.end) for work in works]


def test_work_starts_when_its_call_has_returned_and_its_stream_is_free():
    one, works = rank(), [kernel(1_000), kernel(1_000), kernel(1_000, stream=8)]

    def program():
        for work in works:
            yield from one.launch([work], "cudaLaunchKernel", 100, 50)

    run({one: program()})
    assert spans(works) == [(150, 1_150), (2_050, 3_050), (350, 1_350)]


def test_a_stream_waits_for_another_one():
    one, first = rank(), kernel(5_000)
    second = kernel(100, stream=8, after=(first,))

    def program():
        yield from one.launch([first], "cudaLaunchKernel", 100, 0)
        yield from one.launch([second], "cudaLaunchKernel", 100, 0)

    run({one: program()})
    assert second.start == first.end + 1_500


def test_a_sync_holds_the_host_until_the_work_has_ended():
    one, work = rank(), kernel(5_000)

    def program():
        yield from one.launch([work], "cudaLaunchKernel", 100, 0)
        yield from one.sync([work], "cudaStreamSynchronize", 20)

    run({one: program()})
    assert one.now == work.end + 20
    assert one.did == [(0, 100, "over.dispatch"), (100, 5_120, "sync")]


def test_a_full_queue_holds_the_launch():
    one, works = rank(queue=2), [kernel(10_000) for _ in range(4)]

    def program():
        for work in works:
            yield from one.launch([work], "cudaLaunchKernel", 100, 0)

    run({one: program()})
    assert works[3].returned >= works[1].start


def test_a_collective_ends_for_all_when_the_last_has_come_and_the_data_is_there():
    ranks = [rank(0), rank(1), rank(2)]
    meeting = Meeting(3, latency_ns=10, transfer_ns=500)
    works = [Work("nccl", "kernel", "comm", 0, 20, meeting=meeting) for _ in ranks]

    def program(one, work):
        one.spend(1_000 * one.index, "over.python")
        yield from one.launch([work], "cudaLaunchKernel", 100, 0)
        yield from one.sync([work], "cudaStreamSynchronize", 0)

    run({one: program(one, work) for one, work in zip(ranks, works, strict=True)})
    assert spans(works) == [(100, 2_610), (1_100, 2_610), (2_100, 2_610)]


def test_a_kernel_runs_slower_while_a_collective_does():
    ranks = [rank(0), rank(1)]
    meeting = Meeting(2, latency_ns=0, transfer_ns=1_000)
    beside = kernel(3_000, slow_ratio=2.0)

    def program(one):
        yield from one.launch([Work("nccl", "kernel", "comm", 0, 20, meeting=meeting)], "cudaLaunchKernel", 100, 0)
        if one.index == 0:
            yield from one.launch([beside], "cudaLaunchKernel", 100, 0)

    run({one: program(one) for one in ranks})
    # The collective runs from 100 to 1,100: of the 900 ns beside it, 450 are lost.
    assert (beside.start, beside.end) == (200, 3_650)


def test_ranks_that_wait_for_each_other_are_an_error():
    ranks = [rank(0), rank(1)]
    meetings = [Meeting(2, 0, 100), Meeting(2, 0, 100)]

    def program(one, order):
        for meeting in order:
            work = Work("nccl", "kernel", "comm", 0, 20, meeting=meeting)
            yield from one.launch([work], "cudaLaunchKernel", 100, 0)
            yield from one.sync([work], "cudaStreamSynchronize", 0)

    with pytest.raises(RuntimeError, match="wait for each other"):
        run({ranks[0]: program(ranks[0], meetings), ranks[1]: program(ranks[1], meetings[::-1])})


def test_a_step_takes_the_same_random_numbers_whatever_came_before():
    one, other = Rank(0, seed=5, jitter_ratio=0.1, queue=1), Rank(0, seed=5, jitter_ratio=0.1, queue=1)
    for _ in range(10):
        one.vary(1_000)
    for each in (one, other):
        each.begin(3)
    assert [one.vary(1_000) for _ in range(5)] == [other.vary(1_000) for _ in range(5)]
