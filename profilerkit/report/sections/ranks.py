"""Ranks: how each spends its step, and who waits for whom."""

from profilerkit.model.report import Report
from profilerkit.model.step import Rank
from profilerkit.report.blocks import Block, Cell, Heading, Section, Table, Text, Value
from profilerkit.report.breakdown import RANK_ROWS, bar_of, one_device
from profilerkit.report.charts.crowd import crowd_chart
from profilerkit.report.charts.ranks import rank_chart
from profilerkit.report.communication import waiting_lines, waiting_table
from profilerkit.report.crowd import crowd_lines
from profilerkit.report.crowd_tables import crowd_tables
from profilerkit.report.inert import inert
from profilerkit.report.wording import plural
from profilerkit.units import format_ns


def section(report: Report) -> Section | None:
    """All ranks side by side; ``None`` for a single one."""
    if len(report.ranks) < 2:
        return None
    slowest = sorted(report.ranks, key=lambda rank: (rank.rank != report.verdict.rank, -(rank.step_ns or 0)))
    shown = sorted(slowest[:RANK_ROWS], key=lambda rank: (rank.rank is None, rank.rank or 0, rank.origin))
    more = f"The {RANK_ROWS} ranks with the longest steps. The JSON has all {len(report.ranks)}."
    columns = ("Rank", "Where its step goes", "Median step", "Device busy")
    blocks: list[Block] = [
        Table(
            _caption(report),
            columns,
            tuple(_row(rank, report) for rank in shown),
            2,
            more if len(report.ranks) > RANK_ROWS else "",
        )
    ]
    chart = crowd_chart(report) or (None if report.crowd else rank_chart(report))
    if chart is not None:
        blocks.append(chart)
    lines = (*crowd_lines(report), *waiting_lines(report))
    table = waiting_table(report)
    if lines or table:
        blocks += [Heading("Who waits for whom"), *(Text.of(line) for line in lines), *((table,) if table else ())]
    for name, many in crowd_tables(report):
        blocks += [Heading(name), many]
    cause = f"rank {report.verdict.rank} is the cause" if report.verdict.rank is not None else "side by side"
    return Section("ranks", plural(len(report.ranks), "rank"), cause, tuple(blocks), short="Ranks")


def _row(rank: Rank, report: Report) -> tuple[Cell, ...]:
    is_cause = rank.rank is not None and rank.rank == report.verdict.rank
    label = inert(rank.origin) if rank.rank is None else f"Rank {rank.rank}"
    device = "" if one_device(report) else inert(rank.device or "", 60)
    named = " · ".join(piece for piece in (label, "cause" if is_cause else "", device) if piece)
    bar: Cell = bar_of(rank.breakdown, label) if any(part.time_ns > 0 for part in rank.breakdown) else "not split"
    step: Cell = "not found" if rank.step_ns is None else Value(rank.step_ns, "ns")
    return (named, bar, step, Value(rank.device_busy_ratio, "ratio"))


def _caption(report: Report) -> str:
    """How far the ranks differ, and how many are missing."""
    times = [rank.step_ns for rank in report.ranks if rank.step_ns is not None]
    pieces = []
    if times:
        pieces.append(f"Median steps run from {format_ns(min(times))} to {format_ns(max(times))}.")
    if report.run.missing_ranks:
        pieces.append(f"{plural(report.run.missing_ranks, 'rank')} of the job could not be read.")
    if one_device(report):
        pieces.append(f"All on {one_device(report)}.")
    return " ".join(pieces)
