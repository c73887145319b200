"""The window under torch.profiler: opened, watched, closed, and judged by what its trace lacks."""

import gc
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from math import isqrt
from pathlib import Path
from time import perf_counter_ns
from typing import Any, Literal

from profilerkit.capture.device_clock import activities_in_use, captures_graph
from profilerkit.capture.patches import Patches
from profilerkit.capture.proc_files import FreeMemory, ProcFiles, number
from profilerkit.rundir.layout import RIVAL, WINDOW_TRACE, EventKind, NoKernels, WindowRequest, WindowStatus
from profilerkit.rundir.writer import RankWriter, Record
from profilerkit.units import format_bytes

# torch reports success for files that it never wrote. NVIDIA's devices are traced by CUPTI.

_STEP_MARK = b"ProfilerStep#"
#: How torch writes what a device computed; copies and memsets are of other categories.
_KERNEL_MARK = b'"cat": "kernel"'
#: 30 MB are searched in 15 ms by chunks of this size.
_CHUNK_BYTES = 1 << 20
_TAIL_BYTES = 64
_FULL_DISK = "the disk may be full"


@dataclass(frozen=True, slots=True)
class Export:
    """What an exported file holds; ``flaw`` is what makes it unusable, empty when nothing does."""

    flaw: str
    size_bytes: int = 0
    marks: int = 0
    kernels: int = 0


def examine(path: Path) -> Export:
    """Size, end, step marks and kernels of an exported trace, found without parsing it."""
    size = path.stat().st_size if path.is_file() else 0
    if not size:
        return Export(f"torch wrote no trace file; {_FULL_DISK}")
    with path.open("rb") as file:
        file.seek(max(0, size - _TAIL_BYTES))
        if not file.read().rstrip().endswith(b"}"):
            return Export(f"the trace file is cut; {_FULL_DISK}", size)
        file.seek(0)
        marks = kernels = 0
        kept = b""
        while chunk := file.read(_CHUNK_BYTES):
            text = kept + chunk
            marks += text.count(_STEP_MARK)
            kernels += text.count(_KERNEL_MARK)
            kept = text[1 - max(len(_STEP_MARK), len(_KERNEL_MARK)) :]  # it may be the beginning of a mark
            for mark in (_STEP_MARK, _KERNEL_MARK):
                kept = kept[kept.rfind(mark) + len(mark) :] if mark in kept else kept
    if not marks:
        return Export("the trace holds no step; another profiler may have run inside the window", size)
    return Export("", size, marks, kernels)


