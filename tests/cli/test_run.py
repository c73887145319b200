"""``profilerkit run`` on real commands: what the script sees stays as it was, and every ending leaves a recording."""

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import venv
from pathlib import Path

import pytest

import profilerkit
from profilerkit.capture.settings import VARIABLE, RunOptions
from profilerkit.cli import main, run
from profilerkit.rundir.reader import read_run
from tests import programs

HOME = Path(profilerkit.__file__).parents[1]
LIGHT = ["--no-deep", "--no-nvml", "--no-host"]

TRAINING = textwrap.dedent("""
    import os, signal, sys, time, types
    import torch

    # Optimizers import torch's compiler, 1.5 s of CPU in each process, only to be left alone by it.
    without = types.SimpleNamespace(disable=lambda function, *_, **__: function, graph_break=lambda: None)
    without.trace_rules = types.SimpleNamespace(clear_lru_cache=lambda: None)
    sys.modules["torch._dynamo"] = torch._dynamo = without

    class Data(torch.utils.data.Dataset):
        def __len__(self):
            return 20

        def __getitem__(self, index):
            time.sleep(0.005)
            return torch.randn(4)

    def train(**settings):
        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for batch in torch.utils.data.DataLoader(Data(), **settings):
            model(batch).sum().backward()
            optimizer.step()
""")
TRAIN = TRAINING + "train()\n"


@pytest.fixture
def start(tmp_path):
    """Run ``profilerkit run`` with a script in a directory of its own."""

    def start(script, *command, options=(*LIGHT, "--no-analyze"), python=(), **variables):
        (tmp_path / "train.py").write_text(script, encoding="utf-8")
        words = [sys.executable, *python, "-m", "profilerkit", "run", *options, *(command or ["train.py"])]
        own = {"PYTHONPATH": str(HOME), "OMP_NUM_THREADS": "1"}
        return subprocess.run(
            words,
            cwd=tmp_path,
            env={**os.environ, **own, **variables},
            input="typed",
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )

    return start


@pytest.fixture
def warm(tmp_path):
    """The same in a process that has imported torch, which does not see how an interpreter starts."""
    pytest.importorskip("torch")

    def warm(script, *command, options=(*LIGHT, "--no-analyze"), all_warm=False):
        (tmp_path / "train.py").write_text(script, encoding="utf-8")
        own = {"PYTHONPATH": str(HOME), "OMP_NUM_THREADS": "1"}
        words = ["-m", "profilerkit", "run", *options, *(command or ["train.py"])]
        return programs.run(*words, cwd=tmp_path, env={**os.environ, **own}, warm=all_warm)

    return warm


def recordings(tmp_path):
    return sorted(path.parent.name for path in tmp_path.rglob("launch.json"))


SEES = textwrap.dedent("""
    import json, os, sys
    print(json.dumps({
        "argv": sys.argv, "name": __name__, "file": __file__, "cwd": os.getcwd(), "path": sys.path,
        "is main": sys.modules["__main__"].__dict__ is globals(),
        "spec": __spec__ and __spec__.name, "in": sys.stdin.read(),
        "unbuffered": sys.stdout.write_through, "customized": "sitecustomize" in sys.modules and sys.customized,
    }))
    sys.exit(7)
""")


@pytest.mark.parametrize("command", [["train.py", "-q", "--output", "x"], ["-m", "package.train", "--", "-m"]])
def test_the_script_sees_what_it_would_see_without(start, tmp_path, command):
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "train.py").write_text(SEES, encoding="utf-8")
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text("import sys\nsys.customized = __file__\n", encoding="utf-8")
    paths = os.pathsep.join([str(HOME), str(tmp_path / "site")])
    recorded = start(SEES, *command, python=["-u"], PYTHONPATH=paths)
    bare = subprocess.run(
        [sys.executable, "-u", *command],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": paths},
        input="typed",
        capture_output=True,
        text=True,
        check=False,
    )
    assert bare.returncode == recorded.returncode == 7
    assert json.loads(bare.stdout)["customized"]
    assert json.loads(recorded.stdout) == json.loads(bare.stdout)


