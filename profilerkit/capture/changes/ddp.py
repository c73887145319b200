"""Change how models on several ranks exchange their gradients."""

import sys
from collections.abc import Callable
from typing import Any

from profilerkit.capture.changes.making import SETTLED, Changes
from profilerkit.capture.timed_calls import not_compiled


def ddp_models(changes: Changes, wanted: dict[str, Any]) -> None:
    """Change the arguments of ``DistributedDataParallel``, and how its gradients are reduced."""
    ddp = sys.modules["torch"].nn.parallel.DistributedDataParallel
    no_sync = _NoSync(changes) if "no_sync" in wanted else None

    def made(model: Any) -> None:
        if no_sync is not None:
            changes.attempt("no_sync", no_sync.watch, model)
        if "comm_hook" in wanted:
            handle = model.register_forward_pre_hook(not_compiled(lambda *_: compress()))

            def compress() -> None:
                handle.remove()
                changes.attempt("comm_hook", _compress, changes, model, wanted["comm_hook"])

    keywords = {name: value for name, value in wanted.items() if name not in ("no_sync", "comm_hook")}
    changes.in_calls(ddp, keywords, after=made)


def _compress(changes: Changes, model: Any, how: str) -> str | None:
    """Have gradients reduced in half precision."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    if model._comm_hooks:
        return "the model has a communication hook already"
    model.register_comm_hook(None, getattr(default_hooks, f"{how}_compress_hook"))
    changes.found("comm_hook")
    return None


class _NoSync:
    """Reduces gradients once per optimizer step, where the first steps show several micro-batches in each."""

    def __init__(self, changes: Changes) -> None:
        self._changes = changes
        self._model: Any = None
        self._length = self._forwards = self._backwards = self._steps = 0
        self._last: tuple[int, int] | None = None
        self._owes = False

    def watch(self, model: Any) -> str | None:
        """Follow a model; of several none is changed."""
        patches, optim = self._changes.patches, sys.modules["torch.optim.optimizer"]
        if self._model is not None:
            self._model = False
            return "the program has several models in DistributedDataParallel"
        self._model = model
        patches.on_remove(model.register_forward_pre_hook(not_compiled(self._forward_hook())).remove)
        stepping = not_compiled(lambda *_: self._stepping())
        patches.hang(optim._global_optimizer_pre_hooks, stepping, at_once=True)
        patches.patch(sys.modules["torch.autograd"], "_engine_run_backward", self._counted)
        return None

    def _counted(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            self._backwards += 1
            return original(*args, **kwargs)

        return not_compiled(counted)

    def _forward_hook(self) -> Callable[..., None]:
        torch = sys.modules["torch"]

        def forward(model: Any, *_: Any) -> None:
            if self._model is not model or not (model.training and torch.is_grad_enabled()):
                return
            if not model.require_backward_grad_sync and not self._owes:
                self._changes.refuse("no_sync", "the program uses no_sync already")
                self._model = False
                return
            self._forwards += 1
            if self._length:
                self._changes.found("no_sync", once=True)
                self._owes = self._forwards < self._length
                model.require_backward_grad_sync = not self._owes

        return forward

    def _stepping(self) -> None:
        if not self._model or not self._forwards:
            return
        if self._owes:  # fewer micro-batches than in other steps
            self._reduce()
        counts = (self._forwards, self._backwards)
        self._forwards = self._backwards = 0
        self._steps += 1
        if not self._length and counts == self._last and counts[0] == counts[1] > 1:
            self._length = counts[0]
        elif not self._length and self._steps == 2 * SETTLED:
            self._changes.refuse("no_sync", f"a step has {counts[0]} forward and {counts[1]} backward passes")
            self._model = False
        self._last = counts

    def _reduce(self) -> None:
        self._owes, self._model.require_backward_grad_sync = False, True
        group = self._model.process_group
        for value in self._model.parameters():
            if value.grad is not None:
                sys.modules["torch.distributed"].all_reduce(value.grad, group=group)
                value.grad /= group.size()
