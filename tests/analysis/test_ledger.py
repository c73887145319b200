"""The wall clock of a whole run: every nanosecond of it in exactly one entry, by hand-made logs with a known truth."""

from time import perf_counter

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profilerkit.analysis.intervals import paint
from profilerkit.analysis.rank_facts import rank_facts
from profilerkit.analysis.steps import wall_clock
from profilerkit.analysis.steps.log import read_log
from profilerkit.analysis.steps.wall_clock import account, rank_ledger
from profilerkit.api import analyze
from profilerkit.model.ledger import ENTRIES
from profilerkit.rundir.files import sound_events
from profilerkit.rundir.layout import EventFlag, EventKind, RankEnd, WindowStatus
from profilerkit.rundir.sampled import StartUp
from tests.recipes import MS, US, Log, host_training, rank_meta, rank_record, write_run

START = 1_000_000  # µs on the log's clock at which recordings begin
FIRST, LAST, OTHER = EventFlag.FIRST, EventFlag.LAST, EventFlag.OTHER_LOADER


class Run(Log):
    """A log with the records of a training step inside each step; times are µs."""

    def __init__(self, start=START):
        super().__init__(start)
        self.began = start

    def train(self, *, wait=1_000, forward=3_000, backward=4_000, optimizer=1_000, rest=1_000, flags=0):
        start = self.at
        if wait:
            self.record(EventKind.WAIT, start, wait, -1, flags=flags)
        at = start + wait + forward
        self.record(EventKind.BACKWARD, at, backward)
        self.record(EventKind.OPTIMIZER, at + backward, optimizer)
        self.step(wait + forward + backward + optimizer + rest)
        return self

    def trains(self, count, **parts):
        for _ in range(count):
            self.train(**parts)
        return self

    def pause(self, length, kind=None, *, flags=0, name=""):
        """Time between the steps, in a record of the kind if one is given."""
        if kind is not None:
            self.record(kind, self.at, length, flags=flags, name=self.name(name) if name else 0)
        self.at += length
        return self


def record_of(log, *, began=START, process=None, end=None, ended=True, windows=(), start_up=None, **changes):
    started = None if process is None else process * US
    meta = rank_meta(anchor_perf_ns=began * US, process_start_perf_ns=started, start_up=start_up)
    finished = RankEnd(
        **{
            "reason": "finished",
            "exception": None,
            "steps": log.count,
            "dropped_records": 0,
            "end_perf_ns": (log.at if end is None else end) * US,
            **changes,
        }
    )
    return rank_record(log, meta=meta, events=sound_events(log.data), windows=windows, end=finished if ended else None)


def ledger_of(log, **fields):
    found = rank_facts("rank", None, record_of(log, **fields))
    return rank_ledger(found.record, found.log, found.account)


def times(ledger):
    """Entry to µs."""
    return {entry.entry: entry.time_ns / US for entry in ledger.entries}


def sources(ledger):
    return {entry.entry: entry.source for entry in ledger.entries}


def test_a_step_is_divided_into_what_was_recorded_of_it():
    ledger = ledger_of(Run().trains(10))
    assert times(ledger) == {
        "step.input": 10_000,
        "step.forward": 30_000,
        "step.backward": 40_000,
        "step.optimizer": 10_000,
        "step.rest": 10_000,
    }
    assert sources(ledger)["step.forward"] == "derived"
    assert sources(ledger)["step.backward"] == "measured"
    assert (ledger.wall_ns, ledger.unexplained_ns, ledger.steps) == (100 * MS, 0, 10)


def test_the_wall_clock_begins_with_the_process_where_that_is_known():
    log = Run().pause(7_000).trains(10)
    known, unknown = ledger_of(log, process=START - 500_000), ledger_of(log)
    assert times(known)["start.before"] == 500_000
    assert times(known)["start.inside"] == times(unknown)["start.inside"] == 7_000
    assert known.wall_ns == 607 * MS
    assert known.from_process_start
    assert not unknown.from_process_start
    assert "start.before" not in times(unknown)


