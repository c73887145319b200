"""Patch torch so that the fetches of any ``DataLoader`` are timed: the fast path, and the way to the slow one."""

import functools
import operator
import weakref
from collections.abc import Callable, Iterator
from threading import get_ident
from time import perf_counter_ns
from typing import Any
from weakref import WeakKeyDictionary

from profilerkit.capture.loader import FIRST, INFERRED, LONG_WAIT_NS, FetchTimer
from profilerkit.capture.loader_info import CLAIM, Claim, length, sampler_of
from profilerkit.capture.patches import uncounted
from profilerkit.capture.workers import WorkerWatch
from profilerkit.rundir.layout import EventKind

_STEP, _WAIT = int(EventKind.STEP), int(EventKind.WAIT)  # an enum lookup costs 0.2 µs on Python 3.11

#: What the slow path asks of a fetch: the arguments of ``FetchTimer.fetch`` behind the first.
Question = Callable[[Any], tuple[Callable[[Any], Any], Any, int, int, bool, int, int]]


def timed_next(
    timer: FetchTimer, pull: Callable[[Any], Any], question: Question, sampler: WorkerWatch | None = None
) -> Callable[[Any], Any]:
    """Return what stands for the ``__next__`` of iterators, which ``pull`` calls.

    ``sampler`` samples the queue before each slow fetch. A fast fetch is recorded right here, as the slow path would
    record it: the user's step has emptied the caches, and most of what a fetch costs is to get functions and objects
    back into them.
    """
    tracker, record = timer.tracker, timer.record
    slow_next: Callable[[Any], Any]

    def fast_next(self: Any) -> Any:
        doing = timer.training
        if tracker.fast != id(self) or tracker.thread != get_ident() or doing.phases:
            return slow_next(self)
        now_ns, flags, start_ns = perf_counter_ns(), timer.fast_flags, tracker.started_ns
        if tracker.explicit:
            if tracker.feeder is None:
                tracker.feeder = tracker.fast
        elif start_ns is not None and (not flags or tracker.worked):
            dur_ns, number, unreported = now_ns - start_ns, tracker.count, tracker.unreported
            if dur_ns > tracker.report_above_ns or number >= tracker.report_at:
                return slow_next(self)
            record((_STEP, flags, 0, start_ns, dur_ns, number))
            tracker.started_ns = now_ns
            tracker.worked = False
            tracker.count = number + 1
            if unreported is not None:
                unreported.append(dur_ns)
            if number >= tracker.mark_at:
                tracker.mark(number, start_ns)
                now_ns = perf_counter_ns()  # the wait begins behind the mark
        timer.fetches += 1
        timer.passed = tracker.backwards
        doing.fetching = True
        try:
            batch = pull(self)
        except BaseException as error:
            timer.fast_fetch_failed(error, id(self), now_ns)
            raise
        finally:
            doing.fetching = False
        wait_ns = perf_counter_ns() - now_ns
        record((_WAIT, flags, 0, now_ns, wait_ns, -1))
        if wait_ns >= LONG_WAIT_NS or timer.fetches >= timer.slow_at:
            timer.fast_fetch_was_long(wait_ns)
        else:
            timer.waited_ns += wait_ns
        return batch

    slow_next = _slow_next(timer, pull, question, sampler, fast_next)
    fast_next.timed_by = timer  # type: ignore[attr-defined]  # how ``claim_iterator`` knows its own
    return fast_next


def _slow_next(
    timer: FetchTimer,
    pull: Callable[[Any], Any],
    question: Question,
    sampler: WorkerWatch | None,
    fast_next: Callable[[Any], Any],
) -> Callable[[Any], Any]:
    """Return the way of all fetches that are not fast, or are measured."""
    tracker, here = timer.tracker, timer.here

    def slow_next(self: Any) -> Any:
        if not timer.armed:
            return pull(self)
        number, doing = id(self), here.doing
        if tracker.measured == number and doing is timer.training and not doing.phases:
            return _measured(timer, fast_next, self)
        if sampler is not None and getattr(self, "_num_workers", True):
            sampler.sample_queue(self)
        if doing.fetching:
            return pull(self)
        batch = timer.fetch(doing, *question(self))
        if tracker.fast == number:
            skipped = timer.slow_at - timer.fetches if sampler is None else sampler.fetches_to_skip(self)
            timer.slow_at = min(timer.slow_at, timer.fetches + skipped)
            if not skipped:
                tracker.fast = 0
            elif timer.fast_meter.is_open:
                tracker.measured, tracker.fast = tracker.fast, 0
        return batch

    return slow_next


