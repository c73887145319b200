"""The steps: where the time of a step goes, step by step, and the events of two of them."""

import base64
import gzip
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, pairwise
from typing import Any

import msgspec

from profilerkit.model import revise
from profilerkit.model.events import CELLS, Gap, Lane, MedianStep, StepEvents
from profilerkit.model.finding import Source
from profilerkit.model.report import Report
from profilerkit.model.run import INPUT_WAIT
from profilerkit.model.step import Family, within
from profilerkit.report import blocks, wording
from profilerkit.report.chart import FILLS, INKS, Scale, label_on, polyline
from profilerkit.report.inert import inert
from profilerkit.report.sample_charts import sampled_strips
from profilerkit.report.step_charts import WAITS, loader_wait, steps_blocks
from profilerkit.units import format_ns, format_ratio

NO_LOADER = "Input wait was not measured: no loader was seen."


def section(report: Report) -> blocks.Section | None:
    """Parts and steps; ``None`` for logs, which have neither."""
    if report.trust.mode == "logs":
        return None
    made: list[blocks.Block] = []
    parts = [part for own in wording.families_of(report.breakdown).values() for part in own]
    shares = [wording.own_share(part, report.breakdown) for part in parts]
    if parts:
        rows = tuple(
            (
                wording.part_label(part.part),
                part.source,
                blocks.Value(part.time_ns, "ns", part.source),
                "left out" if share is None else blocks.Value(share, "ratio"),
            )
            for part, share in zip(parts, shares, strict=True)
        )
        caption = f"{wording.bar_caption(report)}. A share is not a saving."
        if None in shares:
            caption += " Shares leave out the time that other programs took."
        made.append(blocks.Table(caption, ("Part", "Source", "Time", "Share"), rows, 2, title="Every part of the step"))
    else:
        made.append(blocks.Text.of(wording.parts_missing(report)))
    if any(signal.name == INPUT_WAIT and signal.state == "missing" for signal in report.trust.signals):
        made.append(blocks.Text.of(NO_LOADER, style="warning"))
    charts = (chart for chart in (loader_wait(report), sampled_strips(report)) if chart is not None)
    made += [*steps_blocks(report), *charts]
    known = [(share, part) for share, part in zip(shares, parts, strict=True) if share is not None]
    share, largest = max(known, key=lambda pair: pair[0], default=(0.0, None))
    summary = f"{wording.part_label(largest.part)}: {format_ratio(share)}" if largest else "only its length is known"
    return blocks.Section("steps", "Steps", summary, tuple(made))


FULL_NAME = 600  #: longest name in the figure: a kernel of CUTLASS has 500 characters


def timeline(report: Report) -> blocks.Section | None:
    """The timeline; ``None`` where no steady step was traced."""
    chart = median_step_chart(report)
    return None if chart is None else _section(chart)


def _section(block: blocks.Chart | blocks.Figure) -> blocks.Section:
    return blocks.Section("timeline", "Timeline", "of the median traced step", (block,))


def with_events(page: blocks.Document, events: Sequence[StepEvents]) -> blocks.Document:
    """The page with a timeline that zooms, whose static twin is the one it had; as it is without events."""
    if not events:
        return page
    chart = next((one.blocks[0] for one in page.sections if one.id == "timeline"), None)
    static = chart if isinstance(chart, blocks.Chart) else None
    # Its script takes the finding of the static figure as its title: without script there is nothing to name.
    made = _section(blocks.Figure("step-timeline", "", _data(events), "timeline.js", static, plotly=True))
    if static is None:
        return revise(page, sections=(*page.sections[:1], made, *page.sections[1:]))
    return revise(page, sections=tuple(made if one.id == "timeline" else one for one in page.sections))


def _data(events: Sequence[StepEvents]) -> dict[str, Any]:
    """The events of some steps as the script reads them.

    The bulk is JSON as gzip in base 64, with each name once and each start as the way from the one before.
    """
    names: dict[str, int] = {}
    steps = [_step(each, names) for each in events]
    packed = gzip.compress(msgspec.json.encode({"names": list(names), "steps": steps}), 6, mtime=0)
    return {
        "packed": base64.b64encode(packed).decode("ascii"),
        "families": [{"key": key, "name": wording.FAMILY_LABELS[key]} for key in events[0].families],
        "on": {scheme: {key: label_on(fill) for key, fill in fills.items()} for scheme, fills in FILLS.items()},
        "schemes": {scheme: {**FILLS[scheme], **INKS[scheme]} for scheme in FILLS},
    }


