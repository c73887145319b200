"""Replaces attributes of other modules while a block runs, and puts them back at its end."""

import functools
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import FunctionType
from typing import Any, TypeVar

_Function = TypeVar("_Function", bound=Callable[..., Any])

#: Before the file of a replacement. ``warnings`` counts no frame of a file with "importlib" and "_bootstrap" in its
#: name (``warnings._is_internal_frame`` of CPython 3.11 to 3.14): a warning names the line that it names without us.
UNCOUNTED = "importlib_bootstrap:"


def uncounted(function: _Function) -> _Function:
    """Return the function, with a frame that ``warnings`` does not count for its ``stacklevel``.

    For none that compiled code calls: Dynamo follows a function by its file.
    """
    if isinstance(function, FunctionType):
        code = function.__code__
        function.__code__ = code.replace(co_filename=f"{UNCOUNTED}{code.co_filename}")
    return function


@dataclass(slots=True)
class _Patch:
    """One attribute that was replaced."""

    owner: Any
    name: str
    original: Any
    ours: Any

    def restore(self) -> None:
        """Put the original back, unless somebody has patched on top: then ours stays below, passing through."""
        if self.owner.__dict__.get(self.name) is self.ours:
            setattr(self.owner, self.name, self.original)


class Patches:
    """What was hung into torch and Python, and how it comes out again. May be used from any thread.

    Attributes:
        armed: false once removed, and in forked children; a replacement that stayed below another one asks for it.
    """

    def __init__(self) -> None:
        self.armed = True
        self._patches: list[_Patch] = []
        self._undo: list[Callable[[], object]] = []
        self._lock = threading.Lock()

    def apply(self, work: Callable[["Patches"], object]) -> None:
        """Run ``work``, which calls ``patch`` and ``on_remove``, unless everything has been removed."""
        with self._lock:
            if self.armed:
                work(self)

    def patch(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        """Replace ``owner.name`` by what ``make`` returns for it."""
        original = owner.__dict__[name]
        ours = make(original)
        self._patches.append(_Patch(owner, name, original, ours))
        setattr(owner, name, ours)

    def extend(self, callbacks: list[Any], *added: Any) -> None:
        """Add what torch or Python keeps a list of, unless it is there; at the end it is taken out."""
        for callback in added:
            if callback not in callbacks:
                callbacks.append(callback)
                self.on_remove(functools.partial(_take_out, callbacks, callback))

    def on_remove(self, undo: Callable[[], object]) -> None:
        """Call ``undo`` at the end, for what torch itself keeps a list of."""
        self._undo.append(undo)

    def remove(self) -> None:
        """Leave everything as it was."""
        with self._lock:
            self.armed = False
            # Nothing is forgotten before it is done: an interrupt may come between, and this be called again.
            while self._patches:
                self._patches[-1].restore()
                self._patches.pop()
            while self._undo:
                self._undo[-1]()
                self._undo.pop()

    def remove_in_child(self) -> None:
        """``remove`` in a forked child, where the lock may have been copied while held."""
        self._lock = threading.Lock()
        self.remove()


def _take_out(callbacks: list[Any], callback: Any) -> None:
    if callback in callbacks:
        callbacks.remove(callback)
