"""Times calls of other people's functions: of nested ones the outermost, and ``torch.compile`` never looks inside."""

import functools
import sys
import threading
import weakref
from collections.abc import Callable
from threading import get_ident
from time import perf_counter_ns
from typing import Any

from profilerkit.capture.guard import asked
from profilerkit.capture.patches import Patches
from profilerkit.capture.steps import StepTracker
from profilerkit.capture.watches import is_loaded
from profilerkit.rundir.layout import EventFlag, EventKind
from profilerkit.rundir.writer import Record

#: The value of a record from the arguments of a call.
Size = Callable[[tuple[Any, ...]], int]

_OTHER_THREAD = int(EventFlag.OTHER_THREAD)
_DYNAMO = "torch._dynamo.eval_frame"
_NOT_COMPILED: weakref.WeakSet[Callable[..., Any]] = weakref.WeakSet()


class _Here(threading.local):
    """Whether this thread is inside a call that is being timed."""

    inside = False


class TimedCalls:
    """Replacements for the functions of one kind; each call leaves one record.

    Attributes:
        seen: a call was recorded.
    """

    def __init__(
        self, kind: EventKind, record: Callable[[Record], None], tracker: StepTracker, name_id: Callable[[str], int]
    ) -> None:
        self.seen = False
        self._kind = int(kind)
        self._record = record
        self._tracker = tracker
        self._name_id = name_id
        self._here = _Here()

    def function(self, patches: Patches, original: Callable[..., Any], name: str) -> Callable[..., Any]:
        """A replacement for ``original``, whose calls are recorded as ``name``, with the value 0."""
        number, kind, record, tracker, here = self._name_id(name), self._kind, self._record, self._tracker, self._here

        def timed(*args: Any, **kwargs: Any) -> Any:
            if here.inside or not patches.armed:
                return original(*args, **kwargs)
            here.inside = True
            start_ns = perf_counter_ns()
            try:
                return original(*args, **kwargs)
            finally:
                duration_ns = perf_counter_ns() - start_ns
                here.inside = False
                flags = 0 if get_ident() == tracker.thread else _OTHER_THREAD
                record((kind, flags, number, start_ns, duration_ns, 0))
                self.seen = True

        return not_compiled(functools.update_wrapper(timed, original))

    def method(
        self,
        patches: Patches,
        original: Callable[..., Any],
        name: str,
        size: Size | None,
    ) -> Callable[..., Any]:
        """``function`` for a method of a class made by pybind11; ``size`` makes the value from its arguments, else -1.

        Where a class of the user's inherits the method, pybind11 takes any Python function for an override and calls
        it from C++, which would never end: unless the calling code has the method's name and takes ``self`` first.
        """
        number, kind, record, tracker, here = self._name_id(name), self._kind, self._record, self._tracker, self._here

        def timed(self_: Any, *args: Any, **kwargs: Any) -> Any:
            if here.inside or not patches.armed:
                return original(self_, *args, **kwargs)
            here.inside = True
            start_ns = perf_counter_ns()
            try:
                return original(self_, *args, **kwargs)
            finally:
                duration_ns = perf_counter_ns() - start_ns
                here.inside = False
                value = None if size is None else asked(size, args)
                flags = 0 if get_ident() == tracker.thread else _OTHER_THREAD
                record((kind, flags, number, start_ns, duration_ns, value if type(value) is int else -1))
                self.seen = True

        timed.__code__ = timed.__code__.replace(co_name=original.__name__)
        return not_compiled(functools.update_wrapper(timed, original))


def not_compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function``, which ``torch.compile`` calls and never traces: a graph breaks where it would without it."""
    function._torchdynamo_disable = True  # type: ignore[attr-defined]  # what torch._dynamo.disable() sets
    _NOT_COMPILED.add(function)
    _skip(function)
    return function


def skip_not_compiled() -> None:
    """Have a dynamo that was loaded meanwhile know of them: it would compile the frame of one that it did not call."""
    for function in list(_NOT_COMPILED):
        _skip(function)


def _skip(function: Callable[..., Any]) -> None:
    if is_loaded(_DYNAMO):
        sys.modules[_DYNAMO].skip_code(function.__code__)
