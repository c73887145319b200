"""Rules of a project are code: nothing loads them but your consent, which ends when a file changes."""

import json
import os
import py_compile
import shutil
import stat
import sys
from pathlib import Path

import pytest

from profilerkit.cli import main
from profilerkit.rules import RULES
from tests.recipes import training

RULE = """
from profilerkit.plugin import Passed, Rule
with open({marker!r}, "a") as marker:
    marker.write("ran ")

class ColdDisk(Rule, frozen=True):
    \"\"\"A rule.\"\"\"
    code = "XC001"
    name = "cold_disk"
    family = "input"
    summary = "The disk is cold"

    def check(self, facts):
        return Passed("warm")
"""
VERBS = [
    ("analyze", "trace.json", "-f", "json", "-o", "out.json"),
    ("check", "trace.json", "--budget", "step_time=9s"),
    ("diff", "trace.json", "trace.json"),
    ("export", "trace.json", "-o", "out.gz"),
    ("reduce", "summaries", "-f", "json", "-o", "out.json"),
    ("rules",),
]
HOW = "To allow them: profilerkit rules --allow-rules"


@pytest.fixture
def cloned(tmp_path, monkeypatch):
    """The working directory: somebody's repository with a rule, a trace and its summary; ``ran`` says the rule ran."""
    project = tmp_path / "cloned"
    (project / "checks").mkdir(parents=True)
    (project / ".git").mkdir()
    (project / "pyproject.toml").write_text('[tool.profilerkit]\nrules-path = "checks"\nignore = ["XC9", "OV"]\n')
    (project / "checks" / "rule.py").write_text(RULE.format(marker=str(project / "ran")))
    training(6).write(project / "trace.json")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("PROFILERKIT_RULES_PATH", raising=False)
    monkeypatch.chdir(project)
    assert main(["map", "trace.json", "-o", "summaries", "--engine", "inline", "-q"]) == 0
    yield project
    for name in [name for name in sys.modules if name.startswith("profilerkit_project_rules")]:
        del sys.modules[name]


def ran(project):
    marker = project / "ran"
    try:
        return marker.read_text().count("ran")
    except FileNotFoundError:
        return 0
    finally:
        marker.unlink(missing_ok=True)


def record(tmp_path):
    return tmp_path / "config" / "profilerkit" / "allowed_rules.json"


@pytest.mark.parametrize("words", VERBS, ids=lambda words: words[0])
def test_a_verb_runs_no_code_of_a_cloned_repository_until_it_is_allowed(cloned, capsys, words):
    assert main([*words]) == 0
    assert not ran(cloned)
    assert HOW in " ".join(capsys.readouterr().err.split())
    (cloned / "pyproject.toml").write_text('[tool.profilerkit]\nrules-path = "checks"\n')
    assert main([*words, "--allow-rules"]) == 0
    assert ran(cloned)
    shown = capsys.readouterr().err
    assert "Rules were loaded from checks, whose code is run." in shown
    assert "not loaded" not in shown


def test_map_runs_no_rules_at_all(cloned):
    assert main(["map", "trace.json", "-o", "again", "--engine", "inline", "-q"]) == 0
    assert not ran(cloned)


@pytest.mark.parametrize("verb", ["analyze", "reduce"])
def test_every_report_says_what_was_loaded_or_not(cloned, verb):
    words = next(words for words in VERBS if words[0] == verb)

    def report():
        assert main([*words, "-q"]) == 0
        found = json.loads(Path("out.json").read_text())
        return [outcome["rule"] for outcome in found["outcomes"]], found["trust"]["notes"]

    rules, notes = report()
    assert rules == [rule.code for rule in RULES]
    assert any(note.startswith("Rules were found in checks and not loaded") and HOW in note for note in notes)
    (cloned / "pyproject.toml").write_text('[tool.profilerkit]\nrules-path = "checks"\n')
    assert main(["rules", "--allow-rules", "-q"]) == 0
    rules, notes = report()
    assert rules[-1] == "XC001"
    assert "Rules were loaded from checks, whose code is run." in notes


def allow(cloned):
    (cloned / "pyproject.toml").write_text('[tool.profilerkit]\nrules-path = "checks"\n')
    assert main(["rules", "--allow-rules", "-q"]) == 0
    assert ran(cloned) == 1


@pytest.mark.parametrize("change", ["edit", "add", "remove", "rename", "swap"])
def test_a_changed_file_has_to_be_allowed_again(cloned, change, capsys):
    other = cloned / "checks" / "other.py"
    other.write_text("x = 1\n")
    allow(cloned)
    assert main(["rules", "-q"]) == 0
    assert ran(cloned) == 1
    if change == "edit":
        other.write_text("x = 2\n")
    elif change == "add":
        (cloned / "checks" / "new.py").write_text("x = 1\n")
    elif change == "remove":
        other.unlink()
    elif change == "rename":
        other.rename(other.with_name("renamed.py"))
    else:
        (cloned / "checks").rename(cloned / "old")
        (cloned / "checks").symlink_to(cloned / "old")
    capsys.readouterr()
    assert main(["rules"]) == 0
    assert not ran(cloned)
    assert HOW in " ".join(capsys.readouterr().err.split())
    assert main(["rules", "--allow-rules", "-q"]) == 0
    assert ran(cloned) == 1


