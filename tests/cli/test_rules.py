import json
import re
from html.parser import HTMLParser

import pytest

from profilerkit.analysis.facts import Facts
from profilerkit.cli import main
from profilerkit.rules import RULES
from profilerkit.rules.docs import sections, thresholds
from profilerkit.rules.runner import with_options


def test_every_rule_is_listed_within_80_columns(capsys):
    assert main(["rules"]) == 0
    shown = capsys.readouterr().out
    codes = [line.split()[0] for line in shown.splitlines() if not line.startswith(" ")]
    assert codes == [rule.code for rule in RULES]
    assert max(map(len, shown.splitlines())) <= 80


def test_a_prefix_lists_its_rules(capsys):
    assert main(["rules", "in"]) == 0
    codes = [line.split()[0] for line in capsys.readouterr().out.splitlines() if not line.startswith(" ")]
    assert codes == [rule.code for rule in RULES if rule.code.startswith("IN")]


def test_a_family_lists_its_rules(capsys):
    assert main(["rules", "in"]) == 0
    by_letters = capsys.readouterr().out
    assert main(["rules", "Input"]) == 0
    assert capsys.readouterr().out == by_letters


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)
def test_every_rule_is_explained_by_code_and_by_name(capsys, rule):
    assert main(["rules", rule.code.lower()]) == 0
    page = capsys.readouterr().out
    assert rule.code in page
    assert main(["rules", rule.name]) == 0
    assert capsys.readouterr().out == page


