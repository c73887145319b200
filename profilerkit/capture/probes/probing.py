"""Stands between the steps and the trace windows, and lets the probes go on with each step."""

import os
from collections.abc import Callable, Generator
from time import perf_counter_ns

from profilerkit.capture.distributed import Place
from profilerkit.capture.environment import usable_cores
from profilerkit.capture.guard import Guard
from profilerkit.capture.probes.feed import Feed, ProbedTimer
from profilerkit.capture.probes.found import UnprobedError
from profilerkit.capture.probes.kinds import probes_of
from profilerkit.capture.probes.program import NOT_BEGUN, UNFINISHED, Program
from profilerkit.capture.settings import Settings
from profilerkit.capture.windows import DeepWindows
from profilerkit.model.change import revise
from profilerkit.rundir.documents import ProbesRecord
from profilerkit.rundir.files import write_document
from profilerkit.rundir.layout import PROBES
from profilerkit.rundir.writer import RankWriter, Record

#: Steps behind the first trace window before anything is probed.
_AFTER_WINDOW = 5


class Probing:
    """The probes of one rank. The trace windows see no step from the first that is timed for a probe to the last.

    All methods are called on the training thread; ``close`` and ``write`` on the one that ends the block.
    """

    def __init__(
        self, settings: Settings, place: Place, windows: DeepWindows, record: Callable[[Record], None]
    ) -> None:
        self._settings, self._place, self._record = settings, place, record
        self._windows = windows if settings.deep and windows.traces else None
        self._guard = Guard("profilerkit's probing")
        self._guard.on_failure(self.close)
        self._feed = Feed()
        self._timer: ProbedTimer | None = None
        self._program: Program | None = None
        self._steps: Generator[None, None, None] | None = None
        self._started: int | None = None
        self._own_ns = 0
        self._is_going_on = False  # inside of ``_steps``
        self._afterwards: Callable[[], None] | None = None
        self._pid = os.getpid()

    @property
    def is_inside(self) -> bool:
        """Whether the open step is one that a probe put in."""
        return self._program is not None and self._program.inserting

    @property
    def _is_holding(self) -> bool:
        return self._program is not None and self._program.holding

    def feed(self, timer: ProbedTimer) -> ProbedTimer:
        """``timer``, which takes its batches from here from now on."""
        settings = self._settings
        probes = [probe for name in settings.probes for probe in probes_of(name, usable_cores())]
        self._program = Program(
            probes, self._feed, timer.tracker, self._record, place=self._place, stuck=self._break_off
        )
        first = settings.warmup_steps + _AFTER_WINDOW + (settings.trace_steps if settings.deep else 0)
        self._steps = self._program.steps(first, lambda: self._windows is None or self._windows.is_idle)
        self._timer, timer.feed, timer.held = timer, self._feed, None
        return timer

    def step_started(self, number: int) -> None:
        """Go on with the probes; the windows hear of the step unless it is timed for one."""
        began_ns = perf_counter_ns()
        # A step that was cut starts again: on other ranks, which did not cut it, nothing goes on meanwhile.
        if self._steps is not None and number != self._started:
            self._started = number
            self._guard.call(self._advance, number)
        self._own_ns = perf_counter_ns() - began_ns
        if self._windows is not None and not self._is_holding:
            self._windows.step_started(number)

    def step_ended(self, number: int, dur_ns: int) -> None:
        """Keep what the step took, less what was done for the probes in it."""
        program, dur_ns, is_holding = self._program, dur_ns - self._own_ns, self._is_holding
        if self._steps is not None and program is not None and self._timer is not None:
            program.last_ns = dur_ns
            tracker = self._timer.tracker
            program.worked.append(tracker.worked and tracker.optimizer_seen)
        self._look_whether_left()
        if self._windows is not None and not is_holding:
            self._windows.step_ended(number, dur_ns)

    def step_cut(self) -> None:
        """The step in progress does not count."""
        is_holding = self._is_holding
        if self._program is not None:
            self._program.last_ns = None
        self._look_whether_left()
        if self._windows is not None and not is_holding:
            self._windows.step_cut()

    def quiet(self) -> None:
        """A probe wants to be told of every step."""

    def when_outside(self, work: Callable[[], None]) -> bool:
        """Whether ``work`` has to wait: inside of a probe it is done at its end, which is the end of all probes."""
        if self.is_inside:
            self._afterwards = work
        return self.is_inside

    def close(self) -> None:
        """Put back what a probe under way has changed; nothing is probed any more."""
        steps, self._steps = self._steps, None
        if self._timer is not None:
            self._timer.feed = self._timer.held = None
        if steps is not None and os.getpid() == self._pid:
            self._guard.call(steps.close)
        if self._program is not None:
            self._program.leave_out(NOT_BEGUN)

    def write(self, writer: RankWriter) -> None:
        """Write what was made of the probes."""
        runs = self._program.runs if self._program is not None else []
        failure = self._guard.failure
        if failure is not None and runs:
            runs[-1] = revise(runs[-1], reason=failure)
        try:
            write_document(writer.path / PROBES, ProbesRecord(probes=tuple(runs)))
        except OSError as error:
            writer.stop(PROBES, error)

    def _advance(self, number: int) -> None:
        if self._program is None or self._steps is None:
            return
        self._program.number = number
        self._feed.step_started(number)
        self._is_going_on = True
        try:
            is_over = next(self._steps, _OVER) is _OVER
        finally:
            self._is_going_on = False
        if is_over:
            self.close()
        # Not before: other ranks count on the steps that are still to be put in.
        if self._afterwards is not None and not self.is_inside:
            afterwards, self._afterwards = self._afterwards, None
            self.close()
            afterwards()

    def _look_whether_left(self) -> None:
        """Inside of a probe the loop has left the iterator that marks its steps: it is over."""
        tracker = self._timer.tracker if self._timer is not None else None
        if tracker is not None and tracker.wrapped and not tracker.owner_id:
            self._break_off(UNFINISHED)

    def _break_off(self, reason: str) -> None:
        """End the probe under way; the next one goes on from the next step."""
        steps, program = self._steps, self._program
        if steps is None or program is None or self._is_going_on or not program.inserting:
            return
        if self._guard.call(program.may_break_off):
            self._guard.call(self._thrown, steps, reason)

    def _thrown(self, steps: Generator[None, None, None], reason: str) -> None:
        try:
            steps.throw(UnprobedError(reason))
        except StopIteration:
            self.close()


_OVER = object()
