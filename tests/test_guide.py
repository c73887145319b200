"""README and the guide: their code runs, their commands exist, their figures are those of the reports."""

import json
import re
import shlex
import sys
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

import profilerkit
from profilerkit.cli import VERBS, _parsers
from profilerkit.cli.run import split
from profilerkit.cli.try_fixes import split as split_try
from profilerkit.config import load_settings
from profilerkit.guide import TOPICS, page, summary
from profilerkit.model import revise
from profilerkit.model.run import Loader
from profilerkit.plugins import project_rules
from profilerkit.rules import RULES
from profilerkit.rules.api import Fired, MissingData, NotApplicable, Passed
from profilerkit.rules.calibrated import RECORDED, WITHIN
from profilerkit.rules.runner import with_options
from tests.recipes import facts, replace
from tests.test_architecture import TRACE

ROOT = Path(__file__).parents[1]
PAGES = {"README": (ROOT / "README.md").read_text("utf-8"), **{topic: page(topic) for topic in TOPICS}}
EVERYTHING = "\n".join(PAGES.values())


def blocks(text, language=None):
    """The fenced blocks of a page: of one language, or all as pairs of language and text."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return found if language is None else [body for name, body in found if name == language]


def commands():
    """Every command line of this program in a block, without the words beside it; a line of options goes on."""
    found = []
    for name, text in PAGES.items():
        for language, body in blocks(text):
            if language != "python":
                joined = re.sub(r"\n\s+(?=--)", " ", body)
                lines = re.findall(r"(?<![\w/.\"-])profilerkit [a-z]+.*", joined)
                found += [(name, re.split(r"\s{2,}|\s+[<>] ", line)[0]) for line in lines]
    return list(dict.fromkeys(found))


@pytest.mark.parametrize(("name", "line"), commands())
def test_every_command_is_one(name, line):
    _, *words = shlex.split(line)
    if words[0] in ("run", "try"):
        words, command = (split if words[0] == "run" else split_try)(words)
        assert command
    top, _ = _parsers(words[0])
    _, unknown = top.parse_known_args(words)
    assert unknown == []


def test_there_are_commands_of_every_verb():
    assert {line.split()[1] for _, line in commands()} == set(VERBS)


def test_every_page_is_a_topic_with_a_title_and_one_line():
    files = {path.stem for path in (ROOT / "profilerkit" / "guide").glob("*.md")}
    assert files == set(TOPICS)
    for topic in TOPICS:
        assert page(topic).startswith("# ")
        assert 4 <= len(summary(topic).split()) <= 16
        assert len(page(topic).split()) <= 560


def test_every_topic_that_is_named_exists():
    named = set(re.findall(r"profilerkit guide ([a-z-]+)", EVERYTHING))
    assert named
    assert named <= set(TOPICS)


class Fake:
    """Whatever a page uses and does not make itself."""

    def __init__(self):
        self.names = {
            "loader": [0] * 20,
            "train_step": lambda batch: sum(range(2000)),
            "evaluate": lambda: None,
            "traces": [],
            "summaries": "summaries",
        }


RUN_HERE = ("README", "first-hour", "recording", "notebooks", "api", "formats", "ranks", "rules")


@pytest.mark.torch
@pytest.mark.parametrize("name", RUN_HERE)
def test_the_code_of_a_page_runs(name, tmp_path, monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "trace.json").write_text(TRACE, encoding="utf-8")
    pool = ThreadPoolExecutor(1)

    def remote(fn):
        return SimpleNamespace(remote=lambda *args: SimpleNamespace(future=lambda: pool.submit(fn, *args)))

    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(remote=remote))
    found = blocks(PAGES[name], "python")
    assert found
    for code in found:
        names = {**Fake().names, "__name__": f"page_{name}"}
        monkeypatch.setitem(sys.modules, names["__name__"], SimpleNamespace(**names))
        exec(compile(code, f"{name}.md", "exec"), names)


@pytest.mark.torch
def test_a_trace_that_is_made_as_the_page_says_is_read(tmp_path, monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    weight = torch.ones(64, 64)
    for code in blocks(PAGES["traces"], "python"):
        exec(compile(code, "traces.md", "exec"), {"loader": range(10), "train_step": lambda batch: weight @ weight})
    assert [profilerkit.analyze(path).steps.count for path in ("log", "runs/traced")] == [5, 5]


def test_the_code_of_frameworks_names_what_exists():
    for code in blocks(PAGES["frameworks"], "python"):
        compile(code, "frameworks.md", "exec")
    from profilerkit.integrations import accelerate, mlflow, tensorboard, wandb

    assert callable(accelerate.attach)
    assert all(callable(module.log_report) for module in (mlflow, tensorboard, wandb))


def test_the_marker_of_the_ci_page_has_budgets():
    from profilerkit.compare.gates import parse_budget

    names = {}
    (code,) = blocks(PAGES["ci"], "python")
    exec(compile(code, "ci.md", "exec"), names)
    (mark,) = names["test_training_is_fast"].pytestmark
    assert mark.name == "profilerkit"
    assert all(parse_budget(name, limit).text for name, limit in mark.kwargs.items())


def test_no_page_has_code_that_no_test_runs():
    assert {name for name, text in PAGES.items() if blocks(text, "python")} == {*RUN_HERE, "traces", "frameworks", "ci"}


def test_every_table_of_settings_is_one(tmp_path):
    tables = [table for text in PAGES.values() for table in blocks(text, "toml")]
    assert len(tables) >= 5
    for table in tables:
        assert tomllib.loads(table)
        if "[tool.profilerkit" in table and "XX001" not in table:
            (tmp_path / "pyproject.toml").write_text(table, encoding="utf-8")
            settings = load_settings({}, environment={}, start=tmp_path)
            with_options(RULES, settings.rules)


def test_the_workflow_and_the_pod_are_yaml():
    yaml = pytest.importorskip("yaml")
    (workflow,) = blocks(PAGES["ci"], "yaml")
    steps = yaml.safe_load(workflow)["jobs"]["compare"]["steps"]
    assert any("profilerkit diff" in step.get("run", "") for step in steps)
    (pod,) = blocks(PAGES["clusters"], "yaml")
    assert yaml.safe_load(pod)["containers"][0]["command"][0] == "profilerkit"


@pytest.fixture
def rule(tmp_path):
    (code,) = blocks(PAGES["rules"], "python")
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


def test_the_api_page_names_every_public_name():
    table = re.search(r"^\| name \|.*?\n\n", PAGES["api"], re.DOTALL | re.MULTILINE).group()
    named = [name for row in table.splitlines()[2:] for name in re.findall(r"`(\w+)[^`]*`", row.split(" | ")[0])]
    assert sorted(named) == sorted(profilerkit.__all__)


def test_every_benchmark_and_check_is_listed():
    programs = [path.name for path in (ROOT / "scripts").iterdir() if re.match(r"(benchmark|check)_\w+$", path.name)]
    assert len(programs) >= 12
    assert [name for name in programs if f"\nscripts/{name} " not in PAGES["benchmarks"]] == []


def report(name):
    return json.loads((ROOT / "reports" / f"{name}.json").read_text("utf-8"))


def test_the_figures_of_the_savings_page_are_those_of_the_reports():
    scores = report("accuracy_third")["scores"]
    field = report("field")
    checks, programs = field["checks"], field["programs"]
    right, judged = round(scores["family"] * scores["judged"]), scores["judged"]
    rows = [
        f"family right in {right} of {judged}",
        f"{scores['predictions']} fixes | median {scores['error_median']:.1f} points off, "
        f"90th percentile {scores['error_p90']:.1f}",
        f"inside the printed range | {scores['coverage']:.0%}".replace("%", " %"),
        f"did harm | {scores['harm']:.0f} |",
        f"{sum(check['passed'] for check in checks)} of {len(checks)} |",
        f"{sum(program['cause'] for program in programs)} of {len(programs)} recordings",
    ]
    assert [row for row in rows if row not in PAGES["savings"]] == []
    for method, words in {"replay": "by replay", "analytic": "by formula"}.items():
        share, fixes = WITHIN[method]
        assert f"Calibrated {words}: {fixes} fixes, within {100 * share:.0f} %" in PAGES["savings"]
    assert f"checked on {RECORDED} recordings" in PAGES["savings"]


def test_the_figures_of_other_pages_are_those_of_the_reports():
    largest = report("scale")["rows"][-1]
    assert f"{largest['ranks']:,} simulated ranks reduce in {largest['wall_s']:.0f} seconds" in " ".join(
        PAGES["ranks"].split()
    )
    peers = {entry["tool"]: entry["of_all"] for entry in report("accuracy")["peers"]}
    ours = report("accuracy")["scores"]["family"]
    told = " ".join(PAGES["README"].split())
    assert f"{100 * ours:.0f} % (profilerkit), {100 * peers['TraceML']:.0f} % (TraceML)" in told
    assert f"{100 * peers['torch-tb-profiler']:.0f} % (the TensorBoard plugin" in told


@pytest.mark.parametrize("question", ["My loop is slow", "A colleague sent trace.json.gz", "in CI"])
def test_a_newcomers_question_is_a_heading_with_a_command_below_it(question):
    for name in ("README", "questions"):
        below = re.search(
            rf"^## [^\n]*{re.escape(question)}[^\n]*\n(.*?)(?=^## |\Z)", PAGES[name], re.DOTALL | re.MULTILINE
        )
        assert below, name
        assert re.search(r"^profilerkit (run|analyze|check|diff) ", below.group(1), re.MULTILINE)
