"""One window of steps under ``torch.profiler``.

Everything here runs on the training thread: stopping a profiler from another one loses the trace.
"""

import gc
import os
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any, Literal

from profilerkit.capture.cuda import activities_in_use, captures_graph
from profilerkit.capture.patches import Patches
from profilerkit.capture.torch_profiler import (
    Export,
    Span,
    TraceMemory,
    before_other_profilers,
    cupti_is_taken_down,
    examine,
    free,
    have_cupti_taken_down,
    prepare,
    printable,
    why_no_kernels,
)
from profilerkit.rundir.layout import RIVAL, WINDOW_TRACE, EventKind, WindowKind, WindowStatus
from profilerkit.rundir.writer import RankWriter, Record

#: A window of very long steps is closed early: the trace of a minute is larger than anybody reads.
_LONGEST_NS = 60 * 1_000_000_000
#: At the end of an epoch a window with this many whole steps is closed instead of waiting for the next epoch.
_ENOUGH_STEPS = 3

#: Spans of sessions that another profiler took: to end them, as dropping them does, would crash the process.
_LOST: list[object] = []
#: A doomed session is still on, and stopped without an export as soon as no graph is captured.
State = Literal["new", "warming", "recording", "doomed", "done"]


@dataclass(frozen=True, slots=True)
class Plan:
    """A window to open.

    Attributes:
        first_step: first step to trace; the step before it only warms the profiler up.
        steps: how many to trace, at most.
        kind: the typical step, or slow ones.
        trigger: why at this step, in words.
    """

    first_step: int
    steps: int
    kind: WindowKind
    trigger: str


