"""Record as users call it: the ``report`` of a block can write its documents."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from profilerkit.capture.profiler import Profile, profile

if TYPE_CHECKING:
    from profilerkit.capture.trace_handler import TraceHandler
    from profilerkit.model.report import Report

__all__ = ["Profile", "profile", "trace_handler"]


def trace_handler(path: str | os.PathLike[str] | None = None, *, analyze: bool = True) -> "TraceHandler":
    """Return an ``on_trace_ready`` for ``torch.profiler.profile`` that writes its windows into a directory.

    The report is made when the profiler stops. ``profilerkit analyze`` on the directory makes it too.

        with torch.profiler.profile(
            schedule=torch.profiler.schedule(wait=5, warmup=2, active=5, repeat=2),
            on_trace_ready=profilerkit.trace_handler("runs/resnet50"),
        ) as prof:
            for batch in loader:
                train_step(batch)
                prof.step()

    Args:
        path: the directory; ``runs/<script name>`` when not given. If it is taken, the next free number is used. All
            ranks of one job write into the same directory.
        analyze: make the report when the profiler stops.

    A path that cannot be a directory ends no training: the default is used, and a warning says so.
    """
    from profilerkit.capture.environment import script_name
    from profilerkit.capture.settings import Faults, path_of
    from profilerkit.capture.trace_handler import TraceHandler

    faults = Faults()
    wanted = faults.spare(None, path_of, path) or Path("runs") / script_name()
    faults.announce("profilerkit.trace_handler")
    return TraceHandler(wanted, analyze=analyze)


def _shown(record: "Report") -> "Report":
    from profilerkit.results import as_report

    return as_report(record)


# Recording knows no row above its own: what a block leaves in ``report`` gets its documents from here.
Profile.shown = staticmethod(_shown)
