"""The timeline of the median step: lanes of device and host; in HTML also every event of two steps, to zoom into."""

import base64
import gzip
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import msgspec

from profilerkit.model.change import revise
from profilerkit.model.report import Report
from profilerkit.model.step_events import StepEvents
from profilerkit.report.blocks import Chart, Document, Figure, Section
from profilerkit.report.charts.median_step import median_step_chart
from profilerkit.report.inert import inert
from profilerkit.report.palette import FILLS, INKS, label_on
from profilerkit.report.wording import FAMILY_LABELS, part_label, plural
from profilerkit.units import format_ns

#: Longest name in the figure: a kernel of CUTLASS has 500 characters.
FULL_NAME = 600


def section(report: Report) -> Section | None:
    """The timeline; ``None`` where no steady step was traced."""
    chart = median_step_chart(report)
    return None if chart is None else _section(chart)


def _section(block: Chart | Figure) -> Section:
    return Section("timeline", "Timeline", "of the median step", (block,))


def with_events(page: Document, events: Sequence[StepEvents]) -> Document:
    """The page with a timeline that zooms, whose static twin is the one it had; as it is without events."""
    if not events:
        return page
    chart = next((one.blocks[0] for one in page.sections if one.id == "timeline"), None)
    static = chart if isinstance(chart, Chart) else None
    # Its script takes the finding of the static figure as its title: without script there is nothing to name.
    made = _section(Figure("step-timeline", "", _data(events), "timeline.js", static, plotly=True))
    if static is None:
        return revise(page, sections=(*page.sections[:1], made, *page.sections[1:]))
    return revise(page, sections=tuple(made if one.id == "timeline" else one for one in page.sections))


def _data(events: Sequence[StepEvents]) -> dict[str, Any]:
    """The events of some steps as the script reads them.

    The bulk is JSON as gzip in base 64, with each name once and each start as the way from the one before.
    """
    names: dict[str, int] = {}
    steps = [_step(each, names) for each in events]
    packed = gzip.compress(msgspec.json.encode({"names": list(names), "steps": steps}), 9, mtime=0)
    return {
        "packed": base64.b64encode(packed).decode("ascii"),
        "families": [{"key": key, "name": FAMILY_LABELS[key]} for key in events[0].families],
        "on": {scheme: {key: label_on(fill) for key, fill in fills.items()} for scheme, fills in FILLS.items()},
        "schemes": {scheme: {**FILLS[scheme], **INKS[scheme]} for scheme in FILLS},
    }


def _step(events: StepEvents, names: dict[str, int]) -> dict[str, Any]:
    kinds = [track.kind for track in events.tracks for _ in range(track.rows)]
    causes = {row for row, kind in enumerate(kinds) if kind == "cause"}
    shown = [
        names.setdefault(
            part_label(events.names[name]) if row in causes else inert(events.names[name], FULL_NAME), len(names)
        )
        for name, row in zip(events.name, events.row, strict=True)
    ]
    word = "Median step" if events.is_median else "Slowest step"
    return {
        "title": f"{word} {events.step}, {format_ns(events.time_ns)}",
        "ns": events.time_ns,
        "tracks": [[inert(track.name), track.kind, track.rows] for track in events.tracks],
        "start": [later - earlier for earlier, later in pairwise([0, *events.start_ns])],
        "dur": list(events.dur_ns),
        "name": shown,
        "row": [later - earlier for earlier, later in pairwise([0, *events.row])],
        "family": list(events.family),
        "note": f"{plural(events.left_out, 'shorter event')} of this step left out." if events.left_out else "",
    }
