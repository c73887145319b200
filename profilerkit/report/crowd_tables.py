"""Many ranks in tables: how they are spread, and hosts, groups and outliers side by side."""

from collections.abc import Callable, Iterator, Sequence

from profilerkit.model.crowd import Condition, Crowd, GroupRow, Groups, Spread
from profilerkit.model.report import Report
from profilerkit.report.blocks import Table
from profilerkit.report.inert import inert
from profilerkit.report.wording import part_label, plural
from profilerkit.units import format_count, format_ns, format_ratio, format_value

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


def crowd_tables(report: Report) -> tuple[tuple[str, Table], ...]:
    """Heading and table of what all ranks show; where all of them are told in detail only of their groups."""
    if report.crowd is not None:
        return tuple(_tables(report.crowd))
    return tuple(_sides(report.communication.groups)) if report.communication is not None else ()


def _tables(crowd: Crowd) -> Iterator[tuple[str, Table]]:
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
                        "not measured" if row.caused_ns is None else format_ns(row.caused_ns),
                    )
                    for row in crowd.hosts
                ),
                more=f"{format_count(more)} more hosts." if more > 0 else "",
            ),
        )
    yield from _sides(crowd.groups)
    if any(row.condition is not None for row in crowd.outliers):
        yield "Ranks that others wait for", _outliers(crowd)


def _sides(every: Sequence[Groups]) -> Iterator[tuple[str, Table]]:
    for groups in every:
        if groups.count > 1:
            yield f"{groups.kind[0].upper()}{groups.kind[1:]}s", _groups(groups)


def _groups(groups: Groups) -> Table:
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


def _members(row: GroupRow) -> str:
    return (", ".join(map(str, row.members)) or "not known") + (" …" if row.ranks > len(row.members) else "")


def _outliers(crowd: Crowd) -> Table:
    """The ranks of the culprits, and the median rank last; a column that nobody has is left out and named."""
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


def _value(condition: Condition | None, field: str) -> float | None:
    value: float | None = None if condition is None else getattr(condition, field)
    return value


def _words(spread: Spread, words: Callable[[float], str]) -> tuple[str, ...]:
    values = (spread.minimum, spread.p10, spread.median, spread.p90, spread.maximum)
    return tuple(words(value) for value in values)
