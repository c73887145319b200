"""The kernels that compute most against the device's roofs: FLOP per byte, and FLOP per second."""

from collections.abc import Sequence

from profilerkit.model.report import Kernel, Report
from profilerkit.report.blocks import Chart, Label, Shape, Table
from profilerkit.report.charts.axes import Scale, below, decades
from profilerkit.report.charts.chart import point, polyline
from profilerkit.report.charts.numbers import NUMBERED, numbers_of
from profilerkit.report.inert import inert
from profilerkit.report.kernel_names import short_name
from profilerkit.report.wording import listed, plural
from profilerkit.units import format_count, format_decimal, format_ns, format_ratio

#: Roofs of more types would be hard to tell apart.
_MOST_ROOFS = 3
_COLOURS = {"math": "compute", "membw": "memory"}
_BOUNDS = {"compute": "Bound by arithmetic", "memory": "Bound by memory bandwidth"}
_NAME = 90


def roofline_chart(report: Report) -> Chart | None:
    """The roofline; ``None`` where the device's peaks, or the arithmetic and traffic of all kernels, are not known."""
    compute = report.compute
    if compute is None or not compute.peak_bytes_per_s:
        return None
    kernels = _priced(report)
    roofs = _roofs(kernels, compute.peaks_flops_per_s)
    if not kernels or not roofs:
        return None
    memory = compute.peak_bytes_per_s
    ridges = [peak / memory for peak in roofs.values()]
    # Both roofs take their share of the width, wherever the kernels lie.
    x = decades(min(*map(_intensity, kernels), 0.1 * min(ridges)), max(*map(_intensity, kernels), 3.0 * max(ridges)))
    y = below(min(map(_rate, kernels)), max(*map(_rate, kernels), *roofs.values()))
    places = [(x.at(_intensity(kernel)), 100.0 - y.at(_rate(kernel))) for kernel in kernels]
    return Chart(
        anchor="roofline",
        title=_title(kernels[:NUMBERED], report.run.devices),
        caption=_caption(report, kernels),
        height_px=300,
        shapes=(*_roof_lines(roofs, memory, x, y), *_points(kernels, places)),
        x=x.across("Arithmetic intensity, FLOP per byte", lambda value: f"{value:,g}"),
        y=y.axis("FLOP/s", lambda value: format_decimal(value, "").replace(".00 ", " ").replace(".0 ", " ")),
        legend=_legend(kernels),
        labels=(*_roof_labels(roofs, memory, x, y), *numbers_of(places)),
        table=_table(kernels),
    )


def _priced(report: Report) -> list[Kernel]:
    """Kernels whose calls have a price and a roof, most time first."""
    known = [
        kernel
        for kernel in report.kernels
        if kernel.flops and kernel.bytes and kernel.priced_ns and kernel.efficiency is not None
    ]
    return sorted(known, key=lambda kernel: -(kernel.priced_ns or 0))


def _roofs(kernels: Sequence[Kernel], peaks: dict[str, float]) -> dict[str, float]:
    """Type to its peak, for the types that most of the time is computed in, the most used first."""
    used: dict[str, int] = {}
    for kernel in kernels:
        if kernel.precision in peaks:
            used[kernel.precision] = used.get(kernel.precision, 0) + (kernel.priced_ns or 0)
    first = sorted(used, key=lambda name: -used[name])[:_MOST_ROOFS]
    return {name: peaks[name] for name in first if peaks[name] > 0}


def _intensity(kernel: Kernel) -> float:
    """FLOP per byte."""
    return (kernel.flops or 0) / (kernel.bytes or 1)


def _rate(kernel: Kernel) -> float:
    """FLOP per second."""
    return (kernel.flops or 0) * 1e9 / (kernel.priced_ns or 1)


def _roof_lines(roofs: dict[str, float], memory: float, x: Scale, y: Scale) -> list[Shape]:
    """The memory's roof up to the highest ridge, and a level one for each type."""
    top = max(roofs.values())
    left = max(x.low, y.low / memory)
    lines = [Shape("mark", "line", polyline([_at(left, left * memory, x, y), _at(top / memory, top, x, y)]))]
    for peak in roofs.values():
        level = polyline([_at(peak / memory, peak, x, y), _at(x.high, peak, x, y)])
        lines.append(Shape("mark", "line" if peak == top else "dash", level))
    return lines


