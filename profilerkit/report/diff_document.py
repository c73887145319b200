"""Diff to a page: what is different, before and after side by side, then what moved."""

from collections.abc import Iterator, Sequence

from profilerkit.model.diff import (
    AppliedFix,
    Diff,
    FindingChange,
    Gate,
    GateStatus,
    HolderChange,
    Judgement,
    KernelChange,
    MemoryChange,
    PartChange,
    Range,
    Side,
    SpanChange,
    SpanOf,
)
from profilerkit.model.finding import Saving
from profilerkit.model.step import Family
from profilerkit.report import blocks
from profilerkit.report.inert import SENTENCE_LIMIT, inert, short_paths
from profilerkit.report.wording import FAMILY_LABELS, KINDS, kind_words, part_label, plural, share_text
from profilerkit.units import format_bytes, format_change, format_decimal, format_ns, format_ratio, format_saving

_GROUPS = {"hardware": "Hardware", "work": "Work", "loader": "Loader", "software": "Software", "settings": "Settings"}
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
#: The heading of the table of kernels.
KERNELS = "Kernels and operators that changed most"
_NOTHING = "none"
UNKNOWN = "not measured"
_UNLISTED = "not listed"
WAITED = 0.02  # below this share of waiting for a processor the timed step and the judged one read the same


def gate_table(gates: Sequence[Gate]) -> blocks.Table | None:
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
    return blocks.Table("", ("Result", "Gate", "Limit", "Measured", "Why"), rows, text_columns=5)


def spans_table(spans: Sequence[SpanChange]) -> blocks.Table | None:
    """Show how long each span lasts on both sides; ``None`` without spans."""
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
    return (
        blocks.Table("", ("One of each", "Judged", "Before", "After", "Change"), rows, text_columns=2) if rows else None
    )


def parts_table(parts: Sequence[PartChange]) -> blocks.Table | None:
    """Show the parts of the step, largest movement first; ``None`` where a side was not split."""
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
    return blocks.Table("", ("Part", "Judged", "Before", "After", "Change", "Share"), rows, text_columns=2)


def _judged(part: PartChange) -> str:
    if part.before_ns is None or part.after_ns is None:
        return "not judged"
    return "moved" if part.is_real else "within noise"


def _moved(part: PartChange | KernelChange) -> str:
    if part.before_ns is None or part.after_ns is None:
        return "not known"
    value_ns = part.after_ns - part.before_ns
    return f"{'+' if value_ns > 0 else '−' if value_ns < 0 else ''}{format_ns(abs(value_ns))}"


def _part_ns(time_ns: int | None) -> str:
    return UNKNOWN if time_ns is None else format_ns(time_ns)


def _part_shares(part: PartChange) -> str:
    told = {"before": part.before_share, "after": part.after_share}
    known = {side: share_text(share) for side, share in told.items() if share is not None}
    if len(known) == len(told):
        return " → ".join(known.values())
    return next((f"{share} {side}" for side, share in known.items()), UNKNOWN)


def kernels_table(kernels: Sequence[KernelChange]) -> blocks.Table | None:
    """The kernels and operators that changed by more than noise; ``None`` without any."""
    rows = tuple(
        (blocks.Name(row.name, "kernel"), row.of, _listed_ns(row.before_ns), _listed_ns(row.after_ns), _moved(row))
        for row in kernels
        if row.is_real
    )
    caption = (
        "Time per traced step. An operator includes all kernels that it launched, as far as the reports list them."
    )
    return blocks.Table(caption, ("What", "Kind", "Before", "After", "Change"), rows, text_columns=2) if rows else None


def _listed_ns(time_ns: float | None) -> str:
    return _UNLISTED if time_ns is None else format_ns(time_ns)


def findings_table(findings: Sequence[FindingChange]) -> blocks.Table | None:
    """Show the findings that changed; ``None`` without any."""
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
    return blocks.Table("", ("State", "Rule", "Finding", "Severity", "Saving"), rows, text_columns=4) if rows else None


def unchanged(findings: Sequence[FindingChange]) -> str:
    """Name the rules whose findings are unchanged, in one sentence; empty without any."""
    rules = [row.rule for row in findings if row.state == "unchanged"]
    return f"{plural(len(rules), 'finding')} unchanged: {', '.join(rules)}." if rules else ""


def _pair(before: str | None, after: str | None) -> str:
    if before == after:
        return before or _NOTHING
    return f"{before or _NOTHING} → {after or _NOTHING}"


def _expected(saving: Saving | None) -> str | None:
    return format_ratio(saving.expected) if saving else None


def fixes_table(diff: Diff) -> blocks.Table | None:
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
    is_told = _waited(diff) and diff.step is not None and diff.step.timed is not None
    measured = "Measured, as timed" if is_told else "Measured"
    columns = ("Rule", "Fix", "Predicted saving", measured, "Prediction")
    return blocks.Table("", columns, rows, text_columns=5) if rows else None


def _predicted(saving: Saving | None) -> str:
    if saving is None:
        return "not predicted"
    return format_saving(saving.low, saving.expected, saving.high, saving.method)


