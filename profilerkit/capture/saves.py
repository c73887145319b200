"""Watches checkpoints being written."""

import sys
from collections.abc import Callable
from typing import Any

from profilerkit.capture.calls import TimedCalls
from profilerkit.capture.patches import Patches
from profilerkit.capture.steps import StepTracker
from profilerkit.capture.watches import is_loaded
from profilerkit.rundir.layout import EventKind
from profilerkit.rundir.writer import Record

#: Module, attribute, and the name under which its calls are recorded. A function stands in the module that defines it
#: and in the package that passes it on. Frameworks import ``save_file`` by name before a block starts;
#: ``serialize_file``, which it finds in its module, is seen all the same.
_FUNCTIONS = (
    ("torch", "save", "torch.save"),
    ("torch.serialization", "save", "torch.save"),
    ("safetensors.torch", "save_file", "safetensors.torch.save_file"),
    ("safetensors.torch", "serialize_file", "safetensors.torch.save_file"),
    ("torch.distributed.checkpoint", "save", "torch.distributed.checkpoint.save"),
    ("torch.distributed.checkpoint", "async_save", "torch.distributed.checkpoint.async_save"),
    ("torch.distributed.checkpoint.state_dict_saver", "save", "torch.distributed.checkpoint.save"),
    ("torch.distributed.checkpoint.state_dict_saver", "async_save", "torch.distributed.checkpoint.async_save"),
)


class SaveWatch:
    """Records one SAVE per call; of ``async_save`` the part that keeps its caller waiting."""

    name = "saves"
    needs: tuple[str, ...] = ("torch", "torch.serialization")

    def __init__(self, record: Callable[[Record], None], tracker: StepTracker, name_id: Callable[[str], int]) -> None:
        self._calls = TimedCalls(EventKind.SAVE, record, tracker, name_id)
        self._left = list(_FUNCTIONS)
        self._timed: dict[int, Callable[..., Any]] = {}
        self._patches: Patches | None = None

    def hang(self, patches: Patches) -> None:
        """Patch what is loaded by now."""
        self._patches = patches
        self._patch_loaded(patches)

    def beat(self) -> None:
        """Patch what has been loaded since."""
        if self._patches is not None and any(is_loaded(module) for module, *_ in self._left):
            self._patches.hang(self._patch_loaded)

    def _patch_loaded(self, patches: Patches) -> None:
        loaded = [entry for entry in self._left if is_loaded(entry[0])]
        self._left = [entry for entry in self._left if entry not in loaded]
        for module, attribute, name in loaded:
            self._patch(patches, sys.modules[module], attribute, name)

    def _patch(self, patches: Patches, owner: Any, attribute: str, name: str) -> None:
        if attribute in owner.__dict__:
            patches.patch(owner, attribute, lambda original: self._replaced(patches, original, name))

    def _replaced(self, patches: Patches, original: Callable[..., Any], name: str) -> Callable[..., Any]:
        """The same replacement wherever the same function stands: it is pickled by its name."""
        if id(original) not in self._timed:
            self._timed[id(original)] = self._calls.function(patches, original, name)
        return self._timed[id(original)]

    def close(self) -> None:
        """Nothing is left to do."""

    def reason(self) -> str:
        """Why no save was seen."""
        if self._calls.seen:
            return ""
        return "no save was seen; a save function imported by name before the block cannot be watched"
