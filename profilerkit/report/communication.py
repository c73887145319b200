"""Ranks and collectives in words: who waits for whom, how that is known, what moved how fast."""

from profilerkit.model.communication import (
    Communication,
    DistributedModel,
    FlightRecorder,
    LateRank,
    Parallelism,
    RecordedCollective,
)
from profilerkit.model.report import Collective, Report
from profilerkit.model.step import Rank, within
from profilerkit.report.blocks import Fact, Table
from profilerkit.report.inert import SENTENCE_LIMIT, inert
from profilerkit.report.wording import listed, part_label, plural, share_text
from profilerkit.units import format_bytes, format_count, format_ns, format_ratio

_TOP_ROWS = 20
#: The ledger names the ranks that cause most waiting; of a large job the others cause next to none.
_LEDGER_ROWS = 32
#: A rank that causes this share of the waiting is not late by turns.
_MOST = 0.6

_MATCHED_BY = {
    "sequence": "process group and number",
    "order": "their order",
    "both": "process group and number, where they have none by their order",
}


def waiting_lines(report: Report) -> tuple[str, ...]:
    """Who waits for whom and how that is known, one sentence or two each; empty for a single rank."""
    found = report.communication
    if found is None or len(report.ranks) < 2:
        return ()
    if not found.matched and found.flight is not None and not report.collectives:
        return tuple(inert(problem, SENTENCE_LIMIT) for problem in found.problems)
    if not found.matched:
        timed = found.late_by_timers
        late = "no rank is called late" if timed is None else f"only the timers point at a rank: rank {timed}"
        return (f"The ranks' collectives could not be matched: waiting and transfer look the same, and {late}.",)
    lines = [_late_line(late, report) for late in found.late]
    by_flight = found.matched_in == "flight recorders"
    if not lines and not (by_flight and found.blurred):
        lines.append(_nobody_late(found, report))
    lines += found.problems if by_flight else ()
    if found.time_ns and found.waited_ns is not None:
        share = format_ratio(found.waited_ns / found.time_ns)
        divided = (
            f"{share} waiting for the last to arrive, {format_ratio(found.transfer_ns / found.time_ns)} transfer."
            if found.transfer_ns is not None
            else f"at least {share} waiting; the rest may include waiting for ranks that were not read."
        )
        lines.append(
            f"In {plural(found.steps or 0, 'judged step')} the ranks spent {format_ns(found.time_ns)} together in "
            f"matched collectives: {divided}"
        )
    shift = f", captures starting up to {plural(found.most_shift, 'collective')} apart" if found.most_shift else ""
    within = f"; ends agree within {format_ns(found.residual_ns)} (median)" if found.residual_ns is not None else ""
    lines.append(
        f"{format_count(found.matched)} of {plural(found.of or 0, 'collective')} matched by "
        f"{_MATCHED_BY[found.by or 'order']}{shift}{within}.{matched_in_words(found)}"
    )
    return tuple(inert(line, SENTENCE_LIMIT) for line in lines)


def _nobody_late(found: Communication, report: Report) -> str:
    """Why no rank is called late."""
    worst = max(report.ranks, key=lambda rank: rank.caused_ns or 0)
    share = (worst.caused_ns or 0) / max(found.waited_ns or 0, 1)
    caused = f"{_name(worst).capitalize()} causes {format_ratio(share)} of the waiting"
    if found.blurred and found.residual_ns is not None:
        return (
            f"{caused}, but its host is too busy to call it late: the ends of one collective are "
            f"{format_ns(found.residual_ns)} apart."
        )
    steps = plural(found.steps or 0, "judged step")
    if found.steps_needed is not None:
        return f"No rank is clearly late in {steps}: record at least {found.steps_needed} to be sure."
    of_all = found.transfer_ns is not None or found.matched_in == "flight recorders"
    known = "" if of_all else " Ranks that were not read may be late."
    if share >= _MOST:
        return f"{caused} over {steps}, too unevenly to exclude chance: no rank is called late.{known}"
    return f"No rank is late beyond chance: the ranks wait for each other in turn.{known}"


def _late_line(late: LateRank, report: Report) -> str:
    """What a late rank costs and why it is late."""
    caused = next((rank.caused_ns for rank in report.ranks if _same(rank, late)), None)
    amount = f"{format_ns(caused)} over all ranks and steps, " if caused is not None else ""
    name = _name(late)
    who = f"{name[0].upper()}{name[1:]} is likely late" if late.few_steps else f"The others wait for {name}"
    text = (
        f"{who}: it is last in {format_count(late.last)} of {plural(late.of, 'collective')} and causes "
        f"{amount}{format_ratio(late.share)} of all waiting."
    )
    if late.cause is None or late.cause_ns is None or late.coverage is None:
        part = f": what takes it longer explains {format_ratio(late.coverage)}" if late.coverage is not None else ""
        return f"{text} What makes it late is not explained{part}."
    label = part_label(late.cause)
    return (
        f"{text} Before, it spends {format_ns(late.cause_ns)} a step more than the others on: "
        f"{within(label)}. This is {format_ratio(late.coverage)} of the exposed waiting; "
        f"{format_ratio(1.0 - late.coverage)} is not explained."
    )


def _name(rank: Rank | LateRank) -> str:
    return f"rank {rank.rank}" if rank.rank is not None else inert(rank.origin, 60) or "one rank"


def _same(rank: Rank, late: LateRank) -> bool:
    return rank.rank == late.rank and rank.origin == late.origin


