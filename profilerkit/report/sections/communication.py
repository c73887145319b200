"""Communication: each collective, what the flight recorder held, and what DistributedDataParallel measured."""

import math
from collections.abc import Iterator, Sequence

from profilerkit.model.communication import DistributedModel, RecordedCollective
from profilerkit.model.report import Collective, Report
from profilerkit.report.blocks import Axis, Block, Cell, Chart, Fact, Facts, Heading, Label, Section, Shape, Table, Tick
from profilerkit.report.chart import NUMBERED, Scale, below, numbers_of, point, polyline
from profilerkit.report.inert import inert
from profilerkit.report.wording import NOT_KNOWN, NOT_RECORDED, known_columns, listed, plural, share_text
from profilerkit.units import format_bytes, format_count, format_decimal, format_ns, format_ratio


def section(report: Report) -> Section | None:
    """Collectives; ``None`` without any."""
    blocks: list[Block] = [block for block in (collective_chart(report), collective_table(report)) if block]
    if recorded := recorded_table(report):
        blocks += [Heading("Collectives of the flight recorder"), recorded]
    if models := model_facts(report):
        blocks.append(Facts(models))
    if not blocks:
        return None
    summary = plural(len(report.collectives), "kind") + " of collective" if report.collectives else "as recorded"
    return Section("communication", "Communication", summary, tuple(blocks), prints=False)


#: Sizes that have a tick are powers of 32: 1 KiB, 32 KiB, 1 MiB and so on.
_BASE = 32.0
_MOST_TICKS = 6
_NEARLY_ALL = 0.995  #: a larger share would be printed as 100 %


def collective_chart(report: Report) -> Chart | None:
    """The figure; ``None`` without sizes and bandwidths, and for a single point that nothing stands beside."""
    rows = sorted(
        (row for row in report.collectives if _size(row) and row.bus_bytes_per_s), key=lambda row: -_time(row)
    )
    peak = max((row.link_bytes_per_s for row in rows if row.link_bytes_per_s), default=None)
    if not rows or (peak is None and len(rows) < 2):
        return None
    rates = [row.bus_bytes_per_s or 0.0 for row in rows]
    values = [_size(row) for row in rows]
    low = math.floor(math.log(min(values), _BASE) - 1e-9)
    high = math.ceil(math.log(max(values), _BASE) + 1e-9)
    x = Scale(_BASE**low, _BASE ** max(high, low + 2), is_log=True)
    y = below(min(rates), max(*rates, peak or 0.0))
    places = [(x.at(_size(row)), 100.0 - y.at(rate)) for row, rate in zip(rows, rates, strict=True)]
    line = 100.0 - y.at(peak) if peak else None
    link = () if line is None else (Shape("mark", "dash", polyline([(0.0, line), (100.0, line)])),)
    named = () if line is None else (Label(0.0, line, f"peak of the link: {format_decimal(peak or 0.0, 'B/s')}"),)
    return Chart(
        anchor="collective-bandwidth",
        title=_title(rows, are_all=len(rows) == len(report.collectives)),
        caption=" ".join(_caption(report, rows, peak)),
        height_px=260,
        shapes=(*link, *_points(rows, places)),
        x=_size_axis(x),
        y=y.axis("Bus bandwidth", lambda value: format_decimal(value, "B/s").replace(".00 ", " ").replace(".0 ", " ")),
        legend=_legend(rows),
        labels=(*named, *numbers_of(places)),
        table=_table(rows),
    )


def _size(row: Collective) -> float:
    """Bytes of the mean call; 0 where they are not known."""
    return (row.bytes or 0) / row.count if row.count else 0.0


def _time(row: Collective) -> int:
    """What the bandwidth is counted over, ns: the transfers, or all of it where waiting could not be told apart."""
    return row.total_ns if row.bandwidth_is_bound or row.transfer_ns is None else row.transfer_ns


