"""Start-up stays fast because of what is not imported; time itself is not asserted, machines differ."""

import subprocess
import sys

import pytest

from profilerkit.cli import VERBS

HEAVY = {"torch", "numpy", "msgspec", "plotly", "rich", "jinja2", "pandas", "psutil", "pynvml"}
FRAMEWORKS = {"accelerate", "argcomplete", "lightning", "pytorch_lightning", "transformers"}


def heavy_modules_after(program):
    """Which of the heavy packages a fresh interpreter has loaded after the program."""
    report = "import sys; print('\\n'.join(sys.modules), file=sys.stderr)"
    ended = subprocess.run(
        [sys.executable, "-c", f"{program}\n{report}"], capture_output=True, text=True, check=False, timeout=60
    )
    assert ended.returncode == 0, ended.stderr
    return (HEAVY | FRAMEWORKS) & set(ended.stderr.split())


def test_the_check_sees_an_import():
    assert "msgspec" in heavy_modules_after("import profilerkit.model.report")


def test_import_loads_nothing_heavy():
    assert heavy_modules_after("import profilerkit; dir(profilerkit); profilerkit.ProfilerkitError") == set()


@pytest.mark.parametrize("name", ["accelerate", "huggingface", "lightning"])
def test_integrations_load_no_framework(name):
    assert heavy_modules_after(f"import profilerkit.integrations.{name}") == set()


@pytest.mark.parametrize(
    "arguments", [["--help"], ["--version"], ["demo", "--list"], *([verb, "--help"] for verb in VERBS)]
)
def test_help_loads_nothing_heavy(arguments):
    program = f"from profilerkit.cli import main\nassert main({arguments!r}) == 0"
    assert heavy_modules_after(program) == set()


@pytest.mark.parametrize(("verb", "threads"), [("analyze", "1"), ("run", None)])
def test_a_process_of_ours_starts_numpy_with_one_thread_and_a_training_command_as_many_as_it_likes(verb, threads):
    program = (
        "import os, sys\nfrom profilerkit.cli import main\n"
        f"sys.argv[1:] = [{verb!r}, '--help']\nos.environ.pop('OPENBLAS_NUM_THREADS', None)\n"
        "main()\nprint(os.environ.get('OPENBLAS_NUM_THREADS'))"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert ended.stdout.splitlines()[-1] == str(threads)
