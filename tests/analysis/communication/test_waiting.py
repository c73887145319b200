"""Who waits for whom, how much of it is exposed, whether it is an accident, and why the late rank is late."""

import doctest

import numpy as np
import pytest

from profilerkit.analysis.rank_facts import rank_facts
from profilerkit.analysis.ranks import late as late_module
from profilerkit.analysis.ranks.job import LATE_SHARE, compare
from profilerkit.analysis.ranks.late import late_ranks
from profilerkit.analysis.ranks.waiting import LATENCY_FLOOR_NS, Arrivals, ledger_of
from tests.analysis.communication.jobs import ALL_TO_ALL, job, late
from tests.recipes import ALL_REDUCE, GLOO, SINGLE, Trace, host_training, named, training

US, MS = 1_000, 1_000_000


def ranks_of(traces):
    return [rank_facts(f"rank{index}.json", trace.facts(), None) for index, trace in enumerate(traces)]


def compared(traces, world_size=None):
    return compare(ranks_of(traces), world_size or len(traces))


def per_step(rank):
    """Part to ns per judged step."""
    return {name: value / rank.trace.n_steady for name, value in named(rank.trace.totals).items()}


def test_a_collective_divides_at_the_arrival_of_the_last_rank():
    found = compared(job(3, 10, python=late(1, 700), transfer=300))
    parts = [per_step(rank) for rank in found.ranks]
    for waiting in (0, 2):
        assert parts[waiting]["comm.skew"] == pytest.approx(700 * US, rel=0.01)
        assert parts[waiting]["comm.lat"] + parts[waiting]["comm.bw"] == pytest.approx(300 * US, rel=0.01)
    assert "comm.skew" not in parts[1]
    assert parts[1]["comm.lat"] == LATENCY_FLOOR_NS
    assert all("comm.other" not in own for own in parts)


def test_what_ranks_do_beside_a_wait_is_not_exposed():
    traces = job(2, 10, python=late(1, 700), transfer=300)
    # Rank 0 computes on another stream through half of each wait.
    for event in list(traces[0].events):
        if event.get("args", {}).get("Collective name"):
            start = event["ts"]
            traces[0].kernel(start, start + 350, stream=9)
    waiting = compared(traces).ranks[0]
    assert per_step(waiting)["comm.skew"] == pytest.approx(350 * US, rel=0.02)


def test_members_who_were_not_recorded_may_be_the_last_so_the_rest_stays_undivided():
    found = compared(job(3, 10, python=late(1, 700), transfer=300)[:2], world_size=3)
    parts = per_step(found.ranks[0])
    assert parts["comm.skew"] == pytest.approx(700 * US, rel=0.01)
    assert parts["comm.other"] == pytest.approx(300 * US, rel=0.01)
    assert not {"comm.bw", "comm.lat"} & set(parts)


def test_transfers_that_take_as_long_as_tiny_ones_are_at_the_latency_floor():
    sizes = lambda _, index: 16 if index else 1 << 24  # noqa: E731
    found = compared(job(2, 10, per_step=2, transfer=300, elements=sizes, python=late(1, 500)))
    parts = per_step(found.ranks[0])
    assert parts["comm.lat"] == pytest.approx(600 * US, rel=0.01)
    assert "comm.bw" not in parts


def test_dividing_changes_no_sum_of_any_step():
    traces = job(3, 12, python=late(2, 400), per_step=3, missing=(0, 2, 0))
    before = [trace.facts().partition.per_step.sum(axis=1) for trace in traces]
    for rank, sums in zip(compared(traces).ranks, before, strict=True):
        assert (rank.trace.partition.per_step.sum(axis=1) == sums).all()
        assert sum(part.share for part in rank.parts) == pytest.approx(1.0)