def _step(events: StepEvents, names: dict[str, int]) -> dict[str, Any]:
    kinds = [track.kind for track in events.tracks for _ in range(track.rows)]
    causes = {row for row, kind in enumerate(kinds) if kind == "cause"}
    words = {
        (name, is_cause): wording.part_label(events.names[name]) if is_cause else inert(events.names[name], FULL_NAME)
        for name, is_cause in {(name, row in causes) for name, row in zip(events.name, events.row, strict=True)}
    }
    shown = [
        names.setdefault(words[name, row in causes], len(names))
        for name, row in zip(events.name, events.row, strict=True)
    ]
    word = "Median traced step" if events.is_median else "Slowest traced step"
    return {
        "title": f"{word} {events.step}, {format_ns(events.time_ns)}",
        "ns": events.time_ns,
        "tracks": [[inert(track.name), track.kind, track.rows] for track in events.tracks],
        "start": [later - earlier for earlier, later in pairwise([0, *events.start_ns])],
        "dur": list(events.dur_ns),
        "name": shown,
        "row": [later - earlier for earlier, later in pairwise([0, *events.row])],
        "family": list(events.family),
        "note": f"{wording.plural(events.left_out, 'shorter event')} of this step left out." if events.left_out else "",
    }


_LANE_PX, _BAR_PX, _LABEL_PX = 27.0, 19.0, 22.0
#: A bar that would be thinner is drawn as high as this share of its lane, to be seen at all.
_LEAST_HEIGHT = 0.08
_MOST_LANES, _NAME_LIMIT = 12, 14
_MOST_LABELS, _LEAST_LABELLED, _LABEL_LIMIT = 3, 0.03, 44
_NEARLY_ALL = 0.9
#: Pixels of a character of a label, and of the box on a page of 414 px: labels are chosen so that none meets another
#: there, and a narrower page shows the first alone. Of 46 characters none is cut off on 360 px, where the box has 276.
_CHARACTER_PX, _NARROW_PX, _LABEL_CHARACTERS = 6.0, 330.0, 46
_MOST_CAUSES, _MOST_GAPS = 2, 10
_UNITS_NS = {"s": 1e9, "ms": 1e6, "µs": 1e3, "ns": 1.0}


def median_step_chart(report: Report) -> blocks.Chart | None:
    """The figure; ``None`` where no steady step was traced."""
    found = report.median_step
    if found is None or found.time_ns <= 0 or not found.lanes:
        return None
    lanes = found.lanes[:_MOST_LANES]
    scale = Scale(0.0, float(found.time_ns))
    labelled = _labelled(found, scale)
    above = _LABEL_PX if labelled else 0.0
    height = above + _LANE_PX * len(lanes)
    # Upper and lower end of each lane's bars, in percent from the top of the box.
    tops = [100.0 * (above + _LANE_PX * number + (_LANE_PX - _BAR_PX) / 2) / height for number in range(len(lanes))]
    tall = 100.0 * _BAR_PX / height
    shapes = [shape for lane, top in zip(lanes, tops, strict=True) for shape in _bars(lane, top, top + tall)]
    used = {track.family for lane in lanes for track in lane.tracks}
    unit = format_ns(scale.high).rpartition(" ")[2]
    sources = {part.part: part.source for part in report.breakdown}
    waits = [sources[part] for part in WAITS if part in sources]
    return blocks.Chart(
        anchor="median-step",
        title=_title(found),
        caption=" ".join(
            _caption(found, {**dict.fromkeys(WAITS, wording.weakest(waits)), **sources} if waits else sources)
        ),
        height_px=round(height),
        shapes=(*shapes, *(_bracket(gap, scale, tops[0]) for gap in labelled)),
        x=scale.across("Time since the start of the step", lambda value: f"{value / _UNITS_NS[unit]:g} {unit}"),
        y=blocks.Axis(
            "Lane",
            tuple(blocks.Tick(100.0 - top - tall / 2, _name(lane)) for lane, top in zip(lanes, tops, strict=True)),
        ),
        legend=tuple((family, name) for family, name in wording.FAMILY_LABELS.items() if family in used),
        labels=tuple(
            blocks.Label(_middle(gap, scale), tops[0] - 100.0 * 3 / height, _label(gap), side="within")
            for gap in labelled
        ),
        table=_table(found, lanes),
    )


