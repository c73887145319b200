"""The checker of texts itself, and every text of the command line, of errors and of the public names."""

import doctest
import inspect
from pathlib import Path

import pytest

import profilerkit
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


PACKAGE = Path(__file__).parents[1] / "profilerkit"
#: Modules whose docstrings users read through ``help()``.
PUBLIC = (
    *(PACKAGE / f"{name}.py" for name in ("__init__", "api", "config", "errors", "plugins", "profiling", "results")),
    *(PACKAGE / f"{name}.py" for name in ("units", "capture/profiler", "model/finding", "model/verdict")),
    *sorted((PACKAGE / "integrations").glob("*.py")),
    *sorted((PACKAGE / "guide").glob("*.py")),
)


def test_the_command_line_is_plain():
    texts = [text for path in sorted((PACKAGE / "cli").rglob("*.py")) for text in strings_of(path)]
    assert len(texts) > 300
    assert [fault for text in texts for fault in faults(text)] == []


@pytest.mark.parametrize("folder", ["analysis", "capture", "compare", "model", "report", "summaries"])
def test_what_reports_say_is_plain(folder):
    """The templates of a page are markup, not sentences."""
    texts = [text for path in sorted((PACKAGE / folder).rglob("*.py")) for text in strings_of(path)]
    assert len(texts) > 50
    assert [fault for text in texts if "</" not in text.text for fault in faults(text)] == []


def test_errors_are_plain():
    texts = [text for path in sorted(PACKAGE.rglob("*.py")) for text in plain_english.errors_of(path)]
    assert len(texts) > 300
    assert [fault for text in texts for fault in faults(text)] == []


def test_public_docstrings_are_plain_and_begin_with_a_verb():
    texts = [text for path in PUBLIC for text in plain_english.docstrings_of(path)]
    texts += [Text(name, inspect.getdoc(getattr(profilerkit, name)) or "") for name in profilerkit.__all__[:]]
    assert [fault for text in texts if text.where != "__version__" for fault in faults(text, verb_first=True)] == []


def test_the_help_of_options_begins_with_a_verb_or_a_noun_that_fits():
    """Every option has a help, and none begins with a question word."""
    from profilerkit.cli import VERBS, _parsers

    for verb in VERBS:
        parser = _parsers(verb)[1][verb]
        for action in parser._actions:
            assert action.help, f"{verb}: {action.dest}"
            assert action.help.split()[0].lower() not in {"what", "where", "how", "whether", "which", "of", "the"}


@pytest.mark.parametrize(
    "path", [PACKAGE.parent / "README.md", *sorted((PACKAGE / "guide").glob("*.md"))], ids=lambda path: path.name
)
def test_pages_are_plain(path):
    assert [fault for text in paragraphs_of(path) for fault in faults(text)] == []
