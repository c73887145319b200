"""Real recordings of real loops, on the virtual device: what is said of them holds against its clock."""

import json
import os
import statistics
import time
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path
from time import perf_counter

import pytest

import profilerkit
from profilerkit.model.finding import in_order
from profilerkit.rundir.layout import EVENT, EventKind
from profilerkit.rundir.reader import read_run
from tests import programs

torch = pytest.importorskip("torch")
import virtual_device  # noqa: E402 - it imports torch

ROOT = Path(__file__).resolve().parents[2]
NOTHING = ("compute-bound", "balanced", "inconclusive")


@pytest.fixture
def device():
    placed = virtual_device.install()
    yield placed.device
    placed.remove()


class Loop:
    """A small training loop; ``device_s`` of one kernel per step, times of the host in seconds.

    Attributes:
        step_s: the median step by the test's own clock.
    """

    def __init__(self, device, path, *, steps, device_s, wait_s=0.0, host_s=0.0, read_every=0, sync=False, **settings):
        self.device, self.device_s, self.wait_s, self.host_s = device, device_s, wait_s, host_s
        model = torch.nn.Linear(4, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        settings = {"deep": False, "host": False, "analyze": False, **settings}
        ends = []
        with profilerkit.profile(path, **settings) as prof:
            for number, batch in enumerate(prof.wrap(self.batches(steps))):
                optimizer.zero_grad()
                loss = model(batch).sum()
                loss.backward()
                optimizer.step()
                device.launch(device_s)
                if sync:
                    torch.cuda.synchronize()
                self.work()
                if read_every and number % read_every == read_every - 1:
                    loss.item()
                ends.append(perf_counter())
            device.synchronize()
        self.step_s = statistics.median(after - before for before, after in pairwise(ends))
        self.report = profilerkit.analyze(path)
        self.record = read_run(Path(path)).ranks[0]

    def batches(self, steps):
        wait_s = self.wait_s

        class Batches(torch.utils.data.IterableDataset):
            def __iter__(self):
                for _ in range(steps):
                    time.sleep(wait_s)
                    yield torch.zeros(4)

        return torch.utils.data.DataLoader(Batches(), batch_size=None)

    def work(self):
        until = perf_counter() + self.host_s
        while perf_counter() < until:
            pass

    @property
    def reported_s(self):
        return self.report.steps.time_ns.median / 1e9

    @property
    def savings(self):
        found = {o.rule: f.saving.expected for o, f in in_order(self.report.outcomes) if f.saving is not None}
        return {rule: saving for rule, saving in found.items() if saving >= 0.05}

    def of(self, kind):
        return [record for record in EVENT.iter_unpack(self.record.events) if record[0] == kind]


def test_a_loss_read_every_10_steps_costs_nothing(device, tmp_path):
    loop = Loop(device, tmp_path / "run", steps=120, device_s=0.020, read_every=10)
    assert loop.reported_s == pytest.approx(0.020, rel=0.02)
    assert loop.savings == {}
    assert loop.report.verdict.bound in NOTHING


def test_a_wait_that_the_device_works_through_costs_nothing(device, tmp_path):
    loop = Loop(device, tmp_path / "run", steps=120, device_s=0.020, wait_s=0.008)
    assert loop.reported_s == pytest.approx(0.020, rel=0.02)
    assert loop.savings == {}
    assert loop.report.verdict.bound in NOTHING


def test_a_window_without_kernels_leaves_a_healthy_loop_healthy(device, tmp_path):
    loop = Loop(device, tmp_path / "run", steps=120, device_s=0.020, read_every=10, deep=True, warmup_steps=20)
    ((status, _),) = loop.record.windows
    assert status.kernels == 0
    assert loop.reported_s == pytest.approx(0.020, rel=0.02)
    assert loop.savings == {}
    assert loop.report.verdict.bound in NOTHING


def test_batches_that_the_device_waits_for_are_the_bound(device, tmp_path):
    loop = Loop(device, tmp_path / "run", steps=100, device_s=0.006, wait_s=0.024)
    assert loop.report.verdict.bound == "input-bound"
    assert loop.reported_s == pytest.approx(loop.step_s, rel=0.1)
    assert loop.report.verdict.saving.expected < 0.9


def test_a_host_that_is_slower_than_the_device_is_no_computation(device, tmp_path):
    loop = Loop(device, tmp_path / "run", steps=100, device_s=0.004, host_s=0.020)
    assert loop.report.verdict.bound in ("overhead-bound", "inconclusive")
    assert loop.reported_s == pytest.approx(loop.step_s, rel=0.1)


def test_a_synchronisation_in_every_step_is_recorded_and_no_computation(device, tmp_path):
    loop = Loop(device, tmp_path / "run", steps=100, device_s=0.010, host_s=0.012, sync=True)
    waits = [dur for _, _, _, _, dur, _ in loop.of(EventKind.SYNC)]
    assert len(waits) >= 100
    assert statistics.median(waits) == pytest.approx(10_000_000, rel=0.1)
    assert loop.report.verdict.bound in ("overhead-bound", "inconclusive")
    assert loop.reported_s == pytest.approx(loop.step_s, rel=0.1)


@pytest.mark.parametrize("captured", [0, 1])
def test_a_profiler_leaves_captures_alone_and_traces_between_them(device, tmp_path, captured):
    """Steps end inside captures and outside of them in turn, so a window has to open and close between them."""
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with profilerkit.profile(
        tmp_path / "run", warmup_steps=3, trace_steps=4, host=False, analyze=False, deep=True
    ) as prof:
        for number in range(40):
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph) if number % 2 == captured else nullcontext():
                optimizer.zero_grad()
                model(torch.zeros(4)).sum().backward()
                optimizer.step()
                device.launch(0.001)
                prof.step()
    assert device.capture_error == ""
    rank = read_run(tmp_path / "run").ranks[0]
    assert (rank.end.reason, rank.end.switched_off_because) == ("finished", None)
    assert [status.ok for status, _ in rank.windows] == [True]
    assert not torch.autograd._profiler_enabled()


def test_steps_that_are_graphs_are_counted_in_a_script_that_does_not_know_of_us(tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "scripts")}
    script = Path(__file__).with_name("programs") / "replayed.py"
    done = programs.run("-m", "profilerkit", "run", "-o", tmp_path / "run", "--", script, "150", env=environment)
    assert "trained" in done.stdout, done.stderr
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert report["steps"]["count"] >= 150
    assert report["steps"]["time_ns"]["median"] / 1e6 == pytest.approx(12.0, rel=0.02)
    assert report["verdict"]["bound"] in NOTHING
