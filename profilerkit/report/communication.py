"""Ranks in words and figures: who waits for whom, how the work is divided, and a job of many ranks."""

from collections.abc import Callable, Iterator, Sequence
from typing import get_args

from profilerkit.model import communication
from profilerkit.model.report import Report
from profilerkit.model.step import Rank, within
from profilerkit.report.blocks import Axis, Chart, Fact, Shape, Table, Tick
from profilerkit.report.chart import Scale, rectangle
from profilerkit.report.inert import SENTENCE_LIMIT, inert
from profilerkit.report.wording import listed, part_label, plural, share_text
from profilerkit.units import format_count, format_ns, format_ratio, format_value

_LEDGER_ROWS = 32  #: the ledger names the ranks that cause most waiting; of a large job the others cause next to none
_MOST = 0.6  #: a rank that causes this share of the waiting is not late by turns

_MATCHED_BY = {
    "sequence": "process group and number",
    "order": "their order",
    "both": "process group and number, where they have none by their order",
}


def waiting_lines(report: Report) -> Iterator[str]:
    """Who waits for whom and how that is known, one sentence or two each; nothing for a single rank."""
    found = report.communication
    if found is None or len(report.ranks) < 2:
        return
    problems = [inert(problem, SENTENCE_LIMIT) for problem in found.problems]
    if not found.matched and found.flight is not None and not report.collectives:
        yield from problems
        return
    if not found.matched:
        timed = found.late_by_timers
        late = "no rank is called late" if timed is None else f"only the timers point at a rank: rank {timed}"
        yield f"The ranks' collectives could not be matched: waiting and transfer look the same, and {late}."
        return
    by_flight = found.matched_in == "flight recorders"
    for one in found.late:
        yield _late_line(one, report)
    if not found.late and not (by_flight and found.blurred):
        yield _nobody_late(found, report)
    if by_flight:
        yield from problems
    if found.time_ns and found.waited_ns is not None:
        share = format_ratio(found.waited_ns / found.time_ns)
        divided = (
            f"{share} waiting for the last to arrive, {format_ratio(found.transfer_ns / found.time_ns)} transfer."
            if found.transfer_ns is not None
            else f"at least {share} waiting; the rest may include waiting for ranks that were not read."
        )
        yield (
            f"In {plural(found.steps or 0, 'judged step')} the ranks spent {format_ns(found.time_ns)} together in "
            f"matched collectives: {divided}"
        )
    shift = f", captures starting up to {plural(found.most_shift, 'collective')} apart" if found.most_shift else ""
    within = f"; ends agree within {format_ns(found.residual_ns)} (median)" if found.residual_ns is not None else ""
    flight = " They come from torch's flight recorders, which show who arrives when, but not the transfer."
    yield (
        f"{format_count(found.matched)} of {plural(found.of or 0, 'collective')} matched by "
        f"{_MATCHED_BY[found.by or 'order']}{shift}{within}.{flight if by_flight else ''}"
    )


def _nobody_late(found: communication.Communication, report: Report) -> str:
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


def _late_line(late: communication.LateRank, report: Report) -> str:
    caused = next(
        (rank.caused_ns for rank in report.ranks if rank.rank == late.rank and rank.origin == late.origin), None
    )
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


def _name(rank: Rank | communication.LateRank) -> str:
    return f"rank {rank.rank}" if rank.rank is not None else inert(rank.origin, 60) or "one rank"


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


def parallel_facts(report: Report) -> Iterator[Fact]:
    """How the work is divided among the ranks, as far as groups and names say; nothing for a single rank."""
    found = report.communication.parallelism if report.communication else ()
    if not found and (report.run.world_size or 1) > 1:
        yield Fact("Parallelism", "unknown", "no group or name shows it")
    for entry in found:
        size = plural(entry.size, "rank") if entry.size is not None else "of unknown size"
        if entry.bubble_share is not None:
            size += f"; {format_ratio(entry.bubble_share)} of the step in exposed transfers between stages"
            if entry.schedule_share is not None:
                micro = f"{format_count(entry.micro_batches or 0)} microbatch{'' if entry.micro_batches == 1 else 'es'}"
                size += f", {format_ratio(entry.schedule_share)} expected of {micro}"
        yield Fact(f"Parallelism, {entry.name}", size, f"derived from {inert(entry.evidence, 80)}")


