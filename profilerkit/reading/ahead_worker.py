"""A program that reads the later part of a trace for another process: both ends are ours, as in ``worker``."""

import os
import pickle
import signal
import sys

from profilerkit.trace.kineto.parts import read_part

_STDOUT = 1


def main() -> None:
    """Write the part that was asked for; one that cannot be read is read where it was asked for."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that started this one ends it
    part = read_part(*pickle.load(sys.stdin.buffer))  # noqa: S301  written by ahead
    with os.fdopen(_STDOUT, "wb", closefd=False) as out:
        pickle.dump(part, out, pickle.HIGHEST_PROTOCOL)


if __name__ == "__main__":
    main()
