"""Times the wait for every batch; any torch ``DataLoader`` is seen through two patches."""

import threading
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from threading import get_ident
from time import perf_counter_ns, thread_time_ns
from typing import Any, NamedTuple, Protocol, TypeVar

from profilerkit.capture.environment import loader_settings
from profilerkit.capture.guard import Guard, asked
from profilerkit.capture.meter import Meter
from profilerkit.capture.steps import StepTracker
from profilerkit.capture.thread_clock import Moment, ThreadClock
from profilerkit.model.run import Loader
from profilerkit.rundir.layout import INPUT_SPAN, EventFlag, EventKind, wait_queue_field
from profilerkit.rundir.writer import Record

_R = TypeVar("_R")
# Plain ints: a lookup of an enum member costs 0.2 µs on Python 3.11, and each step needs several.
_WAIT = int(EventKind.WAIT)
_INFERRED, _FIRST, _LAST = int(EventFlag.INFERRED), int(EventFlag.FIRST), int(EventFlag.LAST)
_OTHER_THREAD = int(EventFlag.OTHER_THREAD)
_OTHER_LOADER, _IN_PHASE = int(EventFlag.OTHER_LOADER), int(EventFlag.IN_PHASE)
_NOT_FOR_THE_STEP = _OTHER_THREAD | _OTHER_LOADER | _IN_PHASE
#: Making an iterator starts the workers; it belongs to the first fetch when that follows within this time.
_START_GAP_NS = 1_000_000
#: A pause of the deep window at the start of a fetch that lasts longer than this is taken out of the wait.
_PAUSE_NS = 1_000_000
#: Reading the CPU time of a thread twice is a third of what a fetch costs (two system calls, 4 µs beside real work).
#: It tells computing from blocking where waits are long, so it is read for 64 fetches after a wait of 1 ms …
_LONG_WAIT_NS = 1_000_000
_AFTER_LONG_WAIT = 64
#: … and else for one fetch in 16.
_READ_EVERY = 16
#: How long the thread queued for a processor is read with one in so many of these: the file costs 40 µs twice.
_QUEUE_EVERY = 8
#: ``torch.utils.data._DatasetKind.Iterable``
_ITERABLE_KIND = 1

#: The attribute of a torch iterator that holds its ``_Claim``.
_CLAIM = "_profilerkit_claim"

#: A fetch under way: start, the thread's clocks then (``None`` when not read), flags, span in the trace, time spent on
#: this.
_Fetch = tuple[int, Moment | None, int, AbstractContextManager[object] | None, int]


class Trace(Protocol):
    """What may be recording a trace meanwhile: the deep window."""

    @property
    def window(self) -> object | None:
        """What records, or is about to; ``None`` when nothing does."""

    def span(self, name: str) -> AbstractContextManager[object] | None:
        """A named span in the trace, if one is being recorded."""


class _Claim(NamedTuple):
    """What an iterator whose fetches mark steps carries: whose timer, of which loader, of how many batches."""

    timer: "weakref.ref[FetchTimer]"
    source: object
    length: int


class Doing:
    """What a thread is doing.

    Attributes:
        fetching: inside a fetch, so that a wrapped DataLoader is not counted twice.
        began: the thread's clocks when the making of the newest iterator began.
        ready_ns: when that iterator was made.
        phases: named phases of the user that are open.
        clock: the thread's.
    """

    __slots__ = ("began", "clock", "fetching", "phases", "ready_ns")

    def __init__(self) -> None:
        self.fetching = False
        self.began: Moment = (0, 0, 0)
        self.ready_ns = 0
        self.phases = 0
        self.clock = ThreadClock()


class PerThread(threading.local):
    """What the calling thread is doing, found with one look for it."""

    def __init__(self) -> None:
        self.doing = Doing()


