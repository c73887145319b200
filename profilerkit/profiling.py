"""Record as users call it: what a block leaves in ``report`` has its documents."""

from typing import TYPE_CHECKING

from profilerkit.capture.profiler import Profile, profile
from profilerkit.capture.trace_handler import TraceHandler, trace_handler

if TYPE_CHECKING:
    from profilerkit.model.report import Report

__all__ = ["Profile", "TraceHandler", "profile", "trace_handler"]


def _shown(record: "Report") -> "Report":
    from profilerkit.results import as_report

    return as_report(record)


# Recording knows no row above its own: what a block leaves in ``report`` gets its documents from here.
Profile.shown = staticmethod(_shown)
