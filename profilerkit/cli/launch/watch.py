"""Waits in a process below ``profilerkit run`` for the first sign of training, then records until the program ends."""

import os
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

from profilerkit.capture.environment import in_kernel
from profilerkit.capture.guard import Guard
from profilerkit.capture.patches import uncounted
from profilerkit.capture.profiler import profile
from profilerkit.capture.settings import read_options
from profilerkit.capture.start_up import Imports, note
from profilerkit.cli.console import Console


class Watch:
    """Patches and a hook in torch that are taken out by the first call of any.

    A launcher imports torch and never trains, so the import alone starts nothing.
    """

    def __init__(self, begin: Callable[[], object]) -> None:
        self._begin = begin
        self._is_over = False
        self._undo: list[Callable[[], None]] = []

    def install(self) -> None:
        """Wait for a DataLoader to be iterated, a backward pass or an optimizer step."""
        data = sys.modules["torch.utils.data.dataloader"]
        self._patch(data.DataLoader, "__iter__")
        self._patch(data._BaseDataLoaderIter, "__init__")  # a loader that makes iterators in a way of its own
        self._patch(sys.modules["torch.autograd"], "_engine_run_backward")
        hook = sys.modules["torch.optim.optimizer"].register_optimizer_step_pre_hook(self._optimizer_steps)
        self._undo.append(hook.remove)

    def _patch(self, owner: Any, name: str) -> None:
        original = owner.__dict__[name]

        def first(*args: Any, **kwargs: Any) -> Any:
            if not self._is_over:
                is_outermost = owner.__dict__[name] is first
                self._sign()
                if is_outermost:  # what recording put there counts this call too
                    return getattr(owner, name)(*args, **kwargs)
            return original(*args, **kwargs)

        def restore() -> None:
            if owner.__dict__[name] is first:
                setattr(owner, name, original)

        setattr(owner, name, uncounted(first))
        self._undo.append(restore)

    def _optimizer_steps(self, _optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if not self._is_over:
            self._sign()

    def _sign(self) -> None:
        self._is_over = True
        while self._undo:
            self._undo.pop()()
        self._begin()


def watch(imports: Imports) -> None:
    """Wait for this process to train; called when torch has been imported, with what timed that."""
    guard = Guard("profilerkit run")
    guard.call(note, imports)
    guard.call(import_module, "profilerkit.capture.current")  # 0.2 s that would else be in the first step
    guard.call(Watch(lambda: guard.call(_record)).install)


def _record() -> None:
    """Record from here to the end of the program, unless a profile block does, or this is a worker of a DataLoader."""
    order = read_options(os.environ)
    if order is None or sys.modules["torch.utils.data"].get_worker_info() is not None:
        return
    recording = profile()
    recording.record_until_exit()
    if os.environ.get("RANK", "0") == "0" and recording.directory is not None and not in_kernel():
        name = min(str(recording.directory), os.path.relpath(recording.directory), key=len)
        Console(quiet=order.quiet).note(
            f"profilerkit: recording to {name}; for a report before it ends: profilerkit analyze {name}"
        )
