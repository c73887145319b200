"""One recording of this process: starts with a block or below ``profilerkit run``, and ends with it or the program."""

import os
import socket
import tempfile
import threading
import time
from collections import Counter
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from profilerkit.capture import environment, handoff, oom, timed_calls
from profilerkit.capture.background import Recorder, Sampler, Source
from profilerkit.capture.clocks import ClockWatch, Phase, take_anchor
from profilerkit.capture.device_clock import AllocatorWatch, CudaDevice, DeviceClock
from profilerkit.capture.distributed import DdpWatch, FlightWatch, Place
from profilerkit.capture.distributed import place as place_of
from profilerkit.capture.ending import (
    ExitCall,
    Exits,
    at_exit,
    end_document,
    exit_call_of,
    forget_faults,
    note_faults,
)
from profilerkit.capture.environment import in_kernel, noted
from profilerkit.capture.guard import Guard, announce, attempt, raised_by_handler
from profilerkit.capture.hooks import GraphWatch, Hooks
from profilerkit.capture.host import HostSource
from profilerkit.capture.loader import FetchTimer
from profilerkit.capture.loader_patches import wrapped
from profilerkit.capture.nvml import NvmlSource
from profilerkit.capture.overhead import Budget, RunningCost, stages
from profilerkit.capture.patches import Watch, Watches
from profilerkit.capture.settings import Settings, take_options
from profilerkit.capture.stacks import stack_sampler
from profilerkit.capture.steps import StepTracker
from profilerkit.capture.windows import DeepWindows
from profilerkit.capture.workers import WorkerWatch
from profilerkit.errors import CaptureError
from profilerkit.model.report import Report
from profilerkit.rundir import layout
from profilerkit.rundir.places import claim, private_place
from profilerkit.rundir.process import this_process
from profilerkit.rundir.writer import RankWriter, write_manifest

#: With nothing wrong, what may take long has its own bounds; after an exception the user wants to see it.
_SECONDS, _SECONDS_AFTER_ERROR = float("inf"), 20.0
#: More is imported in the 10 s after torch; after that it is looked for once per second, 0.1 to 0.2 ms each time.
_BEATS_OF_START = 20


