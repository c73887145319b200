"""The scale report as one offline HTML page: time and memory against the number of ranks, and what was found."""

import math
from pathlib import Path
from typing import Any

from markupsafe import Markup
from pages import environment, sealed

from profilerkit.report.blocks import Axis, Chart, Label, Shape, Table, Tick
from profilerkit.report.chart import Scale, decades, point, polyline
from profilerkit.report.html import page_css
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
            charts=[_time(rows), _memory(rows)],
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


def _time(rows: list[dict[str, Any]]) -> Chart:
    values = [row["wall_s"] for row in rows]
    up = decades(min(values), max(values))
    said = [format_ns(value * 1e9) for value in values]
    axis = up.axis("wall time", lambda value: format_ns(value * 1e9))
    return _chart("time", "are reduced in", rows, up, axis, values, said)


def _memory(rows: list[dict[str, Any]]) -> Chart:
    values = [row["peak_bytes"] for row in rows]
    low, high = math.floor(math.log2(min(values))), math.ceil(math.log2(max(values)))
    up = Scale(2.0**low, 2.0**high, is_log=True)
    ticks = tuple(Tick(up.at(2.0**power), format_bytes(2.0**power)) for power in range(low, high + 1, 2))
    said = [format_bytes(value) for value in values]
    return _chart("memory", "take", rows, up, Axis("peak memory", ticks), values, said)


def _chart(
    anchor: str,
    verb: str,
    rows: list[dict[str, Any]],
    up: Scale,
    axis: Axis,
    values: list[float],
    said: list[str],
) -> Chart:
    """One number of each job over its ranks; the ticks below are the jobs themselves."""
    ranks = [row["ranks"] for row in rows]
    across = Scale(ranks[0] / 2, ranks[-1] * 2, is_log=True)
    points = [(across.at(count), 100.0 - up.at(value)) for count, value in zip(ranks, values, strict=True)]
    return Chart(
        anchor=anchor,
        title=f"{format_count(ranks[-1])} ranks {verb} {said[-1]}, {format_count(ranks[0])} {verb} {said[0]}",
        caption="Both axes are logarithmic. One run each, measured.",
        height_px=220,
        shapes=(
            Shape("compute", "line", polyline(points)),
            Shape("compute", "point", "".join(point(x, y) for x, y in points)),
        ),
        x=Axis("ranks", tuple(Tick(across.at(count), format_count(count)) for count in ranks)),
        y=axis,
        legend=(),
        labels=tuple(Label(x, y, text, "within") for (x, y), text in zip(points, said, strict=True)),
        table=Table(
            "The figure as a table",
            ("Ranks", "Measured"),
            tuple((format_count(count), text) for count, text in zip(ranks, said, strict=True)),
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
