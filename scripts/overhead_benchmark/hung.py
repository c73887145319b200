"""What a recording hung into torch and Python: taken out, put back, and timed where it hangs."""

import functools
import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter_ns
from typing import Any, NamedTuple

#: What a step of the measured loop calls of all that is replaced.
_IN_A_STEP = ("__next__", "_engine_run_backward")

#: ``Module.eval``: to replace it again and again would void what Python knows of all modules' classes, which a
#: recording does once.
_STAYS = ("eval",)


class _Replaced(NamedTuple):
    """An attribute that a recording replaced, and what makes the replacement of the original."""

    owner: Any
    name: str
    before: Any
    ours: Any
    make: Callable[[Any], Any]


class Watch:
    """Adds up the time that hooks take: from a call to that of the original inside of it, and back.

    Attributes:
        spent_ns: until now, with what the watch itself takes.
    """

    def __init__(self) -> None:
        self.spent_ns = 0
        self._entered_ns = self._left_ns = self._began_ns = 0

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """``function``, watched: what it takes beside the original is counted."""

        def watched(*args: Any, **kwargs: Any) -> Any:
            start_ns = perf_counter_ns()
            try:
                return function(*args, **kwargs)
            finally:
                self.spent_ns += perf_counter_ns() - self._left_ns + self._entered_ns - start_ns

        return functools.update_wrapper(watched, function)

    def inside(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """The original, which says when it is called and when it returns."""

        def called(*args: Any, **kwargs: Any) -> Any:
            self._entered_ns = perf_counter_ns()
            try:
                return original(*args, **kwargs)
            finally:
                self._left_ns = perf_counter_ns()

        return functools.update_wrapper(called, original)

    def begins(self, *_given: Any) -> None:
        """Called before the hooks of a list."""
        self._began_ns = perf_counter_ns()

    def ends(self, *_given: Any) -> None:
        """Called after them."""
        self.spent_ns += perf_counter_ns() - self._began_ns


class Hung:
    """What a recording hung into torch and Python, to be taken out and put back between two steps."""

    def __init__(self) -> None:
        from torch.optim import optimizer  # noqa: PLC0415 - as the rest of torch, in the measured program alone

        self._lists: list[Any] = [optimizer._global_optimizer_pre_hooks, optimizer._global_optimizer_post_hooks]
        self._bare = [dict(found) for found in self._lists]
        self._with: list[dict[Any, Any]] = []
        self._collecting: list[list[Any]] = [list(gc.callbacks), []]
        self._attributes: list[_Replaced] = []

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Attributes that are replaced meanwhile are remembered."""
        from profilerkit.capture.patches import Patches  # noqa: PLC0415 - the peers' environments do not have it

        replace = Patches.patch

        def patch(patches: Any, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
            before = owner.__dict__[name]
            replace(patches, owner, name, make)
            self._attributes.append(_Replaced(owner, name, before, owner.__dict__[name], make))

        Patches.patch = patch  # type: ignore[method-assign]
        try:
            yield
        finally:
            Patches.patch = replace  # type: ignore[method-assign]

    def settled(self) -> None:
        """All is hung by now."""
        self._with = [dict(found) for found in self._lists]
        self._collecting[1] = list(gc.callbacks)

    def put(self, *, back: bool) -> None:
        """Everything back, or out, but for what stays."""
        for replaced in self._attributes:
            if replaced.name not in _STAYS:
                setattr(replaced.owner, replaced.name, replaced.ours if back else replaced.before)
        for found, hooks in zip(self._lists, self._with if back else self._bare, strict=True):
            found.clear()
            found.update(hooks)
        gc.callbacks[:] = self._collecting[back]

    def put_watched(self, watch: Watch, *, back: bool) -> None:
        """``put``, with a watch around what a step calls, and inside of it around what that calls of torch's."""
        for replaced in self._attributes:
            if replaced.name in _IN_A_STEP:
                inner = watch.inside(replaced.before)
                ours = replaced.make(inner) if back else inner
                setattr(replaced.owner, replaced.name, watch.around(ours))
        for found, hooks in zip(self._lists, self._with if back else self._bare, strict=True):
            found.clear()
            found.update({"begins": watch.begins, **hooks, "ends": watch.ends})
