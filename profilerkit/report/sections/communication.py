"""Communication: each collective, what the flight recorder held, and what DistributedDataParallel measured."""

from profilerkit.model.report import Report
from profilerkit.report.blocks import Block, Facts, Heading, Section
from profilerkit.report.charts.collectives import collective_chart
from profilerkit.report.communication import collective_table
from profilerkit.report.recorded import model_facts, recorded_table
from profilerkit.report.wording import plural


def section(report: Report) -> Section | None:
    """Collectives; ``None`` without any."""
    blocks: list[Block] = [block for block in (collective_chart(report), collective_table(report)) if block]
    if recorded := recorded_table(report):
        blocks += [Heading("Collectives of the flight recorder"), recorded]
    if models := model_facts(report):
        blocks.append(Facts(models))
    if not blocks:
        return None
    summary = plural(len(report.collectives), "kind") + " of collective" if report.collectives else "as recorded"
    return Section("communication", "Communication", summary, tuple(blocks), prints=False)