def _measured(measured: Range | None) -> str:
    if measured is None:
        return "not comparable"
    ends = f"{format_ratio(measured.low)} to {format_ratio(measured.high)}".replace("-", "−")
    return f"{format_ratio(measured.expected).replace('-', '−')} ({ends})"


def _held(fix: AppliedFix) -> str:
    if fix.holds is None:
        return inert(fix.note, SENTENCE_LIMIT)
    if fix.holds:
        return "held: within the predicted interval"
    return "missed: outside the predicted interval"


def differences_table(diff: Diff) -> blocks.Table | None:
    """Show what is not the same about the runs; ``None`` where nothing is."""
    rows = tuple(
        (
            _GROUPS[row.group],
            inert(row.name),
            inert(row.before, 200) if row.before is not None else "not known",
            inert(row.after, 200) if row.after is not None else "not known",
        )
        for row in diff.differences
    )
    return blocks.Table("", ("Kind", "What", "Before", "After"), rows, text_columns=4) if rows else None


_TONES: dict[Judgement, blocks.Tone] = {
    "faster": "good",
    "slower": "high",
    "less memory": "good",
    "more memory": "high",
    "no real change": "info",
    "not comparable": "low",
}
_SHAPES: dict[blocks.Tone, str] = {"good": "▼", "high": "▲", "info": "=", "low": "?"}
_NAMED, _VALUE = 2, 24  # differences named on the first screen, and the characters of each value there
_TOO_WIDE = 1.0  # an interval that holds 0 and is wider, as a ratio, helps nobody (a choice)


def document_of_diff(diff: Diff) -> blocks.Document:
    """The comparison as a page."""
    tone, word = _TONES[diff.verdict], _word(diff)
    names = f"{inert(diff.before.name) or 'before'} → {inert(diff.after.name) or 'after'}"
    first = blocks.First(
        about=names,
        made=inert(diff.created, 40)[:10],
        tone=tone,
        shape=_SHAPES[tone],
        word=word,
        headline=inert(diff.headline, SENTENCE_LIMIT),
        confidence="",
        bars=_bars(diff),
        lead=_different(diff),
    )
    return blocks.Document(f"{word.lower()}: {names}", first, tuple(_sections(diff)))


def _sections(diff: Diff) -> Iterator[blocks.Section]:
    gone = blocks.Text.of(text, style="note") if (text := unchanged(diff.findings)) else None
    notes = tuple(blocks.Text.of(inert(note, SENTENCE_LIMIT), style="note") for note in diff.notes)
    made: tuple[tuple[str, str, str, bool, tuple[blocks.Block | None, ...]], ...] = (
        (
            "differences",
            "What is different",
            plural(len(diff.differences), "difference"),
            True,
            (differences_table(diff),),
        ),
        ("numbers", "Before and after", "the step, memory and what bounds it", True, (_numbers(diff), *notes)),
        ("spans", "Spans", "one of each: no interval", True, (spans_table(diff.spans),)),
        ("memory", "What holds the memory", "largest change first", True, (memory_table(diff.memory),)),
        ("gates", "Gates", plural(len(diff.gates), "gate"), True, (gate_table(diff.gates),)),
        ("applied", "Fixes: predicted and measured", "did they hold?", True, (fixes_table(diff),)),
        ("parts", "What moved", _moved_most(diff.parts), False, (parts_table(diff.parts),)),
        ("kernels", KERNELS, "time per traced step", False, (kernels_table(diff.kernels),)),
        ("findings", "Findings", "new, gone and changed", False, (findings_table(diff.findings), gone)),
    )
    for anchor, title, summary, is_open, own in made:
        shown = tuple(block for block in own if block is not None)
        if shown:
            yield blocks.Section(anchor, title, summary, shown, open=is_open)


def _word(diff: Diff) -> str:
    """The verdict as the headline has it: steps that vary too much do not show that nothing changed."""
    if diff.verdict == "no real change" and diff.step is not None and not diff.step.is_surely_small:
        return "NO MEASURABLE CHANGE"
    return diff.verdict.upper()


def _different(diff: Diff) -> str:
    if not diff.differences:
        return "Different: nothing that was recorded"
    pieces = []
    for row in diff.differences[:_NAMED]:
        values = ("not known" if value is None else inert(value, _VALUE) for value in (row.before, row.after))
        pieces.append(f"{inert(row.name, _VALUE)} {' → '.join(values)}")
    left = len(diff.differences) - len(pieces)
    return f"Different: {', '.join(pieces)}{f', and {left} more' if left else ''}"


