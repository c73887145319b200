"""Loops whose batches nothing sees: the wait for data is said not to be measured, in every format, and never 0 %."""

import time

import pytest

import profilerkit
from profilerkit.capture.windows import DeepWindows
from profilerkit.report.html import render as html
from profilerkit.report.json import load
from profilerkit.report.json import render as to_json
from profilerkit.report.markdown import render as markdown
from profilerkit.report.sections import whole_run
from profilerkit.report.terminal import render as terminal
from profilerkit.rundir.reader import read_run

STEPS = 40
WAIT_S = 0.012  # a step beside it takes one or two milliseconds, and several on a busy machine
SAID = "Input wait was not measured: no loader was seen."


def generated(toy):
    """A plain generator, which neither torch nor profilerkit knows of."""
    for _ in range(STEPS):
        time.sleep(WAIT_S)
        yield toy.batch()


def get_batch(toy):
    """A batch as nanoGPT makes one."""
    time.sleep(WAIT_S)
    return toy.batch()


def train_on_a_generator(toy):
    for batch in generated(toy):
        toy.train(batch)


def train_on_get_batch(toy):
    for _ in range(STEPS):
        toy.train(get_batch(toy))


LOOPS = {"generator": train_on_a_generator, "get_batch": train_on_get_batch}


def recorded(make, loop, toy):
    with make() as prof:
        loop(toy)
    return profilerkit.analyze(prof.directory)


def says_so(report):
    """Whether every format says that no loader was seen."""
    texts = [terminal(report, verbose=True), terminal(report, width=40, verbose=True), html(report)]
    return all(SAID in " ".join(text.split()) for text in texts) and "no loader was seen" in markdown(report)


def is_never_zero(report):
    """Whether no number of the report is a wait for data of nothing."""
    back = load(to_json(report))
    other = next((entry for entry in back.verdict.ruled_out if entry.bound == "input-bound"), None)
    rows = [row for row in whole_run.section(report).blocks[1].rows if "Input wait" in row[0]]
    return (
        not any(part.part.startswith("input.") for part in back.breakdown)
        and not any(part.part.startswith("input.") for rank in back.ranks for part in rank.breakdown)
        and (other is None or (other.share is None and other.state == "not measured"))
        and all(rank.timed_ns is None for rank in back.ranks)
        and [(row[3], row[1]) for row in rows] == [("not measured", "no loader seen")]
        and not any(entry.entry == "step.input" for entry in back.ledger.entries)
        and not back.ledger.loader_seen
    )


@pytest.mark.parametrize("loop", LOOPS.values(), ids=LOOPS)
def test_timers_alone_say_that_no_loader_was_seen(toy, light, loop):
    report = recorded(light, loop, toy)
    assert report.steps.count >= STEPS - 1
    assert says_so(report)
    assert is_never_zero(report)
    assert any(s.name == "input wait" and s.state == "missing" for s in report.trust.signals)
    assert "step.unfed" in {entry.entry for entry in report.ledger.entries}


def test_a_loader_that_is_read_before_the_training_does_not_feed_it(toy, light):
    with light() as prof:
        for _batch in toy.loader():
            pass
        train_on_get_batch(toy)
    report = profilerkit.analyze(prof.directory)
    assert report.steps.count >= STEPS - 8  # the eighth optimizer step behind the loader's end tells
    assert not any(part.part.startswith("input.") for part in report.breakdown)
    assert any(s.name == "input wait" and s.state == "missing" for s in report.trust.signals)
    assert report.run.loader is None


def test_a_generator_is_no_more_known_with_a_window(toy, deep):
    report = recorded(deep, LOOPS["generator"], toy)
    assert any(signal.name == "operator trace" and signal.state == "measured" for signal in report.trust.signals)
    assert report.verdict.bound != "input-bound"
    assert says_so(report)
    assert is_never_zero(report)
    assert {entry.bound: entry.state for entry in report.verdict.ruled_out}.get("input-bound", "not measured") == (
        "not measured"
    )


def test_a_window_tells_get_batch_by_its_name(toy, deep, monkeypatch):
    monkeypatch.setitem(globals(), "WAIT_S", 5 * WAIT_S)  # on a slow machine traced Python takes some of WAIT_S
    report = recorded(deep, LOOPS["get_batch"], toy)
    assert (report.verdict.bound, report.verdict.detail) == ("input-bound", "fetch")
    assert sum(part.share for part in report.breakdown if part.part.startswith("input.")) > 0.3
    # The timers still saw no fetch: in the ledger of all steps it is told together with forward.
    assert not report.ledger.loader_seen
    assert SAID not in terminal(report)


def windows_of(deep, work, **settings):
    """The statuses of the windows of a loop without a loader."""
    with deep(trace_steps=6, **settings) as prof:
        for _ in range(STEPS):
            work()
    return [status for status, _ in read_run(prof.directory).ranks[0].windows]


def test_names_that_slow_steps_by_much_end_the_window_unless_asked_for(toy, deep, monkeypatch):
    ended = DeepWindows.step_ended

    def slowed(windows, number, _dur_ns):  # real ones depend on what else the machine does
        is_traced = windows.window is not None and windows.window.state == "recording"
        ended(windows, number, 20_000_000 if is_traced else 1_000_000)

    monkeypatch.setattr(DeepWindows, "step_ended", slowed)
    (status,) = windows_of(deep, lambda: toy.train(toy.batch()))
    assert (status.ok, status.last_step) == (True, status.first_step + 1)  # 38 ms longer
    (asked,) = windows_of(deep, lambda: toy.train(toy.batch()), with_stack=True)
    assert asked.last_step == asked.first_step + 5


def test_a_wrapped_generator_is_measured(toy, light):
    with light() as prof:
        for batch in prof.wrap(generated(toy)):
            toy.train(batch)
    report = profilerkit.analyze(prof.directory)
    assert SAID not in terminal(report)
    assert report.ledger.loader_seen
    waited = sum(entry.time_ns for entry in report.ledger.entries if entry.entry in ("step.input", "between.epoch"))
    assert waited >= 0.9 * STEPS * WAIT_S * 1e9


def test_windows_alone_have_no_ledger(tmp_path):
    """Without timers nobody knows where the time of the whole run went."""
    torch = pytest.importorskip("torch")
    layer = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    settings = {"light": False, "nvml": False, "host": False, "analyze": False}
    with profilerkit.profile(tmp_path / "run", **settings, warmup_steps=2, trace_steps=3) as prof:
        for _ in range(12):
            layer(torch.ones(2, 4)).sum().backward()
            optimizer.step()
    assert profilerkit.analyze(prof.directory).ledger is None
