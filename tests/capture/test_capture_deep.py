# ruff: noqa: PT012, PT031  a block under test is a with statement with a loop in it
"""The deep window on real torch loops."""

import contextlib
import gc
import gzip
import json
import os
import subprocess
import sys

import pytest

from profilerkit.rundir.layout import EventKind

pytestmark = pytest.mark.torch


def trace_of(run):
    """Status, and the X events of the trace by start."""
    ((status, path),) = run.rank.windows
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path) as file:
        events = [event for event in json.load(file)["traceEvents"] if event.get("ph") == "X"]
    return status, sorted(events, key=lambda event: event["ts"])


def spans(events, prefix):
    return [
        (event["name"], event["ts"], event["ts"] + event["dur"]) for event in events if event["name"].startswith(prefix)
    ]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("wrapped", [True, False])
def test_window_holds_its_steps_with_their_input_wait_inside(toy, deep, recorded, workers, wrapped):
    with deep() as prof:
        loader = toy.loader(num_workers=workers)
        for batch in prof.wrap(loader) if wrapped else loader:
            toy.train(batch)
    run = recorded(prof.directory)
    status, events = trace_of(run)
    assert (status.ok, status.first_step, status.last_step) == (True, 2, 4)
    steps = spans(events, "ProfilerStep#")
    assert [name for name, *_ in steps] == ["ProfilerStep#2", "ProfilerStep#3", "ProfilerStep#4"]
    fetches = spans(events, "enumerate(DataLoader)")
    assert len(fetches) == 3
    for (_, start, end), (_, fetch_start, fetch_end) in zip(steps, fetches, strict=True):
        assert start <= fetch_start <= fetch_end <= end
    assert any("Input Dims" in event.get("args", {}) for event in events)
    assert len(run.steps) == 8
    assert run.rank.meta.features["deep"].on


@pytest.mark.parametrize("has_loader", [True, False])
def test_python_functions_are_named_only_where_no_loader_is_seen(toy, deep, recorded, has_loader):
    def get_batch():
        return toy.batch()

    with deep() as prof:
        for batch in toy.loader() if has_loader else iter(get_batch, None):
            toy.train(batch)
            if prof._session._tracker.count >= 6:
                break
    _, events = trace_of(recorded(prof.directory))
    assert any(event["name"].endswith(": get_batch") for event in events) is not has_loader


def test_fetches_of_a_generator_and_phases_have_their_spans_in_the_trace(toy, deep, recorded):
    def batches():
        for _ in range(8):
            yield toy.batch()

    with deep() as prof:
        for batch in prof.wrap(batches()):
            toy.train(batch)
            with prof.phase('log "x" é'):
                pass
    _, events = trace_of(recorded(prof.directory))
    steps = spans(events, "ProfilerStep#")
    fetches, phases = spans(events, "profilerkit.input"), spans(events, "profilerkit.phase.")
    assert len(steps) == len(fetches) == len(phases) == 3
    assert {name for name, *_ in phases} == {"profilerkit.phase.log _x_ _"}
    for (_, start, end), (_, fetch_start, fetch_end) in zip(steps, fetches, strict=True):
        assert start <= fetch_start <= fetch_end <= end


def test_trace_is_compressed_and_the_plain_one_gone(toy, deep, recorded):
    with deep() as prof:
        for batch in prof.wrap(toy.loader()):
            toy.train(batch)
    ((status, path),) = recorded(prof.directory).rank.windows
    assert sorted(file.name for file in path.parent.iterdir()) == ["status.json", "trace.json.gz"]
    assert status.trace == "trace.json.gz"
    assert status.size_bytes == path.stat().st_size


def test_disturbed_steps_are_covered_by_a_window_record(toy, deep, recorded):
    with deep() as prof:
        for batch in prof.wrap(toy.loader()):
            toy.train(batch)
    run = recorded(prof.directory)
    (window,) = run.of(EventKind.WINDOW)
    first, last = run.steps[1], run.steps[5]  # the profiler's warm-up, and the step that waited for the export
    assert window.value == 2
    assert first.start_ns <= window.start_ns <= first.start_ns + first.dur_ns
    assert last.start_ns <= window.start_ns + window.dur_ns <= last.start_ns + last.dur_ns
    after_window = window.start_ns + window.dur_ns
    assert not any(wait.start_ns < after_window < wait.start_ns + wait.dur_ns for wait in run.waits)


NO_COMPILER = """
import sys, torch, profilerkit
weight = torch.zeros(4, requires_grad=True)
with profilerkit.profile(sys.argv[1], warmup_steps=1, trace_steps=2, nvml=False, host=False, analyze=False) as prof:
    for _ in range(8):
        (weight * 2).sum().backward()
        prof.step()
assert "torch._inductor" not in sys.modules
assert torch._inductor.__name__ == "torch._inductor"  # torch finds it as it would
"""