class DeepWindow:
    """One window, from the step in which the profiler warms up to the export.

    Attributes:
        plan: what it is for.
        state: how far it is.
        reason: why there is no usable trace; empty when there is one.
        first_step: the first step traced, or planned.
        last_step: the last whole step traced.
        size_bytes: of the export, as torch wrote it.
        may_try_again: nothing of use was traced, and the next window may do better.
    """

    def __init__(
        self,
        writer: RankWriter,
        record: Callable[[Record], None],
        plan: Plan,
        *,
        with_stack: bool,
        give_way: Callable[[], None],
        stopped: Callable[[], None],
    ) -> None:
        """``give_way`` is called before another profiler starts, and has to call the method of that name.

        ``stopped`` is called when the device has done all that was traced: torch waits for it as it stops.
        ``with_stack`` traces the names of Python's functions.
        """
        self._writer = writer
        self._record = record
        self.plan = plan
        self._with_stack = with_stack
        self._give_way, self._others = give_way, Patches()
        self._stopped = stopped
        self._room: TraceMemory | None = None
        self._thread = 0
        self.state: State = "new"
        self._profiler: Any = None
        self._span: Any = None
        self._open: list[Span] = []
        self._asks_device = False
        self.first_step = plan.first_step
        self.last_step = plan.first_step - 1
        self._slow_step: int | None = None
        self._opened_ns = perf_counter_ns()
        self._start_ns = 0
        self._set_log_level = False
        self._weak = ""
        self.reason = ""
        self.size_bytes = 0
        self.may_try_again = False

    @property
    def is_here(self) -> bool:
        """Whether the calling thread is the one whose session it is."""
        return threading.get_ident() == self._thread

    def leave_behind(self) -> None:
        """The block ends on another thread: torch loses what is stopped there, so the session stays as it is."""
        self._lose("the block ended on another thread than the training thread during a trace")

    def span(self, name: str) -> AbstractContextManager[object] | None:
        """A named span in the trace; ``None`` while none is recorded, and on other threads than the training one."""
        if self.state != "recording" or not self.is_here:
            return None
        return Span(sys.modules["torch"].profiler.record_function(printable(name)), self._open)

    def open(self) -> bool:
        """Start the profiler's own warm-up, unless somebody else is profiling: a nested session empties the outer."""
        torch = sys.modules.get("torch")
        if torch is None:
            self.reason = "torch was not imported"
            return False
        if torch.autograd._profiler_enabled():
            self.reason = RIVAL
            return False
        # torch 2.13 prints USDT lines on stderr for every session; the level is read when the first one starts.
        self._set_log_level = "KINETO_LOG_LEVEL" not in os.environ
        os.environ.setdefault("KINETO_LOG_LEVEL", "6")
        activities = activities_in_use(torch)
        self._asks_device = len(activities) > 1
        if self._asks_device:
            have_cupti_taken_down(torch)
        self._profiler = torch.profiler.profile(activities=activities, record_shapes=True, with_stack=self._with_stack)
        prepare(torch, self._profiler)
        self._room = TraceMemory()
        self.state = "warming"
        self._thread = threading.get_ident()
        self._others = before_other_profilers(self._give_way)
        return True

    def step_started(self, number: int) -> None:
        """Begin to trace if this is the first step after the warm-up; mark the step in the trace.

        While a graph is captured nothing begins, and nothing ends: the next step will do. A doomed window stops here.
        """
        if self.state == "doomed":
            self.abort()
        if self.state == "warming" and not captures_graph():
            self._profiler.start_trace()
            self.state = "recording"
            self.first_step, self.last_step = number, number - 1
            self._start_ns = perf_counter_ns()
        if self.state == "recording":
            self._unmark()
            self._span = sys.modules["torch"].profiler.record_function(f"ProfilerStep#{number}")
            self._span.__enter__()

    def is_slow(self, number: int) -> None:
        """Note that step ``number`` was slow, if it is traced."""
        if self._slow_step is None and number >= self.first_step:
            self._slow_step = number

    def step_ended(self, number: int) -> None:
        """Close the window when it has its steps; one for slow steps when it has one and the step behind it."""
        self._unmark()
        self.last_step = number
        whole = number - self.first_step + 1
        caught = self._slow_step is not None and self._slow_step < number and self.plan.kind == "anomaly"
        if captures_graph():
            return
        if whole >= self.plan.steps or caught:
            self.finish()
        elif perf_counter_ns() - self._start_ns > _LONGEST_NS:
            self._weak = f"closed after {whole} of {self.plan.steps} steps, which took longer than a minute"
            self.finish()
        elif lacks := self._room.lacks() if self._room is not None else "":
            self._weak = f"closed after {whole} of {self.plan.steps} steps: {lacks}"
            self.finish()

    def step_cut(self) -> None:
        """The step in progress does not count; the loop may be over."""
        self._unmark()
        enough = self.last_step - self.first_step + 1 >= min(_ENOUGH_STEPS, self.plan.steps)
        if enough and not captures_graph():
            self.finish()

    def give_way(self) -> None:
        """Another profiler is about to start: keep the whole steps traced so far, and never touch its session."""
        if not self.is_here:
            self._lose("another profiler was started on another thread inside the window")
        elif captures_graph():
            self._lose("another profiler was started inside the window while a CUDA graph was being captured")
        elif self.state == "recording":
            self.finish()
        elif self.state == "warming":
            self.reason = "another profiler was started inside the window"
            self.may_try_again = True
            self.abort()
        elif self.state == "doomed":
            self.abort()

    def finish(self) -> None:
        """Stop, export, look at the file, and record which steps were disturbed. A doomed window only stops."""
        if self.state == "doomed" or captures_graph():
            self.abort()
            return
        self._unmark_all()
        end_ns = perf_counter_ns()
        torch = sys.modules["torch"]
        if not torch.autograd._profiler_enabled():
            self._lose("another profiler ended the session")
            return
        self.state = "done"
        self._others.remove()
        profiler, self._profiler = self._profiler, None
        part = self._writer.trace_part(self.first_step)
        try:
            try:
                try:
                    profiler.stop_trace()
                finally:  # an interrupt is raised where the next function begins, and may come in each of these
                    if torch.autograd._profiler_enabled():
                        profiler.stop_trace()
                profiler.export_chrome_trace(str(part))
            finally:
                free(profiler)
        finally:
            self._put_back()
        self._stopped()  # last: what it reads of the device may fail, and the trace is there
        export = examine(part)
        self.size_bytes = export.size_bytes
        untraced = self.last_step < self.first_step
        self.reason = "no whole step was traced" if untraced else export.flaw
        status = self._status(export, end_ns)
        # Kineto loses all kernels of a session that begins while an earlier one's CUPTI goes down (pytorch/kineto#1554;
        # seen on an H200 with torch 2.11 after three sessions of the program's own).
        self.may_try_again = untraced or status.no_kernels == "unknown"
        self._writer.finish_window(self.first_step, status)
        if self._asks_device:
            # torch 2.13 keeps what CUDA sessions took until then (pytorch#193348); it takes 0.2 s.
            gc.collect()
        self._disturbed()

    def abort(self) -> None:
        """Stop the profiler without keeping anything; amid the capture of a graph, which that would ruin, later on."""
        if captures_graph():
            self.state, self.reason = "doomed", "a CUDA graph was being captured when the window had to end"
            return
        self.state = "done"
        profiler, self._profiler = self._profiler, None
        self._others.remove()
        try:
            self._unmark_all()
            if profiler is not None:
                if not self._start_ns:
                    profiler.start_trace()  # a prepared session can only be given back by running it
                profiler.stop_trace()
                free(profiler)
        finally:
            self._put_back()
            self._disturbed()

    def leave_child(self) -> None:
        """In a forked child: stop recording its operators, which nobody would ever read, and no other session's.

        A worker forked inside a window otherwise keeps 2.9 kB of each operator it calls, for all its life (torch 2.13).
        Ending the session there instead would take as long as what the parent had traced by then is large.
        """
        if self._start_ns and self._profiler is not None and self.is_here:
            sys.modules["torch"].autograd._enable_record_function(False)
        self.state = "done"
        self._profiler = self._span = None

    def _status(self, export: Export, end_ns: int) -> WindowStatus:
        ok = not self.reason
        kernels = export.kernels if ok and self._asks_device else None
        return WindowStatus(
            first_step=self.first_step,
            last_step=self.last_step,
            ok=ok,
            reason=self.reason or self._weaknesses(export),
            trace=WINDOW_TRACE if ok else None,
            size_bytes=export.size_bytes if ok else None,
            start_perf_ns=self._start_ns,
            end_perf_ns=end_ns,
            kind=self.plan.kind,
            trigger=self.plan.trigger,
            slow_step=self._slow_step if self.plan.kind == "anomaly" else None,
            kernels=kernels,
            no_kernels=why_no_kernels() if kernels == 0 else None,
            cupti_is_taken_down=cupti_is_taken_down() if self._asks_device else None,
        )

    def _weaknesses(self, export: Export) -> str:
        """What a usable trace lacks; empty when nothing."""
        said = [self._weak] if self._weak else []
        whole = self.last_step - self.first_step + 1
        if export.marks < whole:
            said.append(f"torch wrote {export.marks} of {whole} steps")
        if self._asks_device and not export.kernels:
            said.append("the device was to be traced, but the trace has no kernel")
        if self.plan.kind == "anomaly" and self._slow_step is None:
            said.append("no slow step came while the window was open")
        return "; ".join(said)

    def _lose(self, reason: str) -> None:
        """The session is not ours any more: stopping it would stop theirs, exporting it would crash."""
        self.state = "done"
        _LOST.append((self._span, *self._open))
        self._open.clear()
        self._profiler = self._span = None
        self.reason = reason
        self._others.remove()
        self._put_back()
        self._disturbed()

    def _disturbed(self) -> None:
        """Record from when to when steps were not like the others."""
        opened_ns = self._opened_ns
        self._record((EventKind.WINDOW, 0, 0, opened_ns, perf_counter_ns() - opened_ns, self.first_step))

    def _unmark(self) -> None:
        span, self._span = self._span, None
        if span is not None:
            span.__exit__(None, None, None)

    def _unmark_all(self) -> None:
        """End what is open while the session is: torch crashes if a span ends in another one (2.13, CPU)."""
        while self._open:
            self._open[-1].end()
        self._unmark()

    def _put_back(self) -> None:
        """The session is over: leave the environment as it was, and no file open."""
        if self._room is not None:
            self._room.close()
        if self._set_log_level:
            os.environ.pop("KINETO_LOG_LEVEL", None)
            self._set_log_level = False