def test_the_table_tells_waiting_from_transfer_and_counts_bandwidth_over_the_transfer():
    found = compared(job(4, 10, python=late(1, 700), transfer=300, elements=1 << 24))
    (row,) = found.ranks[0].trace.comm.table
    assert (row.kind, row.count, row.matched, row.group_size) == ("all_reduce", 8, 8, 4)
    assert (row.wait_ns, row.transfer_ns) == (8 * 700 * US, 8 * 300 * US)
    algorithm = (1 << 24) * 4 / 300e-6
    assert row.algorithm_bytes_per_s == pytest.approx(algorithm)
    assert row.bus_bytes_per_s == pytest.approx(algorithm * 1.5)  # 2 (n - 1) / n of 4


def test_without_other_ranks_the_bandwidth_counts_the_waiting_and_nothing_is_divided():
    (row,) = compared(job(2, 10, python=late(1, 700), transfer=300, elements=1 << 24)[:1]).ranks[0].trace.comm.table
    assert (row.wait_ns, row.transfer_ns, row.matched) == (None, None, None)
    assert row.algorithm_bytes_per_s == pytest.approx((1 << 24) * 4 / 1_000e-6)


def test_what_collectives_take_beyond_the_median_of_their_like_is_surplus():
    def slow(rank, step, _):
        return 300 if rank else 2_000 * (step == 4)  # rank 0 usually waits 100 of 300 µs for rank 1

    (first, _) = job(2, 10, python=lambda rank, step, i: slow(rank, step, i) if rank == 0 else 100)
    comm = first.facts().comm
    assert comm.surplus_ratio == 0.0
    late_once = job(2, 10, python=lambda rank, step, _: 2_000 if (rank, step) == (1, 4) else 0, transfer=300)
    comm = late_once[0].facts().comm
    assert comm.surplus_ratio == pytest.approx(2_000 / (8 * 300 + 2_000), rel=0.01)


def test_of_a_group_that_was_partly_recorded_nothing_is_called_transfer_and_bandwidth_is_a_bound():
    found = compared(job(4, 10, python=late(3, 900), transfer=300, group=lambda _: "0")[:2], world_size=4)
    (row,) = found.ranks[0].trace.comm.table
    assert (row.matched, row.wait_ns, row.transfer_ns, row.bandwidth_is_bound) == (8, None, None, True)
    assert (found.communication.transfer_ns, found.late) == (None, ())
    (whole,) = compared(job(4, 10, python=late(3, 900), group=lambda _: "0")).ranks[0].trace.comm.table
    assert not whole.bandwidth_is_bound


def test_a_group_without_a_name_that_lacks_ranks_of_the_job_makes_nobody_late():
    traces = job(4, 12, python=late(2, 900), elements=None)
    assert compared(traces).late == (2,)
    assert compared(traces[:3], world_size=4).late == ()
    named = job(4, 12, python=late(2, 900), group=lambda _: "0")
    assert compared(named[:3], world_size=4).late == (2,)


def test_one_short_capture_hides_no_late_rank():
    traces = job(4, 12, python=late(2, 900), group=lambda _: "0", numbered=True)
    count = [0]

    def cut(event):
        if "Seq" not in event["args"]:
            return event
        count[0] += 1
        return event if count[0] <= 3 else []

    assert compared([*traces[:3], traces[3].changed(cut)]).late == (2,)


def test_the_ledger_books_the_waiting_on_the_last_rank():
    found = compared(job(3, 10, python=late(1, 700)))
    assert found.ledger.last.tolist() == [0, 8, 0]  # the first and the last of 10 steps are not judged
    assert found.ledger.of.tolist() == [8, 8, 8]
    assert found.ledger.caused.tolist() == [0, 8 * 2 * 700 * US, 0]
    assert found.ledger.waited.tolist() == [8 * 700 * US, 0, 8 * 700 * US]
    assert found.late == (1,)


def test_collectives_outside_of_the_judged_steps_are_not_booked():
    first_step_slow = lambda rank, step, _: 50_000 if (rank, step) == (0, 0) else 0  # noqa: E731
    found = compared(job(3, 12, python=first_step_slow))
    assert found.communication.matched == 12
    assert found.ledger.caused.tolist() == [0, 0, 0]
    assert found.communication.waited_ns == 0