def _numbers(diff: Diff) -> blocks.Table:
    before, after, step = diff.before, diff.after, diff.step
    rows: list[tuple[str, blocks.Cell, blocks.Cell, blocks.Cell]] = []
    timed = ", as timed" if _waited(diff) and step is not None and step.is_taken_out else ""
    change: blocks.Cell = "not comparable"
    if step is not None:
        change = _interval(step.timed or step.judged)
    if before.mean_ns is not None or after.mean_ns is not None:
        rows.append((f"Mean step{timed}", _ns(before.mean_ns), _ns(after.mean_ns), change))
    if step is not None and step.typical is not None and before.median_ns is not None and after.median_ns is not None:
        typical, shown = step.typical, _interval(step.typical)
        if typical.low <= 0 <= typical.high and typical.high - typical.low > _TOO_WIDE:
            shown = f"{format_change(typical.expected)}, the steps vary too much for an interval"
        rows.append(("Median step", _ns(before.median_ns), _ns(after.median_ns), shown))
    if step is not None and step.is_taken_out:
        own, quiet = "Mean step without other programs", "… and without cold caches"
        rows.append((own, _ns(step.own_before_ns), _ns(step.own_after_ns), ""))
        rows.append((quiet, _ns(step.quiet_before_ns), _ns(step.quiet_after_ns), _interval(step.judged)))
    rows += [
        (label, was, now, "")
        for label, was, now in (
            ("Samples per second", _rate(before), _rate(after)),
            ("Peak memory", _memory(before), _memory(after)),
            ("Bound by", _bound(before), _bound(after)),
            ("Steady steps", f"{before.steady:,}", f"{after.steady:,}"),
        )
        if was or now
    ]
    return blocks.Table("Intervals are at 99 % confidence.", ("Number", "Before", "After", "Change"), tuple(rows), 4)


def _interval(change: Range) -> str:
    return f"{format_change(change.expected)} ({format_change(change.low)} to {format_change(change.high)})"


def _waited(diff: Diff) -> bool:
    return max(side.queued_ratio or 0.0 for side in (diff.before, diff.after)) >= WAITED


def _ns(time_ns: float | None) -> blocks.Value:
    return blocks.Value(time_ns, "ns")


def _rate(side: Side) -> str:
    return "" if side.samples_per_s is None else format_decimal(side.samples_per_s, "samples/s")


def _memory(side: Side) -> str:
    return "" if side.peak_memory_bytes is None else format_bytes(side.peak_memory_bytes)


def _bound(side: Side) -> str:
    detail = kind_words(side.detail)
    return f"{side.bound} ({detail})" if detail else side.bound


def _families(parts: tuple[PartChange, ...], *, after: bool) -> dict[Family, int]:
    found = dict.fromkeys(FAMILY_LABELS, 0)
    for part in parts:
        found[part.family] += (part.after_ns if after else part.before_ns) or 0
    return found


def _bars(diff: Diff) -> tuple[blocks.Bar, ...]:
    """Both steps by family, to the scale of the longer one; nothing where a side was not split."""
    sides = [_families(diff.parts, after=after) for after in (False, True)]
    totals = [sum(side.values()) for side in sides]
    if not all(totals):
        return ()
    return tuple(
        blocks.Bar(
            f"{label} by family",
            tuple(
                blocks.Segment(
                    family, FAMILY_LABELS[family], time_ns / total, blocks.Value(time_ns, "ns"), source="derived"
                )
                for family, time_ns in side.items()
                if time_ns > 0
            ),
            f"{label}: {format_ns(total)}",
            total / max(totals),
        )
        for label, side, total in zip(("Before", "After"), sides, totals, strict=True)
    )


def _moved_most(parts: tuple[PartChange, ...]) -> str:
    before, after = (_families(parts, after=is_after) for is_after in (False, True))
    moved = {family: after[family] - before[family] for family in before}
    most = max(moved, key=lambda family: abs(moved[family]))
    if not any(before.values()) or not any(after.values()):
        return "part by part"
    if not moved[most]:
        return "every family takes as long as before"
    if not any(part.is_real for part in parts):
        return "nothing by more than noise"
    return f"{FAMILY_LABELS[most]} takes {format_ns(abs(moved[most]))} {'more' if moved[most] > 0 else 'less'} per step"


_NAMES: dict[str, str] = {str(kind): name for kind, name in KINDS.items()}


def memory_table(change: MemoryChange | None) -> blocks.Table | None:
    """The peak, its kinds and its lines, largest change first; ``None`` where no two snapshots were compared."""
    if change is None:
        return None
    whole = "At the peak" if change.at_peak else "At the snapshot"
    rows = (
        _row(whole, HolderChange(name="", before_bytes=change.before_bytes, after_bytes=change.after_bytes)),
        *(_row(_NAMES.get(row.name, inert(row.name, 40)), row) for row in change.kinds),
        *(_row(inert(short_paths(row.name), 160), row) for row in change.lines),
    )
    note = "A history begins late: its peak is a lower bound." if change.is_lower_bound else ""
    return blocks.Table(note, ("Memory", "Before", "After", "Change"), rows, text_columns=1)


def _row(name: str, row: HolderChange) -> tuple[str, ...]:
    sizes = ["none" if size is None else format_bytes(size) for size in (row.before_bytes, row.after_bytes)]
    ratio = row.bytes / row.before_bytes if row.before_bytes else None
    return (name, *sizes, "new" if ratio is None else format_change(ratio))
