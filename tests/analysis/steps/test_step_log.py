import pytest

from profilerkit.analysis.rank_facts import rank_facts
from profilerkit.analysis.steps.log import read_log
from profilerkit.model.run import Loader
from profilerkit.rundir.layout import EVENT, EventFlag, EventKind
from profilerkit.rundir.reader import read_run
from tests.recipes import LOADER, MS, US, Log, host_training, training, write_run


def read(log):
    return read_log(log.data, log.names)


def rank_of(tmp_path, log, **run):
    return read_run(write_run(tmp_path / "run", [log], **run)).ranks[0]


def facts_of(tmp_path, log, trace=None, **run):
    return rank_facts("rank_00000", trace.facts() if trace else None, rank_of(tmp_path, log, **run))


def shares(facts):
    return {part.part: pytest.approx(part.share) for part in facts.parts}


def test_no_records_are_no_log():
    assert read_log(b"", {}) is None


def test_waits_without_a_step_are_no_log():
    log = Log()
    log.record(EventKind.WAIT, 0, 10)
    assert read(log) is None


def test_a_step_behind_which_records_are_lost_lasts_as_long_as_it_says():
    log = Log()
    for number, start in ((0, 0), (1, 100), (7, 900), (8, 1_000)):
        log.record(EventKind.STEP, start, 80, number)
    found = read(log)
    assert found.index.tolist() == [0, 1, 7, 8]
    assert (found.time // US).tolist() == [100, 80, 100, 80]


def test_a_step_lasts_to_the_next_steps_start_and_the_last_as_long_as_it_says():
    log = Log()
    for number, (start, length) in enumerate([(0, 80), (100, 80), (200, 70)]):
        log.record(EventKind.STEP, start, length, number)
    assert read(log).time.tolist() == [100 * US, 100 * US, 70 * US]


def test_records_may_arrive_in_any_order():
    log = Log().steps(6, 100, wait=30)
    forward = read(log)
    log.records.reverse()
    backward = read(log)
    assert backward.time.tolist() == forward.time.tolist()
    assert backward.wait.tolist() == forward.wait.tolist()


def test_the_first_step_is_warm_up():
    assert read(Log().steps(6, 100)).state == ("warmup", *["steady"] * 5)


def test_leading_slow_steps_are_warm_up():
    log = Log().steps(2, 400).steps(8, 100)
    assert read(log).state == ("warmup", "warmup", *["steady"] * 8)


def test_steps_under_a_deep_window_and_the_one_after_it_are_disturbed():
    log = Log().steps(10, 100)
    log.window(320, 580, first_step=3)
    assert read(log).state == (
        "warmup", "steady", "steady", "disturbed", "disturbed", "disturbed", "disturbed", "steady", "steady", "steady"
    )  # fmt: skip


def test_steps_that_a_recorder_put_in_are_not_judged():
    log = Log().steps(10, 100)
    log.record(EventKind.INSERTED, 300, 400, 3)
    assert [row for row, state in enumerate(read(log).state) if state == "disturbed"] == [3, 4, 5, 6, 7]


def test_a_window_that_opens_slowly_is_no_warm_up():
    """Its opening is inside of a step of 40 ms, early in a loop of 100 µs."""
    log = Log().steps(5, 100)
    low = log.at + 10
    log.steps(1, 40_000).steps(3, 110)
    log.window(low, log.at - 10, first_step=6)
    log.steps(20, 100)
    assert read(log).state == ("warmup", *["steady"] * 4, *["disturbed"] * 5, *["steady"] * 19)


def test_a_window_that_ends_where_a_step_begins_leaves_only_the_next_one_disturbed():
    log = Log().steps(10, 100)
    log.window(300, 500, first_step=3)
    disturbed = [row for row, state in enumerate(read(log).state) if state == "disturbed"]
    assert disturbed == [3, 4, 5]


def test_disturbed_steps_are_judged_when_hardly_any_other_is_left():
    log = Log().steps(5, 100)
    log.window(120, 380, first_step=1)
    assert read(log).state == ("warmup", "steady", "steady", "steady", "steady")


def test_a_single_step_is_judged():
    assert read(Log().steps(1, 100)).state == ("steady",)


def test_a_wait_belongs_to_the_step_it_begins_in():
    log = Log().steps(4, 100)
    log.record(EventKind.WAIT, 190, 20)
    log.record(EventKind.WAIT, 200, 30)
    assert read(log).wait.tolist() == [0, 20 * US, 30 * US, 0]


def test_a_wait_before_the_first_step_belongs_to_none():
    log = Log(start=1_000).steps(4, 100)
    log.record(EventKind.WAIT, 100, 500)
    assert read(log).wait.tolist() == [0, 0, 0, 0]


def test_a_wait_is_never_longer_than_its_step():
    log = Log().steps(4, 100)
    log.record(EventKind.WAIT, 250, 400)
    assert read(log).wait.tolist() == [0, 0, 100 * US, 0]


@pytest.mark.parametrize("flag", [EventFlag.OTHER_THREAD, EventFlag.LAST])
def test_fetches_that_no_step_waits_for_do_not_count(flag):
    log = Log().steps(4, 100, wait=50, wait_flags=flag)
    found = read(log)
    assert found.wait.tolist() == [0, 0, 0, 0]
    assert (found.waits_seen, found.fetches) == (False, 0)


def test_the_first_fetch_of_an_epoch_counts_like_any_other():
    log = Log().steps(4, 100, wait=50, wait_flags=EventFlag.FIRST)
    assert read(log).wait.tolist() == [50 * US] * 4


def test_a_wait_without_cpu_time_makes_that_of_its_step_unknown():
    log = Log()
    log.step(100, wait=50, wait_cpu=40)
    log.step(100, wait=50)
    assert read(log).wait_cpu.tolist() == [40 * US, -1]


def test_the_queue_for_a_processor_is_known_where_every_wait_of_the_step_says_so():
    log = Log()
    log.step(100, wait=50, wait_cpu=40, wait_queue=10)
    log.step(100, wait=50, wait_cpu=40, wait_queue=0)
    log.step(100, wait=50, wait_cpu=40)
    assert read(log).wait_queue.tolist() == [10 * US, 0, -1]


@pytest.mark.parametrize(("queue", "part"), [(21, "input.prep"), (19, "input.wait"), (None, "input.fetch")])
def test_a_thread_that_queues_for_a_processor_is_not_blocked(tmp_path, queue, part):
    found = facts_of(tmp_path, Log().steps(10, 100, wait=50, wait_cpu=15, wait_queue=queue))
    assert shares(found)[part] == 0.5
    assert found.input.queue_ratio == (None if queue is None else pytest.approx(queue / 50))


def test_timers_hold_the_whole_time_in_the_loader(tmp_path):
    assert facts_of(tmp_path, Log().steps(10, 100, wait=30)).input.held_ratio == pytest.approx(0.3)


@pytest.mark.parametrize(
    ("cpu", "part"),
    [(35, "input.prep"), (34.9, "input.wait"), (25.1, "input.wait"), (25, "input.fetch"), (None, "input.wait")],
)
def test_cpu_time_tells_preparing_from_reading(tmp_path, cpu, part):
    found = facts_of(tmp_path, Log().steps(10, 100, wait=50, wait_cpu=cpu))
    assert shares(found)[part] == 0.5


def test_with_workers_the_waiting_threads_cpu_time_says_nothing(tmp_path):
    loader = Loader(kind="DataLoader", num_workers=4)
    found = facts_of(tmp_path, Log().steps(10, 100, wait=50, wait_cpu=45), loader=loader)
    assert shares(found)["input.wait"] == 0.5


def test_the_parts_of_a_log_sum_to_its_step(tmp_path):
    found = facts_of(tmp_path, Log().steps(10, 100, wait=30, phase=("logging", 5), collect=1))
    assert shares(found) == {"input.wait": 0.3, "other.log": 0.05, "over.gc": 0.01, "idle.unknown": 0.64}


@pytest.mark.parametrize(
    ("flags", "split"),
    [
        (0, {"input.wait": 0.4, "other.eval": 0.2}),  # its batch is trained on, whatever phase is open around it
        (EventFlag.IN_PHASE, {"other.eval": 0.6}),
        (EventFlag.OTHER_LOADER, {"other.eval": 0.6}),
    ],
)
def test_a_wait_inside_a_phase_is_counted_once_and_is_the_phases_unless_it_feeds_the_training(tmp_path, flags, split):
    log = Log()
    for _ in range(10):
        start = log.step(100)
        log.record(EventKind.PHASE, start + 20, 60, name=log.name("evaluation"))
        log.record(EventKind.WAIT, start + 30, 40, -1, flags=flags)
    found = facts_of(tmp_path, log)
    assert shares(found) == {**split, "idle.unknown": 0.4}
    assert (found.input is not None) is ("input.wait" in split)


@pytest.mark.parametrize(
    "inner",
    [
        [("wait", 5, 40)],
        [("load", 5, 40)],
        [("load", 5, 20), ("fetch", 7, 10), ("wait", 30, 15)],
        [("load", 8 * number, 7) for number in range(6)],
        [("load", 0, 50)],
    ],
)
@pytest.mark.parametrize("outer", ["wait", "data"])
def test_waits_and_phases_for_a_batch_inside_each_other_are_counted_once(tmp_path, outer, inner):
    log = Log()

    def record(name, start, length):
        if name == "wait":
            log.record(EventKind.WAIT, start, length, 10 * US)
        else:
            log.record(EventKind.PHASE, start, length, name=log.name(name))

    for _ in range(10):
        start = log.step(100)
        for name, at, length in inner:
            record(name, start + at, length)
        record(outer, start, 50)
    found = read(log)
    assert found.wait.tolist() == [50 * US] * 10
    assert found.wait_cpu.tolist() == [10 * US if outer == "wait" else -1] * 10
    assert found.fetches == 9
    assert shares(facts_of(tmp_path, log))["idle.unknown"] == 0.5


def test_what_the_timers_did_not_name_is_shared_out_as_the_trace_was_composed(tmp_path):
    trace = host_training(8, fetch=500, compute=450, python=150)  # beside the fetch: three quarters operators
    found = facts_of(tmp_path, Log().steps(20, 1_000, wait=400), trace=trace)
    assert found.mode == "cpu"
    assert shares(found) == {"input.wait": 0.4, "compute.math": 0.45, "over.python": 0.15}


def test_a_traced_window_does_not_explain_much_longer_steps(tmp_path):
    trace = host_training(8, fetch=500, compute=300, python=100)  # 400 µs beside the fetch; the timers saw 600
    found = facts_of(tmp_path, Log().steps(20, 1_000, wait=400), trace=trace)
    assert shares(found) == {"input.wait": 0.4, "compute.math": 0.375, "over.python": 0.125, "idle.unknown": 0.1}


def test_on_a_device_a_wait_that_its_work_hides_costs_nothing(tmp_path):
    trace = training(8, kernels=10, kernel=99)  # 990 µs of kernels and 10 of the host
    found = facts_of(tmp_path, Log().steps(20, 1_000, wait=400), trace=trace)
    assert shares(found) == {"compute.math": 0.99, "input.wait": 0.01}
    assert found.input.source == "derived"


def test_waits_of_steps_that_the_trace_did_not_see_count_in_every_step(tmp_path):
    log = Log()
    for number in range(40):
        log.step(3_000, wait=2_000) if number % 3 else log.step(1_000)
    found = facts_of(tmp_path, log, trace=training(8, kernels=10, kernel=99))
    assert found.share("input.wait") == pytest.approx(26 * 2_000 / (26 * 3_000 + 13 * 1_000))


def test_a_single_outlier_is_booked_on_nothing_that_the_trace_saw(tmp_path):
    log = Log().steps(100, 1_000)
    log.step(101_000)
    log.steps(99, 1_000)
    found = shares(facts_of(tmp_path, log, trace=host_training(8, compute=900, python=100)))
    assert found["idle.unknown"] == pytest.approx(100 / 299, rel=1e-3)
    assert found["over.python"] == pytest.approx(20 / 299, rel=1e-2)


def test_longer_steps_at_a_regular_distance_are_a_part_of_their_own(tmp_path):
    log = Log()
    for number in range(41):
        log.step(2_000 if number % 10 == 5 else 1_000)
    found = facts_of(tmp_path, log, trace=host_training(8, compute=1_000))
    (stall,) = found.stalls
    assert found.share("other.stall") == pytest.approx(stall.share)
    assert found.share("idle.unknown") == pytest.approx(0.0)


@pytest.mark.parametrize("outer", ["evaluation", "logging"])
def test_of_nested_phases_the_inner_one_owns_its_time(tmp_path, outer):
    log = Log()
    for _ in range(10):
        start = log.step(100)
        log.record(EventKind.PHASE, start + 20, 60, name=log.name(outer))
        log.record(EventKind.PHASE, start + 30, 20, name=log.name("checkpoint"))
        log.record(EventKind.GC, start + 35, 10, 2)
    parts = {part.part: part.share for part in facts_of(tmp_path, log).parts}
    assert parts["other.ckpt"] == pytest.approx(0.2)
    assert parts["idle.unknown"] == pytest.approx(0.4)
    assert sum(parts.values()) == pytest.approx(1.0)


def test_a_named_phase_that_recurs_is_a_stall_with_its_period():
    log = Log()
    for number in range(31):
        log.step(300 if number % 10 == 9 else 100, phase=("checkpoint", 200) if number % 10 == 9 else None)
    (stall,) = read(log).stalls
    assert (stall.kind, stall.part, stall.source) == ("checkpoint", "other.ckpt", "measured")
    assert (stall.count, stall.period, stall.excess_ns) == (3, 10, 200 * US)
    assert stall.steps == (9, 29)
    assert stall.share == pytest.approx(600 / (30 * 100 + 600))


def test_a_stall_is_told_in_the_steps_numbers_of_the_run():
    log = Log()
    log.count = 500  # the records of the first 500 steps are lost
    for number in range(31):
        log.step(300 if number % 10 == 9 else 100, phase=("checkpoint", 200) if number % 10 == 9 else None)
    (stall,) = read(log).stalls
    assert stall.steps == (509, 529)


def test_a_phase_of_every_step_is_priced_like_one_that_recurs():
    (stall,) = read(Log().steps(20, 100, phase=("logging", 20))).stalls
    assert (stall.kind, stall.count, stall.period, stall.excess_ns) == ("logging", 19, 1, 20 * US)
    assert stall.share == pytest.approx(0.2)


def test_irregular_stalls_have_no_period():
    log = Log()
    for number in range(40):
        log.step(300 if number in (5, 9, 31) else 100, phase=("my phase", 200) if number in (5, 9, 31) else None)
    (stall,) = read(log).stalls
    assert (stall.kind, stall.part, stall.count, stall.period) == ("my phase", "other.phase", 3, None)


def test_longer_steps_at_a_regular_distance_are_an_unnamed_stall():
    log = Log()
    for number in range(41):
        log.step(250 if number % 10 == 5 else 100)
    (stall,) = read(log).stalls
    assert (stall.kind, stall.part, stall.source) == ("unnamed", None, "derived")
    assert (stall.count, stall.period, stall.excess_ns) == (4, 10, 150 * US)
    assert stall.steps == (5, 35)


def test_longer_steps_that_the_wait_explains_are_no_unnamed_stall():
    log = Log()
    for number in range(41):
        log.step(250, wait=150) if number % 10 == 5 else log.step(100)
    assert read(log).stalls == ()


@pytest.mark.parametrize(("length", "found"), [(105, 1), (104, 0)])
def test_a_stall_is_told_from_a_twentieth_of_the_usual_step(length, found):
    log = Log()
    for number in range(41):
        log.step(length if number % 10 == 5 else 100)
    assert len(read(log).stalls) == found


@pytest.mark.parametrize(("length", "found"), [(151, 1), (150, 0)])
def test_of_few_long_steps_at_nearly_regular_distances_only_those_above_one_and_a_half_usual_ones_recur(length, found):
    log = Log()
    for number in range(36):
        log.step(length if number in (9, 18, 28) else 100)
    assert len(read(log).stalls) == found


def test_two_long_steps_are_an_accident():
    log = Log()
    for number in range(41):
        log.step(250 if number in (10, 20) else 100)
    assert read(log).stalls == ()


def test_long_steps_at_irregular_distances_are_no_period():
    log = Log()
    for number in range(41):
        log.step(250 if number in (7, 10, 31) else 100)
    assert read(log).stalls == ()


def test_torn_bytes_at_the_end_cost_the_torn_record(tmp_path):
    log = Log().steps(6, 100)
    run = write_run(tmp_path / "run", [log])
    events = run / "rank_00000" / "events.bin"
    events.write_bytes(events.read_bytes() + EVENT.pack(1, 0, 0, 600 * US, 100 * US, 6)[:-1])
    assert read_log(read_run(run).ranks[0].events, {}).index.tolist() == [0, 1, 2, 3, 4, 5]


def test_steps_seen_by_hooks_are_inferred():
    assert read(Log().steps(3, 100, flags=EventFlag.INFERRED)).inferred
    assert not read(Log().steps(3, 100)).inferred


def test_the_profilers_own_slowdown_is_measured_and_taken_out_of_the_host_parts(tmp_path):
    log = Log().steps(20, 1_000)
    log.window(3_100, 4_900, first_step=3)
    trace = training(8, kernels=10, kernel=100, python=990)  # 2,000 µs a step under the profiler, 1,000 without
    found = facts_of(tmp_path, log, trace=trace)
    assert found.inflation_ratio == pytest.approx(2.0)
    parts = {part.part: part.time_ns for part in found.parts}
    # The kernels fill an unprofiled step: the device never waits for the host without the profiler.
    assert parts == {"compute.math": 1 * MS}


@pytest.mark.parametrize(("step", "python"), [(1_010, 0), (1_100, 45), (1_190, 90)])
def test_the_host_is_given_what_the_kernels_leave_of_an_unprofiled_step(tmp_path, step, python):
    log = Log().steps(20, step)
    log.window(3 * step, 5 * step, first_step=3)
    trace = training(8, kernel=100, python=180)  # 1,000 µs of kernels; 180 of Python and 10 of the host beside them
    found = {part.part: part.time_ns for part in facts_of(tmp_path, log, trace=trace).parts}
    assert found["compute.math"] == 1 * MS
    assert found["over.python"] == pytest.approx(180 / 190 * (step - 1_000) * US, abs=1)
    assert sum(found.values()) == pytest.approx(step * US, abs=3)


def test_without_a_deep_window_there_is_no_inflation_to_measure(tmp_path):
    assert facts_of(tmp_path, Log().steps(20, 1_000), trace=training(8)).inflation_ratio is None


def test_the_wait_is_described_by_the_loader_that_caused_it(tmp_path):
    found = facts_of(tmp_path, Log().steps(10, 100, wait=50, wait_cpu=20), loader=LOADER).input
    assert (found.cpu_ratio, found.single_process) == (pytest.approx(0.4), True)
    assert (found.source, found.origin, found.fetches) == ("measured", "step timers", 9)
