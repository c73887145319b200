"""At which steps windows open, without a profiler."""

import sys
from itertools import pairwise
from types import SimpleNamespace

import pytest

from profilerkit.capture.schedule import Schedule
from profilerkit.capture.settings import Settings
from profilerkit.capture.steps import NEVER
from profilerkit.capture.windows import traced_ranks
from profilerkit.rundir.layout import WindowRequest

MS = 1_000_000


def schedule_of(*, alone=True, asks=False, **changes):
    defaults = {"path": None, "trace_steps": 3, "warmup_steps": 5, "enabled": True}
    flags = dict.fromkeys(("light", "deep", "nvml", "host", "analyze"), True)
    return Schedule(Settings(**{**defaults, **flags, **changes}), alone=alone, asks=asks)


def opened(schedule, durations_ms, *, taken=4, refused=()):
    """First traced steps of the windows of a loop; each window takes its warm-up step and three more."""
    found, until = [], -1
    for number, duration in enumerate(durations_ms):
        if number >= until and number >= schedule.look_at:
            plan = schedule.due(number)
            if plan is not None and number in refused:
                schedule.missed(plan)
            elif plan is not None:
                schedule.opened(plan)
                found.append(plan)
                until = number + taken
        if number >= until:
            if schedule.timed_on_host(duration * MS):
                plan = schedule.slow(number, duration * MS, number)
                if plan is not None:
                    schedule.plan(plan)
        elif number == until - 1:
            schedule.closed(until)
    return [(plan.first_step, plan.kind) for plan in found]


def test_one_window_opens_after_the_warm_up():
    assert opened(schedule_of(), [10] * 200) == [(6, "scheduled")]


def test_further_windows_open_at_their_steps():
    steps = [first for first, _ in opened(schedule_of(trace_every=50), [10] * 200)]
    assert steps == [6, 56, 106, 156]


def test_windows_do_not_overlap():
    steps = [first for first, _ in opened(schedule_of(trace_every=2), [10] * 40)]
    assert all(after - before >= 4 for before, after in pairwise(steps))
    assert len(steps) > 5


def test_the_first_window_waits_for_steps_that_have_not_settled():
    assert opened(schedule_of(), [900, 10, 10, 400, 10, 300, 10, 10, 200, 10, 10, *[10] * 9])[0][0] == 13
    assert opened(schedule_of(), [900, 500, *[10] * 9])[0][0] == 6


def test_it_waits_for_at_most_twenty_steps():
    assert opened(schedule_of(), [10, 500, 100] * 20) == [(26, "scheduled")]


def test_short_steps_that_a_busy_host_disturbs_are_settled():
    assert opened(schedule_of(), [1, 5, 1, 9, 2, 8, 1, 7]) == [(6, "scheduled")]


def test_it_waits_while_functions_are_compiled(monkeypatch):
    counters = {"frames": {"total": 0}}
    monkeypatch.setitem(sys.modules, "torch._dynamo.utils", SimpleNamespace(counters=counters))
    schedule = schedule_of()
    found = []
    for number in range(20):
        if number >= schedule.look_at:
            plan = schedule.due(number)
            if plan is not None:
                found.append(plan.first_step)
                schedule.opened(plan)
        counters["frames"]["total"] += number < 8
        schedule.timed_on_host(10 * MS)
    assert found == [10]  # step 8 is the first in which nothing was compiled, step 9 warms the profiler up


def test_several_ranks_open_the_first_window_at_its_step_whatever_their_steps_took():
    uneven = [900, 10, 10, 400, 10, 300, 10, 10, 200, *[10] * 9]
    assert opened(schedule_of(alone=False), uneven) == opened(schedule_of(alone=False), [10] * 18)


def test_of_several_ranks_the_first_asks_for_another_window_when_that_one_came_too_early():
    schedule = schedule_of(alone=False, asks=True)
    uneven = [900, 10, 10, 400, 10, 300, *[100] * 60]
    assert opened(schedule, uneven[:30]) == [(6, "scheduled")]
    plan = schedule.asked_for(30)
    assert 30 + 20 <= plan.first_step <= 30 + 23  # two seconds ahead, of steps of 100 ms
    assert schedule.asked_for(31) is None
    settled = schedule_of(alone=False, asks=True)
    opened(settled, [100] * 30)
    assert settled.asked_for(30) is None


def test_a_window_that_could_not_open_is_tried_at_the_next_step_by_a_rank_alone():
    assert opened(schedule_of(), [10] * 20, refused=(5, 6)) == [(8, "scheduled")]
    assert opened(schedule_of(alone=False), [10] * 20, refused=(5,)) == []


def test_two_windows_that_were_asked_for_open_both():
    schedule = schedule_of(alone=False)
    schedule.opened(schedule.due(5))
    for first, kind in ((60, "anomaly"), (40, "scheduled")):
        schedule.plan(WindowRequest(first, 3, kind, "asked for"))
    assert schedule.look_at == 39
    assert schedule.due(38) is None
    assert schedule.due(39).kind == "scheduled"
    assert schedule.due(59).kind == "anomaly"


