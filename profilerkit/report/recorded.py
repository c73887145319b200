"""What torch itself records of communication, in words: its flight recorder and DistributedDataParallel's own data."""

from profilerkit.model.communication import Communication, DistributedModel, FlightRecorder, RecordedCollective
from profilerkit.model.report import Report
from profilerkit.report.blocks import Fact, Table
from profilerkit.report.inert import inert
from profilerkit.report.wording import plural
from profilerkit.units import format_bytes, format_count, format_ns, format_ratio

#: Bucket sizes told one by one; of more the smallest and the largest.
_BUCKETS = 4
_MODELS = 3
_SAMPLED = "mean of the iterations torch samples: the first 10, then each hundredth"


def recorded_table(report: Report) -> Table | None:
    """The collectives that the judged rank's flight recorder held; ``None`` where it held nothing."""
    found = report.communication.flight if report.communication else None
    if found is None or not found.collectives:
        return None
    skewed = any(row.skew_ns is not None for row in found.collectives)
    columns = ("Collective", "Type", "Group", "Calls", "Bytes", *(("Skew",) if skewed else ()))
    rows = [_cells(row) for row in found.collectives]
    return Table(
        _caption(found, skewed=skewed),
        columns,
        tuple(cells if skewed else cells[:-1] for cells in rows),
        text_columns=3,
    )


def _cells(row: RecordedCollective) -> tuple[str, ...]:
    size = f", {plural(row.group_size, 'rank')}" if row.group_size is not None else ""
    return (
        inert(row.name),
        inert(row.dtype or "none", 20),
        f"{inert(row.group, 40)}{size}",
        format_count(row.count),
        "not known" if row.bytes is None else format_bytes(row.bytes),
        "not known" if row.skew_ns is None else format_ns(row.skew_ns),
    )


def _caption(found: FlightRecorder, *, skewed: bool) -> str:
    rank = f"Rank {found.rank}" if found.rank is not None else "This rank"
    per_step = f", {found.per_step:g} in the median step" if found.per_step is not None else ""
    held = (
        f"all {plural(found.made, 'collective')} it issued"
        if found.held >= found.made
        else f"the last {format_count(found.held)} of {plural(found.made, 'collective')} it issued"
    )
    skew = " Skew is derived: from the first rank's arrival to the last one's, median." if skewed else ""
    return f"{rank}: {held}{per_step}. Calls and bytes are measured.{skew}"


def model_facts(report: Report) -> tuple[Fact, ...]:
    """What DistributedDataParallel measured of itself on the judged rank; empty where it was not used."""
    models = report.communication.ddp if report.communication else ()
    return tuple(fact for model in models[:_MODELS] for fact in _model(model))


def _model(model: DistributedModel) -> list[Fact]:
    name = f"DDP, {inert(model.module or 'a model', 40)}"
    facts = [Fact(name, _times(model), f"measured, {_SAMPLED}")] if model.comm_ns is not None else []
    if model.overlap_ratio is not None:
        facts.append(
            Fact(
                f"{name}: overlapped with backward",
                format_ratio(model.overlap_ratio),
                "of the time from the first bucket's reduction to the end of the last, including waits for other ranks",
            )
        )
    facts.append(Fact(f"{name}: buckets", _buckets(model), _settings(model)))
    return facts


def _times(model: DistributedModel) -> str:
    parts = (("forward", model.forward_ns), ("backward", model.backward_ns), ("communication", model.comm_ns))
    return ", ".join(f"{what} {format_ns(value)}" for what, value in parts if value is not None)


def _buckets(model: DistributedModel) -> str:
    sizes = model.bucket_bytes
    if not sizes:
        return "not known"
    if len(sizes) <= _BUCKETS:
        return f"{len(sizes)}: {', '.join(map(format_bytes, sizes))}"
    return f"{len(sizes)}, from {format_bytes(min(sizes))} to {format_bytes(max(sizes))}"


def _settings(model: DistributedModel) -> str:
    said = []
    if model.rebuilt is False:
        said.append("not in the order in which gradients become ready")
    if model.unused_parameter_bytes:
        said.append(f"{format_bytes(model.unused_parameter_bytes)} of parameters got no gradient")
    for name in ("find_unused_parameters", "gradient_as_bucket_view", "static_graph"):
        value = getattr(model, name)
        if value is not None:
            said.append(f"{name}={value}")
    if model.hook:
        said.append(f"communication hook {inert(model.hook, 60)}")
    return "; ".join(said)


def matched_in_words(found: Communication) -> str:
    """Whose collectives were matched, where these were not a trace's."""
    if found.matched_in == "traces":
        return ""
    return " They come from torch's flight recorders, which show who arrives when, but not the transfer."
