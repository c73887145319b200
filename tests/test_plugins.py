"""Rules and renderers of other packages: found where they are installed, left out and named where they are broken."""

import sys
from importlib import invalidate_caches

import pytest

from profilerkit.api import analyze
from profilerkit.cli import main
from profilerkit.errors import UsageError
from profilerkit.plugins import installed_rules
from profilerkit.rules import RULES
from tests.recipes import training

RULE = """
from dataclasses import dataclass
from typing import ClassVar
from profilerkit.rules.rule import NotApplicable, Rule

@dataclass(frozen=True)
class {name}(Rule):
    \"\"\"A rule.\"\"\"
    code: ClassVar[str] = "{code}"
    name: ClassVar[str] = "{name}"
    family: ClassVar[str] = "input"
    summary: ClassVar[str] = "The cache is cold"

    def check(self, facts):
        return NotApplicable("nothing to see")

instance = {name}()
"""
RENDERERS = """
def words(report):
    return f"bound,{report.verdict.bound}\\n"
def number(report):
    return 3
def failing(report):
    raise ValueError("no words")
"""


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Install a distribution of modules and entry points on ``sys.path``."""
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(str(site))

    def install(entry_points, **modules):
        for name, text in modules.items():
            (site / f"{name}.py").write_text(text)
            monkeypatch.delitem(sys.modules, name, raising=False)
        info = site / "fast_io-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fast-io\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(entry_points)
        invalidate_caches()

    yield install
    for name in [name for name, module in sys.modules.items() if str(site) in str(getattr(module, "__file__", ""))]:
        del sys.modules[name]


@pytest.fixture
def trace(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return training(12).write(tmp_path / "trace.json")


def test_without_any_plugin_there_are_only_the_built_in_rules(trace):
    assert installed_rules() == ((), ())
    assert [outcome.rule for outcome in analyze(trace).outcomes] == [rule.code for rule in RULES]


def test_rules_of_other_packages_run_after_the_built_in_ones(installed, trace):
    code = RULE.format(name="cold_cache", code="XC002") + RULE.format(name="cold_disk", code="XC001")
    installed("[profilerkit.rules]\nsecond = fast_rules:cold_cache\nfirst = fast_rules:instance\n", fast_rules=code)
    outcomes = analyze(trace).outcomes
    assert [outcome.rule for outcome in outcomes] == [*(rule.code for rule in RULES), "XC001", "XC002"]
    assert (outcomes[-1].status, outcomes[-1].reason) == ("not_applicable", "nothing to see")
    assert [o.rule for o in analyze(trace, select=["xc"]).outcomes if o.status != "off"] == ["XC001", "XC002"]


@pytest.mark.parametrize(
    ("module", "cause"),
    [
        ("1/0", "ZeroDivisionError: division by zero"),
        ("import not_installed_anywhere", "No module named 'not_installed_anywhere'"),
        ("instance = object()", "fast_rules:instance is no profilerkit.rules.rule.Rule"),
        (RULE.format(name="thief", code="IN001"), "another rule has the code IN001"),
        (RULE.format(name="bare", code="XC001").replace("    summary", "    other"), "it has no summary"),
        (RULE.format(name="nameless", code="XC001").replace("instance =", "other ="), "AttributeError"),
    ],
)
def test_a_broken_rule_is_left_out_and_named_with_its_package(installed, trace, module, cause):
    installed("[profilerkit.rules]\nbroken = fast_rules:instance\n", fast_rules=module)
    report = analyze(trace)
    assert [outcome.rule for outcome in report.outcomes] == [rule.code for rule in RULES]
    (note,) = [note for note in report.trust.notes if "fast-io" in note]
    assert note.startswith("The rule broken of the package fast-io was left out: ")
    assert cause in note


def test_the_rules_verb_lists_and_explains_rules_of_other_packages(installed, capsys):
    code = RULE.format(name="cold_cache", code="XC002")
    entries = "[profilerkit.rules]\ncold = fast_rules:cold_cache\nbroken = absent_rules:x\n"
    installed(entries, fast_rules=code)
    assert main(["rules"]) == 0
    shown = capsys.readouterr()
    assert shown.out.splitlines()[-1].split() == ["XC002", "input", "The", "cache", "is", "cold"]
    assert "The rule broken of the package fast-io was left out" in shown.err
    assert main(["rules", "xc002"]) == 0
    assert capsys.readouterr().out == "XC002 cold_cache\nThe cache is cold\n\nA rule.\n"


def test_the_rules_verb_lists_all_rules_by_code(installed, capsys):
    installed("[profilerkit.rules]\ncold = fast_rules:instance\n", fast_rules=RULE.format(name="cold", code="IN500"))
    assert main(["rules"]) == 0
    codes = [line.split()[0] for line in capsys.readouterr().out.splitlines() if not line.startswith(" ")]
    assert codes == sorted([*(rule.code for rule in RULES), "IN500"])


@pytest.fixture
def renderers(installed):
    points = "\n".join(f"{name} = fast_words:{name}" for name in ("words", "number", "failing"))
    installed(f"[profilerkit.renderers]\n{points}\nabsent = absent_words:x\n", fast_words=RENDERERS)


def test_a_renderer_of_another_package_is_a_format(renderers, trace, capsys):
    assert main(["analyze", "trace.json", "-f", "words", "-o", "-"]) == 0
    assert capsys.readouterr().out == "bound,compute-bound\n"
    assert main(["analyze", "trace.json", "-f", "html,words"]) == 0
    assert trace.with_name("trace.report.words").read_text() == "bound,compute-bound\n"


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("number", "it returned int instead of text"),
        ("failing", "ValueError: no words"),
        ("absent", "ModuleNotFoundError: No module named 'absent_words'"),
    ],
)
def test_a_broken_renderer_is_an_error_that_names_its_package(renderers, trace, capsys, name, cause):
    assert main(["analyze", "trace.json", "-f", name]) == 2
    error, why, hint = capsys.readouterr().err.splitlines()
    assert error == f"error: the format {name} of the package fast-io cannot be written"
    assert why == f"cause: {cause}"
    assert hint.startswith("hint:  ")
    assert not list(trace.parent.glob("*.report.*"))


def test_an_unknown_format_is_compared_with_all_that_are_installed(renderers, trace, capsys):
    assert main(["analyze", "trace.json", "-f", "wrds"]) == 2
    assert "did you mean words?" in capsys.readouterr().err


def test_a_renderers_error_carries_its_cause(renderers):
    from profilerkit.plugins import find_renderer

    with pytest.raises(UsageError) as caught:
        find_renderer("failing")(None)
    assert isinstance(caught.value.__cause__, ValueError)