def test_consent_holds_below_the_project_and_for_that_directory_alone(cloned, tmp_path, monkeypatch):
    allow(cloned)
    below = cloned / "below"
    below.mkdir()
    monkeypatch.chdir(below)
    assert main(["rules", "-q"]) == 0
    assert ran(cloned) == 1
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in ("checks", "pyproject.toml"):
        (shutil.copytree if (cloned / name).is_dir() else shutil.copy)(cloned / name, copy / name)
    monkeypatch.chdir(copy)
    assert main(["rules", "-q"]) == 0
    assert not ran(cloned)


def test_compiled_files_do_not_run_instead_of_what_was_allowed(cloned):
    allow(cloned)
    rule = cloned / "checks" / "rule.py"
    evil = cloned / "evil.py"
    evil.write_text(rule.read_text().replace("ran ", "ran ran "))
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    for name in ("rule", "other"):
        target = cloned / "checks" / "__pycache__" / f"{name}.{sys.implementation.cache_tag}.pyc"
        py_compile.compile(str(evil), str(target), invalidation_mode=mode)
    assert main(["rules", "-q"]) == 0
    assert ran(cloned) == 1


def test_the_record_is_readable_by_its_owner_alone_and_names_path_and_content(cloned, tmp_path):
    allow(cloned)
    path = record(tmp_path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    ((named, digest),) = json.loads(path.read_text()).items()
    assert named == str((cloned / "checks").resolve())
    assert len(digest) == 64
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("state", ["broken", "list", "writable by others", "directory", "of somebody else"])
def test_a_record_that_cannot_be_trusted_allows_nothing(cloned, tmp_path, state):
    allow(cloned)
    path = record(tmp_path)
    if state == "broken":
        path.write_text("{")
    elif state == "list":
        path.write_text("[1]")
    elif state == "writable by others":
        path.chmod(0o666)
    elif state == "directory":
        path.unlink()
        path.mkdir()
    elif os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    else:
        os.chown(path, 12345, -1)
    assert main(["rules", "-q"]) == 0
    assert not ran(cloned)


def test_a_record_that_cannot_be_written_is_an_error_in_three_parts(cloned, tmp_path, monkeypatch, capsys):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "file"))
    assert main(["rules", "--allow-rules"]) == 2
    shown = capsys.readouterr().err
    assert shown.startswith("error: the rules cannot be recorded as allowed\ncause: ")
    assert "PROFILERKIT_RULES_PATH" in shown
    assert not ran(cloned)


def test_allowing_where_there_are_no_rules_is_an_error_in_three_parts(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["rules", "--allow-rules"]) == 2
    assert capsys.readouterr().err.startswith("error: --allow-rules found no rules\ncause: ")


def test_without_xdg_the_record_lies_in_the_home_directory(cloned, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    allow(cloned)
    assert (tmp_path / "home" / ".config" / "profilerkit" / "allowed_rules.json").is_file()
    assert not (cloned / "relative").exists()


def test_naming_the_rules_in_a_variable_is_consent(cloned, monkeypatch, tmp_path):
    monkeypatch.setenv("PROFILERKIT_RULES_PATH", str(cloned / "checks"))
    (cloned / "pyproject.toml").write_text("")
    assert main(["rules", "-q"]) == 0
    assert ran(cloned) == 1
    assert not record(tmp_path).exists()


@pytest.mark.parametrize("kind", ["pipe", "endless", "huge", "dangling"])
def test_a_file_that_is_no_page_of_text_is_left_out(cloned, capsys, kind):
    odd = cloned / "checks" / "odd.py"
    if kind == "pipe":
        os.mkfifo(odd)
    elif kind == "huge":
        with odd.open("wb") as file:
            file.truncate(1 << 33)
    else:
        odd.symlink_to("/dev/zero" if kind == "endless" else "nowhere")
    allow(cloned)
    capsys.readouterr()
    assert main(["rules"]) == 0
    assert "odd.py was left out: ImportError" in " ".join(capsys.readouterr().err.split())
    assert ran(cloned) == 1


def test_settings_of_rules_that_are_not_loaded_do_no_harm_and_typing_errors_are_told_where_they_are(cloned, capsys):
    settings = """[tool.profilerkit]
rules-path = "checks"
ignore = ["{ignored}", "CO"]
[tool.profilerkit.rules.XC001]
[tool.profilerkit.rules.IN001]
smallest-share = 0.25
[[tool.profilerkit.suppress]]
rule = "cold_disk"
reason = "known"
"""
    (cloned / "pyproject.toml").write_text(settings.format(ignored="XC001"))
    assert main(["analyze", "trace.json", "-f", "json", "-o", "-", "-q"]) == 0
    statuses = {outcome["rule"]: outcome["status"] for outcome in json.loads(capsys.readouterr().out)["outcomes"]}
    assert "XC001" not in statuses
    assert statuses["CO001"] == "off"
    assert main(["rules", "IN001"]) == 0
    assert "smallest_share = 0.25" in capsys.readouterr().out
    assert main(["analyze", "trace.json", "--allow-rules", "-q"]) == 0
    (cloned / "pyproject.toml").write_text(settings.format(ignored="XC004"))
    assert main(["analyze", "trace.json"]) == 2
    assert "unknown rule 'XC004'" in capsys.readouterr().err


def test_a_file_beside_a_recording_elsewhere_is_not_read(cloned, tmp_path, monkeypatch):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert main(["analyze", str(cloned / "trace.json"), "-q"]) == 0
    assert not ran(cloned)
