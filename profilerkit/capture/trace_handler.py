"""``trace_handler``: keep the windows of the user's own ``torch.profiler`` in a directory, and report on them."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from profilerkit.capture import handoff
from profilerkit.capture.distributed import Place, place
from profilerkit.capture.environment import in_kernel
from profilerkit.capture.guard import Guard, announce
from profilerkit.capture.profiler import Profile
from profilerkit.rundir.layout import PART_SUFFIX
from profilerkit.rundir.places import claim

if TYPE_CHECKING:
    from profilerkit.model.report import Report

#: How long the report may take after the loop, and after an exception that ends it (as after a ``profile`` block).
_REPORT_SECONDS, _FAILED_SECONDS = 120.0, 20.0


class TraceHandler:
    """Write each window of a ``torch.profiler.profile`` into one directory; made by ``trace_handler()``.

    Attributes:
        directory: the directory of the latest traces; ``None`` before the first window.
        report: the analysed windows of the profiler that stopped last; ``None`` before, with ``analyze=False``, on
            every rank but the first, and when the analysis failed.
    """

    _handlers = 0

    def __init__(self, wanted: Path, *, analyze: bool) -> None:
        self._wanted = Path.cwd() / wanted
        self._analyze = analyze
        self._place: Place | None = None
        self._windows = 0
        self._guard = Guard("profilerkit.trace_handler")
        self.directory: Path | None = None
        self.report: Report | None = None

    def __call__(self, profiler: Any) -> None:
        """Write the window that ``profiler`` has just closed. Never raises an error of its own."""
        if self._guard.failure is None:
            self._guard.call(self._take, profiler)

    def _take(self, profiler: Any) -> None:
        here, directory = self._placed()
        rank = f"rank{here.rank}." if here.world_size > 1 else ""  # a lone process named so passes for one of several
        name = f"{rank}pid{os.getpid()}.{self._windows:04d}.pt.trace.json"
        part = directory / (name + PART_SUFFIX)
        profiler.export_chrome_trace(str(part))
        part.replace(directory / name)
        self._windows += 1
        if _is_stopping(profiler):
            self._finish()
        else:
            self._finish_after_stop(profiler)

    def _placed(self) -> tuple[Place, Path]:
        if self._place is None or self.directory is None:
            TraceHandler._handlers += 1
            self._place = place(os.environ, TraceHandler._handlers)
            # The ranks of a launch share its id. A profile block of the job has the same one, and its own directory.
            self.directory = claim(self._wanted, f"{self._place.launch_id}:traces", self._place.rank)
        return self._place, self.directory

    def _finish_after_stop(self, profiler: Any) -> None:
        """Make the report once ``profiler.stop()`` is over: torch calls no handler where no window is open then."""
        if "stop" in vars(profiler):
            return
        stop = profiler.stop

        def stop_and_report() -> None:
            vars(profiler).pop("stop", None)
            stop()
            if self._windows:  # else the handler was called for one more window, and has made the report
                self._guard.call(self._finish)

        profiler.stop = stop_and_report

    def _finish(self) -> None:
        (here, directory), windows = self._placed(), self._windows
        self._place, self._windows = None, 0
        if not self._analyze or here.rank:
            return

        def is_complete(directory: Path, rank: int) -> bool:
            return not rank or len(list(directory.glob(f"rank{rank}.*.json"))) >= windows

        missing = handoff.wait_for_ranks(directory, here.world_size, is_complete)
        if missing:
            announce(f"{len(missing)} of {here.world_size} ranks have not written all of their windows to {directory}")
        seconds = _REPORT_SECONDS if sys.exc_info()[1] is None else _FAILED_SECONDS
        report = handoff.analyze(directory, seconds, quiet=in_kernel())
        self.report = None if report is None else Profile.shown(report)


def _is_stopping(profiler: Any) -> bool:
    """Return whether ``profiler.stop()`` is what called: then no later call says that the profiler stopped."""
    code = getattr(type(profiler).stop, "__code__", None)
    frame = sys._getframe(1)
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back  # type: ignore[assignment]
    return frame is not None