def test_who_leaves_before_the_last_one_comes_waited_for_nobody_else():
    # The root of a broadcast sends and goes.
    broadcast = "ncclDevKernel_Broadcast_RING_LL"
    late_for_it = lambda rank, _, index: 900 * (rank == 2 and index == 1)  # noqa: E731
    names = lambda _, index: broadcast if index else ALL_REDUCE  # noqa: E731
    traces = job(3, 10, per_step=2, python=late_for_it, name=names, elements=None)
    early = traces[0].changed(lambda event: {**event, "dur": 50} if event["name"] == broadcast else event)
    found = compared([early, *traces[1:]])
    assert found.matching.offset_ns == (0, 0, 0)
    assert found.ledger.waited.tolist() == [8 * 50 * US, 8 * 900 * US, 0]


def test_broadcasts_alone_tell_nothing_about_the_clocks_and_match_nothing():
    found = compared(job(3, 10, python=late(2, 900), name="ncclDevKernel_Broadcast_RING_LL", elements=None))
    assert (found.communication.matched, found.late) == (0, ())
    assert "the ranks finish none of them together" in found.communication.problems[0]


def test_jitter_is_nobodys_fault():
    table = np.random.default_rng(3).integers(0, 2_000, (4, 24))
    found = compared(job(4, 24, python=lambda rank, step, _: int(table[rank, step])))
    assert found.communication.waited_ns > 0
    assert (found.late, found.waiting_share, found.jitter_share) == ((), None, None)
    assert found.communication.late == ()


STEP_NS = 100 * MS


def equal(rng, ranks, steps, jitter_ratio, late_ratio=0.0):
    """Ranks that come apart by about this ratio of the step, by steps or by collectives; rank 0 later by another."""
    per_step, whole_step, wide = int(rng.integers(1, 11)), rng.random() < 0.5, rng.random() < 0.5
    size = (ranks, steps, 1 if whole_step else per_step)
    scale = jitter_ratio * STEP_NS / (per_step if whole_step else per_step**0.5)
    delay = rng.exponential(scale, size) if wide else rng.normal(0, scale, size)
    start = np.broadcast_to(delay, (ranks, steps, per_step)).reshape(ranks, -1) + 0.0
    start[0] += late_ratio * STEP_NS / per_step
    start = (start + 10 * STEP_NS * (1 + np.arange(steps * per_step))).astype(np.int64)  # one after the other
    arrived = start.max(axis=0)
    return Arrivals(
        members=np.arange(ranks),
        rows=np.tile(np.arange(steps * per_step), (ranks, 1)),
        start=start,
        wait=arrived - start,
        last=start.argmax(axis=0),
        arrived=arrived,
        transfer=np.full(steps * per_step, 100),
        step=np.repeat(np.arange(steps), per_step),
        whole=True,
        certain=True,
    )


def lateness(*args):
    return late_ranks(ledger_of([equal(*args)], args[1]), STEP_NS)


@pytest.mark.parametrize("steps", [1, 2, 3, 8])
@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
def test_of_many_healthy_jobs_next_to_none_has_a_late_rank_in_one_step_or_more(ranks, steps):
    rng = np.random.default_rng(ranks)
    alarms = 0
    for _ in range(300):
        ledger = ledger_of([equal(rng, ranks, steps, rng.uniform(0.002, 0.02))], ranks)
        late = late_ranks(ledger, STEP_NS).ranks
        alarms += bool(late) and np.median(np.delete(ledger.waited, late)) >= LATE_SHARE * steps * STEP_NS
    assert alarms <= 6  # 2 %


@pytest.mark.parametrize("jitter_ratio", [0.03, 0.3])
@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
def test_however_far_equal_ranks_come_apart_next_to_none_is_surely_late(ranks, jitter_ratio):
    rng = np.random.default_rng(ranks)
    alarms = [lateness(rng, ranks, int(rng.integers(1, 31)), jitter_ratio).sure for _ in range(500)]
    assert sum(alarms) <= 10  # 2 %


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize(
    ("steps", "late_ratio", "least"), [(1, 0.5, 0.99), (1, 0.1, 0.5), (2, 0.1, 0.9), (8, 0.1, 0.9)]
)
def test_a_rank_late_by_a_tenth_of_the_step_is_named_in_a_step_or_two(ranks, steps, late_ratio, least):
    rng = np.random.default_rng(ranks)
    found = [lateness(rng, ranks, steps, rng.uniform(0.002, 0.02), late_ratio) for _ in range(100)]
    assert sum(each.ranks == (0,) for each in found) >= 100 * least
    assert not any(each.sure for each in found) or steps >= 3
    assert not any(each.ranks and each.ranks != (0,) for each in found)


