"""How the benchmarks start the processes that they measure, and wait for them."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from profilerkit.model.trial import Trial

SCRIPTS = Path(__file__).resolve().parent
SILENT: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
_MOST_TRYING_S = 900


def wait(processes: list[Any], most_seconds: float) -> str:
    """The last line that the first failing process wrote; empty when all ended well in ``most_seconds`` each."""
    said = ""
    for process in processes:
        try:
            _, error = process.communicate(timeout=most_seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            _, error = process.communicate()
        if process.returncode and not said:
            said = (error.strip().splitlines() or [f"exit code {process.returncode}"])[-1]
    return said


def environment() -> dict[str, str]:
    """This tree first, one thread per process, and no messages of torch's profiler."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PROFILERKIT_")}
    threads = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "KINETO_LOG_LEVEL": "6"}
    return {**kept, **threads, "PYTHONPATH": os.pathsep.join([str(SCRIPTS.parent), str(SCRIPTS)])}


def tried(
    command: Sequence[str | Path], place: Path, options: Sequence[str] = (), variables: Mapping[str, str] | None = None
) -> Trial:
    """What ``profilerkit try`` finds out about a command. Raises RuntimeError when it fails."""
    out = place / "try"
    words = [sys.executable, "-m", "profilerkit", "try", "-o", out, "-f", "json", *options, "--"]
    started = subprocess.Popen([*words, *command], env=environment() | (variables or {}), cwd=place, **SILENT)
    failed = wait([started], _MOST_TRYING_S)
    if not (out / "trial.json").exists():
        raise RuntimeError(f"try: {failed}")
    return msgspec.json.decode((out / "trial.json").read_bytes(), type=Trial)
