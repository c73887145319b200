from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profilerkit.analysis.communication.alignment import Sequence, fit
from profilerkit.analysis.communication.matching import RankLog, match_ranks
from tests.analysis.communication.jobs import ALL_TO_ALL, job, late


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
    assert found.residual_ns[1:] == (0, 0, 0)
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


def test_a_shift_that_fits_better_by_accident_does_not_move_clocks_that_agree():
    noise_ns = np.random.default_rng(5).integers(-300_000, 300_000, 10)
    ends = 45_000_000 * np.arange(10) + noise_ns
    other = ends + np.random.default_rng(6).integers(-300_000, 300_000, 10)
    # Half of the other's collectives lie as the later half of the first, to the nanosecond but 20 µs.
    other[:5] = ends[5:] - 225_000_000 + np.array([0, 20_000, -20_000, 10_000, -20_000])
    first, second = (
        Sequence(
            rows=np.arange(10), end=end, duration=np.full(10, 1_000_000), label=np.zeros(10, dtype=np.int64),
            together=np.ones(10, dtype=bool), number=None,
        )
        for end in (ends, other)
    )  # fmt: skip
    apart = fit(first, second, None, comparable=False)
    assert (apart.shift, apart.common) == (5, 5)
    found = fit(first, second, None, comparable=True)
    assert (found.shift, found.common, found.credible) == (0, 10, True)
    assert found.residual_ns > 4 * apart.residual_ns


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
    found = matched(job(2, 8, elements=None, name=ALL_TO_ALL))
    assert (found.groups, found.of) == ((), 0)


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
    assert found.offset_ns[1:] == (clock[0] * 1_000, clock[1] * 1_000)
