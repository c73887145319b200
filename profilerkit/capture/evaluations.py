"""Watches models being evaluated, by the mode that they are in: also where no loader and no phase tells."""

import functools
import sys
import weakref
from collections.abc import Callable
from threading import get_ident
from time import perf_counter_ns
from typing import Any

from profilerkit.capture.calls import traced_through
from profilerkit.capture.guard import asked
from profilerkit.capture.patches import Patches
from profilerkit.capture.steps import StepTracker
from profilerkit.rundir.layout import EventKind
from profilerkit.rundir.writer import Record

_EVALUATION = int(EventKind.EVALUATION)
_MODULE = "torch.nn.modules.module"
#: Modules that are remembered as long as none of them trains again (a choice): a model, its average, a few metrics.
_MOST_MODULES = 8


class EvaluationWatch:
    """Records one EVALUATION from ``eval()`` of a model that was training to its ``train()``, on the training thread.

    ``Module.train`` calls itself for each part of a model, and some loops call it in every step: it is replaced only
    from an ``eval()`` on, until the model trains again or, where it does not, for a step and a second at most.
    """

    name = "evaluations"
    needs: tuple[str, ...] = ("torch", _MODULE)

    def __init__(self, record: Callable[[Record], None], tracker: StepTracker) -> None:
        self._record = record
        self._tracker = tracker
        self._left: list[tuple[weakref.ref[Any], int]] = []  # those that train no longer, and since when
        self._steps = 0  # those made before the first of them
        self._until: Patches | None = None  # the replacement of ``train``
        self._seen = False

    def hang(self, patches: Patches) -> None:
        """Hear of ``eval()``."""
        patches.patch(sys.modules[_MODULE].Module, "eval", lambda original: self._evaluated(patches, original))
        patches.later(self._forget)

    def _evaluated(self, patches: Patches, original: Callable[..., Any]) -> Callable[..., Any]:
        is_compiling = sys.modules["torch"].compiler.is_compiling

        def evaluated(module: Any, *args: Any, **kwargs: Any) -> Any:
            if is_compiling():  # a constant while torch.compile traces, which sees the original alone then
                return original(module, *args, **kwargs)
            start_ns, was_training = perf_counter_ns(), module.training is True
            found = original(module, *args, **kwargs)
            if was_training and patches.armed and get_ident() == self._tracker.thread:
                self._leaves(module, start_ns)
            return found

        return traced_through(functools.update_wrapper(evaluated, original))

    def _leaves(self, module: object, now_ns: int) -> None:
        if self._tracker.count != self._steps:
            self._forget()
        left = asked(weakref.ref, module)
        if left is None or len(self._left) >= _MOST_MODULES:
            return
        self._steps = self._tracker.count
        self._left.append((left, now_ns))
        if self._until is None:
            self._until = until = Patches()
            until.hang(lambda patches: patches.patch(sys.modules[_MODULE].Module, "train", self._trained))

    def _trained(self, original: Callable[..., Any]) -> Callable[..., Any]:
        is_compiling = sys.modules["torch"].compiler.is_compiling

        def trained(module: Any, *args: Any, **kwargs: Any) -> Any:
            if is_compiling():
                return original(module, *args, **kwargs)
            found = original(module, *args, **kwargs)
            if self._left and get_ident() == self._tracker.thread:
                self._returned(perf_counter_ns())
            return found

        return traced_through(functools.update_wrapper(trained, original))

    def _returned(self, now_ns: int) -> None:
        """Record the evaluation of the first of them that trains again."""
        for left, start_ns in self._left:
            if getattr(left(), "training", None) is True:
                self._record((_EVALUATION, 0, 0, start_ns, now_ns - start_ns, 0))
                self._seen = True
                self._forget()
                return

    def _forget(self) -> None:
        """Wait for none of them any longer."""
        self._left = []
        until, self._until = self._until, None
        if until is not None:
            until.remove()

    def beat(self) -> None:
        """Wait no longer once a step was made: what trained meanwhile was no evaluation."""
        if self._until is not None and self._tracker.count != self._steps:
            self._forget()

    def close(self) -> None:
        """Nothing is left to do."""

    def reason(self) -> str:
        """Why no evaluation was seen."""
        return "" if self._seen else "no model that trains was put into evaluation mode and back"
