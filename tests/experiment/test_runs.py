"""A run of a trial leaves no process behind, however it ends."""

import time
from pathlib import Path

import psutil
import pytest

from profilerkit.experiment import runs


def has_ended(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        ("sleep 60 & echo $! > child", "it ended before it trained"),
        # As torchrun starts ranks: each has a session of its own.
        ("setsid sleep 60 & echo $! > child; wait", "it did not end within 1 s"),
    ],
)
def test_what_a_program_starts_ends_with_its_run(
    script: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(runs, "_MOST_END_S", 0.0)
    runner = runs.Runner(command=["sh", "-c", script], directory=tmp_path, steps=1, seconds=0.0, longest_s=1.0)
    assert runner.run("one").problem == problem
    child = int(Path("child").read_text("utf-8"))
    deadline = time.monotonic() + 10
    while not has_ended(child) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert has_ended(child)
