"""Why not the others: every other bound with the number that decides it."""

from profilerkit.model.finding import Bound, Saving, in_order
from profilerkit.model.report import Report
from profilerkit.model.step import Family
from profilerkit.model.verdict import BOUND_FAMILY
from profilerkit.report.blocks import Block, Cell, Section, Table, Text, Value
from profilerkit.report.breakdown import own_share
from profilerkit.report.inert import SENTENCE_LIMIT, inert
from profilerkit.report.wording import listed, saving_range
from profilerkit.units import format_ratio


def section(report: Report) -> Section | None:
    """Contenders first, then what is ruled out or not measured."""
    verdict, rows = report.verdict, []
    shares: dict[Family, float] = {}
    for part in report.breakdown:
        shares[part.family] = shares.get(part.family, 0.0) + (own_share(part, report.breakdown) or 0.0)
    for bound in verdict.contenders:
        best, family = _best(report, bound), BOUND_FAMILY.get(bound)
        beyond = best is not None and family is not None and best.expected > shares.get(family, 1.0)
        also = ", also in parts of other families" if beyond else ""
        reason = f"Its best fix is expected to save 5 % or more{also}."
        if best is None:
            reason = "The recorder slows the host. Without it, kernels may be the bound."
        rows.append(_row(bound, "also costs time", shares.get(family) if family else None, best, reason))
    for row in verdict.ruled_out:
        if row.bound not in verdict.contenders:
            best = _best(report, row.bound)
            reason = inert(row.reason, SENTENCE_LIMIT)
            rows.append(_row(row.bound, row.state, row.share, best, reason, known=row.saving))
    if not rows and not verdict.refuted_by:
        return None
    blocks: list[Block] = []
    if rows:
        blocks.append(Table("", ("Bound", "State", "Why", "Share", "Saving"), tuple(rows), 3))
    if verdict.refuted_by:
        blocks.append(Text.of(f"To check this verdict: {inert(verdict.refuted_by, SENTENCE_LIMIT)}"))
    summary = f"also: {listed(list(verdict.contenders))}" if verdict.contenders else "the number that decides each"
    return Section("why-not", "Other causes", summary, tuple(blocks))


def _best(report: Report, bound: Bound) -> Saving | None:
    return next((found.saving for _, found in in_order(report.outcomes) if found.bound == bound and found.saving), None)


def _row(
    bound: Bound, state: str, share: float | None, best: Saving | None, reason: str, known: float | None = None
) -> tuple[Cell, ...]:
    saving = saving_range(best) if best else "not estimated" if known is None else format_ratio(known)
    return (bound, state, reason, Value(share, "ratio"), saving)
