"""Findings as cards, evidence as numbered rows, outcomes by status."""

import re
from collections.abc import Iterator

from profilerkit.model.finding import Bound, Evidence, Finding, Outcome, Saving, Status
from profilerkit.model.report import Report
from profilerkit.model.step import Family
from profilerkit.model.verdict import BOUND_FAMILY
from profilerkit.report.inert import SENTENCE_LIMIT, inert, inert_code
from profilerkit.report.records import Card, EvidenceRow, Other, OutcomeGroup, OutcomeRow
from profilerkit.report.wording import (
    SHAPES,
    STATUS_LABELS,
    method_text,
    saving_range,
    saving_text,
    share_text,
    step_ns,
    throughput_text,
    tone_of,
)
from profilerkit.units import format_count, format_ratio, format_value

_TITLE_LIMIT = 200
# Of one heading of a rule's page; the longest of the built-in ones has a third of that.
_PAGE_LIMIT = 2_000
# Numbers told where there is no table for them.
_TOLD_EVIDENCE = 3
# Their clock is not a trace's: no timeline viewer knows the time.
_STEP_TIMERS = "step timers"


class _Anchors:
    """Names for links: stable by meaning, unique within a page."""

    def __init__(self) -> None:
        self._used: set[str] = set()
        self._numbers = (f"E{number}" for number in range(1, 1_000_000))

    def take(self, wanted: str) -> str:
        """``wanted`` as a safe anchor; a second one of the same name gets a number."""
        safe = re.sub(r"[^A-Za-z0-9_-]", "", wanted)[:40] or "finding"
        names: Iterator[str] = (safe if count == 1 else f"{safe}-{count}" for count in range(1, 1_000_000))
        return self._first_free(names)

    def evidence(self, wanted: str) -> str:
        """The runner's number, or the next free one where it gave none."""
        if re.fullmatch(r"E[0-9]{1,6}", wanted) and wanted not in self._used:
            self._used.add(wanted)
            return wanted
        return self._first_free(self._numbers)

    def _first_free(self, names: Iterator[str]) -> str:
        name = next(name for name in names if name not in self._used)
        self._used.add(name)
        return name


def _basis(evidence: Evidence) -> str:
    """What the number rests on: observations, rank, steps, time range."""
    pieces = []
    if evidence.n is not None:
        pieces.append(f"n {format_count(evidence.n)}")
    if evidence.rank is not None:
        pieces.append(f"rank {evidence.rank}")
    if evidence.steps is not None:
        first, last = evidence.steps
        pieces.append(f"step {first}" if first == last else f"steps {first}–{last}")
    if evidence.range_ns is not None and evidence.origin != _STEP_TIMERS:
        pieces.append("trace time {}–{} ns".format(*evidence.range_ns))
    return " · ".join(pieces)


def _value(value: float | None, unit: str) -> str:
    return share_text(value) if unit == "ratio" and value is not None else format_value(value, unit)


def _evidence_row(evidence: Evidence, anchors: _Anchors) -> EvidenceRow:
    unit = inert(evidence.unit, 20)
    interval = ""
    if evidence.low is not None and evidence.high is not None:
        interval = f"{_value(evidence.low, unit)} to {_value(evidence.high, unit)}"
    return EvidenceRow(
        id=anchors.evidence(evidence.id),
        label=inert(evidence.label),
        value=_value(evidence.value, unit),
        interval=interval,
        basis=_basis(evidence),
        source=evidence.source,
        origin=inert(evidence.origin),
    )


