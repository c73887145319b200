"""What was sampled, on the time axis of the steps: one strip under another, and their finding in words."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from statistics import fmean, median

import msgspec

from profilerkit.model import revise
from profilerkit.model.report import Report
from profilerkit.model.run import DEVICE_STRIPS, HOST_STRIPS, Series
from profilerkit.report.blocks import Axis, Chart, Shape, Table, Tick
from profilerkit.report.chart import Lane, Scale, height_px, lanes, polyline, rectangle
from profilerkit.report.inert import inert
from profilerkit.report.wording import drawn_rank, listed, plural, share_text
from profilerkit.units import format_count, format_ratio, format_value

#: Shares of the time below which a clock held down, or a thread that waits for a core, does not come first.
_HELD_RATIO, _QUEUED_RATIO = 0.01, 0.02
_GROWTH = 0.1  #: memory that ends by so much above where it began has grown (a choice)
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
    """One or two clauses with numbers about the ``steady`` window, in seconds; ``None`` takes all points.

    At least one signal is ``shown``.
    """
    judged = {name: sampled.within(steady) for name, sampled in shown.items()}
    clauses = list(_device(judged, samples)) or list(_host(judged))
    text = "; ".join(clauses[:2])
    return text[:1].upper() + text[1:]


def _device(judged: Mapping[str, Sampled], samples: Sequence[Series]) -> Iterator[str]:
    """Most important first: what held the clock down, how busy the device is, its clock, its power, its temperature."""
    whose = {(sampled.rank, sampled.device) for sampled in judged.values()}
    holders = [series for series in samples if series.name in _HOLDERS and (series.rank, series.device) in whose]
    held, name = max(((series.mean, series.name) for series in holders), default=(0.0, ""))
    if held >= _HELD_RATIO:
        yield f"{_HOLDERS[name]} held the SM clock down for {share_text(held)} of the whole recording"
    if busy := judged.get("gpu.utilization"):
        yield f"a kernel runs {share_text(fmean(busy.values))} of the time"
    for name, words in (
        ("gpu.sm_clock", "the SM clock"),
        ("gpu.power", "power"),
        ("gpu.temperature", "the temperature"),
    ):
        if name in judged:
            low, high = (judged[name].said(end(judged[name].values)) for end in (min, max))
            yield f"{words} stays at {high}" if low == high else f"{words} stays between {low} and {high}"


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


_FEWEST_POINTS = 5  #: fewer points are a few dots, not a course (a choice)
#: Where the points are this many times farther apart than usual, nothing was sampled, and no line is drawn.
_GAP_FACTOR = 3.0
_TABLE_ROWS = 20


class _Kind(msgspec.Struct, frozen=True):
    """How one signal is shown; ``least`` is what its scale reaches at least, in the signal's unit."""

    words: str
    colour: str
    least: float = 0.0


_KINDS = {
    "gpu.utilization": _Kind("A kernel runs", "compute", 1.0),
    "gpu.sm_clock": _Kind("SM clock", "mark"),
    "gpu.power": _Kind("Power", "mark"),
    "gpu.temperature": _Kind("Temperature", "mark"),
    "host.cpu": _Kind("Processors busy", "compute", 1.0),
    "host.thread_queue": _Kind("Training thread waits for a core", "overhead", 0.2),
    "host.process_memory": _Kind("Memory of the process", "memory"),
}


class _Span(msgspec.Struct, frozen=True):
    """Where the steps lie, in seconds since the first began; ``steady`` is ``None`` without a steady step."""

    end: float
    first: int
    last: int
    steady: tuple[float, float] | None


def sampled_strips(report: Report) -> Chart | None:
    """The figure; ``None`` where no signal of it was sampled often enough, or no step was timed."""
    names, span = _names(report.run.samples), _span(report)
    shown = {name: sampled for name in names if (sampled := _sampled(report.run.samples, name))}
    if not shown or span is None:
        return None
    times = [at_ns / 1e9 for sampled in shown.values() for at_ns, _ in sampled.points]
    x = Scale(min(0.0, *times), max(span.end, *times, 1e-3))
    kinds = [_KINDS[name] for name in shown]
    scales = [_scale(sampled, kind) for sampled, kind in zip(shown.values(), kinds, strict=True)]
    rows = list(zip(shown.values(), kinds, lanes(len(shown)), scales, strict=True))
    return Chart(
        anchor="sampled-strips",
        title=title_of(shown, report.run.samples, span.steady),
        caption=" ".join(_caption(report, names, shown, span)),
        height_px=height_px(len(shown)),
        shapes=(*_where(span, x, lanes(len(shown))), *(_line(*row, x) for row in rows)),
        x=x.across("Seconds since the first step began", _seconds),
        y=Axis("Each on a scale of its own", tuple(tick for row in rows for tick in _ticks(*row))),
        legend=(("rule pale", "Steady window"),) if span.steady else (),
        labels=tuple(lane.words(f"{kind.words}: mean {_mean(sampled, span)}") for sampled, kind, lane, _ in rows),
        table=_table(shown),
    )


