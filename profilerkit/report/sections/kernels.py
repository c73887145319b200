"""Kernels and operators: how near to the device's peaks they run, which take most time, what the host link carries."""

from collections.abc import Sequence

from profilerkit.model.report import Compute, HostCopy, Kernel, Report
from profilerkit.report.blocks import Block, Cell, Chart, Fact, Facts, Label, Name, Section, Shape, Table, Value
from profilerkit.report.chart import NUMBERED, Scale, below, decades, numbers_of, point, polyline
from profilerkit.report.inert import inert
from profilerkit.report.wording import NOT_KNOWN, known_columns, listed, plural, share_text
from profilerkit.units import format_bytes, format_count, format_decimal, format_ns, format_ratio

_PLACE = 40
_KINDS = {"membw": "bandwidth", "comm": "communication"}
_BY_NAME = "A question mark means that the kind comes from the name alone."
_ROOF = "the least time their shapes allow on this device / the time taken, derived"


def section(report: Report) -> Section | None:
    """Kernels, the roofline and copies; ``None`` without any."""
    facts, table = _compute_facts(report), _kernel_table(report)
    chart = roofline_chart(report)
    blocks: list[Block] = [*((Facts(facts),) if facts else ()), *(block for block in (table, chart) if block)]
    if not blocks:
        return None
    top = sorted((kernel.share for kernel in report.kernels), reverse=True)[:3]
    noun = "operator" if report.trust.mode == "cpu" else "kernel"
    summary = f"{plural(len(report.kernels), noun)}, {len(top)} hold {share_text(sum(top))}" if top else "of the device"
    return Section("kernels", "Kernels", summary, tuple(blocks), prints=False)


def _compute_facts(report: Report) -> tuple[Fact, ...]:
    facts = _against_peaks(report.compute, cpu=report.trust.mode == "cpu") if report.compute else []
    return (*facts, *map(_copy_fact, report.copies))


def _against_peaks(compute: Compute, *, cpu: bool) -> list[Fact]:
    facts = []
    if not cpu:
        spec = inert(compute.spec or "", 40)
        none = "the device is not in the hardware table: efficiency is not known, and kinds come from names"
        facts.append(Fact("Judged by the peaks of", spec or NOT_KNOWN, "" if spec else none))
        if compute.by_shape_ratio is not None:
            facts.append(Fact("Kind known from shapes", _of(compute.by_shape_ratio, "kernel time"), "the rest by name"))
    if compute.efficiency is not None:
        facts.append(Fact("Kernels of known shapes run at", f"{format_ratio(compute.efficiency)} of the roof", _ROOF))
    if compute.flops_per_step is not None:
        flops = format_decimal(compute.flops_per_step, "FLOP")
        priced = "" if compute.priced_ratio is None else f"from {_of(compute.priced_ratio, 'the math time')}"
        facts.append(Fact("Arithmetic known from shapes", f"{flops} per step", priced))
    if not cpu:
        facts.append(_utilisation(compute))
    if compute.recomputed_flops_per_step:
        again = format_decimal(compute.recomputed_flops_per_step, "FLOP")
        with_it = "" if compute.hfu is None else f"utilisation with it {format_ratio(compute.hfu)}"
        facts.append(Fact("Recomputed arithmetic", f"{again} per step", with_it))
    if not cpu and compute.tensor_core_ratio is not None:
        facts.append(Fact("On matrix units", _of(compute.tensor_core_ratio, "math time"), "by kernel names"))
    if not cpu and compute.small_ratio is not None:
        facts.append(Fact("Kernels below 10 µs", _of(compute.small_ratio, "kernel time")))
    if compute.beyond_ratio:
        why = "from a cache, by an algorithm that saves arithmetic, or priced wrongly; counted as fully efficient"
        facts.append(Fact("Faster than the peaks", _of(compute.beyond_ratio, "kernel time"), why))
    return facts


def _utilisation(compute: Compute) -> Fact:
    label = "Model FLOP utilisation"
    if compute.mfu is None or compute.peak_flops_per_s is None:
        device = "" if compute.spec else "a known device, and "
        return Fact(label, NOT_KNOWN, f"needs {device}shapes of nearly all math kernels")
    peak = format_decimal(compute.peak_flops_per_s, "FLOP/s")
    return Fact(label, format_ratio(compute.mfu), f"derived, of {peak} in {inert(compute.precision or '', 20)}")


def _of(ratio: float, whole: str) -> str:
    return f"{share_text(ratio)} of {whole}"


def _copy_fact(copy: HostCopy) -> Fact:
    label = f"Copies {copy.direction}" + (f", {copy.memory}" if copy.memory else "")
    rate = "too small to rate" if copy.bytes_per_s is None else format_decimal(copy.bytes_per_s, "B/s")
    link = "" if copy.link_ratio is None else f"{format_ratio(copy.link_ratio)} of the host link's peak; "
    size = "" if copy.bytes_per_step is None else f"{format_bytes(copy.bytes_per_step)} in "
    count = "1 copy" if copy.per_step == 1 else f"{format_count(round(copy.per_step, 1))} copies"
    return Fact(label, rate, f"{link}{size}{count} per step")


