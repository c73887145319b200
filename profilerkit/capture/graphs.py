"""Sees the replay of a CUDA graph that trains: to the steps it is what an optimizer's step is, whose hooks it skips."""

import functools
import sys
from collections.abc import Callable
from threading import get_ident
from time import perf_counter_ns
from typing import Any
from weakref import WeakKeyDictionary

from profilerkit.capture.calls import not_compiled
from profilerkit.capture.guard import Guard
from profilerkit.capture.hooks import Hooks
from profilerkit.capture.patches import Patches
from profilerkit.capture.steps import StepTracker

_GRAPHS, _OPTIMIZER = "torch.cuda.graphs", "torch.optim.optimizer"
#: Replays of a graph that was captured before the recording, with no other sign of training, after which it is taken to
#: train: as with backward passes, for which ``StepTracker`` has the same number.
_REPLAYS_ALONE = 8
_NEVER = -1


class GraphWatch:
    """Reports replays to the hooks.

    A graph trains if an optimizer stepped while it was captured. Where graphs are parts of a step, as those that
    ``torch.compile`` makes, the optimizer's own hooks report the step.
    """

    name = "graphs"
    needs: tuple[str, ...] = ("torch", _GRAPHS, _OPTIMIZER)

    def __init__(self, hooks: Hooks, tracker: StepTracker) -> None:
        self._hooks = hooks
        self._tracker = tracker
        self._guard = Guard("profilerkit's watch on CUDA graphs")
        # Replays until it was known to train; all others are ``_NEVER`` counted.
        self._replays: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
        self._captures: dict[int, tuple[Any, list[int]]] = {}  # by thread: the optimizers that step, and their hook
        self._seen = False

    def hang(self, patches: Patches) -> None:
        """Patch the methods that capture and replay."""
        graph = sys.modules[_GRAPHS].CUDAGraph
        for name, before, after in (
            ("capture_begin", self._begins, None),
            ("capture_end", None, self._ends),
            ("replay", self._replays_now, self._replayed),
        ):
            patches.patch(graph, name, functools.partial(self._heard, patches, before, after))
        patches.later(self.close)

    def _heard(
        self,
        patches: Patches,
        before: Callable[[Any], None] | None,
        after: Callable[[Any], None] | None,
        original: Callable[..., Any],
    ) -> Callable[..., Any]:
        call = self._guard.call

        def heard(graph: Any, *args: Any, **kwargs: Any) -> Any:
            if before is not None and patches.armed:
                call(before, graph)
            found = original(graph, *args, **kwargs)
            if after is not None and patches.armed:
                call(after, graph)
            return found

        return not_compiled(functools.update_wrapper(heard, original))

    def _begins(self, _graph: Any) -> None:
        here, stepped = get_ident(), list[int]()

        def steps(optimizer: Any, _args: Any, _kwargs: Any) -> None:
            if get_ident() == here:
                stepped.append(id(optimizer))

        self._forget(here)
        self._captures[here] = sys.modules[_OPTIMIZER].register_optimizer_step_post_hook(steps), stepped

    def _ends(self, graph: Any) -> None:
        stepped = self._forget(get_ident())
        self._replays[graph] = _REPLAYS_ALONE if stepped else _NEVER

    def _forget(self, thread: int) -> list[int]:
        """Return the optimizers that stepped since the thread began to capture."""
        hook, stepped = self._captures.pop(thread, (None, []))
        if hook is not None:
            hook.remove()
        return stepped

    def _replays_now(self, _graph: Any) -> None:
        tracker = self._tracker
        if tracker.count >= tracker.trains_at and get_ident() == tracker.thread:
            tracker.trains(None)

    def _replayed(self, graph: Any) -> None:
        tracker, replays = self._tracker, self._replays.get(graph, 0)
        if replays == _NEVER:
            return
        if replays < _REPLAYS_ALONE:
            self._replays[graph] = _NEVER if tracker.optimizer_seen or tracker.backwards else replays + 1
            return
        self._seen = True
        if tracker.steady_thread == get_ident():
            tracker.worked = True
        else:
            self._hooks.optimizer_stepped(id(graph), 0, perf_counter_ns())

    def beat(self) -> None:
        """Nothing to do."""

    def close(self) -> None:
        """Take the hooks of captures out that did not end."""
        for thread in list(self._captures):
            self._forget(thread)

    def reason(self) -> str:
        """Return why no replay was seen."""
        return self._guard.failure or ("" if self._seen else "no CUDA graph that trains was replayed")