class FetchTimer:
    """Records one WAIT per fetch and tells the step tracker where fetches start.

    Which loader feeds the training shows in what follows: its batch is fetched last before a backward pass.

    Attributes:
        armed: false outside the block and in forked children; fetches then pass straight through.
        fetches: fetches seen on the training thread.
        here: what the calling thread is doing.
        trace: what may be recording a trace.
        settings: of the loader that feeds the steps, the last one iterated before the first step was recorded. The
            loader itself is not held: its persistent workers die with its last name.
        meter: what fetches on the training thread cost beside the wait.
        reads_cpu: the CPU time of fetches is read.
    """

    __slots__ = (  # see ``StepTracker``
        *("__weakref__", "_after_long_wait", "_backwards", "_claimed", "_guard", "_latest", "_reads", "_record"),
        *("_skips", "_sources", "_trainer", "armed", "fetches", "here", "meter", "reads_cpu", "settings", "trace"),
        "tracker",
    )

    def __init__(self, record: Callable[[Record], None], tracker: StepTracker, guard: Guard, trace: Trace) -> None:
        self.armed = True
        self.trace = trace
        self.fetches = 0
        self._record = record
        self.tracker = tracker
        self._guard = guard
        self.here = PerThread()
        self.settings: Loader | None = None
        self.meter = Meter()
        self.reads_cpu = True
        self._reads = 0  # of the clocks
        self._skips = 0  # fetches before the next one whose CPU time is read
        self._after_long_wait = _AFTER_LONG_WAIT  # fetches before not every one is
        self._sources: dict[int, object] = {}
        self._claimed: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        self._backwards = 0  # backward passes before the last fetch
        self._latest = 0  # the loader fetched last since, by the id of what stands for it
        self._trainer = 0  # the loader fetched last before a backward pass

    def claim(self, loader: Any) -> bool:
        """Whether the patches see all of ``loader``, a torch one: its iterations then mark steps from now on.

        Such a loader is not wrapped, so that it stays what it was for everyone who asks for its type. Another kind of
        loader, and one that makes its iterators in a way of its own, is.
        """
        makers = [kind for kind in type(loader).__mro__ if "__iter__" in vars(kind) or "_get_iterator" in vars(kind)]
        if not makers or getattr(vars(makers[0]).get("__iter__"), "timed_by", None) is not self:
            return False
        if self._claimed.get(id(loader)) is not loader:
            self._claimed[id(loader)] = loader
            self._sources[id(loader)] = object()
        return True

    def stands_for(self, loader: Any) -> object:
        """What stands for a claimed loader in its iterators, which it may hold: a cycle would keep its workers."""
        return self._sources[id(loader)]

    def marks(self, loader: Any) -> bool:
        """Whether the iterations of a torch loader mark steps."""
        return self.armed and self._claimed.get(id(loader)) is loader

    def starts_over(self, loader: Any) -> None:
        """A torch loader is to be iterated anew; with persistent workers it keeps the iterator it has."""
        kept = asked(getattr, loader, "_iterator", None)
        if kept is not None:
            self._guard.call(self.tracker.left_behind, kept)

    def iterate(self, make: Callable[..., _R], source: object, *args: object) -> _R:
        """``make(*args)``, an iterator of ``source``, timed as the beginning of its first fetch."""
        doing = self.here.doing
        if not self.armed or doing.fetching:
            return make(*args)
        began: Moment = (perf_counter_ns(), thread_time_ns(), -1)
        iterator = make(*args)
        if self.tracker.count == 0 and get_ident() == self.tracker.thread:
            self.settings = self._guard.call(loader_settings, source)
        doing.began, doing.ready_ns = began, perf_counter_ns()
        return iterator

    def fetch(
        self,
        doing: Doing,
        pull: Callable[[Any], _R],
        of: Any,
        iterator: int,
        loader: int,
        owner: bool,
        more: bool,
        flags: int,
    ) -> _R:
        """The next batch, ``pull(of)``, on a thread that fetches none yet; whatever it raises goes on unchanged.

        ``iterator`` and ``loader`` are ids; ``owner`` says that the iterator marks the steps.
        """
        try:  # and not ``guard.call``, which costs 0.3 µs between a user's calls
            fetch = self._begin(doing, perf_counter_ns(), iterator, loader, owner, more, flags)
        except Exception as error:  # noqa: BLE001  as the guard does
            self._guard.caught(self._begin, error)
            return pull(of)
        try:
            doing.fetching = True
            batch = pull(of)
        except BaseException as error:
            ended = _LAST if isinstance(error, StopIteration) else None
            self._guard.call(self._end, fetch, ended, iterator, owner, more)
            raise
        finally:
            doing.fetching = False
        try:
            self._end(fetch, 0, iterator, owner, more)
        except Exception as error:  # noqa: BLE001  as the guard does
            self._guard.caught(self._end, error)
        return batch

    def _begin(
        self, doing: Doing, now_ns: int, iterator: int, loader: int, owner: bool, more: bool, flags: int
    ) -> _Fetch:
        tracker, window = self.tracker, self.trace.window
        start_ns, clocks = now_ns, None
        self._skips -= 1
        if self._skips <= 0:
            clocks = self._clocks(doing)
        if flags & _FIRST:
            if start_ns - doing.ready_ns < _START_GAP_NS:
                clocks = doing.began
                start_ns = clocks[0]
            doing.ready_ns = 0
        if get_ident() == tracker.thread:
            self.fetches += 1
            if tracker.backwards != self._backwards:
                self._backwards = tracker.backwards
                self._trainer, self._latest = self._latest, 0
            if owner or (loader == self._trainer and not doing.phases):
                self._latest = loader
            else:
                flags |= self._aside(loader, flags, doing.phases)
            tracker.fetch_started(start_ns, iterator, owner, more)
        else:
            flags |= _OTHER_THREAD | (_IN_PHASE if doing.phases else 0)
        if window is self.trace.window is None and not self.meter.is_open:
            return start_ns, clocks, flags, None, 0
        span = None if flags & _NOT_FOR_THE_STEP else self.trace.span(INPUT_SPAN)
        if span is not None:
            span.__enter__()
        ready_ns = perf_counter_ns()
        if ready_ns - now_ns > _PAUSE_NS:
            start_ns = ready_ns
            clocks = None if clocks is None else _moment(doing, clocks)
        return start_ns, clocks, flags, span, ready_ns - now_ns

    def _clocks(self, doing: Doing) -> Moment | None:
        """The clocks of this thread; ``None`` where they are not to be read."""
        self._skips = 0 if self._after_long_wait else _READ_EVERY
        self._after_long_wait = max(self._after_long_wait - 1, 0)
        if not self.reads_cpu:
            return None
        self._reads += 1
        return doing.clock.now() if self._reads % _QUEUE_EVERY == 1 else (perf_counter_ns(), thread_time_ns(), -1)

    def _aside(self, loader: int, flags: int, phases: int) -> int:
        """The flags of a fetch on the training thread that does not feed the training; 0 when it does, or may."""
        if not phases or not self._latest:
            self._latest = loader
        if loader == self._trainer:
            return 0
        other = _OTHER_LOADER if flags & _INFERRED and self.tracker.wrapped else 0
        return other | _IN_PHASE if phases else other

    def _end(self, fetch: _Fetch, ended: int | None, iterator: int, owner: bool, more: bool) -> None:
        """Record a fetch that gave a batch (``ended`` 0) or found the loader exhausted, not one that raised (None)."""
        start_ns, clocks, flags, span, own_ns = fetch
        now_ns = perf_counter_ns()
        if ended is not None:
            wait_ns = now_ns - start_ns
            if wait_ns >= _LONG_WAIT_NS:
                self._skips, self._after_long_wait = 0, _AFTER_LONG_WAIT
            queued, cpu_ns = (0, -1) if clocks is None else _spent(clocks, _moment(self.here.doing, clocks))
            self._record((_WAIT, flags | ended, queued, start_ns, wait_ns, cpu_ns))
        if span is not None:
            span.__exit__(None, None, None)
        if ended is None or flags & _OTHER_THREAD:
            return
        if ended:
            self.tracker.exhausted(iterator, owner)
        elif not more:
            self.tracker.fetch_started(start_ns, iterator, owner, True)
        if self.meter.is_open:
            self.meter.add(own_ns + perf_counter_ns() - now_ns)

    def own(self, iterator: object, source: object) -> bool:
        """Whether a wrapped iterator marks the steps.

        Never one on another thread than the training, and not another loader inside a named phase.
        """
        if get_ident() != self.tracker.thread:
            return False
        return bool(self._guard.call(self.tracker.own, iterator, source, self.here.doing.phases > 0))


