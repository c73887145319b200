import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profilerkit.analysis.ranks.matching import RankLog, match_ranks
from tests.analysis.communication.jobs import ALL_TO_ALL, job, late
from tests.recipes import Trace, host_training, replace


def logs_of(traces, bases=None):
    facts = [trace.facts() for trace in traces]
    return [
        RankLog(f"rank {index}", entry.collectives, (bases or [None] * len(facts))[index])
        for index, entry in enumerate(facts)
    ]


def matched(traces, world_size=None, bases=None):
    return match_ranks(logs_of(traces, bases), world_size)


def jittery(seed, spread=400):
    """Every rank arrives at another time in each step, so that no two steps are alike."""
    table = np.random.default_rng(seed).integers(0, spread, (8, 64, 8))
    return lambda rank, step, index: int(table[rank, step, index])


def test_captures_that_begin_together_match_one_to_one():
    found = matched(job(3, 6, python=jittery(1), per_step=2))
    (group,) = found.groups
    assert (found.matched, found.of, group.by, group.whole) == (12, 12, "order", True)
    assert (group.rows == np.arange(12)).all()
    assert found.offset_ns == (0, 0, 0)
    assert found.residual_ns == (None, 0, 0)
    assert found.problems == ()


@pytest.mark.parametrize("missing", [(0, 0, 1, 0), (0, 4, 0, 2), (3, 0, 0, 0)])
def test_captures_that_start_apart_are_aligned_by_the_ends(missing):
    found = matched(job(4, 10, python=jittery(2), missing=missing))
    assert found.shift == missing
    assert (found.matched, found.of) == (10 - max(missing), 10)
    assert found.residual_ns.count(None) == 1  # the longest capture is what the others are compared with
    assert found.residual_ns.count(0) == 3
    (group,) = found.groups
    for rank, rows in zip(group.members, group.rows, strict=True):
        assert rows[0] == max(missing) - missing[rank]


def test_clocks_that_differ_are_measured_by_the_ends():
    found = matched(job(3, 10, python=jittery(3), clock=(0, 5_000, -70)))
    assert found.offset_ns == (0, 5_000_000, -70_000)
    assert found.to_common_ns == (0, -5_000_000, 70_000)


def test_a_clock_that_counts_from_another_instant_is_put_right_first():
    base = (1_700_000_000_000_000_000, 1_700_000_000_000_000_000 + 3_000_000)
    found = matched(job(2, 8, python=jittery(4), clock=(0, -3_000)), bases=base)
    assert found.offset_ns == (0, 0)
    assert found.to_common_ns == (0, 3_000_000)


def test_equal_steps_are_matched_by_the_closest_clocks_not_by_another_whole_step():
    found = matched(job(2, 12, python=late(1, 500), clock=(0, 800)))  # steps of 1,710 µs
    assert (found.offset_ns[1], found.shift) == (800_000, (0, 0))
    assert found.matched == 12


def test_of_bases_that_say_nothing_the_smallest_shift_is_taken():
    found = matched(job(2, 12, clock=(0, 7_000)), bases=(None, 1_700_000_000_000_000_000))
    assert (found.matched, found.shift) == (12, (0, 0))


def test_process_group_numbers_match_whatever_the_captures_miss():
    found = matched(job(3, 10, missing=(2, 0, 5), group=lambda _: "0", numbered=True))
    (group,) = found.groups
    assert (group.by, found.matched, found.of) == ("sequence", 5, 10)
    assert found.shift == (0, 0, 0)


def test_numbers_that_do_not_fit_the_times_match_nothing():
    traces = job(2, 10, python=jittery(5, 90_000), group=lambda _: "0", numbered=True)
    shifted = traces[1].changed(renumbered)
    found = matched([traces[0], shifted])
    assert found.groups == ()
    (problem,) = found.problems
    assert "rank 1" in problem
    assert "ms apart" in problem


def renumbered(event):
    if "Seq" in event["args"]:
        event["args"]["Seq"] += 1
    return event


def test_ranks_that_ran_other_collectives_match_nothing():
    other = job(2, 8, python=jittery(6), elements=lambda step, _: 1000 + step)
    found = matched([job(2, 8, python=jittery(6))[0], other[1]])
    assert found.groups == ()
    assert "names or sizes differ" in found.problems[0]


def test_ends_that_do_not_agree_match_nothing():
    traces = job(2, 12, leave=jittery(7, 90_000))
    found = matched(traces)
    assert found.groups == ()
    assert "ms apart (median)" in found.problems[0]


