"""Diff to view: what a comparison says, in which order, with which numbers; its renderers print it."""

from collections.abc import Sequence

import msgspec

from profilerkit.model.diff import Diff, Difference, Judgement, PartChange, Side
from profilerkit.model.step import Family
from profilerkit.report.diff_memory import memory_table, memory_tiles
from profilerkit.report.diff_stated import stated_rows
from profilerkit.report.diff_tables import (
    UNKNOWN,
    WAITED,
    differences_table,
    findings_table,
    fixes_table,
    gate_table,
    kernels_table,
    parts_table,
    spans_table,
    unchanged,
)
from profilerkit.report.inert import SENTENCE_LIMIT, inert
from profilerkit.report.records import EvidenceRow, Fact, Segment, Table, Tone
from profilerkit.report.wording import DETAIL_WORDS, FAMILY_LABELS, plural, share_text
from profilerkit.units import format_bytes, format_change, format_decimal, format_ns

_TONES: dict[Judgement, Tone] = {
    "faster": "good",
    "slower": "high",
    "less memory": "good",
    "more memory": "high",
    "no real change": "info",
    "not comparable": "low",
}
_SHAPES: dict[Tone, str] = {"good": "▼", "high": "▲", "info": "=", "low": "?"}
# Characters of the line that names what is different, one of a terminal of 80 columns; of a value in it; of its end.
_LINE, _VALUE, _END = 80, 24, len(", and 999 more")
# An interval that holds 0 and is wider, as a ratio, helps nobody (a choice).
_TOO_WIDE = 1.0


class SideBar(msgspec.Struct, frozen=True):
    """One side's step as a bar: its label, its length against the longer of the two, and its families."""

    label: str
    time: str
    ratio: float
    segments: tuple[Segment, ...]


class DiffView(msgspec.Struct, frozen=True, kw_only=True):
    """A comparison in words. Empty text, an empty tuple or ``None`` is left out."""

    tone: Tone
    shape: str
    word: str
    names: str
    different: str
    more_differs: bool
    headline: str
    typical: str
    stated: tuple[EvidenceRow, ...]
    tiles: tuple[Fact, ...]
    bars: tuple[SideBar, ...]
    bars_title: str
    spans: Table | None
    memory: Table | None
    gates: Table | None
    fixes: Table | None
    parts: Table | None
    kernels: Table | None
    findings: Table | None
    unchanged: str
    differences: Table | None
    notes: tuple[str, ...]
    created: str


def build(diff: Diff) -> DiffView:
    """The comparison in words. Text from recordings is inert: one line, bounded, without control characters."""
    tone = _TONES[diff.verdict]
    different, more_differs = _different(diff.differences)
    return DiffView(
        tone=tone,
        shape=_SHAPES[tone],
        word=_word(diff),
        names=f"{inert(diff.before.name) or 'before'} → {inert(diff.after.name) or 'after'}",
        different=different,
        more_differs=more_differs,
        headline=inert(diff.headline, SENTENCE_LIMIT),
        typical=_typical(diff),
        stated=stated_rows(diff),
        tiles=_tiles(diff),
        bars=_bars(diff),
        bars_title=_bars_title(diff.parts),
        spans=spans_table(diff.spans),
        memory=memory_table(diff.memory),
        gates=gate_table(diff.gates),
        fixes=fixes_table(diff),
        parts=parts_table(diff.parts),
        kernels=kernels_table(diff.kernels),
        findings=findings_table(diff.findings),
        unchanged=unchanged(diff.findings),
        differences=differences_table(diff),
        notes=tuple(inert(note, SENTENCE_LIMIT) for note in diff.notes),
        created=inert(diff.created, 40),
    )


def _word(diff: Diff) -> str:
    """The verdict as the headline has it: steps that vary too much do not show that nothing changed."""
    if diff.verdict == "no real change" and diff.step is not None and not diff.step.is_surely_small:
        return "NO CHANGE THAT CAN BE TOLD"
    return diff.verdict.upper()


def _different(differences: Sequence[Difference]) -> tuple[str, bool]:
    """The first differences between the runs in one line with the number of others, and whether it leaves any out."""
    told, is_cut = "Different: ", False
    if not differences:
        return f"{told}nothing that was recorded", False
    for number, row in enumerate(differences):
        values = ["not known" if value is None else value for value in (row.before, row.after)]
        is_cut |= max(map(len, values)) > _VALUE
        shown = " → ".join(inert(value, _VALUE) for value in values)
        piece = f"{', ' if number else ''}{inert(row.name, _VALUE)} {shown}"
        if number and len(told) + len(piece) > _LINE - _END:
            return f"{told}, and {len(differences) - number} more", True
        told += piece
    return told, is_cut


