"""The speed report as one offline HTML page: the limits, two figures with their table, the growth, the tools."""

from typing import Any

from machine import words as machine_words
from pages import environment, number, with_plotly

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
    made = environment(number=number, spread=_spread)
    counts = [trace["events"] for trace in document["traces"]]
    figures = {"cpu": _figure(document, "cpu_s", 1.0), "memory": _figure(document, "peak_bytes", 1e-9)}
    machine = document["machine"]
    return with_plotly(
        "speed_benchmark/page.html.j2",
        made,
        {"ticks": counts, "lines": figures},
        document=document,
        headline=_headline(document),
        machine=machine_words(machine, f"; load average {machine['load_at_end']} at the end"),
    )


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


def _spread(value: dict[str, float] | None, scale: float = 1.0) -> str:
    """``median (low–high)``; ``not measured`` where nothing was."""
    if value is None:
        return "not measured"
    median, low, high = (number(scale * value[name]) for name in ("median", "low", "high"))
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
            size, share = f"{trace['megabytes']:g} MB", number(ratio["median"], 2)
            return f"Reading, judging and reporting {size} takes {share} of json.load's time; {limits}"
    return limits
