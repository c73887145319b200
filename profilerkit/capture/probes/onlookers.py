"""Whoever looks at the state in the middle of a probe sees it as it was: a checkpoint, an evaluation."""

import functools
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from profilerkit.capture.guard import attempt
from profilerkit.capture.patches import Patches


class Onlookers:
    """While the block is open, puts the state back before ``state_dict()`` and ``torch.save``.

    Attributes:
        looks: steps in which somebody looked.
    """

    def __init__(self, put_back: Callable[[], None], number: Callable[[], int]) -> None:
        """``number`` is of the open step: within one, the state is put back once."""
        self.looks = 0
        self._put_back, self._number = put_back, number
        self._seen = -1
        self._patches = Patches()

    def __enter__(self) -> "Onlookers":
        self._patches.apply(self._hang)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._patches.remove()

    def look(self) -> None:
        """Somebody is about to look."""
        if self._seen != self._number():
            self._seen = self._number()
            self.looks += 1
            attempt(self._put_back)

    def _hang(self, patches: Patches) -> None:
        torch = sys.modules["torch"]
        for owner, name in ((torch.nn.Module, "state_dict"), (torch.optim.Optimizer, "state_dict"), (torch, "save")):
            patches.patch(owner, name, self._watched)

    def _watched(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def watched(*args: Any, **kwargs: Any) -> Any:
            if self._patches.armed:
                self.look()
            return original(*args, **kwargs)

        return watched


@contextmanager
def when_gone(one: Any, call: Callable[[], None]) -> Iterator[None]:
    """While the block is open, ``call`` once nobody holds ``one`` any more; ``None`` is never gone."""
    finalizer = None if one is None else weakref.finalize(one, call)
    del one  # it would live as long as the block
    if finalizer is not None:
        finalizer.atexit = False
    try:
        yield
    finally:
        if finalizer is not None:
            finalizer.detach()
