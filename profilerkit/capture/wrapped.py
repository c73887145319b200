"""Stands for a loader that the patches of torch do not see: iterates it with timed fetches, and is it in all else."""

import operator
from collections.abc import Callable, Iterator
from typing import Any
from weakref import WeakKeyDictionary

from profilerkit.capture.loader import FIRST, FetchTimer
from profilerkit.capture.loader_info import length
from profilerkit.capture.loader_patches import timed_next

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
