"""Many ranks in words and tables: whom the others wait for, how ranks are spread, which hosts they are on."""

from collections.abc import Callable, Iterator

from profilerkit.model.crowd import Crowd, CulpritRow, Sampled, Spread
from profilerkit.model.report import Report
from profilerkit.report.inert import inert
from profilerkit.report.records import Table
from profilerkit.report.wording import listed, part_label, plural
from profilerkit.units import format_count, format_ns, format_ratio

_NAMED_RANKS = 8


def crowd_lines(report: Report) -> tuple[str, ...]:
    """What the comparison of all ranks found, in sentences; empty where all of them are told in detail."""
    return tuple(_lines(report.crowd)) if report.crowd is not None else ()


def _lines(crowd: Crowd) -> Iterator[str]:
    yield " ".join(_scope(crowd))
    for culprit in crowd.culprits:
        yield _culprit(culprit)
    if not crowd.culprits:
        yield (
            "No rank and no host keeps the others waiting for long in most of the steps."
            if crowd.matched
            else "Collectives of different ranks could not be matched, so nobody can be said to wait for anybody."
        )


def _scope(crowd: Crowd) -> Iterator[str]:
    yield f"{plural(crowd.ranks, 'rank')} were compared by their steps and collectives."
    if crowd.missing:
        yield f"{plural(crowd.missing, 'rank')} of the job {'is' if crowd.missing == 1 else 'are'} missing."
    if crowd.unreadable:
        yield f"{plural(crowd.unreadable, 'file')} could not be read."
    if len(crowd.told) < crowd.ranks:
        yield f"{plural(len(crowd.told), 'rank')} {'is' if len(crowd.told) == 1 else 'are'} told in detail."
    blamed = {rank for culprit in crowd.culprits for rank in culprit.ranks}
    if untold := len(blamed - set(crowd.told)):
        yield f"Of those that others wait for {plural(untold, 'rank')} {'is' if untold == 1 else 'are'} not among them."
    if crowd.sampled is not None:
        yield _sampled(crowd.sampled)
    if crowd.left_out:
        yield f"Their summaries were too large to keep {listed([inert(text) for text in crowd.left_out])}."


def _sampled(sampled: Sampled) -> str:
    has = "has" if sampled.ranks == 1 else "have"
    return (
        f"{plural(sampled.ranks, 'rank')} {has} more collectives than a summary keeps: {format_count(sampled.kept)} of "
        f"{format_count(sampled.of)} are compared, those of whole steps spread over the trace, or the first where it "
        "does not number them. Who is late in the others alone is not found."
    )


def _culprit(found: CulpritRow) -> str:
    ranks = f" (ranks {_numbers(found.ranks)})" if found.kind == "host" and found.ranks else ""
    name = inert(found.name, 60)
    who = f"host {name}".rstrip() if found.kind == "host" else name or "a rank"
    return (
        f"{who[0].upper()}{who[1:]}{ranks} keeps the median other rank waiting {format_ns(found.waited_ns)} of every "
        f"step: {format_ratio(found.share)} of the waiting that is left without those named before, and most of it in "
        f"{format_ratio(found.steps)} of the steps."
    )


def _numbers(ranks: tuple[int, ...]) -> str:
    shown = sorted(ranks)[:_NAMED_RANKS]
    return ", ".join(map(str, shown)) + (" …" if len(ranks) > len(shown) else "")


def crowd_tables(report: Report) -> tuple[tuple[str, Table], ...]:
    """Heading and table of what all ranks show; empty where all of them are told in detail."""
    if report.crowd is None:
        return ()
    return tuple(_tables(report.crowd))


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


def _words(spread: Spread, words: Callable[[float], str]) -> tuple[str, ...]:
    values = (spread.minimum, spread.p10, spread.median, spread.p90, spread.maximum)
    return tuple(words(value) for value in values)
