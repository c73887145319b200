"""The speed report as one offline HTML page: the limits, two figures with their table, the growth, the tools."""

import base64
import gzip
import json
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from page_policy import sealed
from plotly.offline import get_plotlyjs

from profilerkit.report.palette import FILLS, INKS
from speed_benchmark.tools import ANALYZE, HTA, JSON, PACKED, READER

#: Colour by whose tool it is, line and symbol by which of theirs.
_LOOKS = {
    ANALYZE: ("input", "solid", "circle"),
    PACKED: ("input", "dash", "circle-open"),
    READER: ("input", "dot", "diamond"),
    JSON: ("other", "solid", "square"),
    "orjson": ("compute", "solid", "triangle-up"),
    HTA: ("communication", "solid", "x"),
    "HTA 0.5": ("communication", "dash", "x-open"),
    "torch-tb-profiler": ("memory", "solid", "star"),
}
_OTHER_LOOK = ("overhead", "solid", "cross")


def render(document: dict[str, Any]) -> str:
    """The page; everything that came from a tool or a file is escaped."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(number=_number, spread=_spread)
    counts = [trace["events"] for trace in document["traces"]]
    figures = {"cpu": _figure(document, "cpu_s", 1.0), "memory": _figure(document, "peak_bytes", 1e-9)}
    plotly = get_plotlyjs()
    script = gzip.compress(plotly.encode("utf-8"), 9, mtime=0)
    page = environment.get_template("page.html.j2").render(
        document=document,
        headline=_headline(document),
        machine=_machine(document["machine"]),
        schemes={name: _scheme(name) for name in ("light", "dark")},
        # Base 64, and JSON in which nothing can end its element.
        packed_script=Markup(base64.b64encode(script).decode("ascii")),
        figures=Markup(_embedded({"ticks": counts, "lines": figures})),
    )
    return sealed(page, plotly)


def _scheme(name: str) -> Markup:
    """Colours as CSS custom properties."""
    colours = {**INKS[name], **FILLS[name]}  # type: ignore[index]
    return Markup(";".join(f"--{key}:{value}" for key, value in colours.items()))


def _embedded(value: Any) -> str:
    text = json.dumps(value)
    for char in "<>&\u2028\u2029":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return text


def _figure(document: dict[str, Any], quantity: str, scale: float) -> list[dict[str, Any]]:
    """One line per tool: events against the median, with the spread as error bars."""
    points: dict[str, list[tuple[int, dict[str, float]]]] = {}
    for trace in document["traces"]:
        for measured in trace["measurements"]:
            points.setdefault(measured["tool"], []).append((trace["events"], measured[quantity]))
    lines = []
    for name, found in points.items():
        family, dash, symbol = _LOOKS.get(name, _OTHER_LOOK)
        lines.append(
            {
                "name": name,
                "family": family,
                "dash": dash,
                "symbol": symbol,
                "x": [events for events, _ in found],
                "y": [scale * value["median"] for _, value in found],
                "up": [scale * (value["high"] - value["median"]) for _, value in found],
                "down": [scale * (value["median"] - value["low"]) for _, value in found],
            }
        )
    return lines


def _number(value: float, digits: int = 3) -> str:
    """Three significant digits, thousands set apart."""
    short = float(f"{value:.{digits}g}")
    return f"{short:,.0f}" if abs(short) >= 100 else f"{short:g}"


def _spread(value: dict[str, float] | None, scale: float = 1.0) -> str:
    """``median (low–high)``; ``not measured`` where nothing was."""
    if value is None:
        return "not measured"
    median, low, high = (_number(scale * value[name]) for name in ("median", "low", "high"))
    return median if low == high else f"{median} ({low}–{high})"


def _headline(document: dict[str, Any]) -> str:
    """The one sentence: the time against json.load, and how many limits are kept."""
    kept = [check["holds"] for check in document["checks"]]
    if not kept:
        return "No limit was measured"
    limits = f"{sum(kept)} of {len(kept)} limits hold"
    for trace in reversed(document["traces"]):
        ratio = next((row["wall_ratio_to_json_load"] for row in trace["measurements"] if row["tool"] == ANALYZE), None)
        if ratio:
            size, share = f"{trace['megabytes']:g} MB", _number(ratio["median"], 2)
            return f"Reading, judging and reporting {size} takes {share} of json.load's time; {limits}"
    return limits


def _machine(machine: dict[str, Any]) -> str:
    gib = round(machine["memory_bytes"] / 2**30)
    return (
        f"{machine['cores']} cores ({machine['architecture']}), {gib} GiB of memory, {machine['system']}, "
        f"Python {machine['python']}; load average {machine['load_at_end']} at the end"
    )
