"""Loops of a host and a device that is one queue, as their records tell of them."""

import numpy as np
import pytest

from profilerkit.analysis.facts import Facts
from profilerkit.analysis.live import live_of
from profilerkit.analysis.rank_facts import rank_facts
from profilerkit.analysis.steps.log import read_log
from profilerkit.analysis.steps.wall_clock import account, pauses, rank_ledger
from profilerkit.api import analyze
from profilerkit.rundir.follow import FollowedRun
from profilerkit.rundir.layout import EventFlag, EventKind, Feature, RankEnd
from profilerkit.rundir.reader import read_run
from profilerkit.rundir.sampled import GpuSample, Sample
from tests.recipes import MS, Log, rank_meta, rank_record, training, write_run

STEPS = 200
#: Steps whose launches the queue holds.
DEPTH = 17


def loop(host=2, device=20, wait=0, item_every=0, sync=False, phase=None, marks_every=1, steps=STEPS):
    """``steps`` steps of a loop, times in ms; ``phase`` is (name, every so many steps, ms), with the queue drained."""
    log, now, free, last, pending, ends = Log(), 1_000.0, 0.0, None, [], [0.0] * DEPTH
    for number in range(steps):
        start = now
        if wait:
            log.record(EventKind.WAIT, now * 1e3, wait * 1e3, -1)
        now = max(now + wait, ends[-DEPTH]) + host  # the host blocks while the queue is full
        free = max(free, now - host) + device
        ends.append(free)
        began = now
        if sync or (item_every and number % item_every == item_every - 1):
            now = max(now, free)
            if sync:
                log.record(EventKind.SYNC, began * 1e3, (now - began) * 1e3, name=log.name("synchronize"))
        if phase and number % phase[1] == phase[1] - 1:
            now = max(now, free) + phase[2]
            log.record(EventKind.PHASE, began * 1e3, (now - began) * 1e3, name=log.name(phase[0]))
        log.record(EventKind.STEP, start * 1e3, (now - start) * 1e3, number)
        if number % marks_every == marks_every - 1:
            while pending and pending[0][1] <= now:
                of, done, flags, began = pending.pop(0)
                if last is not None:
                    log.record(EventKind.DEVICE, began * 1e3, (done - last) * 1e3, of, flags=flags, name=marks_every)
                last = done
            pending.append((number, max(free, now), 0 if pending else EventFlag.CAUGHT_UP, start))
    return log


def facts_of(tmp_path, log, utilization=None):
    samples = [
        Sample(t_ns=second * 5 * 10**8 + 2 * 10**9, gpu=GpuSample(utilization_ratio=utilization))
        for second in range(1, 9)
    ]
    run = write_run(tmp_path / "run", [log], device_name="H100", samples=samples if utilization else ())
    return rank_facts("rank_00000", None, read_run(run).ranks[0])


def shares(facts):
    return {part.part: pytest.approx(part.share, abs=0.01) for part in facts.parts if part.share >= 0.005}


def median_ms(facts):
    return facts.steps.time_ns.median / MS


@pytest.mark.parametrize(
    "settings", [{"item_every": 10}, {"item_every": 50}, {}, {"wait": 15}, {"host": 0.06, "item_every": 20}]
)
def test_a_host_that_runs_ahead_costs_nothing_and_the_step_is_the_devices(tmp_path, settings):
    facts = facts_of(tmp_path, loop(**settings))
    assert median_ms(facts) == pytest.approx(20, rel=0.01)
    assert shares(facts) == {"compute.unsplit": 1.0}
    assert facts.steps.ahead_ns > 20 * MS
    assert facts.stalls == ()


@pytest.mark.parametrize(
    ("memory", "bound"), [(0.97, "memory-bound"), (0.49, "compute-bound"), (None, "compute-bound")]
)
def test_without_a_trace_samples_tell_what_the_device_works_at(tmp_path, memory, bound):
    samples = [
        Sample(
            t_ns=second * 5 * 10**8 + 2 * 10**9,
            gpu=GpuSample(utilization_ratio=0.98, memory_utilization_ratio=memory),
        )
        for second in range(1, 9)
    ]
    run = write_run(tmp_path / "run", [loop(item_every=10)], device_name="H200", samples=samples)
    assert analyze(run).verdict.bound == bound


def test_records_that_span_several_steps_tell_the_same(tmp_path):
    facts = facts_of(tmp_path, loop(item_every=10, marks_every=5))
    assert median_ms(facts) == pytest.approx(20, rel=0.01)
    assert shares(facts) == {"compute.unsplit": 1.0}


@pytest.mark.parametrize("marks_every", [1, 2, 8])
def test_a_pause_keeps_its_step_where_records_span_several(tmp_path, marks_every):
    log = loop(item_every=10, phase=("checkpoint", 40, 400), marks_every=marks_every)
    facts = facts_of(tmp_path, log)
    assert shares(facts)["other.ckpt"] == pytest.approx(0.29, abs=0.02)
    assert median_ms(facts) == pytest.approx(20, rel=0.02)
    assert [stall.kind for stall in facts.stalls] == ["checkpoint"]


