"""Watches the calls that wait for the device by name; those of a tensor's methods are left to the deep window."""

import sys
from collections.abc import Callable, Iterator
from typing import Any

from profilerkit.capture.calls import TimedCalls
from profilerkit.capture.cuda import cuda_in_use
from profilerkit.capture.patches import Patches
from profilerkit.capture.steps import StepTracker
from profilerkit.rundir.layout import EventKind
from profilerkit.rundir.writer import Record

#: Replacing ``torch.Tensor.item`` or ``.tolist`` adds graph breaks to compiled code, and ``__torch_function__`` of a
#: tensor's subclass is handed the replacement instead of the method it knows (torch 2.13).
_METHODS_ARE_LEFT = "methods of a tensor cannot be watched without changing compiled code: see the traced window"


class SyncWatch:
    """Records one SYNC per call of what waits for the device, from when CUDA is in use.

    ``torch.cuda.synchronize`` and ``torch.accelerator.synchronize`` are seen one call below, where ``torch.compile``,
    which knows them by identity, does not look.
    """

    name = "syncs"
    needs: tuple[str, ...] = ("torch", "torch.cuda")

    def __init__(
        self,
        record: Callable[[Record], None],
        tracker: StepTracker,
        name_id: Callable[[str], int],
        in_use: Callable[[], bool] | None = None,
    ) -> None:
        """``in_use`` says whether CUDA is."""
        self._calls = TimedCalls(EventKind.SYNC, record, tracker, name_id)
        self._in_use = in_use or cuda_in_use
        self._patches: Patches | None = None
        self._is_hung = False

    def hang(self, patches: Patches) -> None:
        """Patch, if CUDA is in use."""
        self._patches = patches
        if not self._is_hung and self._in_use():
            self._is_hung = True
            for owner, attribute, name in _functions():
                if attribute in owner.__dict__:
                    self._patch(patches, owner, attribute, name)

    def _patch(self, patches: Patches, owner: Any, attribute: str, name: str) -> None:
        patches.patch(owner, attribute, lambda original: self._calls.function(patches, original, name))

    def beat(self) -> None:
        """Patch once CUDA is in use."""
        if self._patches is not None and not self._is_hung and self._in_use():
            self._patches.hang(self.hang)

    def close(self) -> None:
        """Nothing is left to do."""

    def reason(self) -> str:
        """Why no synchronisation was seen."""
        if not self._is_hung:
            return "CUDA is not in use"
        return "" if self._calls.seen else f"no synchronize() was called; {_METHODS_ARE_LEFT}"


def _functions() -> Iterator[tuple[Any, str, str]]:
    """Owner, attribute, and the name under which its calls are recorded."""
    torch = sys.modules["torch"]
    yield torch._C, "_cuda_synchronize", "torch.cuda.synchronize"
    yield torch._C, "_accelerator_synchronizeDevice", "torch.accelerator.synchronize"
    yield torch.cuda.Stream, "synchronize", "torch.cuda.Stream.synchronize"
    yield torch.cuda.Event, "synchronize", "torch.cuda.Event.synchronize"


class CopyWatch:
    """Says why copies to the device are not watched: only a tensor's methods make them."""

    name = "copies"
    needs: tuple[str, ...] = ()

    def hang(self, patches: Patches) -> None:
        """Nothing is patched."""

    def beat(self) -> None:
        """Nothing to do."""

    def close(self) -> None:
        """Nothing to do."""

    def reason(self) -> str:
        """Why nothing is seen."""
        return _METHODS_ARE_LEFT
