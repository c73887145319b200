"""Compress traces, beside the training and after it, and make the report: each in a process of its own.

    python -m profilerkit.capture.handoff DIRECTORY [--summaries] [PID]

compresses the traces of one rank. With the process that trains as ``PID`` it runs beside the training: it takes the CPU
that nobody else wants, and ends with that process. With ``--summaries`` it becomes ``profilerkit map`` when it is done.
"""

import gzip
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING

from profilerkit.capture.guard import announce
from profilerkit.model import revise
from profilerkit.rundir import layout
from profilerkit.rundir.files import read_document, write_document
from profilerkit.rundir.process import own_environment, own_program

if TYPE_CHECKING:
    from profilerkit.model.report import Report

_COMPRESS_SECONDS = 60.0
_ANALYZE_SECONDS = 120.0
_RANKS_SECONDS = 10.0  #: ranks of one job leave their loops together; what is not there by then is reported as missing
#: Exit codes of ``profilerkit analyze`` with a report: done, a gate failed, inconclusive under --strict. The gates may
#: be set for the command line by ``pyproject.toml`` or the environment; here they gate nothing.
_REPORTED = (0, 1, 3)


def compression(rank_path: Path, parent: int | None = None, *, summaries: bool = False) -> list[str]:
    """Return the command that compresses the traces of one rank."""
    words = [*(["--summaries"] if summaries else []), *([str(parent)] if parent is not None else [])]
    return own_program("profilerkit.capture.handoff", str(rank_path), *words)


def summarise_traces(rank_path: Path, seconds: float) -> None:
    """Summarise the traces of one rank, in at most half of the time left for it and the report; say where it failed."""
    if failure := _run(summary_program(rank_path), min(seconds / 2, _COMPRESS_SECONDS), stderr=subprocess.DEVNULL):
        again = f"`profilerkit map {rank_path / layout.WINDOWS}` tries again"
        announce(f"profilerkit could not summarise its traces; {again}: {failure}")


def _has_ended(run: Path, rank: int) -> bool:
    return (layout.rank_directory(run, rank) / layout.END).is_file()


def wait_for_ranks(run: Path, world_size: int, is_complete: Callable[[Path, int], bool] = _has_ended) -> list[int]:
    """Return the ranks that have not written all of their part of ``run`` after at most ten seconds of waiting."""
    deadline = monotonic() + _RANKS_SECONDS
    while True:
        missing = [rank for rank in range(world_size) if not is_complete(run, rank)]
        if not missing or monotonic() >= deadline:
            return missing
        sleep(0.05)


def leave_analysis(run: Path) -> None:
    """Have the report of ``run`` made by a process that nobody waits for, and that says nothing.

    A notebook's kernel is killed 2.5 s after it was asked to end (jupyter_client 8, half of ``shutdown_wait_time``).
    """
    process = _start(_analysis(run, quiet=True), is_left=True)
    process.returncode = 0  # or Python warns that it still runs


def wait_for_report(run: Path, seconds: float) -> "Report | None":
    """Return the report that was left to be made; ``None`` where it is not there in time."""
    from profilerkit.model.report import Report  # the process that compresses has no use for it

    deadline = monotonic() + seconds
    while not (run / layout.REPORT_JSON).is_file():
        if monotonic() >= deadline:
            return None
        sleep(0.05)
    return read_document(run / layout.REPORT_JSON, Report)


def analyze(run: Path, seconds: float, *, quiet: bool = False) -> "Report | None":
    """Return the report of ``run``, made by the command line program, which says one line unless ``quiet``.

    ``None``, with a warning, when it was not made within ``seconds``; the program has said why.
    """
    from profilerkit.model.report import Report

    path = run / layout.REPORT_JSON
    before = _state(path)
    failure = _run(_analysis(run, quiet=quiet), min(seconds, _ANALYZE_SECONDS), accepted=_REPORTED)
    if not failure and _state(path) in (None, before):
        failure = f"{layout.REPORT_JSON} was not written"
    if not failure:
        try:
            return read_document(path, Report)
        except (OSError, ValueError) as error:
            failure = f"{layout.REPORT_JSON} cannot be read: {error}"
    announce(f"profilerkit could not make the report; `profilerkit analyze {run}` tries again: {failure}")
    return None


def _analysis(run: Path, *, quiet: bool) -> list[str]:
    return own_program("profilerkit", "analyze", str(run), "-f", "html,json", "--brief", *(["-q"] if quiet else []))


