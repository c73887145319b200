"""Diff to view: what a comparison says, in which order, with which numbers; its renderers print it."""

from collections.abc import Sequence

import msgspec

from profilerkit.model.diff import (
    AppliedFix,
    Diff,
    FindingChange,
    Judgement,
    PartChange,
    Range,
    Side,
    SpanChange,
    SpanOf,
)
from profilerkit.model.finding import Saving
from profilerkit.model.gate import Gate, GateStatus
from profilerkit.model.step import Family
from profilerkit.report.diff_memory import memory_table, memory_tiles
from profilerkit.report.diff_stated import stated_rows
from profilerkit.report.inert import SENTENCE_LIMIT, inert
from profilerkit.report.records import EvidenceRow, Fact, Segment, Table, Tone
from profilerkit.report.wording import DETAIL_WORDS, FAMILY_LABELS, part_label, plural, share_text
from profilerkit.units import (
    format_bytes,
    format_change,
    format_decimal,
    format_ns,
    format_ratio,
    format_ratio_range,
)

_TONES: dict[Judgement, Tone] = {
    "faster": "good",
    "slower": "high",
    "less memory": "good",
    "more memory": "high",
    "no real change": "info",
    "not comparable": "low",
}
_SHAPES: dict[Tone, str] = {"good": "▼", "high": "▲", "info": "=", "low": "?"}
_GROUPS = {
    "hardware": "Hardware",
    "work": "Work",
    "loader": "Loader",
    "software": "Software",
    "settings": "Settings",
}
_GATE_WORDS: dict[GateStatus, str] = {"failed": "FAILED", "passed": "passed", "not judged": "not judged"}
_SPANS: dict[SpanOf, str] = {
    "step": "The step",
    "trace": "The whole trace",
    "device": "Device, first to last event",
    "stretch": "Kernels up to the first pause above 2 ms",
}
#: Before the text of a fix: a setting that is as proposed was set, what else is gone may have gone with another change.
_HOW = {
    "the setting is as proposed": "",
    "the finding is gone": "Finding gone: ",
    "the finding is smaller": "Finding smaller: ",
}
_NOTHING = "none"
_UNKNOWN = "not measured"
# Below this share of waiting for a processor the timed step and the judged one read the same.
_WAITED = 0.02


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
    headline: str
    stated: tuple[EvidenceRow, ...]
    tiles: tuple[Fact, ...]
    bars: tuple[SideBar, ...]
    bars_title: str
    spans: Table | None
    memory: Table | None
    gates: Table | None
    fixes: Table | None
    parts: Table | None
    findings: Table | None
    unchanged: str
    differences: Table | None
    notes: tuple[str, ...]
    created: str


def build(diff: Diff) -> DiffView:
    """The comparison in words. Text from recordings is inert: one line, bounded, without control characters."""
    tone = _TONES[diff.verdict]
    return DiffView(
        tone=tone,
        shape=_SHAPES[tone],
        word=_word(diff),
        names=f"{inert(diff.before.name) or 'before'} → {inert(diff.after.name) or 'after'}",
        headline=inert(diff.headline, SENTENCE_LIMIT),
        stated=stated_rows(diff),
        tiles=_tiles(diff),
        bars=_bars(diff),
        bars_title=_bars_title(diff.parts),
        spans=_spans(diff.spans),
        memory=memory_table(diff.memory),
        gates=gate_table(diff.gates),
        fixes=_fixes(diff),
        parts=_parts(diff.parts),
        findings=_findings(diff.findings),
        unchanged=_unchanged(diff.findings),
        differences=_differences(diff),
        notes=tuple(inert(note, SENTENCE_LIMIT) for note in diff.notes),
        created=inert(diff.created, 40),
    )


def _word(diff: Diff) -> str:
    """The verdict as the headline has it: steps that vary too much do not show that nothing changed."""
    if diff.verdict == "no real change" and diff.step is not None and not diff.step.is_surely_small:
        return "NO CHANGE THAT CAN BE TOLD"
    return diff.verdict.upper()


def gate_table(gates: Sequence[Gate]) -> Table | None:
    """What was asked and how it ended; ``None`` where nothing was asked."""
    if not gates:
        return None
    rows = tuple(
        (
            _GATE_WORDS[gate.status],
            inert(gate.name),
            inert(gate.limit),
            inert(gate.measured),
            inert(gate.reason, SENTENCE_LIMIT),
        )
        for gate in gates
    )
    return Table("", ("Result", "Gate", "Limit", "Measured", "Why"), rows, text_columns=5)


def _tiles(diff: Diff) -> tuple[Fact, ...]:
    step = diff.step
    if step is None and diff.memory is not None and not diff.spans:
        return (*memory_tiles(diff.memory), Fact("Bound by", _bound(diff.after), _bound_before(diff)))
    change = Fact("Change of the step", "not comparable")
    if step is not None:
        interval = f"{format_change(step.judged.low)} to {format_change(step.judged.high)}, 99 %"
        change = Fact("Change of the step", format_change(step.judged.expected), interval)
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
        return Fact(label, _UNKNOWN)
    # The verdict may rest on less than what was timed: then the two numbers differ.
    timed = ["as timed"] if (side.queued_ratio or 0.0) >= _WAITED else []
    more = [*timed, plural(side.steady, "steady step")]
    if side.samples_per_s is not None:
        more.append(f"{format_decimal(side.samples_per_s, 'samples/s')} in all")
    if side.peak_memory_bytes is not None:
        of = f" ({side.peak_memory_of})" if side.peak_memory_of else ""
        more.append(f"peak {format_bytes(side.peak_memory_bytes)}{of}")
    return Fact(label, format_ns(side.mean_ns), ", ".join(more))


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


