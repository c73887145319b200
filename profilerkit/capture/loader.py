"""Time the wait for every batch.

The fetches of an iterator take one of three paths. ``StepTracker`` holds which one, by the iterator's ``id``:

| path     | held in          | what a fetch does                         | next path                                  |
|----------|------------------|-------------------------------------------|--------------------------------------------|
| slow     | neither          | finds out whose batch it is and whether a | fast or measured, when the iterator feeds  |
|          |                  | step ends; may read the thread's clocks   | the steps and no observer minds; else slow |
| measured | tracker.measured | as fast, with clocks around it            | measured while the meter is open           |
| fast     | tracker.fast     | records the wait and the step that ends   | fast, or slow as below                     |

A fast fetch goes back to slow after ``slow_at`` fetches, after a long wait, at the step that an observer asked for, at
the end of its loader, in a named phase, and whenever any thread calls ``leave_fast_path``.
"""

import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from threading import get_ident
from time import perf_counter_ns, thread_time_ns
from typing import Any, Protocol, TypeVar

from profilerkit.capture.clocks import Meter, Moment, PerThread, ThreadState, spent
from profilerkit.capture.guard import Guard, attempt
from profilerkit.capture.loader_info import CLAIM, Claim, PaddingLooks, Source, length, loader_settings, sampler_of
from profilerkit.capture.steps import StepTracker
from profilerkit.model.run import Loader
from profilerkit.rundir.layout import INPUT_SPAN, EventFlag, EventKind
from profilerkit.rundir.writer import Record

_R = TypeVar("_R")
# Plain ints: a lookup of an enum member costs 0.2 µs on Python 3.11, and each step needs several.
_WAIT = int(EventKind.WAIT)
INFERRED, FIRST, _LAST, _GRAPHS = map(int, (EventFlag.INFERRED, EventFlag.FIRST, EventFlag.LAST, EventFlag.GRAPHS))
_OTHER_THREAD, _OTHER_LOADER, _IN_PHASE = map(int, (EventFlag.OTHER_THREAD, EventFlag.OTHER_LOADER, EventFlag.IN_PHASE))
_NOT_FOR_THE_STEP = _OTHER_THREAD | _OTHER_LOADER | _IN_PHASE
#: Making an iterator starts the workers; it belongs to the first fetch when that follows within this time.
_START_GAP_NS = 1_000_000
#: A pause of the deep window at the start of a fetch that lasts longer than this is taken out of the wait.
_PAUSE_NS = 1_000_000
#: Reading the CPU time of a thread twice is a third of what a fetch costs (two system calls, 4 µs beside real work).
#: It tells computing from blocking where waits are long, so it is read for 16 fetches after a wait of 1 ms: as many
#: workers' batches may come in one burst (a choice) …
LONG_WAIT_NS = 1_000_000
_AFTER_LONG_WAIT = 16
_READ_EVERY, _READ_SELDOM = 16, 64  #: … and else for one fetch in 16, or in 64 where hardly any time is waited
#: Less than this share of the time is hardly any waiting, once so many fetches tell what it is made of (choices).
_WAITS_RATIO, ALL_OF_FIRST = 0.1, 1_000
#: How long the thread queued for a processor is read with one in so many of these: the file costs 40 µs twice.
_QUEUE_EVERY = 8

#: A fetch under way: start, the thread's clocks then (``None`` when not read), flags, span in the trace, own time.
_Fetch = tuple[int, Moment | None, int, AbstractContextManager[object] | None, int]


class Trace(Protocol):
    """What may be recording a trace meanwhile: the deep window."""

    @property
    def window(self) -> object | None:
        """What records, or is about to; ``None`` when nothing does."""

    def span(self, name: str) -> AbstractContextManager[object] | None:
        """A named span in the trace, if one is being recorded."""


