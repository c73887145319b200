"""A trial of real programs: they run, end by themselves, and leave nothing behind."""

import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

import profilerkit
from profilerkit.cli import main
from profilerkit.errors import UsageError
from profilerkit.experiment import runs, search
from profilerkit.experiment.trying import asked
from profilerkit.model.finding import Evidence, Finding, Fix, Outcome, Saving, SettingChange
from tests import programs

pytestmark = pytest.mark.torch

PROGRAM = """
import time, torch
from torch.utils.data import DataLoader, Dataset

class Slow(Dataset):
    def __len__(self): return 100_000
    def __getitem__(self, i):
        time.sleep(0.005)
        return torch.full((8,), float(i % 7))

torch.set_num_threads(1)
net = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
try:
    for batch in DataLoader(Slow(), batch_size=4):
        net(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
finally:
    print("cleaned up")
"""


@pytest.fixture
def few_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of each, which is enough to compare losses."""
    monkeypatch.setattr(search, "MOST_RUNS", 2)
    monkeypatch.setattr(search, "MOST_AGAIN", 0)


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "train.py"
    path.write_text(PROGRAM, "utf-8")
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    yield path
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("few_runs")
def test_one_command_measures_a_change_and_leaves_the_script_as_it_is(
    program: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    programs.warm(monkeypatch, runs)
    words = ["try", "-o", "trial", "--steps", "12", "--budget", "60", "--fix", "num_workers=2", "-f", "md", "train.py"]
    assert main(words) == 0
    assert program.read_text("utf-8") == PROGRAM
    shown = capsys.readouterr()
    assert "num_workers" in shown.out
    assert {file.name for file in Path("trial").iterdir()} >= {"first", "ends", "trial.md", "trial.json"}
    trial = json.loads(Path("trial/trial.json").read_text("utf-8"))
    (workers,) = (one for one in trial["attempts"] if one["changes"][0]["proposed"] == 2)
    assert workers["runs"] >= 1
    assert workers["numbers"] in ("same", "unknown")
    outputs = list(Path("trial/ends").glob("*/output.txt"))
    assert len(outputs) > 2
    assert all(file.read_text("utf-8").endswith("cleaned up\n") for file in outputs)
    ends = json.loads(Path("trial/ends/num_workers=2-1/rank_00000.json").read_text("utf-8"))
    assert [line for _, line, *_ in ends["applied"]["num_workers"]] == [
        PROGRAM.splitlines().index("    for batch in DataLoader(Slow(), batch_size=4):") + 1
    ]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_no_process_outlives_a_trial_that_is_ended(program: Path, number: int) -> None:
    command = [sys.executable, "-m", "profilerkit", "try", "-o", "trial", program.name]
    # A shell's background jobs ignore SIGINT, and so does all that they start.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        trial = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    finally:
        signal.signal(signal.SIGINT, before)
    begun = Path("trial/first/rank_00000/events.bin")
    deadline = time.monotonic() + 60
    while not begun.exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    below = psutil.Process(trial.pid).children(recursive=True)
    assert below
    os.kill(trial.pid, number)
    assert trial.wait(60) == 130
    assert not [child for child in below if child.is_running() and child.status() != psutil.STATUS_ZOMBIE]


def test_the_command_of_a_recording_is_shown_and_not_run_unasked(
    program: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("theirs").mkdir()
    manifest = {
        "format_version": 1, "profilerkit_version": "1", "created_unix_ns": 0, "argv": ["x"], "world_size": 1,
        "settings": {}, "environment": {}, "versions": {}, "command": ["sh", "-c", "echo PWNED > pwned"],
    }  # fmt: skip
    Path("theirs/run.json").write_text(json.dumps(manifest), "utf-8")
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    assert main(["try", "theirs"]) == 2
    assert "echo PWNED" in capsys.readouterr().err
    assert not Path("pwned").exists()


@pytest.mark.usefixtures("few_runs")
def test_a_function_is_tried_in_this_process(tmp_path: Path) -> None:
    import torch

    def train() -> None:
        net = torch.nn.Linear(8, 8)
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
        for _ in range(200):
            net(torch.ones(4, 8)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    trial = profilerkit.try_fixes(train, tmp_path / "trial", steps=20, budget=30, fixes=["fused=True"])
    (fused,) = (one for one in trial.attempts if one.changes[0].setting == "fused")
    assert fused.runs >= 1
    assert fused.numbers in ("same", "rounding")
    assert "fused" in trial.to_markdown()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("num_worker=2", "num_worker"),
        ("fused", "has no value"),
        ("env:=1", "has no name"),
        ("num_workers=-1", "a whole number from 0 on"),
        ("num_workers=2.5", "a whole number from 0 on"),
        ("prefetch_factor=true", "a whole number from 1 on"),
        ("val_check_interval=abc", "a whole number from 1 on, or a fraction up to 1"),
        ("save_steps=1.5", "a whole number from 1 on, or a fraction up to 1"),
        ("seed=1", "seed"),
        ("fused=1", "True or False"),
        ("autocast=bf8", "bf16 or fp16"),
        ("ceiling=", "cannot be empty"),
    ],
)
def test_a_change_that_cannot_be_made_is_refused_with_what_can(text: str, said: str) -> None:
    with pytest.raises(UsageError) as raised:
        asked(text)
    assert said in raised.value.in_one_line


@pytest.mark.parametrize("value", [0.1, 1.0, 200])
def test_an_interval_is_a_count_or_a_share(value: float) -> None:
    assert asked(f"eval_steps={value}").changes[0].proposed == value


def test_an_argument_that_is_too_long_for_a_name_names_no_file(program: Path) -> None:
    Path("kept.diff").touch()
    assert main(["try", "--dry", "--write", "kept.diff", program.name, "x" * 5000]) == 0


def test_a_variable_of_the_environment_is_kept_as_it_was_written() -> None:
    assert asked("env:A=1e3=true").changes[0].proposed == "1e3=true"


WRONG = {
    "a value": ["--fix", "num_workers=many"],
    "no steps": ["--steps", "0"],
    "a directory to write": ["--write", "."],
    "nowhere to write": ["--write", "none/kept.diff"],
    "the script to write": ["--write", "train.py"],
    "a place that is taken": ["-o", "full"],
    "a file below which to write": ["-o", "train.py/trial"],
}


@pytest.mark.parametrize("dry", [True, False])
@pytest.mark.parametrize("name", WRONG)
def test_wrong_settings_are_refused_before_anything_runs(
    name: str, dry: bool, program: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program.write_text("open('ran', 'w')", "utf-8")
    Path("full").mkdir()
    Path("full/file").touch()
    assert main(["try", *WRONG[name], *(["--dry"] if dry else []), "train.py"]) == 2
    said = capsys.readouterr().err
    assert all(part in said for part in ("error: ", "cause: ", "hint: "))
    assert not Path("ran").exists()


def test_a_dry_trial_lists_what_would_run_in_its_order_and_makes_nothing(
    program: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = tuple(
        Finding(
            title="t", bound="input-bound", confidence="high", why="w", saving=saving,
            evidence=(Evidence(label="wait", value=1.0, unit="ns", source="measured", origin="made"),),
            fix=Fix(text="f", changes=(SettingChange(name, now, value),)),
        )
        for name, now, value, saving in (
            ("fused", False, True, Saving(low=0.0, expected=0.1, high=0.2, method="bound")),
            ("num_workers", 0, 3, Saving(low=0.2, expected=0.3, high=0.4, method="replay")),
        )
    )  # fmt: skip
    outcome = Outcome(rule="IN002", name="n", summary="s", status="fired", findings=found)
    report = SimpleNamespace(outcomes=(outcome,), run=SimpleNamespace(devices=()))
    monkeypatch.setattr("profilerkit.api.read_report", lambda _run: report)
    Path("made").mkdir()
    manifest = {
        "format_version": 1, "profilerkit_version": "1", "created_unix_ns": 0, "argv": ["train.py"], "world_size": 1,
        "settings": {}, "environment": {}, "versions": {}, "command": ["train.py"],
    }  # fmt: skip
    Path("made/run.json").write_text(json.dumps(manifest), "utf-8")
    before = set(Path.cwd().iterdir())
    assert main(["try", "--dry", "--ceiling", "input", "--fix", "threads=2", "made"]) == 0
    lines = capsys.readouterr().out.splitlines()
    named = [line.split()[0] for line in lines if "→" in line or " = " in line]
    assert named == ["threads", "ceiling", "num_workers", "fused"]
    assert set(Path.cwd().iterdir()) == before