def _moment(doing: Doing, start: Moment) -> Moment:
    """The clocks of the thread that were read at ``start``."""
    return doing.clock.now() if start[2] >= 0 else (perf_counter_ns(), thread_time_ns(), -1)


def _spent(start: Moment, end: Moment) -> tuple[int, int]:
    """What a WAIT record says of the thread's time: µs in the queue for a processor as ``wait_queue_field``, CPU ns."""
    return wait_queue_field(end[2] - start[2] if start[2] >= 0 and end[2] >= 0 else None), end[1] - start[1]


def length(source: object) -> int:
    """Batches in one iteration of ``source``; -1 when that is not known for sure.

    ``len()`` of a DataLoader over an iterable dataset is never called: torch remembers it and warns about mismatches.
    """
    known = asked(_asked_length, source)
    return -1 if known is None else known


def _asked_length(source: object) -> int | None:
    if getattr(source, "_dataset_kind", 0) == _ITERABLE_KIND:
        return None
    known = source if isinstance(source, (list, tuple, range)) else getattr(source, "_index_sampler", None)
    return None if known is None else len(known)


def patched_next(timer: FetchTimer, original: Callable[[Any], Any], look: Callable[[Any], None] | None = None) -> Any:
    """A replacement for ``_BaseDataLoaderIter.__next__``; ``look`` is shown the iterator before each fetch."""
    here, trace, fetch = timer.here, timer.trace, timer.fetch

    def timed_next(self: Any) -> Any:
        if not timer.armed:
            return original(self)
        if look is not None and getattr(self, "_num_workers", True):
            look(self)
        doing = here.doing
        if doing.fetching:
            return original(self)
        yielded = getattr(self, "_num_yielded", -1)
        first = _FIRST if yielded == 0 else 0
        claim = self.__dict__.get(_CLAIM)
        if claim is not None and claim.timer() is timer:
            number = id(self)
            owner = timer.tracker.owner_id == number or timer.own(self, claim.source)
            return fetch(doing, original, self, number, id(claim.source), owner, yielded != claim.length, first)
        # The length is only worth its 1 µs while a trace is recorded: a span must not begin for a step without a batch.
        more = trace.window is None or yielded < 0 or yielded != length(self)
        loader = id(getattr(self, "_index_sampler", self))  # the iterators of one loader share its sampler
        return fetch(doing, original, self, id(self), loader, False, more, first | _INFERRED)

    return timed_next


def patched_iter(timer: FetchTimer, original: Callable[[Any], Any]) -> Any:
    """A replacement for ``DataLoader.__iter__``, where workers start and the loader's settings can be seen."""

    def timed_iter(self: Any) -> Any:
        if not timer.marks(self):
            return timer.iterate(original, self, self)
        timer.starts_over(self)
        iterator = timer.iterate(original, self, self)
        iterator.__dict__[_CLAIM] = _Claim(weakref.ref(timer), timer.stands_for(self), length(self))
        return iterator

    timed_iter.timed_by = timer  # type: ignore[attr-defined]  # how ``claim`` knows its own
    return timed_iter