def test_steps_that_the_device_had_not_ended_are_not_judged():
    log = loop()
    found = read_log(log.data, log.names)
    told = found.device.time >= 0
    assert not told[-1]
    assert [state == "cut" for state in found.state[1:]] == (~told[1:]).tolist()


def test_a_device_without_records_leaves_the_steps_to_the_host():
    log = Log().steps(10, 2_000)
    found = read_log(log.data, log.names)
    assert found.device is None
    assert found.time.tolist() == found.room.tolist() == (found.stop - found.start).tolist()


def beginning(tmp_path, steps):
    """The first steps of a run that goes on, or was killed, with its device's clock on; 17 are queued at most."""
    features = {"device_clock": Feature(on=True)}
    write_run(tmp_path / "run", [loop(steps=steps)], ended=False, device_name="H100", features=features)
    record = FollowedRun(tmp_path / "run").look()
    return analyze(tmp_path / "run"), live_of(record, {0: "running"}, None, rank_meta().anchor_unix_ns)


def test_a_run_that_is_killed_in_its_first_steps_is_told_its_devices_time(tmp_path):
    report, live = beginning(tmp_path, 24)
    assert (report.steps.count, report.steps.steady) == (24, 6)
    assert report.steps.time_ns.median == live.recent.median_ns == pytest.approx(20 * MS, rel=0.01)
    assert live.recent.rate_per_s == pytest.approx(50, rel=0.01)
    assert report.steps.dropped["cut"] == 17


def test_where_the_device_has_ended_no_step_none_is_told(tmp_path):
    report, live = beginning(tmp_path, 17)
    assert (report.steps.count, report.steps.time_ns, report.breakdown) == (17, None, ())
    assert report.verdict.bound == "inconclusive"
    assert "the device had finished none" in report.verdict.headline
    assert (live.steps, live.recent, live.ranks[0].wait_ns) == (17, None, None)
    assert sum(entry.time_ns for entry in report.ledger.entries) == report.ledger.wall_ns


def test_where_the_device_has_ended_no_step_a_trace_tells_its_own(tmp_path):
    features = {"device_clock": Feature(on=True)}
    run = write_run(tmp_path / "run", [loop(steps=17)], traces={0: training(8)}, device_name="H100", features=features)
    report = analyze(run)
    assert (report.steps.count, report.steps.found_by, report.verdict.bound) == (8, "ProfilerStep", "compute-bound")


def test_slow_steps_of_the_device_are_warm_up_though_its_host_was_quick():
    log = loop(device=20)
    devices = [row for row, record in enumerate(log.records) if record[0] == EventKind.DEVICE][:4]
    for row in devices:
        log.records[row] = (*log.records[row][:4], 300 * MS, log.records[row][5])
    assert read_log(log.data, log.names).state[:6] == ("warmup",) * 5 + ("steady",)


def test_a_wait_after_each_drain_costs_what_the_device_stood_still(tmp_path):
    facts = facts_of(tmp_path, loop(wait=15, item_every=10))  # 15 of 215 ms
    assert shares(facts) == {"compute.unsplit": 0.93, "input.wait": 0.07}


def test_a_wait_of_a_device_that_is_busy_meanwhile_costs_the_rest_of_the_step(tmp_path):
    facts = facts_of(tmp_path, loop(wait=30), utilization=0.625)
    assert shares(facts) == {"compute.unsplit": 0.625, "input.wait": 0.375}
    assert [part.source for part in facts.parts] == ["derived", "estimated"]


def test_a_device_that_nothing_measured_is_not_called_idle(tmp_path):
    """The loop reads a value in each step, so that its device has always caught up, and no sample was taken."""
    log = loop(item_every=1)
    log.record(EventKind.SYNC, 3_200_000, 100, name=log.name("synchronize"))
    report = analyze(write_run(tmp_path / "run", [log], device_name="H100"))
    assert report.verdict.bound == "inconclusive"
    assert "idle" not in report.verdict.headline


def test_a_drained_queue_is_no_part_of_a_checkpoint(tmp_path):
    facts = facts_of(tmp_path, loop(item_every=10, phase=("checkpoint", 40, 400)))
    assert shares(facts) == {"compute.unsplit": 0.71, "other.ckpt": 0.29}
    (stall,) = facts.stalls
    assert (stall.kind, stall.period) == ("checkpoint", 40)
    assert stall.excess_ns == pytest.approx(400 * MS, rel=0.01)


def test_waiting_for_the_device_is_the_devices_work(tmp_path):
    assert shares(facts_of(tmp_path, loop(sync=True)))["compute.unsplit"] == pytest.approx(0.9, abs=0.02)


def test_what_lies_between_two_steps_is_added_to_the_one_before():
    log = Log().steps(6, 1_000)
    for number in range(1, 6):
        log.record(EventKind.DEVICE, number * 1_000, 900, number, name=1)
        log.record(EventKind.DEVICE, number * 1_000, 100, number)
    assert read_log(log.data, log.names).time[1:].tolist() == [1 * MS] * 4 + [900_000]