@pytest.mark.parametrize(
    ("ending", "code", "exception", "named", "is_quiet"),
    [
        ("", 0, None, "finished", False),
        ("sys.exit(3)", 3, None, "sys.exit(3)", True),
        ("raise ValueError('lost')", 1, "ValueError: lost", "ValueError", False),
        ("raise KeyboardInterrupt", -signal.SIGINT, "KeyboardInterrupt", "interrupted (Ctrl-C)", False),
    ],
)
@pytest.mark.torch
def test_every_ending_python_survives_is_recorded_and_reported(
    warm, tmp_path, ending, code, exception, named, is_quiet
):
    done = warm(TRAIN + ending, options=["-q", *LIGHT] if is_quiet else LIGHT)
    assert done.returncode == code, done.stderr
    record = read_run(tmp_path / "runs" / "train")
    assert record.ranks[0].end.exception == exception
    assert record.ranks[0].end.steps == 20
    assert (tmp_path / "runs" / "train" / "report.html").is_file()
    report = json.loads((tmp_path / "runs" / "train" / "report.json").read_text())
    assert report["run"]["ended"] == named
    words = [line for line in done.stderr.splitlines() if line.startswith("profilerkit: ")]
    assert bool(words) is not is_quiet
    if not is_quiet:
        assert words[0] == (
            "profilerkit: recording to runs/train; for a report before it ends: profilerkit analyze runs/train"
        )
        verdict = report["verdict"]
        assert words[-1].startswith(f"profilerkit: {verdict['bound']}: {verdict['headline']}")
        assert "(runs/train/report.html); next: " in words[-1]
    assert ("Traceback" in done.stderr) == (exception is not None)
    assert done.stdout == ""
    assert done.stderr == "" or not is_quiet