def test_two_collectives_prove_no_alignment():
    found = matched(job(2, 2))
    assert found.groups == ()
    assert "fewer than 3" in found.problems[0]


def test_point_to_point_transfers_have_no_common_end_and_stay_out():
    sent = [trace.changed(as_transfer) for trace in job(2, 8, name=ALL_TO_ALL)]
    found = matched(sent)
    assert (found.groups, found.of) == ((), 0)


def as_transfer(event):
    if "Collective name" in event["args"]:
        event["args"]["Collective name"] = "send"
    return event


def test_what_may_be_all_to_all_is_matched():
    assert matched(job(2, 8, elements=None, name=ALL_TO_ALL)).matched == 8


@pytest.mark.parametrize("named", [True, False])
def test_groups_of_their_own_are_matched_among_their_members(named):
    def pair(rank):
        return (0, 1) if rank < 2 else (2, 3)

    traces = job(
        4,
        10,
        python=jittery(8, 9_000),
        members=pair,
        group=(lambda rank: f"tp{rank // 2}") if named else None,
        elements=1 << 20 if named else None,
    )
    found = matched(traces)
    assert sorted(tuple(group.members) for group in found.groups) == [(0, 1), (2, 3)]
    # Without a name nobody knows that a pair is a whole group of a job of four.
    assert {group.whole for group in found.groups} == {named}


def test_members_that_were_not_recorded_make_a_group_incomplete():
    traces = job(4, 8, python=jittery(9), group=lambda _: "0")
    assert [group.whole for group in matched(traces).groups] == [True]
    assert [group.whole for group in matched(traces[:3]).groups] == [False]
    assert [group.whole for group in matched(job(2, 8, elements=None), world_size=4).groups] == [False]


def test_a_group_within_known_clocks_needs_no_three_collectives():
    traces = job(2, 8, python=jittery(10), group=lambda _: "a", numbered=True)
    for trace in traces:
        end = max(event["ts"] + event["dur"] for event in trace.events)
        args = {"Process Group Name": "b", "Seq": 1, "Group size": 2}
        trace.collective(end + 100, end + 200, elements=4, stream=21, **args)
    found = matched(traces)
    assert sorted(group.channel.group for group in found.groups) == ["a", "b"]
    assert found.matched == 9


def test_coalesced_collectives_of_one_number_are_told_apart_by_their_order():
    traces = job(2, 6, python=jittery(11), per_step=2, group=lambda _: "0", numbered=True)
    coalesced = [trace.changed(halved) for trace in traces]
    found = matched(coalesced)
    assert (found.matched, found.of) == (12, 12)


def halved(event):
    if "Seq" in event["args"]:
        event["args"]["Seq"] //= 2
    return event


@pytest.mark.parametrize("base", [-(1 << 63), 1 << 63, 1 << 200])
def test_a_base_that_no_clock_has_does_no_harm(base):
    traces = job(2, 6, python=jittery(12))
    assert matched(traces, bases=(0, base)).of == 6


def test_a_rank_without_collectives_is_left_out():
    traces = job(3, 6, python=jittery(13))
    silent = replace(logs_of(traces)[1], log=None)
    logs = logs_of(traces)
    found = match_ranks([logs[0], silent, logs[2]])
    assert found.offset_ns == (0, None, 0)
    assert [tuple(group.members) for group in found.groups] == [(0, 2)]


@settings(max_examples=15, deadline=None)
@given(
    missing=st.lists(st.integers(0, 5), min_size=3, max_size=3),
    clock=st.lists(st.integers(-3_000, 3_000), min_size=2, max_size=2),
    seed=st.integers(0, 1000),
)
def test_whatever_is_missing_and_however_clocks_differ_the_same_collectives_are_matched(missing, clock, seed):
    found = matched(job(3, 14, python=jittery(seed, 2_000), missing=missing, clock=(0, *clock)))
    (group,) = found.groups
    lacking = np.array(missing)
    assert found.matched == 14 - lacking.max()
    assert (group.rows[:, 0] == lacking.max() - lacking).all()
    assert [ahead - found.offset_ns[0] for ahead in found.offset_ns] == [0, clock[0] * 1_000, clock[1] * 1_000]


def pairs(rank):
    return (0, 1) if rank < 2 else (2, 3)


def test_two_groups_that_the_metadata_says_are_pairs_are_never_taken_for_one():
    behind = {"python": lambda rank, *_: 1_000 * (rank > 1), "leave": lambda rank, *_: 1_000 * (rank < 2)}
    found = matched(job(4, 12, members=pairs, period=3_000, **behind))
    assert sorted(tuple(group.members) for group in found.groups) == [(0, 1), (2, 3)]
    assert all(group.whole for group in found.groups)


