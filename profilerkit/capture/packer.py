"""Has finished traces compressed and summarised beside the training, one process at a time; and the rest packed."""

import os
import subprocess
import threading
from pathlib import Path

from profilerkit.capture.handoff import compress_traces, compression
from profilerkit.programs import own_environment


class Packer:
    """Compresses the traces of one rank, and summarises them where that is asked for.

    Attributes:
        wanted: there is a trace to compress; ``beat`` sees to it.
    """

    def __init__(self, rank_path: Path, *, summaries: bool) -> None:
        self._path, self._summaries = rank_path, summaries
        self._process: subprocess.Popen[bytes] | None = None
        self.wanted = False

    def beat(self) -> None:
        """Start compressing what is there; on the writer thread, because starting a process takes milliseconds."""
        if not self.wanted or (self._process is not None and self._process.poll() is None):
            return
        self.wanted = False
        self._process = subprocess.Popen(  # noqa: S603  our own module, no shell
            compression(self._path, os.getpid(), summaries=self._summaries),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=own_environment(),
        )
        # Waited for as it ends: a notebook's kernel does not end while it has a child, and counts those not waited for.
        threading.Thread(target=self._process.wait, name="profilerkit-packer", daemon=True).start()

    def finish(self, seconds: float) -> None:
        """Compress all that is left, in at most half of the time there is for it and the report."""
        process, self._process = self._process, None
        if process is not None:
            process.terminate()  # what it had begun is begun anew, not nice to others any more
            process.wait()
        compress_traces(self._path, seconds)

    def leave_child(self) -> None:
        """In a forked child the process is not ours to wait for."""
        if self._process is not None:
            self._process.returncode = 0
