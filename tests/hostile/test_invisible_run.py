"""``profilerkit run`` is invisible: to every Python below it, to the program's own start-up, and to its children."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import profilerkit
from profilerkit.capture.settings import RunOptions
from profilerkit.cli import run
from profilerkit.cli.run import hindrance

HOME = Path(profilerkit.__file__).parents[1]
START = Path(run.__file__).with_name("start")
#: Where Pythons of other versions are looked for; a machine without them skips their tests.
_PLACES = ("/usr/bin", "/usr/local/bin", *map(str, Path.home().glob(".pyenv/versions/*/bin")))
VERSIONS = ("2.7", "3.6", "3.7", "3.8", "3.9", "3.10", "3.12", "3.13")


def other_python(version):
    for place in _PLACES:
        path = Path(place) / f"python{version}"
        if path.is_file() and subprocess.run([path, "-c", ""], capture_output=True, check=False).returncode == 0:
            return str(path)
    pytest.skip(f"there is no Python {version}")


def below_run(tmp_path, *paths, **changes):
    """The environment of a process below ``profilerkit run``, with these directories in ``PYTHONPATH``."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PROFILERKIT"))}
    variables |= {"PYTHONDONTWRITEBYTECODE": "1"} | ({"PYTHONPATH": os.pathsep.join(map(str, paths))} if paths else {})
    bare = dict(variables)
    RunOptions(pid=1, start_directory=str(START), directory=str(tmp_path), **changes).put(variables)
    return bare, variables


def seen(python, variables, tmp_path, *options, script="sees.py"):
    command = [python, *options, *([script] if script else [])]
    return subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, check=False)


#: Parses everywhere; prints what the program can see of its start.
SEES = """
import json, sys
print(json.dumps([
    sys.path, "sitecustomize" in sys.modules, getattr(sys, "customized", []), sorted(sys.modules),
    [type(finder).__name__ for finder in sys.meta_path], sorted(map(str, sys.path_importer_cache)),
]))
"""
BY_WAITING = ("_thread", "importlib", "atexit", "warnings")


@pytest.fixture
def site(tmp_path):
    """Two directories with a ``sitecustomize`` each, and a script; only the first one is the program's own."""
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        own = f"import sys\nsys.customized = getattr(sys, 'customized', []) + [__name__, {name!r}]\n"
        (tmp_path / name / "sitecustomize.py").write_text(own)
    (tmp_path / "sees.py").write_text(SEES)
    return tmp_path / "first", tmp_path / "second"


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("has_own", [False, True], ids=["no sitecustomize", "its own"])
def test_a_python_of_any_version_starts_as_without_run(tmp_path, site, version, has_own):
    python = other_python(version)
    bare, below = (seen(python, variables, tmp_path) for variables in below_run(tmp_path, *(site if has_own else ())))
    assert (below.returncode, below.stderr) == (bare.returncode, bare.stderr) == (0, "")
    one, other = (json.loads(done.stdout) for done in (bare, below))
    if tuple(map(int, version.split("."))) >= (3, 11):  # these wait for torch
        other[4].remove("_Finder")
        one[3] = other[3] = [name for name in other[3] if name not in one[3] and not name.startswith(BY_WAITING)]
        assert one[3] == []
    assert other == one
    assert one[2] == (["sitecustomize", "first"] if has_own else [])


def test_this_python_starts_as_without_run_but_for_what_waits_for_torch(tmp_path, site):
    bare, below = (json.loads(seen(sys.executable, given, tmp_path).stdout) for given in below_run(tmp_path, *site))
    assert below[:3] == bare[:3]
    assert below[4] == ["_Finder", *bare[4]]
    assert below[5] == bare[5]
    assert not {"wait_for_torch", "profilerkit", "torch"} & set(below[3])


@pytest.mark.parametrize("how", ["chain", "ImportError", "ValueError", "SystemExit", "SyntaxError"])
def test_what_the_programs_own_start_up_does_it_does(tmp_path, site, how):
    own = {
        "chain": "import sys\nsys.path.pop(sys.path.index(__file__.rsplit('/', 1)[0]))\n"
        "sys.modules.pop(__name__)\nimport sitecustomize\n",
        "SystemExit": "raise SystemExit(9)\n",
        "SyntaxError": "def f(:\n",
    }.get(how, f"raise {how}('its own')\n")
    (site[0] / "sitecustomize.py").write_text(own)
    bare, below = (seen(sys.executable, given, tmp_path) for given in below_run(tmp_path, *site))
    assert below.returncode == bare.returncode
    if how == "SystemExit":  # of which Python makes a fatal error, with its frames
        assert below.stderr.splitlines()[-1] == bare.stderr.splitlines()[-1] == "SystemExit: 9"
    else:
        assert below.stderr == bare.stderr
        assert json.loads(below.stdout)[:3] == json.loads(bare.stdout)[:3]


