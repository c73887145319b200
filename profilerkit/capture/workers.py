"""DataLoader workers: how they are watched from the training process, and what they time themselves."""

import functools
import inspect
import os
import struct
import threading
from collections import deque
from collections.abc import Callable
from multiprocessing.process import current_process
from pathlib import Path
from time import perf_counter_ns
from typing import Any

from profilerkit.capture.clocks import Meter, Moment, ThreadClock, open_for_reading
from profilerkit.capture.guard import Guard, attempt
from profilerkit.capture.loader import ALL_OF_FIRST, FetchTimer
from profilerkit.capture.stacks import WORKER_PERIOD_SECONDS, stack_sampler
from profilerkit.rundir import layout
from profilerkit.rundir.files import AppendFile
from profilerkit.rundir.writer import Record

# Nothing of the user's or of torch's is patched there. The loader's own worker loop is called with its own arguments;
# of these the queue of tasks, the collate function and the queue of batches are given timed methods, for this process
# alone.

#: Arguments by which the loop of a worker is known, torch's as well as torchdata's own.
_OF_A_LOOP = frozenset(("index_queue", "data_queue", "collate_fn", "worker_id"))
#: Leaves of a batch that are looked at for its size, so that a batch of many small objects costs no more.
_MOST_LEAVES = 32
#: Its own memory is read once in so many batches.
_READ_EVERY = 16
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
#: A worker that outlives the recording finds that out so often.
_CHECK_NS = 1_000_000_000
_READ_BYTES = 256
_SIZES = 4  #: fields of a record that are bytes; they stand after the times


def watched_loop(directory: str, original: Callable[..., None], *args: Any, **kwargs: Any) -> None:
    """``original``, a worker's loop, with its batches timed into ``directory``; itself when that cannot be done."""
    if (Path(directory) / layout.END).exists():  # the recording is over, and somebody patched on top of ours
        return original(*args, **kwargs)
    guard = Guard("profilerkit's watch on a loader's worker")
    watched = guard.call(_watched, Path(directory), original, args, kwargs, guard)
    if watched is None:
        return original(*args, **kwargs)
    probe, bound = watched
    guard.call(probe.stacks.start)
    try:
        return original(*bound.args, **bound.kwargs)
    finally:
        guard.call(probe.stacks.stop)


def _watched(
    directory: Path, original: Callable[..., None], args: tuple[Any, ...], kwargs: dict[str, Any], guard: Guard
) -> "tuple[WorkerProbe, inspect.BoundArguments]":
    bound = inspect.signature(original).bind(*args, **kwargs)
    tasks, batches = bound.arguments["index_queue"], bound.arguments["data_queue"]
    collate = bound.arguments["collate_fn"]
    path = layout.worker_file(directory, os.getpid(), bound.arguments["worker_id"])
    failed = path.with_suffix(layout.FAILED_SUFFIX)  # for the main process and the reader
    guard.switch_off = lambda: failed.write_text(guard.failure or "", encoding="utf-8", errors="replace")
    probe = WorkerProbe(path, guard)
    bound.arguments["collate_fn"] = probe.timed_collate(collate)
    tasks.get = probe.timed_get(tasks.get)
    batches.put = probe.timed_put(batches.put)
    batches._send_bytes = probe.timed_send(batches._send_bytes)  # read when the first batch starts the sending thread
    return probe, bound


