"""What a job does at the moment, from records with known answers."""

import msgspec
import pytest

from profilerkit.analysis import live as module
from profilerkit.analysis.live import FEWEST_RECENT, TREND_GROUPS, live_of
from profilerkit.api import so_far
from profilerkit.config import Settings
from profilerkit.rundir.follow import FollowedRun
from profilerkit.rundir.layout import EventFlag, EventKind
from profilerkit.rundir.sampled import GpuSample, HostSample, Sample
from tests.recipes import MS, Log, S, rank_meta, write_run

START_NS = rank_meta().anchor_unix_ns
STEP_US = 100_000


def live(path, logs, states=None, *, judged=False, now_s=0.0, **run):
    write_run(path, logs, **{"ended": False, **run})
    record = FollowedRun(path).look()
    states = {rank.rank: "running" for rank in record.ranks} | (states or {})
    report = so_far(record, Settings()) if judged else None
    return live_of(record, states, report, START_NS + round(now_s * S))


def test_steps_rate_and_median_are_those_of_the_last_steps(tmp_path):
    log = Log().steps(100, 140_000, wait=20_000).steps(400, STEP_US, wait=25_000)
    found = live(tmp_path, [log], now_s=55.5)
    assert found.steps == 500
    assert found.recent.steps == 300
    assert found.recent.rate_per_s == pytest.approx(10.0)
    assert found.recent.median_ns == found.recent.p10_ns == found.recent.p90_ns == 100 * MS
    assert (found.ranks[0].wait_ns, found.ranks[0].wait_ratio) == (25 * MS, pytest.approx(0.25))
    assert (found.running_ns, found.quiet_ns) == (55_500 * MS, 1_500 * MS)
    assert len(found.recent.trend) == TREND_GROUPS
    assert (found.recent.trend[0], found.recent.trend[-1]) == (140 * MS, 100 * MS)


def test_long_steps_are_recent_as_well(tmp_path):
    assert live(tmp_path, [Log().steps(30, 60_000_000)]).recent.steps == FEWEST_RECENT


def test_before_the_first_step_nothing_is_said(tmp_path):
    found = live(tmp_path, [Log()], now_s=3.0)
    assert (found.steps, found.recent, found.quiet_ns, found.late) == (0, None, None, ())
    assert found.ranks[0].wait_ns is None
    assert found.running_ns == 3 * S


def test_a_loop_without_a_loader_has_no_wait(tmp_path):
    assert live(tmp_path, [Log().steps(20, STEP_US)]).ranks[0].wait_ratio is None


def test_the_latest_reading_is_shown_and_limits_are_remembered(tmp_path):
    samples = [
        Sample(t_ns=1 * S, gpu=GpuSample(utilization_ratio=0.1, power_mw=90_000, power_limit_mw=400_000)),
        Sample(t_ns=70 * S, gpu=GpuSample(utilization_ratio=0.8, sm_clock_mhz=1_700)),
        Sample(t_ns=70 * S + 1, host=HostSample(cpu_ratio=0.5, running_tasks=4)),
        Sample(t_ns=71 * S, gpu=GpuSample(utilization_ratio=0.9, temperature_c=61)),
    ]
    rank = live(tmp_path, [Log().steps(20, STEP_US)], samples=samples).ranks[0]
    told = {name: value for name, value in msgspec.structs.asdict(rank.device).items() if value not in (None, ())}
    assert told == {"utilization_ratio": 0.9, "power_limit_mw": 4e5, "sm_clock_mhz": 1_700, "temperature_c": 61}
    assert (rank.hosted.cpu_ratio, rank.hosted.running_tasks, rank.hosted.memory_used_bytes) == (0.5, 4, None)


def test_a_sampler_that_stopped_gives_no_reading_of_now(tmp_path):
    samples = [
        Sample(t_ns=1 * S, gpu=GpuSample(utilization_ratio=0.1)),
        Sample(t_ns=7 * S, host=HostSample(cpu_ratio=0.5)),
    ]
    rank = live(tmp_path, [Log().steps(20, STEP_US)], samples=samples).ranks[0]
    assert rank.device is None
    assert rank.hosted is not None


@pytest.mark.parametrize(("more_us", "late"), [(4_900, []), (5_600, [1])])
def test_a_rank_is_late_by_its_timers_from_a_twentieth_of_the_step_on(tmp_path, more_us, late):
    logs = [Log().steps(40, STEP_US, wait=10_000 + more) for more in (0, more_us, 0)]
    found = live(tmp_path, logs, judged=True)
    assert [entry.rank for entry in found.late if entry.kind == "timers"] == late
    assert [entry.excess_ns for entry in found.late] == [more_us * 1_000] * len(late)


@pytest.mark.parametrize(("fewer", "behind"), [(16, []), (17, [17])])
def test_a_rank_is_behind_when_it_lacks_more_than_it_may_not_have_written(tmp_path, fewer, behind):
    found = live(tmp_path, [Log().steps(100, STEP_US), Log().steps(100 - fewer, STEP_US)])
    assert [(entry.rank, entry.kind, entry.steps) for entry in found.late] == [(1, "behind", n) for n in behind]


@pytest.mark.parametrize("state", ["ended", "killed"])
def test_a_rank_that_is_gone_while_others_go_on_is_told(tmp_path, state):
    logs = [Log().steps(100, STEP_US), Log().steps(40, STEP_US)]
    found = live(tmp_path, logs, {1: state})
    assert [(entry.rank, entry.kind, entry.steps) for entry in found.late] == [(1, state, 40)]
    assert not found.is_over


def test_it_is_over_when_no_rank_goes_on(tmp_path):
    found = live(tmp_path, [Log().steps(40, STEP_US)] * 2, {0: "ended", 1: "killed"}, now_s=100.0)
    assert found.is_over
    assert found.quiet_ns is None
    assert found.running_ns == 4 * S


def test_an_evaluation_that_fills_the_latest_records_hides_no_step(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "LATEST_EVENTS", 10)
    log = Log().steps(40, STEP_US)
    for number in range(90):
        log.record(EventKind.WAIT, log.at + number, 1, flags=EventFlag.OTHER_LOADER)
    found = live(tmp_path, [log])
    assert (found.steps, found.recent.median_ns) == (40, 100 * MS)
