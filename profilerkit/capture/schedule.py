"""Decides at which step a deep window opens: by schedule, or where slow steps are expected again.

Windows by schedule open at the same step on all ranks. Any other one has to be asked for far enough ahead that every
rank hears of it in time. A rank that is alone may wait until its steps have settled.
"""

import sys
from collections import deque
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from profilerkit.capture.settings import Settings
from profilerkit.capture.steps import NEVER, Quiet
from profilerkit.rundir.layout import FLUSH_SECONDS, WindowRequest
from profilerkit.units import format_ns

_LONGEST_WAIT = 20  #: steps the first window waits for others to settle, at most
_LOOKED_AT_BEFORE = 2  #: what is compiled is counted from so many steps before the first window on
#: A request is written and seen within two beats of the writers, 1 s; a busy host or file system may take 2 s. NFS
#: may show it later still: a rank that hears of it too late says so.
_AHEAD_NS = round(4 * FLUSH_SECONDS * 1e9)
_LOOK_AGAIN = 16  #: a rank that would ask for a window looks at its steps at this distance whether they have settled
#: Slow steps longer than this, and than a window of typical steps, are not traced: each second of operators takes
#: about 50 MB of memory and disk, and an evaluation takes minutes.
_LONGEST_SLOW_NS = 2 * 1_000_000_000
_MOST_TRIES = 5  #: how often a window may give way to another profiler and be tried again

#: Steps that have to be alike, and how many times longer or shorter than their median they may be.
_ALIKE = 3
_ALIKE_RATIO = 1.5
#: A difference that the scheduler of a busy host makes by itself; compiling and tuning take longer.
_NOISE_NS = 20_000_000