def before_other_profilers(give_way: Callable[[], None]) -> Patches:
    """Have ``give_way`` called before another profiler prepares itself, until the patches are removed.

    torch has one profiler session per process: a second one takes the first one's events, and exporting the first then
    crashes the process (torch 2.13, CPU). So our window must be closed before the other session begins. Every way into
    a session, old and new, goes through ``_prepare_trace``.
    """
    patches = Patches()

    def patched(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def prepare(profiler: Any) -> Any:
            if patches.armed:
                give_way()
            return original(profiler)

        return prepare

    patches.apply(lambda _: patches.patch(sys.modules["torch"].autograd.profiler.profile, "_prepare_trace", patched))
    return patches


#: What the end of a trace takes of what recording it took: 5.4 times for operators with their shapes, 13 times for the
#: names of Python's functions (two programs of 10 traced steps on a CPU, torch 2.13).
_TIMES = 10
_MOST_RATIO = 0.25  #: of the memory that is free (a choice) …
#: … and where one step only was seen, whose growth may as well be the program's: the next one may double it.
_MOST_OF_ONE_RATIO = 0.5


class TraceMemory:
    """The memory that a trace takes of this process, and what its host has, from where recording begins.

    A trace grows by about as much in every few steps, the program's own memory in some. So steps count by blocks, about
    as long as there are many, and each as the middle one does, of two as the one that grew less.
    """

    def __init__(self, root: Path = Path("/")) -> None:
        self._files = ProcFiles(root)
        self._statm = self._files.open("proc/self/statm")
        self._free = FreeMemory(self._files)
        self._resident_bytes = [self._resident_now()]  # as each step began

    def lacks(self) -> str:
        """Why recording should end with the step that ends; empty while it need not, and where that is not known."""
        self._resident_bytes.append(self._resident_now())
        resident = [value for value in self._resident_bytes if value is not None]
        room, steps = self._free.now_bytes(), len(resident) - 1
        if steps < 1 or room is None:
            return ""
        block = isqrt(steps)
        grown = sorted(resident[at] - resident[at - block] for at in range(block, steps + 1, block))
        needed = _TIMES * steps * grown[(len(grown) - 1) // 2] // block
        if needed <= (_MOST_RATIO if steps > 1 else _MOST_OF_ONE_RATIO) * room:
            return ""
        return f"its trace needs up to {format_bytes(needed)} of memory, and {format_bytes(room)} are free"

    def close(self) -> None:
        """Close what was opened."""
        self._files.close()

    def _resident_now(self) -> int | None:
        pages = number([*self._statm.text().split(), "", ""][1])
        return None if pages is None else pages * os.sysconf("SC_PAGE_SIZE")


_TEARDOWN, _NO_REINIT = "TEARDOWN_CUPTI", "DISABLE_CUPTI_LAZY_REINIT"
#: Before it CUDA graphs crash in the second session after a teardown (pytorch#112507, #151124, kineto#1264).
_SAFE_SINCE = (12, 6)
_DRIVER = Path("/proc/driver/nvidia/params")
_STATUS = Path("/proc/self/status")
_KERNEL = Path("/proc/sys/kernel/osrelease")
_SYS_ADMIN = 21  #: the bit of CAP_SYS_ADMIN in a set of capabilities (linux/capability.h)
#: What has the driver load a tool into the process, as Nsight does: CUPTI serves one tool at a time.
_INJECTS = "CUDA_INJECTION64_PATH"


def have_cupti_taken_down(torch: Any) -> None:
    """Have torch take CUPTI down with a session: what stays costs 10 to 20 % of the steps after it (pytorch#144455).

    Only with CUDA 12.6 or newer, and where the environment says nothing of it. It stays set: kineto reads it as a
    session starts, as it ends, and once more on a thread of its own after that.
    """
    if _TEARDOWN not in os.environ and _NO_REINIT not in os.environ and _cuda_version(torch) >= _SAFE_SINCE:
        os.environ[_TEARDOWN] = "1"


def why_no_kernels() -> NoKernels:
    """Return the likeliest reason why a trace shows nothing of a device; ``unknown`` where nothing points to one."""
    torch = sys.modules["torch"]
    if torch.profiler.ProfilerActivity.CUDA not in torch.profiler.supported_activities():
        return "not_built"
    if os.environ.get(_INJECTS):
        return "other_tool"
    capabilities = _value(_STATUS, "CapEff")
    is_admin = re.fullmatch("[0-9a-fA-F]+", capabilities) is not None and int(capabilities, 16) >> _SYS_ADMIN & 1
    if _value(_DRIVER, "RmProfilingAdminOnly") == "1" and not is_admin:
        return "permission"
    return "wsl" if "microsoft" in _text(_KERNEL).lower() else "unknown"


def _cuda_version(torch: Any) -> tuple[int, ...]:
    """Return the version of the CUDA that torch was built with, ``(0,)`` for ROCm and the CPU.

    >>> from types import SimpleNamespace as Named
    >>> _cuda_version(Named(version=Named(cuda="12.8"))), _cuda_version(Named(version=Named(cuda=None)))
    ((12, 8), (0,))
    """
    with suppress(ValueError):
        return tuple(int(part) for part in str(torch.version.cuda or 0).split(".")[:2])
    return (0,)


def _value(path: Path, name: str) -> str:
    pairs = (line.partition(":") for line in _text(path).splitlines())
    return next((value.strip() for key, _, value in pairs if key.strip() == name), "")


def _text(path: Path) -> str:
    with suppress(OSError):
        return path.read_text("utf-8", errors="replace")
    return ""


_COMPILER = "_inductor"


class Span:
    """A named span that ends with the block it is around, or with the session if that is over first."""

    def __init__(self, inner: AbstractContextManager[object], among: list["Span"]) -> None:
        self._inner = inner
        self._among = among

    def __enter__(self) -> None:
        self._inner.__enter__()
        self._among.append(self)

    def __exit__(self, *_error: object) -> None:
        if self in self._among:
            self.end()

    def end(self) -> None:
        """End it now."""
        self._among.remove(self)
        self._inner.__exit__(None, None, None)


@contextmanager
def without_compiler() -> Iterator[None]:
    """Hide torch's compiler, which a session asks for CUDA graphs, from the import: 821 modules in 1 s (torch 2.13).

    torch 2.4 asks as the trace starts, later releases as it is prepared. A program that has not imported the compiler
    has no such graph.
    """
    lazy: set[str | None] = getattr(sys.modules["torch"], "_lazy_modules", set())
    hides = _COMPILER in lazy and f"torch.{_COMPILER}" not in sys.modules
    lazy.discard(_COMPILER if hides else None)
    try:
        yield
    finally:
        lazy.update([_COMPILER] if hides else ())


#: A window of very long steps is closed early: the trace of a minute is larger than anybody reads.
_LONGEST_NS = 60 * 1_000_000_000
#: At the end of an epoch a window with this many whole steps is closed instead of waiting for the next epoch.
_ENOUGH_STEPS = 3

#: Spans of sessions that another profiler took: to end them, as dropping them does, would crash the process.
_LOST: list[object] = []
#: A doomed session is still on, and stopped without an export as soon as no graph is captured.
State = Literal["new", "warming", "recording", "doomed", "done"]


class DeepWindow:
    """One window, from the step in which the profiler warms up to the export."""

    def __init__(
        self,
        writer: RankWriter,
        record: Callable[[Record], None],
        plan: WindowRequest,
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
        self.reason = ""  #: why there is no usable trace; empty when there is one
        self.size_bytes = 0
        self.may_try_again = False  #: nothing of use was traced, and the next window may do better

    @property
    def is_here(self) -> bool:
        """Whether the calling thread is the one whose session it is."""
        return threading.get_ident() == self._thread

    def span(self, name: str) -> AbstractContextManager[object] | None:
        """A named span in the trace; ``None`` while none is recorded, and on other threads than the training one."""
        if self.state != "recording" or not self.is_here:
            return None
        # Torch neither escapes nor keeps other characters in a trace.
        plain = "".join(c if c.isascii() and c.isprintable() and c not in '"\\' else "_" for c in name)
        return Span(sys.modules["torch"].profiler.record_function(plain), self._open)

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
        with without_compiler():
            self._profiler.prepare_trace()
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
            with without_compiler():
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
        if not self.is_here:  # torch loses what is stopped on another thread
            self._lose("the block ended on another thread than the training thread during a trace")
            return
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
                # What was traced is in a cycle: freeing it took a collection 0.1 s amid a step of the user's.
                profiler.profiler = None
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
                    with without_compiler():
                        profiler.start_trace()  # a prepared session can only be given back by running it
                profiler.stop_trace()
                profiler.profiler = None
        finally:
            self._put_back()
            self._disturbed()

    def leave_child(self) -> None:
        """In a forked child: stop recording its operators, which nobody would ever read, and no other session's."""
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
        )

    def _weaknesses(self, export: Export) -> str:
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
        if self._room is not None:
            self._room.close()
        if self._set_log_level:
            os.environ.pop("KINETO_LOG_LEVEL", None)
            self._set_log_level = False
