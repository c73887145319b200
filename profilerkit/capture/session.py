"""The life of one recording: start, run beside the training, close, hand over to the analysis."""

import os
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from profilerkit.capture import documents, environment, handoff
from profilerkit.capture.allocator import AllocatorWatch
from profilerkit.capture.collectives import CollectiveWatch
from profilerkit.capture.compiles import CompileWatch
from profilerkit.capture.deep import DeepWindow
from profilerkit.capture.device_clock import CudaDevice, DeviceClock
from profilerkit.capture.ending import at_exit
from profilerkit.capture.guard import Guard, announce, asked
from profilerkit.capture.hooks import Hooks
from profilerkit.capture.host import HostSource
from profilerkit.capture.loader import FetchTimer
from profilerkit.capture.nvml import NvmlSource
from profilerkit.capture.opening import open_run
from profilerkit.capture.order import take_order
from profilerkit.capture.overhead import NoWindow, self_ns_per_step
from profilerkit.capture.phase import Phase
from profilerkit.capture.recorder import Recorder
from profilerkit.capture.sampler import Sampler, Source
from profilerkit.capture.saves import SaveWatch
from profilerkit.capture.settings import Settings
from profilerkit.capture.steps import StepTracker
from profilerkit.capture.syncs import CopyWatch, SyncWatch
from profilerkit.capture.watches import Watch, Watches
from profilerkit.capture.workers import WorkerWatch
from profilerkit.capture.wrapped import wrapped
from profilerkit.errors import CaptureError
from profilerkit.model.report import Report
from profilerkit.rundir.layout import PHASE_SPAN_PREFIX, Feature
from profilerkit.rundir.writer import RankWriter, Record, write_manifest

#: With nothing wrong, what may take long has its own bounds; after an exception the user wants to see it.
_SECONDS = float("inf")
_SECONDS_AFTER_ERROR = 20.0


class _State:
    """The session that records in this process, and how many there were."""

    active: "Session | None" = None
    started: int = 0


def active() -> "Session | None":
    """The session that records in this process."""
    return _State.active


def start(settings: Settings, *, until_exit: bool = False) -> "Session | None":
    """A running session; ``None``, with a warning, inside the block of another one.

    A session that runs ``until_exit`` of the program is not closed by a block: the block that starts first takes it
    over and ends it. What ``profilerkit run`` was told goes before ``settings``.

    Raises:
        CaptureError: no directory can be written.
        UsageError: the path is a file.
    """
    if _State.active is not None:
        if _State.active.until_exit:
            _State.active.until_exit = False
            return _State.active
        announce("a profile block inside another one records nothing; the outer one goes on")
        return None
    order = take_order(os.environ)
    if order is not None:
        settings = order.settings(settings)
    _State.started += 1
    place = environment.place(os.environ, _State.started)
    wanted = Path.cwd() / (settings.path or Path("runs") / environment.script_name())
    run, writer = open_run(wanted, place)
    session = Session(settings, place, run, writer)
    try:
        session.begin()
    except OSError as error:
        session.disarm()
        raise CaptureError(f"cannot write the run directory {run}", cause=str(error)) from error
    _State.active = session
    if until_exit:
        session.until_exit = True
        at_exit(session.close)
    return session


def _disarm_in_child() -> None:
    """A forked child (a DataLoader worker) records nothing."""
    session, _State.active = _State.active, None
    if session is not None:
        session.disarm()


os.register_at_fork(after_in_child=_disarm_in_child)