_NAMED_RANKS = 8


def scale_lines(report: Report) -> Iterator[str]:
    """What the comparison of all ranks found, in sentences; where all of them are told in detail only their groups."""
    crowd = report.crowd
    if crowd is None:
        if report.communication is not None and report.communication.groups:
            yield from _groups_lines(report.communication.groups)
        return
    yield " ".join(_scope(crowd))
    for culprit in crowd.culprits:
        yield _culprit(culprit)
    if not crowd.culprits:
        yield (
            "No rank and no host keeps the others waiting for long in most of the steps."
            if crowd.matched
            else "Collectives of different ranks could not be matched, so it is not known who waits for whom."
        )
    if crowd.outliers and all(row.condition is None for row in crowd.outliers):
        yield (
            "Clocks, throttling and hosts of the late ranks were not measured: traces hold no samples of them. "
            "Run directories do (profilerkit run)."
        )
    yield from _groups_lines(crowd.groups)
    if crowd.host_count is None:
        yield "The recordings do not name their hosts."


def _scope(crowd: communication.Crowd) -> Iterator[str]:
    yield f"{plural(crowd.ranks, 'rank')} were compared by their steps and collectives."
    if crowd.missing:
        yield f"{plural(crowd.missing, 'rank')} of the job {'is' if crowd.missing == 1 else 'are'} missing."
    if crowd.unreadable:
        yield f"{plural(crowd.unreadable, 'file')} could not be read."
    if len(crowd.told) < crowd.ranks:
        yield f"{plural(len(crowd.told), 'rank')} {'is' if len(crowd.told) == 1 else 'are'} reported in detail."
    blamed = {rank for culprit in crowd.culprits for rank in culprit.ranks}
    if untold := len(blamed - set(crowd.told)):
        yield f"{plural(untold, 'rank')} that others wait for {'is' if untold == 1 else 'are'} not among them."
    if crowd.sampled is not None:
        yield _sampled(crowd.sampled)
    if crowd.left_out:
        yield f"Their summaries were too large to keep {listed([inert(text) for text in crowd.left_out])}."


def _sampled(sampled: communication.Sampled) -> str:
    has = "has" if sampled.ranks == 1 else "have"
    return (
        f"{plural(sampled.ranks, 'rank')} {has} more collectives than a summary keeps: {format_count(sampled.kept)} of "
        f"{format_count(sampled.of)} are compared. They come from whole steps spread over the trace, or are the first "
        "ones if the trace does not number them. A rank that is late only in the others is not found."
    )


def _culprit(found: communication.CulpritRow) -> str:
    ranks = f" (ranks {_numbers(found.ranks)})" if found.kind == "host" and found.ranks else ""
    name = inert(found.name, 60)
    who = f"host {name}".rstrip() if found.kind == "host" else name or "a rank"
    return (
        f"{who[0].upper()}{who[1:]}{ranks} keeps the median other rank waiting {format_ns(found.waited_ns)} of every "
        f"step. That is {format_ratio(found.share)} of the waiting not caused by those named before, and most of it in "
        f"{format_ratio(found.steps)} of the steps."
    )


def _groups_lines(known: Sequence[communication.Groups]) -> Iterator[str]:
    said = []
    if alone := [groups.kind for groups in known if groups.count == 1]:
        said.append(f"All ranks are in one {listed(alone)}.")
    if unknown := [
        f"{kind}s" for kind in get_args(communication.GroupKind) if kind not in {groups.kind for groups in known}
    ]:
        why = "because no process group in the recordings is described as one"
        said.append(f"Not measured: {listed(unknown)}, {why}.")
    if said:
        yield " ".join(said)


def _numbers(ranks: tuple[int, ...]) -> str:
    shown = sorted(ranks)[:_NAMED_RANKS]
    return ", ".join(map(str, shown)) + (" …" if len(ranks) > len(shown) else "")


#: Field of a condition, its column and its unit.
_CONDITION = (
    ("sm_clock_mhz", "SM clock", "MHz"),
    ("slowed_ratio", "Clock throttled", "ratio"),
    ("thermal_ratio", "By heat", "ratio"),
    ("power_capped_ratio", "At the power limit", "ratio"),
    ("temperature_c", "Temperature", "°C"),
    ("host_cpu_ratio", "Host CPU", "ratio"),
    ("cpu_pressure_ratio", "CPU pressure", "ratio"),
    ("running_tasks", "Threads running or waiting", "count"),
    ("thread_queue_ratio", "Thread waits for a core", "ratio"),
    ("cpu_quota_ratio", "Stopped by CPU quota", "ratio"),
)