def drifting(ratio):
    """Lags in ms, over 2,000 steps of which 16 are queued for 320 ms, where the device's clock is the quicker one."""
    log = loop(steps=2_000)
    log.records = [
        (*record[:4], round(record[4] * (1 + ratio)), record[5]) if record[0] == EventKind.DEVICE else record
        for record in log.records
    ]
    device = read_log(log.data, log.names).device
    return device.lag[device.lag >= 0] / MS


def test_a_lag_is_told_across_clocks_that_drift():
    """By 4 ms in all, and by 0.4 ms where it counts."""
    assert np.quantile(drifting(1e-4), 0.99) < 323


def test_a_host_that_never_waits_stays_as_far_ahead():
    assert drifting(0)[20:].min() > 315


def test_the_rank_whose_device_alone_has_nothing_queued_is_late(tmp_path):
    """All devices end a step each 20 ms; the host of rank 1 issues it late, the others run ahead."""
    logs = [loop(), loop(host=12, device=8, item_every=1), loop()]
    run = write_run(tmp_path / "run", logs, device_name="H100", world_size=3)
    ranks = [rank_facts(f"rank_{record.rank:05}", None, record) for record in read_run(run).ranks]
    facts = Facts(ranks)
    assert (facts.rank.rank, facts.late_by_timers, facts.late_by_clock) == (1, True, True)
    assert Facts([ranks[0], ranks[2]]).late_by_clock is False


def test_a_wait_costs_what_the_devices_clock_says(tmp_path):
    """Of 30 ms the device works through 20: 10 of 32 ms are lost, whatever the host saw."""
    log = Log()
    for number in range(STEPS):
        log.step(32_000, wait=30_000)
        start = 32_000 * number
        log.record(EventKind.DEVICE, start, 10_000, number - 1, flags=EventFlag.STARVED)
        log.record(EventKind.DEVICE, start, 22_000, number, flags=EventFlag.CAUGHT_UP, name=1)
    facts = facts_of(tmp_path, log)
    assert median_ms(facts) == 32
    assert shares(facts) == {"input.wait": 0.31, "idle.unknown": 0.69}


def ledger_of(log, end_ms):
    """Entry to ms of a run that began with its first step."""
    end = RankEnd(reason="finished", exception=None, steps=200, dropped_records=0, end_perf_ns=round(end_ms * MS))
    meta = rank_meta(anchor_perf_ns=1_000 * MS, device_name="H100")
    rank = rank_facts("rank", None, rank_record(log, meta=meta, end=end))
    ledger = rank_ledger(rank.record, rank.log, rank.account)
    assert sum(entry.time_ns for entry in ledger.entries) == ledger.wall_ns
    return {entry.entry: pytest.approx(entry.time_ns / MS, abs=1) for entry in ledger.entries}


@pytest.mark.parametrize("marks_every", [1, 8])
def test_what_the_device_has_queued_as_the_host_ends_is_steps(marks_every):
    """200 steps of 20 ms, 16 of them queued as the host ends the last one; none is known ahead of the first mark."""
    found = ledger_of(loop(marks_every=marks_every), 1_000 + 200 * 20 + 5)
    assert found["step.device"].expected >= (200 - marks_every) * 20
    assert found["end"].expected <= marks_every * 18 + 5


def test_what_the_device_has_queued_as_its_process_dies_is_steps():
    assert "end" not in ledger_of(loop(), 1_000 + 195 * 20)


def test_a_pause_takes_as_long_in_the_ledger_as_the_device_stands_still():
    """Every 40 steps of 20 ms a checkpoint of 400 ms, behind the draining of a queue; the host waits every 10."""
    found = ledger_of(loop(item_every=10, phase=("checkpoint", 40, 400)), 1_000 + 200 * 20 + 5 * 400)
    assert found["checkpoint"] == 2_000
    assert found["step.device"].expected >= 3_700
    assert "end" not in found
    log = loop(item_every=10, phase=("checkpoint", 40, 400))
    record, steps = rank_record(log), read_log(log.data, log.names)
    (pause,) = pauses(record, steps, account(record, steps))
    assert pause.time_ns == pytest.approx(5 * 400 * MS, rel=0.01)


def test_a_host_that_keeps_the_device_waiting_has_the_ledger_of_its_own_clock():
    found = ledger_of(loop(sync=True), 1_000 + 200 * 20)
    assert found == {"step.sync": 3_600, "step.rest": 400}


def test_a_wait_that_the_device_works_through_costs_the_run_nothing():
    assert "step.input" not in ledger_of(loop(wait=15), 1_000 + 200 * 20)
    assert ledger_of(loop(wait=30), 1_000 + 200 * 32)["step.input"] == 6_000


def test_records_that_cannot_be_are_left_out():
    log = loop(item_every=10)
    log.records += [(int(EventKind.DEVICE), 0, 2**32 - 1, 0, 2**59, 2**62), (int(EventKind.DEVICE), 0, 5, 0, 1, -7)]
    found = read_log(log.data, log.names)
    assert np.median(found.time) == 20 * MS
