"""A named block of the user's, timed."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from time import perf_counter_ns

from profilerkit.capture.doing import PerThread
from profilerkit.capture.guard import Guard
from profilerkit.rundir.layout import EVALUATION, EventKind
from profilerkit.rundir.writer import Record

_PHASE = int(EventKind.PHASE)


class Phase:
    """A context manager that records one PHASE per block; reusable, not reentrant."""

    __slots__ = ("_guard", "_here", "_in_trace", "_is_aside", "_is_open", "_name_id", "_record", "_span", "_start_ns")

    def __init__(
        self,
        record: Callable[[Record], None],
        name: str,
        name_id: int,
        span: Callable[[], AbstractContextManager[object] | None],
        here: PerThread,
        guard: Guard,
    ) -> None:
        """``span`` makes the block's span in the trace that is being recorded, if there is one."""
        self._record = record
        self._name_id = name_id
        self._is_aside = EVALUATION.search(name) is not None
        self._span = span
        self._here = here
        self._guard = guard
        self._in_trace: AbstractContextManager[object] | None = None
        self._is_open = False
        self._start_ns = 0

    def __enter__(self) -> None:
        self._guard.call(self._begin)

    def __exit__(self, *_error: object) -> None:
        self._guard.call(self._end)

    def _begin(self) -> None:
        self._start_ns = perf_counter_ns()
        doing = self._here.doing
        doing.phases += 1
        doing.asides += self._is_aside
        self._is_open = True
        in_trace = self._span()
        if in_trace is not None:
            in_trace.__enter__()
            self._in_trace = in_trace

    def _end(self) -> None:
        if not self._is_open:
            return
        self._is_open = False
        doing = self._here.doing
        doing.phases -= 1
        doing.asides -= self._is_aside
        start_ns = self._start_ns
        self._record((_PHASE, 0, self._name_id, start_ns, perf_counter_ns() - start_ns, 0))
        in_trace, self._in_trace = self._in_trace, None
        if in_trace is not None:
            in_trace.__exit__(None, None, None)
