"""Replace attributes of other modules while a block runs, and restore them; what is watched so is a watch."""

import functools
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any, TypeVar

from profilerkit.capture.guard import Guard

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


def nothing(*_given: Any) -> None:
    """Do nothing: stays in a table of torch's hooks in place of one of ours."""


@dataclass(slots=True)
class _Patch:
    owner: Any
    name: str
    original: Any
    ours: Any

    def restore(self) -> None:
        """Put the original back, unless somebody has patched on top: then ours stays below, passing through."""
        if self.owner.__dict__.get(self.name) is self.ours:
            setattr(self.owner, self.name, self.original)


class Patches:
    """Replace attributes of torch and Python, and restore them. May be used from any thread."""

    def __init__(self) -> None:
        #: False once removed, and in forked children; a replacement that stayed below another one asks for it.
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

        def take_out(callback: Any) -> None:
            if callback in callbacks:
                callbacks.remove(callback)

        for callback in added:
            if callback not in callbacks:
                callbacks.append(callback)
                self.on_remove(functools.partial(take_out, callback))

    def hang(self, table: Any, hook: Callable[..., Any], *, at_once: bool = False) -> bool:
        """Put a hook into an ``OrderedDict`` of torch's; false where a walk of the table may be under way.

        A walk raises when an entry comes or goes before its last one. So ours comes into an empty table, goes from one
        that has no other, and else takes, and leaves, a place in which there is ``nothing``. Between a comparison and
        what follows from it no other thread runs (CPython 3.11 to 3.13). ``at_once`` says that nobody walks now.
        """
        key = next((key for key in list(table) if table.get(key) is nothing), None)
        if key is None:
            key = sys.modules["torch.utils.hooks"].RemovableHandle(table).id
            if table and not at_once:
                return False
        table[key] = hook

        def take_out() -> None:
            if table == {key: hook}:
                del table[key]
            else:
                table[key] = nothing

        self.on_remove(take_out)
        return True

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


class Watch:
    """One kind of event that is watched while a block runs, such as saves, collectives or compilations."""

    name = ""
    needs: tuple[str, ...] = ()
    not_ready = ""  #: why it is not installed although they are
    unseen = ""  #: why nothing was seen although it is installed; empty where that needs no reason
    seen = False

    def is_ready(self) -> bool:
        """Return whether it can be installed, once its modules are loaded."""
        return True

    def install(self, patches: Patches) -> None:
        """Patch what is watched; called once, on any thread."""

    def beat(self) -> None:
        """Do what is due about once per second, on the writer thread, once installed."""

    def close(self) -> None:
        """Finish, on the training thread, after the patches were removed; called if it was installed."""

    def reason(self) -> str:
        """Return why nothing was seen though it is installed; empty when something was."""
        return "" if self.seen else self.unseen


class Watches:
    """All watches of one session. A failure in one switches that one off."""

    def __init__(self, watches: Sequence[Watch]) -> None:
        self.patches = Patches()
        self._entries = [(watch, Guard(f"profilerkit's watch on {watch.name}")) for watch in watches]
        self._installed: set[str] = set()

    def install(self) -> None:
        """Install what can be by now; cheap enough for once per second."""
        for watch, guard in self._entries:
            if watch.name not in self._installed and is_loaded(*watch.needs) and guard.call(watch.is_ready):
                self._installed.add(watch.name)
                guard.call(self.patches.apply, watch.install)

    def _each_working(self, method: str) -> None:
        for watch, guard in self._entries:
            if watch.name in self._installed and guard.failure is None:
                guard.call(getattr(watch, method))

    def beat(self) -> None:
        """Let each of them do what it does once per second."""
        self._each_working("beat")

    def close(self) -> None:
        """End them all."""
        self._each_working("close")

    def reasons(self) -> dict[str, str]:
        """Return why each saw nothing, or failed; empty text for those that saw something."""
        found = {}
        for watch, guard in self._entries:
            missing = next((name for name in watch.needs if not is_loaded(name)), "")
            if guard.failure is not None or watch.name in self._installed:
                said = guard.call(watch.reason) if guard.failure is None else None
                found[watch.name] = guard.failure or said or ""
            else:
                found[watch.name] = f"{missing} was not imported" if missing else watch.not_ready
        return found


def is_loaded(*names: str) -> bool:
    """Return whether all these modules have been imported and have finished loading."""
    for name in names:
        module = sys.modules.get(name)
        if module is None or getattr(getattr(module, "__spec__", None), "_initializing", False):
            return False
    return True
