"""When a run directory was last written to, by the times of its files."""

from collections.abc import Iterable
from pathlib import Path

from profilerkit.rundir.layout import CLOCK, END, EVENTS, MANIFEST, META, SAMPLES
from profilerkit.rundir.reader import rank_directories

#: What a rank writes while it runs: its clock once a minute whatever else is off. And its end.
_WRITTEN = (EVENTS, SAMPLES, CLOCK, META, END)


def last_written_ns(run: Path) -> int | None:
    """When any rank last wrote a record or its end, ns since the epoch by the clock of the file system.

    The manifest's time where no rank left anything; ``None`` where nothing can be asked for its time.
    """
    newest = _newest(directory / name for _, directory in rank_directories(run) for name in _WRITTEN)
    return newest if newest is not None else _newest([run / MANIFEST])


def _newest(files: Iterable[Path]) -> int | None:
    return max((at for file in files if (at := _modified_ns(file)) is not None), default=None)


def _modified_ns(file: Path) -> int | None:
    try:
        return file.stat().st_mtime_ns
    except OSError:
        return None