def waiting_table(report: Report) -> Table | None:
    """Waiting by the rank that caused it, most first; ``None`` where nothing was matched."""
    known = [rank for rank in report.ranks if rank.caused_ns is not None]
    if not known:
        return None
    total = sum(rank.caused_ns or 0 for rank in known)
    steps = max((report.communication.steps or 1) if report.communication else 1, 1)
    shown = sorted(known, key=lambda rank: -(rank.caused_ns or 0))[:_LEDGER_ROWS]
    rows = tuple(
        (
            inert(rank.origin, 40) if rank.rank is None else f"Rank {rank.rank}",
            f"{format_count(rank.last or 0)} of {format_count(rank.matched or 0)}",
            format_ns((rank.caused_ns or 0) / steps),
            share_text((rank.caused_ns or 0) / total if total else 0.0),
            format_ns((rank.waited_ns or 0) / steps),
            _clock(rank),
        )
        for rank in shown
    )
    return Table(
        "Waiting per step, exposed or overlapped: the sum over the ranks that waited, for the rank that arrived last.",
        ("Rank", "Last in", "Caused per step", "Share", "Own wait", "Clock ahead by"),
        rows,
        1,
        f"{plural(len(known) - len(rows), 'rank')} more in the JSON." if len(known) > len(rows) else "",
    )


def _clock(rank: Rank) -> str:
    if rank.clock_offset_ns is None:
        return "not aligned"
    if rank.clock_residual_ns is None:
        return "reference"
    return f"{format_ns(rank.clock_offset_ns)} ± {format_ns(rank.clock_residual_ns)}"


def parallel_facts(report: Report) -> tuple[Fact, ...]:
    """How the work is divided among the ranks, as far as groups and names say; empty for a single rank."""
    found = report.communication.parallelism if report.communication else ()
    if not found:
        return (
            (Fact("Parallelism", "unknown", "no group or name shows it"),) if (report.run.world_size or 1) > 1 else ()
        )
    return tuple(
        Fact(f"Parallelism, {entry.name}", _dimension(entry), f"derived from {inert(entry.evidence, 80)}")
        for entry in found
    )


def _dimension(entry: Parallelism) -> str:
    size = plural(entry.size, "rank") if entry.size is not None else "of unknown size"
    if entry.bubble_share is None:
        return size
    bubble = f"; {format_ratio(entry.bubble_share)} of the step in exposed transfers between stages"
    if entry.schedule_share is None:
        return f"{size}{bubble}"
    micro = f"{format_count(entry.micro_batches or 0)} microbatch{'' if entry.micro_batches == 1 else 'es'}"
    return f"{size}{bubble}, {format_ratio(entry.schedule_share)} expected of {micro}"


def _bandwidth(row: Collective) -> str:
    """Decimal GB/s; a lower bound where waiting could not be told apart."""
    if row.bus_bytes_per_s is None:
        return "not known"
    value = row.bus_bytes_per_s / 1e9
    return f"{_bound(row)}{value:.3g}" if value >= 0.01 else "< 0.01"


def _bound(row: Collective) -> str:
    return "≥ " if row.bandwidth_is_bound else ""


def _cells(row: Collective) -> dict[str, str]:
    """What is known of a collective by column."""
    recorded = "not recorded"
    return {
        "Collective": inert(row.name),
        "Kind": inert(row.kind, 20).replace("_", "-"),
        "Type": inert(row.dtype or recorded, 20),
        "Calls": format_count(row.count),
        "Ranks": recorded if row.group_size is None else format_count(row.group_size),
        "Bytes": recorded if row.bytes is None else format_bytes(row.bytes),
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
    known = {
        "Type": any(row.dtype is not None for row in top),
        "Ranks": any(row.group_size is not None for row in top),
        "Bytes": any(row.bytes is not None for row in top),
        "Waiting": any(row.wait_ns is not None for row in top),
        "Transfer": any(row.transfer_ns is not None for row in top),
        "Bus GB/s": any(row.bus_bytes_per_s is not None for row in top),
        "Share of link": any(row.link_ratio is not None for row in top),
    }
    found = [{name: text for name, text in _cells(row).items() if known.get(name, True)} for row in top]
    more = len(report.collectives) - len(top)
    return Table(
        " ".join(_collective_notes(report)),
        tuple(found[0]),
        tuple(tuple(cells.values()) for cells in found),
        3 if known["Type"] else 2,
        f"{plural(more, 'collective')} more in the JSON." if more > 0 else "",
    )


def _collective_notes(report: Report) -> list[str]:
    notes = ["Exposed: no compute kernel ran at the same time."]
    if any(row.bus_bytes_per_s is not None and row.bandwidth_is_bound for row in report.collectives):
        notes.append("≥: the time holds waiting for other ranks, which looks the same.")
    derived = sorted({inert(row.name, 40) for row in report.collectives if row.bytes_source == "derived"})
    if derived:
        notes.append(f"Bytes of {listed(derived[:3])} are derived from operator shapes.")
    ratio = report.communication.unclassified_ratio if report.communication else None
    if ratio:
        notes.append(f"The kind of collective is not known for {format_ratio(ratio)} of the communication time.")
    return notes


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
    rows = [_recorded_cells(row) for row in found.collectives]
    return Table(
        _caption(found, skewed=skewed),
        columns,
        tuple(cells if skewed else cells[:-1] for cells in rows),
        text_columns=3,
    )


def _recorded_cells(row: RecordedCollective) -> tuple[str, ...]:
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