def logged_strips(report: Report) -> Chart | None:
    """The figure of samplers' logs without steps: the use of each device, of a single one all that was sampled.

    ``None`` where no device was sampled often enough.
    """
    if report.trust.mode != "logs":
        return None
    use = [series for series in report.run.samples if series.name == "gpu.utilization"]
    shown = (
        use
        if len(use) > 1
        else [series for name in DEVICE_STRIPS for series in report.run.samples if series.name == name]
    )
    drawn = [(series, found) for series in shown if (found := _drawn(series)) is not None]
    if not drawn:
        return None
    timed = all(series.strip is not None and series.strip.timed for series, _ in drawn)
    x = Scale(0.0, max(at_ns / 1e9 for _, sampled in drawn for at_ns, _ in sampled.points) or 1.0)
    kinds = [_KINDS[series.name] for series, _ in drawn]
    scales = [_scale(sampled, kind) for (_, sampled), kind in zip(drawn, kinds, strict=True)]
    rows = list(zip((sampled for _, sampled in drawn), kinds, lanes(len(drawn)), scales, strict=True))
    words = [
        inert(series.device or "", 40) if len(use) > 1 else kind.words
        for (series, _), kind in zip(drawn, kinds, strict=True)
    ]
    busy = f"Busy {format_ratio(fmean(series.mean for series in use))} of the sampled time" if use else ""
    labelled = dict(zip(words, (sampled for _, sampled in drawn), strict=True))
    return Chart(
        anchor="logged-strips",
        title=busy or "What was sampled",
        caption=" ".join(_logged_caption(drawn, more=len(use) - len(drawn) if len(use) > 1 else 0)),
        height_px=height_px(len(drawn)),
        shapes=tuple(_line(*row, x) for row in rows),
        x=x.across("Seconds since the first sample" if timed else "Samples", _seconds if timed else _counted),
        y=Axis("Each on a scale of its own", tuple(tick for row in rows for tick in _ticks(*row))),
        legend=(),
        labels=tuple(
            lane.words(f"{word}: mean {sampled.said(series.mean)}")
            for word, lane, (series, sampled) in zip(words, lanes(len(drawn)), drawn, strict=True)
        ),
        table=_table(labelled, _seconds if timed else _counted, "Time" if timed else "Sample"),
    )


def _logged_caption(drawn: Sequence[tuple[Series, Sampled]], *, more: int) -> Iterator[str]:
    most = max((sampled for _, sampled in drawn), key=lambda sampled: sampled.n)
    yield f"{plural(most.n, 'sample')} of each, measured: the share of the time in which a kernel runs first."
    yield from _thinned(most)
    if more > 0:
        yield f"{plural(more, 'more device')} in the table."


