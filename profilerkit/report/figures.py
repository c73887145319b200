"""The per-step figures: as SVG strips that need no script, and the one of time also as data for plotly."""

from collections.abc import Sequence
from html import escape
from itertools import pairwise
from math import floor, log10
from statistics import median
from typing import Any

from profilerkit.model.step import Family
from profilerkit.report.memory import Columns
from profilerkit.report.palette import FILLS, INKS
from profilerkit.report.records import Bar
from profilerkit.report.timeline import REST, Column, Timeline, slowest_of_groups
from profilerkit.report.wording import FAMILY_LABELS

#: Colour key of the time whose parts are not known.
UNSPLIT = "unsplit"

_STRIP_COLUMNS = 200
_STRIP_HEIGHT = 100.0
_BAR_HEIGHT, _BAR_PITCH = 20, 26
_UNITS = ((1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1.0, "ns"))


def _shares(column: Column) -> list[tuple[str, int]]:
    """Colour key and ns of each layer, bottom first."""
    order: list[Family] = list(FAMILY_LABELS)
    known: list[tuple[str, int]] = [
        (family, column.families[family]) for family in order if column.families.get(family)
    ]
    return [*known, (UNSPLIT, column.unsplit_ns)] if column.unsplit_ns else known


def colour_names() -> dict[str, str]:
    """Every colour key of the figure and its name, bottom layer first."""
    return dict([*FAMILY_LABELS.items(), (UNSPLIT, REST)])


def strip_paths(timeline: Timeline) -> tuple[dict[str, str], int, int]:
    """SVG path data by class in a box ``width`` × 100, the width, and how many steps share one column.

    Columns are 4 wide with a gap of 1. A class is a colour key, with ``pale`` for steps outside the steady window;
    above a column higher than the scale stands a bar (key ``mark``).
    """
    columns, group = slowest_of_groups(timeline.columns, _STRIP_COLUMNS)
    paths: dict[str, list[str]] = {}
    for number, column in enumerate(columns):
        x, below = 5 * number, 0.0
        for colour, time_ns in _shares(column):
            key = colour if column.steady else f"{colour} pale"
            top = min(_STRIP_HEIGHT, below + _STRIP_HEIGHT * time_ns / timeline.cut_ns)
            if top > below:
                paths.setdefault(key, []).append(f"M{x} {_STRIP_HEIGHT - below:.4g}h4V{_STRIP_HEIGHT - top:.4g}h-4z")
            below = top
        if column.time_ns > timeline.cut_ns:
            paths.setdefault("mark", []).append(f"M{x} -3h4v-4h-4z")
    return {key: "".join(pieces) for key, pieces in paths.items()}, 5 * len(columns), group


def memory_paths(columns: Columns) -> tuple[dict[str, str], int]:
    """SVG path data by class in a box ``width`` × 100, and the width.

    A column is the peak of a step; what is reserved beyond it is pale.
    """
    paths: dict[str, list[str]] = {}
    for number, row in enumerate(columns.rows):
        top = _STRIP_HEIGHT * (1 - row.peak_bytes / columns.top_bytes)
        paths.setdefault("memory", []).append(f"M{5 * number} {_STRIP_HEIGHT:g}h4V{top:.3g}h-4z")
        if row.reserved_bytes is not None and row.reserved_bytes > row.peak_bytes:
            above = _STRIP_HEIGHT * (1 - row.reserved_bytes / columns.top_bytes)
            paths.setdefault("memory pale", []).append(f"M{5 * number} {top:.3g}h4V{above:.3g}h-4z")
    return {key: "".join(pieces) for key, pieces in paths.items()}, 5 * len(columns.rows)


def waterfall_paths(bars: Sequence[Bar]) -> tuple[dict[str, str], int]:
    """SVG path data by class in a box 100 × ``height``, and the height: one bar under the other, what is saved pale."""
    paths = {"compute": "", "compute pale": ""}
    for number, bar in enumerate(bars):
        top, left = _BAR_PITCH * number, 100.0 * bar.ratio
        if left > 0:
            paths["compute"] += f"M0 {top}h{left:.4g}v{_BAR_HEIGHT}H0z"
        if left < 100:
            paths["compute pale"] += f"M{left:.4g} {top}H100v{_BAR_HEIGHT}H{left:.4g}z"
    return {key: path for key, path in paths.items() if path}, _BAR_PITCH * len(bars)


def _number(value: float) -> float:
    """Three significant digits: what a screen can show."""
    short = float(f"{value:.3g}")
    return int(short) if short.is_integer() else short


def _layers(timeline: Timeline, size: float) -> list[dict[str, Any]]:
    """Heights as whole numbers, ``digits`` of each behind the point: they are most of a page of many steps."""
    shares = [dict(_shares(column)) for column in timeline.columns]
    layers = []
    for key, name in colour_names().items():
        heights = [of_step.get(key, 0) / size for of_step in shares]
        seen = [height for height in heights if height > 0]
        if seen:
            digits = 2 - floor(log10(median(seen)))
            ys = [round(height * 10.0**digits) for height in heights]
            layers.append({"key": key, "name": name, "digits": digits, "y": ys})
    return layers


def _notes(timeline: Timeline) -> tuple[list[str], dict[int, int]]:
    """Hover texts, each once, and the number of the text of every step that has another one than the step before.

    Plotly reads a subset of HTML in text, so what came from a trace is escaped.
    """
    texts: dict[str, int] = {}
    numbers = []
    for column in timeline.columns:
        note = column.state + (f" · largest part: {column.largest}" if column.largest else "")
        numbers.append(texts.setdefault(escape(note, quote=False), len(texts)))
    changes = {0, *(later for later in range(1, len(numbers)) if numbers[later] != numbers[later - 1])}
    return list(texts), {step: numbers[step] for step in sorted(changes)}


def _gaps(columns: Sequence[Column]) -> list[int]:
    numbers = [column.index for column in columns]
    return [1, *(later - earlier for earlier, later in pairwise(numbers))]


def step_figure(timeline: Timeline) -> dict[str, Any]:
    """Data for the report's own script: layers, the shared x, hover texts, the scale, and both colour schemes."""
    size, unit = next((pair for pair in _UNITS if timeline.median_ns >= pair[0]), _UNITS[-1])
    notes, changes = _notes(timeline)
    columns = timeline.columns
    return {
        "count": len(columns),
        "first": columns[0].index,
        # How far each step's number is from the one before: mostly 1, so runs of 1 are left to the script.
        "skips": {number: gap for number, gap in enumerate(_gaps(columns)) if gap != 1},
        "layers": _layers(timeline, size),
        "marks": [number for number, c in enumerate(columns) if c.time_ns > timeline.cut_ns],
        "pale": [number for number, c in enumerate(columns) if not c.steady],
        "notes": notes,
        "note": changes,
        "cut": _number(timeline.cut_ns / size),
        "top": _number(1.08 * timeline.cut_ns / size),
        "median": _number(timeline.median_ns / size),
        "unit": unit,
        "schemes": {
            "light": {**FILLS["light"], **INKS["light"], UNSPLIT: FILLS["light"]["other"]},
            "dark": {**FILLS["dark"], **INKS["dark"], UNSPLIT: FILLS["dark"]["other"]},
        },
    }
