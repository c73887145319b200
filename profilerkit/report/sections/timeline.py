"""The timeline of the median step: lanes of device and host, the longest gaps named by their cause."""

from profilerkit.model.report import Report
from profilerkit.report.blocks import Section
from profilerkit.report.charts.median_step import median_step_chart


def section(report: Report) -> Section | None:
    """The timeline; ``None`` where no steady step was traced."""
    chart = median_step_chart(report)
    if chart is None:
        return None
    return Section(
        "timeline", "Timeline of the median step", "threads, streams and idle time", (chart,), short="Timeline"
    )
