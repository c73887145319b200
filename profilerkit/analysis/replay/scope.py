"""Which steps are replayed: a run of neighbours around the middle of the judged ones, with one before to lead in."""

import msgspec
import numpy as np

from profilerkit.analysis.intervals import I64
from profilerkit.analysis.replay.graph import Bools
from profilerkit.analysis.steps.find import TraceSteps

#: Device events replayed at most: 20,000 replay in about 20 ms with eight changes, next to about 0.3 s of analysis for
#: a trace of that many (2-core machine). A choice.
MOST_EVENTS = 20_000
#: Judged steps replayed at least, whatever they hold.
FEWEST_STEPS = 3
#: How many times as many events these may hold (a choice).
MOST_EXCESS = 4


class Scope(msgspec.Struct, frozen=True):
    """The steps that are replayed.

    Attributes:
        edge: ``(n_steps + 1,)`` int64 ns, where they begin and the last one ends.
        judged: ``(n_steps,)`` bool, steps that count.
        number: ``(n_steps,)`` int64 their numbers.
        of: how many steps are judged in all.
        ends_when_done: the last step ends when the device is done, not where a next one begins.
    """

    edge: I64
    judged: Bools
    number: I64
    of: int
    ends_when_done: bool

    @property
    def start_ns(self) -> int:
        """Where the replay begins."""
        return int(self.edge[0])

    @property
    def end_ns(self) -> int:
        """Where it ends."""
        return int(self.edge[-1])


def scope_of(steps: TraceSteps, device_start_ns: I64, most_events: int = MOST_EVENTS) -> Scope | None:
    """The steps to replay; ``None`` without a judged one, and where so few of them hold far more than is replayed.

    Args:
        steps: the steps of the trace.
        device_start_ns: starts of the device's events, sorted.
        most_events: what is replayed at most; ``FEWEST_STEPS`` may hold ``MOST_EXCESS`` times as many.
    """
    judged = steps.judged
    if not judged.any():
        return None
    first, last = _longest(steps, judged)
    before = np.searchsorted(device_start_ns, steps.start)
    after = np.searchsorted(device_start_ns, steps.end)
    chosen = np.flatnonzero(judged[first : last + 1]) + first
    low = high = int(chosen[len(chosen) // 2])
    while (low, high) != (first, last):
        wider = (max(low - 1, first), high) if high - low > 0 and high - chosen.mean() > chosen.mean() - low else None
        wider = wider if wider and wider != (low, high) else (low, min(high + 1, last))
        wider = wider if wider != (low, high) else (max(low - 1, first), high)
        enough = judged[low : high + 1].sum() >= FEWEST_STEPS
        if enough and after[wider[1]] - before[wider[0]] > most_events:
            break
        low, high = wider
    if after[high] - before[low] > MOST_EXCESS * most_events:
        return None
    lead = int(low > 0 and steps.end[low - 1] == steps.start[low])
    inside = slice(low - lead, high + 1)
    counted = judged[inside].copy()
    counted[:lead] = False
    followed = high + 1 < len(steps.start) and steps.start[high + 1] == steps.end[high]
    return Scope(
        edge=np.r_[steps.start[inside], steps.end[high]],
        judged=counted,
        number=steps.index[inside],
        of=int(judged.sum()),
        ends_when_done=not followed,
    )


def _longest(steps: TraceSteps, judged: Bools) -> tuple[int, int]:
    """First and last judged step of the stretch of adjacent steps that holds most of them."""
    stretch = np.r_[0, np.cumsum(steps.start[1:] != steps.end[:-1])]
    most = int(np.bincount(stretch, weights=judged).argmax())
    own = np.flatnonzero(judged & (stretch == most))
    return int(own[0]), int(own[-1])
