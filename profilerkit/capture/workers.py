"""Has the workers of every DataLoader watched, and reads as fetches begin how many of their batches are ready."""

import functools
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter_ns
from typing import Any

from profilerkit.capture.clocks import Meter, open_for_reading
from profilerkit.capture.guard import Guard
from profilerkit.capture.loader import ALL_OF_FIRST, FetchTimer
from profilerkit.capture.worker import is_loop, watched_loop
from profilerkit.rundir.layout import (
    FAILED_SUFFIX,
    WORKER_PREFIX,
    WORKER_SUFFIX,
    EventFlag,
    EventKind,
    WorkerState,
    queue_value,
)
from profilerkit.rundir.writer import Record

_QUEUE, _LOOK, _OTHER_THREAD = int(EventKind.QUEUE), int(EventKind.LOOK), int(EventFlag.OTHER_THREAD)
_RUNNING, _LOCK, _BLOCKED = int(WorkerState.RUNNING), int(WorkerState.LOCK), int(WorkerState.BLOCKED)
#: Workers that are looked at in one beat, some 15 µs each.
_SAMPLED_WORKERS = 8
#: A look costs as much as a fetch. Behind the first fetches, which are all looked at, so many of each 512 are, one
#: after the other: what is replayed of the queue are stretches, and these come by count, whatever the waits (choices).
_TOGETHER, _OF_EACH = 64, 512
#: What a task is once its batch was received: the worker, and the batch.
_RECEIVED = 2
#: Places in the kernel where a thread waits for a lock: mutexes and semaphores, and locks of files.
_LOCKS = (b"futex", b"lock_inode", b"posix_lock", b"flock")


class _Unwatched:
    """How many loaders are being opened whose workers are to be as they would bare."""

    depth = 0


@contextmanager
def unwatched() -> Iterator[None]:
    """Start workers that are not watched."""
    _Unwatched.depth += 1
    try:
        yield
    finally:
        _Unwatched.depth -= 1


class WorkerWatch:
    """The main process's side of what happens in workers. A failure in here ends the watch, not the recording.

    Attributes:
        samples_queue: the queue is sampled.
        seen: a loader with worker processes was fetched from.
        sampled: how often the training thread looked at the queue.
        meter: what a look at the queue costs the training thread.
    """

    def __init__(self, record: Callable[[Record], None], timer: FetchTimer, directory: Path) -> None:
        self._record = record
        self._timer, self._tracker = timer, timer.tracker
        self._directory = directory
        self._guard = Guard("profilerkit's watch on the loader's workers")
        self._pids: set[int] = set()  # workers that were fetched from and had not ended when they were looked at
        self._looked_at = 0  # the last of them
        self.samples_queue = True
        self.meter = Meter()
        self.sampled = 0
        self.seen = False

    def started(self, original: Callable[[Any], None]) -> Callable[[Any], None]:
        """A replacement for ``Process.start``: a worker runs its loop, whichever loader's it is, inside of ours.

        What it runs can be pickled for spawn and forkserver.
        """

        def start(process: Any) -> None:
            target: Any = getattr(process, "_target", None)
            if _Unwatched.depth == 0 and is_loop(target):
                process._target = functools.partial(watched_loop, str(self._directory.absolute()), target)
            original(process)

        return functools.update_wrapper(start, original)

    def sample_queue(self, iterator: Any) -> None:
        """Record what is under way for ``iterator`` as a fetch begins; nothing without worker processes."""
        if not self.fetches_to_skip(iterator):
            self._guard.call(self._sample_queue, iterator)

    def fetches_to_skip(self, iterator: Any) -> int:
        """How many of the next fetches need no look, 0 where this one does."""
        if not self.samples_queue or getattr(iterator, "_task_info", None) is None or self._guard.failure is not None:
            return _OF_EACH
        fetches = self._timer.fetches
        place = fetches % _OF_EACH
        return _OF_EACH - place if fetches >= ALL_OF_FIRST and place >= _TOGETHER else 0

    def _sample_queue(self, iterator: Any) -> None:
        now_ns = perf_counter_ns()
        self.seen = True
        tasks, batch, outstanding = iterator._task_info, iterator._rcvd_idx, iterator._tasks_outstanding
        # Tasks that are no longer outstanding and still listed were received before their turn. Those of a worker that
        # ran out of data stay outstanding for ever.
        early = len(tasks) - outstanding
        if False in iterator._workers_status:
            early = sum(len(info) == _RECEIVED for info in tuple(tasks.values()))
        ready = iterator._data_queue.qsize() + early
        task = tasks.get(batch)
        # ``Process.pid`` asks the same object, five times as slowly.
        pid = iterator._workers[task[0]]._popen.pid if task is not None else 0
        if pid:
            self._pids.add(pid)
        trains = threading.get_ident() == self._tracker.thread
        flags = 0 if trains else _OTHER_THREAD
        self._record((_QUEUE, flags, pid, now_ns, 0, queue_value(batch, outstanding, ready)))
        self.sampled += trains
        if trains and self.meter.is_open:
            self.meter.add(perf_counter_ns() - now_ns)

    def sample_workers(self) -> None:
        """Record what some of the workers are doing; once or twice per second, on the writer thread."""
        if self._pids and self._guard.failure is None:
            self._guard.call(self._sample_workers)

    def _sample_workers(self) -> None:
        left = _SAMPLED_WORKERS
        for pid in sorted(self._pids.copy(), key=lambda pid: (pid <= self._looked_at, pid)):
            state = _state(pid)
            if state is None:
                self._pids.discard(pid)
                continue
            self._looked_at = pid
            self._record((_LOOK, 0, pid, perf_counter_ns(), 0, state))
            left -= 1
            if not left:
                return

    def reason(self) -> str:
        """Why nothing, or not everything, is known of the workers; empty when all is well."""
        found = self._guard.call(self._what_is_missing)
        return self._guard.failure or found or ""

    def _what_is_missing(self) -> str:
        failed = min(self._directory.glob(f"{WORKER_PREFIX}*{FAILED_SUFFIX}"), default=None)
        if failed is not None:
            return f"{failed.stem}: {failed.read_text(encoding='utf-8', errors='replace')}"
        if any(self._directory.glob(f"{WORKER_PREFIX}*{WORKER_SUFFIX}")):
            return ""
        if self.seen:
            return "the workers were started before the recording, or are not those of torch's DataLoader"
        return "no loader with worker processes was seen"


def _state(pid: int) -> int | None:
    """What the thread of a worker is doing, by the place in the kernel where it waits; ``None`` when it has ended.

    The file is not kept open: a loader may start workers for every short epoch, and of open files a process has few.
    """
    channel = open_for_reading(f"/proc/{pid}/wchan")
    if channel < 0:
        return None
    try:
        place = os.pread(channel, 64, 0)
    except OSError:
        return None
    finally:
        os.close(channel)
    if place in (b"", b"0"):
        return _RUNNING
    return _LOCK if any(name in place for name in _LOCKS) else _BLOCKED
