"""The wall clock of real small runs: what was done in them is found in their ledger."""

import sys
import textwrap
import time

import pytest

import profilerkit
from profilerkit.rundir.layout import EventKind
from tests import programs

PAUSE_S = 0.05
PAUSE_NS = 50_000_000


def ledger_of(directory):
    ledger = profilerkit.analyze(directory).ledger
    assert sum(entry.time_ns for entry in ledger.entries) == ledger.wall_ns
    return ledger


def entries(ledger):
    return {entry.entry: entry for entry in ledger.entries}


def evaluate(toy, loader):
    with toy.torch.no_grad():
        for inputs, _ in loader:
            toy.model(inputs)
            time.sleep(0.01)


def test_evaluation_by_another_loader_and_checkpoints_are_found(toy, light, tmp_path):
    train, other = toy.loader(8), toy.loader(4)
    with light() as prof:
        for _ in range(3):
            for batch in prof.wrap(train):
                toy.train(batch)
            evaluate(toy, other)
            with prof.phase("checkpoint"):
                toy.torch.save(toy.model.state_dict(), tmp_path / "model.pt")
                time.sleep(PAUSE_S)
    found = entries(ledger_of(prof.directory))
    assert (found["evaluation"].source, found["evaluation"].count) == ("inferred", 3)
    assert found["evaluation"].time_ns >= 3 * 4 * 10_000_000
    assert (found["checkpoint"].source, found["checkpoint"].count) == ("measured", 3)
    assert found["checkpoint"].time_ns >= 3 * PAUSE_NS


def test_evaluation_is_found_in_a_loop_that_says_nothing(toy, light):
    train, other = toy.loader(8), toy.loader(4)
    with light() as prof:
        for _ in range(3):
            for batch in train:
                toy.train(batch)
            evaluate(toy, other)
    found = entries(ledger_of(prof.directory))
    assert (found["evaluation"].source, found["evaluation"].count) == ("inferred", 3)
    assert found["evaluation"].time_ns >= 3 * 4 * 10_000_000


def test_with_explicit_steps_evaluation_and_phases_are_not_the_steps_time(toy, light):
    train, other = toy.loader(8), toy.loader(4)
    with light() as prof:
        for _ in range(3):
            for batch in train:
                toy.train(batch)
                prof.step()
            evaluate(toy, other)
            with prof.phase("logging"):
                time.sleep(PAUSE_S)
    ledger = ledger_of(prof.directory)
    found = entries(ledger)
    assert found["evaluation"].time_ns >= 3 * 4 * 10_000_000
    assert found["logging"].time_ns >= 3 * PAUSE_NS
    assert ledger.steps == 24


def test_a_pause_between_epochs_is_not_explained_and_one_at_the_end_is(toy, light):
    train = toy.loader(8)
    with light() as prof:
        for epoch in range(2):
            for batch in prof.wrap(train):
                toy.train(batch)
            time.sleep(PAUSE_S if epoch else 2 * PAUSE_S)
    ledger = ledger_of(prof.directory)
    assert ledger.unexplained_ns >= 2 * PAUSE_NS
    assert entries(ledger)["end"].time_ns >= PAUSE_NS


def test_the_windows_export_is_its_cost_and_not_the_steps(toy, deep, recorded):
    with deep() as prof:
        for _ in range(5):
            for batch in prof.wrap(toy.loader(8)):
                toy.train(batch)
    found = entries(ledger_of(prof.directory))
    run = recorded(prof.directory)
    window, *_ = run.of(EventKind.WINDOW)  # a busy machine makes slow steps, which open another one
    (status, _), *_ = run.rank.windows
    assert found["profiler"].count == len(run.rank.windows)
    assert found["profiler"].time_ns >= window.start_ns + window.dur_ns - status.end_perf_ns > 0


def test_only_the_first_recording_of_a_process_begins_with_it(toy, light):
    ledgers = []
    for _ in range(2):
        with light() as prof:
            for batch in prof.wrap(toy.loader(8)):
                toy.train(batch)
        ledgers.append(ledger_of(prof.directory))
    assert not ledgers[1].from_process_start
    assert "start.before" not in entries(ledgers[1])


PROGRAM = """
    import os, sys, time
    time.sleep(0.3)
    import profilerkit
    import torch
    model = torch.nn.Linear(16, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.utils.data.TensorDataset(torch.randn(64, 16))
    loader = torch.utils.data.DataLoader(data, batch_size=8)
    began = time.perf_counter_ns()
    with profilerkit.profile(sys.argv[1], deep=False, nvml=False, analyze=False) as prof:
        for epoch in range(100):
            for (batch,) in prof.wrap(loader):
                model(batch).sum().backward()
                optimizer.step()
                time.sleep(0.005)
            if sys.argv[2] == "killed" and epoch == 20:
                os.kill(os.getpid(), 9)
            if sys.argv[2] == "finished" and epoch == 2:
                break
"""


@pytest.mark.parametrize(("ending", "code"), [("finished", 0), ("killed", -9)])
def test_a_program_is_accounted_for_from_its_start_to_its_end(tmp_path, ending, code):
    pytest.importorskip("torch")
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(PROGRAM))
    began = time.monotonic_ns()
    run = tmp_path / "run"
    done = programs.run(script, run, ending)
    lasted = time.monotonic_ns() - began
    assert done.returncode == code, done.stderr
    ledger = ledger_of(run)
    found = entries(ledger)
    assert ledger.to_last_record == (ending == "killed")
    if sys.platform.startswith("linux"):
        assert ledger.from_process_start
        assert found["start.before"].time_ns >= 300_000_000
        # The process's start is known to 10 ms.
        assert ledger.wall_ns <= lasted + 10_000_000
    in_steps = sum(entry.time_ns for name, entry in found.items() if name.startswith("step."))
    assert in_steps >= 0.8 * ledger.steps * 5_000_000