def test_start_up_is_divided_into_what_was_seen_of_it():
    """Python 10 ms, imports 200 ms and 30 ms that ours interrupt for 20, a model, CUDA 50 ms in it, the data set."""
    base = START * US - 1_000 * MS
    found = StartUp(
        python_end_ns=base + 10 * MS,
        imports=(
            (base + 10 * MS, base + 210 * MS),
            (base + 400 * MS, base + 430 * MS),
            (START * US + 1, START * US + 9),
        ),
        packages={"torch": 150 * MS, "numpy": 20 * MS},
        own=(base + 210 * MS, base + 230 * MS),
        model=(base + 230 * MS, base + 500 * MS),
        device=(base + 440 * MS, base + 490 * MS),
        loader_ns=base + 900 * MS,
    )
    ledger = ledger_of(Run().trains(10), process=START - 1_000_000, start_up=found)
    assert {name: spent / 1_000 for name, spent in times(ledger).items() if name.startswith(("start", "prof"))} == {
        "start.python": 10,
        "start.import": 230,
        "profiler.start": 20,
        "start.device": 50,
        "start.model": 190,
        "start.data": 400,
        "start.before": 100,
    }
    assert next(entry.largest for entry in ledger.entries if entry.largest) == tuple(found.packages.items())


@pytest.mark.parametrize("loader_ns", [0, 1 << 62])
def test_a_damaged_start_up_books_no_more_than_there_was(loader_ns):
    """Instants that lie anywhere, ends before starts."""
    found = StartUp(python_end_ns=1 << 62, imports=((9, 3), (0, 1 << 62), (5, 7)), model=(7, 1), loader_ns=loader_ns)
    ledger = ledger_of(Run().trains(10), process=START - 500_000, start_up=found)
    assert sum(times(ledger).values()) == ledger.wall_ns / US
    assert times(ledger)["start.import"] == 500_000


def test_the_first_steps_count_as_steps_as_far_as_a_steady_one_would_take():
    log = Run()
    log.record(EventKind.COMPILE, log.at + 1_000, 50_000)
    log.train(forward=63_000).train(backward=24_000).trains(20)
    found = times(ledger_of(log))
    assert found["warm.compile"] == 50_000
    assert found["warm.steps"] == 10_000 + 20_000
    assert found["step.forward"] == 22 * 3_000
    assert found["step.backward"] == 22 * 4_000


def test_a_recompilation_later_is_compiling_too():
    log = Run().trains(20)
    log.record(EventKind.COMPILE, log.at + 2_000, 30_000)
    log.train(forward=33_000).trains(5)
    assert times(ledger_of(log))["warm.compile"] == 30_000
    assert "warm.steps" not in times(ledger_of(log))


def test_a_wait_for_the_first_batch_of_an_epoch_is_apart_from_the_waits_of_steps():
    log = Run()
    for _ in range(3):
        log.train(wait=40_000, flags=FIRST).trains(9).pause(5_000, EventKind.WAIT, flags=LAST)
    found = times(ledger_of(log))
    assert (found["start.batch"], found["between.epoch"]) == (40_000, 3 * 45_000 - 40_000)
    assert found["step.input"] == 27 * 1_000
    assert "unexplained" not in found


def test_what_is_recorded_inside_something_else_belongs_to_the_inner_one():
    log = Run().trains(5)
    at = log.at
    log.record(EventKind.GC, at + 4_500, 500, 2)  # in the backward pass
    log.record(EventKind.SYNC, at + 1_000, 200, name=1)  # in what leads up to it
    log.record(EventKind.COLLECTIVE, at + 7_000, 300, name=1)  # in the backward pass
    log.record(EventKind.COPY, at + 1_500, 100, name=1)
    log.trains(5)
    found = times(ledger_of(log))
    assert (found["step.gc"], found["step.sync"], found["step.comm"], found["step.copy"]) == (500, 200, 300, 100)
    assert found["step.backward"] == 40_000 - 800
    assert found["step.forward"] == 30_000 - 300