class Session:
    """One recording. Its methods are called on the training thread and never raise an ``Exception`` after ``begin``.

    Attributes:
        run: the run directory.
        until_exit: no block has it; the end of the program closes it.
    """

    def __init__(self, settings: Settings, place: environment.Place, run: Path, writer: RankWriter) -> None:
        self.run = run
        self.until_exit = False
        self._settings = settings
        self._place = place
        self._writer = writer
        self._armed = True
        self._closed = False
        self._meta_is_known = False
        self._self_ns: float | None = None
        self._anchor = (time.time_ns(), time.perf_counter_ns())
        self._guard = Guard("profilerkit")
        self._guard.on_failure(self._switch_off)
        self._recorder = Recorder(writer, lambda: self._guard.call(self._beat))
        record = self._recorder.record if settings.light else _nothing
        self._window = DeepWindow(
            writer,
            self._recorder.record,
            warmup_steps=settings.warmup_steps,
            trace_steps=settings.trace_steps,
            loader_seen=lambda: self._timer.fetches > 0,
        )
        self._tracker = StepTracker(record, self._window if settings.deep else NoWindow())
        self._timer = FetchTimer(record, self._tracker, self._guard, self._window.span)
        self._workers = WorkerWatch(record, self._tracker, writer.path) if settings.light else None
        self._hooks = Hooks(
            record, self._tracker, self._timer, self._guard, lambda: self._window.recording, self._workers
        )
        self._watches = Watches(self._watched() if settings.light else ())
        self._record = record
        sources: dict[str, Callable[[], Source]] = {}
        if settings.nvml:
            sources["nvml"] = NvmlSource
        if settings.host:
            sources["host"] = HostSource
        self._samplers = {name: Sampler(name, make(), writer.append_sample) for name, make in sources.items()}

    def _watched(self) -> tuple[Watch, ...]:
        """What is watched beside the steps."""
        record, tracker, name_id = self._recorder.record, self._tracker, self._recorder.name_id
        return (
            SaveWatch(record, tracker, name_id),
            CompileWatch(record, name_id),
            CollectiveWatch(record, tracker, name_id),
            SyncWatch(record, tracker, name_id),
            CopyWatch(),
            AllocatorWatch(self._writer.append_sample),
            DeviceClock(record, tracker, CudaDevice()),
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
        text = asked(str, name)
        if text is None:
            text = "(a name that cannot be shown)"
        number = self._recorder.name_id(text)
        span = f"{PHASE_SPAN_PREFIX}{text}"
        return Phase(self._record, number, lambda: self._window.span(span), self._timer.here, self._guard)

    # Life

    def begin(self) -> None:
        """Write what is known, then start the threads and hang in the hooks. Raises OSError when the disk refuses."""
        if self._place.rank == 0:
            write_manifest(self.run, documents.manifest(self._settings, self._place))
        self._write_meta()
        self._recorder.start()
        for sampler in self._samplers.values():
            sampler.start()
        self._guard.call(self._hooks.install)
        self._guard.call(self._watches.install)

    def close(self, error: BaseException | None) -> Report | None:
        """End the recording; the report on rank 0 if it was asked for and could be made.

        Waits at most one minute for the compression, ten seconds for the other ranks and two minutes for the report.
        After an exception of the user's it waits for no other rank, and for compression and report together at most
        20 seconds.
        """
        if self._closed:
            return None
        self._closed = True
        deadline = time.monotonic() + (_SECONDS if error is None else _SECONDS_AFTER_ERROR)
        call = self._guard.call
        end_ns = time.perf_counter_ns()
        try:
            call(self._finish_steps)
        finally:
            self._armed = False
            call(self._hooks.remove)
            call(self._watches.remove)
            _State.active = None
        call(self._watches.close)
        call(self._recorder.stop)
        if error is not None:
            # A launcher whose rank failed kills the other ranks, which fail with it, within a second.
            call(self._write_end, error, end_ns)
        for sampler in self._samplers.values():
            call(sampler.stop)
        if self._workers is not None:
            call(self._workers.close)
        call(self._measure_self)
        call(self._write_last_meta)
        if self._settings.deep and not self._window.reason:
            # Before end.json: rank 0 reads once that is there.
            call(handoff.compress_traces, self._writer.path, deadline - time.monotonic())
        call(self._write_end, error, end_ns)
        call(self._writer.close)
        return call(self._hand_over, error is None, deadline)

    def disarm(self) -> None:
        """Record nothing from now on and leave everything as it was found; waits for no lock."""
        self._armed = False
        self._closed = True
        self._hooks.remove_in_child()
        self._watches.remove_in_child()
        self._recorder.disarm()

    def _switch_off(self) -> None:
        """After an internal failure: leave the training alone, keep what was recorded."""
        self._armed = False
        self._hooks.remove()
        self._watches.remove()
        if threading.get_ident() == self._tracker.thread:
            self._window.abort()

    def _beat(self) -> None:
        """Four times per second on the writer thread."""
        self._hooks.install_torch()
        self._watches.install()
        self._watches.beat()
        if self._workers is not None:
            self._workers.glance()
        self._recorder.flush()
        if self._tracker.count and not self._meta_is_known:
            self._meta_is_known = True
            self._write_last_meta()

    def _finish_steps(self) -> None:
        if self._guard.failure is not None:
            self._window.abort()
            return
        self._tracker.close()
        if self._settings.deep:
            self._window.close(self._tracker.count)

    def _measure_self(self) -> None:
        if self._settings.light and self._tracker.count:
            looks_ns = self._workers.meter.median_ns if self._workers is not None else None
            self._self_ns = self_ns_per_step(self._timer, self._hooks) + (looks_ns or 0.0)

    def _hand_over(self, wait: bool, deadline: float) -> Report | None:
        if not self._settings.analyze or self._place.rank:
            return None
        if wait:
            handoff.wait_for_ranks(self.run, self._place.world_size)
        return handoff.analyze(self.run, deadline - time.monotonic(), quiet=self._settings.quiet)

    # Documents

    def _write_last_meta(self) -> None:
        """Rewrite what the start could not know: torch's version, the device, the loader."""
        self._write_meta()
        if self._place.rank == 0 and self._closed:
            write_manifest(self.run, documents.manifest(self._settings, self._place))

    def _write_meta(self) -> None:
        meta = documents.meta(
            self._place,
            self._anchor,
            features=self._features(),
            loader=environment.loader_settings(self._timer.source),
            self_ns_per_step=self._self_ns,
            steps_found_by=self._tracker.found_by if self._tracker.count else None,
        )
        self._writer.write_meta(meta)

    def _write_end(self, error: BaseException | None, end_ns: int) -> None:
        end = documents.end(
            error,
            self._guard.failure,
            steps=self._tracker.count,
            dropped_records=self._writer.dropped_records,
            end_perf_ns=end_ns,
        )
        self._writer.write_end(end)

    def _features(self) -> dict[str, Feature]:
        """What is on, and why the rest is off."""
        on, tracker = documents.feature, self._tracker
        light, failure = self._settings.light, self._guard.failure or ""
        stopped = failure or (f"events.bin: {self._writer.stopped}" if self._writer.stopped else "")
        hooked = failure or ("" if self._hooks.torch_hooked else "torch was not imported")
        features = {
            "light": on(light, stopped),
            "deep": on(self._settings.deep, failure or self._window.reason),
            "loader": on(light, "" if self._timer.fetches else "no loader was seen on the training thread"),
            "optimizer": on(light, hooked or tracker.missing("optimizer")),
            "backward": on(light, hooked or tracker.missing("backward")),
        }
        features["workers"] = on(light, hooked or (self._workers.reason() if self._workers is not None else ""))
        for name in ("nvml", "host"):
            sampler = self._samplers.get(name)
            features[name] = on(sampler is not None, sampler.reason if sampler is not None else "")
        for name, reason in self._watches.reasons().items():
            features[name] = on(light, failure or reason)
        return features


def _nothing(_record: Record) -> None:
    """Where records go when the light tier is off."""
