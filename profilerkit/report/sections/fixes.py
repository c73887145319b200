"""What to change: every finding with its evidence, and the step after each fix."""

from profilerkit.model.report import Report
from profilerkit.report.blocks import Block, Heading, Section
from profilerkit.report.findings import findings_of, first_sentence
from profilerkit.report.probes import probe_blocks
from profilerkit.report.waterfall import waterfall_blocks

_NAMED = 2


def section(report: Report) -> Section | None:
    """Every finding; ``None`` without any."""
    findings = findings_of(report)
    probes = probe_blocks(report)
    if not findings.all and not probes:
        return None
    more = findings.fixes[1:]
    named = [f"{first_sentence(found.fix)}{f': {found.saves}' if found.saves else ''}" for found in more[:_NAMED]]
    blocks: list[Block] = list(findings.all)
    if waterfall := waterfall_blocks(report):
        blocks += [Heading("The step after each fix"), *waterfall]
    if probes:
        blocks += [Heading("Probes in the run"), *probes]
    return Section(
        "fixes",
        f"{len(more)} more {'fix' if len(more) == 1 else 'fixes'}" if more else "Evidence",
        " · ".join(named) if named else "why, and the numbers behind it",
        tuple(blocks),
    )