def test_a_window_that_gives_way_again_and_again_is_given_up():
    schedule = schedule_of()
    tried = 0
    for number in range(5, 100):
        plan = schedule.due(number)
        if plan is not None:
            tried += 1
            schedule.opened(plan)
            schedule.missed(plan)
    assert tried == 5


def with_slow(count, slow, usual=10, long=100):
    return [long if number in slow else usual for number in range(count)]


def test_a_slow_step_that_recurs_is_traced_once():
    found = opened(schedule_of(), with_slow(1_000, range(100, 1_000, 100)), taken=6)
    assert found == [(6, "scheduled"), (398, "anomaly")]


def test_steps_that_are_slow_because_of_a_window_are_no_anomaly():
    found = opened(schedule_of(trace_every=50), with_slow(400, [4 + 5 + 50 * n for n in range(8)]))
    assert {kind for _, kind in found} == {"scheduled"}


def test_slow_steps_that_every_window_of_typical_steps_holds_are_not_traced_again():
    found = opened(schedule_of(trace_steps=10), with_slow(400, range(0, 400, 10)), taken=11)
    assert found == [(6, "scheduled")]


def test_very_long_slow_steps_are_not_traced():
    slow = range(100, 1_000, 100)
    assert opened(schedule_of(), with_slow(1_000, slow, long=2_001)) == [(6, "scheduled")]
    assert len(opened(schedule_of(), with_slow(1_000, slow, long=2_000))) == 2
    assert len(opened(schedule_of(), with_slow(1_000, slow, usual=1_000, long=3_001))) == 1
    assert len(opened(schedule_of(trace_steps=4), with_slow(1_000, slow, usual=1_000, long=3_001))) == 2


def test_ranks_are_asked_for_a_window_two_seconds_ahead():
    schedule = schedule_of(alone=False)
    for _ in range(64):
        schedule.timed_on_host(10 * MS)
    plans = [schedule.slow(number, 100 * MS, number) for number in (100, 200, 300)]
    assert [plan and plan.first_step for plan in plans] == [None, None, 598]  # 498 is less than 200 steps ahead


def on_device(schedule, spans):
    """The window asked for by spans of steps on the device, each a number of steps and what they took in ms."""
    number = -1
    for steps, took_ms in spans:
        number += steps
        if schedule.timed_on_device(took_ms * MS, steps):
            plan = schedule.slow(number, took_ms * MS, number, steps)
            if plan is not None:
                return plan
    return None


def test_a_slow_step_among_eight_that_the_device_was_timed_with_is_seen():
    usual, slow = (8, 80), (8, 150)  # one step of 80 ms among those of 10 ms
    plan = on_device(schedule_of(), [*[usual] * 24, *[slow, *[usual] * 9] * 4])
    assert plan.trigger == "every 80 steps a step takes more than 3 times the median of 10.0 ms"
    assert on_device(schedule_of(), [*[usual] * 24, *[(8, 90), *[usual] * 9] * 4]) is None


def test_spans_of_a_slower_time_of_the_device_are_no_slow_steps_that_come_again():
    assert on_device(schedule_of(), [*[(8, 80)] * 24, *[(8, 110)] * 20]) is None


def test_ranks_are_asked_for_a_window_as_far_ahead_as_the_device_needs():
    schedule = schedule_of(alone=False)
    for _ in range(64):
        schedule.timed_on_host(2 * MS)
        schedule.timed_on_device(20 * MS, 1)
    plans = [schedule.slow(number, 200 * MS, number) for number in (100, 150, 200)]
    assert plans[-1].first_step == 348  # two seconds are 100 steps; 248 and 298 come before that


def test_steps_that_were_slow_on_the_host_do_not_foretell_those_of_the_device():
    schedule = schedule_of()
    for number in range(60):
        if schedule.timed_on_host((20 if number in (24, 49) else 2) * MS):
            schedule.slow(number, 20 * MS, number)
    for _ in range(30):
        assert not schedule.timed_on_device(20 * MS, 1)
    assert schedule.slow(74, 100 * MS, 89) is None  # 24, 49 and 74 are 25 steps apart, on two clocks


def test_nothing_opens_after_it_was_stopped():
    schedule = schedule_of(trace_every=10)
    schedule.stop()
    assert schedule.look_at == NEVER
    assert opened(schedule, with_slow(500, range(100, 500, 100))) == []


@pytest.mark.parametrize("world_size", [1, 2, 8, 9, 10, 16, 64, 1_000])
def test_at_most_eight_different_ranks_trace(world_size):
    ranks = traced_ranks(world_size)
    assert len(set(ranks)) == len(ranks) == min(world_size, 8)
    assert set(range(min(world_size, 4))) <= set(ranks) <= set(range(world_size))
    assert ranks[-1] == world_size - 1


def test_a_schedule_rests_until_its_next_look_a_slow_step_or_another_median():
    schedule = schedule_of(warmup_steps=200)
    assert schedule.quiet()[::2] == (198, 20)
    for _ in range(20):
        schedule.timed_on_host(10 * MS)
    assert schedule.quiet() == (198, 30 * MS, 16)
    for _ in range(5):
        schedule.timed_on_host(10 * MS)
    assert schedule.quiet().steps == 11
