"""Times garbage collections without a line of Python in them.

Python runs the handler of a signal at the next line of Python that it comes to. What one raises in a callback of the
collector (a KeyboardInterrupt, the SystemExit of a preempted job) is printed and lost, and the training goes on.
``print`` is written in C, and calls what it is given to write to: that takes 2 µs of a collection.
"""

import gc
import re
from collections.abc import Callable, Iterator
from functools import partial
from threading import get_ident
from time import perf_counter_ns
from types import BuiltinFunctionType, SimpleNamespace
from typing import Any, NamedTuple

from profilerkit.capture.patches import Patches
from profilerkit.capture.steps import StepTracker
from profilerkit.rundir.layout import EventFlag, EventKind
from profilerkit.rundir.writer import Record

_GC, _OTHER_THREAD = int(EventKind.GC), int(EventFlag.OTHER_THREAD)
#: Collections of the youngest generation run hundreds of times per second and take a few microseconds.
_SHORTEST_NS = 50_000
#: What is noted of each phase of a collection: its name, a separator, what Python tells of it, an end, and the moment.
_NOTED = 5
_GENERATION = re.compile(r"'generation': (\d+)")


class Collection(NamedTuple):
    """One collection: start and duration in ns, the thread it ran on, and the oldest generation it looked at."""

    start_ns: int
    dur_ns: int
    thread: int
    generation: int


class CollectionWatch:
    """Notes when the collector starts and stops; collections of 50 µs or more are recorded."""

    name = "collections"
    needs: tuple[str, ...] = ()

    def __init__(self, record: Callable[[Record], None], tracker: StepTracker) -> None:
        self._record, self._tracker = record, tracker
        self._noted: list[Any] = []
        note = self._noted.append
        moments = zip(iter(perf_counter_ns, None), iter(get_ident, None), strict=True)
        file = SimpleNamespace(write=note, flush=partial(next, map(note, moments)))
        self._callback = partial(print, sep="", end="", file=file, flush=True)
        self._begun_ns: int | None = None
        self._is_in_c = isinstance(print, BuiltinFunctionType)

    def hang(self, patches: Patches) -> None:
        """Be called by the collector."""
        if self._is_in_c:
            gc.callbacks.append(self._callback)
            patches.later(self._leave)

    def _leave(self) -> None:
        if self._callback in gc.callbacks:
            gc.callbacks.remove(self._callback)

    def beat(self) -> None:
        """Record what has ended since."""
        for found in self._taken():
            if found.dur_ns >= _SHORTEST_NS:
                flags = 0 if found.thread == self._tracker.thread else _OTHER_THREAD
                self._record((_GC, flags, 0, found.start_ns, found.dur_ns, found.generation))

    def close(self) -> None:
        """Record the last ones."""
        self.beat()

    def reason(self) -> str:
        """Why none are timed; empty where they are, also where there were none."""
        return "" if self._is_in_c else "the program has replaced print, by which they are timed"

    def _taken(self) -> Iterator[Collection]:
        count = len(self._noted) // _NOTED * _NOTED
        noted = self._noted[:count]
        del self._noted[:count]
        for phase, about, (now_ns, thread) in zip(noted[::_NOTED], noted[2::_NOTED], noted[4::_NOTED], strict=True):
            if phase == "start":
                self._begun_ns = now_ns
            elif self._begun_ns is not None:
                generation = _GENERATION.search(about)
                known = int(generation[1]) if generation else 0
                yield Collection(self._begun_ns, now_ns - self._begun_ns, thread, known)
                self._begun_ns = None
