"""Many ranks in words: whom the others wait for, and what is not known of them."""

from collections.abc import Iterator, Sequence
from typing import get_args

from profilerkit.model.crowd import Crowd, CulpritRow, GroupKind, Groups, Sampled
from profilerkit.model.report import Report
from profilerkit.report.inert import inert
from profilerkit.report.wording import listed, plural
from profilerkit.units import format_count, format_ns, format_ratio

_NAMED_RANKS = 8


def crowd_lines(report: Report) -> tuple[str, ...]:
    """What the comparison of all ranks found, in sentences; where all of them are told in detail only their groups."""
    if report.crowd is not None:
        return tuple(_lines(report.crowd))
    groups = report.communication.groups if report.communication is not None else ()
    sides = " ".join(_groups(groups)) if groups else ""
    return (sides,) if sides else ()


def _lines(crowd: Crowd) -> Iterator[str]:
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
    if sides := " ".join(_groups(crowd.groups)):
        yield sides
    if crowd.host_count is None:
        yield "The recordings do not name their hosts."


def _scope(crowd: Crowd) -> Iterator[str]:
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


def _sampled(sampled: Sampled) -> str:
    has = "has" if sampled.ranks == 1 else "have"
    return (
        f"{plural(sampled.ranks, 'rank')} {has} more collectives than a summary keeps: {format_count(sampled.kept)} of "
        f"{format_count(sampled.of)} are compared. They come from whole steps spread over the trace, or are the first "
        "ones if the trace does not number them. A rank that is late only in the others is not found."
    )


def _culprit(found: CulpritRow) -> str:
    ranks = f" (ranks {_numbers(found.ranks)})" if found.kind == "host" and found.ranks else ""
    name = inert(found.name, 60)
    who = f"host {name}".rstrip() if found.kind == "host" else name or "a rank"
    return (
        f"{who[0].upper()}{who[1:]}{ranks} keeps the median other rank waiting {format_ns(found.waited_ns)} of every "
        f"step. That is {format_ratio(found.share)} of the waiting not caused by those named before, and most of it in "
        f"{format_ratio(found.steps)} of the steps."
    )


def _groups(known: Sequence[Groups]) -> Iterator[str]:
    alone = [groups.kind for groups in known if groups.count == 1]
    if alone:
        yield f"All ranks are in one {listed(alone)}."
    unknown = [f"{kind}s" for kind in get_args(GroupKind) if kind not in {groups.kind for groups in known}]
    if unknown:
        yield f"Not measured: {listed(unknown)}, because no process group in the recordings is described as one."


def _numbers(ranks: tuple[int, ...]) -> str:
    shown = sorted(ranks)[:_NAMED_RANKS]
    return ", ".join(map(str, shown)) + (" …" if len(ranks) > len(shown) else "")