class Settling:
    """Asked once at the start of a step."""

    def __init__(self) -> None:
        self._frames = _compiled_frames()  # the process may have compiled before

    def is_over(self, last_ns: Sequence[int]) -> bool:
        """Whether the last steps are alike, and torch.compile compiled nothing since the question was asked last.

        Fewer than three steps are not compared: whoever traces so early wants to see the beginning.
        """
        frames = _compiled_frames()
        compiled, self._frames = frames != self._frames, frames
        if compiled:
            return False
        recent = sorted(last_ns[-_ALIKE:])
        if len(recent) < _ALIKE:
            return True
        usual = recent[_ALIKE // 2]
        longest = max(_ALIKE_RATIO * usual, usual + _NOISE_NS)
        shortest = min(usual / _ALIKE_RATIO, usual - _NOISE_NS)
        return shortest <= recent[0] and recent[-1] <= longest


def _compiled_frames() -> int:
    counters = getattr(sys.modules.get("torch._dynamo.utils"), "counters", None)
    return int(counters["frames"].get("total", 0)) if counters and "frames" in counters else 0


_KEPT = 64  #: steps of which the median is taken
_ANEW = 16  #: the median is taken anew after so many steps: sorting 64 numbers costs 2 µs, so 0.1 µs per step
_FEWEST = 20  #: before so many steps nothing is said to be slow
SLOW_RATIO = 3  #: a step is slow above this multiple of the median
_TO_PREDICT = 3  #: slow steps after which their distances tell a period: one distance may be chance
_MOST_SPREAD = 8  #: distances that differ by no more than this have a period; the window is longer by as much
#: Slow steps without a period are worth a window if so many steps, the longest such window, are likely to hold one.
LONGEST_STEPS = 20
_AROUND = 2  #: steps traced before and after the one that is expected to be slow


class Expected(NamedTuple):
    """Where slow steps are expected: the first step to trace, at most how many, how often they come, also in words."""

    first_step: int
    steps: int
    period: int
    why: str


class StepTimes:
    """The times of the last steps."""

    __slots__ = ("_ring", "limit_ns", "median_ns", "to_go")

    def __init__(self) -> None:
        self._ring: deque[int] = deque(maxlen=_KEPT)
        self.to_go = _FEWEST  #: steps until the median is taken anew
        self.limit_ns = NEVER  #: a longer step is slow, by the last median
        self.median_ns = 0  #: of the last steps; 0 until there are enough

    def add(self, dur_ns: int, steps: int = 1) -> bool:
        """Take the time of so many steps, 0.2 µs; return whether one of them is slow."""
        self._ring.append(dur_ns // steps)
        self.to_go -= 1
        if not self.to_go:
            self.median_ns = sorted(self._ring)[len(self._ring) // 2]
            self.limit_ns = SLOW_RATIO * self.median_ns
            self.to_go = _ANEW
        return self.is_slow(dur_ns, steps)

    def is_slow(self, dur_ns: int, steps: int = 1) -> bool:
        """Return whether one of so many steps is slow, which took this long together."""
        return self.slowest_ns(dur_ns, steps) > self.limit_ns

    def slowest_ns(self, dur_ns: int, steps: int) -> int:
        """Return what the slowest of so many steps took, which took this long together, if the others were usual.

        >>> times = StepTimes()
        >>> for _ in range(20): _ = times.add(10)
        >>> times.slowest_ns(150, 8)
        80
        """
        return dur_ns - (steps - 1) * self.median_ns

    def last(self, count: int) -> list[int]:
        """The last steps, fewer at the beginning."""
        return list(self._ring)[-count:]


class Recurrence:
    """The slow steps so far, and where the next one is expected."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._last = -2

    def add(self, number: int, steps: int = 1) -> None:
        """Step ``number``, or one of the steps up to it, was slow; neighbours count once."""
        if number - steps > self._last:
            self._starts = [*self._starts[-_TO_PREDICT:], number]
        self._last = number

    def expected(self, earliest: int) -> Expected | None:
        """Where a slow step is expected, to be traced from ``earliest`` on at the earliest; ``None`` if nobody knows.

        >>> seen = Recurrence()
        >>> for step in (100, 200, 300): seen.add(step)
        >>> seen.expected(earliest=302)
        Expected(first_step=398, steps=5, period=100, why='every 100 steps')
        """
        starts = self._starts
        if len(starts) < _TO_PREDICT:
            return None
        gaps = [after - before for before, after in pairwise(starts)]
        period, spread = min(gaps), max(gaps) - min(gaps)
        if spread <= min(_MOST_SPREAD, period // 4):
            first = starts[-1] + period - _AROUND
            first += -(-max(0, earliest - first) // period) * period
            return Expected(first, spread + 2 * _AROUND + 1, period, f"every {period} steps")
        usual = sorted(gaps)[len(gaps) // 2]
        if len(starts) > _TO_PREDICT and usual <= LONGEST_STEPS:
            return Expected(earliest, LONGEST_STEPS, usual, f"about every {usual} steps")
        return None


class Schedule:
    """When to open.

    Once the device's time of steps is known, it alone decides which are slow: a host that runs ahead waits now and then
    until the device has caught up, and loses nothing by it.
    """

    def __init__(self, settings: Settings, *, alone: bool, asks: bool) -> None:
        """``alone``: no other rank traces. ``asks``: this rank sees to it that all of them get a typical window."""
        self._settings = settings
        self._alone, self._asks = alone, asks
        self._times, self._recurrence, self._settling = StepTimes(), Recurrence(), Settling()
        self._device_times: StepTimes | None = None
        self._first_is_due = True
        self._due = settings.warmup_steps
        self._planned: list[WindowRequest] = []
        self._to_ask = False  # the first window opened too early for all ranks, or not at all
        self._watches_slow_steps = True
        self._disturbed = -1
        self._tries = 0
        self.waits = False
        self.look_at = max(0, settings.warmup_steps - _LOOKED_AT_BEFORE)

    def quiet(self) -> Quiet:
        """The next look, slow steps, and the next time that it may change which steps those are."""
        slow_ns = self._times.limit_ns if self._device_times is None else NEVER
        return Quiet(self.look_at, slow_ns, self._times.to_go)

    def due(self, number: int) -> WindowRequest | None:
        """The window to open at the start of step ``number``, which only warms the profiler up."""
        if self._planned and number + 1 >= self._planned[0].first_step:
            return self._planned.pop(0)
        plan = self._scheduled(number)
        self.look_at = self._next_look(number)
        return plan

    def plan(self, plan: WindowRequest) -> None:
        """Open this one at its step, if that is still to come."""
        self._planned = sorted([*self._planned, plan], key=lambda other: other.first_step)
        self._watches_slow_steps &= plan.kind != "anomaly"
        self.look_at = min(self.look_at, plan.first_step - 1)

    def opened(self, plan: WindowRequest) -> None:
        """The window is open; the one after it is due."""
        if plan.kind == "scheduled":
            self._first_is_due = self.waits = False
        self._pass(plan.first_step)

    def missed(self, plan: WindowRequest) -> None:
        """The window could not be opened, or gave way: another one takes its place."""
        if plan.kind == "scheduled" and self._alone:
            self._tries += not self._first_is_due  # it had been opened
            self._first_is_due, self._due = self._tries < _MOST_TRIES, self._settings.warmup_steps
        elif plan.kind == "scheduled":
            self._first_is_due, self._to_ask = False, self._asks and not self._tries
            self._tries += 1
        self._pass(plan.first_step)

    def closed(self, number: int) -> None:
        """A window is closed; step ``number`` waited for its export."""
        self._disturbed = number
        self.look_at = self._next_look(number - 1)

    def stop(self) -> None:
        """Open nothing any more."""
        self._planned, self._first_is_due, self._to_ask, self._due = [], False, False, NEVER
        self._watches_slow_steps = False
        self.look_at = NEVER

    def timed_on_host(self, dur_ns: int) -> bool:
        """Take a step's time on the host, outside of any window; return whether it is slow."""
        return self._times.add(dur_ns) and self._device_times is None

    def timed_on_device(self, dur_ns: int, steps: int) -> bool:
        """Take the time of so many steps on the device, outside of any window; return whether one of them is slow."""
        if self._device_times is None:  # what was slow by the other clock says nothing of the next slow step
            self._device_times, self._recurrence = StepTimes(), Recurrence()
        return self._device_times.add(dur_ns, steps)

    def device_is_lost(self) -> None:
        """Judge steps by the host's clock again: the device's has failed."""
        self._device_times, self._recurrence = None, Recurrence()

    def is_slow(self, dur_ns: int, steps: int, *, on_device: bool) -> bool:
        """Return whether one of so many steps is slow by this clock, if steps are judged by it."""
        return on_device is (self._device_times is not None) and self._judged.is_slow(dur_ns, steps)

    @property
    def _judged(self) -> StepTimes:
        return self._times if self._device_times is None else self._device_times

    def asked_for(self, number: int) -> WindowRequest | None:
        """The window that all ranks are to be asked for at the start of step ``number``; ``None`` for none."""
        if not self._to_ask or not self._settling.is_over(self._times.last(3)):
            return None
        self._to_ask = False
        return WindowRequest(
            self._earliest(number), self._settings.trace_steps, "scheduled", "when the steps had settled"
        )

    def slow(self, number: int, dur_ns: int, at: int, steps: int = 1) -> WindowRequest | None:
        """Return the window in which the next slow step is expected; ``None`` if nobody knows yet.

        One of the ``steps`` up to ``number`` was slow; they took ``dur_ns`` together. The host has ended step ``at``.
        """
        longest_ns = max(_LONGEST_SLOW_NS, self._settings.trace_steps * self._judged.median_ns)
        is_disturbed = number - steps < self._disturbed
        if not self._watches_slow_steps or is_disturbed or self._judged.slowest_ns(dur_ns, steps) > longest_ns:
            return None
        self._recurrence.add(number, steps)
        expected = self._recurrence.expected(self._earliest(at + 1))
        if expected is None:
            return None
        self._watches_slow_steps = False
        first_step, most, period, often = expected
        if period <= self._settings.trace_steps:
            return None  # a window of typical steps holds one
        usual = format_ns(self._judged.median_ns)
        return WindowRequest(
            first_step, most, "anomaly", f"{often} a step takes more than {SLOW_RATIO} times the median of {usual}"
        )

    def _earliest(self, number: int) -> int:
        if self._alone:
            return number + 1
        step_ns = self._judged.median_ns or min(self._judged.last(3), default=0)
        return number + 1 + -(-_AHEAD_NS // max(step_ns, 1000))

    def _scheduled(self, number: int) -> WindowRequest | None:
        every, steps = self._settings.trace_every, self._settings.trace_steps
        if self._first_is_due:
            settled = self._settling.is_over(self._times.last(3))
            if number < self._due:
                return None
            self.waits = self._alone and not settled and number < self._settings.warmup_steps + _LONGEST_WAIT
            if self.waits:
                return None
            self._to_ask = self._asks and not settled
            why = "once no other profiler was active" if self._tries else "after the warm-up"
            return WindowRequest(number + 1, steps, "scheduled", why)
        if number < self._due:
            return None
        on_time = number == self._due
        self._pass(number + 1)
        return WindowRequest(number + 1, steps, "scheduled", f"every {every} steps") if on_time else None

    def _pass(self, first_step: int) -> None:
        every = self._settings.trace_every
        if not self._first_is_due:
            past = max(0, first_step - self._settings.warmup_steps)
            self._due = NEVER if every is None else self._settings.warmup_steps + (past // every + 1) * every
        self.look_at = self._next_look(first_step - 1)

    def _next_look(self, number: int) -> int:
        if self._first_is_due:
            return max(number + 1, self._settings.warmup_steps - _LOOKED_AT_BEFORE)
        planned = self._planned[0].first_step - 1 if self._planned else NEVER
        return max(number + 1, min(self._due, planned, number + _LOOK_AGAIN if self._to_ask else NEVER))
