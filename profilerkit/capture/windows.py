"""The deep windows of one rank: opened when due, closed with their steps, their traces kept within a budget."""

import shutil
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from pathlib import Path

from profilerkit.capture import distributed
from profilerkit.capture.deep import DeepWindow
from profilerkit.capture.device_clock import captures_graph
from profilerkit.capture.distributed import Place
from profilerkit.capture.guard import Guard
from profilerkit.capture.handoff import Packer
from profilerkit.capture.schedule import Schedule
from profilerkit.capture.settings import Settings
from profilerkit.capture.steps import NEVER, Quiet
from profilerkit.model import revise
from profilerkit.rundir.files import create_document, read_document
from profilerkit.rundir.layout import FLIGHT, WindowKind, WindowRequest, WindowStatus, request_file, window_directory
from profilerkit.rundir.writer import RankWriter, Record
from profilerkit.units import format_bytes

#: Room on the disk without which no trace is made: a trace that fills it costs the program its checkpoint. Ten steps of
#: 10,000 operators with their shapes are 42 MB as torch 2.13 writes them (416 bytes an operator).
_LEAST_FREE_BYTES = 256 << 20

#: Where nobody asked for the names of Python's functions, traced steps may be so much longer, all together, than the
#: one before them (a choice; a busy host adds 20 ms): a step of 4 ms that held 64,000 calls took 14 ms more, and 0.4 s
#: to export (a tokenizer, torch 2.13).
_NAMED_NS = 30_000_000


