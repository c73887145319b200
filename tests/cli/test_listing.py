"""``profilerkit analyze`` on a directory of several runs: a list of them."""

import json
import os
import time

import pytest

from profilerkit.cli import main
from profilerkit.results import as_report
from tests.recipes import Log, training, write_run
from tests.report import samples


def aged(run, hours):
    """Make every file of a run so many hours old."""
    for file in run.rglob("*"):
        os.utime(file, (time.time() - hours * 3_600,) * 2)


@pytest.fixture
def runs(tmp_path):
    """Three runs: an old one with its report, one of traces without any, and one recorded after its report."""
    place = tmp_path / "runs"
    for name in ("reported", "stale"):
        write_run(place / name, [Log().steps(30, 1_000, wait=600)])
        as_report(samples.input_bound()).to_json(place / name / "report.json")
    aged(place / "reported", 30)
    aged(place / "stale", 5)
    os.utime(place / "reported" / "report.json")
    os.utime(place / "stale" / "report.json", (0, 0))
    (place / "traced").mkdir()
    training(12).write(place / "traced" / "a.pt.trace.json")
    aged(place / "traced", 3)
    (place / "notes").mkdir()
    return place


def listed(runs, capsys, *options):
    assert main(["analyze", str(runs), *options]) == 0
    return capsys.readouterr()


def test_several_runs_are_listed_the_newest_first(runs, capsys):
    before = sorted(runs.rglob("*"))
    shown = listed(runs, capsys)
    lines = [line for line in shown.out.splitlines() if not line.startswith(" ")]
    assert [line.split()[0] for line in lines] == ["run", "traced", "stale", "reported"]
    assert "3 h ago" in lines[1]
    assert "input-bound" in lines[3]
    assert max(map(len, shown.out.splitlines())) <= 80
    assert "2 of 3 runs have no report as new as the recording" in shown.err
    assert shown.err.splitlines()[-1] == f"next: profilerkit analyze {runs / 'traced'}"
    assert sorted(runs.rglob("*")) == before, "a list writes nothing"


def test_only_a_report_as_new_as_the_recording_is_taken(runs, capsys):
    rows = {row["run"]: row for row in json.loads(listed(runs, capsys, "-f", "json").out)}
    assert [row for row in rows if rows[row]["is_saved"]] == ["reported"]
    expected = samples.input_bound()
    assert rows["reported"]["headline"] == expected.verdict.headline
    assert rows["reported"]["step_time_ns"] == expected.step_times.mean
    assert rows["reported"]["fix"]
    assert set(rows["reported"]["saving"]) == {"low", "expected", "high", "method"}
    assert rows["stale"]["headline"] != expected.verdict.headline


def test_the_list_goes_into_a_file(runs, capsys, tmp_path):
    shown = listed(runs, capsys, "-f", "json", "-o", str(tmp_path / "runs.json"))
    assert shown.out == ""
    assert len(json.loads((tmp_path / "runs.json").read_text("utf-8"))) == 3


def test_a_run_that_cannot_be_read_is_a_row_with_the_reason(runs, capsys):
    for trace in (runs / "traced").iterdir():
        trace.write_text("{}")
    rows = json.loads(listed(runs, capsys, "-f", "json").out)
    (broken,) = [row for row in rows if row["error"]]
    assert broken["run"] == "traced"
    assert "traceEvents" in broken["error"]
    assert broken["verdict"] == ""


@pytest.mark.parametrize(
    "options", [["--fail-on", "high"], ["--rank", "0"], ["--open"], ["-f", "html"], ["-f", "json,text"]]
)
def test_what_is_about_one_report_is_refused(runs, capsys, options):
    assert main(["analyze", str(runs), *options]) == 2
    what, cause, hint = capsys.readouterr().err.splitlines()
    assert "needs one run" in what
    assert "holds 3 runs" in cause
    assert hint == f"hint:  profilerkit analyze {runs / 'traced'}"


def test_settings_beside_the_runs_do_not_keep_them_from_being_listed(runs, capsys):
    (runs / "config.json").write_text('{"lr": 0.1}')
    assert [row["run"] for row in json.loads(listed(runs, capsys, "-f", "json").out)] == ["traced", "stale", "reported"]


def test_settings_beside_one_run_do_not_hide_it(tmp_path, capsys):
    write_run(tmp_path / "only", [Log().steps(30, 1_000, wait=600)])
    (tmp_path / "config.json").write_text('{"lr": 0.1}')
    assert main(["analyze", str(tmp_path)]) == 2
    assert f"analyze the run directory {tmp_path / 'only'}" in capsys.readouterr().err


def test_a_trace_beside_run_directories_is_analyzed_with_what_lies_there(runs, tmp_path, capsys):
    training(12).write(runs / "trace.json")
    assert main(["analyze", str(runs), "-f", "json", "-o", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["run"]["files"] == ["trace.json"]


def test_the_traces_of_one_directory_are_still_the_ranks_of_a_job(tmp_path, capsys):
    for rank in range(2):
        training(12, rank=rank, world_size=2).write(tmp_path / f"rank{rank}.json")
    (tmp_path / "runs").mkdir()
    assert main(["analyze", str(tmp_path), "-f", "json", "-o", "-"]) == 0
    assert len(json.loads(capsys.readouterr().out)["ranks"]) == 2
