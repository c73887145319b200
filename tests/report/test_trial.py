"""A trial rendered: terminal, Markdown, HTML, JSON; what a shared one leaves out; and what is refused."""

import json
import re

import msgspec
import pytest
from msgspec.structs import replace

from profilerkit.model.finding import CodeLine, SettingChange
from profilerkit.model.trial import Attempt, Trial
from profilerkit.report import html, markdown, redaction, terminal
from profilerkit.report import json as report_json
from profilerkit.results import as_trial
from profilerkit.rundir.places import Identity
from tests.report import trials
from tests.report.pages import Page
from tests.report.samples import HOSTILE, LONG
from tests.report.test_json import problems

TOKEN = "sk-abcdefghijklmnopqrstuvwxyz0123456789"
SECRETS = ("jdoe", "undisclosed", TOKEN, "hunter2hunter2", "--lr", "batch_size=32")


def hostile(name=HOSTILE):
    bad = replace(
        trials.WORKERS,
        changes=(SettingChange(name, name, name),),
        reason=name,
        lines=(CodeLine(name, 1, name),),
        code=name,
    )
    whole = trials.trial(
        bad, replace(bad, outcome="failed", kept=False), together=replace(bad, changes=2 * bad.changes)
    )
    return replace(whole, name=name, command=(name,), created=name, notes=(name,), patch=name)


TRIALS = {**trials.TRIALS, "hostile": hostile, "hostile_long": lambda: hostile(LONG)}
ALL = pytest.mark.parametrize("made", TRIALS.values(), ids=TRIALS)


# Terminal.


def test_each_change_has_its_prediction_its_measure_and_its_losses():
    text = terminal.render(trials.helps(), width=140)
    for row in (
        r"baseline +176 ms ± 1\.0 %",
        r"num_workers 0 → 3 +−33 % \(20–34\) +−31 % \(29–33\) +same losses",
        r"fused False → True +−4\.0 % \(1\.0–6\.0\) +−3\.0 % \(2\.0–4\.0\) +same losses within rounding",
        r"autocast none → bf16 +up to −52 % +−44 % \(42–46\) +losses differ 2e-3: look",
        r"matmul_precision highest → high +not predicted +no clear change \(−1\.6 % to \+0\.4 %\) +losses not compared",
        r"channels_last False → True +not predicted +11 % slower \(9\.0–13\) +same losses",
        r"foreach False → True +not predicted +failed\n",
        r"together +not predicted +−34 % \(31–36\) +same losses within rounding",
    ):
        assert re.search(row, text), row
    assert "foreach False → True: SGD has no foreach here" in text


def test_the_headline_is_what_the_advice_saves_together():
    text = terminal.render(trials.helps())
    assert "▼ FASTER\n2 changes together make the step 34 % shorter: 176 ms → 117 ms\n" in text
    one = terminal.render(trials.trial(trials.WORKERS))
    assert "num_workers 0 → 3 makes the step 31 % shorter: 176 ms → 121 ms" in one


def test_what_to_keep_has_its_code_and_line():
    text = terminal.render(trials.helps())
    kept = text.partition("To keep\n")[2].partition("\n\n")[0]
    assert "num_workers 0 → 3, at main (train.py:41)\n   loader = DataLoader(..., num_workers=3)" in kept
    assert "channels_last" not in kept


def test_changes_with_other_losses_are_for_the_user_to_judge():
    text = terminal.render(trials.helps())
    assert "autocast none → bf16" in text.partition("Faster, with other losses")[2]
    alone = terminal.render(trials.trial(trials.AUTOCAST))
    assert "Nothing here helps without changing the losses: look at autocast none → bf16" in alone
    kept = terminal.render(trials.trial(replace(trials.AUTOCAST, kept=True)))
    assert "Look at the losses before you keep autocast none → bf16." in kept


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nothing helps", "Nothing here helps: 2 changes tried"),
        ("nothing to try", "There was nothing to try"),
        ("no time", "NOT MEASURED\nTime ran out: no change was tried, 1 left"),
        ("little time", "NOT SETTLED\nTime ran out: of 1 change tried none helps, 1 left"),
        ("failed", "Too little was measured to say what helps"),
    ],
)
def test_it_is_said_plainly_where_nothing_helps(name, said):
    text = terminal.render(TRIALS[name]())
    assert said in text
    assert "To keep" not in text
    assert "FASTER\n" not in text.replace("NO FASTER", "")


def test_a_change_that_failed_was_not_measured_and_one_run_settles_nothing():
    failed = terminal.render(trials.trial(trials.FAILED))
    assert "NOT MEASURED\nThe change failed: nothing was measured" in failed
    once = replace(trials.WORKERS, outcome="no_change", runs=1, kept=False)
    assert "no clear change (too few runs)" in terminal.render(trials.trial(once))