def test_evaluation_owns_all_that_happens_in_it_but_a_checkpoint():
    log = Run().trains(10)
    at = log.at
    log.record(EventKind.SAVE, at + 15_000, 5_000, name=1)
    log.record(EventKind.SYNC, at + 2_000, 1_000, name=1)
    log.record(EventKind.GC, at + 4_000, 1_000, 2)
    log.pause(20_000, EventKind.PHASE, name="evaluation").trains(10)
    ledger = ledger_of(log)
    found = times(ledger)
    assert (found["evaluation"], found["checkpoint"]) == (15_000, 5_000)
    assert "step.sync" not in found
    assert {entry.entry: entry.count for entry in ledger.entries if entry.count} == {"evaluation": 1, "checkpoint": 1}
    assert sources(ledger)["evaluation"] == "measured"


def test_phases_between_and_inside_steps_are_told_by_their_names():
    log = Run().trains(10).pause(3_000, EventKind.PHASE, name="logging").pause(2_000, EventKind.PHASE, name="my own")
    log.record(EventKind.PHASE, log.at + 9_000, 6_000, name=log.name("save checkpoint"))
    log.train(rest=7_000).trains(10)
    found = times(ledger_of(log))
    assert (found["logging"], found["phases"], found["checkpoint"]) == (3_000, 2_000, 6_000)
    assert found["step.rest"] == 21_000


def test_a_phase_named_for_getting_a_batch_is_waiting_for_data():
    log = Run()
    for _ in range(10):
        log.record(EventKind.PHASE, log.at, 2_000, name=log.name("get_batch"))
        log.train(wait=0, forward=5_000)
    ledger = ledger_of(log)
    assert times(ledger)["step.input"] == 20_000
    assert ledger.loader_seen


def test_without_a_fetch_getting_the_batch_is_not_told_from_forward():
    ledger = ledger_of(Run().trains(10, wait=0))
    assert times(ledger)["step.unfed"] == 30_000
    assert "step.input" not in times(ledger)
    assert not ledger.loader_seen


def passes(log, count, *, flags=0, first=FIRST, last=LAST, work=1_000):
    """Fetches of another loader: 500 µs each, with work behind them."""
    for number in range(count):
        log.pause(500, EventKind.WAIT, flags=flags | (first if not number else 0)).pause(work)
    if last:
        log.pause(500, EventKind.WAIT, flags=flags | last)
    return log


@pytest.mark.parametrize("flags", [0, OTHER], ids=["no loader is wrapped", "another loader than the wrapped one"])
def test_a_pass_over_data_without_a_backward_pass_is_evaluation(flags):
    log = passes(Run().trains(10), 4, flags=flags).trains(10)
    ledger = ledger_of(log)
    assert times(ledger)["evaluation"] == 4 * 1_500 + 500
    assert sources(ledger)["evaluation"] == "inferred"
    assert ledger.unexplained_ns == 0
    assert next(entry.count for entry in ledger.entries if entry.entry == "evaluation") == 1


def test_a_pass_between_epochs_or_at_the_end_is_evaluation():
    log = Run().train(wait=2_000, flags=FIRST).trains(9).pause(300, EventKind.WAIT, flags=LAST)
    passes(log, 3).train(wait=2_000, flags=FIRST).trains(9).pause(300, EventKind.WAIT, flags=LAST)
    found = times(ledger_of(passes(log, 3)))
    assert found["evaluation"] == 2 * 5_000
    assert (found["start.batch"], found["between.epoch"]) == (2_000, 2 * 2_300 - 2_000)


