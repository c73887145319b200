"""Programs of two real ranks, started again where torch itself aborts them at their end."""

import subprocess
import sys

import pytest

from tests.capture.test_capture_distributed import clean

#: Arguments of Python that run a script on two ranks.
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
#: torch 2.13 sometimes aborts at exit once a gloo group was destroyed, with its work done.
_ABORTS = ("terminate called without an active exception", "SIGABRT", "exitcode: -6")
_TRIES = 4


def finished(folder, command, *, timeout=240):
    """A fresh path for the run, and the finished Python that had the arguments ``command(path, number of try)``."""
    for number in range(_TRIES):
        run = folder / f"try-{number}" / "run"
        run.parent.mkdir()
        done = subprocess.run(
            [sys.executable, *map(str, command(run, number))],
            env=clean(OMP_NUM_THREADS=1),
            check=False,
            capture_output=True,
            text=True,
            timeout=timeout,
        )
        if done.returncode == 0:
            return run, done
        assert any(sign in done.stderr for sign in _ABORTS), done.stderr[-3000:]
    pytest.skip("torch aborted at exit each time")
