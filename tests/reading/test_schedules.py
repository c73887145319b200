"""Directories as torch's profiler leaves them where its schedule repeats."""

import json

import pytest

from profilerkit.api import analyze
from profilerkit.errors import UsageError
from profilerkit.formats import windows
from tests import programs

RECIPE = """
import sys, torch
from torch.profiler import ProfilerActivity, profile, schedule, tensorboard_trace_handler
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with profile(
    activities=[ProfilerActivity.CPU],
    schedule=schedule(wait=2, warmup=2, active=5, repeat=3),
    on_trace_ready=tensorboard_trace_handler(sys.argv[1], use_gzip=sys.argv[2] == "gz"),
) as prof:
    for _ in range(30):
        optimizer.zero_grad()
        model(torch.randn(64, 64)).square().mean().backward()
        optimizer.step()
        prof.step()
"""


def write_window(directory, first, *, pid=100, rank=None, count=5, name=None, at=None):
    """Steps of 10 ms from ``first`` on; the clock shows 10 ms times the number of the step."""
    events = []
    for step in range(first, first + count):
        ts = 10_000 * (step if at is None else at + step)
        events.append({"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{step}", "ts": ts, "dur": 9_990})
        events.append({"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": ts + 10, "dur": 9_000})
        events.append({"ph": "X", "cat": "cpu_op", "name": "gloo:all_reduce", "ts": ts + 9_100, "dur": 500})
    whole = {"schemaVersion": 1, "traceEvents": [event | {"pid": pid, "tid": pid} for event in events]}
    if rank is not None:
        whole["distributedInfo"] = {"rank": rank, "world_size": 2, "backend": "gloo"}
    path = directory / (name or f"host_{pid}.{first}.pt.trace.json")
    path.write_text(json.dumps(whole))
    return path


@pytest.mark.parametrize("form", ["plain", "gz"])
def test_the_documented_recipe_of_torch_is_one_rank(tmp_path, form):
    pytest.importorskip("torch")
    programs.run("-c", RECIPE, tmp_path / "log", form, check=True)
    assert len(list((tmp_path / "log").iterdir())) == 3
    report = analyze(tmp_path / "log")
    assert len(report.ranks) == 1
    assert report.steps.count == 15
    assert report.steps.steady >= 9
    assert any("3 files are windows of process" in note for note in report.trust.notes)
    assert any("steps 4–8, 13–17, 22–26" in note for note in report.trust.notes)


def test_no_step_lasts_from_one_window_to_the_next(tmp_path):
    for first in (4, 1_013, 2_022):
        write_window(tmp_path, first)
    report = analyze(tmp_path)
    assert report.steps.count == 15
    assert report.steps.time_ns.mean == pytest.approx(10e6, rel=0.01)
    assert report.run.files == ("host_100.4.pt.trace.json and 2 more",)


def test_windows_of_any_name_are_found_by_what_they_say(tmp_path):
    for number, first in enumerate((22, 4, 13)):
        write_window(tmp_path, first, name=f"trace_{number}.json")
    assert analyze(tmp_path).steps.count == 15


def test_windows_of_two_ranks_are_two_ranks(tmp_path):
    for rank in (0, 1):
        for first in (4, 13):
            write_window(tmp_path, first, pid=100 + rank, rank=rank)
    report = analyze(tmp_path)
    assert [entry.rank for entry in report.ranks] == [0, 1]
    assert report.steps.count == 10


def test_a_run_that_was_begun_again_is_no_window_of_the_first(tmp_path):
    write_window(tmp_path, 4, rank=0)
    write_window(tmp_path, 4, rank=0, at=50, name="again.json")
    with pytest.raises(UsageError, match="not the ranks of one job"):
        analyze(tmp_path)


def test_windows_of_different_processes_of_one_rank_are_not_put_together(tmp_path):
    write_window(tmp_path, 4, rank=0)
    write_window(tmp_path, 13, rank=0, pid=101)
    with pytest.raises(UsageError, match="not the ranks of one job"):
        analyze(tmp_path)


def test_what_does_not_fit_into_memory_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(windows, "MOST_EVENTS", 31)
    for first in (4, 13, 22):
        write_window(tmp_path, first)
    report = analyze(tmp_path)
    assert report.steps.count == 10
    assert any("Only the first 2 of 3 windows" in note for note in report.trust.notes)
