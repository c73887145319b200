"""``scripts/check_field``: which claims hold, what fails the run, and the committed page."""

import json
import re
import runpy
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from field_check.judge import checks_of_pair, checks_of_set
from field_check.page import render
from field_check.programs import PROGRAMS, Row

from tests.recipes import training

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / "scripts" / "check_field"
PROGRAMS_SCRIPT = ROOT / "scripts" / "check_programs"
REPORT = ROOT / "reports" / "field.json"
#: Of a loop that waits 4 ms for its data in a step of 5.01 ms.
STARVED = {"verdict_one_of": ["input-bound"], "verdict_never": ["comm-bound"]}


def field(directory, **sets):
    """A directory of recordings of a starved loop, and of one twice as quick, with truths."""
    (directory / "traces").mkdir()
    for name, truth in sets.items():
        training(12, fetch=4_000 if name != "quicker" else 1_500).write(directory / "traces" / f"{name}.json")
        truth["files"] = [{"file": f"{name}.json"}]
    return {"sets": sets, "pairs": []}


def check(directory, manifest, *arguments):
    (directory / "MANIFEST.json").write_text(json.dumps(manifest), "utf-8")
    command = [sys.executable, SCRIPT, directory, *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)


def held(checks):
    return {found.what: found.passed for found in checks}


@pytest.mark.parametrize(
    ("truth", "passed"),
    [
        ({"verdict_one_of": ["compute-bound"]}, {"verdict": False}),
        ({"verdict_one_of": None, "verdict_never": ["input-bound"]}, {"verdict": False}),
        ({"device_step_ms": 5.0}, {"verdict": True, "step": True}),
        ({"device_step_ms": 5.3}, {"verdict": True, "step": False}),
        ({"late_rank": 1, "ranks": 1}, {"verdict": True, "late rank": False, "ranks": True}),
        ({"saving": [0.2, 0.9]}, {"verdict": True, "saving": True}),
        ({"saving": [0.01, 0.02]}, {"verdict": True, "saving": False}),
    ],
)
def test_a_claim_holds_where_it_agrees_with_the_truth(tmp_path, truth, passed):
    entry = {**STARVED, **truth}
    field(tmp_path, starved=entry)
    assert held(checks_of_set("starved", entry, tmp_path / "traces")) == passed


def test_a_set_that_cannot_be_read_is_a_miss(tmp_path):
    (tmp_path / "empty.json").write_text("", "utf-8")
    (found,) = checks_of_set("empty", {**STARVED, "files": [{"file": "empty.json"}]}, tmp_path)
    assert not found.passed
    assert found.said.startswith("error: ")


@pytest.mark.parametrize(
    ("change", "said", "passed"), [(-0.5, "faster", True), (-0.1, "faster", False), (-0.5, "no change", False)]
)
def test_a_pair_is_held_against_the_real_change(tmp_path, change, said, passed):
    manifest = field(tmp_path, starved=dict(STARVED), quicker=dict(STARVED))
    pair = {"before": "starved", "after": "quicker", "change_of_step": change, "diff": said}
    found = checks_of_pair(pair, manifest["sets"], tmp_path / "traces")
    assert all(held(found).values()) == passed


def test_only_new_misses_and_known_ones_that_hold_fail_the_run(tmp_path):
    wrong = {**STARVED, "verdict_one_of": ["compute-bound"]}
    manifest = field(tmp_path, fresh=dict(STARVED), another=dict(wrong))
    new_miss = check(tmp_path, manifest)
    assert new_miss.returncode == 1
    assert re.search(r"another .* FAIL$", new_miss.stdout, re.MULTILINE)
    assert check(tmp_path, manifest, "--only", "fresh").returncode == 0


def test_a_known_miss_fails_the_run_once_it_holds(tmp_path, monkeypatch, capsys):
    script = runpy.run_path(str(SCRIPT))
    (found,) = checks_of_set("starved", field(tmp_path, starved=dict(STARVED))["sets"]["starved"], tmp_path / "traces")
    monkeypatch.setitem(script["KNOWN_MISSES"], (found.name, found.what), "a reason")
    assert script["told"](found)
    assert not script["told"](msgspec.structs.replace(found, passed=False))
    first, second = capsys.readouterr().out.splitlines()
    assert "no longer a miss" in first
    assert second.endswith("known miss: a reason")


def test_the_page_shows_every_claim_beside_its_truth(tmp_path):
    manifest = field(tmp_path, starved={**STARVED, "device_step_ms": 9.0})
    assert check(tmp_path, manifest, "--out", tmp_path).returncode == 1
    page = (tmp_path / "field.html").read_text("utf-8")
    assert "1 of 2 claims hold" in page
    assert "−44.3 %" in page.replace("\u00a0", " ")
    assert "9.00 ms" in page.replace("\u00a0", " ")
    assert not re.search(r"""src=|@import|url\(|https?://|<script""", page)


def test_the_committed_page_is_what_the_committed_figures_give():
    assert render(json.loads(REPORT.read_text("utf-8"))) == REPORT.with_suffix(".html").read_text("utf-8")


PROGRAM = {"name": "starved", "way": "run", "said": "input-bound fetch · IN001", "headline": "", "machine": True}
RIGHT = {**PROGRAM, "busy": 2, "family": True, "cause": True, "saving": [0.4, 0.5, 0.6], "measured": [0.45, 0.5]}
MISSED = {**PROGRAM, "busy": 0, "family": True, "cause": False, "saving": None, "measured": None}


def test_the_page_shows_every_recording_of_a_program(tmp_path):
    manifest = field(tmp_path, starved=dict(STARVED))
    (tmp_path / "field.json").write_text(json.dumps({"programs": [RIGHT, MISSED]}), "utf-8")
    assert check(tmp_path, manifest, "--out", tmp_path).returncode == 0
    page = (tmp_path / "field.html").read_text("utf-8").replace("\u00a0", " ")
    assert "cause missed" in page
    assert "40% to 60%" in page
    assert "45% to 50%" in page


def test_recording_a_program_anew_replaces_its_rows_alone(tmp_path):
    manifest = field(tmp_path, starved=dict(STARVED))
    assert check(tmp_path, manifest, "--out", tmp_path).returncode == 0
    write = runpy.run_path(str(PROGRAMS_SCRIPT))["write"]
    found = Row(name="starved", way="run", busy=0, said="input-bound", family=True, cause=True, saving=(0.1, 0.2, 0.3))
    write(tmp_path, [found, msgspec.structs.replace(found, name="other")], {"starved": (0.2, 0.2)})
    write(tmp_path, [msgspec.structs.replace(found, said="balanced")], {})
    programs = json.loads((tmp_path / "field.json").read_text("utf-8"))["programs"]
    assert [(row["name"], row["said"]) for row in programs] == [("other", "input-bound"), ("starved", "balanced")]


def test_every_program_beside_the_repository_has_a_truth():
    directory = ROOT.parent / "shared" / "field" / "programs"
    if not directory.is_dir():
        pytest.skip("the programs are not here")
    assert {path.stem for path in directory.glob("[!_]*.py")} == set(PROGRAMS)
