"""``profilerkit guide``: topics, pages, what is asked for in other words, and what is drawn on a terminal."""

import pytest

from profilerkit.cli import main
from profilerkit.guide import TOPICS, page


def test_without_a_topic_all_are_listed_with_a_line_each(capsys):
    assert main(["guide"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(TOPICS)
    assert all(len(line.split()) > 4 for line in lines)


def test_a_page_is_plain_markdown_where_nobody_watches(capsys):
    assert main(["guide", "ci"]) == 0
    assert capsys.readouterr().out.strip() == page("ci").strip()


@pytest.mark.parametrize(
    ("word", "topic"), [("docker", "clusters"), ("slurm", "clusters"), ("lightning", "frameworks")]
)
def test_a_word_of_a_heading_finds_its_page(word, topic, capsys):
    assert main(["guide", word]) == 0
    said = capsys.readouterr()
    assert said.out.strip() == page(topic).strip()
    assert f"No page is called {word}" in said.err


def test_a_word_of_several_pages_lists_them(capsys):
    assert main(["guide", "code"]) == 0
    listed = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert 1 < len(listed) < len(TOPICS)
    assert set(listed) <= set(TOPICS)


def test_an_unknown_topic_names_the_closest(capsys):
    assert main(["guide", "benchmark"]) == 0
    assert main(["guide", "savingz"]) == 2
    assert "did you mean savings?" in capsys.readouterr().err


def test_on_a_terminal_a_page_is_drawn(capsys, monkeypatch):
    from profilerkit.cli import guide
    from profilerkit.cli.console import Console

    monkeypatch.setenv("PAGER", "cat")
    guide._draw(page("api"), Console(colour="never"))
    drawn = capsys.readouterr().out
    assert "Public API" in drawn
    assert "```" not in drawn
    assert "| name | use |" not in drawn