class FetchTimer:
    """Records one WAIT per fetch and tells the step tracker where fetches start.

    Which loader feeds the training shows in what follows: its batch is fetched last before a backward pass.

    Attributes:
        armed: false outside the block and in forked children. ``fetches``: those seen on the training thread.
        settings: of the loader iterated last before the first backward pass. The loader is not held: its persistent
            workers die with its last name.
        meter, fast_meter: what fetches on the training thread cost beside the wait, slow ones and fast ones.
        training: what the training thread is doing. This and ``fast_flags``, of the records, are of the fast iterator.
        slow_at: the number of fetches at which the next one takes the slow path again.
        passed: backward passes before the last fast fetch.
        hardly_waits: little of the time is waited for batches; what the waits are made of is looked at less often then.
    """

    __slots__ = (  # see ``StepTracker``
        *("__weakref__", "_after_long_wait", "_backwards", "_beaten", "_claimed", "_counted", "_fast_iterator"),
        *("_guard", "_latest", "_padding", "_reads", "_skips", "_trainer", "armed", "fast_flags"),
        *("fast_meter", "fetches", "hardly_waits", "here", "meter", "next_wrapped", "passed", "reads_cpu", "record"),
        *("settings", "slow_at", "slow_fetches", "sources", "trace", "tracker", "training", "waited_ns"),
    )

    def __init__(self, record: Callable[[Record], None], tracker: StepTracker, guard: Guard, trace: Trace) -> None:
        self.armed = True
        self.trace = trace
        self.fetches = self.slow_fetches = self.waited_ns = 0
        self._beaten = (perf_counter_ns(), 0)  # the last beat, and what was waited until then, ns
        self.hardly_waits = False
        self.record, self.tracker, self._padding = record, tracker, PaddingLooks(record)
        self._guard = guard
        self.here = PerThread(tracker.thread_ended)
        self.training = self.here.doing
        self.fast_flags = self.slow_at = self.passed = 0
        self._counted = self._skips = 0  # fetches by the last slow one; before the next whose CPU time is read
        self._fast_iterator: weakref.ref[Any] | None = None
        self.settings: Loader | None = None
        self.meter, self.fast_meter = Meter(), Meter()
        self.reads_cpu = True
        self._reads = 0  # of the clocks
        self._after_long_wait = _AFTER_LONG_WAIT  # fetches before not every one is
        # What stands for a claimed loader in its iterators, which it may hold: a cycle would keep its workers.
        self.sources: dict[int, object] = {}
        self.next_wrapped: Callable[[Any], Any] | None = None
        self._claimed: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        self._backwards = 0  # backward passes before the last fetch
        self._latest = self._trainer = 0  # ids of the loader fetched last since, and of that before a backward pass

    def beat(self) -> None:
        """Once or twice per second on the writer thread: see how much of the time is waited."""
        now = (perf_counter_ns(), self.waited_ns)
        passed_ns, waited_ns = (value - before for value, before in zip(now, self._beaten, strict=True))
        self._beaten = now
        self.hardly_waits = self.fetches >= ALL_OF_FIRST and waited_ns < _WAITS_RATIO * passed_ns

    def disarm(self) -> None:
        """Let fetches pass straight through from now on."""
        self.armed = False
        self.tracker.leave_fast_path()

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
            self.sources[id(loader)] = Source()
        return True

    def claim_iterator(self, iterator: Any) -> bool:
        """``claim`` for an iterator of a torch loader: the rest of its fetches mark steps."""
        if getattr(getattr(type(iterator), "__next__", None), "timed_by", None) is not self:
            return False
        claim = iterator.__dict__.get(CLAIM)
        if claim is None or claim.timer() is not self:
            iterator.__dict__[CLAIM] = Claim(weakref.ref(self), sampler_of(iterator), length(iterator))
        return True

    def marks(self, loader: Any) -> bool:
        """Whether the iterations of a torch loader mark steps."""
        return self.armed and self._claimed.get(id(loader)) is loader

    def starts_over(self, loader: Any) -> None:
        """A torch loader is to be iterated anew; with persistent workers it keeps the iterator it has."""
        kept = attempt(getattr, loader, "_iterator", None)
        if kept is not None:
            self._guard.call(self.tracker.left_behind, kept)

    def iterate(self, make: Callable[..., _R], source: object, *args: object) -> _R:
        """``make(*args)``, an iterator of ``source``, timed as the beginning of its first fetch."""
        doing = self.here.doing
        if doing is self.training:
            self.tracker.leave_fast_path()  # it may be the same iterator again
        if not self.armed or doing.fetching:
            return make(*args)
        self.describe(source)
        began: Moment = (perf_counter_ns(), thread_time_ns(), -1)
        iterator = make(*args)
        doing.began, doing.ready_ns = began, perf_counter_ns()
        return iterator

    def describe(self, loader: object) -> None:
        """Note the settings of the loader that feeds the first step, from itself or from its iterator."""
        is_aside = self.settings is not None and self.tracker.backwards  # an evaluation after the first optimizer step
        if self.tracker.count == 0 and not is_aside and get_ident() == self.tracker.thread:
            self.settings = self._guard.call(loader_settings, loader)

    def fetch(
        self,
        doing: ThreadState,
        pull: Callable[[Any], _R],
        of: Any,
        iterator: int,
        loader: int,
        owner: bool,
        left: int,
        flags: int,
    ) -> _R:
        """The next batch, ``pull(of)``, on a thread that fetches none yet; whatever it raises goes on unchanged.

        ``iterator`` and ``loader`` are ids; ``owner``: the iterator marks the steps; ``left``: batches, -1 for unknown.
        """
        more = left != 0
        try:  # and not ``guard.call``, which costs 0.3 µs between a user's calls
            fetch = self._begin(doing, perf_counter_ns(), iterator, loader, owner, more, flags)
        except Exception as error:  # noqa: BLE001  as the guard does
            self._guard.caught(self._begin, error)
            return pull(of)
        try:
            doing.fetching = True
            batch = pull(of)
        except BaseException as error:
            self._failed(error, fetch, iterator, owner, more)
            raise
        finally:
            doing.fetching = False
        try:
            self._end(fetch, 0, iterator, owner, more)
            if not (fetch[2] & _NOT_FOR_THE_STEP or self.trace.window):
                self._padding.look(batch)
            fast_fetches = self._skips - 1 if left < 0 else min(self._skips, left) - 1
            if fast_fetches > 0 and (owner or (iterator == id(of) and loader == self._trainer and not doing.phases)):
                self._enter_fast_path(of, iterator, owner, fetch[2], fast_fetches)
        except Exception as error:  # noqa: BLE001  as the guard does
            self._guard.caught(self._end, error)
        return batch

    def _failed(self, error: BaseException, fetch: _Fetch, iterator: int, owner: bool, more: bool) -> None:
        ended = _LAST if isinstance(error, StopIteration) else None
        self._guard.call(self._end, fetch, ended, iterator, owner, more)

    def fast_fetch_failed(self, error: BaseException, iterator: int, start_ns: int) -> None:
        """Take note that an iterator on the fast path has no more batches, or has raised."""
        self.tracker.leave_fast_path()
        self._failed(error, (start_ns, None, self.fast_flags, None, 0), iterator, not self.fast_flags, True)

    def fast_fetch_was_long(self, wait_ns: int) -> None:
        """Take note that an iterator on the fast path gave a batch after a long wait, or the last for that path."""
        self.waited_ns += wait_ns
        self._read_often(wait_ns)
        self.tracker.leave_fast_path()

    def _catch_up(self) -> None:
        """Do what fast fetches left undone: they count themselves and backward passes, and no more."""
        self._skips -= self.fetches - self._counted
        self._counted = self.fetches
        if self.passed != self._backwards:
            self._backwards, self._trainer = self.passed, self._latest

    def _begin(
        self, doing: ThreadState, now_ns: int, iterator: int, loader: int, owner: bool, more: bool, flags: int
    ) -> _Fetch:
        tracker, window = self.tracker, self.trace.window
        start_ns, clocks, trains, marking_ns = now_ns, None, get_ident() == tracker.thread, tracker.marking_ns
        if trains:
            if self.fetches != self._counted:
                self._catch_up()
            self._skips -= 1
            if self._skips <= 0:
                clocks = self._clocks(doing)
        if flags & FIRST:
            if start_ns - doing.ready_ns < _START_GAP_NS:
                clocks = doing.began
                start_ns = clocks[0]
            doing.ready_ns = 0
        if trains:
            tracker.leave_fast_path()
            self._counted = self.fetches = self.fetches + 1
            self.slow_fetches += 1
            made_graphs = doing.made_graphs()
            if tracker.backwards != self._backwards:
                self._backwards = tracker.backwards
                self._trainer, self._latest = self._latest, 0
            elif made_graphs:
                flags |= _GRAPHS
            if owner or (loader == self._trainer and not doing.phases):
                self._latest = loader
            else:
                flags |= self._aside(loader, flags, doing)
            tracker.fetch_started(start_ns, iterator, owner, more)
        else:
            flags |= _OTHER_THREAD | (_IN_PHASE if doing.phases else 0)
        if window is self.trace.window is None and not self.meter.is_open:
            return start_ns, clocks, flags, None, 0
        return self._observed(doing, now_ns, start_ns, clocks, flags, marking_ns)

    def _observed(
        self, doing: ThreadState, now_ns: int, start_ns: int, clocks: Moment | None, flags: int, marking_ns: int
    ) -> _Fetch:
        """Begin a fetch that a trace shows, or whose own cost is measured; marks are no part of that cost."""
        span = None if flags & _NOT_FOR_THE_STEP else self.trace.span(INPUT_SPAN)
        if span is not None:
            span.__enter__()
        ready_ns = perf_counter_ns()
        if ready_ns - now_ns > _PAUSE_NS:
            start_ns = ready_ns
            clocks = None if clocks is None else doing.clock.again(clocks)
        return start_ns, clocks, flags, span, ready_ns - now_ns + marking_ns - self.tracker.marking_ns

    def _clocks(self, doing: ThreadState) -> Moment | None:
        self._skips = 0 if self._after_long_wait else _READ_SELDOM if self.hardly_waits else _READ_EVERY
        self._after_long_wait = max(self._after_long_wait - 1, 0)
        if not self.reads_cpu:
            return None
        self._reads += 1
        return doing.clock.now() if self._reads % _QUEUE_EVERY == 1 else (perf_counter_ns(), thread_time_ns(), -1)

    def _read_often(self, wait_ns: int) -> None:
        """After a long wait mark the device, and read the clocks of the next fetches if such waits matter."""
        if wait_ns >= LONG_WAIT_NS:
            self.tracker.fed_late(wait_ns)
        if wait_ns >= LONG_WAIT_NS and not self.hardly_waits:
            self._skips, self._after_long_wait = 0, _AFTER_LONG_WAIT

    def _aside(self, loader: int, flags: int, doing: ThreadState) -> int:
        """The flags of a fetch on the training thread that does not feed the training; 0 when it does, or may."""
        phases = doing.phases
        if not phases or not self._latest:
            self._latest = loader
        if loader == self._trainer and not doing.evaluations:
            return 0
        other = _OTHER_LOADER if flags & INFERRED and self.tracker.wrapped else 0
        return other | _IN_PHASE if phases else other

    def _end(self, fetch: _Fetch, ended: int | None, iterator: int, owner: bool, more: bool) -> None:
        """Record a fetch that gave a batch (``ended`` 0) or found the loader exhausted, not one that raised (None)."""
        start_ns, clocks, flags, span, own_ns = fetch
        now_ns = perf_counter_ns()
        if ended is not None:
            wait_ns = now_ns - start_ns
            if not flags & _NOT_FOR_THE_STEP and not ended:
                self._read_often(wait_ns)
            queued, cpu_ns = (0, -1) if clocks is None else spent(clocks, self.here.doing.clock.again(clocks))
            self.record((_WAIT, flags | ended, queued, start_ns, wait_ns, cpu_ns))
        if span is not None:
            span.__exit__(None, None, None)
        if ended is None or flags & _OTHER_THREAD:
            return
        self.waited_ns += now_ns - start_ns
        if ended:
            self.tracker.exhausted(iterator, owner)
        elif not more:
            self.tracker.fetch_started(start_ns, iterator, owner, True)
        if self.meter.is_open:
            self.meter.add(own_ns + perf_counter_ns() - now_ns)

    def _enter_fast_path(self, of: Any, iterator: int, owner: bool, flags: int, fetches: int) -> None:
        """Let so many fetches of the iterator take the fast path, if it feeds the steps."""
        if self.meter.is_open or flags & ~(INFERRED | FIRST | _GRAPHS) or self.trace.window is not None:
            return
        self.training, self.fast_flags, self.slow_at = self.here.doing, flags & INFERRED, self.fetches + fetches
        self.tracker.enter_fast_path(iterator)
        if not owner:  # the tracker knows when one that marks steps is gone
            self._fast_iterator = weakref.ref(of, lambda _gone: self.tracker.leave_fast_path())
        if not self.armed:  # last, because the writer thread may disarm it meanwhile
            self.tracker.leave_fast_path()

    def own(self, iterator: object, source: object) -> bool:
        """Whether a wrapped iterator marks the steps: on the training thread, and no other one in a named phase."""
        if get_ident() != self.tracker.thread:
            return False
        doing = self.here.doing
        return bool(self._guard.call(self.tracker.own, iterator, source, doing.phases > 0, doing.evaluations > 0))
