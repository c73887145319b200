"""Asks torch's flight recorder which collectives this process issued, at the end of a window or of the run only.

The recorder is on by default (torch 2.13; gloo and NCCL) and keeps the last 2,000 collectives, also past
``destroy_process_group``. Asking for them holds the GIL for 33-48 ms, which is why nobody asks while steps are timed.
"""

import functools
import gc
import os
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

from profilerkit.capture.guard import attempt
from profilerkit.capture.patches import Patches, Watch
from profilerkit.capture.place import joined, with_process_group
from profilerkit.rundir.ddp import DdpModel, DdpRecord, ddp_model
from profilerkit.rundir.files import write_document
from profilerkit.rundir.flight import flight_of

#: The recorder of all back-ends but NCCL, and NCCL's, which only CUDA builds have.
_DUMPS = ("_dump_fr_trace_json", "_dump_nccl_trace_json")


def dump(path: Path, since_unix_ns: int = 0) -> str:
    """Write what the recorder holds to ``path``; the reason when there is nothing, else an empty string.

    Args:
        path: of the document; written beside and renamed.
        since_unix_ns: what was issued before does not count.
    """
    bindings: Any = sys.modules.get("torch._C._distributed_c10d")
    if bindings is None:
        return "torch.distributed is not available"
    known = [ask for name in _DUMPS if (ask := getattr(bindings, name, None)) is not None]
    if not known:
        return "this version of torch has no flight recorder"
    found = flight_of([ask() for ask in known], since_unix_ns)
    if not found.entries:
        return "no collective was recorded: there was no process group of several ranks, or TORCH_FR_BUFFER_SIZE is 0"
    try:
        write_document(path, found)
    except OSError as error:
        return f"{path.name} cannot be written: {error.strerror}"
    return ""


class FlightWatch(Watch):
    """Dumps the flight recorder when the block ends.

    Attributes:
        joined: rank and size of the process group that was initialised while the block ran, or before.
    """

    name = "flight"
    needs = ("torch.distributed",)
    unseen = "it is asked at the end of the block"

    def __init__(self, path: Path, since_unix_ns: int) -> None:
        """``path`` is the document's; collectives of before ``since_unix_ns`` are not the block's."""
        self.joined: tuple[int, int] | None = None
        self._path = path
        self._since_unix_ns = since_unix_ns

    def beat(self) -> None:
        """Look for a process group, which may be gone at the end of the block."""
        if self.joined is None:
            self.joined = joined()

    def close(self) -> None:
        """Write what the recorder holds."""
        self.beat()
        self.unseen = dump(self._path, self._since_unix_ns)


#: Models asked; a program that wraps more makes them anew for each step.
_MOST_MODELS = 32


class DdpWatch(Watch):
    """Remembers the wrapped models without keeping one alive.

    A finalizer holds the model's logger, which its model holds as well: both go together, and the logger is asked then.
    """

    name = "ddp"
    needs = ("torch.nn.parallel.distributed",)
    unseen = "no DistributedDataParallel was seen"

    def __init__(self, path: Path) -> None:
        self._path = path
        self._finalizers: list[weakref.finalize[..., Any]] = []
        self._found: dict[int, DdpModel] = {}
        self._pid = os.getpid()

    def install(self, patches: Patches) -> None:
        """Watch the making of models; those made before, which need a process group, are looked for once."""
        wrapper = sys.modules["torch.nn.parallel.distributed"].DistributedDataParallel
        patches.patch(wrapper, "__init__", lambda original: self._watched(original, patches))
        if with_process_group() is not None:
            for model in gc.get_referrers(wrapper, *wrapper.__subclasses__()):
                if issubclass(type(model), wrapper):
                    self._remember(model)

    def close(self) -> None:
        """Ask the models that are left, then write."""
        for finalizer in self._finalizers:
            finalizer()
        models = tuple(self._found[number] for number in sorted(self._found))
        if not models:
            return
        try:
            write_document(self._path, DdpRecord(models=models))
            self.seen = True
        except OSError as error:
            self.unseen = f"{self._path.name} cannot be written: {error.strerror}"

    def _watched(self, original: Callable[..., None], patches: Patches) -> Callable[..., None]:
        @functools.wraps(original)  # launchers look at the names of its arguments
        def __init__(model: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807  what it replaces
            original(model, *args, **kwargs)
            if patches.armed:
                attempt(self._remember, model)

        return __init__

    def _remember(self, model: Any) -> None:
        logger = getattr(model, "logger", None)
        number = len(self._finalizers)
        if logger is None or number >= _MOST_MODELS:
            return
        finalizer = weakref.finalize(model, attempt, self._ask, number, logger)
        finalizer.atexit = False
        self._finalizers.append(finalizer)

    def _ask(self, number: int, logger: Any) -> None:
        """Keep the model's last word. Runs wherever the last reference goes: on any thread, inside a collection.

        So it takes no lock of ours; nor torch's in a forked child, where it may have been copied while held.
        """
        if os.getpid() == self._pid:
            data = logger._get_ddp_logging_data()
            self._found[number] = ddp_model(dict(data.ints_map), dict(data.strs_map))
