"""Compares what a report says about a recording with what was injected and what the timers measured."""

from profilerkit.model.communication import LateRank
from profilerkit.model.report import Report
from rank_recordings.kinds import Kind

#: How far the stated waiting may be from the timers': they saw every step, and the report judges fewer.
_WAIT_TOLERANCE = 0.25


def misses(kind: Kind, wait_ms: float, report: Report) -> list[str]:
    """What the report says wrongly about a recording of this kind, whose ranks arrived ``wait_ms`` apart."""
    verdict = report.verdict
    found = []
    if verdict.bound not in kind.bounds:
        found.append(f"{verdict.bound}, not {' or '.join(kind.bounds)}: {verdict.headline}")
    if verdict.rank != kind.rank:
        named = "no rank" if verdict.rank is None else f"rank {verdict.rank}"
        found.append(f"names {named}, not {'none' if kind.rank is None else f'rank {kind.rank}'}: {verdict.headline}")
    if report.communication is None or not report.communication.matched:
        return [*found, "no collective was matched"]
    if report.communication.most_shift:
        # The ranks trace the same steps.
        found.append(f"captures start {report.communication.most_shift} collectives apart")
    late = report.communication.late
    if [rank.rank for rank in late] != ([] if kind.rank is None else [kind.rank]):
        found.append(f"late ranks {[rank.rank for rank in late]}, not {[kind.rank] if kind.rank is not None else []}")
    elif late:
        found += _wrong_about(late[0], kind, wait_ms)
    return found


def _wrong_about(late: LateRank, kind: Kind, wait_ms: float) -> list[str]:
    found = []
    if not (late.cause or "").startswith(kind.cause):
        found.append(f"rank {late.rank} is late by {late.cause or 'nothing known'}, not {kind.cause}*")
    said_ms = late.waited_ns / 1e6
    if abs(said_ms - wait_ms) > _WAIT_TOLERANCE * wait_ms:
        found.append(f"the others wait {said_ms:.1f} ms per step for it, not {wait_ms:.1f} ms")
    return found
