"""Steps in turns: of three neighbouring runs of a few steps one has what a recording hung into torch, two have not.

What else changes on a shared machine changes little from one step to the next. The first step of each run is not
counted: it finds the code that has just been put back, or taken out, colder than a loop that goes on does. The two
without are the control of each other. The recording's own threads go on through all three; what a step takes longer
while one of them works is told by the steps beside it, and added for as many steps as that happens in.
"""

import math
import random
import statistics
import threading
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from time import clock_gettime_ns, perf_counter_ns, pthread_getcpuclockid, thread_time_ns
from typing import Any, NamedTuple

from overhead_benchmark.hung import Hung, Watch
from overhead_benchmark.variants import Step, Variant

#: A run's first seconds are not its usual ones: capture times itself in 500 steps, looks closer at the first 1,000
#: fetches, and for imports for 10 s.
_SETTLE_S, _SETTLE_STEPS = 11.0, 1_050
#: Then the recording's threads are timed for so long, while it records every step.
_TIMED_S = 5.0
#: Fewer turns are for trying things out, and need not settle.
_ENOUGH_TURNS = 30
_OWN = "profilerkit-"
#: Steps of a run that are counted, behind the first.
_COUNTED = 2
#: Turns in which the hooks are timed where they hang: one for so many others, and at most as many as tell it to some
#: tenths of a microsecond.
_FOR_EACH_WATCHED, _WATCHED_TURNS = 3, 200
#: What takes a step far longer than usual has nothing to do with a recording: it counts as the largest of the rest.
_CUT_RATIO = 0.05


class _Took(NamedTuple):
    """A step.

    Attributes:
        thread_cpu: CPU time of the training thread, ns.
        wall: wall time, ns.
        is_shared: a thread of the recording worked in it.
        asks: the recording goes a longer way in this step than in most.
    """

    thread_cpu: int
    wall: int
    is_shared: bool
    asks: bool


@dataclass(frozen=True, slots=True)
class Turns:
    """What the turns of one variant gave.

    Attributes:
        with_tool: the counted steps of each turn with the tool; ``bare`` those without.
        extra_ns: what the tool adds to a step beside, by clock.
        hooks: the same, of turns in which the clock stands still but in hooks; ``None`` for the control.
        enter_ns: time to switch the tool on; ``leave_ns`` off.
    """

    with_tool: list[list[_Took]]
    bare: list[list[_Took]]
    extra_ns: dict[str, float]
    enter_ns: int
    leave_ns: int
    hooks: tuple[list[list[int]], list[list[int]], float] | None = None

    def as_json(self) -> dict[str, Any]:
        """For the file that the program writes: ns by clock, turn and step."""
        return {
            "hooks": self.hooks and dict(zip(("turns_with", "turns_bare", "extra_ns"), self.hooks, strict=True)),
            "turns_with": _by_clock(self.with_tool),
            "turns_bare": _by_clock(self.bare),
            "extra_ns": self.extra_ns,
            "enter_ns": [self.enter_ns],
            "leave_ns": [self.leave_ns],
        }


def _by_clock(turns: list[list[_Took]]) -> dict[str, list[list[int]]]:
    read = {"thread_cpu": "thread_cpu", "wall": "wall", "process_cpu": "thread_cpu"}
    return {clock: [[getattr(took, of) for took in turn] for turn in turns] for clock, of in read.items()}


def measure(variant: Variant, step_s: float, turns: int, seed: int) -> tuple[Turns, Turns]:
    """What a recording adds to a step, and the control. All ranks make the same steps in the same order.

    With the hooks and without the batches are of one loader: those of another would lie ready for another time.

    Args:
        variant: a recording of ours.
        step_s: about how long one takes.
        turns: how many.
        seed: of the order within a turn.
    """
    order, hung = random.Random(seed), Hung()
    settle = max(_SETTLE_STEPS, math.ceil(_SETTLE_S / step_s)) if turns >= _ENOUGH_TURNS else 2
    took: dict[str, list[list[_Took]]] = {"with": [], "without": [], "again": []}
    entering_ns = perf_counter_ns()
    with hung.noted(), variant() as step:
        enter_ns = perf_counter_ns() - entering_ns
        for _ in range(settle):
            step()
        hung.settled()
        own, asks = _Own(), _asks()
        own_ns = _own_ns(own, step, max(2, math.ceil(_TIMED_S / step_s)) if turns >= _ENOUGH_TURNS else 2)
        names = list(took)
        for _ in range(turns):
            order.shuffle(names)
            for name in names:
                hung.put(back=name == "with")
                step()
                took[name].append([_made(step, own, asks) for _ in range(_COUNTED)])
        hooks = _hook_time(hung, step, asks, min(math.ceil(turns / _FOR_EACH_WATCHED), _WATCHED_TURNS), order)
        hung.put(back=True)
        leaving_ns = perf_counter_ns()
    leave_ns = perf_counter_ns() - leaving_ns
    bare_steps = [first + second for first, second in zip(took["without"], took["again"], strict=True)]
    extra_ns = {
        clock: _more(bare_steps, clock, attrgetter("is_shared")) + _more(took["with"], clock, attrgetter("asks"))
        for clock in ("thread_cpu", "wall")
    }
    extra_ns["process_cpu"] = extra_ns["thread_cpu"] + own_ns
    ours = Turns(took["with"], bare_steps, extra_ns, enter_ns, leave_ns, hooks)
    return ours, Turns(took["again"], took["without"], dict.fromkeys(extra_ns, 0.0), 0, 0)


