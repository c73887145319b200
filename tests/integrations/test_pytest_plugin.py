"""The pytest plugin on real tests that train: a budget that is exceeded fails the test and says what to do."""

import os
import re
import subprocess
import sys
import textwrap
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

import profilerkit
from tests import programs

HOME = Path(profilerkit.__file__).parents[1]
PLUGIN = "profilerkit.integrations.pytest"
TESTS = textwrap.dedent("""
    import time
    import pytest
    import torch

    class Slow(torch.utils.data.Dataset):
        def __len__(self):
            return 40

        def __getitem__(self, index):
            time.sleep(0.015)  # a step beside it takes a millisecond, and several on a busy machine
            return torch.randn(8)

    def train(batches):
        model = torch.nn.Linear(8, 1)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for batch in batches:
            model(batch).sum().backward()
            optimizer.step()

    def loader():
        return torch.utils.data.DataLoader(Slow())
""")

pytestmark = pytest.mark.torch


@pytest.fixture
def outcome(tmp_path):
    """Run pytest with the plugin on tests that follow ``TESTS``; return its exit code and what it printed."""
    pytest.importorskip("torch")

    def outcome(tests, *options, settings=""):
        (tmp_path / "test_training.py").write_text(TESTS + textwrap.dedent(tests), encoding="utf-8")
        (tmp_path / "pyproject.toml").write_text(settings, encoding="utf-8")
        command = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", PLUGIN, "--strict-markers", "--basetemp=kept"]
        own = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        done = programs.run(*command, *options, cwd=tmp_path, env={**os.environ, **own}, timeout=240)
        return done.returncode, done.stdout

    return outcome


def test_a_budget_that_is_exceeded_fails_and_says_by_how_much_and_what_to_change(outcome, tmp_path):
    code, shown = outcome("""
        @pytest.mark.profilerkit(step_time="1 ms", input="99.9 %")
        def test_step():
            train(loader())
    """)
    assert code == 1, shown
    assert re.search(r"^step_time is \S+ ms; the limit is 1\.00 ms \(\+\d+ %\)$", shown, re.MULTILINE)
    assert "input-bound: " in shown
    assert re.search(r"first fix \(saves .+ %\): .*num_workers 0 → ", shown)
    reports = set(re.findall(r"report: (\S+)", shown))  # where CI is set, pytest's summary has it again
    assert [Path(report).is_file() for report in reports] == [True]
    assert "input is" not in shown, "only what is exceeded is said"


def test_budgets_that_are_kept_pass_and_the_recording_is_at_hand(outcome):
    code, shown = outcome("""
        @pytest.mark.profilerkit(step_time="10 s")
        def test_step(profilerkit_run):
            with profilerkit_run.phase("evaluation"):
                time.sleep(0.01)
            train(profilerkit_run.wrap(loader()))

        def test_without_a_budget(profilerkit_run):
            train(profilerkit_run.wrap([torch.randn(8)] * 20))
            assert profilerkit_run.directory.is_dir()

        def test_of_nothing_of_ours():
            pass
    """)
    assert code == 0, shown
    assert "3 passed" in shown


def test_the_budgets_of_the_project_hold_and_the_marker_wins(outcome):
    settings = '[tool.profilerkit.budgets]\nstep_time = "1 ms"\n'
    tests = """
        @pytest.mark.profilerkit
        def test_of_the_project():
            train(loader())

        @pytest.mark.profilerkit(step_time="10 s")
        def test_of_its_own():
            train(loader())
    """
    code, shown = outcome(tests, settings=settings)
    assert code == 1
    assert "1 failed, 1 passed" in shown
    assert "FAILED test_training.py::test_of_the_project" in shown


UNJUDGED = {
    'stepp_time="1 ms"': "did you mean step_time?",
    "step_time=20": "'20' is not a number with one of the units",
    '"20 ms"': "a budget has no name",
    'throughput="1/s"': "not judged: throughput was not measured",
}


def test_a_budget_that_cannot_be_judged_fails(outcome):
    tests = [
        f"@pytest.mark.profilerkit({budget})\ndef test_{number}():\n    train([torch.randn(8)] * 30)\n"
        for number, budget in enumerate(UNJUDGED)
    ]
    code, shown = outcome("\n".join(tests))
    assert code == 1
    failures = re.split(r"^_+ test_\d _+$", shown.partition("short test summary")[0], flags=re.MULTILINE)[1:]
    assert [said in failure for said, failure in zip(UNJUDGED.values(), failures, strict=True)] == [True] * 4, shown
    assert "Traceback" not in shown


def test_the_failure_of_the_test_itself_is_shown_alone(outcome):
    code, shown = outcome("""
        @pytest.mark.profilerkit(step_time="1 ns")
        def test_step():
            train([torch.randn(8)] * 12)
            raise ValueError("of the test")

        @pytest.mark.profilerkit(step_time="1 ns")
        def test_skipped():
            pytest.skip("no")
    """)
    assert code == 1
    assert "ValueError: of the test" in shown
    assert "step_time is" not in shown
    assert "1 failed, 1 skipped" in shown


def test_a_plain_run_of_pytest_loads_nothing_heavy_through_the_plugin(tmp_path):
    (tmp_path / "test_plain.py").write_text("def test_it(): pass")
    program = (
        "import sys, pytest\n"
        f"assert pytest.main(['-q', '-p', 'no:cacheprovider', '-p', '{PLUGIN}', 'test_plain.py']) == 0\n"
        "print(sorted({'torch', 'numpy', 'msgspec', 'profilerkit.api'} & set(sys.modules)))"
    )
    own = {"PYTHONPATH": str(HOME), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={**os.environ, **own},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.stdout.splitlines()[-1] == "[]", done.stdout + done.stderr


def test_the_entry_point_names_the_plugin():
    project = tomllib.loads((HOME / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["entry-points"]["pytest11"] == {"profilerkit": PLUGIN}
    assert callable(import_module(PLUGIN).pytest_configure)
