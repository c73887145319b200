"""What capture itself costs per step."""

import statistics
import sys
from collections.abc import Callable, Sequence
from time import perf_counter_ns
from typing import Any

from profilerkit.capture.guard import Guard, asked
from profilerkit.capture.hooks import Hooks
from profilerkit.capture.loader import ALL_OF_FIRST, FetchTimer
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


def self_ns_per_step(timer: FetchTimer, hooks: Hooks, workers: WorkerWatch | None = None) -> float:
    """Time capture added to a step of one fetch, one backward pass and one optimizer step, ns.

    What its own clocks said in the run, plus what they cannot see: how Python and torch get there and back, and what
    follows slower because capture took its place in the caches. That is measured here, beside work that stands for
    the model: the difference between steps with and without capture, less what capture's clocks say of it. What did
    not occur in the run (a loop without a loader) counts as it is measured here. The caches of a large model make
    the unseen part larger than it is here. A fetch costs the mean of all, those that had to ask and the plain ones,
    with the looks at the workers' queue.
    """
    with_capture, without, here = _compare(_Work())
    there = [_fetch_ns(timer, workers), *(meter.median_ns for meter in hooks.meters)]
    unseen = max(0.0, with_capture - without - sum(here))
    return unseen + sum(found if found is not None else ours for found, ours in zip(there, here, strict=True))


def _fetch_ns(timer: FetchTimer, workers: WorkerWatch | None) -> float | None:
    """What the clocks say of a fetch, a mean; ``None`` where there was none."""
    if timer.meter.median_ns is None:
        return None
    calls = [*_of_fetches(timer), *_of_looks(workers)]
    return sum(meter.median_ns * times for meter, times in calls if meter.median_ns is not None) / timer.fetches


#: What the clocks around one call of capture's do not see: the way there and back, and what follows slower. Four
#: fifths of what ``self_ns_per_step`` adds to them for a step of three calls; see also ``reports/overhead.html``.
_UNSEEN_NS = 1_500


class RunningCost:
    """About what capture adds to a step as the run goes on.

    Cheap enough for the writer thread: the medians of the clocks, and for what they do not see a fixed time per call;
    of a plain fetch, which is measured from outside, the clocks see some of that already.
    """

    def __init__(self, timer: FetchTimer, hooks: Hooks, workers: WorkerWatch | None) -> None:
        self._timer, self._hooks, self._workers = timer, hooks, workers
        self._before: dict[int, int] = {}  # calls of each kind, by its meter
        self._fetches = self._steps = 0

    def per_step_ns(self, steps: int) -> float | None:
        """What it was since this was asked before, ns; ``steps`` were recorded in all.

        ``None`` where no step ended, at the first time, and for the first fetches: all of those are looked at, and
        asked. A loop with few fetches is out of its first ones after as many steps.
        """
        timer, hooks = self._timer, self._hooks
        calls = [*_of_fetches(timer), *_of_looks(self._workers), (hooks.meters[1], steps)]
        if hooks.watches_backward:
            calls.append((hooks.meters[0], timer.tracker.backwards))
        before, self._before = self._before, {id(meter): times for meter, times in calls}
        is_first = timer.fetches > 0 and max(self._fetches, self._steps) < ALL_OF_FIRST
        ended, self._fetches, self._steps = steps - self._steps, timer.fetches, steps
        if is_first or not (ended and before):
            return None
        found = [(meter.median_ns, times - before.get(id(meter), times)) for meter, times in calls]
        known = [times * (own_ns + _UNSEEN_NS) for own_ns, times in found if own_ns is not None]
        return sum(known) / ended if known else None


def _of_fetches(timer: FetchTimer) -> list[tuple[Meter, int]]:
    """What fetches cost and how many there were, those that had to ask and the plain ones."""
    return [(timer.meter, timer.not_plain), (timer.plain_meter, timer.fetches - timer.not_plain)]


def _of_looks(workers: WorkerWatch | None) -> list[tuple[Meter, int]]:
    """The same of looks at the workers' queue."""
    return [] if workers is None else [(workers.meter, workers.looked)]


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


def _compare(work: "_Work") -> tuple[float, float, list[float]]:
    """Median time of a step with capture and without, ns, taken in turn; and what capture's own clocks say of it."""
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
    clocks = [meter.median_ns or 0.0 for meter in (timer.meter, *hooks.meters)]
    return statistics.median(recorded_ns), statistics.median(bare_ns), clocks


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