def _at(intensity: float, rate: float, x: Scale, y: Scale) -> tuple[float, float]:
    return x.at(intensity), 100.0 - y.at(rate)


def _roof_labels(roofs: dict[str, float], memory: float, x: Scale, y: Scale) -> list[Label]:
    ridge = max(roofs.values()) / memory
    left = max(x.low, y.low / memory)
    # A quarter below the ridge, so that the text has room at its left.
    at = ridge * (left / ridge) ** 0.25
    named = [
        Label(100.0, 100.0 - y.at(peak), f"{name} {format_decimal(peak, 'FLOP/s')}", side="left")
        for name, peak in roofs.items()
    ]
    return [*named, Label(*_at(at, at * memory, x, y), f"memory {format_decimal(memory, 'B/s')}", side="left")]


def _colour(kernel: Kernel) -> str:
    return _COLOURS.get(kernel.kind, "other")


def _points(kernels: Sequence[Kernel], places: Sequence[tuple[float, float]]) -> list[Shape]:
    """A point for each kernel, the one with most time on top."""
    pairs = reversed(list(zip(kernels, places, strict=True)))
    return [Shape(_colour(kernel), "point", point(*place), inert(kernel.name, _NAME)) for kernel, place in pairs]


def _legend(kernels: Sequence[Kernel]) -> tuple[tuple[str, str], ...]:
    used = {_colour(kernel) for kernel in kernels}
    bounds = [(colour, name) for colour, name in _BOUNDS.items() if colour in used]
    named = [(_colour(kernel), f"{number} {short_name(kernel)}") for number, kernel in _numbered(kernels)]
    return (*bounds, *named)


def _numbered(kernels: Sequence[Kernel]) -> list[tuple[int, Kernel]]:
    return list(enumerate(kernels[:NUMBERED], start=1))


def _title(kernels: Sequence[Kernel], devices: Sequence[str]) -> str:
    """How near the numbered kernels come together, weighed by time, to the roof of the types they compute in.

    The device may allow far more in another type.
    """
    time = sum(kernel.priced_ns or 0 for kernel in kernels)
    reached = sum((kernel.efficiency or 0.0) * (kernel.priced_ns or 0) for kernel in kernels) / time
    which = "kernel with known arithmetic runs" if len(kernels) == 1 else "kernels with known arithmetic run"
    count = "" if len(kernels) == 1 else f"{format_count(len(kernels))} "
    types = list(dict.fromkeys(inert(kernel.precision, 20) for kernel in kernels if kernel.precision))
    roof = f"{listed(types)} roof{'s' if len(types) > 1 else ''}".strip()
    device = inert(devices[0], 40) if len(devices) == 1 else "device"
    return f"The {count}largest {which} at {format_ratio(reached)} of the {roof} of the {device}"


def _caption(report: Report, kernels: Sequence[Kernel]) -> str:
    whole = sum(kernel.total_ns for kernel in report.kernels)
    share = format_ratio(sum(kernel.priced_ns or 0 for kernel in kernels) / whole) if whole else "0 %"
    return (
        f"{plural(len(kernels), 'kernel')} of the {format_count(len(report.kernels))} with most time, of the judged "
        f"rank in {plural(report.steps.steady, 'judged step')}; {share} of their time. FLOPs and bytes are derived "
        "from shapes: every input read once, every output written once. Lines: dense peaks of the device. Shares "
        "of the roof use the rate that real kernels reach, slightly below the lines."
    )


def _table(kernels: Sequence[Kernel]) -> Table:
    rows = tuple(
        (
            f"{number} · {inert(kernel.name, _NAME)}",
            inert(kernel.precision or "not known", 20),
            f"{_intensity(kernel):,.3g}",
            format_decimal(_rate(kernel), "FLOP/s"),
            format_ratio(kernel.efficiency or 0.0),
            format_ns(kernel.priced_ns or 0),
        )
        for number, kernel in enumerate(kernels, start=1)
    )
    return Table("", ("Kernel", "Type", "FLOP per byte", "Rate", "Share of roof", "Time"), rows, 2)
