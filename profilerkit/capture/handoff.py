"""After the block: compress the traces and make the report, each in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path
from time import monotonic, sleep

import profilerkit
from profilerkit.capture.guard import announce
from profilerkit.model.report import Report
from profilerkit.rundir.files import read_document
from profilerkit.rundir.layout import END, REPORT_JSON, rank_directory

_COMPRESS_SECONDS = 60.0
_ANALYZE_SECONDS = 120.0
#: Ranks of one job leave their loops together; what is not there by then is reported as missing.
_RANKS_SECONDS = 10.0
_LAST_LINES = 5


def compress_traces(rank_path: Path) -> None:
    """Compress the traces of one rank; when that fails they stay as they are, which costs space and nothing else."""
    _run(["-m", "profilerkit.capture.compress", str(rank_path)], _COMPRESS_SECONDS)


def wait_for_ranks(run: Path, world_size: int) -> list[int]:
    """The ranks that have not ended after at most ten seconds of waiting."""
    deadline = monotonic() + _RANKS_SECONDS
    while True:
        missing = [rank for rank in range(world_size) if not (rank_directory(run, rank) / END).is_file()]
        if not missing or monotonic() >= deadline:
            return missing
        sleep(0.05)


def analyze(run: Path) -> Report | None:
    """The report of ``run``, made by the command line program; ``None``, with a warning, when that failed."""
    failure = _run(["-m", "profilerkit", "analyze", str(run), "-f", "html,json", "-q"], _ANALYZE_SECONDS)
    if not failure:
        try:
            return read_document(run / REPORT_JSON, Report)
        except (OSError, ValueError) as error:
            failure = f"{REPORT_JSON} cannot be read: {error}"
    announce(f"profilerkit could not make the report; `profilerkit analyze {run}` tries again: {failure}")
    return None


def _run(arguments: list[str], timeout_seconds: float) -> str:
    """Why a Python process failed, the last lines of its stderr; empty when it did not."""
    try:
        done = subprocess.run(  # noqa: S603  our own module, no shell
            [sys.executable, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout_seconds,
            env=_child_environment(),
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"not done after {timeout_seconds:.0f} s"
    except OSError as error:
        return str(error)
    if done.returncode == 0:
        return ""
    last = done.stderr.decode(errors="replace").strip().splitlines()[-_LAST_LINES:]
    return "\n".join(last) or f"exit code {done.returncode}"


def _child_environment() -> dict[str, str]:
    """This process's environment, with profilerkit importable even when it runs from a source tree."""
    home = Path(profilerkit.__file__).resolve().parent.parent
    if home.name in ("site-packages", "dist-packages"):
        return dict(os.environ)
    paths = [str(home), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