def _thinned(most: Sampled) -> Iterator[str]:
    if (each := -(-most.n // len(most.points))) > 1:
        yield f"Each point is the mean of {each} samples, derived."


def _names(samples: Sequence[Series]) -> tuple[str, ...]:
    """The signals of the device where any of it was sampled, else those of the host."""
    return DEVICE_STRIPS if any(_sampled(samples, name) for name in DEVICE_STRIPS) else HOST_STRIPS


def _sampled(samples: Sequence[Series], name: str) -> Sampled | None:
    found = (_drawn(series) for series in samples if series.name == name)
    return next((sampled for sampled in found if sampled is not None), None)


def _drawn(series: Series) -> Sampled | None:
    strip = series.strip
    if not strip or not len(strip.values) == len(strip.at_ns) >= _FEWEST_POINTS:
        return None
    points = tuple(zip(strip.at_ns, strip.values, strict=True))
    return Sampled(series.unit, series.n, points, series.rank, series.device)


def _span(report: Report) -> _Span | None:
    rows = report.steps.rows
    if not rows:
        return None
    start = rows[0].start_ns
    steady = [row for row in rows if row.state == "steady"]
    return _Span(
        end=(rows[-1].start_ns + rows[-1].time_ns - start) / 1e9,
        first=rows[0].index,
        last=rows[-1].index,
        steady=((steady[0].start_ns - start) / 1e9, (steady[-1].start_ns + steady[-1].time_ns - start) / 1e9)
        if steady
        else None,
    )


def _scale(sampled: Sampled, kind: _Kind) -> Scale:
    return Scale(0.0, max(kind.least, *(value for _, value in sampled.points)) or 1.0)


def _where(span: _Span, x: Scale, across: Sequence[Lane]) -> Iterator[Shape]:
    if span.steady:
        low, high = span.steady
        yield Shape("rule pale", "area", rectangle(x.at(low), 0.0, x.at(high), 100.0), "Steady window")
    for second in (0.0, span.end):
        at = x.at(second)
        yield Shape("other", "dash", "".join(polyline([(at, lane.top), (at, lane.bottom)]) for lane in across))


def _line(sampled: Sampled, kind: _Kind, lane: Lane, scale: Scale, x: Scale) -> Shape:
    usual = median(later - earlier for (earlier, _), (later, _) in pairwise(sampled.points))
    pieces: list[list[tuple[float, float]]] = [[]]
    before = sampled.points[0][0]
    for at_ns, value in sampled.points:
        if at_ns - before > _GAP_FACTOR * usual:
            pieces.append([])
        pieces[-1].append((x.at(at_ns / 1e9), lane.y(scale.at(value))))
        before = at_ns
    return Shape(kind.colour, "line", "".join(map(polyline, pieces)), kind.words)


def _ticks(sampled: Sampled, _: _Kind, lane: Lane, scale: Scale) -> tuple[Tick, Tick]:
    return lane.tick(0.0, "0"), lane.tick(100.0, sampled.said(scale.high))


def _mean(sampled: Sampled, span: _Span) -> str:
    return sampled.said(fmean(sampled.within(span.steady).values))


def _seconds(value: float) -> str:
    """A time on the axis.

    >>> _seconds(-2.0), _seconds(0.5), _seconds(12_000.0)
    ('−2 s', '0.5 s', '12,000 s')
    """
    return f"{'−' if value < 0 else ''}{abs(value):,.10g} s"


def _counted(value: float) -> str:
    return f"{value:,.10g}"


def _caption(report: Report, names: Sequence[str], shown: dict[str, Sampled], span: _Span) -> Iterator[str]:
    most = max(shown.values(), key=lambda sampled: sampled.n)
    yield f"{plural(most.n, 'sample')}, measured{drawn_rank(report)}."
    yield from _thinned(most)
    yield f"Dashed: step {span.first} begins, and step {span.last} ends at {_seconds(round(span.end, 1))}."
    yield from _judged(shown, span)
    known = {series.name for series in report.run.samples}
    left = [name for name in names if name not in shown]
    few, missing = ([_KINDS[name].words for name in left if (name in known) is is_known] for is_known in (True, False))
    if few:
        yield f"Too few samples to draw: {listed(few)}."
    if missing:
        yield f"Not measured: {listed(missing)}."


def _judged(shown: dict[str, Sampled], span: _Span) -> Iterator[str]:
    """What the title and the means are about: the steady window, but for signals without a sample in it."""
    if not span.steady:
        return
    low, high = (_seconds(round(second, 1)) for second in span.steady)
    beside = [_KINDS[name].words for name, sampled in shown.items() if not sampled.reaches(span.steady)]
    if not beside:
        yield f"The title and the means cover the steady window, {low} to {high}."
    elif len(beside) == len(shown):
        yield f"No sample is in the steady window, {low} to {high}: the title and the means cover all samples."
    else:
        yield f"The title and the means cover the steady window, {low} to {high}; all samples for {listed(beside)}."


def _table(shown: dict[str, Sampled], said: Callable[[float], str] = _seconds, across: str = "Time") -> Table:
    times = [at_ns for at_ns, _ in max(shown.values(), key=lambda sampled: len(sampled.points)).points]
    every = -(-len(times) // _TABLE_ROWS)
    rows = tuple(
        (said(round(at_ns / 1e9, 1)), *(sampled.said(sampled.near(at_ns)) for sampled in shown.values()))
        for at_ns in times[::every]
    )
    more = "" if every == 1 else f"One of every {format_count(every)} points. The JSON has all of them."
    return Table(
        "What was sampled, as a table",
        (across, *(_KINDS[name].words if name in _KINDS else name for name in shown)),
        rows,
        1,
        more,
    )
