"""Stands for a loader that the patches of torch do not see: iterates it with timed fetches, and is it in all else."""

from collections.abc import Iterator
from typing import Any

from profilerkit.capture.loader import FetchTimer, length
from profilerkit.rundir.layout import EventFlag

_FIRST = int(EventFlag.FIRST)  # an enum lookup costs 0.2 µs on Python 3.11


class WrappedIterator:
    """An iterator with timed fetches; everything else is the inner iterator's."""

    __slots__ = ("__weakref__", "_flags", "_inner", "_left", "_timer", "source")

    def __init__(self, inner: Iterator[Any], source: object, timer: FetchTimer) -> None:
        self._inner = inner
        self._timer = timer
        self._flags = _FIRST
        self._left = length(source)
        self.source = source

    def __iter__(self) -> "WrappedIterator":
        return self

    def __next__(self) -> Any:
        timer = self._timer
        inner = self._inner
        if not timer.armed:
            return next(inner)
        flags, self._flags = self._flags, 0
        more = self._left != 0
        self._left -= 1
        owner = timer.tracker.owner_id == id(self) or timer.own(self, self.source)
        return timer.fetch(inner.__next__, id(self), id(self.source), owner, more, flags)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    @property  # type: ignore[misc]
    def __class__(self) -> type:  # what isinstance() asks second
        return type(self._inner)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """A copy or a pickle is one of the inner iterator, where it has one."""
        return self._inner.__reduce_ex__(protocol)


class WrappedLoader:
    """A loader whose iterators are timed; length, items, attributes and truth are the inner loader's."""

    __slots__ = ("_loader", "_timer")

    def __init__(self, loader: Any, timer: FetchTimer) -> None:
        object.__setattr__(self, "_loader", loader)
        object.__setattr__(self, "_timer", timer)

    def __iter__(self) -> WrappedIterator:
        inner = self._timer.iterate(iter, self._loader, self._loader)
        return WrappedIterator(inner, self._loader, self._timer)

    def __len__(self) -> int:
        return len(self._loader)

    def __bool__(self) -> bool:
        return bool(self._loader)

    def __getitem__(self, key: Any) -> Any:
        return self._loader[key]

    def __contains__(self, item: object) -> bool:
        return item in self._loader

    def __reversed__(self) -> Any:
        return reversed(self._loader)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self._loader, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._loader, name)

    def __eq__(self, other: object) -> Any:
        return self._loader == (other._loader if type(other) is WrappedLoader else other)

    def __hash__(self) -> int:
        return hash(self._loader)

    def __repr__(self) -> str:
        return repr(self._loader)

    @property  # type: ignore[misc]
    def __class__(self) -> type:  # what isinstance() asks second
        return type(self._loader)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """A copy or a pickle is one of the inner loader, untimed: the timer lives in this process and this run."""
        return self._loader.__reduce_ex__(protocol)


def wrapped(loader: Any, timer: FetchTimer) -> Any:
    """``loader`` with timed fetches; an iterator stays an iterator, and what torch's patches see stays itself."""
    if timer.claim(loader):
        return loader
    if hasattr(loader, "__next__"):
        return WrappedIterator(loader, loader, timer)
    return WrappedLoader(loader, timer)
