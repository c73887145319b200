"""Terminal text: never wider than asked, ASCII when asked, inert against escapes and markup."""

import re

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from profilerkit.report import terminal, view
from profilerkit.report.page import cells
from tests.report.samples import SAMPLES, hostile

ANSI = re.compile(r"\x1b\[[0-9;]*m")


@pytest.mark.parametrize("width", [40, 60, 80, 120])
@pytest.mark.parametrize("name", SAMPLES)
def test_no_line_is_wider_than_asked(name, width):
    for line in terminal.render(SAMPLES[name](), width=width).splitlines():
        assert cell_len(line) <= width


@pytest.mark.parametrize("name", SAMPLES)
def test_ascii_only_means_ascii(name):
    text = terminal.render(SAMPLES[name](), ascii_only=True)
    assert text.isascii()
    assert all(char == "\n" or char.isprintable() for char in text)
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize("name", SAMPLES)
def test_colour_changes_no_character(name):
    plain = terminal.render(SAMPLES[name]())
    coloured = terminal.render(SAMPLES[name](), colour=True)
    stripped = "\n".join(line.rstrip() for line in ANSI.sub("", coloured).splitlines()) + "\n"
    assert stripped == plain
    assert "\x1b" not in plain
    assert "\x1b[" in coloured


def test_the_environment_does_not_overrule_the_caller(monkeypatch):
    expected = terminal.render(SAMPLES["balanced"]())
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    assert terminal.render(SAMPLES["balanced"]()) == expected
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[" in terminal.render(SAMPLES["balanced"](), colour=True)


def test_hostile_names_stand_as_text():
    text = terminal.render(hostile())
    assert "[red]bold[/red]" in text
    assert "\\x1b[31m" in re.sub(r"\s", "", text)
    for char in "\x1b\x07\u202e\u2069\udc80":
        assert char not in text


@settings(max_examples=60, deadline=None)
@given(st.text(st.characters(codec=None), max_size=60))
def test_any_name_stays_within_the_page(name):
    text = terminal.render(hostile(name))
    assert all(cell_len(line) <= 80 for line in text.splitlines())
    assert "\x1b" not in text


def test_everything_a_reader_needs_is_there():
    text = " ".join(terminal.render(SAMPLES["input_bound"]()).split())
    for piece in (
        "▲ INPUT-BOUND · preparing samples · confidence high",
        "The GPU waits 38 ms of every 176 ms step for data",
        "Step time, median",
        "Mean of 48 steady steps, rank 0 of 8",
        "Waiting for data: preparing samples",
        "derived",
        "Est. saving 31.9–36.5 ms per step (18–20 %, 19 % expected) · confidence high · ",
        "Evidence: E1 GPU idle while the loop waits for a batch: 38.1 ms; ",
        "Why not the others",
        "3 of 26 rules fired; 3 could not run.",
        "The others: 12 passed, 6 did not apply, 2 lacked data, 1 failed, 1 suppressed, 1 switched off.",
    ):
        assert piece in text


def test_findings_that_are_no_top_changes_are_named_and_no_other_report_is_sent_for():
    report = SAMPLES["compute_bound"]()
    seen = tuple(
        msgspec.structs.replace(o, findings=tuple(msgspec.structs.replace(f, fix=None) for f in o.findings))
        for o in report.outcomes
    )
    text = " ".join(terminal.render(msgspec.structs.replace(report, outcomes=seen)).split())
    (card,) = view.build(report).cards
    assert f"Findings {card.shape} {card.title.replace('`', '')}, saving {card.gain} {card.rule}" in text
    assert "HTML" not in text


def test_a_saving_says_how_it_was_computed_and_calibrated():
    text = " ".join(terminal.render(SAMPLES["input_bound"]()).split())
    assert "confidence medium · analytic model, uncalibrated" in text
    assert "confidence high · replay of the step, calibrated on 12 applied fixes" in text


def test_in_few_columns_sentences_stand_in_lines_of_their_own():
    lines = terminal.render(SAMPLES["input_bound"](), width=40).splitlines()
    assert lines[lines.index("") + 1].startswith("Step time, median: ")
    assert "memory-bound: share 11 %, saving 1.2 %" in lines
    assert "  Bandwidth-limited kernels take 11 % of" in lines


def test_families_are_told_apart_without_colour():
    bar = next(line for line in terminal.render(SAMPLES["input_bound"]()).splitlines() if line.startswith("██"))
    assert len(set(bar)) == 6
    assert len(bar) == 80
    ascii_bar = next(
        line
        for line in terminal.render(SAMPLES["input_bound"](), ascii_only=True).splitlines()
        if line.startswith("##")
    )
    assert len(set(ascii_bar)) == 6


@given(st.lists(st.floats(1e-6, 1.0), min_size=1, max_size=6), st.integers(40, 200))
def test_bar_cells_fill_the_width_and_no_family_disappears(weights, width):
    total = sum(weights)
    found = cells([weight / total for weight in weights], width)
    assert sum(found) == width
    assert min(found) >= 1


def test_without_changes_it_says_so():
    assert "No rule found a change that is worth making." in terminal.render(SAMPLES["balanced"]())