@pytest.mark.parametrize(("ranks", "recorded"), [(2, 4), (2, 6), (2, 9), (4, 5)])
def test_several_collectives_of_one_step_are_one_witness(ranks, recorded):
    alarms = 0
    for seed in range(12):
        table = np.random.default_rng(seed).exponential(300, (ranks, recorded)).astype(int)
        found = compared(
            job(ranks, recorded, per_step=10, python=lambda rank, step, _, late=table: int(late[rank, step]))
        )
        alarms += any(not late.few_steps for late in found.communication.late)
    assert alarms <= 1


def test_a_clear_distance_makes_three_steps_enough_and_a_narrow_one_does_not():
    def apart(others):
        return compared(job(4, 5, python=lambda rank, *_: 900 if rank == 2 else others * rank)).communication.late

    (late,) = apart(10)
    assert (late.rank, late.few_steps) == (2, False)
    (late,) = apart(150)  # the others differ by as much as the late rank comes after them
    assert (late.rank, late.few_steps) == (2, True)
    assert apart(250) == ()


@pytest.mark.parametrize("numbered", [True, False])
@pytest.mark.parametrize(("recorded", "per_step"), [(1, 1), (1, 2), (2, 1), (2, 3)])
def test_a_late_rank_in_a_step_or_two_is_likely_late_whatever_the_hosts_clocks_show(recorded, per_step, numbered):
    clock = [0, 5_000, -90_000_000, 1_700]
    shape = {"per_step": per_step, "clock": clock, "start": 100_000_000, "group": lambda _: "0", "numbered": numbered}
    (found,) = compared(job(4, recorded, python=late(2, 900), **shape)).communication.late
    assert (found.rank, found.few_steps) == (2, True)
    assert compared(job(4, recorded, **shape)).late == ()


def test_steps_that_are_not_judged_say_nothing_of_those_that_are():
    def python(rank, step, _):
        return {0: 5_000 * (rank == 3)}.get(step, 900 * (rank == 2))

    (found,) = compared(job(4, 5, python=python)).communication.late
    assert (found.rank, found.few_steps) == (2, False)


def test_waiting_beside_computing_does_not_show_how_late_a_rank_is():
    traces = job(2, 1, python=late(1, 600), group=lambda _: "0")
    (found,) = compared(traces).communication.late
    assert (found.rank, found.few_steps) == (1, True)
    (wait,) = [event for event in traces[0].events if event.get("args", {}).get("Collective name")]
    traces[0].kernel(wait["ts"], wait["ts"] + 480, stream=9)  # 120 of steps of 1,810 µs are left
    found = compared(traces)
    assert (found.late, found.communication.waited_ns) == ((), 600 * US)


