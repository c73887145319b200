"""What share of the step a part or a family of parts takes, where the recording can tell."""

from typing import get_args

from profilerkit.model.report import Report
from profilerkit.model.step import PARTS, Family, family_of
from profilerkit.model.verdict import BOUND_FAMILY

#: Parts that the timers of a run without a trace see: one that is absent there took no time.
_TIMED = ("input.fetch", "input.prep", "input.wait")
_FAMILIES: tuple[Family, ...] = get_args(Family)
#: Families that such a run divides no further, or that are what is left of the step.
_WHOLE: tuple[Family, ...] = ("input", "other")


def is_traced(report: Report) -> bool:
    """Whether a trace told how the step divides; else only timers did."""
    return report.trust.mode not in ("steps", "dumps")


def share_of(report: Report, name: str) -> float | None:
    """The share of a part, or of all parts of a family; ``None`` where this recording does not measure it."""
    if not report.breakdown:
        return None
    unseen = _unseen(report)
    if name in _FAMILIES:
        return None if name in unseen else sum(part.share for part in report.breakdown if part.family == name)
    told = next((part.share for part in report.breakdown if part.part == name), None)
    # Of a part that only a newer version knows, a report without it does not say that it took no time.
    is_seen = name in PARTS and family_of(name) not in unseen and (is_traced(report) or name in _TIMED)
    return 0.0 if told is None and is_seen else told


def _unseen(report: Report) -> set[Family]:
    """Families whose time is not measured, or of which only some parts are."""
    unseen = {BOUND_FAMILY[row.bound] for row in report.verdict.ruled_out if row.state == "not measured"}
    return unseen if is_traced(report) else unseen | {family for family, _ in PARTS.values() if family not in _WHOLE}
