"""Summaries of all ranks to what the analysis of a few ranks is made from: one pass over all, a second over a few."""

import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from profilerkit.analysis.rank_facts import RankFacts, rank_facts
from profilerkit.analysis.ranks.scale import Crowd, Member, compare_many, member_of
from profilerkit.analysis.trace_facts import TraceFacts
from profilerkit.errors import UnreadableInputError, UsageError
from profilerkit.model.communication import Sampled
from profilerkit.summaries.files import SUFFIX, Summary, open_summary

logger = logging.getLogger(__name__)

#: Up to so many ranks are all told in detail.
MOST_IN_DETAIL = 16
_NAMED = 3
_TOLD_EACH = 64  #: summaries from one word about how far it is to the next: a tenth of a second
_SLOW = "anomaly"  #: the kind of a window that was opened for slow steps


class Reduced(msgspec.Struct, frozen=True):
    """What the summaries say."""

    ranks: list[RankFacts]
    crowd: Crowd
    world_size: int | None  #: of the job, as the traces say; ``None`` where they do not
    unreadable: int
    left_out: tuple[str, ...]  #: what the summaries of the told ranks lack, in words
    sampled: Sampled | None  #: the collectives of ranks that have more than is kept; ``None`` where nobody has
    notes: tuple[str, ...]


def found_in(paths: Sequence[Path]) -> list[Path]:
    """The summaries that are named, and those in the directories that are; sorted."""
    if not paths:
        raise UsageError("no path was given", hint="name a directory of summaries, as profilerkit map writes them")
    found: set[Path] = set()
    for path in paths:
        if not path.exists():
            raise UnreadableInputError(f"{path} does not exist", hint="check the spelling of the path")
        found |= set(path.rglob(f"*{SUFFIX}")) if path.is_dir() else {path}
    if not found:
        raise UnreadableInputError(
            f"no summary in {paths[0]}",
            cause=f"no file there ends in {SUFFIX}",
            hint="make summaries of the traces first: profilerkit map PATH",
        )
    return sorted(found)


def read_summaries(files: Sequence[Path]) -> Reduced:
    """Compare all ranks, and read those in detail that the comparison asks for."""
    broken: list[tuple[Path, UnreadableInputError]] = []
    opened: list[tuple[Summary, Member]] = []
    worlds: list[int] = []
    for number, path in enumerate(files):
        if number % _TOLD_EACH == 0:
            logger.info("reading summary %s of %s", f"{number + 1:,}", f"{len(files):,}")
        try:
            summary = open_summary(path)
            outline = summary.outline()
        except UnreadableInputError as error:
            broken.append((path, error))
            continue
        opened.append((summary, member_of(outline, summary.header.origin, summary.header.condition)))
        worlds += [outline.meta.world_size] if outline.meta.world_size else []
    if not opened:
        first, why = broken[0]
        raise UnreadableInputError(
            f"none of {len(files)} summaries can be read", cause=f"{first.name}: {why.cause or why.what}", hint=why.hint
        )
    opened.sort(key=lambda pair: (pair[1].rank is None, pair[1].rank or 0, pair[0].header.origin))
    opened, doubled = _once(opened)
    world = max(worlds, default=None)
    logger.info("comparing %s ranks", f"{len(opened):,}")
    crowd = compare_many([member for _, member in opened], world)
    told = range(len(opened)) if len(opened) <= MOST_IN_DETAIL else crowd.told
    logger.info("reading the details of %d ranks", len(told))
    ranks: list[RankFacts] = []
    lost: list[str] = []
    for at in told:
        summary = opened[at][0]
        try:
            facts = _details(summary, lost)
        except UnreadableInputError as error:  # it was there before
            broken.append((summary.path, error))
            continue
        ranks.append(rank_facts(summary.header.origin, facts, None))
    if not ranks:
        raise broken[-1][1]
    left_out = sorted({opened[at][0].header.left_out for at in told} - {""})
    return Reduced(
        ranks,
        crowd,
        world,
        len(broken),
        tuple(left_out),
        _sampled([summary for summary, _ in opened]),
        (*_broken_notes(broken), *_doubled_notes(doubled), *lost),
    )


def _details(summary: Summary, lost: list[str]) -> TraceFacts:
    try:
        return summary.details()
    except UnreadableInputError as error:
        facts = summary.outline()
        lost.append(f"The details of {summary.path.name} cannot be read: {error.cause or error.what}.")
        return facts


def _sampled(summaries: Sequence[Summary]) -> Sampled | None:
    cut = [summary.header for summary in summaries if summary.header.collectives > summary.header.compared]
    if not cut:
        return None
    return Sampled(
        ranks=len(cut), kept=sum(header.compared for header in cut), of=sum(header.collectives for header in cut)
    )


def _once(opened: list[tuple[Summary, Member]]) -> tuple[list[tuple[Summary, Member]], list[str]]:
    """Of several summaries of one rank the one to judge, and the names of the others.

    That is the last of the windows of typical steps that most ranks have, as ``typical_windows`` has it.
    """
    held = Counter(summary.header.first_step for summary, _ in opened if summary.header.kind != _SLOW)

    def rank_of(pair: tuple[Summary, Member]) -> tuple[bool, int, int]:
        header = pair[0].header
        return header.kind != _SLOW, held[header.first_step], header.first_step

    best: dict[int, tuple[Summary, Member]] = {}
    for pair in opened:
        number = pair[1].rank
        if number is not None and (number not in best or rank_of(pair) > rank_of(best[number])):
            best[number] = pair
    kept = [pair for pair in opened if pair[1].rank is None or best[pair[1].rank] is pair]
    chosen = set(map(id, kept))
    return kept, [pair[0].header.origin for pair in opened if id(pair) not in chosen]


def _broken_notes(broken: Sequence[tuple[Path, UnreadableInputError]]) -> Iterable[str]:
    if not broken:
        return
    first, why = broken[0]
    count = "1 summary" if len(broken) == 1 else f"{len(broken):,} summaries"
    yield f"{count} cannot be read and was left out, {first.name} first: {why.cause or why.what}."


def _doubled_notes(doubled: Sequence[str]) -> Iterable[str]:
    if doubled:
        more = f" and {len(doubled) - _NAMED} more" if len(doubled) > _NAMED else ""
        yield f"Ranks with several summaries are judged by one; left out: {', '.join(doubled[:_NAMED])}{more}."
