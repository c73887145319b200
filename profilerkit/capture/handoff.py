"""After the block: compress the traces and make the report, each in a process of its own."""

import os
import site
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
#: Exit codes of ``profilerkit analyze`` with a report: done, a gate failed, inconclusive under --strict. The gates may
#: be set for the command line by ``pyproject.toml`` or the environment; here they gate nothing.
_REPORTED = (0, 1, 3)


def compress_traces(rank_path: Path, seconds: float) -> None:
    """Compress the traces of one rank, in at most half of the time left for it and the report.

    When that fails they stay as they are, which costs space and nothing else.
    """
    arguments = ["-m", "profilerkit.capture.compress", str(rank_path)]
    _run(arguments, min(seconds / 2, _COMPRESS_SECONDS), stderr=subprocess.DEVNULL)


def wait_for_ranks(run: Path, world_size: int) -> list[int]:
    """The ranks that have not ended after at most ten seconds of waiting."""
    deadline = monotonic() + _RANKS_SECONDS
    while True:
        missing = [rank for rank in range(world_size) if not (rank_directory(run, rank) / END).is_file()]
        if not missing or monotonic() >= deadline:
            return missing
        sleep(0.05)


def analyze(run: Path, seconds: float) -> Report | None:
    """The report of ``run``, made by the command line program, which says its one line on standard error.

    ``None``, with a warning, when it was not made within ``seconds``; the program has said why.
    """
    path = run / REPORT_JSON
    before = _state(path)
    arguments = ["-m", "profilerkit", "analyze", str(run), "-f", "html,json", "--brief"]
    failure = _run(arguments, min(seconds, _ANALYZE_SECONDS), accepted=_REPORTED)
    if not failure and _state(path) in (None, before):
        failure = f"{REPORT_JSON} was not written"
    if not failure:
        try:
            return read_document(path, Report)
        except (OSError, ValueError) as error:
            failure = f"{REPORT_JSON} cannot be read: {error}"
    announce(f"profilerkit could not make the report; `profilerkit analyze {run}` tries again: {failure}")
    return None


def _state(path: Path) -> tuple[int, int] | None:
    """What changes when a document is replaced; ``None`` without one. A clock would have to be the file server's."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns


def _run(
    arguments: list[str], timeout_seconds: float, *, accepted: tuple[int, ...] = (0,), stderr: int | None = None
) -> str:
    """Why a Python process did not end with an ``accepted`` exit code; empty when it did.

    ``-P`` keeps the working directory out of its imports: a ``jinja2.py`` beside the training script is not ours.
    """
    try:
        done = subprocess.run(  # noqa: S603  our own module, no shell
            [sys.executable, "-P", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            timeout=timeout_seconds,
            env=_child_environment(),
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"not done after {timeout_seconds:.0f} s"
    except OSError as error:
        return str(error)
    return "" if done.returncode in accepted else f"exit code {done.returncode}"


def _child_environment() -> dict[str, str]:
    """This process's environment, with profilerkit importable however it was found, and the working directory not.

    An empty or relative entry of ``PYTHONPATH`` stands for the working directory or a place below it.
    """
    home = Path(profilerkit.__file__).absolute().parent.parent
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    paths = [path for path in given if Path(path).is_absolute() and Path(path).resolve() != Path.cwd()]
    if str(home) not in (*site.getsitepackages(), site.getusersitepackages()):
        paths.insert(0, str(home))
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
