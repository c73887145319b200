"""Traces to their summaries: one, or all of them in processes of this machine or of Dask."""

import math
import multiprocessing
import os
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, ProcessPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from profilerkit.analysis.communication.registry import with_patterns
from profilerkit.errors import UnreadableInputError, UsageError
from profilerkit.formats.jobs import Reading, free_cores
from profilerkit.formats.remote import RemoteFile, is_remote, listed, shown
from profilerkit.summaries.files import is_fresh, place_of, summarise_into

_R = TypeVar("_R")

_ANSWER_SECONDS = 10  #: a scheduler that runs answers at once
#: Makes an executor of so many workers for as long as the context lasts.
Engine = Callable[[int], AbstractContextManager[Executor]]


def usable_workers(wanted: int | None) -> int:
    """Workers of this machine: as many as asked for, else one for each core that is free."""
    return wanted if wanted is not None else max(1, free_cores())


class _Inline(Executor):
    def submit(self, fn: Callable[..., _R], /, *args: Any, **kwargs: Any) -> "Future[_R]":
        future: Future[_R] = Future()
        future.set_result(fn(*args, **kwargs))
        return future


def inline(workers: int) -> AbstractContextManager[Executor]:
    """This process alone, whatever ``workers`` says: what ends it ends all of it."""
    del workers
    return _Inline()


@contextmanager
def pool(workers: int) -> Iterator[Executor]:
    """Processes of this machine, each started afresh: nothing of this one is copied into them.

    They are ended, not waited for: one that was started while the pool broke waits for ever for its first task, and
    Python 3.11 waits for it (seen where a worker was killed as another began).
    """
    executor = ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn"))
    try:
        yield executor
    finally:
        started = list((getattr(executor, "_processes", None) or {}).values())
        executor.shutdown(wait=False, cancel_futures=True)
        for process in started:
            process.terminate()


def dask(scheduler: str | None) -> Engine:
    """Dask's workers, of a scheduler that runs already, else of one on this machine."""
    try:
        from distributed import Client
    except ImportError as error:
        raise UsageError("--engine dask needs Dask", cause=str(error), hint="pip install distributed") from error

    @contextmanager
    def made(workers: int) -> Iterator[Executor]:
        try:
            client = (
                Client(scheduler, timeout=_ANSWER_SECONDS)
                if scheduler
                else Client(n_workers=workers, threads_per_worker=1, dashboard_address=None)
            )
        except (OSError, ValueError) as error:
            raise UsageError(
                f"no Dask scheduler answers at {scheduler or 'this machine'}",
                cause=str(error),
                hint="check --scheduler, or omit it to use workers on this machine",
            ) from error
        with client:
            yield client.get_executor()

    return made


def summarise(
    path: str | Path,
    output: str | Path | None = None,
    *,
    device: str | None = None,
    communication_kernels: Sequence[str] = (),
) -> Path:
    """Summarise one trace into a file of at most 120 kB, for ``reduce``; an existing summary is kept.

    A plain function of a path: any ``concurrent.futures`` executor can map it over a run:
    ``list(executor.map(profilerkit.summarise, paths))``.

    Args:
        path: the trace; a URL is fetched through fsspec.
        output: directory of the summary; default beside the trace. Remote traces need one.
        device: device name, where the trace does not name it.
        communication_kernels: regular expressions of kernel names that are communication beside the known ones.

    Raises:
        UsageError: there is no such file, or the summary cannot be written.
        UnreadableInputError: it is not a readable trace.
    """
    trace, directory = _trace(path), None if output is None else Path(output)
    reading = Reading(device=device, registry=with_patterns(communication_kernels))
    target = place_of(trace, directory)
    if not is_fresh(target, trace, reading):
        try:
            summarise_into(trace, target, reading)
        except OSError as error:
            raise UsageError(
                f"cannot summarise {shown(str(path))}",
                cause=error.strerror or str(error),
                hint="check that the trace exists and that its summary can be written",
            ) from error
    return target


def _trace(path: str | Path) -> Path | RemoteFile:
    if not is_remote(path):
        return Path(path)
    found = listed(str(path))
    if len(found) > 1:
        raise UsageError(
            f"{shown(str(path))} is not a trace", cause=f"{len(found):,} files are there", hint="name one of them"
        )
    return found[0]


