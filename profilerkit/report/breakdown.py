"""The parts of a step as a bar by family, and whose step it is."""

from collections.abc import Sequence

from profilerkit.model.report import Report
from profilerkit.model.step import QUEUE, Family, Part, taken_share
from profilerkit.report.blocks import Bar, Segment, Value
from profilerkit.report.inert import inert
from profilerkit.report.wording import FAMILY_LABELS, judged_steps, marks_none, part_label, plural, weakest

#: The piece of a bar that is the machine's.
TAKEN = "Other programs"
#: A table of more ranks than this is no longer read row by row.
RANK_ROWS = 128


def families_of(parts: Sequence[Part]) -> dict[Family, list[Part]]:
    """Parts by family in the report's fixed order, so that a colour keeps its place; empty families are left out."""
    grouped: dict[Family, list[Part]] = {family: [] for family in FAMILY_LABELS}
    for part in parts:
        if part.time_ns > 0:
            grouped[part.family].append(part)
    return {family: sorted(own, key=lambda part: -part.time_ns) for family, own in grouped.items() if own}


def own_share(part: Part, parts: Sequence[Part]) -> float | None:
    """Share of the step that verdict and savings are about; ``None`` for the time that other programs took of it."""
    return None if part.part == QUEUE else part.share / max(1.0 - taken_share(parts), part.share, 1e-9)


def bar_of(parts: Sequence[Part], label: str = "Shares of the step", caption: str = "") -> Bar:
    """One segment per family, named by its largest part, and beside them the time that other programs took."""
    grouped = families_of([part for part in parts if part.part != QUEUE])
    total_ns = sum(part.time_ns for own in grouped.values() for part in own)
    segments = [
        Segment(
            family=family,
            label=FAMILY_LABELS[family],
            ratio=sum(part.time_ns for part in own) / total_ns,
            time=Value(sum(part.time_ns for part in own), "ns"),
            detail=part_label(own[0].part),
            source=weakest(part.source for part in own),
        )
        for family, own in grouped.items()
    ]
    for part in parts:
        if part.part == QUEUE and part.time_ns > 0:
            time, ratio = Value(part.time_ns, "ns"), part.time_ns / (total_ns or part.time_ns)
            segments.append(Segment(part.family, TAKEN, ratio, time, part_label(QUEUE), part.source, beside=True))
    return Bar(label, tuple(segments), caption)


def judged_rank(report: Report) -> int | None:
    """The rank whose breakdown and steps the report shows; ``None`` where it has no number."""
    own = [rank for rank in report.ranks if len(report.ranks) == 1 or rank.breakdown == report.breakdown]
    return own[0].rank if own else None


def _judged_rank(report: Report) -> str:
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
    of = "The recording, in which nothing marks a step" if marks_none(report) else f"Mean of {judged_steps(report)}"
    return f"{of}{', ' + scope if scope else ''}"


def parts_missing(report: Report) -> str:
    """Why there is no bar; empty when there is one."""
    if any(part.time_ns > 0 for part in report.breakdown):
        return ""
    if report.trust.mode == "logs":
        return "Logs have no steps, so they do not show where the time goes."
    if report.trust.mode == "dumps":
        return "Flight recorders show when collectives are issued, not what happens between them."
    if report.steps.time_ns is None and report.steps.count:
        return f"{plural(report.steps.count, 'step')} found, none of them steady, so there is no step time to divide."
    if report.steps.time_ns is None:
        return "No step was found, so there is no step time to divide."
    return "Only the length of each step is known. Record a trace window to see what it is made of."


def one_device(report: Report) -> str:
    """The device name when all ranks share it; then it is said once."""
    names = {rank.device for rank in report.ranks}
    return inert(names.pop() or "", 60) if len(names) == 1 else ""