def _state(path: Path) -> tuple[int, int] | None:
    """What changes when a document is replaced; ``None`` without one. A clock would have to be the file server's."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns


def _start(command: list[str], *, is_left: bool = False) -> "subprocess.Popen[bytes]":
    none = subprocess.DEVNULL
    return subprocess.Popen(  # noqa: S603  our own module, no shell
        command, stdin=none, stdout=none, stderr=none, env=own_environment(), start_new_session=is_left
    )


def _run(
    command: list[str], timeout_seconds: float, *, accepted: tuple[int, ...] = (0,), stderr: int | None = None
) -> str:
    none, timeout, env = subprocess.DEVNULL, timeout_seconds, own_environment()
    try:
        done = subprocess.run(  # noqa: S603  our own module, no shell
            command, stdin=none, stdout=none, stderr=stderr, timeout=timeout, env=env, check=False
        )
    except subprocess.TimeoutExpired:
        return f"not done after {timeout_seconds:.0f} s"
    except OSError as error:
        return str(error)
    return "" if done.returncode in accepted else f"exit code {done.returncode}"


class Packer:
    """Compresses the traces of one rank, and summarises them where that is asked for."""

    def __init__(self, rank_path: Path, *, summaries: bool) -> None:
        self._path, self._summaries = rank_path, summaries
        self._process: subprocess.Popen[bytes] | None = None
        self.wanted = False

    def beat(self) -> None:
        """Start compressing what is there; on the writer thread, because starting a process takes milliseconds."""
        if not self.wanted or (self._process is not None and self._process.poll() is None):
            return
        self.wanted = False
        self._process = _start(compression(self._path, os.getpid(), summaries=self._summaries))
        # Waited for as it ends: a notebook's kernel does not end while it has a child, and counts those not waited for.
        threading.Thread(target=self._process.wait, name="profilerkit-packer", daemon=True).start()

    def finish(self, seconds: float) -> None:
        """Compress all that is left, in at most half of the time there is for it and the report."""
        process, self._process = self._process, None
        if process is not None:
            process.terminate()  # what it had begun is begun anew, not nice to others any more
            process.wait()
        if any((self._path / layout.WINDOWS).glob(f"*/{layout.WINDOW_TRACE}")):
            _run(compression(self._path), min(seconds / 2, _COMPRESS_SECONDS), stderr=subprocess.DEVNULL)

    def leave_child(self) -> None:
        """In a forked child the process is not ours to wait for."""
        if self._process is not None:
            self._process.returncode = 0


#: A 30 MB trace: 0.15 s and 1.55 MB at level 6, 0.08 s and 2.4 MB at level 1, 0.79 s and 1.26 MB at level 9.
_LEVEL = 6
_COPY_BYTES = 1 << 20
_NICE = 10  #: the step of priority that Linux gives to batch work: a tenth of the share of a process at 0


def compress(window: Path, parent: int | None = None) -> bool:
    """Replace ``trace.json`` of a window by ``trace.json.gz``; at every moment one of them is complete.

    ``False``, and the window stays as it is, where ``parent`` is given and not this process's parent any more.
    """
    trace, packed = window / layout.WINDOW_TRACE, window / layout.WINDOW_TRACE_GZ
    if not trace.is_file() or not (window / layout.WINDOW_STATUS).is_file():
        return True
    part = packed.with_name(packed.name + layout.PART_SUFFIX)
    with trace.open("rb") as raw, part.open("wb") as file:
        with gzip.GzipFile(layout.WINDOW_TRACE, "wb", _LEVEL, file) as out:
            while chunk := raw.read(_COPY_BYTES):
                out.write(chunk)
                if parent not in (None, os.getppid()):
                    part.unlink()
                    return False
        file.flush()
        os.fsync(file.fileno())
    part.replace(packed)
    status = read_document(window / layout.WINDOW_STATUS, layout.WindowStatus)
    status = revise(status, trace=layout.WINDOW_TRACE_GZ, size_bytes=packed.stat().st_size)
    write_document(window / layout.WINDOW_STATUS, status)
    trace.unlink()
    return True


def summary_program(rank_path: Path) -> list[str]:
    """The command that summarises the traces of one rank which have none yet, in one process."""
    return own_program("profilerkit", "map", str(rank_path / layout.WINDOWS), "--engine", "inline", "--quiet")


def main() -> None:
    """Compress every window of the rank directory named on the command line."""
    words = sys.argv[1:]
    summaries = "--summaries" in words
    directory, *pid = [word for word in words if word != "--summaries"]
    parent = int(pid[0]) if pid else None
    if parent is not None:
        os.nice(_NICE)
    windows = Path(directory) / layout.WINDOWS
    for window in sorted(windows.glob("*")):
        if not compress(window, parent):
            return
    if summaries and any(windows.glob(f"*/{layout.WINDOW_TRACE_GZ}")):
        command = summary_program(Path(directory))
        os.execv(command[0], command)  # noqa: S606  our own module, no shell


if __name__ == "__main__":
    main()