def test_no_step_imports_torchs_compiler(tmp_path, recorded):
    """It takes a second, of a window in the steps of a program that compiles nothing."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", NO_COMPILER, str(tmp_path / "run")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert [status.ok for status, _ in recorded(tmp_path / "run").rank.windows] == [True]


def test_what_was_traced_is_freed_with_the_window_and_not_amid_a_later_step(toy, deep):
    gc.collect()
    gc.disable()
    try:
        with deep() as prof:
            for _ in range(12):
                toy.train(toy.batch())
                prof.step()
            left = [found for found in gc.get_objects() if type(found) is toy.torch.autograd.profiler.profile]
            assert left == []
    finally:
        gc.enable()


def test_explicit_steps_are_the_ones_marked(toy, deep, recorded):
    with deep() as prof:
        for number, batch in enumerate(prof.wrap(toy.loader(batches=16)), 1):
            toy.backward(batch)
            if number % 2 == 0:
                toy.update()
                prof.step()
    status, events = trace_of(recorded(prof.directory))
    assert (status.first_step, status.last_step) == (2, 4)
    for name, start, end in spans(events, "ProfilerStep#"):
        backwards = [event for event in spans(events, "enumerate") if start <= event[1] < end]
        assert len(backwards) == 2, name


def test_loop_that_ends_inside_the_window_keeps_what_there_is(toy, deep, recorded):
    with deep(trace_steps=50) as prof:
        for batch in prof.wrap(toy.loader()):
            toy.train(batch)
    status, events = trace_of(recorded(prof.directory))
    assert (status.ok, status.first_step, status.last_step) == (True, 2, 7)
    assert [name for name, *_ in spans(events, "ProfilerStep#")] == [f"ProfilerStep#{step}" for step in range(2, 8)]


def test_step_cut_by_an_exception_is_outside_the_status(toy, deep, recorded):
    with pytest.raises(KeyError), deep(trace_steps=50) as prof:
        for number, batch in enumerate(prof.wrap(toy.loader())):
            toy.backward(batch)
            if number == 5:
                raise KeyError("lost")
            toy.update()
    status, events = trace_of(recorded(prof.directory))
    assert (status.ok, status.first_step, status.last_step) == (True, 2, 4)
    assert spans(events, "ProfilerStep#")[-1][0] == "ProfilerStep#5"


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("wrapped", [True, False])
def test_epoch_end_inside_the_window_leaves_no_stub(toy, deep, recorded, wrapped, workers):
    with deep(warmup_steps=0, trace_steps=6) as prof:
        loader = toy.loader(batches=2, num_workers=workers)
        loader = prof.wrap(loader) if wrapped else loader
        for _ in range(6):
            for batch in loader:
                toy.train(batch)
    status, events = trace_of(recorded(prof.directory))
    names = [name for name, *_ in spans(events, "ProfilerStep#")]
    assert names == [f"ProfilerStep#{step}" for step in range(status.first_step, status.last_step + 1)]
    assert len(names) >= 3


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_short_loop_has_no_window_and_a_reason(toy, deep, recorded, steps):
    with deep() as prof:
        for _ in zip(range(steps), prof.wrap(toy.loader()), strict=False):
            toy.train(toy.batch())
    run = recorded(prof.directory)
    assert run.rank.windows == ()
    feature = run.rank.meta.features["deep"]
    assert not feature.on
    assert feature.reason.startswith("the loop ended after")
    assert not toy.torch.autograd._profiler_enabled()


def test_other_profiler_is_left_alone(toy, deep, recorded):
    torch = toy.torch
    with torch.profiler.profile() as theirs, deep() as prof:
        for batch in prof.wrap(toy.loader()):
            toy.train(batch)
    run = recorded(prof.directory)
    assert run.rank.windows == ()
    assert run.rank.meta.features["deep"].reason == "another profiler was active"
    assert len(run.steps) == 8
    assert len(theirs.events()) > 100


def test_window_opens_once_the_other_profiler_is_done(toy, deep, recorded):
    torch = toy.torch
    with deep() as prof:
        theirs = torch.profiler.profile()
        theirs.start()
        for number, batch in enumerate(prof.wrap(toy.loader())):
            toy.train(batch)
            if number == 2:
                theirs.stop()
    status, _ = trace_of(recorded(prof.directory))
    assert (status.ok, status.first_step) == (True, 4)


def test_window_gives_way_to_a_profiler_opened_inside_it(toy, deep, recorded):
    torch = toy.torch
    with deep(trace_steps=5) as prof:
        for number, batch in enumerate(prof.wrap(toy.loader())):
            if number == 4:
                with torch.profiler.profile() as theirs:
                    toy.train(batch)
            else:
                toy.train(batch)
    run = recorded(prof.directory)
    status, events = trace_of(run)
    assert (status.ok, status.first_step, status.last_step) == (True, 2, 3)
    assert spans(events, "ProfilerStep#")[-1][0] == "ProfilerStep#4"
    assert len(run.steps) == 8
    assert len(theirs.events()) > 10


def test_window_still_warming_up_gives_way_and_opens_after_the_other_profiler(toy, deep, recorded):
    torch = toy.torch
    with deep() as prof:
        for number, batch in enumerate(prof.wrap(toy.loader())):
            if number == 1:
                with torch.profiler.profile() as theirs:
                    toy.train(batch)
            else:
                toy.train(batch)
    run = recorded(prof.directory)
    status, _ = trace_of(run)
    assert (status.ok, status.first_step) == (True, 3)
    assert len(run.of(EventKind.WINDOW)) == 2  # the one that gave way disturbed a step, too
    assert len(theirs.events()) > 10


def test_profiler_opened_inside_and_left_open_is_not_stopped(toy, deep, recorded):
    theirs = toy.torch.profiler.profile()
    with deep(trace_steps=5) as prof:
        for number, batch in enumerate(prof.wrap(toy.loader())):
            if number == 4:
                theirs.start()
            toy.train(batch)
    theirs.stop()
    status, _ = trace_of(recorded(prof.directory))
    assert status.last_step == 3
    assert len(theirs.events()) > 10


def test_session_ended_behind_our_back_is_not_exported(toy, deep, recorded):
    torch = toy.torch
    with deep() as prof:
        for number, batch in enumerate(prof.wrap(toy.loader())):
            toy.train(batch)
            if number == 3:
                torch.autograd._disable_profiler()
    run = recorded(prof.directory)
    assert run.rank.windows == ()
    assert run.rank.meta.features["deep"].reason == "another profiler ended the session"
    assert len(run.steps) == 8


def test_failing_profiler_costs_the_window_and_not_the_steps(toy, deep, recorded, monkeypatch):
    def broken(*_args, **_kwargs):
        raise RuntimeError("CUPTI is busy")

    monkeypatch.setattr(toy.torch.profiler.profile, "prepare_trace", broken)
    with pytest.warns(RuntimeWarning, match="trace window switched itself off.*CUPTI is busy"), deep() as prof:
        for batch in prof.wrap(toy.loader()):
            toy.train(batch)
    run = recorded(prof.directory)
    assert len(run.steps) == 8
    assert run.rank.end.reason == "finished"
    assert "CUPTI is busy" in run.rank.meta.features["deep"].reason
    assert run.rank.meta.features["light"].on


def test_export_that_silently_writes_nothing_is_noticed(toy, deep, recorded, monkeypatch):
    monkeypatch.setattr(toy.torch.profiler.profile, "export_chrome_trace", lambda *_: None)
    with deep() as prof:
        for batch in prof.wrap(toy.loader()):
            toy.train(batch)
    ((status, trace),) = recorded(prof.directory).rank.windows
    assert (status.ok, trace) == (False, None)
    assert status.reason == "torch wrote no trace file; the disk may be full"


def test_log_level_is_left_as_it_was(toy, deep, monkeypatch):
    monkeypatch.delenv("KINETO_LOG_LEVEL", raising=False)
    with deep() as prof:
        for batch in prof.wrap(toy.loader()):
            toy.train(batch)
    assert "KINETO_LOG_LEVEL" not in os.environ


def test_window_works_with_the_light_tier_off(toy, deep, recorded):
    with deep(light=False) as prof:
        for batch in prof.wrap(toy.loader()):
            toy.train(batch)
    run = recorded(prof.directory)
    assert {event.kind for event in run.events} == {EventKind.WINDOW}
    assert trace_of(run)[0].ok


@pytest.mark.parametrize("named", [True, False])
def test_only_fetches_of_the_training_loader_have_an_input_span(toy, deep, recorded, named):
    with deep() as prof:
        for batch in prof.wrap(toy.loader()):
            toy.train(batch)
            with prof.phase("evaluation") if named else contextlib.nullcontext():
                list(toy.loader(batches=2))
    _, events = trace_of(recorded(prof.directory))
    assert len(spans(events, "enumerate(DataLoader)")) == 3 + 3 * 3
    assert len(spans(events, "profilerkit.input")) == 3


def test_a_loop_whose_steps_no_optimizer_shows_says_why_it_has_no_trace(toy, deep, recorded):
    with deep() as prof:
        for batch in prof.wrap(toy.loader(batches=32)):
            toy.backward(batch)
    run = recorded(prof.directory)
    assert len(run.steps) == 32
    assert "no torch.optim optimizer stepped" in run.rank.meta.features["deep"].reason
