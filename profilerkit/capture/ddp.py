"""Asks DistributedDataParallel for its own measurements when a model is gone or the block ends.

The loop pays nothing: torch measures some iterations anyway, and one answer takes 11 µs (torch 2.13).
"""

import functools
import gc
import os
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

from profilerkit.capture.guard import asked
from profilerkit.capture.patches import Patches
from profilerkit.capture.place import with_process_group
from profilerkit.model.communication import DistributedModel
from profilerkit.rundir.documents import DdpRecord, ddp_model
from profilerkit.rundir.files import write_document

#: Models asked; a program that wraps more makes them anew for each step.
_MOST_MODELS = 32
_NO_MODEL = "no DistributedDataParallel was seen"


class DdpWatch:
    """Remembers the wrapped models without keeping one alive.

    A finalizer holds the model's logger, which its model holds as well: both go together, and the logger is asked then.
    """

    name = "ddp"
    needs: tuple[str, ...] = ("torch.nn.parallel.distributed",)

    def __init__(self, path: Path) -> None:
        self._path = path
        self._finalizers: list[weakref.finalize[..., Any]] = []
        self._found: dict[int, DistributedModel] = {}
        self._pid = os.getpid()
        self._reason = _NO_MODEL

    def hang(self, patches: Patches) -> None:
        """Watch the making of models; those made before, which need a process group, are looked for once."""
        wrapper = sys.modules["torch.nn.parallel.distributed"].DistributedDataParallel
        patches.patch(wrapper, "__init__", lambda original: self._watched(original, patches))
        if with_process_group() is not None:
            for model in gc.get_referrers(wrapper, *wrapper.__subclasses__()):
                if issubclass(type(model), wrapper):
                    self._remember(model)

    def beat(self) -> None:
        """Nothing happens while the loop runs."""

    def close(self) -> None:
        """Ask the models that are left, then write."""
        for finalizer in self._finalizers:
            finalizer()
        models = tuple(self._found[number] for number in sorted(self._found))
        if not models:
            return
        try:
            write_document(self._path, DdpRecord(models=models))
            self._reason = ""
        except OSError as error:
            self._reason = f"{self._path.name} cannot be written: {error.strerror}"

    def reason(self) -> str:
        """Why there is no document."""
        return self._reason

    def _watched(self, original: Callable[..., None], patches: Patches) -> Callable[..., None]:
        @functools.wraps(original)  # launchers look at the names of its arguments
        def __init__(model: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807  what it replaces
            original(model, *args, **kwargs)
            if patches.armed:
                asked(self._remember, model)

        return __init__

    def _remember(self, model: Any) -> None:
        logger = getattr(model, "logger", None)
        number = len(self._finalizers)
        if logger is None or number >= _MOST_MODELS:
            return
        finalizer = weakref.finalize(model, asked, self._ask, number, logger)
        finalizer.atexit = False
        self._finalizers.append(finalizer)

    def _ask(self, number: int, logger: Any) -> None:
        """Keep the model's last word. Runs wherever the last reference goes: on any thread, inside a collection.

        So it takes no lock of ours; nor torch's in a forked child, where it may have been copied while held.
        """
        if os.getpid() == self._pid:
            data = logger._get_ddp_logging_data()
            self._found[number] = ddp_model(dict(data.ints_map), dict(data.strs_map))
