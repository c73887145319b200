"""``profilerkit check``: a run against its budgets."""

import json
import re
import shutil
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from profilerkit.cli import main
from profilerkit.config import load_settings
from profilerkit.errors import ConfigError
from profilerkit.model import revise
from profilerkit.model.memory import Memory
from profilerkit.model.step import PARTS
from profilerkit.rundir.sampled import GpuSample, Sample
from tests.comparisons import MS, report_of
from tests.recipes import Log, S, training, write_run


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A report of 30 ms steps, a fifth of them input, and a way to write budgets beside it."""
    for name in ("GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    report_of([30 * MS] * 240, name="resnet50").to_json("report.json")

    def budgets(text):
        (tmp_path / "pyproject.toml").write_text(f"[tool.profilerkit.budgets]\n{text}\n", encoding="utf-8")

    return budgets


def test_a_run_within_its_budgets(run, capsys):
    run('step_time = "31 ms"\ninput = "21 %"\n"input.prep" = "21 %"\nthroughput = "1000/s"\nfindings = "high"')
    assert main(["check", "report.json"]) == 0
    shown = capsys.readouterr()
    assert shown.out.count("passed") == 5
    assert shown.err == ""


def test_an_exceeded_budget_is_exit_code_one_and_is_named(run, capsys):
    run('step_time = "29 ms"\ninput = "21 %"')
    assert main(["check", "report.json"]) == 1
    shown = capsys.readouterr()
    assert shown.out.count("FAILED") == 1
    assert "step_time is 30.0 ms; the limit is 29.0 ms (+3.4 %)" in " ".join(shown.out.split())
    assert shown.err == ""


def test_where_a_document_is_printed_the_gates_that_did_not_pass_are_noted(run, capsys):
    run('step_time = "29 ms"\nbusy = "80 %"')
    assert main(["check", "report.json", "-f", "junit", "-o", "-"]) == 1
    shown = capsys.readouterr()
    assert ElementTree.fromstring(shown.out).tag == "testsuites"
    assert shown.err == (
        "failed: step_time, at most 29.0 ms: step_time is 30.0 ms; the limit is 29.0 ms (+3.4 %)\n"
        "not judged: busy, at least 80 %: busy was not measured\n"
    )


def test_every_budget_is_shown_however_many_there_are(run, capsys):
    run("\n".join(f'"{part}" = "1 %"' for part in PARTS))
    assert main(["check", "report.json"]) == 1
    shown = capsys.readouterr().out
    assert len(PARTS) > 12
    assert [part for part in PARTS if part not in shown] == []


def test_a_budget_on_the_command_line_wins(run):
    run('step_time = "29 ms"')
    assert main(["check", "report.json", "--budget", "step_time=31ms"]) == 0
    assert main(["check", "report.json", "--budget", "input=10%", "--budget", "step_time=31ms"]) == 1


@pytest.mark.parametrize(("options", "code"), [([], 0), (["--strict"], 3)])
def test_what_was_not_measured_fails_only_when_strict(run, capsys, options, code):
    run('busy = "80 %"')
    assert main(["check", "report.json", *options]) == code
    said = " ".join(capsys.readouterr().out.split())
    assert "not judged busy at least 80 % not measured busy was not measured" in said


@pytest.mark.parametrize(("limit", "code"), [("60 %", 0), ("90 %", 1)])
def test_a_device_without_a_trace_is_as_busy_as_its_samples_in_the_judged_steps(run, capsys, tmp_path, limit, code):
    """The first five seconds are one step: the samples in it say nothing of the others."""
    samples = [
        Sample(t_ns=second * S, gpu=GpuSample(utilization_ratio=0.1 if second < 6 else 0.7)) for second in range(1, 25)
    ]
    log = Log().steps(1, 5_000_000).steps(200, 100_000)
    write_run(tmp_path / "sampled", [log], device_name="H100", samples=samples)
    run(f'busy = "{limit}"')
    assert main(["check", str(tmp_path / "sampled")]) == code
    assert "70 % (sampled)" in capsys.readouterr().out


@pytest.mark.parametrize(("limit", "code"), [("3 GiB", 0), ("1 GiB", 1)])
def test_the_peak_memory_is_of_the_process_where_no_device_is_known(run, capsys, monkeypatch, limit, code):
    monkeypatch.setenv("COLUMNS", "160")
    memory = Memory(peak_process_bytes=2 << 30, peak_allocated_bytes=100, place="host")
    revise(report_of([30 * MS] * 240), memory=memory).to_json("report.json")
    run(f'peak_memory = "{limit}"')
    assert main(["check", "report.json"]) == code
    shown = " ".join(capsys.readouterr().out.split())
    assert "2.00 GiB (of the process)" in shown
    assert ("peak_memory is 2.00 GiB (of the process); the limit is 1.00 GiB" in shown) == bool(code)


def test_documents_for_continuous_integration(run, capsys, tmp_path, monkeypatch):
    run('step_time = "29 ms"')
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    assert main(["check", "report.json", "-f", "md,junit,sarif,text"]) == 1
    assert "::error title=profilerkit step_time::step_time is 30.0 ms" in capsys.readouterr().err
    assert ElementTree.parse(tmp_path / "check.xml").find(".//failure") is not None
    results = json.loads((tmp_path / "check.sarif").read_text("utf-8"))["runs"][0]["results"]
    assert [result["ruleId"] for result in results] == ["budget/step_time"]
    assert "1 of 1 budgets exceeded: resnet50" in (tmp_path / "check.md").read_text("utf-8")
    assert (tmp_path / "check.md").read_text("utf-8") == (tmp_path / "summary.md").read_text("utf-8")


def test_a_path_that_is_not_there_is_said_before_budgets_are(tmp_path, capsys):
    assert main(["check", str(tmp_path / "missing")]) == 2
    assert "missing does not exist" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "what", "hint"),
    [
        ("", "there is no budget to check", 'step_time = "200 ms"'),
        ('stp_time = "1 ms"', "unknown metric 'stp_time'", "did you mean step_time?"),
        ('step_time = "fast"', "has an unreadable limit", 'step_time = "200ms"'),
        ("step_time = 200", "not a table of limits as text", 'write step_time = "200 ms"'),
        ('findings = "hgh"', "unknown severity 'hgh'", "did you mean high?"),
    ],
)
def test_a_wrong_budget_is_explained(run, capsys, text, what, hint):
    run(text)
    assert main(["check", "report.json"]) == 2
    shown = capsys.readouterr().err
    assert what in shown
    assert hint in shown


def test_a_budget_without_a_limit_is_refused(run, capsys):
    assert main(["check", "report.json", "--budget", "step_time"]) == 2
    assert "'step_time' is not a budget" in capsys.readouterr().err


def test_budgets_may_stand_in_the_environment(tmp_path):
    environment = {"PROFILERKIT_BUDGETS": "step_time=200ms, input=20%"}
    settings = load_settings({}, environment=environment, start=tmp_path)
    assert settings.budgets == (("step_time", "200ms"), ("input", "20%"))
    with pytest.raises(ConfigError, match="budgets is not a table"):
        load_settings({}, environment={"PROFILERKIT_BUDGETS": "fast"}, start=tmp_path)


def test_a_run_is_checked_with_the_settings_of_the_project(run, capsys, tmp_path):
    (tmp_path / "trace.json").write_bytes(training(12, fetch=800, kernels=10).bytes())
    run('findings = "low"')
    assert main(["check", "trace.json"]) == 1
    budgets = (tmp_path / "pyproject.toml").read_text("utf-8")
    (tmp_path / "pyproject.toml").write_text(f'[tool.profilerkit]\nselect = ["CO"]\n{budgets}', encoding="utf-8")
    assert main(["check", "trace.json"]) == 0
    capsys.readouterr()
    assert main(["check", "report.json"]) == 0
    assert "report.json is a saved report: it keeps the settings it was made with" in capsys.readouterr().err


def test_a_shared_directory_keeps_every_check(run, tmp_path):
    run('step_time = "1 s"')
    shutil.copy("report.json", "other.json")
    Path("kept").mkdir()
    for name in ("report.json", "other.json"):
        assert main(["check", name, "-o", "kept"]) == 0
    names = [item.name for item in (tmp_path / "kept").iterdir()]
    assert len(names) == 2
    assert all(re.fullmatch(r"check\.\d{8}-\d{6}\.[0-9a-f]{8}\.txt", name) for name in names)