class Session:
    """One recording. Its methods are called on the training thread and never raise an ``Exception`` after ``begin``.

    ``until_exit``: no block has it; the end of the program closes it.
    """

    def __init__(self, settings: Settings, place: Place, run: Path, writer: RankWriter) -> None:
        self.run = run
        self.until_exit = False
        self._settings = settings
        self._place = place
        self._writer = writer
        self._armed, self._closed = True, False
        self._leaves_analysis = False
        self._meta_is_known = self._said_refused = False
        self._looks, self._switches = 0, Counter[str]()  # looks since the first step, and at how many each was on
        self._beats = self._start_ns = self._removals = 0
        self._anchor = take_anchor()
        self._flight = FlightWatch(writer.path / layout.FLIGHT, self._anchor.unix_ns)
        self._guard = Guard("profilerkit", self._switch_off)
        self._recorder = Recorder(writer, lambda: self._guard.call(self._beat), layout.FLUSH_SECONDS)
        self._record = record = self._recorder.record if settings.light else lambda _record: None
        self._window = DeepWindows(
            writer, self._recorder.record, settings, place, loader_seen=lambda: self._timer.fetches > 0
        )
        self._traces = settings.deep and self._window.traces
        self._tracker = StepTracker(record, self._window if self._traces else None)
        self._window.wake = self._tracker.leave_fast_path
        self._timer = FetchTimer(record, self._tracker, self._guard, self._window)
        self._workers = WorkerWatch(record, self._timer, writer.path) if settings.light else None
        self._hooks = Hooks(record, self._tracker, self._timer, self._guard, self._workers)
        self._exits = Exits(lambda: self._tracker.count, self._leave)
        self._process = this_process()
        took = (self._window.device_took, self._window.device_is_lost) if self._traces else ()
        self._clock = DeviceClock(record, self._tracker, CudaDevice(), *took)
        self._window.read_device = self._clock.catch_up
        self._watches = Watches(self._all_watches() if settings.light else ())
        sources: dict[str, Source] = {}
        self._gpu = NvmlSource()
        sources |= {"nvml": self._gpu} if settings.nvml else {}
        sources |= {"host": HostSource()} if settings.host else {}
        self._samplers = {name: Sampler(name, source, writer.append_sample) for name, source in sources.items()}
        looker, self._stacks = stack_sampler(writer.path / layout.STACKS, lambda: self._tracker.thread)
        can_go = stages(self._timer, self._hooks, self._clock, self._workers, [*self._samplers.values()], looker)
        if settings.light:
            self._samplers["stacks"] = looker
        self._cost = RunningCost(self._timer, self._hooks, self._clock, self._workers, self._stacks)
        self._budget = Budget(settings.overhead_budget, can_go if settings.light else ())

    def _all_watches(self) -> tuple[Watch, ...]:
        recorder, tracker, writer = self._recorder, self._tracker, self._writer
        record, calls = recorder.record, (recorder.record, tracker, recorder.name_id)
        return (
            ClockWatch(writer.append_anchor),
            timed_calls.CollectionWatch(record, tracker),
            timed_calls.SaveWatch(*calls),
            timed_calls.CompileWatch(record, recorder.name_id),
            timed_calls.EvaluationWatch(record, tracker),
            timed_calls.CollectiveWatch(*calls),
            timed_calls.SyncWatch(*calls),
            AllocatorWatch(writer.append_sample),
            DdpWatch(writer.path / layout.DDP),
            self._clock,
            self._flight,
            GraphWatch(self._hooks, tracker),
        )

    # The training script's calls

    def wrap(self, loader: Any) -> Any:
        """``loader`` with timed fetches."""
        if not self._armed:
            return loader
        self._guard.call(self._hooks.install_torch)
        result = self._guard.call(wrapped, loader, self._timer)
        return loader if result is None else result

    def step(self) -> None:
        """End a step."""
        if self._armed and self._tracker.adopt(threading.get_ident()):
            if not self._hooks.torch_hooked:
                self._guard.call(self._hooks.install_torch)
            self._guard.call(self._tracker.step)

    def phase(self, name: str) -> AbstractContextManager[None]:
        """A named block."""
        phase = self._guard.call(self._phase, name) if self._armed else None
        return nullcontext() if phase is None else phase

    def _phase(self, name: str) -> Phase:
        text = attempt(str, name)
        if text is None:
            text = "(a name that cannot be shown)"
        number = self._recorder.name_id(text)
        span = f"{layout.PHASE_SPAN_PREFIX}{text}"
        return Phase(self._record, text, number, lambda: self._window.span(span), self._timer.here, self._guard)

    # Life

    def begin(self) -> None:
        """Write what is known, then start the threads and hang in the hooks. Raises OSError when the disk refuses."""
        began_ns = time.perf_counter_ns()
        self._write_first()
        self._recorder.start()
        for sampler in self._samplers.values():
            sampler.start()
        self._guard.call(self._hooks.install_torch)
        self._guard.call(self._watches.install)
        self._guard.call(self._exits.install)
        self._start_ns = time.perf_counter_ns() - began_ns

    @property
    def place(self) -> Place:
        """Where this process stands in its job."""
        return self._place

    @property
    def steps(self) -> int:
        """Steps that have ended."""
        return self._tracker.count

    @property
    def is_training_thread(self) -> bool:
        """Whether the calling thread is the one whose steps are recorded."""
        return self._tracker.thread == threading.get_ident()

    @property
    def is_closed(self) -> bool:
        """Whether its end has begun."""
        return self._closed

    def close_at_exit(self) -> None:
        """End the recording with the program."""
        self._leaves_analysis = in_kernel()
        self.close(self._guard.call(self._exits.cause))

    def close(self, cause: BaseException | ExitCall | None) -> Report | None:
        """End the recording; the report on rank 0 if it was asked for and could be made.

        Waits at most one minute for the compression, ten seconds for the other ranks and two minutes for the report.
        The writer thread has five seconds to end, each sampler two.
        After an exception of the user's, or an exit with a code, it waits for no other rank, for compression and report
        together at most 20 seconds, and looks for two seconds at what is live where memory ran out.
        """
        if self._closed:
            return None
        call = self._guard.call
        end_ns = time.perf_counter_ns()
        try:
            self._closed = True
            call(self._finish_steps)
        finally:
            try:
                self.take_out()
            finally:  # an interrupt may come at any line of it
                self.take_out()
                _State.active = None
        leave = exit_call_of(cause)
        planned = cause is None or (leave is not None and leave.code == 0)
        deadline = time.monotonic() + (_SECONDS if planned else _SECONDS_AFTER_ERROR)
        if call(self._recorder.stop, lambda: call(self._write_end, cause, end_ns)) is False:
            announce(f"the disk does not respond; `profilerkit analyze {self.run}` reads what was written")
            return None
        call(self._watches.close)
        call(self._recorder.flush)
        if not planned:
            call(self._write_end, cause, end_ns)  # a launcher whose rank failed kills the others within a second
        if isinstance(cause, Exception):
            call(self._write_dossier, cause)
        for sampler in self._samplers.values():
            call(sampler.stop)
        call(self._write_last_meta)
        call(self._window.pack, deadline - time.monotonic())  # before end.json, upon which rank 0 reads
        call(self._write_end, cause, end_ns)
        call(self._writer.close)
        return call(self._hand_over, planned, deadline)

    def take_out(self) -> None:
        """Take out of torch and Python what was hung in, and let the threads end; waits for none."""
        self._armed = False
        for remove in (self._hooks.remove, self._watches.patches.remove, self._exits.patches.remove):
            self._guard.call(remove)
        self._recorder.end()
        for sampler in self._samplers.values():
            sampler.end()

    def _leave(self, leave: ExitCall) -> None:
        self._recorder.flush()
        self._write_end(leave, time.perf_counter_ns())

    def disarm(self) -> None:
        """Record nothing from now on and leave everything as it was found; waits for no lock."""
        self._armed, self._closed = False, True
        self._hooks.remove_in_child()
        self._watches.patches.remove_in_child()
        self._exits.patches.remove_in_child()
        self._window.leave_child()
        self._recorder.disarm()

    def _switch_off(self) -> None:
        self._armed = False
        self._hooks.remove()
        self._watches.patches.remove()
        if threading.get_ident() == self._tracker.thread:
            self._window.abort()

    def _beat(self) -> None:
        self._timer.beat()
        self._beats += self._hooks.torch_hooked
        is_alone = self._place.world_size < 2
        if is_alone and self._beats == _BEATS_OF_START:
            self._recorder.period_seconds = layout.ALONE_FLUSH_SECONDS
        if is_alone or self._beats <= _BEATS_OF_START or self._beats % 2 == 0:
            self._look_around()
        if self._traces:
            self._window.beat()
        if self._workers is not None:
            self._workers.sample_workers()
        self._recorder.flush()
        self._watch_disk()

    def _watch_disk(self) -> None:
        """Say once that the disk refuses records, or that somebody removed them; begin a new run each time."""
        why = self._writer.events.stopped
        if why is not None and not self._said_refused:
            self._said_refused = True
            announce(f"{self.run} cannot be written ({why}); records wait in memory, and writing is tried again")
        if self._writer.events.removals > self._removals:
            if not self._removals:
                announce(
                    f"{self.run} was removed while it was recorded into; recording goes on in a new one of that name"
                )
            self._removals = self._writer.events.removals
            self._write_first()

    def _manifest(self) -> layout.RunManifest:
        settings = self._settings
        return environment.manifest(settings.as_text(), settings.command, self._place.world_size)

    def _write_first(self) -> None:
        if self._place.rank == 0:
            write_manifest(self.run, self._manifest())
        self._write_meta()

    def _look_around(self) -> None:
        self._hooks.install_torch()
        self._watches.install()
        self._watches.beat()
        steps = self._tracker.count
        self._budget.check(steps, self._cost.per_step_ns)
        if steps:
            self._looks += 1
            self._switches.update(environment.switches())
        if steps and not self._meta_is_known:
            self._meta_is_known = True
            self._write_last_meta()

    def _finish_steps(self) -> None:
        if self._guard.failure is not None:
            self._window.abort()
            return
        held_back = self._tracker.is_held_back
        self._tracker.close()
        if self._traces:
            self._window.close(self._tracker.count, held_back=held_back)

    def _hand_over(self, wait: bool, deadline: float) -> Report | None:
        if self._settings.summaries and self._traces:
            handoff.summarise_traces(self._writer.path, deadline - time.monotonic())
        if not self._settings.analyze or self._place.rank:
            return None
        if self._leaves_analysis:
            handoff.leave_analysis(self.run)
            return None
        tracker = self._tracker  # a parent of ranks that only evaluates has seen none of these
        if wait and self.until_exit and not (tracker.count or tracker.backwards or tracker.optimizer_seen):
            announce(f"this process trained nothing, so no report was made; `profilerkit analyze {self.run}` makes one")
            return None
        if wait:
            handoff.wait_for_ranks(self.run, self._place.world_size)
        quiet = self._settings.quiet or in_kernel()  # ``prof.report`` shows it in the cell that asks
        return handoff.analyze(self.run, deadline - time.monotonic(), quiet=quiet)

    # Documents

    def _write_last_meta(self) -> None:
        """Rewrite what the start could not know: torch's version, the device, the loader. A full disk keeps the old."""
        try:
            self._write_meta()
            if self._place.rank == 0 and self._closed:
                write_manifest(self.run, self._manifest())
        except OSError as error:
            if error.errno is None:  # a signal's handler raised it
                raise
            self._writer.stop(layout.META, error)

    def _write_meta(self) -> None:
        place, (device_name, device_uuid) = self._place, environment.cuda_device()
        # Those that were on at most looks: a program may set one back when its loop has ended.
        most = {name for name, looks in self._switches.items() if 2 * looks > self._looks}
        measured = self._closed and self._settings.light
        meta = layout.RankMeta(
            format_version=layout.FORMAT_VERSION,
            rank=place.rank,
            local_rank=place.local_rank,
            pid=os.getpid(),
            host=socket.gethostname(),
            anchor_unix_ns=self._anchor.unix_ns,
            anchor_perf_ns=self._anchor.perf_ns,
            usable_cores=environment.usable_cores(),
            host_cores=os.cpu_count(),
            device_name=device_name,
            device_uuid=device_uuid,
            features=self._features(),
            loader=self._timer.settings,
            self_ns_per_step=self._cost.overall_ns(self._tracker.count) if measured else None,
            own_cost=self._budget.own_cost(self._start_ns),
            steps_found_by=self._tracker.found_by if self._tracker.count else None,
            process_start_perf_ns=environment.process_start_ns(os.getpid()) if place.first_here else None,
            process=self._process,
            node=place.node,
            joined=self._flight.joined if place.world_size == 1 else None,
            gpu=self._gpu.facts,
            threads=environment.intra_op_threads(),
            processor=environment.processor_name(),
            start_up=noted() if place.first_here else None,
            switches=tuple(sorted(most if self._looks else environment.switches())),
        )
        self._writer.write(layout.META, meta)

    def _write_dossier(self, error: Exception) -> None:
        """What was live, where the memory ran out on the training thread: another one's tensors are in use."""
        if threading.get_ident() == self._tracker.thread:
            dossier = oom.dossier(error, steps=self._tracker.count, loader=self._timer.settings)
            if dossier is not None:
                self._writer.write(layout.OOM, dossier)

    def _write_end(self, cause: BaseException | ExitCall | None, end_ns: int) -> None:
        end = end_document(
            cause,
            self._guard.failure,
            steps=self._tracker.count,
            dropped_records=self._writer.dropped_records,
            end_perf_ns=end_ns,
            stopped=self._writer.stopped,
        )
        try:
            self._writer.write(layout.END, end)
        except OSError as error:  # after a failure it is written twice, and there is room for one
            if error.errno is None:  # a signal's handler raised it
                raise
            self._writer.stop(layout.END, error)

    def _features(self) -> dict[str, layout.Feature]:
        def on(wanted: bool, reason: str) -> layout.Feature:
            return layout.Feature(on=wanted and not reason, reason=reason if wanted else layout.OFF_BY_SETTINGS)

        tracker, light, failure = self._tracker, self._settings.light, self._guard.failure or ""
        stopped = failure or self._writer.stopped or ""
        hooked = failure or ("" if self._hooks.torch_hooked else "torch was not imported")
        features = {
            "light": on(light, stopped),
            "deep": on(self._settings.deep, failure or self._window.reason),
            "loader": on(light, "" if self._timer.fetches else "no loader was seen on the training thread"),
            "optimizer": on(light, hooked or ("" if tracker.optimizer_seen else "no torch.optim optimizer stepped")),
            "backward": on(light, hooked or ("" if tracker.backwards else "no backward pass was seen")),
        }
        features["workers"] = on(light, hooked or (self._workers.reason() if self._workers is not None else ""))
        for name in ("nvml", "host", "stacks"):
            sampler = self._samplers.get(name)
            features[name] = on(sampler is not None, sampler.reason if sampler is not None else "")
        features |= {name: on(light, failure or reason) for name, reason in self._watches.reasons().items()}
        return features | {name: on(light, reason) for name, reason in self._budget.turned_off.items()}


