"""How the benchmarks start the processes that they measure, and wait for them."""

import os
import subprocess
from pathlib import Path
from typing import Any

SCRIPTS = Path(__file__).resolve().parent
SILENT: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}


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
