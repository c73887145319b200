"""What is left out of reports on the way to a file, and how it is kept."""

import getpass
import json
import socket
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest

from profilerkit import api
from profilerkit.cli import arguments, main
from profilerkit.model import revise
from profilerkit.model.finding import in_order
from profilerkit.report.redaction import redacted
from profilerkit.results import as_report
from profilerkit.rundir.places import Identity
from tests.report.samples import SAMPLES

SECRET = "/data/team/undisclosed/net/train.py"
SCRIPT = f"""
import getpass, profilerkit, socket, sys, time
with profilerkit.profile(sys.argv[1], deep=False, nvml=False) as prof:
    for _ in range(12):
        time.sleep(0.001)
        prof.step()
    raise RuntimeError(f"no {SECRET} for {{getpass.getuser()}}@{{socket.gethostname()}}")
"""


@pytest.fixture
def saved(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    report = SAMPLES["input_bound"]()
    report = revise(report, run=revise(report.run, command=f"train.py --data {SECRET}"))
    as_report(report).to_json("run.json", redact=False)
    return report


@pytest.mark.parametrize("command", [["analyze"], ["analyze", "-f", "html"], ["analyze", "-f", "md"]])
def test_analyze_tells_no_paths_unless_told_to(saved, capsys, command):
    form = [] if "-f" in command else ["-f", "json"]
    assert main([*command, *form, "run.json", "-o", "-"]) == 0
    told = capsys.readouterr().out
    assert "undisclosed" not in told
    assert main([*command, *form, "run.json", "-o", "-", "--no-redact"]) == 0
    assert ("undisclosed" in capsys.readouterr().out) == ("md" not in command)


def test_diff_compares_what_was_redacted_with_what_was_not(saved, capsys):
    as_report(redacted(saved, Identity())).to_json("told.json")
    for option in ([], ["--no-redact"]):
        assert main(["diff", "run.json", "told.json", "-f", "json", "-o", "-", *option]) == 0
        assert json.loads(capsys.readouterr().out)["differences"] == []
    as_report(revise(saved, run=revise(saved.run, command="train.py --data /data/undisclosed/other/b.py"))).to_json(
        "other.json", redact=False
    )
    assert main(["diff", "run.json", "other.json", "-f", "json", "-o", "-"]) == 0
    (difference,) = json.loads(capsys.readouterr().out)["differences"]
    assert (difference["before"], difference["after"]) == (
        "train.py --data …",
        "train.py --data …",
    )
    assert main(["diff", "run.json", "other.json", "-f", "json", "-o", "-", "--no-redact"]) == 0
    assert "undisclosed" in capsys.readouterr().out


def test_a_report_is_compared_with_what_it_wrote_itself(saved, tmp_path):
    as_report(saved).to_json(tmp_path / "told.json")
    for sides in ((saved, "told.json"), ("told.json", saved)):
        assert api.diff(*sides).differences == ()
    assert api.diff("run.json", saved, also_after=["told.json"]).differences == ()
    assert not saved.run.redacted


def test_check_tells_no_paths_unless_told_to(saved, capsys):
    outcome, finding = in_order(saved.outcomes)[0]
    told = revise(finding, title=f"Rank 0 waits in {SECRET}(12)")
    report = revise(saved, outcomes=(revise(outcome, findings=(told,)),))
    as_report(report).to_json("run.json", redact=False)
    for option, is_told in (([], False), (["--no-redact"], True)):
        main(["check", "run.json", "--budget", "step_time=1s", "-f", "sarif", "-o", "-", *option])
        out = capsys.readouterr().out
        assert ("undisclosed" in out, "net/train.py(12)" in out) == (is_told, True)


def test_a_run_redacts_the_report_that_it_writes_itself(tmp_path, capsys):
    script, run = tmp_path / "train.py", tmp_path / "run"
    script.write_text(SCRIPT, encoding="utf-8")
    ended = subprocess.run([sys.executable, script, run], capture_output=True, text=True, check=False)
    assert "RuntimeError" in ended.stderr
    whose = f"{getpass.getuser()}@{socket.gethostname()}"
    told = api.load(run / "report.json").run
    assert told.ended == "RuntimeError"
    assert str(tmp_path) not in told.command
    page = (run / "report.html").read_text("utf-8")
    assert "undisclosed" not in page
    assert whose not in page

    assert main(["analyze", str(run), "-f", "json", "-o", "-", "--no-redact"]) == 0
    kept = json.loads(capsys.readouterr().out)["run"]
    assert kept["ended"] == f"RuntimeError: no {SECRET} for {whose}"
    assert not kept["redacted"]


def test_a_machine_without_names_costs_no_report(monkeypatch):
    def unknown(*_):
        raise KeyError("uid not found")

    def homeless(*_):
        raise RuntimeError("no home")

    monkeypatch.setattr(getpass, "getuser", unknown)
    monkeypatch.setattr(Path, "home", homeless)
    told = arguments.shown_report(SAMPLES["input_bound"](), [], Namespace(no_redact=False))
    assert told.run.redacted