def _bars(lane: Lane, top: float, base: float) -> Iterator[blocks.Shape]:
    """The lane's families stacked, the whole stack first: each further one is painted over what lies above it."""
    known = {track.family: track for track in lane.tracks}
    stack = [known[family] for family in wording.FAMILY_LABELS if family in known]
    drawn = [track.levels[:CELLS] for track in stack]
    for count in range(len(stack), 0, -1):
        track = stack[count - 1]
        heights = [min(sum(levels) / 255, 1.0) for levels in zip(*drawn[:count], strict=False)]
        path = _staircase([max(height, _LEAST_HEIGHT) if height else 0.0 for height in heights], top, base)
        words = f"{_name(lane)}: {_what(lane, track.family)}, {format_ns(track.time_ns)}"
        yield blocks.Shape(track.family, "area", path, words)


def _staircase(heights: list[float], top: float, base: float) -> str:
    """Path of bars side by side between ``base`` and ``top``, each ``heights`` of that, 0 to 1.

    >>> _staircase([1.0, 1.0, 0.0, 0.5], 10, 20)
    'M0 20V10H50V20H75V15H100V20z'
    """
    pieces, at = [f"M0 {base:.4g}"], 0
    for height, run in groupby(round(height, 2) for height in heights):
        at += len(list(run))
        pieces.append(f"V{base - height * (base - top):.4g}H{100 * at / len(heights):.4g}")
    return "".join([*pieces, f"V{base:.4g}z"])


def _labelled(found: MedianStep, scale: Scale) -> list[Gap]:
    chosen: list[Gap] = []
    taken: list[tuple[float, float]] = []
    for gap in found.gaps:
        if len(chosen) == _MOST_LABELS or gap.end_ns - gap.start_ns < _LEAST_LABELLED * found.time_ns:
            break
        at, wide = _middle(gap, scale) / 100, len(_label(gap)) * _CHARACTER_PX / _NARROW_PX
        low, high = at - at * wide, at + (1 - at) * wide
        if all(high < left or low > right for left, right in taken):
            chosen.append(gap)
            taken.append((low, high))
    return chosen


def _label(gap: Gap) -> str:
    """The part that holds most of the gap, without its detail where that is long, and of how much if not of nearly all.

    The title of the figure and its table have the whole words.
    """
    length = gap.end_ns - gap.start_ns
    of = f" of {format_ns(length)}" if gap.part_ns < _NEARLY_ALL * length else ""
    time = f", {format_ns(gap.part_ns)}{of}"
    room = _LABEL_CHARACTERS - len(time)
    words = inert(wording.part_label(gap.part))
    return f"{words if len(words) <= room else inert(words.partition(': ')[0], room)}{time}"


def _middle(gap: Gap, scale: Scale) -> float:
    return (scale.at(gap.start_ns) + scale.at(gap.end_ns)) / 2


def _bracket(gap: Gap, scale: Scale, top: float) -> blocks.Shape:
    line = polyline([(scale.at(gap.start_ns), top - 0.5), (scale.at(gap.end_ns), top - 0.5)])
    return blocks.Shape("mark", "line", line, f"Idle from {format_ns(gap.start_ns)} to {format_ns(gap.end_ns)}")


def _title(found: MedianStep) -> str:
    which = "median traced" if found.of > 1 else "one traced"
    idle = f"idle {format_ns(found.idle_ns)}" if found.idle_ns else "never idle in the"
    state = f"the device is {idle}"
    if found.mode == "cpu":
        state = f"nothing is computed for {format_ns(found.idle_ns)}"
    of = f"of {format_ns(found.time_ns)}" if found.idle_ns or found.mode == "cpu" else format_ns(found.time_ns)
    causes = [f"{format_ns(time_ns)} {_words(part)}" for part, time_ns in _largest(found)]
    return f"In the {which} step (step {found.step}) {state} {of}{': ' if causes else ''}{wording.listed(causes)}"


