"""What ``profilerkit try`` measured takes the place of what was predicted, where it is of this run's command."""

import os

import pytest
from msgspec.structs import replace

from profilerkit import analyze
from profilerkit.model.diff import Range
from profilerkit.model.finding import in_order
from profilerkit.model.trial import Attempt, Trial
from profilerkit.report import terminal
from profilerkit.rundir.files import write_document
from profilerkit.rundir.layout import TRIAL
from tests.recipes import Log, write_run


@pytest.fixture
def run(tmp_path):
    return write_run(tmp_path / "run", [Log().steps(30, 30_000, wait=18_000, wait_cpu=17_000)])


def first(report):
    return next(finding for _, finding in in_order(report.outcomes) if finding.fix and finding.fix.changes)


def tried(run, low, expected, high, outcome="faster", **fields):
    """Try the first fix of the run in advance; its finding before and after."""
    before = first(analyze(run))
    saving = Range(low=low, expected=expected, high=high)
    attempt = Attempt(changes=before.fix.changes, outcome=outcome, saving=saving, runs=3, **fields)
    known = {"name": "train", "created": "", "command": ("/usr/bin/python", "net/train.py", "--lr", "1")}
    trial = Trial(**known, attempts=(attempt,))
    write_document(run / TRIAL, trial)
    report = analyze(run)
    title = before.title
    return before, next(found for _, found in in_order(report.outcomes) if found.title == title), report, trial


def test_the_measured_saving_takes_the_place_of_the_predicted_one(run):
    before, after, report, _ = tried(run, 0.29, 0.31, 0.33)
    saving = after.saving
    assert (saving.low, saving.expected, saving.high) == (0.29, 0.31, 0.33)
    assert (saving.method, saving.calibration) == ("trial", "measured by try")
    assert before.saving.method != "trial"
    assert after.fix == before.fix
    assert "`profilerkit try` made this change and measured a step 31 % shorter (29–33 %)" in after.confirm
    assert "was predicted" in after.confirm
    assert "29–33 %" in terminal.render(report)
    assert "the change itself, measured by try" in report.to_html()


@pytest.mark.parametrize(
    ("saving", "outcome", "said"),
    [
        ((-0.13, -0.11, -0.09), "slower", "a step 11 % longer (9.0–13 %)"),
        ((-0.02, 0.001, 0.02), "no_change", "no clear change (2.0 % longer to 2.0 % shorter)"),
    ],
)
def test_a_fix_that_saved_nothing_is_not_proposed(run, saving, outcome, said):
    before, after, _, _ = tried(run, *saving, outcome=outcome)
    assert before.fix is not None
    assert (after.fix, after.saving) == (None, None)
    assert said in after.confirm


def test_a_fix_of_which_too_little_is_known_is_still_proposed(run):
    _, after, _, _ = tried(run, -0.2, 0.01, 0.9, outcome="no_change")
    assert after.fix is not None
    assert (after.saving.low, after.saving.high) == (0.0, 0.9)
    _, after, _, _ = tried(run, -5.8e15, -0.6, 1.0, outcome="no_change")
    assert "no clear change, in too few runs;" in after.confirm


def test_other_losses_are_said(run):
    _, after, _, _ = tried(run, 0.29, 0.31, 0.33, numbers="differs")
    assert after.confirm.endswith("Its losses differ: look at them.")


def test_an_attempt_of_other_values_or_that_failed_changes_nothing(run):
    before, _, _, trial = tried(run, 0.29, 0.31, 0.33)
    (attempt,) = trial.attempts
    (change,) = attempt.changes
    others = replace(attempt, changes=(type(change)(change.setting, change.now, 99),))
    failed = replace(attempt, outcome="failed", saving=None)
    write_document(run / TRIAL, replace(trial, attempts=(others, failed)))
    assert first(analyze(run)) == before


@pytest.mark.parametrize(
    "command",
    [("train.py", "--lr", "2"), ("eval.py", "--lr", "1"), ("--lr", "1"), ("train.py", "--lr", "1", "more")],
)
def test_a_trial_of_another_command_is_not_used(run, command):
    before, _, _, trial = tried(run, 0.29, 0.31, 0.33)
    write_document(run / TRIAL, replace(trial, command=command))
    report = analyze(run)
    assert first(report) == before
    assert "trial.json is not used: it is of another command" in report.trust.notes


def test_a_redacted_trial_is_known_by_its_name(run):
    before, after, _, trial = tried(run, 0.29, 0.31, 0.33)
    write_document(run / TRIAL, replace(trial, command=()))
    assert first(analyze(run)) == after
    write_document(run / TRIAL, replace(trial, command=(), name="eval"))
    assert first(analyze(run)) == before


@pytest.mark.parametrize("kind", ["text", "deep", "values", "version", "link", "pipe"])
def test_a_hostile_trial_costs_nothing_but_itself(run, kind, tmp_path):
    before, _, _, trial = tried(run, 0.29, 0.31, 0.33)
    path = run / TRIAL
    if kind == "version":
        write_document(path, replace(trial, schema_version=2))
    else:
        path.unlink()
    if kind == "link":
        write_document(tmp_path / "there.json", trial)
        path.symlink_to(tmp_path / "there.json")
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind != "version":
        path.write_text({"text": "no", "deep": '{"x":' + 100_000 * "[", "values": '{"name": 1, "created": ""}'}[kind])
    report = analyze(run)
    assert first(report) == before
    assert any(note.startswith("trial.json is not used: ") for note in report.trust.notes)


def test_absurd_numbers_of_a_trial_stay_within_a_step(run):
    _, after, report, _ = tried(run, -1e300, 5.0, 1e300)
    assert (after.saving.low, after.saving.expected, after.saving.high) == (0.0, 1.0, 1.0)
    assert report.to_html()