def _kernel_table(report: Report) -> Table | None:
    if not report.kernels:
        return None
    top = sorted(report.kernels, key=lambda kernel: -kernel.total_ns)
    columns, rows = known_columns([_cells(kernel, cpu=report.trust.mode == "cpu") for kernel in top])
    texts = 3 if "Launched by" in columns else 2
    return Table(_caption(report, top), columns, rows, texts, title="Kernels", searchable=True)


def _caption(report: Report, top: list[Kernel]) -> str:
    if report.trust.mode == "cpu":
        return "On a CPU-only run these are operators."
    caption = "Streams overlap: shares need not sum to 100 %."
    if any(kernel.efficiency is not None for kernel in top):
        caption += f" Share of roof: {_ROOF}."
    if any(map(_by_name, top)):
        caption += f" {_BY_NAME}"
    return caption


def _cells(kernel: Kernel, *, cpu: bool) -> dict[str, Cell]:
    # Of a file its own name: the directories are in the JSON.
    pieces = () if cpu else (kernel.operator, kernel.module, (kernel.line or "").rpartition("/")[2])
    return {
        "Kernel": Name(kernel.name, "kernel"),
        "Kind": _KINDS.get(kernel.kind, inert(kernel.kind, 20)) + (" ?" if _by_name(kernel) else ""),
        "Launched by": " · ".join(inert(piece, _PLACE) for piece in pieces if piece) or NOT_KNOWN,
        "Calls": Value(kernel.count),
        "Total": Value(kernel.total_ns, "ns"),
        "Share": Value(kernel.share, "ratio"),
        "Rate": _rate(kernel),
        "Share of roof": NOT_KNOWN if kernel.efficiency is None else Value(kernel.efficiency, "ratio"),
    }


def _by_name(kernel: Kernel) -> bool:
    return kernel.kind_source == "estimated" and kernel.kind != "comm"


def _rate(kernel: Kernel) -> str:
    """What a kernel reaches of what bounds it: arithmetic for math, traffic for the others."""
    if not kernel.priced_ns:
        return NOT_KNOWN
    per_s = 1e9 / kernel.priced_ns
    if kernel.kind == "math" and kernel.flops:
        return format_decimal(kernel.flops * per_s, "FLOP/s")
    return format_decimal(kernel.bytes * per_s, "B/s") if kernel.bytes else NOT_KNOWN


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
    y = below(min(map(_roofline_rate, kernels)), max(*map(_roofline_rate, kernels), *roofs.values()))
    places = [(x.at(_intensity(kernel)), 100.0 - y.at(_roofline_rate(kernel))) for kernel in kernels]
    return Chart(
        anchor="roofline",
        title=_title(kernels[:NUMBERED], report.run.devices),
        caption=_roofline_caption(report, kernels),
        height_px=300,
        shapes=(*_roof_lines(roofs, memory, x, y), *_points(kernels, places)),
        x=x.across("Arithmetic intensity, FLOP per byte", lambda value: f"{value:,g}"),
        y=y.axis("FLOP/s", lambda value: format_decimal(value, "").replace(".00 ", " ").replace(".0 ", " ")),
        legend=_legend(kernels),
        labels=(*_roof_labels(roofs, memory, x, y), *numbers_of(places)),
        table=_table(kernels),
    )


def _priced(report: Report) -> list[Kernel]:
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


def _roofline_rate(kernel: Kernel) -> float:
    """FLOP per second."""
    return (kernel.flops or 0) * 1e9 / (kernel.priced_ns or 1)


def _roof_lines(roofs: dict[str, float], memory: float, x: Scale, y: Scale) -> list[Shape]:
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


def _roofline_caption(report: Report, kernels: Sequence[Kernel]) -> str:
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
            format_decimal(_roofline_rate(kernel), "FLOP/s"),
            format_ratio(kernel.efficiency or 0.0),
            format_ns(kernel.priced_ns or 0),
        )
        for number, kernel in enumerate(kernels, start=1)
    )
    return Table("", ("Kernel", "Type", "FLOP per byte", "Rate", "Share of roof", "Time"), rows, 2)


_SHORT_NAME = 44


def short_name(kernel: Kernel) -> str:
    """The operator says more than the name of its kernel, of which the end and the beginning are kept."""
    if kernel.operator in (None, kernel.name):
        return inert(kernel.name, _SHORT_NAME)
    operator = inert(kernel.operator or "", _SHORT_NAME // 2)
    return f"{operator} · {inert(kernel.name, _SHORT_NAME - len(operator) - 3)}"


SECTIONS = {70: section}