def scale_tables(report: Report) -> Iterator[tuple[str, Table]]:
    """Heading and table of what all ranks show; where all of them are told in detail only of their groups."""
    crowd = report.crowd
    if crowd is None:
        yield from _sides(report.communication.groups if report.communication is not None else ())
        return
    columns = ("Over all ranks", "Ranks", "Least", "p10", "Median", "p90", "Most")
    rows = []
    if crowd.step_ns is not None:
        rows.append(("Median step", format_count(crowd.step_ns.n), *_words(crowd.step_ns, format_ns)))
    rows += [
        (f"{part_label(part.part)}, share", format_count(part.share.n), *_words(part.share, format_ratio))
        for part in crowd.parts
    ]
    if rows:
        yield "All ranks", Table("Each rank counts once, with its own median step and shares.", columns, tuple(rows))
    if crowd.hosts:
        more = (crowd.host_count or 0) - len(crowd.hosts)
        yield (
            "Hosts",
            Table(
                "Hosts whose ranks the others wait for, the most first.",
                ("Host", "Ranks", "Median step", "Waiting caused per step, all ranks"),
                tuple(
                    (
                        inert(row.name, 60),
                        format_count(row.ranks),
                        "not found" if row.step_ns is None else format_ns(row.step_ns),
                        format_value(row.caused_ns, "ns"),
                    )
                    for row in crowd.hosts
                ),
                more=f"{format_count(more)} more hosts." if more > 0 else "",
            ),
        )
    yield from _sides(crowd.groups)
    if any(row.condition is not None for row in crowd.outliers):
        yield "Ranks that others wait for", _outliers(crowd)


def _sides(every: Sequence[communication.Groups]) -> Iterator[tuple[str, Table]]:
    for groups in every:
        if groups.count > 1:
            yield f"{groups.kind[0].upper()}{groups.kind[1:]}s", _groups_table(groups)


def _groups_table(groups: communication.Groups) -> Table:
    stages = groups.kind == "pipeline stage"
    more = groups.count - len(groups.rows)
    return Table(
        "From the descriptions of process groups, over all ranks. Waiting counts collectives of a whole group, not "
        "transfers between two ranks.",
        ("Stage" if stages else "Its ranks", "Ranks", "Median step", "Waiting caused per step", "Last to arrive"),
        tuple(
            (
                f"Stage {row.stage}" if stages else _members(row),
                format_count(row.ranks),
                "not found" if row.step_ns is None else format_ns(row.step_ns),
                format_value(row.caused_ns, "ns"),
                "not measured" if row.late is None else plural(row.late, "time"),
            )
            for row in groups.rows
        ),
        more=f"{format_count(more)} more." if more > 0 else "",
    )


def _members(row: communication.GroupRow) -> str:
    return (", ".join(map(str, row.members)) or "not known") + (" …" if row.ranks > len(row.members) else "")


def _outliers(crowd: communication.Crowd) -> Table:
    told = [(inert(row.name, 60), row.condition) for row in crowd.outliers]
    told += [(f"Median of {plural(crowd.conditions, 'rank')}", crowd.typical)]
    known = [entry for entry in _CONDITION if any(_value(condition, entry[0]) is not None for _, condition in told)]
    unknown = [title for name, title, _ in _CONDITION if name not in {entry[0] for entry in known}]
    return Table(
        "Their devices and hosts next to the median rank: medians over the samples taken until the trace was "
        "summarised. Device values count only while the device was busy.",
        ("Rank", *(title for _, title, _ in known)),
        tuple(
            (name, *(format_value(_value(condition, field), unit) for field, _, unit in known))
            for name, condition in told
        ),
        more=f"Not measured for any: {', '.join(unknown)}." if unknown else "",
    )


def _value(condition: communication.Condition | None, field: str) -> float | None:
    value: float | None = None if condition is None else getattr(condition, field)
    return value


def _words(spread: communication.Spread, words: Callable[[float], str]) -> tuple[str, ...]:
    values = (spread.minimum, spread.p10, spread.median, spread.p90, spread.maximum)
    return tuple(words(value) for value in values)


