"""Markdown: small enough for a comment, whole sentences, inert names."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profilerkit.report import markdown
from tests.report.samples import LONG, SAMPLES, hostile


@pytest.fixture(scope="module")
def texts():
    return {name: markdown.render(build()) for name, build in SAMPLES.items()}


@pytest.mark.parametrize("name", SAMPLES)
def test_it_fits_into_six_thousand_bytes(texts, name):
    assert len(texts[name].encode()) <= 6_000


@settings(max_examples=60, deadline=None)
@given(st.text(st.characters(codec=None), min_size=1, max_size=40), st.integers(1, 400))
def test_no_name_makes_it_larger_or_active(piece, times):
    text = markdown.render(hostile(piece * times))
    assert len(text.encode()) <= 6_000
    assert active_tags(text) <= {"details", "summary", "br", "sub"}


def without_code(text):
    """The text outside fenced blocks, where Markdown and GitHub read mark-up."""
    return re.sub(r"^(`{3,})python\n.*?^\1$", "", text, flags=re.DOTALL | re.MULTILINE)


def active_tags(text):
    bare = without_code(text)
    bare = re.sub(r"(?<!\\)`[^`\n]+`", "", bare)
    return set(re.findall(r"<(?!!--)/?([a-zA-Z]+)", bare))


@pytest.mark.parametrize("name", SAMPLES)
def test_it_starts_with_the_marker_and_closes_what_it_opens(texts, name):
    text = texts[name]
    assert text.startswith("<!-- profilerkit-report -->\n")
    assert without_code(text).count("<!--") == 1
    assert len(re.findall(r"^<details>", text, re.MULTILINE)) == len(re.findall(r"^</details>", text, re.MULTILINE))
    fences = re.findall(r"^(`{3,})(?:python)?$", text, re.MULTILINE)
    assert len(fences) % 2 == 0


@pytest.mark.parametrize("name", SAMPLES)
def test_tables_keep_their_columns(texts, name):
    for block in re.findall(r"(?:^\|.*\|$\n?)+", texts[name], re.MULTILINE):
        widths = {row.count("|") for row in block.strip().splitlines()}
        assert len(widths) == 1


@pytest.mark.parametrize("name", [name for name in SAMPLES if name.startswith("hostile")])
def test_hostile_names_are_inert(texts, name):
    text = without_code(texts[name])
    assert active_tags(text) <= {"details", "summary", "br", "sub"}
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "https://" not in text
    assert not re.search(r"@everyone", text.replace("@\u200b", ""))


def test_the_four_numbers_and_the_top_changes_are_there(texts):
    text = texts["input_bound"]
    assert "### The GPU waits 38 ms of every 176 ms step for data" in text
    head = text.split("**What to change")[0]
    assert len(re.findall(r"^\| .* \*\*.*\*\* \|", head, re.MULTILINE)) == 4
    assert len(re.findall(r"^\d\. ", text, re.MULTILINE)) == 3
    assert "Raise `num_workers` 2 → 8 and set `persistent_workers=True`." in text
    assert "Evidence: E1 GPU idle while the loop waits for a batch: 38.1 ms; " in text
    assert "HTML" not in text


def test_a_rule_that_could_not_run_is_set_off_from_how_to_record_it(texts):
    summary = next(o.summary for o in SAMPLES["input_bound"]().outcomes if o.status == "missing_data")
    assert f"{summary}: " in texts["input_bound"]


def test_a_text_bar_has_twenty_cells(texts):
    bars = re.findall(r"`([█░]+)`", texts["input_bound"])
    assert len(bars) == 6
    assert {len(bar) for bar in bars} == {20}


def test_rows_go_before_sentences():
    report = hostile("word " * 30)
    text = markdown.render(report)
    assert len(text.encode()) <= 6_000
    assert "Made by profilerkit" in text


def test_code_with_backticks_gets_a_longer_fence():
    text = markdown.render(hostile("a ``` b"))
    fence = re.search(r"^(`+)python$", text, re.MULTILINE)
    assert fence is None or len(fence.group(1)) >= 4


def test_a_ten_thousand_character_name_is_cut_in_the_middle():
    text = markdown.render(hostile(LONG))
    assert "…" in text
    assert "vectorized" in text
