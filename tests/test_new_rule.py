"""The scaffold of a rule: what it writes works, passes its own tests, and is as clean as the rest."""

import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from profilerkit.rules import RULES
from tests.once import made_once

ROOT = Path(__file__).parents[1]
CLAIM = "The first epoch reads a cold cache"
FAMILIES = {"CO": "comm", "CP": "compute", "IN": "input", "ME": "memory", "OV": "overhead", "RU": "run"}


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """A copy of the repository's source, with a new rule of every family."""

    def make(root):
        for name in ("profilerkit", "scripts", "tests"):
            shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
        for path in (ROOT / "pyproject.toml", *ROOT.glob("*.md")):
            shutil.copy(path, root)
        for letters, folder in FAMILIES.items():
            made = new_rule(root, f"{letters}901", f"cold_{folder}_cache", CLAIM)
            assert made.returncode == 0, made.stderr

    return made_once(tmp_path_factory, "repository", make)


def new_rule(root, *words):
    return run(root, sys.executable, "scripts/new_rule", *words)


def run(root, *command):
    return subprocess.run(command, cwd=root, env={"PYTHONPATH": str(root)}, capture_output=True, text=True, check=False)


#: Tests that hold every rule to something, whatever it is about.
OF_ALL = ("rules/test_docs", "rules/test_every_rule", "rules/test_runner", "cli/test_rules", "test_config")


def test_a_made_rule_passes_its_own_tests_and_those_of_all_rules(copy):
    made = [f"tests/rules/test_cold_{folder}_cache.py" for folder in FAMILIES.values()]
    of_all = [f"tests/{name}.py" for name in OF_ALL]
    others = f"not ({' or '.join(rule.code for rule in RULES)})"  # their own cases run in this repository
    ended = run(
        copy, sys.executable, "-m", "pytest", "-q", "-rA", "-p", "no:cacheprovider", "-k", others, *made, *of_all
    )
    assert ended.returncode == 0, ended.stdout
    assert all(f"[{letters}901" in ended.stdout for letters in FAMILIES)


def test_a_made_rule_is_listed_where_its_code_belongs(copy):
    program = "from profilerkit.rules import RULES; print([rule.code for rule in RULES])"
    codes = eval(run(copy, sys.executable, "-c", program).stdout)
    assert codes == sorted(codes)
    assert {f"{letters}901" for letters in FAMILIES} <= set(codes)


@pytest.mark.skipif(find_spec("ruff") is None, reason="ruff is not installed")
def test_a_made_rule_is_clean(copy):
    for command in (("check", "--no-cache"), ("format", "--check", "--no-cache")):
        ended = run(copy, sys.executable, "-m", "ruff", *command, ".")
        assert ended.returncode == 0, ended.stdout


@pytest.mark.skipif(find_spec("mypy") is None, reason="mypy is not installed")
def test_a_made_rule_is_typed(copy):
    ended = run(copy, sys.executable, "-m", "mypy", "profilerkit/rules")
    assert ended.returncode == 0, ended.stdout


def test_a_rule_of_a_project_works_without_this_repository(tmp_path):
    made = new_rule(ROOT, "XC001", "cold_cache", CLAIM, "--to", str(tmp_path / "checks"))
    assert made.returncode == 0, made.stderr
    texts = "".join(path.read_text() for path in (tmp_path / "checks").iterdir())
    assert set(re.findall(r"^(?:from|import) (profilerkit\S*)", texts, re.MULTILINE)) == {"profilerkit.plugin"}
    (tmp_path / "pyproject.toml").write_text('[tool.profilerkit]\nrules-path = "checks"\n')
    environment = {"PYTHONPATH": str(ROOT), "XDG_CONFIG_HOME": str(tmp_path / "config")}
    for command, said in (
        (("-m", "pytest", "-q", "-p", "no:cacheprovider", "checks"), "5 passed"),
        (("-m", "profilerkit", "rules", "XC001", "--allow-rules"), CLAIM),
    ):
        ended = subprocess.run(
            [sys.executable, *command], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr
        assert said in ended.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("IN1", "cold_cache", CLAIM), "IN1 is no code"),
        (("XC001", "cold_cache", CLAIM), "XC001 is no code: one of IN, ME, CO, CP, OV, RU and three digits"),
        (("IN001", "cold_cache", CLAIM), "another rule has the code IN001"),
        (("IN902", "ColdCache", CLAIM), "ColdCache is no name"),
        (("IN902", "../cold", CLAIM), "../cold is no name"),
        (("IN902", "cold_cache", 'a "quoted" claim'), "the claim must be one line"),
        (("IN902", "cold_cache", "A sentence."), "the claim must be one line"),
        (("IN902", "cold_input_cache", CLAIM), "cold_input_cache.py exists"),
    ],
)
def test_what_makes_no_rule_is_refused(copy, words, said):
    before = sorted((copy / "profilerkit" / "rules").rglob("*.py"))
    made = new_rule(copy, *words)
    assert made.returncode == 2
    assert said in made.stderr
    assert sorted((copy / "profilerkit" / "rules").rglob("*.py")) == before