class WorkerProbe:
    """Times the batches of one worker: on its thread, and at the end of ``timed_send`` on the one that pickles."""

    def __init__(self, path: Path, guard: Guard) -> None:
        self._guard = guard
        self._end = path.with_name(layout.END)
        # A worker before this one may have had its number, as pids come around: its file goes on.
        header = layout.HEADER.pack(layout.WORKER_MAGIC, layout.FORMAT_VERSION, layout.WORKER.size)
        self._file = AppendFile(path, lambda: header, layout.WORKER.size)
        self._stat = ThreadClock()
        self._io = open_for_reading("/proc/self/io")
        self._read = _traffic(self._io)
        self._statm = open_for_reading("/proc/self/statm")
        # A forked worker shares what it starts with; it owns what comes on top, at least.
        is_forked = getattr(current_process(), "_start_method", "") == "fork"
        self._shared_bytes = _anonymous_bytes(self._statm) if is_forked else 0
        self._memory_bytes = -1
        self._collations = 0
        self._batch = self._items = 0
        self._began: Moment | None = None
        self._row: tuple[int, ...] | None = None
        self._put_ns = 0
        self._pending: deque[tuple[tuple[int, ...], int] | None] = deque()
        self._sender: ThreadClock | None = None
        self._sent: Moment = (0, 0, 0)
        self._checked_ns = perf_counter_ns()
        thread = threading.get_ident()
        self.stacks, _ = stack_sampler(
            path.with_suffix(f".{layout.STACKS}"),
            lambda: thread if self._armed and self._began is not None else 0,
            WORKER_PERIOD_SECONDS,
        )

    @property
    def _armed(self) -> bool:
        return self._guard.failure is None and not self._file.is_closed

    def timed_get(self, inner: Callable[..., Any]) -> Callable[..., Any]:
        """The queue of tasks: a batch begins when its task arrives."""

        def get(*args: Any, **kwargs: Any) -> Any:
            task = inner(*args, **kwargs)
            if self._armed:
                self._guard.call(self._begin, task)
            return task

        return get

    def timed_collate(self, inner: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """The collate function: before it the samples are there, after it the batch is."""

        def collate(samples: Any) -> Any:
            if not self._armed:
                return inner(samples)
            before = self._guard.call(self._stat.now)
            batch = inner(samples)
            if before is not None:
                self._guard.call(self._collated, before, batch)
            return batch

        return collate

    def timed_put(self, inner: Callable[..., None]) -> Callable[..., None]:
        """The queue of batches, where the worker's thread leaves one."""

        def put(*args: Any, **kwargs: Any) -> None:
            if self._armed:
                self._guard.call(self._left)
            inner(*args, **kwargs)

        return put

    def timed_send(self, inner: Callable[..., Any]) -> Callable[..., Any]:
        """The end of the hand-over, on the thread that pickles: everything about the batch is known."""

        def send(*args: Any, **kwargs: Any) -> Any:
            result = inner(*args, **kwargs)
            if self._armed:
                self._guard.call(self._send_ended)
            return result

        return send

    def _begin(self, task: object) -> None:
        self._row = None
        if not isinstance(task, tuple):
            self._began = None  # the end, or the start of an epoch: what the worker waited was no hunger for work
            self._put_ns = 0
            return
        self._batch, index = task
        if isinstance(index, tuple) and isinstance(index[-1], bool):  # torchdata's: whether to send the state along
            index = index[0]
        self._items = len(index) if isinstance(index, (list, tuple)) else 1
        self._began = self._stat.now()

    def _collated(self, before: Moment, batch: object) -> None:
        began, after = self._began, self._stat.now()
        if began is None:
            return
        read = _traffic(self._io)
        idle = (began[0] - self._put_ns) // 1000 if self._put_ns else layout.UNKNOWN_US
        row = (began[0], self._batch, self._items, idle, *_between(began, before), *_between(before, after))
        if self._collations % _READ_EVERY == 0 and self._statm >= 0:
            self._memory_bytes = max(0, _anonymous_bytes(self._statm) - self._shared_bytes)
        self._collations += 1
        size = attempt(batch_bytes, batch)
        self._row = (*row, *_grown(self._read, read), -1 if size is None else size, self._memory_bytes)
        self._read = read

    def _left(self) -> None:
        row, self._row = self._row, None
        self._began = None
        now_ns = perf_counter_ns()
        self._put_ns = now_ns if row is not None else 0
        self._pending.append(None if row is None else (row, now_ns))

    def _send_ended(self) -> None:
        if self._sender is None:
            self._sender = ThreadClock()
        entry = self._pending.popleft()
        now, last = self._sender.now(), self._sent
        self._sent = now
        if entry is None:
            return
        row, put_ns = entry
        handover = _between((max(put_ns, last[0]), last[1], last[2]), now)
        times, sizes = row[:-_SIZES], row[-_SIZES:]
        self._file.append(packed((*times, *handover, *sizes)))
        if now[0] - self._checked_ns > _CHECK_NS:
            self._checked_ns = now[0]
            if self._end.exists():
                self._file.close()
                self.stacks.end()


def batch_bytes(batch: object) -> int:
    """Bytes of the tensors and arrays in a batch of at most ``_MOST_LEAVES`` leaves; -1 when that is not known.

    Of a sparse tensor it is not: torch (2.13) refuses to say, or says what a dense one would take.
    """
    found, looked, todo = -1, 0, [batch]
    while todo:
        item = todo.pop()
        looked += 1
        if looked > _MOST_LEAVES:
            return -1
        if isinstance(item, dict):
            todo.extend(item.values())
        elif isinstance(item, (list, tuple)):
            todo.extend(item[:_MOST_LEAVES])
            looked += max(0, len(item) - _MOST_LEAVES)
        else:
            if "sparse" in str(getattr(item, "layout", "")):
                return -1
            size = len(item) if isinstance(item, (bytes, bytearray)) else getattr(item, "nbytes", None)
            if isinstance(size, int):
                found = max(found, 0) + size
    return found


def _between(start: Moment, end: Moment) -> tuple[int, int, int]:
    waited = (end[2] - start[2]) // 1000 if start[2] >= 0 else layout.UNKNOWN_US
    return (end[0] - start[0]) // 1000, (end[1] - start[1]) // 1000, waited


def packed(row: tuple[int, ...]) -> bytes:
    """One record; a duration that does not fit, above an hour, is the longest that does."""
    try:
        return layout.WORKER.pack(*row)
    except struct.error:
        durations = slice(3, len(row) - _SIZES)
        fitting = [min(max(value, 0), layout.UNKNOWN_US) for value in row[durations]]
        return layout.WORKER.pack(*row[:3], *fitting, *row[-_SIZES:])


def _traffic(fd: int) -> tuple[int, int]:
    if fd < 0:
        return -1, -1
    words = os.pread(fd, _READ_BYTES, 0).split()
    return int(words[1]), int(words[9])


def _anonymous_bytes(fd: int) -> int:
    """Resident memory that no file or shared segment stands behind."""
    if fd < 0:
        return 0
    _, resident, shared, *_ = os.pread(fd, _READ_BYTES, 0).split()
    return (int(resident) - int(shared)) * _PAGE_BYTES


def _grown(before: tuple[int, int], after: tuple[int, int]) -> tuple[int, int]:
    if before[0] < 0 or after[0] < 0:
        return -1, -1
    return after[0] - before[0], after[1] - before[1]


_QUEUE, _LOOK = int(layout.EventKind.QUEUE), int(layout.EventKind.LOOK)
_OTHER_THREAD = int(layout.EventFlag.OTHER_THREAD)
_RUNNING, _LOCK, _BLOCKED = map(int, layout.WorkerState)
_SAMPLED_WORKERS = 8  #: workers that are looked at in one beat, some 15 µs each
#: A look costs as much as a fetch. Behind the first fetches, which are all looked at, so many of each 512 are, one
#: after the other: what is replayed of the queue are stretches, and these come by count, whatever the waits (choices).
_TOGETHER, _OF_EACH = 64, 512
_RECEIVED = 2  #: what a task is once its batch was received: the worker, and the batch
#: Places in the kernel where a thread waits for a lock: mutexes and semaphores, and locks of files.
_LOCKS = (b"futex", b"lock_inode", b"posix_lock", b"flock")


class WorkerWatch:
    """The main process's side of what happens in workers. A failure in here ends the watch, not the recording."""

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
            code: Any = getattr(target, "__code__", None)
            is_loop = code is not None and _OF_A_LOOP.issubset(code.co_varnames[: code.co_argcount])
            if is_loop:
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
        self._record((_QUEUE, flags, pid, now_ns, 0, layout.queue_value(batch, outstanding, ready)))
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
        failed = min(self._directory.glob(f"{layout.WORKER_PREFIX}*{layout.FAILED_SUFFIX}"), default=None)
        if failed is not None:
            return f"{failed.stem}: {failed.read_text(encoding='utf-8', errors='replace')}"
        if any(self._directory.glob(f"{layout.WORKER_PREFIX}*{layout.WORKER_SUFFIX}")):
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
