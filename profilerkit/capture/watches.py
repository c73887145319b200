"""What is watched beside the steps themselves: each kind of thing is one watch, which fails alone."""

import sys
from collections.abc import Sequence
from typing import Protocol

from profilerkit.capture.guard import Guard
from profilerkit.capture.patches import Patches


class Watch(Protocol):
    """One kind of thing that is watched while a block runs, such as saves, collectives or compiles.

    Attributes:
        name: of the feature in ``meta.json``.
        needs: modules that must be loaded completely before ``hang``.
    """

    name: str
    needs: tuple[str, ...]

    def hang(self, patches: Patches) -> None:
        """Patch what is watched; called once, on any thread."""

    def beat(self) -> None:
        """Once per second or more often, on the writer thread, once hung."""

    def close(self) -> None:
        """The block is over and the patches are out; called on the training thread if it was hung."""

    def reason(self) -> str:
        """Why nothing was seen though it was hung; empty when something was."""


class Watches:
    """All watches of one session. A failure in one switches that one off."""

    def __init__(self, watches: Sequence[Watch]) -> None:
        self._patches = Patches()
        self._entries = [(watch, Guard(f"profilerkit's watch on {watch.name}")) for watch in watches]
        self._hung: set[str] = set()

    def install(self) -> None:
        """Hang what can be hung by now; cheap enough for once per second."""
        for watch, guard in self._entries:
            if watch.name not in self._hung and is_loaded(*watch.needs):
                self._hung.add(watch.name)
                guard.call(self._patches.hang, watch.hang)

    def beat(self) -> None:
        """Let each of them do what it does once per second."""
        for watch, guard in self._entries:
            if watch.name in self._hung and guard.failure is None:
                guard.call(watch.beat)

    def remove(self) -> None:
        """Leave torch and Python as they were."""
        self._patches.remove()

    def remove_in_child(self) -> None:
        """``remove`` in a forked child."""
        self._patches.remove_in_child()

    def close(self) -> None:
        """End them all."""
        for watch, guard in self._entries:
            if watch.name in self._hung and guard.failure is None:
                guard.call(watch.close)

    def reasons(self) -> dict[str, str]:
        """Why each saw nothing, or failed; empty text for those that saw something."""
        return {watch.name: self._reason(watch, guard) for watch, guard in self._entries}

    def _reason(self, watch: Watch, guard: Guard) -> str:
        if watch.name not in self._hung:
            missing = next((name for name in watch.needs if not is_loaded(name)), "")
            return f"{missing} was not imported"
        said = guard.call(watch.reason) if guard.failure is None else None
        return guard.failure or said or ""


def is_loaded(*names: str) -> bool:
    """Whether all these modules have been imported and have finished loading."""
    for name in names:
        module = sys.modules.get(name)
        if module is None or getattr(getattr(module, "__spec__", None), "_initializing", False):
            return False
    return True
