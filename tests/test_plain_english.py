"""The checker of texts itself, and every text of the command line, of errors and of the public names."""

import doctest
from pathlib import Path

import pytest

from tests import plain_english
from tests.plain_english import Text, faults, paragraphs_of, sentences, strings_of


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("The report tells where it is.", "'tells'"),
        ("Of what lies elsewhere it is here.", "begins with 'Of'"),
        (" ".join(["word"] * 26), "26 words"),
        ("It works!", "exclamation mark"),
        ("This may indicate a leak.", "may indicate"),
    ],
)
def test_a_planted_fault_is_found(text, what):
    assert any(what in fault for fault in faults(Text("planted", text)))


@pytest.mark.parametrize("text", [" ".join(["word"] * 25), "Run `x lies y` now.", "a wired-in name"])
def test_what_is_allowed_is_not_found(text):
    assert faults(Text("planted", text)) == []


def test_a_docstring_begins_with_a_verb():
    assert faults(Text("planted", "Return the step."), verb_first=True) == []
    assert faults(Text("planted", "The step."), verb_first=True)


def test_sentences_are_taken_apart():
    assert doctest.testmod(plain_english).failed == 0
    assert sentences("| a b | c d |\n| --- | --- |") == ["a b", "c d"]
    assert sentences("Args:\n    path: where to read\n        and write\n    name: what") == [
        "where to read and write",
        "what",
    ]


def test_texts_are_found_where_they_are_written(tmp_path: Path):
    source = tmp_path / "x.py"
    source.write_text(
        '"""A docstring is here."""\nX = f"one {2} three"\nY = "word"\nraise ValueError("no such thing")\n'
    )
    assert [text.text for text in strings_of(source)] == ["one X three", "no such thing"]
    assert [text.text for text in plain_english.errors_of(source)] == ["no such thing"]
    page = tmp_path / "x.md"
    page.write_text("# Title\n\n```\ncode lies here\n```\n\nA text.\n")
    assert [text.text for text in paragraphs_of(page)] == ["# Title", "A text.\n"]
