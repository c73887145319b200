"""Rules and renderers of other packages: found where they are installed, left out and named where they are broken."""

import ast
import gzip
import os
import re
import sys
from importlib import invalidate_caches

import pytest

from profilerkit import plugin
from profilerkit.api import analyze
from profilerkit.cli import main
from profilerkit.errors import UsageError
from profilerkit.formats import registry
from profilerkit.formats.registry import entry_points
from profilerkit.guide import page
from profilerkit.plugins import installed_rules, project_rules
from profilerkit.report import terminal
from profilerkit.rules import RULES
from tests.recipes import training

RULE = """
from typing import ClassVar
from profilerkit.rules.api import NotApplicable, Rule

class {name}(Rule, frozen=True):
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


@pytest.fixture(autouse=True)
def _readers_of_this_test():
    registry.installed_readers.cache_clear()
    installed_rules.cache_clear()
    yield
    registry.installed_readers.cache_clear()
    installed_rules.cache_clear()


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


def test_an_egg_is_asked_what_it_adds(tmp_path, monkeypatch):
    info = tmp_path / "fast_io-1.0.egg" / "EGG-INFO"
    info.mkdir(parents=True)
    (info / "PKG-INFO").write_text("Metadata-Version: 1.0\nName: fast-io\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[profilerkit.made_up]\nnpz = fast_io\n")
    assert not entry_points("profilerkit.made_up")
    monkeypatch.syspath_prepend(str(info.parent))
    assert [entry.name for entry in entry_points("profilerkit.made_up")] == ["npz"]


def test_a_package_installed_after_the_first_look_is_found(installed, tmp_path):
    os.utime(tmp_path / "site", (1, 1))  # what is installed within a tick of its clock does not change a directory
    assert not entry_points("profilerkit.made_up")
    installed("[profilerkit.made_up]\nnpz = fast_io\n")
    assert [entry.name for entry in entry_points("profilerkit.made_up")] == ["npz"]


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
        ("instance = object()", "fast_rules:instance is not a profilerkit.rules.api.Rule"),
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


def test_a_rule_that_fails_is_named_with_its_module_and_line_in_every_output(installed, trace):
    code = RULE.format(name="cold", code="XC001").replace('NotApplicable("nothing to see")', "facts.absent")
    installed("[profilerkit.rules]\ncold = fastrules:instance\n", fastrules=code)
    report = analyze(trace)
    line = code.splitlines().index("        return facts.absent") + 1
    assert report.outcomes[-1].reason.startswith(f"line {line} of fastrules raised AttributeError: ")
    assert f"line {line} of fastrules raised AttributeError" in report.to_markdown()
    assert f"line {line} of fastrules raised" in " ".join(terminal.render(report, verbose=True).split())


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


def test_doctor_names_what_other_packages_add_with_their_versions(installed, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    installed(
        "[profilerkit.rules]\ncold_cache = cold:Rule\n[profilerkit.readers]\ntext = texts\n"
        "[profilerkit.renderers]\nwords = words:words\n[profilerkit.changes]\ndepth = words:depth\n"
    )
    assert main(["doctor"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    for name in ("rule cold_cache", "reader text", "renderer words", "change depth"):
        assert f"{name} (fast-io 1.0)" in shown
    assert "warn plugins" in shown
    for kind, name, module in (("rule", "cold_cache", "cold"), ("reader", "text", "texts")):
        assert f"The {kind} {name} of the package fast-io was left out: ModuleNotFoundError: No module named" in shown
        assert f"named '{module}'" in shown


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


@pytest.fixture
def checks(tmp_path, monkeypatch):
    """A directory of rules."""
    monkeypatch.chdir(tmp_path)
    directory = tmp_path / "checks"
    directory.mkdir()
    yield directory
    for name in [name for name in sys.modules if name.startswith("profilerkit_project_rules")]:
        del sys.modules[name]


@pytest.mark.parametrize(
    ("module", "cause"),
    [
        ("1/0", "ZeroDivisionError: division by zero"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("def f(:", "SyntaxError"),
        ("import not_installed_anywhere", "No module named 'not_installed_anywhere'"),
        ("x = 1", "it defines no profilerkit.rules.api.Rule"),
        ("from profilerkit.rules.api import Rule", "it defines no profilerkit.rules.api.Rule"),
        (RULE.format(name="thief", code="IN001"), "another rule has the code IN001"),
        (RULE.format(name="bare", code="XC001").replace("    summary", "    other"), "it has no summary"),
        ("from profilerkit.rules.api import Rule\nclass A(Rule, frozen=True):\n    pass", "it defines no"),
    ],
)
def test_a_broken_rule_of_the_project_is_left_out_and_named(checks, trace, module, cause):
    (checks / "broken.py").write_text(module)
    (checks / "whole.py").write_text(RULE.format(name="cold_disk", code="XC009"))
    report = analyze(trace, rules_path=checks)
    assert [outcome.rule for outcome in report.outcomes] == [*(rule.code for rule in RULES), "XC009"]
    (note,) = [note for note in report.trust.notes if "was left out" in note]
    assert note.startswith(f"The rules file {checks / 'broken.py'} was left out: ")
    assert cause in note


def test_two_files_cannot_have_the_same_code(checks, trace):
    for name in ("a", "b"):
        (checks / f"{name}.py").write_text(RULE.format(name=f"cold_{name}", code="XC001"))
    report = analyze(trace, rules_path=checks)
    assert report.outcomes[-1].name == "cold_a"
    assert any("b.py was left out: ValueError: another rule has the code XC001" in note for note in report.trust.notes)


@pytest.mark.parametrize("second", ["IN001", "XC001"])
def test_of_a_file_that_is_left_out_no_rule_stays(checks, second):
    (checks / "both.py").write_text(RULE.format(name="cold_disk", code="XC001") + RULE.format(name="b", code=second))
    rules, (note,) = project_rules(checks, ["IN001"])
    assert rules == ()
    assert f"another rule has the code {second}" in note


def test_tests_and_private_files_beside_the_rules_are_not_run(checks):
    for name in ("_shared.py", "test_disk.py", "__init__.py"):
        (checks / name).write_text("1/0")
    assert project_rules(checks, []) == ((), ())


def test_a_single_file_may_hold_the_rules(checks):
    (checks / "mine.py").write_text(RULE.format(name="cold_disk", code="XC001"))
    rules, notes = project_rules(checks / "mine.py", [])
    assert ([rule.code for rule in rules], notes) == (["XC001"], ())


def test_rules_that_are_not_there_are_said(tmp_path):
    rules, notes = project_rules(tmp_path / "absent", [])
    assert rules == ()
    assert notes == (f"The rules of {tmp_path / 'absent'} were left out: there is no such file or directory.",)


def code_of(topic):
    return re.findall(r"^```python\n(.*?)^```$", page(topic), re.DOTALL | re.MULTILINE)


def test_the_guide_imports_from_the_names_for_plug_ins_alone_and_lists_all_of_them():
    modules = [
        node.module
        for topic in ("formats", "rules")
        for code in code_of(topic)
        for node in ast.walk(ast.parse(code))
        if isinstance(node, ast.ImportFrom) and node.module.startswith("profilerkit")
    ]
    assert set(modules) == {"profilerkit", "profilerkit.plugin"}
    table = page("formats").partition("| for | names |")[2].partition("\n\n")[0]
    assert set(re.findall(r"`(\w+)`", table)) == set(plugin.__all__)
    assert all(hasattr(plugin, name) for name in plugin.__all__)


@pytest.mark.parametrize(("name", "pack"), [("run.acme", bytes), ("run.acme.gz", gzip.compress)])
def test_the_reader_of_the_guide_finds_its_file_in_a_directory(installed, tmp_path, name, pack):
    (code,) = [code for code in code_of("formats") if "def sniff" in code]
    installed("[profilerkit.readers]\nacme = acme_reader\n", acme_reader=code)
    runs = tmp_path / "runs"
    runs.mkdir()
    steps = [(f"ProfilerStep#{step}", step * 1_000, 1_000) for step in range(8)]
    work = [("aten::mm", step * 1_000 + 100, 800) for step in range(8)]
    lines = ["ACME 1", *(",".join(map(str, row)) for row in (*steps, *work))]
    (runs / name).write_bytes(pack("\n".join(lines).encode()))
    report = analyze(runs)
    assert report.run.files == (name,)
    assert report.steps.time_ns.median == 1_000_000


READER = """
name = "acme"
suffixes = (".acme",)
{more}