#: Waiting as a share of the median step, above which a cell is drawn: faint (a rank is late) or full (a half).
_FAINT, _FULL = 0.05, 0.5
_TABLE_ROWS = 20
_NAMED_ROWS = 6


def scale_chart(report: Report) -> Chart | None:
    """The heat map of many ranks; ``None`` where all are told in detail, or nothing was matched."""
    crowd = report.crowd
    if crowd is None or crowd.heat is None or crowd.step_ns is None or not crowd.heat.columns:
        return None
    heat, step_ns = crowd.heat, max(crowd.step_ns.median, 1.0)
    down, across = Scale(0.0, float(len(heat.rows))), Scale(0.0, float(len(heat.columns)))
    paths = {"communication": "", "communication pale": ""}
    for row, line in enumerate(heat.waited_ns):
        for column, waited in enumerate(line):
            if waited >= _FAINT * step_ns:
                key = "communication" if waited >= _FULL * step_ns else "communication pale"
                top, left = down.at(row), across.at(column)
                paths[key] += rectangle(left, top, across.at(column + 1), down.at(row + 1))
    each = f"Each row is the worst of {heat.ranks_each} neighbouring ranks. " if heat.ranks_each > 1 else ""
    steps = f"Each column is the worst of {heat.steps_each} steps. " if heat.steps_each > 1 else ""
    return Chart(
        anchor="crowd",
        title=_title(crowd),
        caption=f"{plural(crowd.ranks, 'rank')}, median step {format_ns(step_ns)}. {each}{steps}Derived from matched "
        "collectives. A cell shows how long the other members of a rank's groups wait for it, on average. The title "
        "names the wait of the median other rank.",
        height_px=max(160, min(6 * len(heat.rows), 380)),
        shapes=tuple(Shape(key, "area", path) for key, path in paths.items() if path),
        x=Axis("First step of a column" if heat.steps_each > 1 else "Step", _ticks(heat.columns, across)),
        y=Axis(
            "First rank of a row" if heat.ranks_each > 1 else "Rank",
            tuple(Tick(100.0 - tick.at, tick.label) for tick in _ticks(heat.rows, down)),
        ),
        legend=(
            ("communication pale", f"The others wait {format_ns(_FAINT * step_ns)} or more"),
            ("communication", f"{format_ns(_FULL * step_ns)} or more"),
        ),
        labels=(),
        table=_table(heat),
    )


def _title(crowd: communication.Crowd) -> str:
    names = [inert(f"{'host ' if row.kind == 'host' else ''}{row.name}", 40) or "a rank" for row in crowd.culprits]
    if not names:
        return "No rank keeps the others waiting for long"
    first = crowd.culprits[0]
    told = (
        f"{names[0][:1].upper()}{names[0][1:]} keeps the median other rank waiting {format_ns(first.waited_ns)} of "
        "every step"
    )
    return told + (f", then {names[1]} {format_ns(crowd.culprits[1].waited_ns)}" if len(names) > 1 else "")


def _ticks(values: tuple[int, ...], scale: Scale) -> tuple[Tick, ...]:
    every = max(1, -(-len(values) // _NAMED_ROWS))
    return tuple(Tick(scale.at(at + 0.5), format_count(values[at])) for at in range(0, len(values), every))


def _table(heat: communication.Heat) -> Table:
    worst = sorted(range(len(heat.rows)), key=lambda row: -max(heat.waited_ns[row]))[:_TABLE_ROWS]
    rows = []
    for row in sorted(worst):
        line = heat.waited_ns[row]
        column = line.index(max(line))
        rank, step = _from(heat.rows[row], heat.ranks_each), _from(heat.columns[column], heat.steps_each)
        rows.append((rank, format_ns(max(line)), step))
    more = f"{len(heat.rows) - len(rows)} more rows in the JSON." if len(heat.rows) > len(rows) else ""
    return Table("The figure as a table", ("Rank", "Caused in its worst step", "Worst step"), tuple(rows), 1, more)


def _from(first: int, each: int) -> str:
    """A row or a column by the first number in it.

    >>> _from(1200, 1), _from(1200, 50)
    ('1,200', 'from 1,200')
    """
    return format_count(first) if each == 1 else f"from {format_count(first)}"