def _size_axis(scale: Scale) -> Axis:
    first, last = (round(math.log(end, _BASE)) for end in (scale.low, scale.high))
    every = -(-(last - first + 1) // _MOST_TICKS)
    values = [_BASE**power for power in range(first, last + 1, every)]
    ticks = (Tick(scale.at(value), format_bytes(value).replace(".00 ", " ").replace(".0 ", " ")) for value in values)
    return Axis("Size of a call", tuple(ticks))


def _points(rows: Sequence[Collective], places: Sequence[tuple[float, float]]) -> list[Shape]:
    pairs = reversed(list(zip(rows, places, strict=True)))
    return [Shape(_colour(row), "point", point(*place), _words(row)) for row, place in pairs]


def _colour(row: Collective) -> str:
    return f"communication{' pale' if row.bandwidth_is_bound else ''}"


def _kind(row: Collective) -> str:
    return inert(row.name if row.kind == "unknown" else row.kind, 40).replace("_", "-")


def _words(row: Collective) -> str:
    """What a point is: ``all-reduce of 25.0 MiB, 8 ranks``."""
    ranks = "" if row.group_size is None else f", {plural(row.group_size, 'rank')}"
    return f"{_kind(row)} of {format_bytes(_size(row))}{ranks}"


def _legend(rows: Sequence[Collective]) -> tuple[tuple[str, str], ...]:
    named = [(_colour(row), f"{number} {_words(row)}") for number, row in enumerate(rows[:NUMBERED], start=1)]
    bound = any(row.bandwidth_is_bound for row in rows)
    return (*named, *([("communication pale", "At least: the time holds waiting")] if bound else []))


def _title(rows: Sequence[Collective], *, are_all: bool) -> str:
    most = rows[0]
    least = "at least " if most.bandwidth_is_bound else ""
    reached = (
        f"{format_decimal(most.bus_bytes_per_s or 0.0, 'B/s')} of bus bandwidth"
        if most.link_ratio is None
        else f"{_percent(most.link_ratio)} of the link"
    )
    size = format_bytes(_size(most))
    if len(rows) == 1:
        return f"Messages of {size} reach {least}{reached}"
    share = _time(most) / max(sum(map(_time, rows)), 1)
    part = "Nearly all" if share >= _NEARLY_ALL else f"{format_ratio(share)} of"
    whose = "collectives" if are_all else "collectives with known size and bandwidth"
    return f"{part} the time of {whose} goes to messages of {size}, which reach {least}{reached}"


def _caption(report: Report, rows: Sequence[Collective], peak: float | None) -> Iterator[str]:
    calls, steps = plural(sum(row.count for row in rows), "collective"), plural(report.steps.steady, "judged step")
    yield f"{calls} of the judged rank in {steps}."
    yield "Each point is one name, type and group, at the mean size of its calls."
    yield "Bus bandwidth is derived as in nccl-tests, from the transfer time without waiting where that is known."
    if peak is None:
        yield "The peak of the device's link is not known."
    elif any(row.link_bytes_per_s is None for row in rows):
        yield "Groups that also use the network are not compared with the link."
    if left := [row for row in report.collectives if row not in rows]:
        time = format_ns(sum(map(_time, left)))
        yield f"Size or bandwidth is not known for {plural(len(left), 'other kind')}, {time} in all."


def _table(rows: Sequence[Collective]) -> Table:
    cells = tuple(
        (
            f"{number} · {_kind(row)}",
            inert(row.dtype or "not recorded", 20),
            format_count(row.count),
            "not recorded" if row.group_size is None else format_count(row.group_size),
            format_bytes(_size(row)),
            format_ns(_time(row)),
            f"{_bound(row)}{format_decimal(row.bus_bytes_per_s or 0.0, 'B/s')}",
            "not known" if row.link_ratio is None else f"{_bound(row)}{_percent(row.link_ratio)}",
        )
        for number, row in enumerate(rows, start=1)
    )
    columns = ("Collective", "Type", "Calls", "Ranks", "Size of a call", "Time", "Bus bandwidth", "Share of link")
    return Table("", columns, cells, 2)


def _bound(row: Collective) -> str:
    return "≥ " if row.bandwidth_is_bound else ""


def _percent(ratio: float) -> str:
    """A share of the link; a small one with its first digit, because that it is small is what the figure shows."""
    return f"{100.0 * ratio:.1g} %" if 0.0 < ratio < 0.001 else format_ratio(ratio)


_TOP_ROWS = 20


def _bandwidth(row: Collective) -> str:
    """Decimal GB/s; a lower bound where waiting could not be told apart."""
    if row.bus_bytes_per_s is None:
        return "not known"
    value = row.bus_bytes_per_s / 1e9
    return f"{_bound(row)}{value:.3g}" if value >= 0.01 else "< 0.01"


def _cells(row: Collective) -> dict[str, Cell]:
    return {
        "Collective": inert(row.name),
        "Kind": inert(row.kind, 20).replace("_", "-"),
        "Type": inert(row.dtype or NOT_RECORDED, 20),
        "Calls": format_count(row.count),
        "Ranks": NOT_RECORDED if row.group_size is None else format_count(row.group_size),
        "Bytes": NOT_RECORDED if row.bytes is None else format_bytes(row.bytes),
        "Total": format_ns(row.total_ns),
        "Exposed": format_ns(row.exposed_ns),
        "Waiting": "not known" if row.wait_ns is None else format_ns(row.wait_ns),
        "Transfer": "not known" if row.transfer_ns is None else format_ns(row.transfer_ns),
        "Bus GB/s": _bandwidth(row),
        "Share of link": "not known" if row.link_ratio is None else f"{_bound(row)}{share_text(row.link_ratio)}",
    }


def collective_table(report: Report) -> Table | None:
    """The collectives with most exposed time; columns of which nothing is known are left out."""
    if not report.collectives:
        return None
    top = sorted(report.collectives, key=lambda row: (-row.exposed_ns, -row.total_ns))[:_TOP_ROWS]
    columns, rows = known_columns([_cells(row) for row in top])
    more = len(report.collectives) - len(top)
    return Table(
        " ".join(_collective_notes(report)),
        columns,
        rows,
        3 if "Type" in columns else 2,
        f"{plural(more, 'collective')} more in the JSON." if more > 0 else "",
    )


def _collective_notes(report: Report) -> Iterator[str]:
    yield "Exposed: no compute kernel ran at the same time."
    if any(row.bus_bytes_per_s is not None and row.bandwidth_is_bound for row in report.collectives):
        yield "≥: the time holds waiting for other ranks, which looks the same."
    derived = sorted({inert(row.name, 40) for row in report.collectives if row.bytes_source == "derived"})
    if derived:
        yield f"Bytes of {listed(derived[:3])} are derived from operator shapes."
    ratio = report.communication.unclassified_ratio if report.communication else None
    if ratio:
        yield f"The kind of collective is not known for {format_ratio(ratio)} of the communication time."


#: Bucket sizes told one by one; of more the smallest and the largest.
_BUCKETS = 4
_MODELS = 3
_SAMPLED = "mean of the iterations torch samples: the first 10, then each hundredth"


def recorded_table(report: Report) -> Table | None:
    """The collectives that the judged rank's flight recorder held; ``None`` where it held nothing."""
    found = report.communication.flight if report.communication else None
    if found is None or not found.collectives:
        return None
    columns, rows = known_columns([_recorded_cells(row) for row in found.collectives])
    rank = f"Rank {found.rank}" if found.rank is not None else "This rank"
    per_step = f", {found.per_step:g} in the median step" if found.per_step is not None else ""
    held = (
        f"all {plural(found.made, 'collective')} it issued"
        if found.held >= found.made
        else f"the last {format_count(found.held)} of {plural(found.made, 'collective')} it issued"
    )
    skew = " Skew is derived: from the first rank's arrival to the last one's, median." if "Skew" in columns else ""
    return Table(f"{rank}: {held}{per_step}. Calls and bytes are measured.{skew}", columns, rows, text_columns=3)


def _recorded_cells(row: RecordedCollective) -> dict[str, Cell]:
    size = f", {plural(row.group_size, 'rank')}" if row.group_size is not None else ""
    return {
        "Collective": inert(row.name),
        "Type": inert(row.dtype or "none", 20),
        "Group": f"{inert(row.group, 40)}{size}",
        "Calls": format_count(row.count),
        "Bytes": NOT_KNOWN if row.bytes is None else format_bytes(row.bytes),
        "Skew": NOT_KNOWN if row.skew_ns is None else format_ns(row.skew_ns),
    }


def model_facts(report: Report) -> tuple[Fact, ...]:
    """What DistributedDataParallel measured of itself on the judged rank; empty where it was not used."""
    models = report.communication.ddp if report.communication else ()
    return tuple(fact for model in models[:_MODELS] for fact in _model(model))


def _model(model: DistributedModel) -> Iterator[Fact]:
    name = f"DDP, {inert(model.module or 'a model', 40)}"
    parts = (("forward", model.forward_ns), ("backward", model.backward_ns), ("communication", model.comm_ns))
    if model.comm_ns is not None:
        times = ", ".join(f"{what} {format_ns(value)}" for what, value in parts if value is not None)
        yield Fact(name, times, f"measured, {_SAMPLED}")
    if model.overlap_ratio is not None:
        of = "of the time from the first bucket's reduction to the end of the last, including waits for other ranks"
        yield Fact(f"{name}: overlapped with backward", format_ratio(model.overlap_ratio), of)
    yield Fact(f"{name}: buckets", _buckets(model), "; ".join(_settings(model)))


def _buckets(model: DistributedModel) -> str:
    sizes = model.bucket_bytes
    if not sizes:
        return "not known"
    if len(sizes) <= _BUCKETS:
        return f"{len(sizes)}: {', '.join(map(format_bytes, sizes))}"
    return f"{len(sizes)}, from {format_bytes(min(sizes))} to {format_bytes(max(sizes))}"


def _settings(model: DistributedModel) -> Iterator[str]:
    if model.rebuilt is False:
        yield "not in the order in which gradients become ready"
    if model.unused_parameter_bytes:
        yield f"{format_bytes(model.unused_parameter_bytes)} of parameters got no gradient"
    for name in ("find_unused_parameters", "gradient_as_bucket_view", "static_graph"):
        if (value := getattr(model, name)) is not None:
            yield f"{name}={value}"
    if model.hook:
        yield f"communication hook {inert(model.hook, 60)}"


SECTIONS = {80: section}
