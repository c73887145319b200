"""Where traces are read: in processes of this machine, or wherever an executor of Dask's runs them."""

import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar

from profilerkit.errors import UsageError
from profilerkit.formats.processes import free_cores

_R = TypeVar("_R")

#: A scheduler that runs answers at once.
_ANSWER_SECONDS = 10
#: Makes an executor of so many workers for as long as the context lasts.
Engine = Callable[[int], AbstractContextManager[Executor]]


def usable_workers(wanted: int | None) -> int:
    """Workers of this machine: as many as asked for, else one for each core that is free."""
    return wanted if wanted is not None else max(1, free_cores())


class _Inline(Executor):
    """Runs what it is given at once, here; what that raises is raised here."""

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
    """Dask's workers, of a scheduler that runs already, else of one on this machine.

    Raises:
        UsageError: Dask is not installed, or the scheduler does not answer.
    """
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
