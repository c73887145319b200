"""The examples of the README, run as they stand there."""

import os
import re
import shlex
import tomllib
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from profilerkit.cli import VERBS, _parsers
from profilerkit.cli.run import split
from profilerkit.config import load_settings
from profilerkit.model.change import revise
from profilerkit.model.run import Loader
from profilerkit.plugins import project_rules
from profilerkit.report.html import _sections
from profilerkit.rules import RULES
from profilerkit.rules.calibrated import WITHIN
from profilerkit.rules.rule import Fired, MissingData, NotApplicable, Passed
from profilerkit.rules.tuning import with_options
from tests.recipes import facts, replace

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text("utf-8")


def examples(language):
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def test_every_table_of_settings_is_one(tmp_path):
    tables = examples("toml")
    assert len(tables) >= 2
    for table in tables:
        (tmp_path / ".git").mkdir(exist_ok=True)  # elsewhere a table names no code
        (tmp_path / "pyproject.toml").write_text(table, encoding="utf-8")
        assert tomllib.loads(table)
        settings = load_settings({}, environment={}, start=tmp_path)
        with_options(RULES, settings.rules)
        assert not settings.unused


@pytest.fixture
def rule(tmp_path):
    (code,) = [text for text in examples("python") if "class ShallowQueue" in text]
    (tmp_path / "shallow_queue.py").write_text(code, encoding="utf-8")
    rules, notes = project_rules(tmp_path, [rule.code for rule in RULES])
    assert notes == ()
    return rules[0]


@pytest.mark.parametrize(
    ("loader", "ending"),
    [
        (None, MissingData),
        (Loader(kind="DataLoader"), MissingData),
        (Loader(kind="DataLoader", num_workers=0), NotApplicable),
        (Loader(kind="DataLoader", num_workers=8), Passed),
        (Loader(kind="DataLoader", num_workers=5, prefetch_factor=3), Fired),
    ],
)
def test_the_example_of_a_rule_works(rule, loader, ending):
    assert isinstance(rule.check(facts(loader=loader)), ending)


def test_the_example_proposes_what_makes_it_pass(rule):
    loader = Loader(kind="DataLoader", num_workers=5, prefetch_factor=3)
    (finding,) = rule.check(facts(loader=loader)).findings
    assert finding.fix.text == "prefetch_factor 3 → 4"
    assert isinstance(rule.check(facts(loader=revise(loader, prefetch_factor=4))), Passed)
    assert isinstance(replace(rule, fewest_batches=15).check(facts(loader=loader)), Passed)


def commands(program):
    """Every command line of this program in the README's blocks, without the words beside it."""
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)
    plain = [line for language, text in fenced if not language for line in text.splitlines()]
    return [re.split(r"\s{2,}", line)[0] for line in plain if line.startswith(program)]


@pytest.mark.parametrize("line", commands("profilerkit "))
def test_every_command_is_one(line):
    _, *words = shlex.split(line)
    if words[0] == "run":
        words, command = split(words)
        assert command
    top, _ = _parsers(words[0])
    _, unknown = top.parse_known_args(words)
    assert unknown == []


def test_there_are_commands_of_every_verb():
    assert {line.split()[1] for line in commands("profilerkit ")} == set(VERBS)


@pytest.mark.parametrize("name", sorted(set(re.findall(r"(?<![\w/.])scripts/\w+", README))))
def test_every_script_can_be_called(name):
    assert os.access(ROOT / name, os.X_OK)


def test_every_benchmark_is_named_where_it_says_how_it_is_checked():
    checked = README.partition("## How it is checked")[2].partition("\n## ")[0]
    benchmarks = [path.name for path in (ROOT / "scripts").glob("benchmark_*") if os.access(path, os.X_OK)]
    assert len(benchmarks) >= 6
    assert [name for name in benchmarks if f"\nscripts/{name} " not in checked] == []


#: In the README's words, by the anchor of the section.
SECTIONS = {
    "steps": "where the time goes", "changes": "what to change", "others": "none of the others",
    "ranks": "which rank is late", "logs": "logs", "memory": "memory", "kernels": "kernels and communication",
    "trust": "how far to trust it", "rules": "which rules passed", "run": "how the run was made",
}  # fmt: skip


def test_the_order_of_the_report_is_the_one_that_is_named():
    (told,) = re.findall(r"The report answers in this order: (.*?)\.\n", README, re.DOTALL)
    told = " ".join(told.split())
    places = [told.find(SECTIONS[anchor]) for anchor, _ in _sections(MagicMock())]
    assert -1 not in places
    assert places == sorted(places)


def test_what_savings_are_calibrated_on_is_told():
    (told,) = re.findall(r"- Predicted savings are calibrated on applied fixes: (.*?)\n- ", README, re.DOTALL)
    told = " ".join(told.split())
    for method, words in {"replay": "by replay", "analytic": "by formula"}.items():
        share, fixes = WITHIN[method]
        assert f"{fixes} {words} within {100 * share:.0f} %" in told
    assert "on a CPU" in told
    assert '"uncalibrated"' in told


def test_every_link_and_picture_leads_to_a_file():
    targets = re.findall(r"\]\(([^)#]+)\)", README)
    assert "reports/first_screen.png" in targets
    assert all((ROOT / target).is_file() for target in targets)


def test_it_begins_with_what_it_is_for_and_how_to_try_it():
    first_screen = README[: README.index("## ")]
    for piece in ("what bounds it", "reports/first_screen.png", "scripts/demo", "scripts/test"):
        assert piece in first_screen
    assert all(way in README for way in ("### Around the script", "### Inside the script", "### From a trace"))
