"""Where the time goes: every part of the step, and step by step."""

from profilerkit.model.report import Report
from profilerkit.model.run import INPUT_WAIT
from profilerkit.report.blocks import Block, Section, Table, Text, Value
from profilerkit.report.breakdown import bar_caption, families_of, own_share, parts_missing
from profilerkit.report.charts.samples import sampled_strips
from profilerkit.report.charts.steps import loader_wait, steps_blocks
from profilerkit.report.wording import part_label
from profilerkit.units import format_ratio

NO_LOADER = "Input wait was not measured: no loader was seen."


def section(report: Report) -> Section | None:
    """Parts and steps; ``None`` for logs, which have neither."""
    if report.trust.mode == "logs":
        return None
    blocks: list[Block] = []
    parts = [part for own in families_of(report.breakdown).values() for part in own]
    shares = [own_share(part, report.breakdown) for part in parts]
    if parts:
        rows = tuple(
            (
                part_label(part.part),
                part.source,
                Value(part.time_ns, "ns", part.source),
                "left out" if share is None else Value(share, "ratio"),
            )
            for part, share in zip(parts, shares, strict=True)
        )
        caption = f"{bar_caption(report)}. A share is not a saving."
        if None in shares:
            caption += " Shares leave out the time that other programs took."
        blocks.append(Table(caption, ("Part", "Source", "Time", "Share"), rows, 2, title="Every part of the step"))
    else:
        blocks.append(Text.of(parts_missing(report)))
    if any(signal.name == INPUT_WAIT and signal.state == "missing" for signal in report.trust.signals):
        blocks.append(Text.of(NO_LOADER, style="warning"))
    charts = (chart for chart in (loader_wait(report), sampled_strips(report)) if chart is not None)
    blocks += [*steps_blocks(report), *charts]
    known = [(share, part) for share, part in zip(shares, parts, strict=True) if share is not None]
    share, largest = max(known, key=lambda pair: pair[0], default=(0.0, None))
    summary = f"{part_label(largest.part)}: {format_ratio(share)}" if largest else "only its length is known"
    return Section("steps", "Steps", summary, tuple(blocks))