def _measured(timer: FetchTimer, fast_next: Callable[[Any], Any], iterator: Any) -> Any:
    """Return the next batch, by a fast fetch that is measured: clocks in it would cost as much as what they measure."""
    tracker = timer.tracker
    tracker.fast = id(iterator)
    if not tracker.measured:  # last, because another thread may have left the fast path meanwhile
        tracker.fast = 0
    tracker.measured = 0
    slow_fetches, waited_ns, marking_ns = timer.slow_fetches, timer.waited_ns, tracker.marking_ns
    start_ns = perf_counter_ns()
    batch = fast_next(iterator)
    if timer.slow_fetches == slow_fetches:
        took_ns = perf_counter_ns() - start_ns - (timer.waited_ns - waited_ns)
        timer.fast_meter.add(took_ns + marking_ns - tracker.marking_ns)
        if timer.fast_meter.is_open:
            tracker.measured, tracker.fast = tracker.fast, 0
    return batch


def patched_next(
    timer: FetchTimer, original: Callable[[Any], Any], sampler: WorkerWatch | None = None
) -> Callable[[Any], Any]:
    """Return a replacement for ``_BaseDataLoaderIter.__next__``."""
    trace, tracker = timer.trace, timer.tracker

    def question(self: Any) -> tuple[Callable[[Any], Any], Any, int, int, bool, int, int]:
        yielded = getattr(self, "_num_yielded", -1)
        first = FIRST if yielded == 0 else 0
        if timer.settings is None:
            timer.describe(self)  # it was made before the recording
        number, claim = id(self), self.__dict__.get(CLAIM)
        if claim is not None and claim.timer() is timer:
            owner = tracker.owner_id == number or timer.own(self, claim.source)
            left = claim.length - yielded if yielded >= 0 else -1
            return original, self, number, id(claim.source), owner, left, first
        # The length is only worth its 1 µs while a trace is recorded: no span may begin for a step without a batch.
        left = length(self) - yielded if trace.window is not None and yielded >= 0 else -1
        return original, self, number, id(sampler_of(self)), False, left, first | INFERRED

    return timed_next(timer, original, question, sampler)


def patched_iter(timer: FetchTimer, original: Callable[[Any], Any]) -> Any:
    """A replacement for ``DataLoader.__iter__``, where workers start and the loader's settings can be seen."""

    def timed_iter(self: Any) -> Any:
        if timer.armed:
            timer.starts_over(self)
        iterator = timer.iterate(original, self, self)
        noted = getattr(iterator, "__dict__", {})  # a loader may give a generator instead
        if timer.marks(self):
            noted[CLAIM] = Claim(weakref.ref(timer), timer.sources[id(self)], length(self))
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


#: Methods that Python looks up in the type: what stands for a loader has those of them that the loader has.
_LOOKED_UP_IN_THE_TYPE = (
    *("__len__", "__length_hint__", "__bool__", "__getitem__", "__setitem__", "__delitem__", "__contains__"),
    *("__reversed__", "__call__", "__enter__", "__exit__", "__hash__", "__repr__", "__str__", "__format__"),
    *("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__"),
    *("__neg__", "__pos__", "__abs__", "__invert__", "__index__", "__int__", "__float__", "__complex__"),
)
#: Operators with two sides, which Python looks up in the types of both, by the middle of their methods' names.
_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    **{name: getattr(operator, name) for name in ("add", "sub", "mul", "matmul", "truediv", "floordiv", "mod", "pow")},
    **{"lshift": operator.lshift, "rshift": operator.rshift, "divmod": divmod},
    **{"and": operator.and_, "or": operator.or_, "xor": operator.xor},
}

#: What ``_like`` made, by the type and the base. A class made in a function, and what it closes over, is not kept.
_made: WeakKeyDictionary[Any, dict[Any, Any]] = WeakKeyDictionary()


class _Proxy:
    """What stands for ``inner``: its class, its attributes, and copies and pickles of it, which are not timed."""

    __slots__ = ("__weakref__", "_inner", "_timer")

    def __init__(self, inner: Any, timer: FetchTimer) -> None:
        object.__setattr__(self, "_inner", inner)
        object.__setattr__(self, "_timer", timer)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self._inner, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._inner, name)

    @property  # type: ignore[misc]
    def __class__(self) -> type:  # what isinstance() asks beside the type
        kind: type = self._inner.__class__  # not its type: accelerate's loaders say that they are torch's
        return kind

    def __dir__(self) -> Any:
        return dir(self._inner)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self._inner.__reduce_ex__(protocol)


