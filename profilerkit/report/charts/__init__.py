"""The figures beside the step strips: one module each, from the report to a ``Chart``."""

from profilerkit.model.report import Report
from profilerkit.report.charts.chart import Chart
from profilerkit.report.charts.collectives import collective_chart
from profilerkit.report.charts.crowd import crowd_chart
from profilerkit.report.charts.loader import loader_wait
from profilerkit.report.charts.median_step import median_step_chart
from profilerkit.report.charts.ranks import rank_chart
from profilerkit.report.charts.roofline import roofline_chart
from profilerkit.report.charts.samples import logged_strips, sampled_strips


def charts_of(report: Report) -> dict[str, tuple[Chart, ...]]:
    """The figures of a report by the anchor of the section that shows them. A figure without data is left out."""
    made: dict[str, tuple[Chart | None, ...]] = {
        "steps": (median_step_chart(report), loader_wait(report), sampled_strips(report)),
        "logs": (logged_strips(report),),
        "ranks": (crowd_chart(report), None if report.crowd else rank_chart(report)),
        "kernels": (roofline_chart(report), collective_chart(report)),
    }
    return {section: tuple(chart for chart in charts if chart is not None) for section, charts in made.items()}
