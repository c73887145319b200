"""The parts of a step as a bar by family, as rows, and per rank."""

from collections.abc import Sequence

from profilerkit.model.report import Report
from profilerkit.model.step import Family, Part, Rank
from profilerkit.report.inert import inert
from profilerkit.report.records import PartRow, RankRow, Segment
from profilerkit.report.wording import FAMILY_LABELS, judged_steps, part_label, plural, share_text, weakest
from profilerkit.units import format_ns, format_ratio

#: A table of more ranks than this is no longer read row by row.
RANK_ROWS = 128


def families_of(parts: Sequence[Part]) -> dict[Family, list[Part]]:
    """Parts by family in the report's fixed order, so that a colour keeps its place; empty families are left out."""
    grouped: dict[Family, list[Part]] = {family: [] for family in FAMILY_LABELS}
    for part in parts:
        if part.time_ns > 0:
            grouped[part.family].append(part)
    return {family: sorted(own, key=lambda part: -part.time_ns) for family, own in grouped.items() if own}


def _detail(parts: Sequence[Part]) -> str:
    """The largest part of a family and how many there are besides."""
    label = part_label(parts[0].part)
    return f"{label} and {len(parts) - 1} more" if len(parts) > 1 else label


def bar_of(parts: Sequence[Part]) -> tuple[Segment, ...]:
    """One segment per family; the ratios sum to 1."""
    grouped = families_of(parts)
    total_ns = sum(part.time_ns for own in grouped.values() for part in own)
    return tuple(
        Segment(
            family=family,
            label=FAMILY_LABELS[family],
            time=format_ns(sum(part.time_ns for part in own)),
            share=share_text(sum(part.share for part in own)),
            ratio=sum(part.time_ns for part in own) / total_ns,
            source=weakest(part.source for part in own),
            detail=_detail(own),
        )
        for family, own in grouped.items()
    )


def part_rows(parts: Sequence[Part]) -> tuple[PartRow, ...]:
    """Every part that took time, by family in the order of the bar, largest first within it."""
    return tuple(
        PartRow(family, part_label(part.part), format_ns(part.time_ns), share_text(part.share), part.source)
        for family, own in families_of(parts).items()
        for part in own
    )


def judged_rank(report: Report) -> int | None:
    """The rank whose breakdown and steps the report shows; ``None`` where it has no number."""
    own = [rank for rank in report.ranks if len(report.ranks) == 1 or rank.breakdown == report.breakdown]
    return own[0].rank if own else None


def _judged_rank(report: Report) -> str:
    """Whose breakdown the report shows, in words."""
    rank, of = judged_rank(report), report.run.world_size
    if len(report.ranks) == 1:
        return "" if rank is None or not of else f"rank {rank} of {of}"
    if rank is not None:
        return f"rank {rank} of {of or len(report.ranks)}"
    return f"{len(report.ranks)} ranks" if report.ranks else ""


def drawn_rank(report: Report) -> str:
    """Whose steps a figure draws, to end a phrase: ``, rank 3 of 8, the judged one``; empty where nobody is named."""
    rank = _judged_rank(report)
    return "".join((f", {rank}" if rank else "", ", the judged one" if rank and len(report.ranks) > 1 else ""))


def bar_caption(report: Report) -> str:
    """What the bar averages over."""
    if not report.breakdown:
        return ""
    scope = _judged_rank(report)
    return f"Mean of {judged_steps(report)}{', ' + scope if scope else ''}"


def parts_missing(report: Report) -> str:
    """Why there is no bar; empty when there is one."""
    if any(part.time_ns > 0 for part in report.breakdown):
        return ""
    if report.trust.mode == "logs":
        return "Logs have no steps, so that nothing tells where the time goes."
    if report.trust.mode == "dumps":
        return "Flight recorders tell when collectives are issued, not what the time between them goes into."
    if report.steps.time_ns is None and report.steps.count:
        return f"{plural(report.steps.count, 'step')} found, none of them steady, so there is no step time to divide."
    if report.steps.time_ns is None:
        return "No step was found, so there is no step time to divide."
    return "Only the length of each step is known. Record a trace window to see what it is made of."


def _one_device(report: Report) -> str:
    """The device name when all ranks share it; then it is said once."""
    names = {rank.device for rank in report.ranks}
    return inert(names.pop() or "", 60) if len(names) == 1 else ""


def _rank_row(rank: Rank, report: Report) -> RankRow:
    blamed = rank.rank is not None and rank.rank == report.verdict.rank
    return RankRow(
        label=inert(rank.origin) if rank.rank is None else f"Rank {rank.rank}",
        step="not found" if rank.step_ns is None else format_ns(rank.step_ns),
        busy="not measured" if rank.device_busy_ratio is None else format_ratio(rank.device_busy_ratio),
        device="" if _one_device(report) else inert(rank.device or "", 60),
        mark="cause" if blamed else "",
        bar=bar_of(rank.breakdown),
    )


def rank_rows(report: Report) -> tuple[RankRow, ...]:
    """One row per rank, by rank number; of very many ranks the slowest and the cause; empty for a single rank."""
    if len(report.ranks) < 2:
        return ()
    slowest = sorted(report.ranks, key=lambda rank: (rank.rank != report.verdict.rank, -(rank.step_ns or 0)))
    shown = sorted(slowest[:RANK_ROWS], key=lambda rank: (rank.rank is None, rank.rank or 0, rank.origin))
    return tuple(_rank_row(rank, report) for rank in shown)


def ranks_more(report: Report) -> str:
    """What the table of ranks leaves out; empty when it has all of them."""
    if len(report.ranks) <= RANK_ROWS:
        return ""
    return f"The {RANK_ROWS} ranks with the longest steps. The JSON has all {len(report.ranks)}."


def ranks_caption(report: Report) -> str:
    """How far the ranks differ, and how many are missing."""
    times = [rank.step_ns for rank in report.ranks if rank.step_ns is not None]
    pieces = []
    if times:
        pieces.append(f"Median steps run from {format_ns(min(times))} to {format_ns(max(times))}.")
    if report.run.missing_ranks:
        pieces.append(f"{plural(report.run.missing_ranks, 'rank')} of the job could not be read.")
    if _one_device(report):
        pieces.append(f"All on {_one_device(report)}.")
    if report.verdict.rank is not None:
        pieces.append(f"Rank {report.verdict.rank} is the cause.")
    return " ".join(pieces)
