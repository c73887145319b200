"""The deep tier: one window of steps under ``torch.profiler``, opened and closed by the step logic.

Everything here runs on the training thread: stopping a profiler from another one loses the trace.
"""

import os
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from time import perf_counter_ns
from typing import Any, Literal

from profilerkit.capture.guard import Guard
from profilerkit.capture.rival import RivalWatch
from profilerkit.rundir.layout import WINDOW_TRACE, EventKind, WindowStatus
from profilerkit.rundir.writer import RankWriter, Record

#: A window of very long steps is closed early: the trace of a minute is larger than anybody reads.
_LONGEST_NS = 60 * 1_000_000_000
#: At the end of an epoch a window with this many whole steps is closed instead of waiting for the next epoch.
_ENOUGH_STEPS = 3
_STEP_MARK = b"ProfilerStep#"
_CHUNK_BYTES = 1 << 20


_State = Literal["waiting", "warming", "recording", "done"]


class DeepWindow:
    """One window of ``trace_steps`` steps after ``warmup_steps``, the first of which only warms the profiler up.

    A failure in here closes the window and nothing else.

    Attributes:
        reason: why there is no usable trace; empty when there is one.
    """

    def __init__(
        self,
        writer: RankWriter,
        record: Callable[[Record], None],
        *,
        warmup_steps: int,
        trace_steps: int,
        loader_seen: Callable[[], bool] = lambda: True,
    ) -> None:
        """``loader_seen`` says when the window opens whether a loader feeds the steps.

        Where none does, the names of Python's functions are traced: only they tell a ``get_batch`` from other Python.
        """
        self._guard = Guard("profilerkit's trace window")
        self._guard.on_failure(self.abort)
        self._rival = RivalWatch(lambda: self._guard.call(self._give_way))
        self._thread = 0
        self._writer = writer
        self._record = record
        self._warmup_steps = warmup_steps
        self._trace_steps = trace_steps
        self._loader_seen = loader_seen
        self._state: _State = "waiting"
        self._profiler: Any = None
        self._span: Any = None
        self._first_step = 0
        self._last_step = -1
        self._opened_ns = 0
        self._start_ns = 0
        self._set_log_level = False
        self.reason = ""

    @property
    def recording(self) -> bool:
        """Whether events are being traced now."""
        return self._state == "recording"

    def span(self, name: str) -> AbstractContextManager[object] | None:
        """A named span in the trace; ``None`` while none is recorded, and on other threads than the training one."""
        if self._state != "recording" or threading.get_ident() != self._thread:
            return None
        return self._guard.call(sys.modules["torch"].profiler.record_function, _harmless(name))

    def step_started(self, number: int) -> None:
        """Open the window when it is due; mark the step in the trace."""
        if self._state != "done":
            self._guard.call(self._started, number)

    def step_ended(self, number: int) -> None:
        """Close the window when it has its steps."""
        if self._state == "recording":
            self._guard.call(self._ended, number)

    def step_cut(self) -> None:
        """The step in progress does not count; the loop may be over."""
        if self._state == "recording":
            self._guard.call(self._cut)

    def _started(self, number: int) -> None:
        if self._state == "waiting":
            if number >= self._warmup_steps:
                self._prepare()
            return
        if self._state == "warming":
            self._begin(number)
        if self._state == "recording":
            self._mark(number)

    def _ended(self, number: int) -> None:
        self._unmark()
        self._last_step = number
        whole = number - self._first_step + 1
        if whole >= self._trace_steps or perf_counter_ns() - self._start_ns > _LONGEST_NS:
            self._finish()

    def _cut(self) -> None:
        self._unmark()
        if self._last_step - self._first_step + 1 >= min(_ENOUGH_STEPS, self._trace_steps):
            self._finish()

    def close(self, steps: int) -> None:
        """Export what there is, or say why there is nothing after a run of ``steps`` steps."""
        self._guard.call(self._close, steps)
        self._state = "done"

    def _close(self, steps: int) -> None:
        if self._state == "recording":
            self._unmark()
            self._finish()
        elif self._state != "done":
            self.reason = self.reason or (
                f"the loop ended after {steps} steps; a trace needs more than {self._warmup_steps + 1} "
                f"(warmup_steps={self._warmup_steps}, and one that only warms the profiler up)"
            )
            self.abort()

    def abort(self) -> None:
        """Stop the profiler without keeping anything."""
        state, self._state = self._state, "done"
        self.reason = self._guard.failure or self.reason or "capture was switched off"
        profiler, self._profiler = self._profiler, None
        self._rival.end()
        try:
            self._unmark()
            if state == "warming" and profiler is not None:
                profiler.start_trace()  # a prepared session can only be given back by running it
            if profiler is not None:
                profiler.stop_trace()
        finally:
            self._restore_log_level()

    def _prepare(self) -> None:
        """Start the profiler's own warm-up, unless somebody else is profiling: a nested session empties the outer."""
        torch = sys.modules.get("torch")
        if torch is None:
            self.reason = "torch was not imported"
            return
        if torch.autograd._profiler_enabled():
            self.reason = "another profiler was active"
            return
        # torch 2.13 prints USDT lines on stderr for every session; the level is read when the first one starts.
        self._set_log_level = "KINETO_LOG_LEVEL" not in os.environ
        os.environ.setdefault("KINETO_LOG_LEVEL", "6")
        activity = torch.profiler.ProfilerActivity
        activities = [activity.CPU]
        if torch.cuda.is_initialized():  # asking whether it is available could initialise it
            activities.append(activity.CUDA)
        self._opened_ns = perf_counter_ns()
        self._profiler = torch.profiler.profile(
            activities=activities, record_shapes=True, with_stack=not self._loader_seen()
        )
        self._profiler.prepare_trace()
        self._state = "warming"
        self.reason = ""
        self._thread = threading.get_ident()
        self._rival.begin()

    def _begin(self, number: int) -> None:
        self._profiler.start_trace()
        self._state = "recording"
        self._first_step, self._last_step = number, number - 1
        self._start_ns = perf_counter_ns()

    def _give_way(self) -> None:
        """Another profiler is about to start: keep the whole steps traced so far, and never touch its session."""
        if threading.get_ident() != self._thread:
            self._lose("another profiler was started on another thread inside the window")
        elif self._state == "recording":
            self._unmark()
            self._finish()
        elif self._state == "warming":
            self.reason = "another profiler was started inside the window"
            self.abort()

    def _lose(self, reason: str) -> None:
        """The session is not ours any more: stopping it would stop theirs, exporting it would crash."""
        self._state = "done"
        self._profiler = self._span = None
        self.reason = reason
        self._rival.end()
        self._restore_log_level()

    def _mark(self, number: int) -> None:
        self._unmark()
        self._span = sys.modules["torch"].profiler.record_function(f"ProfilerStep#{number}")
        self._span.__enter__()

    def _unmark(self) -> None:
        span, self._span = self._span, None
        if span is not None:
            span.__exit__(None, None, None)

    def _finish(self) -> None:
        """Stop, export, check the file, and record which steps were disturbed."""
        end_ns = perf_counter_ns()
        if not sys.modules["torch"].autograd._profiler_enabled():
            self._lose("another profiler ended the session")
            return
        self._state = "done"
        self._rival.end()
        profiler, self._profiler = self._profiler, None
        profiler.stop_trace()
        part = self._writer.trace_part(self._first_step)
        profiler.export_chrome_trace(str(part))
        del profiler
        self._restore_log_level()
        self.reason = "no whole step was traced" if self._last_step < self._first_step else _flaw(part)
        status = WindowStatus(
            first_step=self._first_step,
            last_step=self._last_step,
            ok=not self.reason,
            reason=self.reason,
            trace=None if self.reason else WINDOW_TRACE,
            size_bytes=None if self.reason else part.stat().st_size,
            start_perf_ns=self._start_ns,
            end_perf_ns=end_ns,
        )
        self._writer.finish_window(self._first_step, status)
        opened_ns = self._opened_ns
        self._record((EventKind.WINDOW, 0, 0, opened_ns, perf_counter_ns() - opened_ns, self._first_step))

    def _restore_log_level(self) -> None:
        if self._set_log_level:
            os.environ.pop("KINETO_LOG_LEVEL", None)
            self._set_log_level = False


def _flaw(path: Path) -> str:
    """What makes an exported trace unusable, empty when nothing: torch reports success for files it never wrote."""
    if not path.is_file() or not path.stat().st_size:
        return "torch wrote no trace file; the disk may be full"
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 64))
        if not file.read().rstrip().endswith(b"}"):
            return "the trace file is cut; the disk may be full"
        file.seek(0)
        kept = b""
        while chunk := file.read(_CHUNK_BYTES):
            if _STEP_MARK in kept + chunk:
                return ""
            kept = chunk[-len(_STEP_MARK) :]
    return "the trace holds no step; another profiler may have run inside the window"


def _harmless(name: str) -> str:
    """``name`` in characters that torch writes into a trace as they are: it neither escapes nor keeps all others."""
    return "".join(c if c.isascii() and c.isprintable() and c not in '"\\' else "_" for c in name)
