"""Steps in turns: of three neighbouring steps of one recording one is made with what it hung into torch, two without.

What else changes on a shared machine changes little from one step to the next. The difference of the two without is the
control. The recording's own threads go on through all three; what a step takes longer while one of them works is told
by the steps beside it, and added for as many steps as that happens in.
"""

import gc
import math
import random
import statistics
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import clock_gettime_ns, perf_counter_ns, pthread_getcpuclockid, thread_time_ns
from typing import Any, NamedTuple

from overhead_benchmark.pairs import Pairs
from overhead_benchmark.variants import Step, Variant

#: A run's first seconds are not its usual ones: capture times itself in 500 steps, and looks for imports for 10 s.
_SETTLE_S, _SETTLE_STEPS = 11.0, 600
#: Fewer turns are for trying things out, and need not settle.
_ENOUGH_TURNS = 30
_OWN = "profilerkit-"


class _Took(NamedTuple):
    """CPU time of the training thread and wall time of a step, ns; whether a thread of the recording worked in it."""

    thread_cpu: int
    wall: int
    is_shared: bool


class _Hung:
    """What a recording hung into torch and Python, to be taken out and put back between two steps."""

    def __init__(self) -> None:
        from torch.optim import optimizer  # noqa: PLC0415 - as the rest of torch, in the measured program alone

        self._lists: list[Any] = [optimizer._global_optimizer_pre_hooks, optimizer._global_optimizer_post_hooks]
        self._bare = [dict(found) for found in self._lists]
        self._with: list[dict[Any, Any]] = []
        self._collecting: list[list[Any]] = [list(gc.callbacks), []]
        self._attributes: list[tuple[Any, str, Any, Any]] = []

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Attributes that are replaced meanwhile are remembered."""
        from profilerkit.capture.patches import Patches  # noqa: PLC0415 - the peers' environments do not have it

        replace = Patches.patch

        def patch(patches: Any, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
            before = owner.__dict__[name]
            replace(patches, owner, name, make)
            self._attributes.append((owner, name, before, owner.__dict__[name]))

        Patches.patch = patch  # type: ignore[method-assign]
        try:
            yield
        finally:
            Patches.patch = replace  # type: ignore[method-assign]

    def settled(self) -> None:
        """All is hung by now."""
        self._with = [dict(found) for found in self._lists]
        self._collecting[1] = list(gc.callbacks)

    def put(self, *, back: bool) -> None:
        """Everything back, or out."""
        for owner, name, before, ours in self._attributes:
            setattr(owner, name, ours if back else before)
        for found, hooks in zip(self._lists, self._with if back else self._bare, strict=True):
            found.clear()
            found.update(hooks)
        gc.callbacks[:] = self._collecting[back]


def measure(variant: Variant, bare: Step, step_s: float, turns: int, seed: int) -> tuple[Pairs, Pairs]:
    """What a recording adds to a step, and the control. All ranks make the same steps in the same order.

    Args:
        variant: a recording of ours.
        bare: a step as it is without.
        step_s: about how long one takes.
        turns: of three steps each.
        seed: of the order of a turn's steps.
    """
    order, hung, found, control = random.Random(seed), _Hung(), Pairs(), Pairs()
    settle = max(_SETTLE_STEPS, math.ceil(_SETTLE_S / step_s)) if turns >= _ENOUGH_TURNS else 2
    took: dict[str, list[_Took]] = {"with": [], "without": [], "again": []}
    entering_ns = perf_counter_ns()
    with hung.noted(), variant() as step:
        found.enter_ns.append(perf_counter_ns() - entering_ns)
        for _ in range(settle):
            step()
        hung.settled()
        own = _Own()
        before_ns, names = own.read_ns(), list(took)
        for _ in range(turns):
            order.shuffle(names)
            for name in names:
                hung.put(back=name == "with")
                took[name].append(_made(step if name == "with" else bare, own))
        own_ns = (own.read_ns() - before_ns) / (3 * turns)
        hung.put(back=True)
        leaving_ns = perf_counter_ns()
    found.leave_ns.append(perf_counter_ns() - leaving_ns)
    control.enter_ns, control.leave_ns = [0], [0]
    for clock in ("thread_cpu", "wall"):
        beside_ns = _beside(took, clock)
        ours, first, second = ([getattr(one, clock) for one in took[name]] for name in took)
        usual = [(a + b) / 2 for a, b in zip(first, second, strict=True)]
        found.added[clock] = [a - b + beside_ns for a, b in zip(ours, usual, strict=True)]
        control.added[clock] = [float(b - a) for a, b in zip(first, second, strict=True)]
        found.bare[clock], control.bare[clock] = usual, [float(value) for value in first]
    found.added["process_cpu"] = [value + own_ns for value in found.added["thread_cpu"]]
    control.added["process_cpu"] = control.added["thread_cpu"]
    found.bare["process_cpu"], control.bare["process_cpu"] = found.bare["thread_cpu"], control.bare["thread_cpu"]
    return found, control


class _Own:
    """The CPU time of the recording's own threads."""

    def __init__(self) -> None:
        threads = [thread.ident for thread in threading.enumerate() if thread.name.startswith(_OWN)]
        self._clocks = [pthread_getcpuclockid(ident) for ident in threads if ident is not None]

    def read_ns(self) -> int:
        """All of it until now."""
        return sum(map(clock_gettime_ns, self._clocks))


def _made(step: Step, own: _Own) -> _Took:
    before_ns = own.read_ns()
    wall_ns, cpu_ns = perf_counter_ns(), thread_time_ns()
    step()
    cpu_ns, wall_ns = thread_time_ns() - cpu_ns, perf_counter_ns() - wall_ns
    return _Took(cpu_ns, wall_ns, own.read_ns() > before_ns)


def _beside(took: dict[str, list[_Took]], clock: str) -> float:
    """What a step takes longer because threads of the recording work beside some of them, ns per step.

    Of the two steps of a turn without hooks one may be beside such work, and the other one not.
    """
    differences, shared = [], 0
    for first, second in zip(took["without"], took["again"], strict=True):
        shared += first.is_shared + second.is_shared
        if first.is_shared != second.is_shared:
            longer = getattr(first, clock) - getattr(second, clock)
            differences.append(longer if first.is_shared else -longer)
    return statistics.median(differences) * shared / (2 * len(took["again"])) if differences else 0.0
