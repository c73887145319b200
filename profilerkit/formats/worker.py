"""A program that reads traces for another process: jobs come in pickled, and so do results go out.

Both ends are ours: nothing that a file says is ever unpickled.
"""

import os
import pickle
import signal
import sys

from profilerkit.formats.jobs import read_job

_STDOUT, _STDERR = 1, 2


def main() -> None:
    """Write each result with its number as soon as it is there; what fails is read again where it was asked for."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that started this one ends it
    with os.fdopen(os.dup(_STDOUT), "wb") as results:
        os.dup2(_STDERR, _STDOUT)  # what a plugin prints is no result
        for number, job in pickle.load(sys.stdin.buffer):  # noqa: S301  written by jobs
            pickle.dump((number, read_job(job)), results, pickle.HIGHEST_PROTOCOL)
            results.flush()


if __name__ == "__main__":
    main()
