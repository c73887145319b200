"""The memory peaks of two snapshots: how much more or less, and which lines and kinds hold it."""

from collections.abc import Iterable

from profilerkit.model.diff import HolderChange, Judgement, MemoryChange
from profilerkit.model.report import Report
from profilerkit.model.snapshot import MemorySnapshot
from profilerkit.units import format_bytes, format_ratio

#: A smaller change of the peak is none (a choice: allocators round by as much).
SMALLEST_RATIO = 0.01
#: Lines told.
_MOST_LINES = 8


def memory_change(before: Report, after: Report) -> MemoryChange | None:
    """The change of the fullest snapshot of each side; ``None`` where a side has none.

    Two snapshots without a history are compared as they were taken; a peak and such a state are not compared.
    """
    first, second = _fullest(before), _fullest(after)
    if first is None or second is None or (first.peak_bytes is None) != (second.peak_bytes is None):
        return None
    held, holds = _total(first), _total(second)
    if not held:
        return None
    kinds = _paired(((entry.kind, entry.bytes) for entry in one.kinds) for one in (first, second))
    lines = _paired(((row.line, row.bytes) for row in one.live if row.line) for one in (first, second))
    return MemoryChange(
        before_bytes=held,
        after_bytes=holds,
        change=holds / held - 1.0,
        at_peak=first.peak_bytes is not None,
        is_lower_bound=first.peak_bytes is not None and (first.is_lower_bound or second.is_lower_bound),
        kinds=tuple(HolderChange(name=kind, before_bytes=old, after_bytes=new) for kind, old, new in kinds),
        lines=tuple(HolderChange(name=line, before_bytes=old, after_bytes=new) for line, old, new in lines)[
            :_MOST_LINES
        ],
    )


def memory_judgement(change: MemoryChange) -> Judgement:
    """Less or more memory, from ``SMALLEST_RATIO`` on."""
    if abs(change.change) < SMALLEST_RATIO:
        return "no real change"
    return "less memory" if change.change < 0 else "more memory"


def memory_headline(change: MemoryChange) -> str:
    """The change in one sentence, with the kind that changed most."""
    what = "The memory peak" if change.at_peak else "The memory in use at the snapshot"
    sizes = f"{format_bytes(change.before_bytes)} → {format_bytes(change.after_bytes)}"
    if memory_judgement(change) == "no real change":
        return f"{what} is as before: {sizes}"
    said = f"{what} is {format_ratio(abs(change.change))} {'lower' if change.change < 0 else 'higher'}: {sizes}"
    most = max(change.kinds, key=lambda row: abs(row.bytes), default=None)
    if most is None or not most.bytes or most.name == "unseen":
        return said
    return f"{said}, {format_bytes(abs(most.bytes))} {'less' if most.bytes < 0 else 'more'} {most.name}"


def _fullest(report: Report) -> MemorySnapshot | None:
    return max(report.snapshots, key=_total, default=None)


def _total(one: MemorySnapshot) -> int:
    return one.in_use_bytes if one.peak_bytes is None else one.peak_bytes


def _paired(sides: Iterable[Iterable[tuple[str | None, int]]]) -> list[tuple[str, int | None, int | None]]:
    """Name and size on both sides, largest change first; a line may hold several kinds of blocks."""
    found: list[dict[str, int]] = []
    for side in sides:
        sizes: dict[str, int] = {}
        for name, size in side:
            sizes[name or ""] = sizes.get(name or "", 0) + size
        found.append(sizes)
    names = list(dict.fromkeys(name for sizes in found for name in sizes))
    rows = [(name, found[0].get(name), found[1].get(name)) for name in names]
    return sorted(rows, key=lambda row: -abs((row[2] or 0) - (row[1] or 0)))
