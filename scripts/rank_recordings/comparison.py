"""Compares what a report says about a recording with what was injected."""

from profilerkit.model.report import Report
from rank_recordings.kinds import Kind


def misses(kind: Kind, report: Report) -> list[str]:
    """What the report says wrongly about a recording of this kind."""
    verdict = report.verdict
    found = []
    if verdict.bound not in kind.bounds:
        found.append(f"{verdict.bound}, not {' or '.join(kind.bounds)}: {verdict.headline}")
    if verdict.rank != kind.rank:
        named = "no rank" if verdict.rank is None else f"rank {verdict.rank}"
        found.append(f"names {named}, not {'none' if kind.rank is None else f'rank {kind.rank}'}: {verdict.headline}")
    return found
