"""What is hung into torch while a block runs, and taken out again at its end."""

import sys
from collections import deque
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from threading import get_ident
from time import perf_counter_ns
from types import ModuleType
from typing import Any

from profilerkit.capture.calls import not_compiled
from profilerkit.capture.guard import Guard
from profilerkit.capture.loader import FetchTimer
from profilerkit.capture.loader_patches import describing_init, patched_iter, patched_next
from profilerkit.capture.meter import Meter
from profilerkit.capture.patches import Patches
from profilerkit.capture.steps import StepTracker
from profilerkit.capture.watches import is_loaded
from profilerkit.capture.workers import WorkerWatch
from profilerkit.rundir.layout import EventFlag, EventKind
from profilerkit.rundir.writer import Record

# Plain ints: a lookup of an enum member costs 0.2 µs on Python 3.11.
_BACKWARD, _OPTIMIZER, _INFERRED = int(EventKind.BACKWARD), int(EventKind.OPTIMIZER), int(EventFlag.INFERRED)
_NEEDED = ("torch.utils.data.dataloader", "torch.optim.optimizer", "torch.autograd")


class Hooks:
    """All patches and hooks of one session.

    Attributes:
        torch_hooked: torch was loaded and is patched.
        watches_backward: backward passes are timed.
        meters: what is spent after the engine in a backward pass, and after an optimizer step.
    """

    __slots__ = (  # see ``StepTracker``
        *("_guard", "_patches", "_record", "_timer", "_tracker", "_workers"),
        *("meters", "torch_hooked", "watches_backward"),
    )

    def __init__(
        self,
        record: Callable[[Record], None],
        tracker: StepTracker,
        timer: FetchTimer,
        guard: Guard,
        workers: WorkerWatch | None = None,
    ) -> None:
        self.torch_hooked = False
        self.watches_backward = True
        self._record = record
        self._tracker = tracker
        self._timer = timer
        self._guard = guard
        self._workers = workers
        self._patches = Patches()
        self.meters = (Meter(), Meter())

    def install_torch(self) -> None:
        """Patch torch once it is completely loaded; until then do nothing. May be called from any thread."""
        if not self.torch_hooked and is_loaded("torch", *_NEEDED):
            self._patches.hang(self._hook_torch)

    def _hook_torch(self, patches: Patches) -> None:
        if self.torch_hooked:
            return
        self.torch_hooked = True
        data, optim, autograd = (sys.modules[name] for name in _NEEDED)
        self._patch_loader(data, patches)
        patches.patch(autograd, "_engine_run_backward", self.timed_backward)
        starts, ends = self.optimizer_hooks()
        patches.later(optim.register_optimizer_step_pre_hook(starts).remove)
        patches.later(optim.register_optimizer_step_post_hook(ends).remove)

    def remove(self) -> None:
        """Leave torch as it was."""
        self._timer.disarm()
        self._patches.remove()
        self._tracker.unsettle()  # an optimizer step on another thread may just have settled it

    def remove_in_child(self) -> None:
        """``remove`` in a forked child."""
        self._timer.disarm()
        self._patches.remove_in_child()

    def _patch_loader(self, data: ModuleType, patches: Patches) -> None:
        iterator, workers = data._BaseDataLoaderIter, self._workers
        patches.patch(iterator, "__next__", lambda original: patched_next(self._timer, original, workers))
        patches.patch(iterator, "__init__", lambda original: describing_init(self._timer, original))
        patches.patch(data.DataLoader, "__iter__", lambda original: patched_iter(self._timer, original))
        if workers is not None:
            patches.patch(BaseProcess, "start", workers.started)

    def timed_backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """A replacement for torch's way into the autograd engine."""
        tracker, record, asked_backward = self._tracker, self._record, self._asked_backward(original)

        def timed_backward(*args: Any, **kwargs: Any) -> Any:
            if tracker.steady_thread != get_ident():
                return asked_backward(*args, **kwargs)
            start_ns = perf_counter_ns()
            try:
                return original(*args, **kwargs)
            finally:
                record((_BACKWARD, _INFERRED, 0, start_ns, perf_counter_ns() - start_ns, 0))
                tracker.backwards += 1

        return not_compiled(timed_backward)

    def _asked_backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """The way of all other backward passes."""
        patches, tracker = self._patches, self._tracker
        record, guard, meter, trained = self._record, self._guard, self.meters[0], self._trained

        def asked_backward(*args: Any, **kwargs: Any) -> Any:
            if not (patches.armed and self.watches_backward) or (
                get_ident() != tracker.thread and not tracker.adopt(get_ident())
            ):
                return original(*args, **kwargs)
            tracker.backward_depth += 1
            start_ns = perf_counter_ns()
            try:
                return original(*args, **kwargs)
            finally:
                end_ns, marking_ns = perf_counter_ns(), tracker.marking_ns
                tracker.backward_depth -= 1  # here: an interrupt is raised where the next function begins
                record((_BACKWARD, _INFERRED, 0, start_ns, end_ns - start_ns, 0))
                guard.call(tracker.backward_ended, end_ns)
                if tracker.on_trained is not None and not tracker.optimizer_seen:
                    trained()
                if meter.is_open:
                    meter.add(perf_counter_ns() - end_ns + marking_ns - tracker.marking_ns)

        return not_compiled(asked_backward)

    def _trained(self) -> None:
        """Say once to whoever asked that the model trained again."""
        on_trained, self._tracker.on_trained = self._tracker.on_trained, None
        if on_trained is not None:
            self._guard.call(on_trained)

    def optimizer_hooks(self) -> tuple[Callable[[Any, Any, Any], None], Callable[[Any, Any, Any], None]]:
        """What torch is to call before an optimizer step, and after one."""
        tracker, record, stepped = self._tracker, self._record, self.optimizer_stepped
        # When those began that the one under way is called by. One that raises stays under way.
        outer: deque[int] = deque(maxlen=8)

        def optimizer_starts(optimizer: Any, _args: Any, _kwargs: Any) -> None:
            if tracker.thread == get_ident():
                if tracker.stepping_ns:
                    outer.append(tracker.stepping_ns)
                if tracker.count >= tracker.trains_at:
                    tracker.trains(optimizer)
                tracker.stepping_ns = perf_counter_ns()

        def optimizer_ends(optimizer: Any, _args: Any, _kwargs: Any) -> None:
            now_ns, start_ns = perf_counter_ns(), 0
            if tracker.thread == get_ident():
                start_ns, tracker.stepping_ns = tracker.stepping_ns, outer.pop() if outer else 0
            if not (start_ns and tracker.steady_thread):
                stepped(id(optimizer), start_ns, now_ns)
                return
            record((_OPTIMIZER, _INFERRED, 0, start_ns, now_ns - start_ns, 0))
            tracker.worked = True

        return not_compiled(optimizer_starts), not_compiled(optimizer_ends)

    def optimizer_stepped(self, optimizer: int, start_ns: int, now_ns: int) -> None:
        """Take an optimizer step that has to be asked for.

        ``start_ns`` is 0 where its thread does not train, and for the replay of a graph, whose ``id`` then stands in
        for the optimizer's.
        """
        tracker = self._tracker
        if not self._patches.armed or (get_ident() != tracker.thread and not tracker.adopt(get_ident())):
            return
        marking_ns = tracker.marking_ns
        if start_ns:
            self._record((_OPTIMIZER, _INFERRED, 0, start_ns, now_ns - start_ns, 0))
        self._guard.call(tracker.optimizer_stepped, optimizer, now_ns)
        if tracker.on_trained is not None:
            self._trained()
        meter = self.meters[1]
        if meter.is_open:
            meter.add(perf_counter_ns() - now_ns + marking_ns - tracker.marking_ns)
        elif tracker.steady and self._need_not_ask():
            tracker.steady_thread = tracker.thread
            if not self._need_not_ask():  # last, because the writer thread may have changed that meanwhile
                tracker.steady_thread = 0

    def _need_not_ask(self) -> bool:
        """Whether what remains to know of backward passes and optimizer steps is when they were."""
        backward, optimizer = self.meters
        return self._patches.armed and self.watches_backward and not (backward.is_open or optimizer.is_open)