@pytest.mark.parametrize(
    ("ending", "code", "named"),
    [
        ("time.sleep(1); os._exit(5)", 5, "The run ended after 20 steps: os._exit(5)"),
        (
            "time.sleep(1); os.kill(os.getpid(), signal.SIGKILL)",
            -signal.SIGKILL,
            "The run was killed: it left no word of its end.",
        ),
        (
            "time.sleep(1); import ctypes; ctypes.string_at(0)",
            -signal.SIGSEGV,
            "Python's last word was: Segmentation fault (SIGSEGV) at train.py:",
        ),
        (
            "time.sleep(1); os.fork() or os.abort(); os.wait(); os.kill(os.getpid(), signal.SIGKILL)",
            -signal.SIGKILL,
            "The run was killed: it left no word of its end.",
        ),
    ],
)
@pytest.mark.torch
def test_an_ending_python_does_not_survive_leaves_what_analyze_reads(warm, tmp_path, ending, code, named, capsys):
    done = warm(TRAIN + ending, options=LIGHT)
    assert done.returncode == code
    assert "for a report before it ends: profilerkit analyze runs/train" in done.stderr
    assert main(["analyze", str(tmp_path / "runs" / "train")]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "input-bound" in told.lower()
    assert named in told
    assert ("Python's last word" in told) is ("ctypes" in ending)


@pytest.mark.torch
def test_workers_record_nothing_of_their_own(warm, tmp_path):
    inside = textwrap.dedent("""
    class Probe:
        def __init__(self, method):
            self.method = method

        def __call__(self, _):
            with open(self.method, "w") as file:
                print("PROFILERKIT_RUN" in os.environ, "cli/start" in os.environ.get("PYTHONPATH", ""), file=file)
            train()  # a loop inside a worker is not the training

    if __name__ == "__main__":
        # All batches are fetched: spawned workers that are shut down early may abort in torch's own exit.
        for method in ("fork", "spawn", "forkserver"):
            train(num_workers=1, multiprocessing_context=method, worker_init_fn=Probe(method))
    """)
    done = warm(TRAINING + inside)
    assert done.returncode == 0, done.stderr
    for method in ("fork", "spawn", "forkserver"):
        assert (tmp_path / method).read_text().split() == ["False", "False"]
    assert recordings(tmp_path) == ["train"]
    (rank,) = read_run(tmp_path / "runs" / "train").ranks
    assert rank.end.steps == 60


RANK = textwrap.dedent("""
    torch.distributed.init_process_group("gloo")
    train()
    torch.distributed.destroy_process_group()
""")


SPAWNED = textwrap.dedent("""
    def rank(number, file):
        torch.distributed.init_process_group("gloo", init_method=f"file://{file}", rank=number, world_size=2)
        train()
        torch.distributed.barrier()

    if __name__ == "__main__":
        torch.multiprocessing.spawn(rank, (os.path.abspath("meet"),), 2)
""")


@pytest.mark.torch
def test_ranks_a_script_spawns_itself_write_one_recording(warm, tmp_path):
    done = warm(TRAINING + SPAWNED)
    assert done.returncode == 0, done.stderr
    assert recordings(tmp_path) == ["train"]
    assert [rank.end.steps for rank in read_run(tmp_path / "runs" / "train").ranks] == [20, 20]


EVALUATES = textwrap.dedent("""
    def child():
        train()

    if __name__ == "__main__":
        process = torch.multiprocessing.get_context("spawn").Process(target=child)
        process.start()
        process.join()
        for batch in torch.utils.data.DataLoader(Data(), 4):
            pass
""")


@pytest.mark.torch
def test_a_parent_that_only_evaluates_makes_no_report(warm, tmp_path):
    done = warm(TRAINING + EVALUATES, options=LIGHT)
    assert done.returncode == 0, done.stderr
    reported = sorted(path.parent.name for path in (tmp_path / "runs").glob("*/report.json"))
    assert reported == ["train"]
    assert done.stderr.count("RuntimeWarning: this process trained nothing") == 1
    assert read_run(tmp_path / "runs" / "train").ranks[0].end.steps == 20


SETS_A_PATH = f"PYTHONPATH=. {sys.executable} train.py"


@pytest.mark.parametrize(
    ("command", "is_told"),
    [
        (("sh", "-c", SETS_A_PATH), True),
        (("sh", "train.sh"), True),
        (("sh", "-c", SETS_A_PATH.replace("=.", "=.:$PYTHONPATH")), False),
    ],
)
def test_a_command_that_replaces_the_search_path_is_told_so(start, tmp_path, command, is_told):
    (tmp_path / "train.sh").write_text(SETS_A_PATH, encoding="utf-8")
    done = start("print('trained')", "--", *command)
    assert (done.returncode, done.stdout) == (0, "trained\n")
    assert ("the command sets PYTHONPATH" in done.stderr) is is_told
    assert start("", "-q", "--", *command).stderr == ""


FAILING = textwrap.dedent("""
    torch.distributed.init_process_group("gloo")
    train()
    if os.environ["RANK"] == "1":
        time.sleep(0.5)
        ENDING
    torch.distributed.barrier()
""")


@pytest.mark.parametrize(
    ("ending", "exception"),
    [("raise ValueError('lost')", "ValueError: lost"), ("os.kill(os.getpid(), signal.SIGKILL)", None)],
)
@pytest.mark.torch
def test_a_rank_that_fails_takes_no_recording_with_it(warm, tmp_path, ending, exception, capsys):
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "train.py"]
    done = warm(TRAINING + FAILING.replace("ENDING", ending), "--", *launcher, all_warm=True)
    assert done.returncode == 1
    record = read_run(tmp_path / "runs" / "train")
    assert [rank.rank for rank in record.ranks] == [0, 1]
    failed = record.ranks[1].end
    assert (failed and failed.exception) == exception
    assert main(["analyze", str(record.path)]) == 0
    assert "input-bound" in capsys.readouterr().out.lower()


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.torch
def test_ranks_of_torchrun_write_one_recording(warm, tmp_path, inside):
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    if inside:
        (tmp_path / "train.py").write_text(TRAINING + RANK, encoding="utf-8")
        options = [*LIGHT, "--no-analyze"]
        own = {"PYTHONPATH": str(HOME), "OMP_NUM_THREADS": "1"}
        words = [*launcher[1:], "-m", "profilerkit", "run", *options, "train.py"]
        done = programs.run(*words, cwd=tmp_path, env={**os.environ, **own}, warm=True)
    else:
        done = warm(TRAINING + RANK, "--", *launcher, "train.py")
    assert done.returncode == 0, done.stderr
    assert recordings(tmp_path) == ["train"]
    record = read_run(tmp_path / "runs" / "train")
    assert [rank.end.steps for rank in record.ranks] == [20, 20]
    assert record.manifest.world_size == 2
    assert done.stderr.count("profilerkit: recording to") == 1


JOINS = textwrap.dedent("""
    import profilerkit
    train()
    with profilerkit.profile("mine", trace_steps=4, analyze=False) as prof:
        for batch in prof.wrap(list(range(7))):
            pass
    train()
    print(prof.directory)
""")


