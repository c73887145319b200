"""Finds a directory that can be written and opens the rank's files in it."""

import os
import tempfile
from pathlib import Path

from profilerkit.capture.guard import announce
from profilerkit.capture.place import Place
from profilerkit.capture.signals import raised_by_handler
from profilerkit.errors import CaptureError, UsageError
from profilerkit.rundir.places import claim
from profilerkit.rundir.writer import RankWriter


def open_run(wanted: Path, place: Place) -> tuple[Path, RankWriter]:
    """The run directory and its writer; in ``$TMPDIR``, with a warning, when ``wanted`` cannot be written.

    Raises:
        CaptureError: neither place can be written.
        UsageError: ``wanted`` is a file.
    """
    try:
        if wanted.exists() and not wanted.is_dir():
            raise UsageError(f"{wanted} is a file", hint="name a directory; a missing one is created")
        run = claim(wanted, place.launch_id, place.rank)
        return run, RankWriter(run, place.rank)
    except OSError as error:
        if raised_by_handler(error):
            raise
        fallback = Path(tempfile.gettempdir()) / f"profilerkit-{os.getuid()}" / wanted.name
        try:
            run = claim(fallback, place.launch_id, place.rank)
            writer = RankWriter(run, place.rank)
        except OSError as second:
            raise CaptureError(
                f"cannot write {wanted}",
                cause=f"{error}. The fallback {fallback} failed too: {second}",
                hint="name another path",
            ) from second
        announce(f"{wanted} cannot be written ({error.strerror}); recording to {run}")
        return run, writer
