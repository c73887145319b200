"""Watches models being evaluated, by the mode that they are in: also where no loader and no phase tells."""

import functools
import sys
import weakref
from collections.abc import Callable
from threading import get_ident
from time import perf_counter_ns
from typing import Any

from profilerkit.capture.guard import asked
from profilerkit.capture.patches import Patches
from profilerkit.capture.steps import StepTracker
from profilerkit.rundir.layout import EventKind
from profilerkit.rundir.writer import Record

_EVALUATION = int(EventKind.EVALUATION)
_MODULE = "torch.nn.modules.module"
#: Modules that are remembered until the next optimizer step (a choice): a model, its average, a few metrics.
_MOST_MODULES = 8


class EvaluationWatch:
    """Records one EVALUATION at the ``eval()`` of a model that trains again by the next optimizer step.

    What is still in evaluation mode then, such as a teacher or frozen layers, was not evaluated. ``Module.train`` is
    left alone: it calls itself for each part of a model, and some loops call it in every step.
    """

    name = "evaluations"
    needs: tuple[str, ...] = ("torch", _MODULE)

    def __init__(self, record: Callable[[Record], None], tracker: StepTracker) -> None:
        self._record = record
        self._tracker = tracker
        self._left: list[tuple[weakref.ref[Any], int]] = []  # those in evaluation mode, and since when
        self._seen = False

    def hang(self, patches: Patches) -> None:
        """Hear of ``eval()``."""
        patches.patch(sys.modules[_MODULE].Module, "eval", lambda original: self._evaluated(patches, original))

    def _evaluated(self, patches: Patches, original: Callable[..., Any]) -> Callable[..., Any]:
        is_compiling = sys.modules["torch"].compiler.is_compiling

        def evaluated(module: Any, *args: Any, **kwargs: Any) -> Any:
            if is_compiling():  # a constant while torch.compile traces, which sees the original alone then
                return original(module, *args, **kwargs)
            start_ns = perf_counter_ns()
            found = original(module, *args, **kwargs)
            if patches.armed and get_ident() == self._tracker.thread and len(self._left) < _MOST_MODULES:
                left = asked(weakref.ref, module)
                self._left += [] if left is None else [(left, start_ns)]
                self._tracker.on_trained = self._trained
                self._tracker.steady_thread = 0  # the next optimizer step is to be asked
            return found

        return functools.update_wrapper(evaluated, original)

    def _trained(self) -> None:
        """Record when the first of those that train again was put into evaluation mode."""
        left, self._left = self._left, []
        start_ns = next((start_ns for module, start_ns in left if _trains(module())), None)
        if start_ns is not None:
            self._record((_EVALUATION, 0, 0, start_ns, 0, 0))
            self._seen = True

    def beat(self) -> None:
        """Nothing to do."""

    def close(self) -> None:
        """Nothing is left to do."""

    def reason(self) -> str:
        """Why no evaluation was seen."""
        return "" if self._seen else "no model went to evaluation mode and back to training"


def _trains(module: Any) -> bool:
    """Whether a module is in training mode; some have no such attribute, and that of others may raise."""
    return asked(getattr, module, "training", None) is True
