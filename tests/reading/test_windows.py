"""Run directories with several traced windows."""

import pytest

from profilerkit.api import analyze
from profilerkit.formats.windows import typical_windows
from profilerkit.rundir.layout import WindowStatus
from profilerkit.rundir.reader import read_run
from profilerkit.rundir.writer import RankWriter
from tests.recipes import Log, Trace, write_run

STEP = 1_000


def trace_of(first, *, kernel=500, python=0, slow=None, count=6):
    """Steps of 500 µs of operators; ``python`` beside them, in the slow step 4 ms more."""
    trace, at = Trace(), first * STEP
    for number in range(first, first + count):
        began = at
        at += python + (4_000 if number == slow else 0)
        trace.op(at, at + kernel, name="aten::mm")
        at += kernel
        trace.step(number, began, at)
    return trace


def add_window(run, first, trace=None, *, rank=0, **fields):
    """A window of six steps; without a trace it did not open."""
    writer = RankWriter(run, rank)
    last = first + 5 if trace else first - 1
    if trace is not None:
        writer.trace_part(first).write_bytes(trace if isinstance(trace, bytes) else trace.bytes())
    status = WindowStatus(
        first_step=first, last_step=last, ok=trace is not None, trace="trace.json" if trace else None, **fields
    )
    writer.finish_window(first, status)
    writer.close()


@pytest.fixture
def run(tmp_path):
    """A run of 2,000 steps of 1 ms on one rank, without any window yet."""
    return write_run(tmp_path / "run", [Log().steps(2_000, STEP)])


def judged(run):
    """The largest part of the report's judged rank, and the notes."""
    report = analyze(run)
    return report.breakdown[0].part, report.trust.notes


def test_the_last_typical_window_is_judged_and_that_is_said(run):
    add_window(run, 6, trace_of(6, kernel=100, python=900))
    add_window(run, 1_006, trace_of(1_006, kernel=900, python=100))
    part, notes = judged(run)
    assert part.startswith("compute.")
    assert "2 windows of typical steps were traced; judged is that from step 1,006 on, the last that can be read." in (
        notes
    )


def test_a_single_window_needs_no_words(run):
    add_window(run, 6, trace_of(6))
    assert not [note for note in judged(run)[1] if "window" in note]


def test_a_window_for_slow_steps_is_never_judged_and_its_slow_step_is_told(run):
    add_window(run, 6, trace_of(6, kernel=900, python=100))
    slow = trace_of(1_006, kernel=100, python=900, slow=1_008)
    add_window(run, 1_006, slow, kind="anomaly", trigger="every 100 steps a step is slow", slow_step=1_008)
    part, notes = judged(run)
    assert part.startswith("compute.")
    told = "Slow step 1,008 was traced because every 100 steps a step is slow: it took 5.00 ms, 4.00 ms longer"
    assert [note for note in notes if note.startswith(told) and note.endswith("4.00 ms Python between operators.")]


def test_with_nothing_but_slow_steps_traced_the_timers_tell_alone(run):
    add_window(run, 1_006, trace_of(1_006, slow=1_008), kind="anomaly", trigger="of a reason", slow_step=1_008)
    report = analyze(run)
    assert report.trust.mode == "steps"
    assert any(note.startswith("Slow step 1,008") for note in report.trust.notes)
    (signal,) = (signal for signal in report.trust.signals if signal.name == "operator trace")
    assert signal.reason == "only slow steps were traced"


def test_a_last_window_that_cannot_be_read_leaves_the_one_before(run):
    add_window(run, 6, trace_of(6, kernel=900, python=100))
    add_window(run, 1_006, b"no trace")
    part, notes = judged(run)
    assert part.startswith("compute.")
    assert any("windows" in note and "from step 6 on" in note for note in notes)
    assert any("001006/trace.json cannot be read" in note for note in notes)


def test_what_a_usable_trace_lacks_is_told(run):
    add_window(run, 6, trace_of(6), reason="the device was to be traced, but the trace has no kernel")
    assert any("the trace has no kernel" in note for note in judged(run)[1])


def test_ranks_are_judged_by_the_last_window_that_most_of_them_have(tmp_path):
    run = write_run(tmp_path / "run", [Log().steps(2_000, STEP) for _ in range(3)])
    for rank in range(3):
        add_window(run, 6, trace_of(6), rank=rank)
        add_window(run, 506, trace_of(506), rank=rank)
    add_window(run, 1_006, trace_of(1_006), rank=1)
    firsts = [[status.first_step for status, _ in windows] for windows in typical_windows(read_run(run).ranks)]
    assert firsts == [[506, 6], [506, 6, 1_006], [506, 6]]


def test_the_slow_step_is_told_of_the_rank_that_did_not_wait_for_others(tmp_path):
    run = write_run(tmp_path / "run", [Log().steps(2_000, STEP) for _ in range(2)])
    for rank, slow in ((0, None), (1, 1_008)):
        add_window(run, 6, trace_of(6), rank=rank)
        trace = trace_of(1_006, slow=slow)
        if slow is None:
            trace = waiting_trace(1_006, 1_008)
        add_window(run, 1_006, trace, rank=rank, kind="anomaly", trigger="of a reason", slow_step=1_008)
    (told,) = (note for note in analyze(run).trust.notes if "Slow step" in note)
    assert told.startswith("Rank 1: Slow step 1,008")


def waiting_trace(first, slow):
    trace, at = Trace(backend="gloo"), first * STEP
    for number in range(first, first + 6):
        began = at
        trace.op(at, at + 500, name="aten::mm")
        at += 500
        length = 4_000 if number == slow else 10
        trace.gloo(at, at + length)
        at += length
        trace.step(number, began, at)
    return trace


def test_inflation_is_measured_against_the_steps_around_the_window(tmp_path):
    log = Log().steps(1_000, STEP).steps(1_000, 3 * STEP)  # the run gets slower
    start = 1_000 * STEP + 500 * 3 * STEP
    log.window(start, start + 6 * 3 * STEP, 1_500)
    run = write_run(tmp_path / "run", [log])
    add_window(run, 1_500, trace_of(1_500, kernel=4_500))
    assert analyze(run).trust.inflation_ratio == pytest.approx(1.5)


def test_all_windows_and_the_step_behind_each_are_left_out_of_the_steady_steps(tmp_path):
    log = Log().steps(100, STEP)
    for first in (20, 60):
        log.window(first * STEP + 1, (first + 4) * STEP, first)
    run = write_run(tmp_path / "run", [log])
    assert analyze(run).steps.dropped["disturbed"] == 10