class _Own:
    """The CPU time of the recording's own threads."""

    def __init__(self) -> None:
        threads = [thread.ident for thread in threading.enumerate() if thread.name.startswith(_OWN)]
        self._clocks = [pthread_getcpuclockid(ident) for ident in threads if ident is not None]

    def read_ns(self) -> int:
        """All of it until now."""
        return sum(map(clock_gettime_ns, self._clocks))


def _own_ns(own: _Own, step: Step, steps: int) -> float:
    """The CPU time of the recording's own threads, ns per step, while every step is recorded."""
    before_ns = own.read_ns()
    for _ in range(steps):
        step()
    return (own.read_ns() - before_ns) / steps


def _hook_time(
    hung: Hung, step: Step, asks: Callable[[], bool], turns: int, order: random.Random
) -> tuple[list[list[int]], list[list[int]], float]:
    """The time in hooks of steps with them and without, ns by turn and step, and what few of those with take longer.

    Nearly all of a step is left out, and with it what makes two steps differ. What hooks cost the code after them, by
    taking its place in the caches, is left out, too.
    """
    took: dict[bool, list[list[_Took]]] = {True: [], False: []}
    sides, watch = list(took), Watch()
    for _ in range(turns):
        order.shuffle(sides)
        for back in sides:
            hung.put_watched(watch, back=back)
            step()
            took[back].append([_watched(step, watch, asks) for _ in range(_COUNTED)])
    with_hooks, bare = ([[one.wall for one in turn] for turn in took[back]] for back in (True, False))
    return with_hooks, bare, _more(took[True], "wall", attrgetter("asks"))


def _watched(step: Step, watch: Watch, asks: Callable[[], bool]) -> _Took:
    """A step of which only the time in hooks counts."""
    is_asked, before_ns = asks(), watch.spent_ns
    step()
    return _Took(0, watch.spent_ns - before_ns, False, is_asked)


def _asks() -> Callable[[], bool]:
    """Return whether the next fetch takes the slow path."""
    from profilerkit.capture.session import active  # noqa: PLC0415 - the peers' environments do not have it

    session = active()
    assert session is not None
    tracker = session._tracker
    return lambda: tracker.fast == 0


def _made(step: Step, own: _Own, asks: Callable[[], bool]) -> _Took:
    is_asked, before_ns = asks(), own.read_ns()
    wall_ns, cpu_ns = perf_counter_ns(), thread_time_ns()
    step()
    cpu_ns, wall_ns = thread_time_ns() - cpu_ns, perf_counter_ns() - wall_ns
    return _Took(cpu_ns, wall_ns, own.read_ns() > before_ns, is_asked)


def _more(turns: list[list[_Took]], clock: str, kind: Callable[[_Took], bool]) -> float:
    """What the rarer of two kinds of steps take longer than the others beside them, spread over all, ns per step.

    The median step is one of the more frequent kind. Means, because the others may be of several kinds.
    """
    longer: dict[bool, list[float]] = {True: [], False: []}
    for turn in turns:
        middle = statistics.median(getattr(took, clock) for took in turn)
        for took in turn:
            longer[kind(took)].append(getattr(took, clock) - middle)
    if not longer[True] or not longer[False]:
        return 0.0
    every = sorted(longer[True] + longer[False])
    most = every[-1 - math.ceil(_CUT_RATIO * len(every))] if len(every) > 1 else every[0]
    few, many = sorted(longer.values(), key=len)
    rare, usual = (statistics.fmean(min(value, most) for value in values) for values in (few, many))
    return len(few) / len(every) * (rare - usual)
