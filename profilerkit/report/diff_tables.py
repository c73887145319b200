"""The tables of a comparison in words: gates, spans, fixes, parts, kernels, findings, differences."""

from collections.abc import Sequence

from profilerkit.model.diff import (
    AppliedFix,
    Diff,
    FindingChange,
    KernelChange,
    PartChange,
    Range,
    SpanChange,
    SpanOf,
)
from profilerkit.model.finding import Saving
from profilerkit.model.gate import Gate, GateStatus
from profilerkit.report.blocks import Name, Table
from profilerkit.report.inert import SENTENCE_LIMIT, inert
from profilerkit.report.wording import part_label, plural, share_text
from profilerkit.units import format_change, format_ns, format_ratio, format_saving

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
#: The heading of the table of kernels.
KERNELS = "Kernels and operators that changed most"
_NOTHING = "none"
UNKNOWN = "not measured"
_UNLISTED = "not listed"
# Below this share of waiting for a processor the timed step and the judged one read the same.
WAITED = 0.02


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


def spans_table(spans: Sequence[SpanChange]) -> Table | None:
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
    return Table("", ("One of each", "Judged", "Before", "After", "Change"), rows, text_columns=2) if rows else None


def parts_table(parts: Sequence[PartChange]) -> Table | None:
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
    return Table("", ("Part", "Judged", "Before", "After", "Change", "Share"), rows, text_columns=2)


def _judged(part: PartChange) -> str:
    if part.before_ns is None or part.after_ns is None:
        return "not judged"
    return "moved" if part.is_real else "within noise"


def _moved(part: PartChange | KernelChange) -> str:
    if part.before_ns is None or part.after_ns is None:
        return "not known"
    return _signed_ns(part.after_ns - part.before_ns)


def _part_ns(time_ns: int | None) -> str:
    return UNKNOWN if time_ns is None else format_ns(time_ns)


def _part_shares(part: PartChange) -> str:
    """Of the step on both sides; of one where the other is not measured, which its time says already."""
    told = {"before": part.before_share, "after": part.after_share}
    known = {side: share_text(share) for side, share in told.items() if share is not None}
    if len(known) == len(told):
        return " → ".join(known.values())
    return next((f"{share} {side}" for side, share in known.items()), UNKNOWN)


def _signed_ns(value_ns: float) -> str:
    return f"{'+' if value_ns > 0 else '−' if value_ns < 0 else ''}{format_ns(abs(value_ns))}"


def kernels_table(kernels: Sequence[KernelChange]) -> Table | None:
    """The kernels and operators that changed by more than noise; ``None`` without any."""
    rows = tuple(
        (
            Name(row.name, "kernel"),
            row.of,
            _listed_ns(row.before_ns),
            _listed_ns(row.after_ns),
            _moved(row),
        )
        for row in kernels
        if row.is_real
    )
    caption = (
        "Time per traced step. An operator includes all kernels that it launched, as far as the reports list them."
    )
    return Table(caption, ("What", "Kind", "Before", "After", "Change"), rows, text_columns=2) if rows else None


def _listed_ns(time_ns: float | None) -> str:
    return _UNLISTED if time_ns is None else format_ns(time_ns)


def findings_table(findings: Sequence[FindingChange]) -> Table | None:
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
    return Table("", ("State", "Rule", "Finding", "Severity", "Saving"), rows, text_columns=4) if rows else None


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


def fixes_table(diff: Diff) -> Table | None:
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
    waited = max(side.queued_ratio or 0.0 for side in (diff.before, diff.after)) >= WAITED
    is_told = waited and diff.step is not None and diff.step.timed is not None
    measured = "Measured, as timed" if is_told else "Measured"
    columns = ("Rule", "Fix", "Predicted saving", measured, "Prediction")
    return Table("", columns, rows, text_columns=5) if rows else None


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


def differences_table(diff: Diff) -> Table | None:
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
    return Table("", ("Kind", "What", "Before", "After"), rows, text_columns=4) if rows else None