def _spans(spans: Sequence[SpanChange]) -> Table | None:
    rows = tuple(
        (
            _SPANS[row.span],
            "no interval" if row.is_visible else "no real change",
            format_ns(row.before_ns),
            format_ns(row.after_ns),
            format_change(row.change),
        )
        for row in spans
    )
    return Table("", ("One of each", "Judged", "Before", "After", "Change"), rows, text_columns=2) if rows else None


def _parts(parts: Sequence[PartChange]) -> Table | None:
    if not parts:
        return None
    rows = tuple(
        (
            inert(part_label(part.part)),
            _judged(part),
            _part_ns(part.before_ns),
            _part_ns(part.after_ns),
            _moved(part),
            _part_shares(part),
        )
        for part in parts
    )
    return Table("", ("Part", "Judged", "Before", "After", "Change", "Share"), rows, text_columns=2)


def _judged(part: PartChange) -> str:
    if part.before_ns is None or part.after_ns is None:
        return "not judged"
    return "moved" if part.is_real else "within noise"


def _moved(part: PartChange) -> str:
    if part.before_ns is None or part.after_ns is None:
        return "not known"
    return _signed_ns(part.after_ns - part.before_ns)


def _part_ns(time_ns: int | None) -> str:
    return _UNKNOWN if time_ns is None else format_ns(time_ns)


def _part_shares(part: PartChange) -> str:
    """Of the step on both sides; of one where the other is not measured, which its time says already."""
    told = {"before": part.before_share, "after": part.after_share}
    known = {side: share_text(share) for side, share in told.items() if share is not None}
    if len(known) == len(told):
        return " → ".join(known.values())
    return next((f"{share} {side}" for side, share in known.items()), _UNKNOWN)


def _signed_ns(value_ns: int) -> str:
    return f"{'+' if value_ns > 0 else '−' if value_ns < 0 else ''}{format_ns(abs(value_ns))}"


def _findings(findings: Sequence[FindingChange]) -> Table | None:
    rows = tuple(
        (
            row.state,
            row.rule,
            inert(row.title, SENTENCE_LIMIT) + (f" ({inert(row.reason, 200)})" if row.reason else ""),
            _pair(row.before_severity, row.after_severity),
            _pair(_expected(row.before_saving), _expected(row.after_saving)),
        )
        for row in findings
        if row.state != "unchanged"
    )
    return Table("", ("State", "Rule", "Finding", "Severity", "Saving"), rows, text_columns=4) if rows else None


def _unchanged(findings: Sequence[FindingChange]) -> str:
    rules = [row.rule for row in findings if row.state == "unchanged"]
    return f"{plural(len(rules), 'finding')} unchanged: {', '.join(rules)}." if rules else ""


def _pair(before: str | None, after: str | None) -> str:
    if before == after:
        return before or _NOTHING
    return f"{before or _NOTHING} → {after or _NOTHING}"


def _expected(saving: Saving | None) -> str | None:
    return format_ratio(saving.expected) if saving else None


def _fixes(diff: Diff) -> Table | None:
    """Predicted beside measured; where the headline is without what other programs took, it is said that these are."""
    rows = tuple(
        (
            fix.rule,
            _HOW[fix.how] + inert(fix.text, SENTENCE_LIMIT),
            _predicted(fix.predicted),
            _measured(fix.measured),
            _held(fix),
        )
        for fix in diff.fixes
    )
    waited = max(side.queued_ratio or 0.0 for side in (diff.before, diff.after)) >= _WAITED
    is_told = waited and diff.step is not None and diff.step.timed is not None
    measured = "Measured, as timed" if is_told else "Measured"
    columns = ("Rule", "Fix", "Predicted saving", measured, "Prediction")
    return Table("", columns, rows, text_columns=5) if rows else None


def _predicted(saving: Saving | None) -> str:
    if saving is None:
        return "none stated"
    return f"{format_ratio(saving.expected)} ({format_ratio_range(saving.low, saving.high)})"


def _measured(measured: Range | None) -> str:
    if measured is None:
        return "not comparable"
    ends = f"{format_ratio(measured.low)} to {format_ratio(measured.high)}".replace("-", "−")
    return f"{format_ratio(measured.expected).replace('-', '−')} ({ends})"


def _held(fix: AppliedFix) -> str:
    if fix.holds is None:
        return inert(fix.note, SENTENCE_LIMIT)
    if fix.holds:
        return "held: it lies in the predicted interval"
    return "missed: outside of the predicted interval"


def _differences(diff: Diff) -> Table | None:
    rows = tuple(
        (
            _GROUPS[row.group],
            inert(row.name),
            inert(row.before, 200) if row.before is not None else "not known",
            inert(row.after, 200) if row.after is not None else "not known",
        )
        for row in diff.differences
    )
    return Table("", ("Kind", "What", "Before", "After"), rows, text_columns=4) if rows else None
