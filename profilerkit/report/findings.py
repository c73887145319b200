"""Findings as cards, evidence as numbered rows, outcomes by status."""

from collections import Counter
from collections.abc import Iterable, Sequence

from profilerkit.model.finding import Bound, Evidence, Finding, Outcome, Saving, Status
from profilerkit.model.report import Report
from profilerkit.model.step import Family, as_judged
from profilerkit.model.verdict import BOUND_FAMILY
from profilerkit.report.evidence import Anchors, evidence_row
from profilerkit.report.inert import SENTENCE_LIMIT, inert, inert_code
from profilerkit.report.probes import probed_words
from profilerkit.report.records import Card, EvidenceRow, Other, OutcomeGroup, OutcomeRow
from profilerkit.report.stated import savings_of, stated_of
from profilerkit.report.wording import (
    FAMILY_LABELS,
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
from profilerkit.units import format_ratio

_TITLE_LIMIT = 200
# Of one heading of a rule's page; the longest of the built-in ones has a third of that.
_PAGE_LIMIT = 2_000
# Numbers told where there is no table for them.
_TOLD_EVIDENCE = 3


def _anchor(outcome: Outcome, finding: Finding, *, is_alone: bool) -> str:
    """``IN001`` or ``IN001-rank5``; of several findings of a rule and rank each with what it is about."""
    scope = "" if finding.rank is None else f"-rank{finding.rank}"
    about = "" if is_alone or not finding.detail else f"-{finding.detail}"
    return f"{outcome.rule}{scope}{about}"


def _card(
    outcome: Outcome,
    finding: Finding,
    mean_ns: int | None,
    found_by: str,
    anchor: str,
    evidence: tuple[EvidenceRow, ...],
    savings: tuple[EvidenceRow, ...],
) -> Card:
    tone = tone_of(finding.severity)
    scope = "" if finding.rank is None else f"rank {finding.rank}"
    promised = finding.saving or finding.throughput
    beside = f"; overlaps with {inert(finding.overlaps, 24)}: count one" if finding.overlaps else ""
    return Card(
        anchor=anchor,
        rule=inert(outcome.rule, 24),
        shape=SHAPES[tone],
        tone=tone,
        severity=finding.severity,
        title=inert(finding.title, _TITLE_LIMIT),
        saving=f"{as_judged(saving_text(finding.saving, mean_ns), found_by)}{beside}" if finding.saving else "",
        gain=f"{saving_range(finding.saving)}{beside}" if finding.saving else "",
        method=as_judged(method_text(promised), found_by) if promised else "",
        confidence=finding.confidence,
        why=inert(finding.why, SENTENCE_LIMIT),
        fix=inert(finding.fix.text, SENTENCE_LIMIT) if finding.fix else "",
        code=inert_code(finding.fix.code) if finding.fix else "",
        confirm=inert(finding.confirm, SENTENCE_LIMIT),
        scope=scope,
        evidence=evidence,
        savings=savings,
        throughput=throughput_text(finding.throughput) if finding.throughput else "",
        page=tuple((inert(heading, 24), inert(text, _PAGE_LIMIT)) for heading, text in outcome.page.items()),
        probed=probed_words(finding),
    )


def cards_of(report: Report) -> tuple[tuple[Card, ...], tuple[EvidenceRow, ...]]:
    """All findings, largest expected saving first, and the numbers that the report states itself.

    Numbers of evidence are unique in the report, in the order of ``evidence.numbered``.
    """
    anchors, mean_ns, found_by = Anchors(), step_ns(report), report.steps.found_by
    pairs = report.findings()
    often = Counter((outcome.rule, finding.rank) for outcome, finding in pairs)
    evidence = [_rows(finding.evidence, anchors, mean_ns, found_by) for _, finding in pairs]
    savings = [_rows(savings_of(finding, mean_ns), anchors, None, found_by) for _, finding in pairs]
    names = [
        anchors.take(_anchor(outcome, finding, is_alone=often[outcome.rule, finding.rank] == 1))
        for outcome, finding in pairs
    ]
    cards = tuple(
        _card(outcome, finding, mean_ns, found_by, name, own, saved)
        for (outcome, finding), name, own, saved in zip(pairs, names, evidence, savings, strict=True)
    )
    return cards, _rows(stated_of(report), anchors, mean_ns, found_by)


def _rows(numbers: Iterable[Evidence], anchors: Anchors, mean_ns: int | None, found_by: str) -> tuple[EvidenceRow, ...]:
    return tuple(evidence_row(number, anchors, mean_ns, found_by) for number in numbers)


def headline_evidence(report: Report, cards: Sequence[Card]) -> tuple[EvidenceRow, ...]:
    """What backs the headline: the rows of the finding that it tells; empty where that is none, or was suppressed."""
    verdict = report.verdict
    if verdict.saving is None:
        return ()
    suppressed = (found for outcome in report.outcomes for found in outcome.suppressed)
    aside = [found.saving for found in suppressed if found.bound == verdict.bound]
    largest_aside = max((saving.expected for saving in aside if saving), default=0.0)
    for card, (_, finding) in zip(cards, report.findings(), strict=True):
        if finding.saving and (finding.bound, finding.detail) == (verdict.bound, verdict.detail):
            return card.evidence if finding.saving.expected >= largest_aside else ()
    return ()


def evidence_in_words(card: Card) -> str:
    """The first numbers behind a finding, for formats without a table of them."""
    return "; ".join(f"{row.id} {row.label}: {row.value}" for row in card.evidence[:_TOLD_EVIDENCE])


def evidence_numbers(card: Card) -> str:
    """The numbers of a finding's evidence in short: ``E4–E6``."""
    first, last = card.evidence[0].id, card.evidence[-1].id
    return first if first == last else f"{first}–{last}"


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
        beyond = best is not None and family is not None and best.expected > shares.get(family, 1.0)
        also = ", also in parts of other families" if beyond else ""
        reason = f"Not the bound, yet its best fix is expected to save 5 % or more{also}."
        if best is None:
            reason = "The recorder slows the host alone: without it the kernels may be the bound."
        saved = saving_range(best) if best else "none stated"
        rows.append(Other(bound, "also costs time", share, saved, reason, _about(bound)))
    for row in verdict.ruled_out:
        if row.bound in verdict.contenders:
            continue
        best = _best_saving(report, row.bound)
        stated = "none stated" if row.saving is None else format_ratio(row.saving)
        saving = saving_range(best) if best else stated
        reason = inert(row.reason, SENTENCE_LIMIT)
        share = "not measured" if row.share is None else share_text(row.share)
        rows.append(Other(row.bound, row.state, share, saving, reason, _about(row.bound)))
    return tuple(rows)


def _about(bound: Bound) -> str:
    family = BOUND_FAMILY.get(bound)
    return FAMILY_LABELS[family] if family else ""


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