def _typical(diff: Diff) -> str:
    """The median step and its change; empty where it cannot be compared."""
    before, after = diff.before.median_ns, diff.after.median_ns
    if diff.step is None or diff.step.typical is None or before is None or after is None:
        return ""
    change = diff.step.typical
    interval = f"{format_change(change.low)} to {format_change(change.high)}"
    if change.low <= 0 <= change.high and change.high - change.low > _TOO_WIDE:
        interval = "the steps vary too much for an interval"
    times = f"{format_ns(before)} → {format_ns(after)}"
    return f"The typical step: {times} ({format_change(change.expected)}; {interval})"


def _tiles(diff: Diff) -> tuple[Fact, ...]:
    step = diff.step
    if step is None and diff.memory is not None and not diff.spans:
        return (*memory_tiles(diff.memory), Fact("Bound by", _bound(diff.after), _bound_before(diff)))
    change = Fact("Change of the step", "not comparable")
    if step is not None:
        # The steps beside it are as they were timed; the verdict may rest on less than that.
        timed = step.timed or step.judged
        interval = f"{format_change(timed.low)} to {format_change(timed.high)}, 99 %"
        change = Fact("Change of the step", format_change(timed.expected), f"{_as_timed(diff)}{interval}")
    elif diff.spans:
        change = Fact("Change", format_change(diff.spans[0].change), "one of each: no interval")
    return (
        _step_tile("Step before", diff.before),
        _step_tile("Step after", diff.after),
        change,
        Fact("Bound by", _bound(diff.after), _bound_before(diff)),
    )


def _step_tile(label: str, side: Side) -> Fact:
    if side.mean_ns is None:
        return Fact(label, UNKNOWN)
    # The verdict may rest on less than what was timed: then the two numbers differ.
    timed = ["as timed"] if (side.queued_ratio or 0.0) >= WAITED else []
    ranks = [f"mean of {side.ranks} ranks"] if side.ranks > 1 else []
    more = [*timed, *ranks, plural(side.steady, "steady step")]
    if side.samples_per_s is not None:
        more.append(f"{format_decimal(side.samples_per_s, 'samples/s')} in all")
    if side.peak_memory_bytes is not None:
        of = f" ({side.peak_memory_of})" if side.peak_memory_of else ""
        more.append(f"peak {format_bytes(side.peak_memory_bytes)}{of}")
    return Fact(label, format_ns(side.mean_ns), ", ".join(more))


def _as_timed(diff: Diff) -> str:
    waited = max(side.queued_ratio or 0.0 for side in (diff.before, diff.after)) >= WAITED
    return "as timed, " if waited and diff.step is not None and diff.step.is_taken_out else ""


def _bound(side: Side) -> str:
    detail = DETAIL_WORDS.get(side.detail, inert(side.detail, 40))
    return f"{side.bound} ({detail})" if detail else side.bound


def _bound_before(diff: Diff) -> str:
    same = (diff.before.bound, diff.before.detail) == (diff.after.bound, diff.after.detail)
    return "as before" if same else f"before: {_bound(diff.before)}"


def _bars(diff: Diff) -> tuple[SideBar, ...]:
    """Both steps by family, to the scale of the longer one; nothing where a side was not split."""
    if not diff.parts:
        return ()
    times = [_families(diff.parts, after=after) for after in (False, True)]
    longest = max(sum(side.values()) for side in times)
    if not longest:
        return ()
    return tuple(
        SideBar(label, format_ns(sum(side.values())), sum(side.values()) / longest, _segments(side))
        for label, side in zip(("Before", "After"), times, strict=True)
    )


def _bars_title(parts: Sequence[PartChange]) -> str:
    """The family that moved most: ``Input takes 80.1 ms less of every step``; empty where a side was not split."""
    before, after = (_families(parts, after=is_after) for is_after in (False, True))
    moved = {family: after[family] - before[family] for family in before}
    most = max(moved, key=lambda family: abs(moved[family]))
    if not any(before.values()) or not any(after.values()):
        return ""
    if not moved[most]:
        return "Every family takes as long as before"
    return f"{FAMILY_LABELS[most]} takes {format_ns(abs(moved[most]))} {'more' if moved[most] > 0 else 'less'} per step"


def _families(parts: Sequence[PartChange], *, after: bool) -> dict[Family, int]:
    found = dict.fromkeys(FAMILY_LABELS, 0)
    for part in parts:
        found[part.family] += (part.after_ns if after else part.before_ns) or 0
    return found


def _segments(times: dict[Family, int]) -> tuple[Segment, ...]:
    total = max(sum(times.values()), 1)
    return tuple(
        Segment(
            family=family,
            label=FAMILY_LABELS[family],
            time=format_ns(time_ns),
            share=share_text(time_ns / total),
            ratio=time_ns / total,
            source="derived",
            detail="",
        )
        for family, time_ns in times.items()
        if time_ns > 0
    )