def test_a_usual_trial_fits_on_a_screen():
    usual = trials.trial(trials.WORKERS, trials.FUSED, trials.SLOWER, trials.FAILED, together=trials.TOGETHER)
    assert len(terminal.render(usual).splitlines()) <= 24


@ALL
@pytest.mark.parametrize("width", [40, 80])
def test_no_line_is_wider_than_the_terminal(made, width):
    text = terminal.render(made(), width=width)
    assert max(map(len, text.splitlines())) <= width
    assert "\x1b" not in text


def test_colour_and_ascii_are_on_demand():
    assert "\x1b[" in terminal.render(trials.helps(), colour=True)
    plain = terminal.render(trials.helps(), ascii_only=True)
    assert plain.isascii()
    assert "?" not in plain


# Documents.


@ALL
def test_markdown_fits_into_a_comment_and_closes_what_it_opens(made):
    text = markdown.render(made())
    assert len(text.encode("utf-8", "replace")) <= 6_000
    assert text.startswith("<!-- profilerkit-try -->\n### ")
    assert text.count("<details>") == text.count("</details>")
    for block in re.findall(r"(?:^\|.*\|$\n?)+", text, re.MULTILINE):
        assert len({row.count("|") for row in block.strip().splitlines()}) == 1


@ALL
def test_the_page_loads_nothing_runs_nothing_and_is_closed(made):
    text = html.render(made())
    page = Page(text)
    assert page.open == []
    assert not {tag for tag, _ in page.tags} & {"link", "img", "iframe", "object", "embed", "form", "base"}
    assert not any(attribute.startswith("on") for _, attrs in page.tags for attribute in attrs)
    assert len(page.all("h1")) == 1
    assert len(text.encode()) < 100_000


# JSON.


@ALL
def test_json_fits_the_schema_that_ships_and_is_loaded_back(made):
    schema = json.loads(report_json.schema_path(Trial).read_text(encoding="utf-8"))
    text = report_json.render(made())
    assert problems(json.loads(text), schema, schema) == []
    assert json.loads(report_json.render(msgspec.json.decode(text, type=Trial))) == json.loads(text)


def test_the_shipped_schema_of_trials_is_fresh():
    assert report_json.schema_path(Trial).read_text(encoding="utf-8") == report_json.schema_text(Trial), (
        "run: python -c 'from profilerkit.report.json import write_schemas; write_schemas()'"
    )


def test_methods_write_files(tmp_path):
    made = as_trial(trials.helps())
    for name, write in (("json", made.to_json), ("html", made.to_html), ("md", made.to_markdown)):
        path = tmp_path / f"trial.{name}"
        assert write(path) == path.read_text(encoding="utf-8")
    told = msgspec.json.decode((tmp_path / "trial.json").read_bytes(), type=Trial)
    assert told.attempts == made.attempts
    assert Page(made._repr_html_()).open == []


# What others are shown.


def telling():
    """A trial whose every kind of text names somebody or something."""
    path = "/data/undisclosed/team/net/train.py"
    failed = replace(trials.FAILED, reason=f"exit code 1: ValueError: hunter2hunter2 in {path}", code=f"open('{path}')")
    change = SettingChange("env:X", TOKEN, path)
    kept = replace(trials.WORKERS, changes=(change,), lines=(CodeLine(path, 3, "main"),))
    return as_trial(replace(trials.trial(kept, failed, notes=(f"at {path}",)), name="jdoe", patch=trials.PATCH))


@pytest.mark.parametrize("form", ["to_json", "to_html", "to_markdown"])
def test_names_tokens_paths_and_lines_of_code_are_left_out_unless_it_is_asked_for_them(form, monkeypatch):
    monkeypatch.setattr(redaction, "identity_of", lambda: Identity(users=frozenset(("jdoe",)), hosts=frozenset()))
    told = getattr(telling(), form)()
    assert [secret for secret in SECRETS if secret in told] == []
    assert "train.py:3" in told or '"train.py"' in told or "net/train.py" in told
    whole = telling().to_json(redact=False)
    assert [secret for secret in SECRETS if secret not in whole] == []


def test_a_shared_trial_has_no_value_of_a_variable_and_no_words_of_the_program():
    change = SettingChange("env:DB_PASSWORD", "", "hunter2")
    attempt = Attempt(changes=(change,), outcome="failed", reason="exit code 1: cannot log in as --token hunter2")
    trial = as_trial(Trial(name="train", created="2026-01-01", attempts=(attempt,)))
    for text in (trial.to_json(), trial.to_html(), trial.to_markdown()):
        assert "hunter2" not in text
    assert "hunter2" in trial.to_json(redact=False)
