"""Many traces to their summaries: what is done is skipped, and a worker that dies costs nobody else anything."""

import math
import os
import zlib
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, wait
from pathlib import Path

import msgspec

from profilerkit.errors import UnreadableInputError
from profilerkit.formats.jobs import Reading
from profilerkit.formats.remote import RemoteFile
from profilerkit.summaries.engines import Engine
from profilerkit.summaries.files import summarise

#: A file that ends so many workers is given up, as by Dask.
MOST_DEATHS = 3
#: What Dask says of a task whose workers died: its own class, so that Dask need not be there.
_DEATHS = ("KilledWorker",)
#: Tasks that wait beside those that run, for each worker, so that none is idle.
_AHEAD = 1


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
        summarise(task.trace, task.target, task.reading)
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
    """Whether the executor takes another task; one whose worker died does not."""
    try:
        running[executor.submit(run, task)] = task
    except BrokenExecutor:
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
    """Run one task by itself, in a new executor each time."""
    for _ in range(MOST_DEATHS):
        running: dict[Future[str], Task] = {}
        with engine(1) as executor:
            problem = _result(next(iter(running))) if _submit(executor, task, running) else None
        if problem is not None:
            return Done(task, problem)
    return Done(task, f"it ended {MOST_DEATHS} processes that read it")