def test_a_pass_that_is_broken_off_before_the_epoch_is_evaluation():
    log = passes(Run(), 2, last=0).train(wait=2_000, flags=FIRST).trains(9)
    found = times(ledger_of(log))
    assert found["evaluation"] == 2_000
    assert found["start.inside"] == 1_000
    assert found["start.batch"] == 2_000


@pytest.mark.parametrize("more", [10, 0], ids=["amid", "at the end"])
def test_a_pass_whose_end_is_never_fetched_is_evaluation(more):
    # Where training goes on, the last fetch before the backward pass feeds it.
    assert times(ledger_of(passes(Run().trains(10), 4, last=0).trains(more)))["evaluation"] == 3 * 1_500 + 500


def test_a_prefetched_batch_at_the_start_of_an_epoch_is_no_evaluation():
    log = Run().trains(10)
    log.pause(500, EventKind.WAIT, flags=FIRST).trains(10).pause(500, EventKind.WAIT, flags=FIRST).trains(10)
    assert "evaluation" not in times(ledger_of(log))


def test_micro_batches_that_are_fetched_ahead_are_no_evaluation():
    log = Run()
    for _ in range(6):
        passes(log, 3, work=0)
        log.train(wait=0)
    assert "evaluation" not in times(ledger_of(log))


def test_two_loaders_side_by_side_are_no_evaluation():
    log = Run().pause(900, EventKind.WAIT, flags=FIRST).train(flags=FIRST)
    for _ in range(9):
        log.pause(900, EventKind.WAIT).train()
    assert "evaluation" not in times(ledger_of(log))


def test_a_loop_that_never_trains_has_no_evaluation():
    log = Run()
    for _ in range(5):
        log.record(EventKind.WAIT, log.at, 500, flags=FIRST)
        log.record(EventKind.WAIT, log.at + 9_500, 500, flags=LAST)
        log.step(10_000)
    assert "evaluation" not in times(ledger_of(log))


def test_an_evaluation_phase_that_was_killed_is_evaluation_by_its_fetches():
    log = passes(Run().trains(10), 4, flags=EventFlag.IN_PHASE, last=0)
    ledger = ledger_of(log, ended=False)
    assert times(ledger)["evaluation"] == 4 * 1_500 - 1_000
    assert ledger.to_last_record
    assert "end" not in times(ledger)


def test_what_no_record_explains_is_a_number():
    ledger = ledger_of(Run().trains(10).pause(33_000).trains(10))
    assert times(ledger)["unexplained"] == 33_000
    assert ledger.unexplained_ns == 33 * MS


def test_training_that_no_step_counts_is_neither_unexplained_nor_a_step():
    log = Run().trains(10)
    log.record(EventKind.BACKWARD, log.at + 1_000, 4_000)
    log.pause(10_000).trains(10)
    found = times(ledger_of(log))
    assert (found["between.uncounted"], found["unexplained"]) == (4_000, 6_000)


def test_what_follows_the_last_step_is_tear_down_unless_records_may_be_missing():
    log = Run().trains(10)
    end = log.at + 8_000
    assert times(ledger_of(log, end=end))["end"] == 8_000
    assert times(ledger_of(log, end=end, switched_off_because="a failure"))["unexplained"] == 8_000
    assert times(ledger_of(log, end=end, dropped_records=3))["unexplained"] == 8_000


def test_a_run_without_a_step_is_start_up_and_what_was_recorded():
    log = Run().pause(5_000).pause(2_000, EventKind.PHASE, name="checkpoint")
    ledger = ledger_of(log, process=START - 1_000, end=log.at + 1_000)
    assert times(ledger) == {"start.before": 1_000, "start.inside": 6_000, "checkpoint": 2_000}
    assert ledger.steps == 0