class WrappedIterator(_Proxy):
    """An iterator with timed fetches; everything else is the inner iterator's."""

    __slots__ = ("_progress", "source")

    def __init__(self, inner: Iterator[Any], source: object, timer: FetchTimer) -> None:
        super().__init__(inner, timer)
        # Flags of the next fetch, and batches left: a list, because setting an attribute sets the inner iterator's.
        object.__setattr__(self, "_progress", [FIRST, length(source)])
        object.__setattr__(self, "source", source)

    def __iter__(self) -> "WrappedIterator":
        """Itself, unless its iterator is another one. It is asked: some start over then, as Lightning's loader does."""
        inner = self._timer.iterate(iter, self.source, self._inner)
        return self if inner is self._inner else _timed(inner, self.source, self._timer)

    def __next__(self) -> Any:
        timer = self._timer
        if timer.next_wrapped is None:
            timer.next_wrapped = timed_next(timer, _pull, _question)
        return timer.next_wrapped(self)


def _pull(iterator: WrappedIterator) -> Any:
    iterator._progress[1] -= 1
    return next(iterator._inner)


def _question(iterator: WrappedIterator) -> tuple[Callable[[Any], Any], Any, int, int, bool, int, int]:
    progress, number, timer, source = iterator._progress, id(iterator), iterator._timer, iterator.source
    flags, left = progress
    progress[:] = 0, left - 1
    owner = timer.tracker.owner_id == number or timer.own(iterator, source)
    return next, iterator._inner, number, id(source), owner, left, flags


class WrappedLoader(_Proxy):
    """A loader whose iterators are timed; everything else is the inner loader's."""

    __slots__ = ()

    def __iter__(self) -> WrappedIterator:
        inner = self._timer.iterate(iter, self._inner, self._inner)
        return _timed(inner, self._inner, self._timer)


def wrapped(loader: Any, timer: FetchTimer) -> Any:
    """``loader`` with timed fetches; an iterator stays an iterator, and what torch's patches see stays itself."""
    if timer.claim(loader) or timer.claim_iterator(loader):
        return loader
    if hasattr(loader, "__next__"):
        return _timed(loader, loader, timer)
    kind: Any = type(loader)
    return _like(WrappedLoader, kind)(loader, timer)


def _timed(iterator: Any, source: object, timer: FetchTimer) -> WrappedIterator:
    kind: Any = type(iterator)
    made: WrappedIterator = _like(WrappedIterator, kind)(iterator, source, timer)
    return made


def _like(base: Any, kind: Any) -> Any:
    """``base`` with the name of ``kind``, a type, and the methods of it that Python looks up in the type."""
    made = _made.setdefault(kind, {})
    if base not in made:
        made[base] = _make(base, kind)
    return made[base]


def _make(base: Any, kind: Any) -> Any:
    names = {name for parent in kind.__mro__ for name in vars(parent)}

    def has(name: str) -> bool:
        return name in names and getattr(kind, name) is not None

    found = {name: _passed_on(name) for name in _LOOKED_UP_IN_THE_TYPE if has(name)}
    for name, operate in _OPERATORS.items():
        left, right, in_place = (f"__{side}{name}__" for side in ("", "r", "i"))
        found |= {method: _passed_on(method) for method in (left, in_place) if has(method)}
        if has(left) or has(right):
            found[right] = _from_the_right(operate)
    return type(getattr(kind, "__name__", ""), (base,), {"__slots__": (), **found})


def _passed_on(name: str) -> Callable[..., Any]:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        inner = self._inner
        result = getattr(type(inner), name)(inner, *map(_bare, args), **kwargs)
        return self if result is inner else result  # += on a list, and many a ``with``

    method.__name__ = name
    return method


def _from_the_right(operate: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """The operator once more, on the inner object: a list adds what is a list, and has no method to be added itself."""
    return lambda self, left: operate(_bare(left), self._inner)


def _bare(value: Any) -> Any:
    """What ``value`` stands for, or itself: a wrapped list equals a wrapped list."""
    return value._inner if issubclass(type(value), _Proxy) else value
