"""Parts, kernels and memory of two runs: which changed, and whether that is more than noise."""

from collections import Counter
from collections.abc import Iterable

from profilerkit.compare.sides import is_traced, share_of
from profilerkit.compare.steps import SMALLEST_RATIO
from profilerkit.compare.verdict import VISIBLE_RATIO
from profilerkit.model import revise
from profilerkit.model.diff import HolderChange, Judgement, KernelChange, KernelOf, MemoryChange, PartChange, StepChange
from profilerkit.model.memory import MemorySnapshot
from profilerkit.model.report import MOST_KERNELS, Report
from profilerkit.model.step import family_of
from profilerkit.units import format_bytes, format_ratio

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
    return tuple(sorted(moved, key=lambda row: (-abs((row.after_ns or 0) - (row.before_ns or 0)), row.part)))


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


SMALLEST_PEAK_RATIO = 0.01  #: a smaller change of the peak is none (a choice: allocators round by as much)
_MOST_LINES = 8  #: lines told


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
    sides = (first, second)
    return MemoryChange(
        before_bytes=held,
        after_bytes=holds,
        change=holds / held - 1.0,
        at_peak=first.peak_bytes is not None,
        is_lower_bound=first.peak_bytes is not None and (first.is_lower_bound or second.is_lower_bound),
        kinds=_paired(*([(entry.kind, entry.bytes) for entry in one.kinds] for one in sides)),
        lines=_paired(*([(row.line, row.bytes) for row in one.live if row.line] for one in sides))[:_MOST_LINES],
    )


def memory_judgement(change: MemoryChange) -> Judgement:
    """Less or more memory, from ``SMALLEST_PEAK_RATIO`` on."""
    if abs(change.change) < SMALLEST_PEAK_RATIO:
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


def _paired(*sides: Iterable[tuple[str | None, int]]) -> tuple[HolderChange, ...]:
    """Name and size on both sides, largest change first; a line may hold several kinds of blocks."""
    before, after = Counter[str](), Counter[str]()
    for sizes, pairs in zip((before, after), sides, strict=True):
        for name, size in pairs:
            sizes[name or ""] += size
    rows = (
        HolderChange(name=name, before_bytes=before.get(name), after_bytes=after.get(name))
        for name in dict.fromkeys((*before, *after))
    )
    return tuple(sorted(rows, key=lambda row: -abs(row.bytes)))


_KEPT = 20  #: changes that a comparison keeps (a choice)


def kernel_changes(before: Report, after: Report, step: StepChange | None) -> tuple[KernelChange, ...]:
    """Return kernels and operators, the largest change first; empty unless both sides list them of the same device.

    Operators on a CPU wait for their processor as the step does, kernels on a device do not.

    A report lists only its ``MOST_KERNELS`` largest kernels. The time of any other is not known, but at most the
    smallest that is listed: its change is judged by that.
    """
    sides = (before, after)
    if len({side.trust.mode for side in sides}) > 1 or not all(_is_known(side) for side in sides):
        return ()
    unlisted = _unlisted_ns(before), _unlisted_ns(after)
    least_ns = SMALLEST_RATIO * before.step_times.mean if before.step_times else 0.0
    visible = max(VISIBLE_RATIO, step.visible_ratio) if step and before.trust.mode == "cpu" else VISIBLE_RATIO
    listed = [_times(side) for side in sides]
    found = []
    for of, name in dict.fromkeys((*listed[0], *listed[1])):
        launched = [side.get((of, name), {}) for side in listed]
        if of == "operator" and before.trust.mode != "cpu" and len({*launched[0], *launched[1]}) < 2:
            continue  # an operator of one same kernel says no more than that
        times = [sum(own.values()) if own else None for own in launched]
        first, second = (bound if own is None else own for own, bound in zip(times, unlisted, strict=True))
        moved_ns = abs(second - first)
        is_real = moved_ns >= least_ns and moved_ns > doubt(first, second, visible)
        known = [0.0 if own is None and not bound else own for own, bound in zip(times, unlisted, strict=True)]
        row = KernelChange(name=name, of=of, before_ns=known[0], after_ns=known[1], is_real=is_real)
        found.append((-moved_ns, of, name, row))
    return tuple(row for *_, row in sorted(found, key=lambda entry: entry[:3])[:_KEPT])


def _is_known(report: Report) -> bool:
    kernels = report.kernels
    return bool(kernels) and is_traced(report) and all(kernel.per_step_ns is not None for kernel in kernels)


def _unlisted_ns(report: Report) -> float:
    """The most that a kernel which is not listed takes; 0 where all are listed."""
    times = [kernel.per_step_ns or 0.0 for kernel in report.kernels]
    return min(times) if len(times) >= MOST_KERNELS else 0.0


def _times(report: Report) -> dict[tuple[KernelOf, str], dict[str, float]]:
    """Kernels, and operators by what they launched, with the ns per step of each kernel."""
    found: dict[tuple[KernelOf, str], dict[str, float]] = {}
    is_host = report.trust.mode == "cpu"
    for kernel in report.kernels:
        found["operator" if is_host else "kernel", kernel.name] = {kernel.name: kernel.per_step_ns or 0.0}
    for kernel in () if is_host else report.kernels:
        if kernel.operator:
            found.setdefault(("operator", kernel.operator), {})[kernel.name] = kernel.per_step_ns or 0.0
    return found
