"""Which row a number of a sentence leads to: the right one, and none by chance."""

import re

import pytest

from profilerkit.report import html
from profilerkit.report.citations import TOKEN, cited
from profilerkit.report.records import EvidenceRow
from profilerkit.report.templating import environment
from tests.report.samples import HOSTILE, SAMPLES


def row(name, label, value, interval="", basis="", also=""):
    return EvidenceRow(name, label, value, interval, basis, "measured", "x", also=also)


WAIT = row("E1", "Input wait per step", "40.2 ms", basis="n 46")
SHARE = row("E2", "Input wait, share of the step", "65 %", also="40.6 ms per step")
SAVING = row("E3", "Saving per step", "38.3 ms", "33.7 ms to 40.3 ms")
WORKERS = row("E4", "num_workers", "1", basis="n 46")
STEP = row("E5", "Step time, mean", "61.9 ms")
FIRED = row("E6", "Rules: fired", "3")
SILENT = row("E7", "Rules that could not run", "3")
CHANGE = row("E8", "Change of the step", "−64 %")
OWN, SHARED = (WAIT, SHARE, SAVING, WORKERS), (STEP, FIRED, SILENT)


def found(text, own=OWN, shared=SHARED, **options):
    rows = [(token[0], cited(token, own, shared, **options)) for token in TOKEN.finditer(text)]
    return [(shown, None if row is None else row.id) for shown, row in rows]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("waits 40.2 ms of every 61.9 ms step", [("40.2 ms", "E1"), ("61.9 ms", "E5")]),
        # Rounded otherwise than in the row, and the same number in another unit.
        ("waits 40 ms", [("40 ms", "E1")]),
        ("40.6 ms without data", [("40.6 ms", "E2")]),
        ("saves 33.7–40.3 ms", [("33.7–40.3 ms", "E3")]),
        ("1 worker is busy", [("1", "E4")]),
        # So many observations are behind a row, which does not tell what else there are 46 of.
        ("in 46 of them", [("46", None)]),
        ("3 of 61 rules fired; 3 could not run.", [("3 of 61", "E6"), ("3", "E7")]),
        ("waits 12 ms", [("12 ms", None)]),
        ("65 MiB", [("65 MiB", None)]),
    ],
)
def test_a_number_leads_to_the_row_that_shows_it(text, expected):
    assert found(text) == expected


def test_a_loss_and_a_negative_change_are_one_number():
    assert found("takes 64 % less", own=(CHANGE,), shared=()) == [("64 %", "E8")]


def test_a_number_of_another_thing_must_be_the_same_to_the_last_digit():
    assert found("a step of 61.9 ms", own=()) == [("61.9 ms", "E5")]
    assert found("a step of 62 ms", own=()) == [("62 ms", None)]


def test_a_time_of_another_thing_must_be_named():
    assert found("idle for 61.9 ms", own=()) == [("61.9 ms", None)]


def test_what_a_setting_is_to_be_is_no_count_of_the_run():
    eight = row("E9", "Cores", "8")
    assert found("num_workers 4 → 8", own=(eight,), shared=()) == [("4", None), ("8", None)]
    assert found("8 in all", own=(eight,), shared=()) == [("8", "E9")]


def test_a_finding_does_not_take_a_number_of_others_by_chance():
    text = "61.9 ms of work, 40.2 ms of 61.9 ms"
    assert found(text, is_finding=True) == [("61.9 ms", None), ("40.2 ms", "E1"), ("61.9 ms", "E5")]


@pytest.mark.parametrize(
    "text",
    ["FP32 on sm_90", "torch 2.13.0", "2026-11-22T19:51", "p90", "file_12.json", "E7", "64 × 5185 × 64", "0/1, 0/2"],
)
def test_names_have_no_quantities(text):
    assert TOKEN.findall(text) == []


def shown(text, *rows, **options):
    return str(environment().filters["cited"](text, *rows, **options))


def test_a_number_is_the_link_and_what_no_row_shows_leads_to_the_table():
    text = shown("waits 40.2 ms, 9 ms of it", OWN, table="evidence-IN001")
    assert text == (
        'waits <a class="n" href="#E1">40.2\u00a0ms</a>, <a class="n" href="#evidence-IN001">9\u00a0ms</a> of it'
    )
    assert shown("9 ms", OWN) == "9\u00a0ms"


def test_ranks_and_steps_are_names():
    text = shown("rank 3 waits in steps 3 to 5, 65 % of step 12", OWN, steps={"step-12"}, table="x")
    assert text == (
        'rank 3 waits in steps 3 to 5, <a class="n" href="#E2">65\u00a0%</a> of <a href="#step-12">step 12</a>'
    )
    assert "#E2" in shown("the lowest rank 65 %", OWN)


def test_code_and_hostile_text_stay_what_they_are():
    assert shown("set `num_workers=1`", OWN, table="x") == "set <code>num_workers=1</code>"
    text = shown(HOSTILE, OWN, SHARED, table="x")
    assert re.sub(r'<a class="n" href="#[\w-]+">|</a>|</?code>', "", text).count("<") == 0


@pytest.mark.parametrize("name", ["input_bound", "compute_bound", "multi_rank"])
def test_most_numbers_of_the_first_screen_lead_to_a_row_and_not_only_to_a_table(name):
    verdict = html.render(SAMPLES[name](), explorer=False).split('id="verdict"')[1].split("</section>")[0]
    links = re.findall(r'<a class="n" href="#([\w-]+)">', verdict)
    exact = [anchor for anchor in links if re.fullmatch(r"E\d+", anchor)]
    assert len(exact) > 0.7 * len(links)