def test_a_profiler_window_costs_what_its_steps_take_longer_and_its_export():
    log = Run().trains(20)
    low = log.at
    log.trains(4, forward=8_000)
    stop = log.at
    log.record(EventKind.WINDOW, low, stop + 30_000 - low, log.count - 4)
    log.train(wait=1_000, forward=33_000).trains(20)
    status = WindowStatus(first_step=20, last_step=23, ok=True, end_perf_ns=stop * US)
    exact = ledger_of(log, windows=((status, None),))
    found = times(exact)
    assert found["profiler"] == 4 * 5_000 + 30_000
    assert sum(value for name, value in found.items() if name.startswith("step.")) == 45 * 10_000
    # Without the word of when the window stopped its export is in what the step took longer.
    assert times(ledger_of(log))["profiler"] == found["profiler"]
    assert next(entry.count for entry in exact.entries if entry.entry == "profiler") == 1


def test_records_of_other_threads_are_not_the_training_threads_time():
    log = Run().trains(10)
    at = log.at
    for kind in (EventKind.WAIT, EventKind.SAVE, EventKind.COMPILE, EventKind.GC, EventKind.PHASE):
        log.record(kind, at - 15_000, 40_000, flags=EventFlag.OTHER_THREAD, name=log.name("checkpoint"))
    log.pause(10_000).trains(10)
    found = times(ledger_of(log))
    assert found["unexplained"] == 10_000
    assert "checkpoint" not in found


def test_a_rank_without_records_has_no_ledger():
    assert rank_ledger(record_of(Log()), None, account(record_of(Log()), None)) is None


def test_damaged_records_cost_themselves_only():
    log = Run().trains(10)
    log.records += [(EventKind.STEP, 0, 0, -(1 << 62), 1 << 61, 0), (EventKind.WAIT, 0, 0, START * US, -5, 0)]
    assert ledger_of(log).wall_ns == 100 * MS


