"""Watch what happens beside the steps: each kind of event has a watch, and one that fails switches only itself off."""

import sys
from collections.abc import Sequence

from profilerkit.capture.guard import Guard
from profilerkit.capture.patches import Patches


class Watch:
    """One kind of event that is watched while a block runs, such as saves, collectives or compilations.

    Attributes:
        name: of the feature in ``meta.json``.
        needs: modules that must be loaded completely before ``install``.
        not_ready: why it is not installed although they are.
        unseen: why nothing was seen although it is installed; empty where that needs no reason.
        seen: something was recorded.
    """

    name = ""
    needs: tuple[str, ...] = ()
    not_ready = ""
    unseen = ""
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
        self._patches = Patches()
        self._entries = [(watch, Guard(f"profilerkit's watch on {watch.name}")) for watch in watches]
        self._installed: set[str] = set()

    def install(self) -> None:
        """Install what can be by now; cheap enough for once per second."""
        for watch, guard in self._entries:
            if watch.name not in self._installed and is_loaded(*watch.needs) and guard.call(watch.is_ready):
                self._installed.add(watch.name)
                guard.call(self._patches.apply, watch.install)

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

    def remove(self) -> None:
        """Leave torch and Python as they were."""
        self._patches.remove()

    def remove_in_child(self) -> None:
        """``remove`` in a forked child."""
        self._patches.remove_in_child()

    def reasons(self) -> dict[str, str]:
        """Return why each saw nothing, or failed; empty text for those that saw something."""
        return {watch.name: self._reason(watch, guard) for watch, guard in self._entries}

    def _reason(self, watch: Watch, guard: Guard) -> str:
        if guard.failure is None and watch.name not in self._installed:
            missing = next((name for name in watch.needs if not is_loaded(name)), "")
            return f"{missing} was not imported" if missing else watch.not_ready
        said = guard.call(watch.reason) if guard.failure is None else None
        return guard.failure or said or ""


def is_loaded(*names: str) -> bool:
    """Return whether all these modules have been imported and have finished loading."""
    for name in names:
        module = sys.modules.get(name)
        if module is None or getattr(getattr(module, "__spec__", None), "_initializing", False):
            return False
    return True
