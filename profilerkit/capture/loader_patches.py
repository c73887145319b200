"""The two patches through which any torch ``DataLoader`` is seen."""

import functools
import weakref
from collections.abc import Callable
from threading import get_ident
from time import perf_counter_ns
from typing import Any, Protocol

from profilerkit.capture.loader import FIRST, INFERRED, LONG_WAIT_NS, FetchTimer
from profilerkit.capture.loader_claims import CLAIM, Claim, length, sampler_of
from profilerkit.capture.patches import uncounted
from profilerkit.rundir.layout import EventKind

_STEP, _WAIT = int(EventKind.STEP), int(EventKind.WAIT)  # an enum lookup costs 0.2 µs on Python 3.11


class Looks(Protocol):
    """What looks at an iterator's workers."""

    def look(self, iterator: Any) -> None:
        """A fetch begins."""

    def rests(self, iterator: Any) -> int:
        """How many of the next fetches need no look."""


def patched_next(timer: FetchTimer, original: Callable[[Any], Any], looks: Looks | None = None) -> Any:
    """A replacement for ``_BaseDataLoaderIter.__next__``; ``looks`` is shown the iterator before each fetch.

    A fetch that goes on as before, and of which nobody else wants to know yet, is recorded right here, as
    ``fetch_again`` and ``fed_again`` would record it: the user's step has emptied the caches, and most of what a fetch
    costs is to get functions and objects back into them.
    """
    tracker, record = timer.tracker, timer.record
    asked_next: Callable[[Any], Any]

    def timed_next(self: Any) -> Any:
        doing = timer.trains
        if tracker.plain != id(self) or tracker.thread != get_ident() or doing.phases:
            return asked_next(self)
        now_ns, flags, start_ns = perf_counter_ns(), timer.steady_flags, tracker.started_ns
        if start_ns is not None and (not flags or tracker.worked):
            dur_ns, number, untold = now_ns - start_ns, tracker.count, tracker.untold
            if dur_ns > tracker.tell_above_ns or number >= tracker.tell_at:
                tracker.unsettle()
                return asked_next(self)
            record((_STEP, flags, 0, start_ns, dur_ns, number))
            tracker.started_ns = now_ns
            tracker.worked = False
            tracker.count = number + 1
            if untold is not None:
                untold.append(dur_ns)
            if number >= tracker.mark_at:
                tracker.mark(number, start_ns)
                now_ns = perf_counter_ns()  # the wait begins behind the mark
        timer.fetches += 1
        timer.passed = tracker.backwards
        doing.fetching = True
        try:
            batch = original(self)
        except BaseException as error:
            timer.failed_again(error, id(self), (now_ns, None, flags, None, 0))
            raise
        finally:
            doing.fetching = False
        wait_ns = perf_counter_ns() - now_ns
        record((_WAIT, flags, 0, now_ns, wait_ns, -1))
        if wait_ns >= LONG_WAIT_NS or timer.fetches >= timer.ask_at:
            timer.went_again(wait_ns)
        else:
            timer.waited_ns += wait_ns
        return batch

    asked_next = _asked_next(timer, original, timed_next, looks)
    timed_next.timed_by = timer  # type: ignore[attr-defined]  # how ``claim_iterator`` knows its own
    return timed_next