def test_without_names_ends_a_tenth_of_a_millisecond_apart_are_no_group_and_with_a_name_they_are():
    apart = jittery(14, 1_000)
    assert matched(job(2, 12, leave=apart, elements=None)).groups == ()
    assert matched(job(2, 12, leave=apart, group=lambda _: "dp", numbered=True)).matched == 12


def test_many_groups_without_names_find_their_partners():
    found = matched(
        job(24, 5, members=lambda rank: (rank % 12, rank % 12 + 12), elements=None, python=by_pair), world_size=24
    )
    assert sorted(tuple(group.members) for group in found.groups) == [(first, first + 12) for first in range(12)]
    assert (found.matched, found.of) == (60, 60)


def by_pair(rank, step, _):
    return int(np.random.default_rng([rank % 12, step]).integers(0, 50_000))


def cut(trace, first, last):
    """The collectives from ``first`` to before ``last``."""
    count = [-1]

    def change(event):
        if "Seq" not in event["args"]:
            return event
        count[0] += 1
        return event if first <= count[0] < last else []

    return trace.changed(change)


def test_one_short_capture_leaves_the_others_matched_and_is_named():
    traces = job(4, 12, python=late(2, 800), group=lambda _: "0", numbered=True)
    found = matched([*traces[:3], cut(traces[3], 0, 3)])
    assert sorted((tuple(group.members), group.rows.shape[1], group.whole) for group in found.groups) == [
        ((0, 1, 2), 9, False),
        ((0, 1, 2, 3), 3, True),
    ]
    assert (found.matched, found.of) == (12, 12)
    (problem,) = found.problems
    assert "3 by rank 3" in problem


@pytest.mark.parametrize("numbered", [True, False])
def test_captures_that_share_nothing_are_matched_with_the_one_that_overlaps_both(numbered):
    traces = job(3, 12, python=jittery(15), group=lambda _: "0", numbered=True)
    traces = [cut(traces[0], 0, 5), cut(traces[1], 7, 12), traces[2]]
    if not numbered:
        traces = [trace.changed(without_number) for trace in traces]
    found = matched(traces)
    assert sorted((tuple(group.members), group.rows.shape[1]) for group in found.groups) == [((0, 2), 5), ((1, 2), 5)]
    assert (found.matched, found.of) == (10, 12)


def without_number(event):
    event["args"].pop("Seq", None)
    return event


def test_a_capture_that_lacks_one_of_many_costs_that_one_alone():
    traces = job(3, 12, python=jittery(16), group=lambda _: "0", missing=(0, 1, 0))
    found = matched(traces)
    assert (found.matched, found.of, found.problems) == (11, 12, ())


def test_equal_steps_on_clocks_that_are_not_comparable_are_matched_by_most_in_common_and_that_is_said():
    traces = job(3, 12, python=late(2, 800), period=3_000, missing=(0, 2, 0), clock=(0, 777_777, 0))
    found = matched(traces)
    assert found.matched == 10
    assert max(found.shift) <= 2
    assert any("shifted by whole steps" in problem for problem in found.problems)


def test_equal_steps_on_clocks_that_tell_the_time_of_day_are_matched_by_them():
    day = 1_700_000_000_000_000
    found = matched(job(2, 12, python=late(1, 500), missing=(0, 2), start=day))
    assert (found.shift, found.matched, found.problems) == ((0, 2), 10, ())


