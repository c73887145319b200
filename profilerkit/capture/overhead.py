"""Estimate what capture costs per step, and keep it within its budget: above it features are turned off one by one."""

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from time import perf_counter_ns

from profilerkit.capture.background import Sampler
from profilerkit.capture.clocks import Meter
from profilerkit.capture.device_clock import THINNED, DeviceClock
from profilerkit.capture.hooks import Hooks
from profilerkit.capture.loader import ALL_OF_FIRST, FetchTimer
from profilerkit.capture.stacks import StackSource
from profilerkit.capture.workers import WorkerWatch
from profilerkit.rundir.layout import OwnCost
from profilerkit.units import format_ns, format_ratio

#: What the clocks around one call of capture's do not see: the way there and back, and what follows slower because
#: capture took its place in the caches. Beside steps of 0.5 to 5 ms it makes three calls cost what the CPU time of the
#: training thread says they do (``reports/overhead.html``).
_UNSEEN_NS = 1_500


class RunningCost:
    """Estimate what capture adds to a step, as the run goes on and over all of it.

    Cheap enough for the writer thread: the medians of the clocks, and for what they do not see a fixed time per call;
    of a fast fetch, which is measured from outside, the clocks see some of that already.
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

    def overall_ns(self, steps: int) -> float | None:
        """Return the mean over all of so many steps, ns; ``None`` without any."""
        return _per_step_ns(self._calls(steps), steps)

    def per_step_ns(self, steps: int) -> float | None:
        """Return the mean since this was last asked, ns; ``steps`` were recorded in all.

        ``None`` where no step ended, at the first time, and for the first fetches: all of those are slow, and look at
        the loader's queue. A loop with few fetches is out of its first ones after as many steps.
        """
        fetches, calls = self._timer.fetches, self._calls(steps)
        before, self._before = self._before, [times for _, times in calls]
        is_first = fetches > 0 and max(self._fetches, self._steps) < ALL_OF_FIRST
        ended, self._fetches, self._steps = steps - self._steps, fetches, steps
        if is_first or not (ended and before):
            return None
        return _per_step_ns([(meter, times - was) for (meter, times), was in zip(calls, before, strict=True)], ended)

    def _calls(self, steps: int) -> list[tuple[Meter, int]]:
        """Return what each kind of call costs and how often the training thread made it, or was stopped by it."""
        timer, hooks, clock, workers, stacks = self._timer, self._hooks, self._clock, self._workers, self._stacks
        calls = [
            (timer.meter, timer.slow_fetches),
            (timer.fast_meter, timer.fetches - timer.slow_fetches),
            (hooks.meters[0], timer.tracker.backwards),
            (hooks.meters[1], steps),
            (clock.meter, clock.marks),
        ]
        calls += [] if stacks is None else [(stacks.meter, stacks.taken)]
        return calls if workers is None else [*calls, (workers.meter, workers.sampled)]


def _per_step_ns(calls: list[tuple[Meter, int]], steps: int) -> float | None:
    known = [times * (own_ns + _UNSEEN_NS) for meter, times in calls if (own_ns := meter.median_ns) is not None]
    return sum(known) / steps if known and steps else None


#: How often the cost is compared with the steps, and after how many of them: a mean of fewer says little.
_EVERY_NS = 1_000_000_000
_ENOUGH_STEPS = 100
_SLOW_SECONDS = 5.0  #: time between samples where one per second is too much


@dataclass(frozen=True, slots=True)
class Stage:
    """Something that can be done without."""

    feature: str
    what: str
    turn_off: Callable[[], None]
    is_on: Callable[[], bool]


class Budget:
    """Compares capture's own cost with the steps of the run, on the writer thread."""

    def __init__(self, ratio: float, stages: Sequence[Stage], clock: Callable[[], int] = perf_counter_ns) -> None:
        """``ratio`` is the most capture may cost, of the time of a step; ``stages`` go in their order."""
        self.turned_off: dict[str, str] = {}
        self.is_exceeded = False
        self._ratio = ratio
        self._stages = list(stages)
        self._is_empty = not self._stages  # nothing is timed
        self._clock = clock
        self._mark: tuple[int, int] | None = None  # time and steps of the last comparison

    def check(self, steps: int, cost: Callable[[int], float | None]) -> None:
        """Give up the next thing if recording costs too much; ``steps`` were recorded so far.

        ``cost`` says what it took of a step since it was asked before, ns, where that is known.
        """
        now_ns = self._clock()
        if self._mark is None:
            if steps:
                self._mark = now_ns, steps
                cost(steps)
            return
        since_ns, before = self._mark
        if self._is_empty or now_ns - since_ns < _EVERY_NS or steps - before < _ENOUGH_STEPS:
            return
        self._mark, own_ns = (now_ns, steps), cost(steps)
        step_ns = (now_ns - since_ns) / (steps - before)
        if own_ns is None or own_ns <= self._ratio * step_ns:
            return
        while self._stages and not self._stages[0].is_on():
            del self._stages[0]
        if not self._stages:
            self.is_exceeded = True
            return
        stage = self._stages.pop(0)
        stage.turn_off()
        self.turned_off[stage.feature] = (
            f"from step {steps} on {stage.what}: recording cost {format_ns(own_ns)} of a {format_ns(step_ns)} step, "
            f"above its budget of {format_ratio(self._ratio)}"
        )

    def own_cost(self, start_ns: int) -> OwnCost:
        """For ``meta.json``; ``start_ns`` is how long the start of the recording took."""
        return OwnCost(
            budget_ratio=self._ratio,
            start_ns=start_ns,
            turned_off=tuple(self.turned_off.values()),
            is_exceeded=self.is_exceeded,
        )


def stages(
    timer: FetchTimer,
    hooks: Hooks,
    clock: DeviceClock,
    workers: WorkerWatch | None,
    samplers: Iterable[Sampler],
    stacks: Sampler | None = None,
) -> tuple[Stage, ...]:
    """What can be given up, least useful for its cost first; steps and the waits for batches never are.

    Backward passes are kept where they are what marks the steps.
    """
    sampled, tracker, off = tuple(samplers), timer.tracker, functools.partial

    def sample_slowly() -> None:
        for sampler in sampled:
            sampler.period_seconds = _SLOW_SECONDS

    def time_no_backward() -> None:
        hooks.watches_backward = False
        tracker.leave_fast_path()

    def can_do_without_backward() -> bool:
        marks_steps = tracker.ends_in_backward or tracker.found_by == "backward pass"
        return tracker.backwards > 0 and not marks_steps

    thinned = f"the device's clock was read every {THINNED} steps"
    slowly, no_cpu = f"samples were taken every {_SLOW_SECONDS:.0f} s", "the CPU time of waits was not read"
    found = [Stage("device_steps", thinned, off(setattr, clock, "every", THINNED), lambda: clock.marks > 0)]
    if workers is not None:
        unsampled = "the loader's queue was not sampled"
        found.append(Stage("queue", unsampled, off(setattr, workers, "samples_queue", False), lambda: workers.seen))
    if stacks is not None:
        found.append(Stage("stacks", "no stacks were sampled", stacks.end, lambda: not stacks.reason))
    return (
        *found,
        Stage("samplers", slowly, sample_slowly, lambda: any(not sampler.reason for sampler in sampled)),
        Stage("wait_cpu", no_cpu, off(setattr, timer, "reads_cpu", False), lambda: timer.fetches > 0),
        Stage("backward", "backward passes were not timed", time_no_backward, can_do_without_backward),
    )
