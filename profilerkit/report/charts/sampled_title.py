"""The finding of the sampled strips in words: a clock that fell, a thread that waits for a core, or an even course."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from statistics import fmean, median

import msgspec

from profilerkit.model.change import revise
from profilerkit.model.run import Series
from profilerkit.report.inert import inert
from profilerkit.report.wording import share_text
from profilerkit.units import format_value

#: Utilisation above which a sample is one of a device at work.
_AT_WORK = 0.5
#: A clock that falls by less, as a share of itself, is even (a choice).
_FALL = 0.05
#: Points on each side of a fall.
_FEWEST_ASIDE = 3
#: Shares of the time below which a clock held down, or a thread that waits for a core, does not come first.
_HELD_RATIO, _QUEUED_RATIO = 0.01, 0.02
#: Memory that ends by so much above where it began has grown (a choice).
_GROWTH = 0.1
#: What holds a clock down, by the signal that says for which share of the time.
_HOLDERS = {
    "gpu.power_throttle": "the power limit",
    "gpu.sw_thermal_throttle": "heat",
    "gpu.hw_thermal_throttle": "heat",
    "gpu.hw_slowdown": "the board",
}


class Sampled(msgspec.Struct, frozen=True):
    """One signal that is drawn: its unit as recorded, how many samples, and its points ``(ns, value)`` in order.

    ``rank`` and ``device`` are whose it is, as of the series.
    """

    unit: str
    n: int
    points: tuple[tuple[int, float], ...]
    rank: int | None = None
    device: str | None = None

    def said(self, value: float | None) -> str:
        """A value with its unit."""
        return format_value(value, inert(self.unit, 20))

    def near(self, at_ns: int) -> float | None:
        """The value of the closest point; ``None`` where that is farther off than points are from each other."""
        usual = median(later - earlier for (earlier, _), (later, _) in pairwise(self.points))
        closest, value = min(self.points, key=lambda point: abs(point[0] - at_ns))
        return value if abs(closest - at_ns) <= usual else None

    def within(self, window: tuple[float, float] | None) -> "Sampled":
        """The points in a window of seconds; all of them without a window, or where none lies in it."""
        return revise(self, points=self._inside(window) or self.points)

    def reaches(self, window: tuple[float, float]) -> bool:
        """Whether any point lies in the window of seconds."""
        return bool(self._inside(window))

    def _inside(self, window: tuple[float, float] | None) -> tuple[tuple[int, float], ...]:
        low, high = window or (0.0, 0.0)
        return tuple(point for point in self.points if low <= point[0] / 1e9 <= high)

    @property
    def values(self) -> list[float]:
        """The values in order."""
        return [value for _, value in self.points]


def title_of(shown: Mapping[str, Sampled], samples: Sequence[Series], steady: tuple[float, float] | None) -> str:
    """One or two clauses with numbers.

    Args:
        shown: the signals that are drawn, by name; at least one.
        samples: all signals.
        steady: the window that the numbers are about, in seconds; ``None`` takes all points.
    """
    judged = {name: sampled.within(steady) for name, sampled in shown.items()}
    clauses = list(_device(judged, samples)) or list(_host(judged))
    text = "; ".join(clauses[:2])
    return text[:1].upper() + text[1:]


def _device(judged: Mapping[str, Sampled], samples: Sequence[Series]) -> Iterator[str]:
    """Most important first: a clock that fell, what held it down, how busy the device is, its clock and its power."""
    clock, busy = judged.get("gpu.sm_clock"), judged.get("gpu.utilization")
    fall = _fall(_at_work(clock, busy)) if clock else None
    if clock and fall:
        before, after, at_ns = fall
        yield f"the SM clock fell from {clock.said(before)} to {clock.said(after)} at second {at_ns / 1e9:,.0f}"
    down = "it" if fall else "the SM clock"
    whose = {(sampled.rank, sampled.device) for sampled in judged.values()}
    holders = [series for series in samples if series.name in _HOLDERS and (series.rank, series.device) in whose]
    held, name = max(((series.mean, series.name) for series in holders), default=(0.0, ""))
    if held >= _HELD_RATIO:
        yield f"{_HOLDERS[name]} held {down} down for {share_text(held)} of the whole recording"
    if busy:
        yield f"a kernel runs {share_text(fmean(busy.values))} of the time"
    if clock and not fall:
        yield f"the SM clock {_range(clock)}"
    for name, words in (("gpu.power", "power"), ("gpu.temperature", "the temperature")):
        if name in judged:
            yield f"{words} {_range(judged[name])}"


def _range(sampled: Sampled) -> str:
    low, high = sampled.said(min(sampled.values)), sampled.said(max(sampled.values))
    return f"stays at {high}" if low == high else f"stays between {low} and {high}"


def _at_work(clock: Sampled, busy: Sampled | None) -> list[tuple[int, float]]:
    """The points of the clock while the device works: an idle device lowers its clock by itself."""
    if busy is None or len(busy.points) < 2:
        return list(clock.points)
    return [point for point in clock.points if (busy.near(point[0]) or 0.0) > _AT_WORK]


def _fall(points: Sequence[tuple[int, float]]) -> tuple[float, float, int] | None:
    """The clock before and after its largest fall, and when that was; ``None`` for one that is even or scattered.

    The two sides are split where their means lie farthest apart; nine in ten before lie above nine in ten after.
    """
    values = [value for _, value in points]
    splits = range(_FEWEST_ASIDE, len(values) - _FEWEST_ASIDE + 1)
    if not splits:
        return None
    split = max(splits, key=lambda place: fmean(values[:place]) - fmean(values[place:]))
    before, after = sorted(values[:split]), sorted(values[split:])
    high, low = median(before), median(after)
    apart = before[len(before) // 10] > after[-1 - len(after) // 10]
    return (high, low, points[split][0]) if apart and high - low >= _FALL * high else None


def _host(judged: Mapping[str, Sampled]) -> Iterator[str]:
    """Most important first: a thread that waits for a core, how busy the processors are, and the memory."""
    busy, queued, memory = (judged.get(f"host.{name}") for name in ("cpu", "thread_queue", "process_memory"))
    waits = fmean(queued.values) if queued else 0.0
    if waits >= _QUEUED_RATIO:
        yield f"the training thread waits for a core {share_text(waits)} of the time"
    if busy:
        yield f"the host's processors are {share_text(fmean(busy.values))} busy"
    if memory:
        third = -(-len(memory.values) // 3)
        first, last = fmean(memory.values[:third]), fmean(memory.values[-third:])
        if last - first >= _GROWTH * first:
            yield f"the process grew from {memory.said(first)} to {memory.said(last)}"
    if queued and waits < _QUEUED_RATIO:
        yield f"the training thread hardly waits for a core, {share_text(waits)} of the time"
    if memory:
        yield f"the process holds {memory.said(fmean(memory.values))}"
