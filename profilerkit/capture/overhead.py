"""What capture itself costs per step."""

import statistics
import sys
from collections.abc import Callable, Sequence
from time import perf_counter_ns
from typing import Any

from profilerkit.capture.guard import Guard, asked
from profilerkit.capture.hooks import Hooks
from profilerkit.capture.loader import FetchTimer
from profilerkit.capture.loader_patches import patched_next
from profilerkit.capture.meter import Meter
from profilerkit.capture.steps import StepTracker
from profilerkit.capture.workers import WorkerWatch
from profilerkit.capture.wrapped import WrappedIterator
from profilerkit.rundir.writer import Record

_STEPS, _WORK_BYTES = 200, 1 << 20

_Hooks = Sequence[Callable[..., Any]]


class NoTrace:
    """Where no trace is recorded."""

    window = None

    def span(self, name: str) -> None:
        """Nothing to do."""


def self_ns_per_step(timer: FetchTimer, hooks: Hooks) -> float:
    """Time capture added to a step of one fetch, one backward pass and one optimizer step, ns.

    What its own clocks said in the run, plus what they cannot see: how Python and torch get there and back, and what
    follows slower because capture took its place in the caches. That is measured here, beside work that stands for
    the model: the difference between steps with and without capture, less what capture's clocks say of it. What did
    not occur in the run (a loop without a loader) counts as it is measured here. The caches of a large model make
    the unseen part larger than it is here.
    """
    with_capture, without, meters_here = _compare(_Work())
    here = [meter.median_ns or 0.0 for meter in meters_here]
    there = [meter.median_ns for meter in (timer.meter, *hooks.meters)]
    unseen = max(0.0, with_capture - without - sum(here))
    return unseen + sum(found if found is not None else ours for found, ours in zip(there, here, strict=True))


#: What the clocks around one call of capture's do not see: the way there and back, and what follows slower. Four
#: fifths of what ``self_ns_per_step`` adds to them for a step of three calls; see also ``reports/overhead.html``.
_UNSEEN_NS = 1_500


def running_ns_per_step(timer: FetchTimer, hooks: Hooks, workers: WorkerWatch | None, steps: int) -> float | None:
    """About what capture adds to a step as the run goes on, ns; ``None`` until that is known.

    Cheap enough for the writer thread: the medians of the clocks, and for what they do not see a fixed time per call.
    """
    calls = [(timer.meter, timer.fetches / max(steps, 1)), (hooks.meters[1], 1.0)]
    if hooks.watches_backward:
        calls.append((hooks.meters[0], timer.tracker.backwards / max(steps, 1)))
    if workers is not None:
        calls.append((workers.meter, workers.looks_per_fetch * timer.fetches / max(steps, 1)))
    known = [(meter.median_ns, times) for meter, times in calls if not meter.is_open]
    return sum(times * (own_ns + _UNSEEN_NS) for own_ns, times in known if own_ns is not None) if known else None


class _Loader:
    """Stands for a DataLoader's iterator."""

    def __init__(self) -> None:
        self._num_yielded = 0

    def __iter__(self) -> "_Loader":
        return self

    def __next__(self) -> int:
        self._num_yielded += 1
        return self._num_yielded


def _backward(*_args: object, **_kwargs: object) -> None:
    """Stands for the autograd engine."""


def _optimizer_step(optimizer: object, before: _Hooks, after: _Hooks) -> None:
    """Calls hooks as ``torch.optim.Optimizer.step`` does."""
    for hook in before:
        hook(optimizer, (optimizer,), {})
    for hook in after:
        hook(optimizer, (optimizer,), {})


def _compare(work: "_Work") -> tuple[float, float, tuple[Meter, ...]]:
    """Median time of a step with capture and without, ns, taken in turn; and capture's own clocks."""
    records: list[Record] = []
    guard = Guard("the overhead measurement")
    tracker = StepTracker(records.append)
    timer = FetchTimer(records.append, tracker, guard, NoTrace())
    hooks = Hooks(records.append, tracker, timer, guard)
    starts, ends = hooks.optimizer_hooks()

    class Patched(_Loader):
        __next__ = patched_next(timer, _Loader.__next__)

    sides: tuple[tuple[Any, Callable[..., None], _Hooks, _Hooks], ...] = (
        (
            WrappedIterator(Patched(), range(_STEPS), timer),
            hooks.timed_backward(_backward),
            [starts],
            [ends],
        ),
        (_Loader(), _backward, [], []),
    )
    laps_ns: tuple[list[int], list[int]] = ([], [])
    for _ in range(_STEPS):
        for (batches, backward, before, after), laps in zip(sides, laps_ns, strict=True):
            start_ns = perf_counter_ns()
            batch = next(batches)
            work.do()
            backward((batch,), None, False, accumulate_grad=True)
            work.do()
            _optimizer_step(work, before, after)
            work.do()
            laps.append(perf_counter_ns() - start_ns)
    recorded_ns, bare_ns = laps_ns
    return statistics.median(recorded_ns), statistics.median(bare_ns), (timer.meter, *hooks.meters)


class _Work:
    """Stands for the model: touches more memory than a second-level cache holds, and code of torch."""

    def __init__(self) -> None:
        self._from = bytes(_WORK_BYTES)
        self._to = bytearray(_WORK_BYTES)
        torch = sys.modules.get("torch")
        self._tensor: Any = None if torch is None else asked(lambda: torch.ones(32, 32, device="cpu"))

    def do(self) -> None:
        """Push everything else out."""
        self._to[:] = self._from
        if self._tensor is not None:
            asked(self._compute)

    def _compute(self) -> None:
        tensor = self._tensor
        (tensor @ tensor).relu().softmax(0).cumsum(0).exp().mean().item()