MOST_DEATHS = 3  #: a file that ends so many workers is given up, as by Dask
#: What Dask says of a task whose workers died: its own class, so that Dask need not be there.
_DEATHS = ("KilledWorker",)
_AHEAD = 1  #: tasks that wait beside those that run, for each worker, so that none is idle


class Task(msgspec.Struct, frozen=True):
    """One trace to summarise; ``memory_bytes`` is about what a process takes that reads it."""

    trace: Path | RemoteFile
    target: Path
    reading: Reading
    memory_bytes: float = 0.0


class Done(msgspec.Struct, frozen=True):
    """How one task ended: ``problem`` says in words why there is no summary; empty where there is one."""

    task: Task
    problem: str = ""


def shard_of(traces: Sequence[Path | RemoteFile], index: int, count: int) -> list[Path | RemoteFile]:
    """The traces of the shard at ``index``, 0 to ``count`` - 1: all shards together are all of them.

    Which one a trace is in depends on its path alone: processes that list a directory apart share it without a gap.
    """
    return [trace for trace in traces if zlib.crc32(_key(trace)) % count == index]


def _key(trace: Path | RemoteFile) -> bytes:
    return trace.url.encode() if isinstance(trace, RemoteFile) else os.fsencode(trace)


def run(task: Task) -> str:
    """Summarise one trace; why it cannot be read, or an empty string. Called in a worker."""
    try:
        summarise_into(task.trace, task.target, task.reading)
    except UnreadableInputError as error:
        return error.cause or error.what
    except OSError as error:
        return error.strerror or str(error)
    return ""


def map_all(tasks: Sequence[Task], engine: Engine, workers: int, *, room_bytes: float = math.inf) -> Iterator[Done]:
    """Run all tasks, in the order in which they end.

    As many are under way as the workers take, and as fit into ``room_bytes`` of memory together; one always is,
    however large.

    Where workers die, what they were at is tried again, one at a time: who dies with them may have been innocent. A
    task that ends ``MOST_DEATHS`` workers by itself is given up, and is told as a problem.
    """
    waiting, suspects = deque(tasks), []
    while waiting:
        lost: list[Task] = []
        left = len(waiting)
        with engine(workers) as executor:
            yield from _until_lost(executor, waiting, workers, lost, room_bytes)
        suspects += lost
        if len(waiting) == left:  # an executor that takes nothing at all
            suspects += waiting
            waiting.clear()
    for task in suspects:
        yield _alone(task, engine)


def _until_lost(
    executor: Executor, waiting: deque[Task], workers: int, lost: list[Task], room_bytes: float
) -> Iterator[Done]:
    """Run tasks until none is left or a worker died; those that were under way then are ``lost``."""
    running: dict[Future[str], Task] = {}
    while waiting or running:
        while (
            waiting
            and not lost
            and len(running) < workers * (1 + _AHEAD)
            and _fits(waiting[0], list(running.values()), room_bytes)
        ):
            if not _submit(executor, waiting[0], running):
                lost += running.values()
                return
            waiting.popleft()
        if not running:
            return
        for future in wait(running, return_when=FIRST_COMPLETED).done:
            task = running.pop(future)
            problem = _result(future)
            if problem is None:
                lost.append(task)
            else:
                yield Done(task, problem)


def _fits(task: Task, running: Sequence[Task], room_bytes: float) -> bool:
    return not running or task.memory_bytes + sum(other.memory_bytes for other in running) <= room_bytes


def _submit(executor: Executor, task: Task, running: dict["Future[str]", Task]) -> bool:
    try:
        running[executor.submit(run, task)] = task
    except (BrokenExecutor, OSError):  # a pool that breaks as it starts a process: "handle is closed"
        return False
    return True


def _result(future: "Future[str]") -> str | None:
    """What a task said, or raised; ``None`` where its worker died."""
    error = future.exception()
    if error is None:
        return future.result()
    died = isinstance(error, BrokenExecutor) or type(error).__name__ in _DEATHS
    return None if died else f"{type(error).__name__}: {error}"


def _alone(task: Task, engine: Engine) -> Done:
    for _ in range(MOST_DEATHS):
        running: dict[Future[str], Task] = {}
        with engine(1) as executor:
            problem = _result(next(iter(running))) if _submit(executor, task, running) else None
        if problem is not None:
            return Done(task, problem)
    return Done(task, f"it ended {MOST_DEATHS} processes that read it")