def _card(outcome: Outcome, finding: Finding, mean_ns: int | None, anchors: _Anchors) -> Card:
    tone = tone_of(finding.severity)
    scope = "" if finding.rank is None else f"rank {finding.rank}"
    promised = finding.saving or finding.throughput
    anchor = outcome.rule if finding.rank is None else f"{outcome.rule}-rank{finding.rank}"
    return Card(
        anchor=anchors.take(anchor),
        rule=inert(outcome.rule, 24),
        shape=SHAPES[tone],
        tone=tone,
        severity=finding.severity,
        title=inert(finding.title, _TITLE_LIMIT),
        saving=saving_text(finding.saving, mean_ns) if finding.saving else "",
        gain=saving_range(finding.saving) if finding.saving else "",
        method=method_text(promised) if promised else "",
        confidence=finding.confidence,
        why=inert(finding.why, SENTENCE_LIMIT),
        fix=inert(finding.fix.text, SENTENCE_LIMIT) if finding.fix else "",
        code=inert_code(finding.fix.code) if finding.fix else "",
        confirm=inert(finding.confirm, SENTENCE_LIMIT),
        scope=scope,
        evidence=tuple(_evidence_row(evidence, anchors) for evidence in finding.evidence),
        throughput=throughput_text(finding.throughput) if finding.throughput else "",
        page=tuple((inert(heading, 24), inert(text, _PAGE_LIMIT)) for heading, text in outcome.page.items()),
    )


def cards_of(report: Report) -> tuple[Card, ...]:
    """All findings, largest expected saving first, with evidence numbers that are unique in the report."""
    anchors = _Anchors()
    mean_ns = step_ns(report)
    return tuple(_card(outcome, finding, mean_ns, anchors) for outcome, finding in report.findings())


def evidence_in_words(card: Card) -> str:
    """The first numbers behind a finding, for formats without a table of them."""
    return "; ".join(f"{row.label}: {row.value}" for row in card.evidence[:_TOLD_EVIDENCE])


def others_of(report: Report) -> tuple[Other, ...]:
    """Every bound that is not the verdict: contenders first, then those ruled out or not measured."""
    verdict = report.verdict
    shares: dict[Family, float] = {}
    for part in report.breakdown:
        shares[part.family] = shares.get(part.family, 0.0) + part.share
    rows = []
    for bound in verdict.contenders:
        best = _best_saving(report, bound)
        family = BOUND_FAMILY.get(bound)
        share = share_text(shares[family]) if family in shares else "not measured"
        reason = "Not the bound, yet its best fix is expected to save 5 % or more."
        rows.append(Other(bound, "also costs time", share, saving_range(best) if best else "at least 5.0 %", reason))
    for row in verdict.ruled_out:
        if row.bound in verdict.contenders:
            continue
        best = _best_saving(report, row.bound)
        stated = "none stated" if row.saving is None else format_ratio(row.saving)
        saving = saving_range(best) if best else stated
        reason = inert(row.reason, SENTENCE_LIMIT)
        share = "not measured" if row.share is None else share_text(row.share)
        rows.append(Other(row.bound, row.state, share, saving, reason))
    return tuple(rows)


def _best_saving(report: Report, bound: Bound) -> Saving | None:
    """The saving that the list of findings states first for a bound."""
    return next((found.saving for _, found in report.findings() if found.bound == bound and found.saving), None)


def _found(outcome: Outcome) -> str:
    """What a suppressed rule found; empty for the others."""
    found = [f"{finding.title}{_stated(finding.saving)}" for finding in outcome.suppressed]
    return f"Found: {'; '.join(found)}." if found else ""


def _stated(saving: Saving | None) -> str:
    return "" if saving is None else f", saving {saving_range(saving)}"


def outcome_groups(report: Report) -> tuple[OutcomeGroup, ...]:
    """Every rule that did not fire, by how it ended and then by code; those that could not run first."""
    order: tuple[Status, ...] = ("missing_data", "error", "passed", "not_applicable", "suppressed", "off")
    groups = []
    for status in order:
        rows = tuple(
            OutcomeRow(
                rule=inert(outcome.rule, 24),
                summary=inert(outcome.summary or outcome.name, _TITLE_LIMIT),
                reason=inert(outcome.reason or "", SENTENCE_LIMIT),
                hint=inert(outcome.hint or _found(outcome), SENTENCE_LIMIT),
            )
            for outcome in sorted(report.outcomes, key=lambda outcome: outcome.rule)
            if outcome.status == status
        )
        if rows:
            groups.append(OutcomeGroup(status, STATUS_LABELS[status], rows))
    return tuple(groups)