class DeepWindows:
    """What the steps and the session know of the windows. A failure in here ends them and nothing else.

    ``wake`` is called, on any thread, when what ``quiet`` said does not hold any more.
    """

    def __init__(
        self,
        writer: RankWriter,
        record: Callable[[Record], None],
        settings: Settings,
        place: Place,
        *,
        loader_seen: Callable[[], bool] = lambda: True,
    ) -> None:
        """``loader_seen`` says when a window opens whether a loader feeds the steps.

        Where none does, the names of Python's functions are traced, as long as that takes little: only they tell a
        ``get_batch`` from other Python.
        """
        self._guard = Guard("profilerkit's trace window", self.abort)
        self._beats = Guard("the compression of profilerkit's traces")
        self._flights = Guard("profilerkit's look into torch's flight recorder")
        self._since_unix_ns = time.time_ns()
        self._writer, self._record = writer, record
        self._settings, self._rank = settings, place.rank
        self._loader_seen = loader_seen
        self._left_ns = self._before_ns = NEVER  # that the open window may still add; of the step before its trace
        self.wake: Callable[[], None] = lambda: None
        self.read_device: Callable[[], None] = lambda: None
        self._alone = place.world_size < 2
        self._schedule = Schedule(settings, alone=self._alone, asks=not self._alone and not place.rank)
        self._timed = self._schedule.timed_on_host
        self._packer = Packer(writer.path, summaries=settings.summaries)
        self._unheard = list(_KINDS)
        self._heard: list[WindowRequest] = []  # from the writer thread to the training thread
        self._to_ask: list[WindowRequest] = []  # and back
        self.window: DeepWindow | None = None
        self._look_at = self._schedule.look_at
        self._used_bytes = self._largest_bytes = 0
        self._usable = False
        self._was_blind = False  # a window saw nothing of the device, and another was to be opened for it
        self._why_not = ""
        chosen = traced_ranks(place.world_size)
        self.traces = place.rank in chosen
        if not self.traces:
            self._why_not = f"{len(chosen)} of {place.world_size} ranks are traced, and not this one"

    @property
    def reason(self) -> str:
        """Why there is no usable trace; empty when there is one."""
        return "" if self._usable else self._why_not

    def span(self, name: str) -> AbstractContextManager[object] | None:
        """A named span in the trace; ``None`` while none is recorded, and on other threads than the training one."""
        window = self.window
        return self._guard.call(window.span, name) if window is not None else None

    def step_started(self, number: int) -> None:
        """Open a window when one is due; mark the step in the trace."""
        if self.window is not None:
            self._guard.call(self._in_window, self.window.step_started, number)
        elif number >= self._look_at:
            self._guard.call(self._look, number)

    def step_ended(self, number: int, dur_ns: int) -> None:
        """Close the window when it has its steps; look for slow steps while there is none."""
        window = self.window
        if window is None:
            if self._timed(dur_ns):
                self._guard.call(self._slow, number, dur_ns, number)
        elif window.state == "warming":
            self._before_ns = dur_ns
        elif window.state == "recording":
            if self._schedule.is_slow(dur_ns, 1, on_device=False):
                window.is_slow(number)
            self._left_ns -= max(dur_ns - self._before_ns, 0)
            if self._left_ns < 0:
                window.plan = revise(window.plan, steps=1)
            self._guard.call(self._in_window, window.step_ended, number)

    def device_took(self, number: int, steps: int, dur_ns: int, at: int) -> None:
        """Look for a slow step among the ``steps`` up to ``number``, which took the device ``dur_ns`` together.

        The host, which may be far ahead, has ended step ``at``. Called on the training thread, at the end of a step.
        """
        window = self.window
        if window is None:
            if self._schedule.timed_on_device(dur_ns, steps):
                self._guard.call(self._slow, number, dur_ns, at, steps)
        elif self._schedule.is_slow(dur_ns, steps, on_device=True):
            window.is_slow(number)

    def device_is_lost(self) -> None:
        """Look for slow steps by the host's clock again."""
        self._schedule.device_is_lost()
        self.wake()

    def step_cut(self) -> None:
        """The step in progress does not count; the loop may be over."""
        window = self.window
        if window is not None and window.state == "recording":
            self._guard.call(self._in_window, window.step_cut)

    def quiet(self) -> Quiet | None:
        """While no window is open: what the schedule says, and an earlier look where other ranks asked for one."""
        return self._schedule.quiet()._replace(until=self._look_at) if self.window is None else None

    def beat(self) -> None:
        """Once or twice per second on the writer thread: what needs the disk or another process."""
        if self._beats.failure is None:
            self._beats.call(self._beat)

    def _beat(self) -> None:
        self._packer.beat()
        if self._alone:
            return
        run = self._writer.path.parent
        while self._to_ask:
            ask(run, self._to_ask.pop())
        heard = []
        for kind in tuple(self._unheard):
            with suppress(FileNotFoundError, ValueError):  # one that is not whole yet is read the next time
                heard.append(read_document(request_file(run, kind), WindowRequest))
                self._unheard.remove(kind)
        if heard and self._guard.failure is None:
            self._heard += heard
            self._look_at = 0  # in this order: the training thread sets it before it looks whether anything was heard
            self.wake()

    def close(self, steps: int, *, held_back: bool = False) -> None:
        """Export what there is, or say why there is nothing after a run of ``steps`` steps.

        ``held_back`` says that they were not known to be steps before the end.
        """
        self._guard.call(self._close, steps, held_back)
        self._look_at = NEVER

    def pack(self, seconds: float) -> None:
        """Compress the traces that are not yet, in at most half of the time there is for it and the report."""
        if self._usable:
            self._packer.finish(seconds)

    def abort(self) -> None:
        """Stop the profiler without keeping anything, and open no window any more.

        Amid the capture of a graph the profiler is stopped as soon as that is over.
        """
        self._schedule.stop()
        self._heard.clear()
        self._look_at = NEVER
        self._why_not = self._guard.failure or self._why_not or "capture was switched off"
        window, self.window = self.window, None
        if window is not None and window.state != "done":
            window.abort()
            self.window = window if window.state == "doomed" else None

    def leave_child(self) -> None:
        """In a forked child there is no window, and what torch would record of it goes nowhere."""
        self._look_at = NEVER
        self._packer.leave_child()
        window, self.window = self.window, None
        if window is not None:
            window.leave_child()

    def _look(self, number: int) -> None:
        """Open what is due; hear what other ranks asked for, and ask them."""
        self._hear(number)
        plan = self._schedule.due(number)
        if plan is not None and captures_graph():
            self._schedule.plan(revise(plan, first_step=number + 2))
        elif plan is not None:
            self._open(plan, number)
        wanted = self._schedule.asked_for(number) if self.window is None else None
        if wanted is not None:
            self._ask(wanted)
        self._look_at = self._schedule.look_at
        if self._heard:
            self._hear(number)
            self._look_at = self._schedule.look_at

    def _hear(self, number: int) -> None:
        while self._heard:
            heard = self._heard.pop()
            plan = revise(heard, trigger=f"{heard.trigger} (asked for by rank {heard.rank})")
            if number < plan.first_step:
                self._schedule.plan(plan)
            else:
                self._refuse(plan, f"this rank was already at step {number} when the request arrived")

    def _open(self, plan: WindowRequest, number: int) -> None:
        if number + 1 > plan.first_step:
            self._refuse(plan, "another window was open at its step")
            return
        no_room = self._no_room()
        if no_room:
            self._refuse(plan, no_room)
            self._schedule.stop()
            return
        asked = self._settings.with_stack
        unasked = not asked and plan.kind == "scheduled" and not self._loader_seen()
        self._left_ns, self._before_ns = _NAMED_NS if unasked else NEVER, NEVER
        window = DeepWindow(
            self._writer,
            self._record,
            plan,
            with_stack=asked or unasked,
            give_way=lambda: self._guard.call(self._give_way),
            stopped=self.read_device,
        )
        self.window = window  # before it opens: a failure in there has to close it
        if window.open():
            self._schedule.opened(plan)
            self.wake()
        else:
            self.window = None
            self._why_not = window.reason
            if not self._alone:
                self._refuse(plan, window.reason)
            self._schedule.missed(plan)

    def _no_room(self) -> str:
        most_bytes = self._settings.max_trace_bytes
        if self._used_bytes + self._largest_bytes > most_bytes:
            used = f"{format_bytes(self._used_bytes)} of max_trace_bytes={format_bytes(most_bytes)}"
            return f"earlier traces took {used}"
        disk = shutil.disk_usage(self._writer.path)
        least_bytes = max(_LEAST_FREE_BYTES, 2 * self._largest_bytes)
        if disk.total and disk.free < least_bytes:  # some network file systems tell neither
            free, least = format_bytes(disk.free), format_bytes(least_bytes)
            return f"the disk has {free} free, and a trace needs {least}"
        return ""

    def _refuse(self, plan: WindowRequest, reason: str) -> None:
        """A window that does not open leaves its word where the others have it."""
        self._why_not = reason
        status = WindowStatus(
            first_step=plan.first_step,
            last_step=plan.first_step - 1,
            ok=False,
            reason=f"it was not opened: {reason}",
            kind=plan.kind,
            trigger=plan.trigger,
        )
        self._writer.finish_window(plan.first_step, status)

    def _ask(self, plan: WindowRequest) -> None:
        if self._alone:
            self._schedule.plan(plan)
            self._look_at = self._schedule.look_at
            return
        self._to_ask.append(revise(plan, rank=self._rank))

    def _slow(self, number: int, dur_ns: int, at: int, steps: int = 1) -> None:
        plan = self._schedule.slow(number, dur_ns, at, steps)
        if plan is not None:
            self._ask(plan)
            self.wake()

    def _in_window(self, work: Callable[..., None], *arguments: object) -> None:
        work(*arguments)
        self._settle()

    def _give_way(self) -> None:
        if self.window is not None:
            self.window.give_way()
            self._settle()

    def _settle(self) -> None:
        """Take note of a window that has closed itself, or will as soon as no graph is captured."""
        window = self.window
        if window is None or window.state not in ("done", "doomed"):
            return
        if window.reason:
            self._why_not = self._guard.failure or window.reason
        if window.state == "doomed":
            return
        self.window = None
        self._used_bytes += window.size_bytes
        self._largest_bytes = max(self._largest_bytes, window.size_bytes)
        if not window.reason:
            self._usable = self._packer.wanted = True
            if not self._alone:
                path = window_directory(self._writer.path, window.first_step) / FLIGHT
                self._flights.call(distributed.dump, path, self._since_unix_ns)
        blind = window.may_try_again and not window.reason
        if window.may_try_again and not (blind and self._was_blind):
            self._schedule.missed(window.plan)
        self._was_blind |= blind
        self._schedule.closed(window.last_step + 1)
        self._look_at = self._schedule.look_at
        if self._heard:
            self._look_at = 0

    def _close(self, steps: int, held_back: bool) -> None:
        window = self.window
        if window is not None and window.state in ("recording", "doomed"):
            window.finish()
            self._settle()
        is_over = self.window is None or self.window.state == "doomed"
        if is_over and (self._usable or self._why_not):
            return
        if held_back:
            self._why_not = self._why_not or (
                "no torch.optim optimizer stepped, so the loop might still have called step(): call prof.step(), or "
                "make the loop longer"
            )
        warmup = self._settings.warmup_steps
        needs = (
            "the trace was waiting for them to settle"
            if self._schedule.waits
            else f"a trace needs more than {warmup + 1} (warmup_steps={warmup}, and one that warms up the profiler)"
        )
        self._why_not = self._why_not or f"the loop ended after {steps} steps; {needs}"
        self.abort()


_KINDS: tuple[WindowKind, ...] = ("scheduled", "anomaly")
#: Ranks that trace: what all of them do, most of a job's ranks do alike, and each costs its export and its disk.
MOST_RANKS = 8
_FIRST_RANKS = 4


def traced_ranks(world_size: int) -> tuple[int, ...]:
    """The ranks that trace: all of few; of many the first four and four spread over the others, the last among them.

    >>> traced_ranks(2), traced_ranks(64)
    ((0, 1), (0, 1, 2, 3, 18, 33, 48, 63))
    """
    if world_size <= MOST_RANKS:
        return tuple(range(max(world_size, 1)))
    spread = MOST_RANKS - _FIRST_RANKS
    others = world_size - 1 - _FIRST_RANKS
    return (*range(_FIRST_RANKS), *(_FIRST_RANKS + others * part // spread for part in range(1, spread + 1)))


def ask(run: Path, request: WindowRequest) -> None:
    """Ask all ranks of a run, unless one has asked before. Raises OSError when the disk refuses."""
    path = request_file(run, request.kind)
    path.parent.mkdir(exist_ok=True)
    create_document(path, request)