class _State:
    active: Session | None = None
    started: int = 0


def active() -> Session | None:
    """The session that records in this process; one whose end was interrupted does not."""
    session = _State.active
    return None if session is None or session.is_closed else session


def start(settings: Settings, *, until_exit: bool = False) -> Session | None:
    """A running session; ``None``, with a warning, inside the block of another one.

    The block that starts first takes a session over that runs ``until_exit``, and ends it. What ``profilerkit run`` was
    told goes before ``settings``. Raises ``CaptureError`` where no directory can be written.
    """
    outer = active()
    if outer is not None:
        if outer.until_exit:
            outer.until_exit = False
            return outer
        announce("a profile block inside another one records nothing; the outer one continues")
        return None
    order = take_options(os.environ)
    if order is not None:
        settings = order.settings(settings)
    _State.started += 1
    place = place_of(os.environ, _State.started)
    wanted = Path.cwd() / (settings.path or Path("runs") / environment.script_name())
    run, writer = open_run(wanted, place)
    session = Session(settings, place, run, writer)
    begun = False
    try:
        session.begin()
        begun = True
    except (OSError, RuntimeError) as error:
        if raised_by_handler(error):
            raise
        if isinstance(error, OSError):
            raise CaptureError(f"cannot write the run directory {run}", cause=str(error)) from error
        raise CaptureError("cannot record", cause=str(error), hint="the system cannot start another thread") from error
    finally:
        if not begun:  # an interrupt among what may come
            session.take_out()
    _State.active = session
    session.until_exit = until_exit
    if until_exit:
        attempt(note_faults, writer.path / layout.FAULT)
    at_exit(_close_what_is_open)
    return session