def test_json_holds_options_and_page(capsys):
    assert main(["rules", RULES[0].code, "--format", "json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["code"] == RULES[0].code
    assert {"name", "family", "summary", "options", "page"} <= set(record)
    assert main(["rules", "--format", "json"]) == 0
    whole = capsys.readouterr().out
    assert len(json.loads(whole)) == len(RULES)
    assert main(["rules", "--json"]) == 0
    assert capsys.readouterr().out == whole


def test_an_unknown_rule_is_answered_with_the_closest(capsys):
    assert main(["rules", "IN0002"]) == 2
    assert "did you mean IN002?" in capsys.readouterr().err


def test_the_facts_that_a_rule_may_ask_for_are_listed_each_with_what_it_is(capsys):
    assert main(["rules", "--facts"]) == 0
    shown = capsys.readouterr().out
    rows = [line.split(None, 1) for line in shown.splitlines() if not line.startswith(" ")]
    assert [name.removesuffix("(…)") for name, _ in rows] == [name for name in vars(Facts) if not name.startswith("_")]
    assert max(map(len, shown.splitlines())) <= 80


def test_the_schema_is_the_reports(capsys):
    from profilerkit.report.json import schema_text

    assert main(["rules", "--schema"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(schema_text())


def test_every_page_reads_as_markdown(capsys):
    assert main(["rules", "-f", "md"]) == 0
    shown = capsys.readouterr().out
    assert re.findall(r"^## (\w+) ", shown, re.MULTILINE) == [rule.code for rule in RULES]
    assert shown.count("**What it finds.** ") == len(RULES)
    assert main(["rules", "in001", "-f", "md"]) == 0
    page = capsys.readouterr().out
    assert page in shown
    assert "smallest_share = 0.05" in page


class Article(HTMLParser):
    """The words of each article by its id, and which elements there are."""

    def __init__(self, text):
        super().__init__()
        self.words, self.tags, self._inside = {}, set(), ""
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        if tag == "article":
            self._inside = dict(attributes)["id"]
            self.words[self._inside] = ""

    def handle_data(self, data):
        self.words[self._inside] += f" {data}"


def test_every_page_reads_as_a_fragment_of_html(capsys):
    assert main(["rules", "--format", "html"]) == 0
    found = Article(capsys.readouterr().out)
    assert list(found.words) == [rule.code for rule in RULES]
    assert found.tags == {"article", "h2", "p", "dl", "dt", "dd", "pre", "a"}
    for rule in RULES:
        words = " ".join(found.words[rule.code].split())
        assert rule.summary in words
        assert all(" ".join(text.split()) in words for text in sections(rule).values())


def test_a_prefix_chooses_the_pages(capsys):
    assert main(["rules", "IN", "--format", "html"]) == 0
    assert all(code.startswith("IN") for code in Article(capsys.readouterr().out).words)


def test_the_page_shows_the_options_in_force_here(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pyproject.toml").write_text("[tool.profilerkit.rules.starved_device]\nsmallest-share = 0.25\n")
    assert main(["rules", "IN001"]) == 0
    assert "  smallest_share = 0.25" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("table", "option", "what", "hint"),
    [
        ("IN001", "smalest-share = 0.1", "IN001 has no option 'smalest_share'", "did you mean smallest_share?"),
        ("IN001", "xyz = 0.1", "IN001 has no option 'xyz'", "its options: smallest_share"),
        ("IN0001", "smallest-share = 0.1", "unknown rule 'IN0001'", "did you mean IN001?"),
        ("IN001", 'smallest-share = "much"', "has the wrong kind of value", "write smallest_share = 0.05"),
        ("IN001", "smallest-share = true", "has the wrong kind of value", "write smallest_share = 0.05"),
    ],
)
def test_an_option_that_is_wrong_is_answered_with_the_closest(tmp_path, monkeypatch, capsys, table, option, what, hint):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pyproject.toml").write_text(f"[tool.profilerkit.rules.{table}]\n{option}\n")
    assert main(["rules"]) == 2
    shown = capsys.readouterr().err
    assert what in shown
    assert hint in shown


@pytest.mark.parametrize(
    ("table", "option", "what", "cause", "hint"),
    [
        (
            "IN001",
            "smallest-share = 10",
            "smallest_share of IN001 is out",
            "says 10.0, and it has to be from 0 to 1",
            0.05,
        ),
        ("in001", "smallest-share = -0.1", "smallest_share of IN001 is out", "says -0.1,", 0.05),
        ("IN001", "smallest-share = nan", "smallest_share of IN001 is out", "says nan,", 0.05),
        (
            "no_workers",
            "smallest-wait-ns = 0",
            "smallest_wait_ns of IN002 is out",
            "says 0, and it has to be above 0",
            2000000,
        ),
        ("CO005", "floor-factor = inf", "floor_factor of CO005 is out", "says inf, and it has to be above 0", 2.5),
        ("RU004", "tail-ratio = 0.0", "tail_ratio of RU004 is out", "says 0.0, and it has to be above 0", 1.5),
    ],
)
def test_an_option_out_of_its_range_is_refused(tmp_path, monkeypatch, capsys, table, option, what, cause, hint):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pyproject.toml").write_text(f"[tool.profilerkit.rules.{table}]\n{option}\n")
    assert main(["rules"]) == 2
    shown = capsys.readouterr().err
    assert f"error: {what} of its range\n" in shown
    assert f"cause: [tool.profilerkit.rules.{table}] in {tmp_path / 'pyproject.toml'} {cause}" in shown
    assert f"hint:  write {option.split(' =')[0].replace('-', '_')} = {hint}" in shown


@pytest.mark.parametrize(
    ("table", "option"),
    [("IN001", "smallest-share = 1"), ("IN001", "smallest-share = 0"), ("RU004", "tail-ratio = 3.0")],
)
def test_the_ends_of_a_range_are_in_it_and_a_ratio_above_one_may_be_larger(
    tmp_path, monkeypatch, capsys, table, option
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pyproject.toml").write_text(f"[tool.profilerkit.rules.{table}]\n{option}\n")
    assert main(["rules", table]) == 0
    assert f"  {option.replace('-', '_').partition(' ')[0]} = " in capsys.readouterr().out


def test_every_default_is_in_the_range_of_its_option():
    own = {rule.code: thresholds(rule) for rule in RULES}
    assert with_options(RULES, own) == (RULES, ())


_OWN = """
from typing import ClassVar
from profilerkit.rules.api import Passed, Rule


class SlowMirror(Rule, frozen=True):
    {docstring}
    code: ClassVar[str] = "XX001"
    name: ClassVar[str] = "slow_mirror"
    family: ClassVar[str] = "own"
    summary: ClassVar[str] = "{summary}"
    smallest_share: float = 0.2
    margin: int = 0

    def check(self, facts):
        return Passed("")
"""


@pytest.fixture
def own_rule(tmp_path, monkeypatch):
    """A way to write the project's rule XX001 with a docstring and a summary."""
    monkeypatch.chdir(tmp_path)

    def write(docstring="", summary="The mirror is slow"):
        (tmp_path / "own.py").write_text(_OWN.format(docstring=docstring, summary=summary))
        monkeypatch.setenv("PROFILERKIT_RULES_PATH", str(tmp_path / "own.py"))

    return write


def test_a_rule_without_headings_is_wrapped_and_shows_its_options(own_rule, capsys):
    text = "The batches come from the mirror of the other site " * 4
    own_rule(f'"""{text.strip()}.\n\n    - one\n    - two\n    """', summary="The mirror is slow " * 6)
    assert main(["rules", "XX001"]) == 0
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80
    assert text.strip() in " ".join(shown.split())
    assert "\n- one\n- two\n" in shown
    assert "\n\nSettings\n  smallest_share = 0.2\n  margin = 0\n" in shown
    assert "[tool.profilerkit.rules.XX001]" in shown


def test_a_rule_without_a_docstring_shows_no_signature(own_rule, capsys):
    own_rule()
    assert main(["rules", "XX001"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("XX001 slow_mirror\nThe mirror is slow\n\nSettings\n")
    assert "SlowMirror(" not in shown


def test_an_option_whose_default_is_0_has_no_range_but_is_a_number(own_rule, tmp_path, capsys):
    own_rule()
    (tmp_path / "pyproject.toml").write_text("[tool.profilerkit.rules.XX001]\nmargin = -3\n")
    assert main(["rules", "XX001"]) == 0
    assert "  margin = -3\n" in capsys.readouterr().out
