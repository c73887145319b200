"""What capture itself costs per step."""

from profilerkit.capture.device_clock import DeviceClock
from profilerkit.capture.hooks import Hooks
from profilerkit.capture.loader import ALL_OF_FIRST, FetchTimer
from profilerkit.capture.meter import Meter
from profilerkit.capture.stacks import StackSource
from profilerkit.capture.workers import WorkerWatch

#: What the clocks around one call of capture's do not see: the way there and back, and what follows slower because
#: capture took its place in the caches. Beside steps of 0.5 to 5 ms it makes three calls cost what the CPU time of the
#: training thread says they do (``reports/overhead.html``).
_UNSEEN_NS = 1_500


def self_ns_per_step(
    timer: FetchTimer,
    hooks: Hooks,
    clock: DeviceClock,
    workers: WorkerWatch | None,
    steps: int,
    stacks: StackSource | None = None,
) -> float | None:
    """About what capture added to each of ``steps`` in its mean, ns; ``None`` without any."""
    calls = _calls(timer, hooks, clock, workers, steps, stacks)
    return _cost_ns([(meter.median_ns, times) for meter, times in calls], steps)


class RunningCost:
    """About what capture adds to a step as the run goes on.

    Cheap enough for the writer thread: the medians of the clocks, and for what they do not see a fixed time per call;
    of a plain fetch, which is measured from outside, the clocks see some of that already.
    """

    def __init__(
        self,
        timer: FetchTimer,
        hooks: Hooks,
        clock: DeviceClock,
        workers: WorkerWatch | None,
        stacks: StackSource | None = None,
    ) -> None:
        self._timer, self._hooks, self._clock, self._workers, self._stacks = timer, hooks, clock, workers, stacks
        self._before: list[int] = []  # calls of each kind
        self._fetches = self._steps = 0

    def per_step_ns(self, steps: int) -> float | None:
        """What it was since this was asked before, ns; ``steps`` were recorded in all.

        ``None`` where no step ended, at the first time, and for the first fetches: all of those are looked at, and
        asked. A loop with few fetches is out of its first ones after as many steps.
        """
        timer = self._timer
        calls = _calls(timer, self._hooks, self._clock, self._workers, steps, self._stacks)
        before, self._before = self._before, [times for _, times in calls]
        is_first = timer.fetches > 0 and max(self._fetches, self._steps) < ALL_OF_FIRST
        ended, self._fetches, self._steps = steps - self._steps, timer.fetches, steps
        if is_first or not (ended and before):
            return None
        since = [times - earlier for (_, times), earlier in zip(calls, before, strict=True)]
        return _cost_ns([(meter.median_ns, times) for (meter, _), times in zip(calls, since, strict=True)], ended)


def _calls(
    timer: FetchTimer,
    hooks: Hooks,
    clock: DeviceClock,
    workers: WorkerWatch | None,
    steps: int,
    stacks: StackSource | None,
) -> list[tuple[Meter, int]]:
    """What each kind of call costs and how many there were on the training thread; looks at its stack stop it."""
    calls = [(timer.meter, timer.not_plain), (timer.plain_meter, timer.fetches - timer.not_plain)]
    calls += [(hooks.meters[0], timer.tracker.backwards), (hooks.meters[1], steps), (clock.meter, clock.marks)]
    calls += [(stacks.meter, stacks.taken)] if stacks is not None else []
    return calls if workers is None else [*calls, (workers.meter, workers.looked)]


def _cost_ns(calls: list[tuple[float | None, int]], steps: int) -> float | None:
    """Time of so many calls in each of ``steps``, ns."""
    known = [times * (own_ns + _UNSEEN_NS) for own_ns, times in calls if own_ns is not None]
    return sum(known) / steps if known and steps else None
