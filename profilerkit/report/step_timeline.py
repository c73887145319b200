"""Two steps as a timeline that zooms: what its script reads. Names stay text: the script never makes markup of one."""

import base64
import gzip
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import msgspec

from profilerkit.model.step_events import StepEvents
from profilerkit.report.inert import inert
from profilerkit.report.palette import FILLS, INKS, label_on
from profilerkit.report.wording import FAMILY_LABELS, part_label, plural
from profilerkit.units import format_ns

#: Longest name in the figure: a kernel of CUTLASS has 500 characters.
FULL_NAME = 600


def timeline_data(events: Sequence[StepEvents]) -> dict[str, Any] | None:
    """The events of some steps as a script reads them; ``None`` without any.

    The bulk is JSON as gzip in base 64, with each name once and each start as the way from the one before.
    """
    if not events:
        return None
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