def sniff(head):
    {sniff}

def read(path, **how):
    {read}
"""


@pytest.fixture
def reader(installed, tmp_path):
    """Install a reader, and return a directory of a trace and a file that only the reader may read."""

    def install(sniff='return head.startswith(b"ACME")', read="return 1", more=""):
        installed("[profilerkit.readers]\nacme = acme\n", acme=READER.format(sniff=sniff, read=read, more=more))
        runs = tmp_path / "runs"
        runs.mkdir()
        training(12).write(runs / "trace.json")
        (runs / "run.acme").write_text("ACME 1\n")
        return runs

    return install


@pytest.mark.parametrize(
    ("read", "cause"),
    [
        ('raise ValueError("a column is missing.")', "raised ValueError: a column is missing"),
        ('open(str(path) + ".index")', "raised FileNotFoundError: "),
        ("raise SystemExit(3)", "raised SystemExit: 3"),
        ("return None", "raised TypeError: it must return TraceColumns, not NoneType"),
    ],
)
def test_a_reader_that_fails_costs_its_file_and_is_named_with_its_package(reader, capsys, read, cause):
    runs = reader(read=read)
    said = f"read of the reader acme of the package fast-io {cause}"
    report = analyze(runs)
    assert report.run.files == ("trace.json",)
    assert [note for note in report.trust.notes if said in note and "run.acme" in note]
    assert main(["analyze", str(runs / "run.acme")]) == 2
    error, why, hint = capsys.readouterr().err.splitlines()
    assert error == f"error: {runs / 'run.acme'} cannot be read"
    assert said in why
    assert hint == "hint:  report this to the authors of that package"


def test_what_a_reader_finds_unreadable_is_said_in_its_own_words(reader):
    runs = reader(
        read='raise UnreadableInputError("no events", cause="it has only a header")',
        more="from profilerkit.plugin import UnreadableInputError",
    )
    assert (
        "run.acme is not a trace that can be read and was left out: it has only a header." in analyze(runs).trust.notes
    )


@pytest.mark.parametrize("kind", ["trace", "log", "dump"])
def test_a_reader_that_fails_to_look_at_a_file_claims_none_and_is_named_once(reader, caplog, kind):
    runs = reader(sniff='return head.decode().startswith("ACME")', more=f'kind = "{kind}"')
    (runs / "run.acme").write_bytes(b"\xff")
    with caplog.at_level("WARNING"):
        assert analyze(runs / "trace.json").run.files == ("trace.json",)
        assert analyze(runs).run.files == ("trace.json",)
    said = [record.getMessage() for record in caplog.records]
    start = "sniff of the reader acme of the package fast-io raised UnicodeDecodeError: 'utf-8' codec"
    assert [text[: len(start)] for text in said] == [start]