def test_there_are_never_more_matched_than_there_could_be():
    traces = job(6, 8, members=lambda rank: (rank // 2 * 2, rank // 2 * 2 + 1), python=by_pair, elements=None)
    found = matched(traces)
    assert found.matched <= found.of


def test_transfers_of_gloo_are_the_default_group_and_may_end_half_a_millisecond_apart():
    rng = np.random.default_rng(17)
    traces = [
        host_training(12, compute=3_000, comm=1_000, python=0, rank=rank, world_size=2).changed(
            lambda event: (
                {**event, "dur": event["dur"] + int(rng.integers(0, 1_000))}
                if event["name"].startswith("gloo")
                else event
            )
        )
        for rank in range(2)
    ]
    assert matched(traces).matched >= 6


def on_a_busy_host(delay, steps=10):
    """Two ranks of equal steps whose gloo transfers end ``delay(rank, step)`` µs late, on clocks that tell the time."""
    traces = [
        host_training(steps, compute=20_000, comm=25_000, rank=rank, world_size=2, start=1_700_000_000_000_000)
        for rank in range(2)
    ]
    for rank, trace in enumerate(traces):
        transfers = [event for event in trace.events if event["name"].startswith("gloo")]
        for step, event in enumerate(transfers):
            event["dur"] += delay(rank, step)
    return traces


def test_clocks_that_agree_win_over_a_few_transfers_that_fit_better_by_chance():
    # Of the later half of one rank and the earlier of the other the ends agree by chance.
    found = matched(on_a_busy_host(lambda rank, step: 300 * (rank == (step < 5)) + 20 * step))
    assert (found.shift, found.matched) == ((0, 0), 10)


def test_a_shift_that_fits_much_better_wins_on_a_busy_host_too():
    traces = on_a_busy_host(lambda rank, step: int(jittery(5, 15_000)(0, step + 3 * rank, 0)))
    found = matched(traces)
    assert (found.shift, found.matched) == ((0, 3), 7)


def stages(count, steps=4, clock=None):
    """A pipeline: every stage gets from the one before and sends to the next; the numbers count each rank's own."""
    clock = clock or [0] * count
    out, length = jittery(9, 3_000), 1_000
    traces = [Trace(rank=rank, world_size=count) for rank in range(count)]
    numbers = [0] * count
    for step in range(steps):
        at = 10_000 + 60_000 * step
        for source in range(count - 1):
            sent = at + length + out(source, step, 0)
            for rank, began, peer in ((source, sent, "Dst Rank"), (source + 1, at + 10, "Src Rank")):
                other = source + 1 if rank == source else source
                name = "send" if rank == source else "recv"
                numbers[rank] += 1
                args = {"Collective name": name, "Group size": count, "Process Group Name": "pp", peer: other}
                shift = clock[rank]
                traces[rank].collective(
                    began + shift, sent + 200 + shift, name=ALL_TO_ALL, elements=64, Seq=numbers[rank], **args
                )
            at = sent + 200
        for rank in range(count):
            traces[rank].step(step, 10_000 + 60_000 * step + clock[rank], 70_000 + 60_000 * step + clock[rank])
    return traces


@pytest.mark.parametrize("given", [(0, 1, 2, 3), (3, 0, 2, 1)])
def test_the_transfers_of_a_pipeline_are_matched_pair_by_pair_and_put_all_stages_on_one_clock(given):
    clock = (0, 4_000, -700, 90)
    traces = stages(4, clock=clock)
    found = matched([traces[rank] for rank in given])
    assert {group.channel.pair for group in found.groups} == {(0, 1), (1, 2), (2, 3)}
    assert all(group.between and group.whole for group in found.groups)
    assert (found.matched, found.of, found.problems) == (12, 12, ())
    first = found.offset_ns[0]
    told = [1_000 * (clock[rank] - clock[given[0]]) for rank in given]
    assert [offset - first for offset in found.offset_ns] == told


def test_transfers_whose_other_side_is_not_told_are_not_matched():
    traces = stages(3)
    for trace in traces:
        for event in trace.events:
            event.get("args", {}).pop("Src Rank", None)
    assert matched(traces).matched == 0


def test_collectives_of_a_host_that_overlap_are_matched_in_the_order_in_which_they_begin():
    """Two buckets of DDP, of which the second one to begin ends first in half of the steps on one rank."""
    traces = [Trace(rank=rank, world_size=2, backend="gloo", baseTimeNanoseconds=1 << 60) for rank in range(2)]
    for rank, trace in enumerate(traces):
        for step in range(10):
            at = 1_000 + 50_000 * step
            trace.step(step, at, at + 50_000)
            overtaken = 9_000 if rank == 0 and step % 2 else 0
            shapes = {"Input Dims": [[[1_059_850]]], "Input type": ["TensorList"]}
            trace.event("gloo:all_reduce", "user_annotation", at + 10_000, at + 20_000 + overtaken, tid=7, **shapes)
            shapes = {"Input Dims": [[[525_312]]], "Input type": ["TensorList"]}
            trace.event("gloo:all_reduce", "user_annotation", at + 12_000, at + 24_000, tid=8, **shapes)
    found = matched(traces)
    assert (found.matched, found.of, found.shift) == (20, 20, (0, 0))


@pytest.mark.parametrize(("apart", "expected"), [(4_000, 12), (30_000, 0)])
def test_on_a_busy_host_ends_may_lie_apart_as_long_as_they_are_nearer_to_each_other_than_to_the_next_step(
    apart, expected
):
    rng = np.random.default_rng(5)
    traces = on_a_busy_host(lambda rank, step: int(rng.integers(0, 2 * apart)), steps=12)
    assert matched(traces).matched == expected