def test_every_rank_of_a_run_has_its_wall_clock_by_stage(tmp_path):
    logs = [Run(0).trains(20), Run(0).trains(10).pause(70_000, EventKind.PHASE, name="evaluation").trains(10)]
    report = analyze(write_run(tmp_path / "run", logs))
    assert [(rank.rank, rank.wall_ns // MS, rank.stages) for rank in report.ledger.ranks] == [
        (0, 200, {"steps": 200 * MS}),
        (1, 270, {"steps": 200 * MS, "evaluation": 70 * MS}),
    ]
    assert report.ledger.rank == report.ranks[[rank.rank for rank in report.ranks].index(report.ledger.rank)].rank
    told = analyze(tmp_path / "run", rank=1)
    assert told.ledger.rank == 1
    assert len(told.ledger.ranks) == 2


def test_a_trace_alone_has_no_ledger(tmp_path):
    assert analyze(host_training(6).write(tmp_path / "trace.json")).ledger is None


def test_an_older_recording_without_the_processs_start_is_read(tmp_path):
    run = write_run(tmp_path / "run", [Run(0).trains(10)])
    meta = run / "rank_00000" / "meta.json"
    fields = msgspec.json.decode(meta.read_bytes())
    del fields["process_start_perf_ns"]
    meta.write_bytes(msgspec.json.encode(fields))
    assert analyze(run).ledger.wall_ns == 100 * MS


INSTANT = st.integers(0, 3_000)
KINDS = st.sampled_from([int(kind) for kind in EventKind])
RECORDS = st.lists(
    st.tuples(KINDS, st.integers(0, 63), st.integers(0, 4), INSTANT, st.integers(0, 900), st.integers(-1, 5)),
    min_size=1,
    max_size=60,
)
PHASES = {1: "evaluation", 2: "checkpoint", 3: "data", 4: "mine"}


@settings(max_examples=300, deadline=None)
@given(records=RECORDS, began=INSTANT, process=st.none() | INSTANT, end=st.none() | st.integers(0, 5_000))
def test_the_entries_sum_to_the_wall_clock_whatever_was_recorded(records, began, process, end):
    log = Log()
    log.records, log.names = list(records), PHASES
    status = WindowStatus(first_step=0, last_step=1, ok=True, end_perf_ns=began + 10)
    record = msgspec.structs.replace(
        record_of(log, ended=end is not None, windows=((status, None),)),
        meta=rank_meta(anchor_perf_ns=began, process_start_perf_ns=process),
    )
    if end is not None:
        record = msgspec.structs.replace(record, end=msgspec.structs.replace(record.end, end_perf_ns=end))
    joined = rank_facts("rank", None, record)
    ledger = rank_ledger(joined.record, joined.log, joined.account)
    first, last = min(entry[3] for entry in records), max(entry[3] + entry[4] for entry in records)
    low = min(began, first) if process is None else min(began, first, process)
    assert ledger.wall_ns == (last if end is None else max(last, end)) - low
    assert sum(entry.time_ns for entry in ledger.entries) == ledger.wall_ns
    assert all(entry.time_ns > 0 and entry.entry in ENTRIES for entry in ledger.entries)


@settings(max_examples=100, deadline=None)
@given(records=RECORDS, seed=st.integers(0, 99), shift=st.integers(0, 1 << 40))
def test_neither_the_order_of_records_nor_a_time_shift_changes_the_ledger(records, seed, shift):
    # Of steps that start together the one that is written first is the first: the order of such has a meaning.
    records = [record for number, record in enumerate(records) if record[0] != 1 or not number]
    moved = [(*record[:3], record[3] + shift, *record[4:]) for record in records]
    np.random.default_rng(seed).shuffle(moved)
    found = []
    for entries, by in ((records, 0), (moved, shift)):
        log = Log()
        log.records, log.names = [tuple(int(field) for field in entry) for entry in entries], PHASES
        record = record_of(log, ended=False)
        record = msgspec.structs.replace(record, meta=rank_meta(anchor_perf_ns=by))
        joined = rank_facts("rank", None, record)
        ledger = rank_ledger(joined.record, joined.log, joined.account)
        found.append({entry.entry: entry.time_ns for entry in ledger.entries})
    assert found[0] == found[1]


def test_a_long_recording_costs_no_more_than_a_few_times_its_steps():
    log = Run().trains(20_000)
    record = record_of(log)
    found = read_log(record.events, record.names)

    def seconds(work):
        began = perf_counter()
        work()
        return perf_counter() - began

    steps = min(seconds(lambda: read_log(record.events, record.names)) for _ in range(3))
    assert min(seconds(lambda: rank_ledger(record, found, account(record, found))) for _ in range(3)) < 15 * steps


@pytest.mark.parametrize("block", [1, 2, 7])
def test_a_recording_that_is_read_in_blocks_has_the_same_entries_in_each_step(block, monkeypatch):
    log = Run().pause(7_000).trains(5, flags=FIRST).pause(90_000, EventKind.SAVE).trains(3).pause(500)
    log.record(EventKind.GC, log.at - 4_000, 300)
    log.trains(4, wait=0)
    record = record_of(log)
    found = read_log(record.events, record.names)
    whole = account(record, found).by_step
    painted = []
    monkeypatch.setattr(wall_clock, "_BLOCK", block)
    monkeypatch.setattr(
        wall_clock, "paint", lambda window, layers: painted.append(len(window)) or paint(window, layers)
    )
    blocks = account(record, found).by_step
    assert max(painted) == block
    assert {entry: spent.tolist() for entry, spent in blocks.items()} == {
        entry: spent.tolist() for entry, spent in whole.items()
    }


def test_more_of_an_injected_cost_never_lowers_its_entry():
    spent = []
    for cost in (0, 1_000, 10_000, 100_000):
        log = Run().trains(10).pause(cost, EventKind.SAVE).trains(10)
        spent.append(times(ledger_of(log)).get("checkpoint", 0))
    assert spent == [0, 1_000, 10_000, 100_000]
