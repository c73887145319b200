"""Hook into torch while a block runs: loaders, backward passes, optimizer steps and replays of CUDA graphs."""

import functools
import sys
from collections import deque
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from threading import get_ident
from time import perf_counter_ns
from types import FrameType
from typing import Any
from weakref import WeakKeyDictionary

from profilerkit.capture.clocks import Meter
from profilerkit.capture.guard import Guard
from profilerkit.capture.loader import FetchTimer
from profilerkit.capture.loader_patches import describing_init, patched_iter, patched_next
from profilerkit.capture.patches import Patches, Watch, is_loaded
from profilerkit.capture.steps import StepTracker
from profilerkit.capture.timed_calls import not_compiled
from profilerkit.capture.workers import WorkerWatch
from profilerkit.rundir.layout import EventFlag, EventKind
from profilerkit.rundir.writer import Record

# Plain ints: a lookup of an enum member costs 0.2 µs on Python 3.11.
_BACKWARD, _OPTIMIZER, _INFERRED = int(EventKind.BACKWARD), int(EventKind.OPTIMIZER), int(EventFlag.INFERRED)
_NEEDED = ("torch.utils.data.dataloader", "torch.optim.optimizer", "torch.autograd")


class Hooks:
    """Install all hooks of one session that time steps."""

    __slots__ = (  # see ``StepTracker``
        *("_guard", "_patches", "_record", "_timer", "_tracker", "_workers"),
        *("captures", "meters", "torch_hooked", "watches_backward"),
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
        #: Threads that capture a CUDA graph, and whether an optimizer has stepped in it.
        self.captures: dict[int, bool] = {}
        self.watches_backward = True
        self._record = record
        self._tracker = tracker
        self._timer = timer
        self._guard = guard
        self._workers = workers
        self._patches = Patches()
        #: What is spent after the engine in a backward pass, and after an optimizer step.
        self.meters = (Meter(), Meter())

    def install_torch(self) -> None:
        """Patch torch once it is completely loaded; until then do nothing. May be called from any thread."""
        if not self.torch_hooked and is_loaded("torch", *_NEEDED):
            self._patches.apply(self._hook_torch)

    def _hook_torch(self, patches: Patches) -> None:
        if self.torch_hooked:
            return
        self.torch_hooked = True
        data, optim, autograd = (sys.modules[name] for name in _NEEDED)
        iterator, workers = data._BaseDataLoaderIter, self._workers
        patches.patch(iterator, "__next__", lambda original: patched_next(self._timer, original, workers))
        patches.patch(iterator, "__init__", lambda original: describing_init(self._timer, original))
        patches.patch(data.DataLoader, "__iter__", lambda original: patched_iter(self._timer, original))
        if workers is not None:
            patches.patch(BaseProcess, "start", workers.started)
        patches.patch(autograd, "_engine_run_backward", self.timed_backward)
        tables = optim._global_optimizer_pre_hooks, optim._global_optimizer_post_hooks
        hooks = zip(tables, self.optimizer_hooks(), strict=True)
        left = [(table, hook) for table, hook in hooks if not patches.hang(table, hook)]
        if left:
            patches.patch(optim.Optimizer, "_optimizer_step_code", functools.partial(self._hung_in_a_step, left))

    def _hung_in_a_step(self, left: list[tuple[Any, Any]], original: Callable[..., Any]) -> Callable[..., Any]:
        """Hang optimizer hooks where the program has some: on the thread that steps, when no hook of it is called.

        Torch calls ``original`` between the hooks before a step and those after it.
        """
        tracker, guard, own = self._tracker, self._guard, self._patches

        def hang(patches: Patches) -> None:
            while left:
                patches.hang(*left.pop(), at_once=True)

        def step_code(self: Any) -> None:  # torch.profiler takes the optimizer out of this name, with stacks
            if left and tracker.adopt(get_ident()) and not _is_nested(sys._getframe(1)):
                guard.call(own.apply, hang)
            original(self)

        return not_compiled(step_code)

    def remove(self) -> None:
        """Leave torch as it was."""
        self._timer.disarm()
        self._patches.remove()
        self._tracker.leave_fast_path()  # an optimizer step on another thread may just have settled it

    def remove_in_child(self) -> None:
        """``remove`` in a forked child."""
        self._timer.disarm()
        self._patches.remove_in_child()

    def timed_backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """A replacement for torch's way into the autograd engine."""
        tracker, record, asked_backward = self._tracker, self._record, self._asked_backward(original)

        def timed_backward(*args: Any, **kwargs: Any) -> Any:
            if tracker.fast_thread != get_ident():
                return asked_backward(*args, **kwargs)
            start_ns = perf_counter_ns()
            try:
                return original(*args, **kwargs)
            finally:
                record((_BACKWARD, _INFERRED, 0, start_ns, perf_counter_ns() - start_ns, 0))
                tracker.backwards += 1

        return not_compiled(timed_backward)

    def _asked_backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
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
                if tracker.count >= tracker.optimizer_starts_at:
                    tracker.optimizer_starts(optimizer)
                tracker.stepping_ns = perf_counter_ns()

        def optimizer_ends(optimizer: Any, _args: Any, _kwargs: Any) -> None:
            now_ns, start_ns = perf_counter_ns(), 0
            if tracker.thread == get_ident():
                start_ns, tracker.stepping_ns = tracker.stepping_ns, outer.pop() if outer else 0
            if not (start_ns and tracker.fast_thread):
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
        tracker, captures, here = self._tracker, self.captures, get_ident()
        if here in captures:
            captures[here] = True
        if not self._patches.armed or (here != tracker.thread and not tracker.adopt(here)):
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
        elif tracker.fast and self._need_not_ask():
            tracker.fast_thread = tracker.thread
            if not self._need_not_ask():  # last, because the writer thread may have changed that meanwhile
                tracker.fast_thread = 0

    def _need_not_ask(self) -> bool:
        """Whether what remains to know of backward passes and optimizer steps is when they were."""
        backward, optimizer = self.meters
        return (
            not (backward.is_open or optimizer.is_open or self.captures)
            and self._patches.armed
            and self.watches_backward
        )


def _is_nested(step: FrameType) -> bool:
    outer = step.f_back
    while outer is not None and outer.f_code is not step.f_code:
        outer = outer.f_back
    return outer is not None


_GRAPHS = "torch.cuda.graphs"
#: Replays of a graph that was captured before the recording, with no other sign of training, after which it is taken to
#: train: as with backward passes, for which ``StepTracker`` has the same number.
_REPLAYS_ALONE = 8
_NEVER = -1


class GraphWatch(Watch):
    """Reports replays to the hooks.

    A graph trains if an optimizer stepped while it was captured. Where graphs are parts of a step, as those that
    ``torch.compile`` makes, the optimizer's own hooks report the step.
    """

    name = "graphs"
    needs = ("torch", _GRAPHS)
    unseen = "no CUDA graph that trains was replayed"

    def __init__(self, hooks: Hooks, tracker: StepTracker) -> None:
        self._hooks = hooks
        self._tracker = tracker
        self._guard = Guard("profilerkit's watch on CUDA graphs")
        # Replays until it was known to train; all others are ``_NEVER`` counted.
        self._replays: WeakKeyDictionary[Any, int] = WeakKeyDictionary()

    def install(self, patches: Patches) -> None:
        """Patch the methods that capture and replay."""
        graph = sys.modules[_GRAPHS].CUDAGraph
        for name, before, after in (
            ("capture_begin", self._begins, None),
            ("capture_end", None, self._ends),
            ("replay", self._replays_now, self._replayed),
        ):
            patches.patch(graph, name, functools.partial(self._heard, patches, before, after))

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
        self._hooks.captures[get_ident()] = False
        self._tracker.fast_thread = 0  # last: now its steps are asked

    def _ends(self, graph: Any) -> None:
        self._replays[graph] = _REPLAYS_ALONE if self._hooks.captures.pop(get_ident(), False) else _NEVER

    def _replays_now(self, _graph: Any) -> None:
        tracker = self._tracker
        if tracker.count >= tracker.optimizer_starts_at and get_ident() == tracker.thread:
            tracker.optimizer_starts(None)

    def _replayed(self, graph: Any) -> None:
        tracker, replays = self._tracker, self._replays.get(graph, 0)
        if replays == _NEVER:
            return
        if replays < _REPLAYS_ALONE:
            self._replays[graph] = _NEVER if tracker.optimizer_seen or tracker.backwards else replays + 1
            return
        self.seen = True
        if tracker.fast_thread == get_ident():
            tracker.worked = True
        else:
            self._hooks.optimizer_stepped(id(graph), 0, perf_counter_ns())

    def reason(self) -> str:
        """Return why no replay was seen."""
        return self._guard.failure or super().reason()
