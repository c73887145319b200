"""The accuracy on simulated runs as one offline HTML page: goals, detection curves, a table per class, reasons."""

from typing import Any

from pages import environment, with_plotly

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
    figures = {group: _figure(document, group) for group in _GROUPS}
    return with_plotly(
        "simulator/page.html.j2",
        environment(percent=_percent),
        figures,
        document=document,
        headline=_headline(document),
        groups={name: title for name, title in _GROUPS.items() if figures[name]},
    )


def render_whatifs(document: dict[str, Any]) -> str:
    """The page of the what-ifs: it needs no script."""
    points = [
        (round(100 * saved, 2), round(-100 * foretold, 2))
        for row in document["rows"]
        for saved, foretold, is_open in zip(row["saved"], row["foretold"], row["is_open"], strict=True)
        if is_open == "1"
    ]
    within = round(100 * document["goals"]["points"])
    headline = f"{document['close']} of {document['open']} what-ifs are foretold within {within} points"
    template = environment(percent=_percent).get_template("simulator/whatifs.html.j2")
    return template.render(document=document, points=points, headline=headline)


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