def test_in_a_group_of_its_own_a_rank_is_compared_with_the_members_of_that_group():
    shape = {"group": lambda rank: str(rank // 6), "members": lambda rank: range(6) if rank < 6 else range(6, 8)}
    (found,) = compared(job(8, 1, python=late(3, 900), **shape)).communication.late
    assert (found.rank, found.few_steps) == (3, True)
    beside = lambda rank, *_: {3: 900, 4: 850}.get(rank, 0)  # noqa: E731
    assert compared(job(8, 1, python=beside, **shape)).late == ()


def test_one_collective_of_a_group_without_a_name_makes_nobody_late():
    assert compared(job(4, 1, python=late(2, 900), elements=None)).late == ()


def test_two_ranks_need_more_steps_to_be_sure():
    often = compared(job(2, 2, python=late(1, 900), group=lambda _: "0"))
    assert (often.late, often.communication.steps_needed) == ((1,), 7)
    assert often.communication.late[0].few_steps
    assert not compared(job(2, 12, python=late(1, 900))).communication.late[0].few_steps


def test_a_rank_is_late_by_time_however_often_others_are_last_by_little():
    def python(rank, _step, index):
        return {0: 3_000 * (rank == 2), 1: 20 * (rank == 0), 2: 20 * (rank == 1), 3: 20 * (rank == 3)}[index]

    found = compared(job(4, 10, python=python, per_step=4, compute=100, transfer=100))
    assert found.ledger.last.tolist() == [8, 8, 8, 8]
    assert found.late == (2,)
    assert found.communication.late[0].share > 0.97


def test_two_ranks_that_share_the_waiting_are_both_late():
    found = compared(job(6, 24, python=lambda rank, step, _: 2_000 if rank == (1, 4)[step % 2] else 0))
    assert sorted(found.late) == [1, 4]
    assert [late.share for late in found.communication.late] == pytest.approx([0.5, 0.5])


def test_of_two_ranks_that_take_turns_none_is_late():
    assert compared(job(2, 24, python=lambda rank, step, _: 2_000 if rank == step % 2 else 0)).late == ()


def test_a_late_rank_in_a_few_of_the_steps_is_not_late():
    assert compared(job(4, 20, python=lambda rank, step, _: 9_000 if rank == 1 and step % 4 == 0 else 0)).late == ()


def test_a_step_of_few_in_which_another_rank_is_held_up_too_hides_no_late_rank():
    def python(rank, step, index):
        held = step == 1 and index == 0  # all but rank 0, rank 1 longest
        return 100 * (rank == 2) + held * (0, 2_500, 2_000, 2_000)[rank]

    found = compared(job(4, 3, python=python, per_step=10))
    assert (found.late, found.suspect) == ((2,), 2)


@pytest.mark.parametrize("late_us", [0, 90])
def test_one_long_step_of_three_thins_no_waiting(late_us):
    # All ranks stand still in the first step: what is waited is above 5 % of the median step, not of the mean one.
    found = compared(job(4, 3, python=lambda rank, step, _: 4_000 * (step == 0) + late_us * (rank == 3)))
    assert found.late == ((3,) if late_us else ())


@pytest.mark.parametrize(("late_us", "named_late"), [(60, False), (75, True)])
def test_waiting_below_five_percent_of_the_step_makes_nobody_late(late_us, named_late):
    found = compared(job(4, 12, python=late(3, late_us)))  # steps of 1,210 µs and the lateness
    assert bool(found.late) is named_late


def test_what_the_others_would_wait_for_each_other_is_jitter():
    # Ranks 0 and 1 come 0 and 100 µs late by turns, rank 2 always 700 µs.
    def python(rank, step, _):
        return 700 if rank == 2 else 100 * (rank == step % 2)

    found = compared(job(3, 12, python=python))
    assert found.late == (2,)
    step_us = 1_000 + 210 + 700
    assert found.waiting_share == pytest.approx(650 / step_us, rel=0.02)
    assert found.jitter_share == pytest.approx(50 / step_us, rel=0.02)


def test_of_two_ranks_the_lateness_beyond_the_usual_is_jitter():
    found = compared(job(2, 20, python=lambda rank, step, _: rank * (600 + 100 * (step % 2))))
    assert found.late == (1,)
    assert found.jitter_share / found.waiting_share == pytest.approx(25 / 650, rel=0.05)


def cause_of(traces):
    (found,) = compared(traces).communication.late
    return found


def test_python_on_the_host_of_the_late_rank_is_the_cause():
    found = cause_of(job(4, 10, python=late(1, 2_000)))
    assert (found.rank, found.cause) == (1, "over.python")
    assert found.cause_ns == pytest.approx(2_000 * US, rel=0.01)
    assert found.coverage == pytest.approx(1.0, abs=0.01)


def test_longer_kernels_of_the_late_rank_are_the_cause():
    found = cause_of(job(4, 10, kernels=late(1, 2_000)))
    assert (found.rank, found.cause) == (1, "compute.math")


def test_waiting_for_data_is_the_cause_in_a_run_without_a_device():
    traces = [
        host_training(12, compute=3_000, fetch=4_000 if rank == 1 else 100, comm=300 + 3_900 * (rank == 0), rank=rank)
        for rank in range(2)
    ]
    found = cause_of(traces)
    assert (found.rank, found.cause, found.coverage) == (1, "input.wait", pytest.approx(1.0, abs=0.01))


def test_longer_operators_are_the_cause_in_a_run_without_a_device():
    traces = [
        host_training(12, compute=7_000 if rank else 3_000, fetch=100, comm=300 + 4_000 * (rank == 0), rank=rank)
        for rank in range(2)
    ]
    found = cause_of(traces)
    assert (found.rank, found.cause) == (1, "compute.math")


def test_lateness_that_a_hidden_transfer_carries_along_is_booked_on_its_beginning():
    """Data comes 4 ms late on rank 1; the first bucket's waiting hides behind compute, the last one's is exposed."""
    traces = []
    for rank in range(2):
        trace = Trace(rank=rank, world_size=2)
        at = 10_000
        for step in range(12):
            begin, slow = at, 4_000 * rank
            trace.loader(at, at + 100 + slow, name=SINGLE)
            host = at + 100 + slow
            trace.op(host, host + 8, name="aten::linear")
            trace.kernel(host + 10, host + 6_010, launch=(host + 2, host + 8))
            ready, done, last = at + 100 + 2_010, at + 100 + 6_010, at + 4_100 + 6_010
            # The first bucket is ready after 2 ms of the backward; it takes 100 µs once the last rank is there.
            trace.collective(ready + slow, ready + 4_100, stream=20, elements=1 << 20)
            trace.collective(max(done + slow, ready + 4_100), last + 100, stream=20, elements=1 << 18)
            at = last + 100
            trace.step(step, begin, at)
        traces.append(trace)
    found = cause_of(traces)
    assert (found.rank, found.cause) == (1, "input.wait")
    assert found.coverage == pytest.approx(1.0, abs=0.05)


def test_waiting_that_nothing_explains_is_unattributed():
    def unseen(trace):
        """The late rank's device is idle and its host in a call nobody knows, in halves."""
        for event in list(trace.events):
            if event["name"] == "aten::linear":
                trace.sync(event["ts"] - 1_000, event["ts"] - 5)
        return trace

    traces = job(4, 10, python=late(1, 2_000))
    found = cause_of([traces[0], unseen(traces[1]), *traces[2:]])
    assert (found.rank, found.cause, found.cause_ns) == (1, None, None)
    assert found.coverage == pytest.approx(0.5, abs=0.03)


def test_the_late_rank_is_found_whatever_captures_miss_and_however_clocks_differ():
    plain = compared(job(4, 12, python=late(2, 900)))
    clocks = {"clock": (0, -40, 300, 7), "base_time_ns": [1_700_000_000_000_000_000] * 4}
    moved = compared(job(4, 12, python=late(2, 900), missing=(0, 1, 2, 0), **clocks))
    assert plain.late == moved.late == (2,)
    assert moved.communication.late[0].cause == plain.communication.late[0].cause == "over.python"
    assert moved.communication.most_shift == 2
    assert moved.waiting_share == pytest.approx(plain.waiting_share, rel=0.2)  # two steps are not divided


def test_a_late_rank_in_a_pair_of_its_own_group_is_late_for_that_pair():
    pairs = lambda rank: (0, 1) if rank < 2 else (2, 3)  # noqa: E731
    found = compared(job(4, 12, python=late(2, 900), members=pairs, group=lambda rank: f"tp{rank // 2}"))
    assert found.ledger.caused.tolist() == [0, 0, 10 * 900 * US, 0]
    assert found.ledger.waited.tolist() == [0, 0, 0, 10 * 900 * US]


def test_transfers_between_two_ranks_claim_no_waiting():
    sent = [trace.changed(as_transfer) for trace in job(2, 10, python=late(1, 900), name=ALL_TO_ALL)]
    found = compared(sent)
    assert (found.late, found.communication.matched) == ((), 0)
    assert per_step(found.ranks[0])["comm.other"] == pytest.approx(1_100 * US, rel=0.01)


def as_transfer(event):
    if "Collective name" in event["args"]:
        event["args"]["Collective name"] = "recv"
    return event


def test_a_stage_waits_for_the_transfer_of_the_other_and_nobody_is_late():
    """Transfers of a group of two: the receive that begins 900 µs before the send waits."""
    traces = job(2, 12, python=late(0, 900), transfer=300, group=lambda _: "0to1", numbered=True, name=ALL_TO_ALL)
    found = compared([trace.changed(as_transfer) for trace in traces])
    assert found.communication.matched == 12
    assert per_step(found.ranks[1])["comm.skew"] == pytest.approx(900 * US, rel=0.01)
    assert (found.late, found.suspect, found.communication.waited_ns) == ((), None, 0)
    larger = [trace.changed(as_transfer).changed(of_four) for trace in traces]
    assert compared(larger).communication.matched == 0  # whose send meets whose receive is not known


def of_four(event):
    if "Group size" in event["args"]:
        event["args"]["Group size"] = 4
    return event


def test_ranks_that_do_not_match_claim_no_waiting():
    table = np.random.default_rng(5).integers(0, 90_000, (4, 12))
    found = compared(job(2, 12, leave=lambda rank, step, _: int(table[rank, step])))
    assert (found.late, found.waiting_share, found.ledger) == ((), None, None)
    assert found.communication.problems
    assert all("comm.skew" not in per_step(rank) for rank in found.ranks)


def test_one_rank_is_not_compared():
    found = compared([training(6, comm=200, rank=0, world_size=8)], world_size=8)
    known = found.communication
    assert (known.matched, known.of, known.steps, known.waited_ns, known.time_ns, known.most_shift) == (None,) * 6
    assert found.late == ()


def test_a_thread_of_gloo_beside_another_is_one_channel():
    traces = [host_training(12, compute=3_000, comm=300 + 900 * (rank == 0), python=900 * rank) for rank in range(2)]
    threads = [trace.changed(alternating()) for trace in traces]
    assert compared(threads).late == (1,)


def alternating():
    """The transfers of every other step on a second thread, as gloo runs them."""
    count = [0]

    def change(event):
        if event["name"].startswith("gloo"):
            count[0] += 1
            event["tid"] = GLOO + count[0] % 2
        return event

    return change


def test_examples_of_the_docstrings_hold():
    assert doctest.testmod(late_module).failed == 0


def test_waiting_in_two_collectives_at_once_is_counted_once():
    """Rank 0 waits from 0 to 50 in one collective and from 10 to 80 in another: 80 in all, the first has the most."""
    both = Arrivals(
        members=np.arange(2),
        rows=np.tile(np.arange(2), (2, 1)),
        start=np.array([[0, 10], [50, 80]]),
        wait=np.array([[50, 70], [0, 0]]),
        last=np.array([1, 1]),
        arrived=np.array([50, 80]),
        transfer=np.array([5, 5]),
        step=np.array([0, 0]),
        whole=True,
        certain=True,
    )
    ledger = ledger_of([both], 2)
    assert (ledger.waited.tolist(), ledger.caused.tolist(), ledger.amount.tolist()) == ([80, 0], [0, 80], [50, 30])


def test_a_tiny_transfer_is_all_latency_however_long_it_took():
    """On a busy host some of the same few bytes take several times as long as others: that is no bandwidth."""
    slow = lambda _rank, step, _index: 600 if step % 3 == 0 else 0  # noqa: E731
    parts = per_step(compared(job(2, 10, transfer=300, elements=16, leave=slow)).ranks[0])
    assert parts["comm.lat"] > 300 * US
    assert "comm.bw" not in parts
    large = per_step(compared(job(2, 10, transfer=300, elements=1 << 24, leave=slow)).ranks[0])
    assert large["comm.lat"] == LATENCY_FLOOR_NS
    assert large["comm.bw"] > 300 * US