def _asked_next(
    timer: FetchTimer, original: Callable[[Any], Any], plain_next: Callable[[Any], Any], looks: Looks | None
) -> Callable[[Any], Any]:
    """The way of all other fetches, and the measurement of the first of ``plain_next``."""
    here, trace, tracker = timer.here, timer.trace, timer.tracker
    fetch, fetch_again, measured = timer.fetch, timer.fetch_again, _Measured(timer, plain_next)

    def asked_next(self: Any) -> Any:
        if not timer.armed:
            return original(self)
        if measured.released(id(self)):
            return measured.fetch(self)
        if looks is not None and getattr(self, "_num_workers", True):
            looks.look(self)
        doing = here.doing
        if tracker.steady == id(self) and doing is timer.trains and not doing.phases:
            return fetch_again(original, self)
        if doing.fetching:
            return original(self)
        yielded = getattr(self, "_num_yielded", -1)
        first = FIRST if yielded == 0 else 0
        if timer.settings is None:
            timer.describe(self)  # it was made before the recording
        number, claim = id(self), self.__dict__.get(CLAIM)
        if claim is not None and claim.timer() is timer:
            owner = tracker.owner_id == number or timer.own(self, claim.source)
            left, loader, flags = (claim.length - yielded if yielded >= 0 else -1), id(claim.source), first
        else:
            # The length is only worth its 1 µs while a trace is recorded: no span may begin for a step without a batch.
            left = length(self) - yielded if trace.window is not None and yielded >= 0 else -1
            owner, loader, flags = False, id(sampler_of(self)), first | INFERRED
        batch = fetch(doing, original, self, number, loader, owner, left, flags)
        if tracker.plain == number:
            rests = timer.ask_at - timer.fetches if looks is None else looks.rests(self)
            if rests:
                timer.ask_at = min(timer.ask_at, timer.fetches + rests)
                measured.hold()
            else:
                tracker.plain = 0
        return batch

    return asked_next


class _Measured:
    """Measures the first plain fetches from outside: clocks in them would cost as much as what they measure."""

    __slots__ = ("_iterator", "_plain_next", "_timer")

    def __init__(self, timer: FetchTimer, plain_next: Callable[[Any], Any]) -> None:
        self._timer, self._plain_next = timer, plain_next
        self._iterator = 0  # whose next fetch on the training thread is plain and held back, by its id

    def hold(self) -> None:
        """Have the next fetch, which would be plain, asked whether it is to be measured, if more are to be."""
        if self._timer.plain_meter.is_open:
            self._iterator, self._timer.tracker.plain = self._timer.tracker.plain, 0

    def released(self, iterator: int) -> bool:
        """Whether this fetch was held back, and may still be plain. It is not held any more."""
        timer, tracker = self._timer, self._timer.tracker
        if self._iterator != iterator or tracker.thread != get_ident():
            return False
        self._iterator = 0
        return iterator == tracker.steady and not timer.trains.phases

    def fetch(self, iterator: Any) -> Any:
        """The next batch of an iterator that was released."""
        timer, tracker = self._timer, self._timer.tracker
        tracker.plain = id(iterator)
        if not tracker.steady:  # last, because another thread may have unsettled it meanwhile
            tracker.plain = 0
        not_plain, waited_ns, marking_ns = timer.not_plain, timer.waited_ns, tracker.marking_ns
        start_ns = perf_counter_ns()
        batch = self._plain_next(iterator)
        if tracker.plain and timer.not_plain == not_plain:
            took_ns = perf_counter_ns() - start_ns - (timer.waited_ns - waited_ns)
            timer.plain_meter.add(took_ns + marking_ns - tracker.marking_ns)
            self.hold()
        return batch


def patched_iter(timer: FetchTimer, original: Callable[[Any], Any]) -> Any:
    """A replacement for ``DataLoader.__iter__``, where workers start and the loader's settings can be seen."""

    def timed_iter(self: Any) -> Any:
        if timer.armed:
            timer.starts_over(self)
        iterator = timer.iterate(original, self, self)
        noted = getattr(iterator, "__dict__", {})  # a loader may give a generator instead
        if timer.marks(self):
            noted[CLAIM] = Claim(weakref.ref(timer), timer.stands_for(self), length(self))
        else:
            noted.pop(CLAIM, None)  # persistent workers' iterator, which was wrapped in an epoch before
        return iterator

    timed_iter.timed_by = timer  # type: ignore[attr-defined]  # how ``claim`` knows its own
    return timed_iter


def describing_init(timer: FetchTimer, original: Callable[..., None]) -> Callable[..., None]:
    """A replacement for ``_BaseDataLoaderIter.__init__``: a loader may make iterators in a way of its own."""

    @functools.wraps(original)
    def described(self: Any, loader: Any, *args: Any, **kwargs: Any) -> None:
        if timer.armed:
            timer.describe(loader)
        original(self, loader, *args, **kwargs)

    return uncounted(described)