def _largest(found: MedianStep) -> list[tuple[str, int]]:
    return sorted(found.causes.items(), key=lambda cause: -cause[1])[:_MOST_CAUSES]


def _words(part: str) -> str:
    """A part within a sentence.

    >>> _words("input.prep"), _words("over.python")
    ('input wait (preparing samples)', 'Python between operators')
    """
    label = inert(wording.part_label(part), _LABEL_LIMIT)
    first, colon, rest = label.partition(": ")
    return f"{within(first)}{f' ({rest})' if colon else ''}"


def _caption(found: MedianStep, sources: Mapping[str, Source]) -> Iterator[str]:
    whose = "" if found.rank is None else f" of rank {found.rank}"
    if found.of > 1:
        of = wording.plural(found.of, "traced steady step")
        yield f"n 1 of {of}{whose}: step {found.step}, closest to their median."
    else:
        yield f"n 1{whose}: step {found.step}, the only steady one that was traced."
    kinds = {lane.kind for lane in found.lanes}
    if found.mode == "gpu":
        yield "The Step lane has the colour of each part. Idle time is coloured by what the CPU was doing."
    else:
        yield "The Step lane has the colour of each part; the main thread is treated as the device."
    told = [f"{_words(part)} is {sources.get(part, 'derived')}" for part, _ in _largest(found)]
    yield f"The lanes below Step are measured{f'; in the title {wording.listed(told)}' if told else ''}."
    yield (
        f"Lanes are divided into {CELLS} pieces of {format_ns(found.time_ns / CELLS)}. "
        "A bar's height is its share of the piece; very small bars are enlarged."
    )
    if "thread" in kinds and found.mode == "gpu":
        yield (
            "Host threads show operators and runtime calls as host overhead, even where they cost nothing, and waits "
            "for the device as other. Blank means no event."
        )
    yield from _left_out(found)


def _left_out(found: MedianStep) -> Iterator[str]:
    counted = ((found.streams_left_out, "stream"), (found.threads_left_out, "host thread"))
    left = [wording.plural(count, noun) for count, noun in counted if count]
    if left:
        yield f"Less busy and not shown: {wording.listed(left)}."


def _name(lane: Lane) -> str:
    """The lane's name; of a long one the ends, for thread ids differ in their last digits."""
    name = inert(lane.name)
    return name if len(name) <= _NAME_LIMIT else f"{name[:7].rstrip()} …{name[-4:]}"


def _what(lane: Lane, family: Family) -> str:
    if lane.kind == "thread" and family == "overhead":
        return "Operators and calls"
    return "Waiting for the device" if lane.kind == "thread" and family == "other" else wording.FAMILY_LABELS[family]


def _table(found: MedianStep, lanes: tuple[Lane, ...]) -> blocks.Table:
    rows = [
        (_name(lane), _what(lane, track.family), track.time_ns)
        for lane in lanes
        for track in sorted(lane.tracks, key=lambda track: -track.time_ns)
    ]
    idle = "Device idle" if found.mode == "gpu" else "Not computing"
    rows += [(idle, inert(wording.part_label(part)), time_ns) for part, time_ns in found.causes.items()]
    gaps = found.gaps[:_MOST_GAPS]
    rows += [
        (
            f"Gap at {format_ns(gap.start_ns)}",
            f"{inert(wording.part_label(gap.part))}, {format_ns(gap.part_ns)} of it",
            gap.end_ns - gap.start_ns,
        )
        for gap in gaps
    ]
    left = found.gap_count - len(gaps)
    return blocks.Table(
        "The lanes, the idle time by cause, and the longest gaps",
        ("Lane", "What", "Time", "Share of the step"),
        tuple(
            (name, what, format_ns(time_ns), wording.share_text(time_ns / found.time_ns))
            for name, what, time_ns in rows
        ),
        2,
        more=f"{wording.plural(left, 'shorter gap')} {'is' if left == 1 else 'are'} left out." if left > 0 else "",
    )


SECTIONS = {20: timeline, 30: section}
