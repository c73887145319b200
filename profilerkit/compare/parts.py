"""Which parts of the step moved, in ns per step and in share."""

from profilerkit.compare.shares import is_traced, share_of
from profilerkit.compare.steps import SMALLEST_RATIO
from profilerkit.model.change import revise
from profilerkit.model.diff import PartChange, StepChange
from profilerkit.model.report import Report
from profilerkit.model.step import family_of

#: How far a part's share of ten traced steps may lie from that of all steps, as a ratio of the part (a choice).
COMPOSITION_ERROR = 0.10


def part_changes(before: Report, after: Report, step: StepChange | None) -> tuple[PartChange, ...]:
    """Every part that took time on a side, the largest movement first; empty where only one side was traced, or split.

    Of a part that one side could not show the movement is not known: it is put where all of its time would be.

    A movement is real when it is at least ``SMALLEST_RATIO`` of the step before, and more than what the step itself is
    uncertain by and what ten traced steps leave open.
    """
    if not before.breakdown or not after.breakdown or is_traced(before) != is_traced(after):
        return ()
    names = dict.fromkeys(part.part for part in (*before.breakdown, *after.breakdown))
    times = before.step_times
    least_ns = SMALLEST_RATIO * times.mean if times else 0.0
    visible = step.visible_ratio if step else 1.0
    rows = [_judged(_change(name, before, after), least_ns, visible) for name in names]
    moved = [row for row in rows if row.before_ns or row.after_ns]
    return tuple(sorted(moved, key=lambda row: (-_at_stake_ns(row), row.part)))


def _judged(row: PartChange, least_ns: float, visible: float) -> PartChange:
    if row.before_ns is None or row.after_ns is None:
        return row
    doubt_ns = doubt(row.before_ns, row.after_ns, visible)
    return revise(row, is_real=abs(row.after_ns - row.before_ns) > max(least_ns, doubt_ns))


def doubt(before: float, after: float, visible_ratio: float) -> float:
    """How far a part, as time or as a share, may lie apart in two runs of one program, in the same unit.

    Both sides may lie off by what their traced steps leave open, and the step by ``visible_ratio``.

    >>> round(doubt(0.20, 0.30, 0.05), 4)
    0.0643
    """
    # A growth by g of what it was is a fall by g / (1 + g) of what it is.
    return COMPOSITION_ERROR * (before + after) + visible_ratio / (1.0 + visible_ratio) * max(before, after)


def _at_stake_ns(row: PartChange) -> int:
    """How far the part moved, or may have: all of its time where one side does not know it."""
    return abs((row.after_ns or 0) - (row.before_ns or 0))


def _change(name: str, before: Report, after: Report) -> PartChange:
    return PartChange(
        part=name,
        family=family_of(name),
        before_ns=_time_ns(before, name),
        after_ns=_time_ns(after, name),
        before_share=share_of(before, name),
        after_share=share_of(after, name),
        is_real=False,
    )


def _time_ns(report: Report, name: str) -> int | None:
    """Of a mean step; 0 where the recording would have shown the part, ``None`` where it could not."""
    told = next((part.time_ns for part in report.breakdown if part.part == name), None)
    return 0 if told is None and share_of(report, name) is not None else told
