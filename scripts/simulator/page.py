"""The accuracy on simulated runs as one offline HTML page: goals, detection curves, a table per class, reasons."""

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

#: Lines of one figure: colours by family, then dashes; symbols tell them apart without colour.
_COLOURS = ("input", "memory", "communication", "overhead", "compute", "other")
_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "star", "x", "triangle-down")
_GROUPS = {
    "kernels": "Kernels",
    "host": "The host",
    "input": "Input",
    "memory": "Memory",
    "communication": "Communication",
    "odd": "Odd recordings",
}


def render(document: dict[str, Any]) -> str:
    """The page; everything that came from a report is escaped."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(percent=_percent)
    figures = {group: _figure(document, group) for group in _GROUPS}
    plotly = get_plotlyjs()
    script = gzip.compress(plotly.encode("utf-8"), 9, mtime=0)
    page = environment.get_template("page.html.j2").render(
        document=document,
        headline=_headline(document),
        groups={name: title for name, title in _GROUPS.items() if figures[name]},
        schemes={name: _scheme(name) for name in ("light", "dark")},
        # Base 64, and JSON in which nothing can end its element.
        packed_script=Markup(base64.b64encode(script).decode("ascii")),
        figures=Markup(_embedded(figures)),
    )
    return sealed(page, plotly)


def render_whatifs(document: dict[str, Any]) -> str:
    """The page of the what-ifs: it needs no script."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(percent=_percent)
    points = [
        (round(100 * saved, 2), round(-100 * foretold, 2))
        for row in document["rows"]
        for saved, foretold, is_open in zip(row["saved"], row["foretold"], row["is_open"], strict=True)
        if is_open == "1"
    ]
    schemes = {name: _scheme(name) for name in ("light", "dark")}
    return environment.get_template("whatifs.html.j2").render(document=document, points=points, schemes=schemes)


def _headline(document: dict[str, Any]) -> str:
    kept = sum(entry["holds"] for entry in document["classes"])
    quiet = sum(entry["holds"] for entry in document["healthy"])
    return (
        f"{kept} of {len(document['classes'])} classes of faults are seen right, "
        f"{quiet} of {len(document['healthy'])} kinds of healthy runs left alone"
    )


def _figure(document: dict[str, Any], group: str) -> list[dict[str, Any]]:
    """Two lines per class: attribution right (solid), and named by a finding or the verdict (dotted)."""
    lines = []
    for number, entry in enumerate(entry for entry in document["classes"] if entry["group"] == group):
        look = {"family": _COLOURS[number % len(_COLOURS)], "symbol": _SYMBOLS[number % len(_SYMBOLS)]}
        for key, dash, what in (("curve", "solid", "right"), ("named_curve", "dot", "named")):
            points = [point for point in entry[key] if point["injected"] > 0]
            if points:
                lines.append(
                    {
                        "name": f"{entry['code']} {entry['what']}" + (", named" if what == "named" else ""),
                        "dash": dash,
                        **look,
                        "x": [100 * point["injected"] for point in points],
                        "y": [100 * point["ratio"] for point in points],
                        "n": [point["draws"] for point in points],
                    }
                )
    return lines


def _percent(value: float | None, digits: int = 1) -> str:
    """``97.5 %``; ``not judged`` where nothing was counted."""
    return "not judged" if value is None else f"{100 * value:.{digits}f} %"


def _scheme(name: str) -> Markup:
    """Colours as CSS custom properties."""
    colours = {**INKS[name], **FILLS[name]}  # type: ignore[index]
    return Markup(";".join(f"--{key}:{value}" for key, value in colours.items()))


def _embedded(value: Any) -> str:
    text = json.dumps(value)
    for char in "<>&\u2028\u2029":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return text