def _close_what_is_open() -> None:
    """At the end of the program: a recording without a block, or a block that was never left."""
    session = _State.active
    if session is not None:
        try:
            session.close_at_exit()
        except KeyboardInterrupt:
            announce(f"interrupted at its end; `profilerkit analyze {session.run}` makes the report")


def _disarm_in_child() -> None:
    forget_faults()
    session, _State.active = _State.active, None
    if session is not None:
        session.disarm()


os.register_at_fork(after_in_child=_disarm_in_child)


def open_run(wanted: Path, place: Place) -> tuple[Path, RankWriter]:
    """The run directory and its writer; in ``$TMPDIR``, with a warning, when ``wanted`` cannot be written.

    Raises:
        CaptureError: neither place can be written.
    """
    try:
        return _claimed(wanted, place)
    except OSError as error:
        if raised_by_handler(error):
            raise
        try:
            run, writer = _claimed(private_place() / wanted.name, place)
        except OSError as second:
            raise CaptureError(
                f"cannot write {wanted}",
                cause=f"{error}. A directory in {tempfile.gettempdir()} failed too: {second}",
                hint="name another path",
            ) from second
        announce(f"{wanted} cannot be written ({error.strerror}); recording to {run}")
        return run, writer


def _claimed(wanted: Path, place: Place) -> tuple[Path, RankWriter]:
    run = claim(wanted, place.launch_id, place.rank)
    return run, RankWriter(run, place.rank)
