"""Times garbage collections without a line of Python in them.

Python runs the handler of a signal at the next line of Python that it comes to. What one raises in a callback of the
collector (a KeyboardInterrupt, the SystemExit of a preempted job) is printed and lost, and the training goes on. So the
callbacks are made of functions that are written in C, none of which looks for signals: ``max`` calls its ``key``, that
takes the next moment of an iterator, and ``filterfalse`` hands each moment to ``append``. 1.5 µs of a collection.
"""

import gc
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count, filterfalse
from threading import get_ident
from time import perf_counter_ns
from typing import NamedTuple

from profilerkit.capture.patches import Patches
from profilerkit.capture.steps import StepTracker
from profilerkit.rundir.layout import EventFlag, EventKind
from profilerkit.rundir.writer import Record

_GC, _OTHER_THREAD = int(EventKind.GC), int(EventFlag.OTHER_THREAD)
#: Collections of the youngest generation run hundreds of times per second and take a few microseconds.
_SHORTEST_NS = 50_000
#: Moments that are kept, 25 MB of them, while nobody asks: 25,000 collections.
_MOST_NOTED = 100_000
#: What Python tells of a collection.
_Told = dict[str, int]


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
        self._about: _Told = {}  # the last collection that ended
        self._begun_ns: int | None = None
        # Number, time and thread, and what was told last when one stopped.
        self._noted: deque[tuple[int, int, int, _Told]] = deque(maxlen=_MOST_NOTED)
        told = {"stop": self._about}
        latest: Iterator[_Told] = iter(partial(told.__getitem__, "stop"), None)
        moments = zip(count(), iter(perf_counter_ns, None), iter(get_ident, None), latest, strict=True)
        note = partial(next, filterfalse(self._noted.append, moments))
        # Both are called with "start" or "stop", and what is told of it.
        self._callbacks = (told.__setitem__, partial(max, key=note))

    def hang(self, patches: Patches) -> None:
        """Be called by the collector."""
        gc.callbacks.extend(self._callbacks)
        patches.later(self._leave)

    def _leave(self) -> None:
        for callback in self._callbacks:
            if callback in gc.callbacks:
                gc.callbacks.remove(callback)

    def beat(self) -> None:
        """Record what has ended since."""
        for found in self._ended():
            if found.dur_ns >= _SHORTEST_NS:
                flags = 0 if found.thread == self._tracker.thread else _OTHER_THREAD
                self._record((_GC, flags, 0, found.start_ns, found.dur_ns, found.generation))

    def close(self) -> None:
        """Record the last ones."""
        self.beat()

    def reason(self) -> str:
        """Never why none were seen: there may have been none."""
        return ""

    def _ended(self) -> Iterator[Collection]:
        noted = [self._noted.popleft() for _ in range(len(self._noted))]
        for number, now_ns, thread, about in noted:
            if number % 2:  # ``max`` asks for a key of each of its two arguments
                continue
            if about is self._about:
                self._begun_ns = now_ns
                continue
            self._about, begun_ns, self._begun_ns = about, self._begun_ns, None
            if begun_ns is not None:  # else it had begun before it was watched
                yield Collection(begun_ns, now_ns - begun_ns, thread, about["generation"])
