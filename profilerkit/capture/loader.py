"""Times the wait for every batch."""

import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from threading import get_ident
from time import perf_counter_ns, thread_time_ns
from typing import Any, Protocol, TypeVar

from profilerkit.capture.doing import Doing, PerThread
from profilerkit.capture.environment import loader_settings
from profilerkit.capture.guard import Guard, asked
from profilerkit.capture.loader_claims import CLAIM, Claim, Source, length, sampler_of
from profilerkit.capture.meter import Meter
from profilerkit.capture.padding import PaddingLooks
from profilerkit.capture.steps import StepTracker
from profilerkit.capture.thread_clock import Moment, spent
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
#: … and else for one fetch in 16, or in 64 where hardly any time is waited.
_READ_EVERY, _READ_SELDOM = 16, 64
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
        here: what the calling thread is doing.
        trace: what may be recording a trace.
        settings: of the loader iterated last before the first backward pass. The loader is not held: its persistent
            workers die with its last name.
        meter, plain_meter: what fetches on the training thread cost beside the wait, the ``not_plain`` and the others.
        not_plain: fetches on the training thread that had to ask.
        reads_cpu: the CPU time of fetches is read.
        record: takes the records.
        trains: what the training thread is doing, while the tracker is steady. These are of the steady iterator, too:
        steady_flags: of their records.
        ask_at: the number of fetches at which the next one has to ask again.
        waited_ns: by all fetches.
        passed: backward passes before the last plain one.
        hardly_waits: little of the time is waited for batches; what the waits are made of is looked at less often then.
    """

    __slots__ = (  # see ``StepTracker``
        *("__weakref__", "_after_long_wait", "_asked", "_backwards", "_beaten", "_claimed", "_guard", "_latest"),
        *("_reads", "_skips", "_sources", "_steady", "_trainer", "armed", "ask_at", "fetches", "hardly_waits", "here"),
        *("meter", "not_plain", "passed", "plain_meter", "reads_cpu", "record", "settings", "_padding"),
        *("steady_flags", "trace", "tracker", "trains", "waited_ns"),
    )

    def __init__(self, record: Callable[[Record], None], tracker: StepTracker, guard: Guard, trace: Trace) -> None:
        self.armed = True
        self.trace = trace
        self.fetches = self.not_plain = self.waited_ns = 0
        self._beaten = (perf_counter_ns(), 0)  # the last beat, and what was waited until then, ns
        self.hardly_waits = False
        self.record, self.tracker, self._padding = record, tracker, PaddingLooks(record)
        self._guard = guard
        self.here = PerThread(tracker.thread_ended)
        self.trains = self.here.doing
        self.steady_flags = self.ask_at = self.passed = 0
        self._asked = self._skips = 0  # fetches by the last not plain one; before the next whose CPU time is read
        self._steady: weakref.ref[Any] | None = None
        self.settings: Loader | None = None
        self.meter, self.plain_meter = Meter(), Meter()
        self.reads_cpu = True
        self._reads = 0  # of the clocks
        self._after_long_wait = _AFTER_LONG_WAIT  # fetches before not every one is
        self._sources: dict[int, object] = {}
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
        self.tracker.unsettle()

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
            self._sources[id(loader)] = Source()
        return True

    def claim_iterator(self, iterator: Any) -> bool:
        """``claim`` for an iterator of a torch loader: the rest of its fetches mark steps."""
        if getattr(getattr(type(iterator), "__next__", None), "timed_by", None) is not self:
            return False
        claim = iterator.__dict__.get(CLAIM)
        if claim is None or claim.timer() is not self:
            iterator.__dict__[CLAIM] = Claim(weakref.ref(self), sampler_of(iterator), length(iterator))
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
        if doing is self.trains:
            self.tracker.unsettle()  # it may be the same iterator again
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
        doing: Doing,
        pull: Callable[[Any], _R],
        of: Any,
        iterator: int,
        loader: int,
        owner: bool,
        left: int,
        flags: int,
    ) -> _R:
        """The next batch, ``pull(of)``, on a thread that fetches none yet; whatever it raises goes on unchanged.

        ``iterator`` and ``loader`` are ids; ``owner`` says that the iterator marks the steps, ``left`` how many batches
        it has left, negative when that is not known.
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
            ended = _LAST if isinstance(error, StopIteration) else None
            self._guard.call(self._end, fetch, ended, iterator, owner, more)
            raise
        finally:
            doing.fetching = False
        try:
            self._end(fetch, 0, iterator, owner, more)
            if not (fetch[2] & _NOT_FOR_THE_STEP or self.trace.window):
                self._padding.look(batch)
            short_ways = self._skips - 1 if left < 0 else min(self._skips, left) - 1
            if short_ways > 0 and (owner or (iterator == id(of) and loader == self._trainer and not doing.phases)):
                self._settle(of, iterator, owner, fetch[2], short_ways)
        except Exception as error:  # noqa: BLE001  as the guard does
            self._guard.caught(self._end, error)
        return batch

    def fetch_again(self, pull: Callable[[Any], _R], of: Any) -> _R:
        """``fetch`` for the tracker's steady iterator, whose last fetch answered all questions: half of what it costs.

        Only for the thread that ``trains`` is of. After a few fetches the next one has to ask again.
        """
        now_ns, tracker, doing, flags = perf_counter_ns(), self.tracker, self.trains, self.steady_flags
        iterator, fetch, marking_ns = tracker.steady, None, tracker.marking_ns
        try:  # as in ``fetch``
            self._asked = self.fetches = self.fetches + 1
            self.not_plain += 1
            self._skips -= 1
            if tracker.backwards != self._backwards:
                self._backwards, self._trainer = tracker.backwards, self._latest
            tracker.fed_again(now_ns)
            if self.meter.is_open or self.trace.window is not None:
                fetch = self._observed(doing, now_ns, now_ns, None, flags, marking_ns)
        except Exception as error:  # noqa: BLE001  as the guard does
            self._guard.caught(self.fetch_again, error)
            return pull(of)
        try:
            doing.fetching = True
            batch = pull(of)
        except BaseException as error:
            self.failed_again(error, iterator, fetch or (now_ns, None, flags, None, 0))
            raise
        finally:
            doing.fetching = False
        try:
            if fetch is None:
                wait_ns = perf_counter_ns() - now_ns
                self.record((_WAIT, flags, 0, now_ns, wait_ns, -1))
                self.went_again(wait_ns)
            else:
                self._end(fetch, 0, iterator, not flags, True)
                self.went_again(0)
        except Exception as error:  # noqa: BLE001  as the guard does
            self._guard.caught(self.fetch_again, error)
        return batch

    def failed_again(self, error: BaseException, iterator: int, fetch: _Fetch) -> None:
        """The steady iterator has no more batches, or has raised."""
        self.tracker.unsettle()
        ended = _LAST if isinstance(error, StopIteration) else None
        self._guard.call(self._end, fetch, ended, iterator, not fetch[2], True)

    def _catch_up(self) -> None:
        """Do what plain fetches left undone: they count themselves and backward passes, and no more."""
        self._skips -= self.fetches - self._asked
        self._asked = self.fetches
        if self.passed != self._backwards:
            self._backwards, self._trainer = self.passed, self._latest

    def went_again(self, wait_ns: int) -> None:
        """It gave a batch, after so long: see whether the next fetch has to ask."""
        self.waited_ns += wait_ns
        self._read_often(wait_ns)
        if self.fetches >= self.ask_at or self._skips <= 0 or self.trace.window is not None:
            self.tracker.unsettle()

    def _begin(
        self, doing: Doing, now_ns: int, iterator: int, loader: int, owner: bool, more: bool, flags: int
    ) -> _Fetch:
        tracker, window = self.tracker, self.trace.window
        start_ns, clocks, trains, marking_ns = now_ns, None, get_ident() == tracker.thread, tracker.marking_ns
        if trains:
            if self.fetches != self._asked:
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
            tracker.unsettle()
            self._asked = self.fetches = self.fetches + 1
            self.not_plain += 1
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
        self, doing: Doing, now_ns: int, start_ns: int, clocks: Moment | None, flags: int, marking_ns: int
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

    def _clocks(self, doing: Doing) -> Moment | None:
        """The clocks of this thread; ``None`` where they are not to be read."""
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

    def _aside(self, loader: int, flags: int, doing: Doing) -> int:
        """The flags of a fetch on the training thread that does not feed the training; 0 when it does, or may."""
        phases = doing.phases
        if not phases or not self._latest:
            self._latest = loader
        if loader == self._trainer and not doing.asides:
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

    def _settle(self, of: Any, iterator: int, owner: bool, flags: int, fetches: int) -> None:
        """Let so many fetches of the iterator, which feeds the steps, go without questions."""
        if flags & ~(INFERRED | FIRST | _GRAPHS) or self.trace.window is not None:
            return
        if self.tracker.settle(iterator):
            self.trains, self.steady_flags, self.ask_at = self.here.doing, flags & INFERRED, self.fetches + fetches
            if not self.meter.is_open:
                self.tracker.rest()
            if not owner:  # the tracker knows when one that marks steps is gone
                self._steady = weakref.ref(of, self._unsettle)
            if not self.armed:  # last, because the writer thread may disarm it meanwhile
                self.tracker.unsettle()

    def _unsettle(self, _iterator: object) -> None:
        self.tracker.unsettle()

    def own(self, iterator: object, source: object) -> bool:
        """Whether a wrapped iterator marks the steps: on the training thread, and no other one in a named phase."""
        if get_ident() != self.tracker.thread:
            return False
        doing = self.here.doing
        return bool(self._guard.call(self.tracker.own, iterator, source, doing.phases > 0, doing.asides > 0))