@pytest.mark.parametrize("trains_before", [True, False])
@pytest.mark.torch
def test_a_profile_block_in_the_script_records_once_as_the_command_line_says(warm, tmp_path, trains_before):
    script = TRAINING + (JOINS if trains_before else JOINS.replace("train()", "pass", 1))
    done = warm(script, "-o", "asked", "--no-deep", "--trace-every", "9", "train.py", options=LIGHT)
    assert done.returncode == 0, done.stderr
    assert recordings(tmp_path) == ["asked"]
    record = read_run(tmp_path / "asked")
    assert record.ranks[0].end.steps == (27 if trains_before else 7)
    assert record.manifest.settings["deep"] == "False"
    assert record.manifest.settings["trace_every"] == "9"
    assert record.manifest.settings["trace_steps"] == ("10" if trains_before else "4")
    assert done.stdout == f"{tmp_path / 'asked'}\n"
    assert "records nothing" not in done.stderr


def test_a_block_keeps_its_own_directory_where_the_command_line_names_none(start, tmp_path):
    block = "import profilerkit\nwith profilerkit.profile('mine', analyze=False) as prof: list(prof.wrap(range(5)))"
    assert start(block, options=LIGHT).returncode == 0
    assert recordings(tmp_path) == ["mine"]


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("print('hello')", "nothing was recorded: torch was not imported"),
        ("import torch", "nothing was recorded: no DataLoader was iterated"),
    ],
)
def test_a_command_that_does_not_train_is_told_so(warm, tmp_path, script, reason):
    done = warm(script)
    assert done.returncode == 0
    assert reason in done.stderr
    assert recordings(tmp_path) == []
    if "torch" not in script:  # both reasons are said by one line
        assert warm(script, options=["-q"]).stderr == ""


STARTS = f"""
import slow
{TRAINING}
class Slow(Data):
    def __init__(self):
        time.sleep(0.2)

    def __getitem__(self, index):
        time.sleep(0.1 if index == 0 else 0)
        return torch.randn(4)

Data = Slow
before = torch.utils.data.DataLoader.__init__
train()
assert torch.utils.data.DataLoader.__init__ is before.__wrapped__
assert not torch.nn.modules.module._global_parameter_registration_hooks
assert not any("wait_for_torch" in type(finder).__module__ for finder in sys.meta_path)
"""


@pytest.mark.torch
def test_what_start_up_held_is_noted_and_nothing_stays_in_torch(start, tmp_path):
    pytest.importorskip("torch")
    (tmp_path / "slow.py").write_text("import time\ntime.sleep(0.3)\nimport decimal, torch\n", encoding="utf-8")
    done = start(STARTS)
    assert done.returncode == 0, done.stderr
    (rank,) = read_run(tmp_path / "runs" / "train").ranks
    found = rank.meta.start_up
    assert {"torch", "slow"} <= set(found.packages)
    assert 0.3e9 <= found.packages["slow"] < sum(end - begin for begin, end in found.imports)
    assert "profilerkit" not in found.packages
    begins = [begin for begin, _ in found.imports]
    assert rank.meta.process_start_perf_ns < found.python_end_ns < begins[0] < found.model[0] < found.loader_ns
    assert found.loader_ns - max(end for begin, end in found.imports if begin < found.loader_ns) >= 0.2e9
    ledger = profilerkit.analyze(tmp_path / "runs" / "train").ledger
    entries = {entry.entry: entry.time_ns for entry in ledger.entries}
    assert entries["start.data"] >= 0.2e9
    assert entries["start.batch"] >= 0.1e9


def test_an_unwritable_place_costs_the_recording_and_not_the_training(warm, tmp_path):
    (tmp_path / "tmp").write_text("in the way", encoding="utf-8")
    script = f"{TRAINING}import tempfile\ntempfile.tempdir = {str(tmp_path / 'tmp')!r}\ntrain()\n"
    (tmp_path / "file").write_text("in the way", encoding="utf-8")
    done = warm(script + "print('trained')\n", options=[*LIGHT, "-o", "file/run"])
    assert (done.returncode, done.stdout) == (0, "trained\n"), done.stderr
    assert "profilerkit records nothing, training goes on: cannot write" in done.stderr


@pytest.fixture
def bare_python(tmp_path):
    """A Python without anything installed, in a directory of its own."""
    venv.create(tmp_path / "bare", with_pip=False)
    return tmp_path / "bare" / "bin" / "python"


