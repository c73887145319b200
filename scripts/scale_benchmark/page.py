"""The scale report as one offline HTML page: time and memory against the number of ranks, and what was found."""

from pathlib import Path
from typing import Any

from markupsafe import Markup
from page_policy import sealed

from profilerkit.report.charts.axes import decades
from profilerkit.report.charts.chart import Chart, Shape, point, polyline
from profilerkit.report.records import Table
from profilerkit.report.templating import environment, page_css
from profilerkit.units import format_bytes, format_count, format_ns

_TEMPLATE = Path(__file__).with_name("page.html.j2")


def render(document: dict[str, Any]) -> str:
    """The page of a document of ``scripts/benchmark_scale``."""
    rows = document["rows"]
    page = (
        environment()
        .from_string(_TEMPLATE.read_text("utf-8"))
        .render(
            document=document,
            headline=_headline(rows),
            charts=[
                _chart("time", "reduced in", rows, "wall_s", lambda value: format_ns(value * 1e9)),
                _chart("memory", "take", rows, "peak_bytes", format_bytes),
            ],
            table=_table(rows),
            css=Markup(page_css()),
        )
    )
    return sealed(page)


def _headline(rows: list[dict[str, Any]]) -> str:
    last = rows[-1]
    found = "and both culprits were found" if all(row["found"] for row in rows) else "and a culprit was missed"
    return (
        f"{format_count(last['ranks'])} ranks reduced in {format_ns(last['wall_s'] * 1e9)} with "
        f"{format_bytes(last['peak_bytes'])}, {found}"
    )


def _chart(anchor: str, verb: str, rows: list[dict[str, Any]], key: str, words: Any) -> Chart:
    values = [row[key] for row in rows]
    across, up = decades(rows[0]["ranks"], rows[-1]["ranks"]), decades(min(values), max(values))
    points = [(across.at(row["ranks"]), 100.0 - up.at(row[key])) for row in rows]
    return Chart(
        anchor=anchor,
        title=f"{format_count(rows[-1]['ranks'])} ranks {verb} {words(values[-1])}, "
        f"{format_count(rows[0]['ranks'])} {verb} {words(values[0])}",
        caption="Both axes are logarithmic. One run each, measured.",
        height_px=220,
        shapes=(
            Shape("compute", "line", polyline(points)),
            Shape("compute", "point", "".join(point(x, y) for x, y in points)),
        ),
        x=across.axis("ranks", lambda value: format_count(round(value))),
        y=up.axis("wall time" if key == "wall_s" else "peak memory", words),
        legend=(),
        labels=(),
        table=Table(
            "The figure as a table",
            ("Ranks", "Measured"),
            tuple((format_count(row["ranks"]), words(row[key])) for row in rows),
        ),
    )


def _table(rows: list[dict[str, Any]]) -> Table:
    return Table(
        "One rank in a hundred is missing, clocks are up to 5 ms apart, each rank has 1,000 collectives.",
        ("Ranks", "Summaries", "Wall", "Peak memory", "Late rank", "Slow host", "Report"),
        tuple(
            (
                format_count(row["ranks"]),
                f"{format_count(row['files'])}, {format_bytes(row['bytes'])}",
                format_ns(row["wall_s"] * 1e9),
                format_bytes(row["peak_bytes"]),
                "found" if row["late_found"] else "missed",
                "found" if row["host_found"] else "missed",
                format_bytes(row["report_bytes"]),
            )
            for row in rows
        ),
    )