def test_children_chain_to_the_programs_own_start_up_too(tmp_path, site):
    (tmp_path / "parent.py").write_text(
        "import subprocess, sys\nsys.exit(subprocess.call([sys.executable, 'sees.py']))\n"
    )
    bare, below = (seen(sys.executable, given, tmp_path, script="parent.py") for given in below_run(tmp_path, *site))
    assert (below.returncode, below.stderr) == (bare.returncode, "")
    assert json.loads(below.stdout)[:3] == json.loads(bare.stdout)[:3]
    assert json.loads(below.stdout)[2] == ["sitecustomize", "first"]


def test_a_child_with_the_path_but_without_the_order_is_left_alone(tmp_path, site):
    bare, below = below_run(tmp_path, *site)
    del below["PROFILERKIT_RUN"]
    one, other = (json.loads(seen(sys.executable, given, tmp_path).stdout) for given in (bare, below))
    assert other == one


def test_start_up_needs_no_more_than_old_grammar():
    """The file is ASCII and has nothing newer than Python 2.7 where no old Python is at hand to read it."""
    text = (START / "sitecustomize.py").read_bytes().decode("ascii")
    for newer in ('f"', "f'", "->", ":=", "async ", "print ", "nonlocal", "from __future__"):
        assert newer not in text


IGNORES = [
    (["python", "-I", "train.py"], "-I ignores PYTHONPATH"),
    (["python3", "-E", "train.py"], "-E ignores PYTHONPATH"),
    (["python3.11", "-S", "train.py"], "-S does not run the module"),
    (["/opt/bin/python", "-uE", "train.py"], "-E ignores"),
    (["python", "-X", "dev", "-Wd", "-I", "-m", "train"], "-I ignores"),
    (["python", "-Im", "train"], "-I ignores"),
    (["nice", "-n", "5", "python", "-I", "train.py"], "-I ignores"),
    (["env", "X=1", "python", "-I", "-c", "pass"], "-I ignores"),
    (["python2.7", "train.py"], "Python 2.7, and profilerkit needs 3.11"),
    (["/nowhere/python3.9", "-m", "train"], "Python 3.9, and profilerkit needs 3.11"),
]
HARMLESS = [
    ["python", "train.py", "-I"],
    ["python", "-u", "-X", "importtime", "-W", "error::ImportWarning", "train.py"],
    ["python", "-WError", "-XI", "-m", "train", "-E"],
    ["train.py", "python", "-I"],
    ["-m", "train", "-I"],
    ["torchrun", "--nproc-per-node", "2", "train.py"],
    ["python3", "-sP", "train.py"],
    ["python3.13", "train.py"],
    ["grep", "-E", "x"],
]


@pytest.mark.parametrize(("command", "said"), IGNORES)
def test_a_python_that_can_record_nothing_is_named_with_its_reason(monkeypatch, command, said):
    monkeypatch.setattr("shutil.which", lambda word: None)
    assert said in hindrance(command)


@pytest.mark.parametrize("command", HARMLESS, ids=" ".join)
def test_of_other_commands_nothing_is_said(monkeypatch, command):
    monkeypatch.setattr("shutil.which", lambda word: None)
    assert hindrance(command) == ""


@pytest.mark.parametrize("line", ["{python} -I", "/usr/bin/env -S {python} -uE"])
def test_the_first_line_of_a_program_is_read_too(tmp_path, line):
    program = tmp_path / "train"
    program.write_text(f"#!{line.format(python=sys.executable)}\nprint('trained')\n")
    assert "PYTHONPATH, by which run records" in hindrance([str(program)])


@pytest.mark.parametrize("option", ["-I", "-E", "-S"])
def test_it_is_said_once_before_the_start_and_changes_no_exit_code(tmp_path, option):
    (tmp_path / "train.py").write_text("import sys\nprint('trained')\nsys.stderr.write('own')\nsys.exit(7)\n")
    command = [sys.executable, "-m", "profilerkit", "run"]
    for quiet in ([], ["-q"]):
        done = subprocess.run(
            [*command, *quiet, "--", sys.executable, option, "train.py"],
            cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(HOME)}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert (done.returncode, done.stdout) == (7, "trained\n")
        said, own = done.stderr.split("own")[0].splitlines(), done.stderr.endswith("own")
        assert own
        assert (said == []) if quiet else (len(said) == 1 and f"Python with {option} " in said[0])


@pytest.mark.parametrize("option", ["-I", "-E", "-S"])
def test_a_python_whose_options_its_command_gets_too_says_so_and_runs_it(tmp_path, option):
    (tmp_path / "train.py").write_text("print('trained')\nraise SystemExit(7)\n")
    run = f"import sys; sys.path[:0] = {sys.path!r}; from profilerkit.cli import main; sys.exit(main())"
    (tmp_path / "profilerkit").write_text(run)
    for words, code in ((["run", "train.py"], 7), (["try", "train.py"], 2)):
        done = subprocess.run(
            [sys.executable, option, "profilerkit", *words], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == code, done.stderr
        assert done.stdout == ("trained\n" if code == 7 else "")
        assert ("nothing is recorded" in done.stderr) == (code == 7)