@pytest.mark.parametrize(
    ("paths", "said"), [((), "cannot be imported by"), ((HOME,), "cannot be imported by"), (sys.path, "goes on")]
)
def test_a_python_that_cannot_record_imports_its_torch_all_the_same(tmp_path, bare_python, paths, said):
    (tmp_path / "torch.py").write_text("", encoding="utf-8")
    (tmp_path / "train.py").write_text("import torch\nprint('trained')", encoding="utf-8")
    variables = {"PYTHONPATH": os.pathsep.join(map(str, paths))}
    start_directory = Path(run.__file__).with_name("start")
    RunOptions(pid=1, start_directory=str(start_directory), directory=str(tmp_path)).put(variables)
    done = subprocess.run(
        [bare_python, "train.py"], cwd=tmp_path, env=variables, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "trained\n"), done.stderr
    assert said in done.stderr


@pytest.mark.skipif(shutil.which("grep") is None, reason="there is no grep")
def test_a_program_gets_back_the_signals_python_ignores(start):
    line = start("", "--", "grep", "SigIgn", "/proc/self/status").stdout
    assert int(line.split()[1], 16) >> signal.SIGPIPE - 1 & 1 == 0


@pytest.mark.parametrize(
    ("words", "error", "hint"),
    [
        ([], "there is no command to run", "profilerkit run train.py"),
        (["--"], "there is no command to run", "profilerkit run train.py"),
        (["missing.py"], "no such script: missing.py", "check the path"),
        (["pkg.train"], "no such script or program: pkg.train", "a module needs -m"),
        ([str(HOME / "pyproject.toml")], "is no Python script", "profilerkit analyze"),
        (["-m"], "-m names no module", "-m package.train"),
        (["python train.py"], "no such script or program: python train.py", "profilerkit run python train.py"),
        (["--trace-steps", "0", "x.py"], "--trace-steps is 0", "--no-deep"),
        (["--trace-every", "0", "x.py"], "--trace-every is 0", "--no-deep"),
        (["--no-depe", "x.py"], "unknown option --no-depe", "did you mean --no-deep?"),
        (["--trace-steps", "many", "x.py"], "profilerkit run cannot be run as given", "see profilerkit run --help"),
        (["-o", __file__, __file__], "is a file", "name a directory"),
    ],
)
def test_bad_usage_is_told_before_anything_starts(capsys, monkeypatch, words, error, hint):
    monkeypatch.setattr(os, "execvpe", None)
    assert main(["run", *words]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("error: ")
    assert error in lines[0]
    assert hint in lines[-1]


@pytest.mark.parametrize(
    ("words", "split"),
    [
        (["run", "x.py", "-o", "y"], (["run"], ["x.py", "-o", "y"])),
        (["-q", "run", "--no-deep", "-m", "x", "-q"], (["-q", "run", "--no-deep"], ["-m", "x", "-q"])),
        (["run", "--output=d", "--", "-m", "x"], (["run", "--output=d"], ["-m", "x"])),
        (["run", "-o", "x.py"], (["run", "-o", "x.py"], [])),
    ],
)
def test_options_end_where_the_command_begins(words, split):
    assert run.split(words) == split


def test_the_variable_has_one_name():
    for name in ("sitecustomize.py", "wait_for_torch.py"):
        started = Path(run.__file__).with_name("start") / name
        assert f'"{VARIABLE}"' in started.read_text("utf-8")


@pytest.mark.parametrize(
    ("words", "options"),
    [
        (["python", "-m", "profilerkit", "run", "-m", "train"], []),
        (["python", "-u", "-Xdev", "-W", "error", "-m", "profilerkit", "run"], ["-u", "-Xdev", "-W", "error"]),
        (["python", "-um", "profilerkit", "run", "train.py", "-m", "resnet"], ["-u"]),
        (["python", "-u", "/opt/bin/profilerkit", "run", "-m", "train"], ["-u"]),
        (["python"], []),
    ],
)
def test_only_the_options_before_the_program_are_pythons(words, options):
    assert run.python_options(words) == options


def test_the_installed_command_starts_a_module_once(tmp_path):
    command = Path(sys.executable).with_name("profilerkit")
    if not command.exists():
        pytest.skip("profilerkit is not installed beside this Python")
    (tmp_path / "hello.py").write_text("import sys\nprint('hello', *sys.argv[1:])\n")
    done = subprocess.run(
        [command, "run", "-m", "hello", "-m", "resnet"],
        cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "hello -m resnet\n")
