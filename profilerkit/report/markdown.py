"""Report to Markdown for a pull request: at most 6,000 bytes, whatever the report holds."""

import re
from collections.abc import Iterator, Sequence

from profilerkit.model.report import Report
from profilerkit.report.findings import evidence_in_words
from profilerkit.report.inert import SENTENCE_LIMIT, clip
from profilerkit.report.markdown_text import LIMIT_BYTES, fitted, plain, prose, size, table, text_bar
from profilerkit.report.records import Card, Fact, View
from profilerkit.report.view import build

#: Finds the comment to update on the next run.
MARKER = "<!-- profilerkit-report -->"

# Room for the closing tags and the line that says what was left out.
_RESERVE_BYTES = 120
# How many characters a sentence keeps, and whether evidence is told: the first that fits is used. What this package
# says fits whole, at worst without its evidence; a recording may hold longer text.
_HEADS = ((SENTENCE_LIMIT, True), (SENTENCE_LIMIT, False), (200, True), (100, True), (50, True))
_CODE_LINES = 12
_LEDGER_ROWS = 8
_COST_ROWS = 3


def _fence(code: str) -> list[str]:
    longest = max((len(run) for run in re.findall(r"`+", code)), default=0)
    fence = "`" * max(3, longest + 1)
    return [f"{fence}python", *code.splitlines(), fence]


def _change(number: int, card: Card, limit: int, *, with_evidence: bool) -> list[str]:
    told = f" Evidence: {prose(evidence_in_words(card), limit)}" if with_evidence else ""
    saving = f"est. saving **{plain(card.saving)}**, " if card.saving else ""
    saving = saving or (f"est. **{plain(card.throughput)}**, " if card.throughput else "")
    probed = f" Probed: {prose(card.probed, limit)}" if card.probed else ""
    return [
        f"{number}. {card.shape} **{prose(card.title, limit)}** {plain(card.rule)}<br>",
        f"   {saving}confidence {card.confidence}. {prose(card.fix, limit)}{probed}{told}",
    ]


def _head(view: View, limit: int, *, with_evidence: bool = True) -> list[str]:
    """What is never left out: verdict, four numbers, top changes."""
    lines = [
        MARKER,
        f"**{view.kind.shape} {plain(clip(view.kind.text, limit))}** · {plain(clip(view.run_name, min(limit, 80)))}",
        "",
        f"### {prose(view.headline, limit)}",
        "",
        *(f"**{plain(text)}**<br>" for text in view.limits),
        prose(view.consequence, limit),
        *([f"<br>{plain(view.wall.first)}"] if view.wall.first else []),
        "",
        *table(
            ("Number", "Value", "Note"),
            [(plain(tile.label), f"**{plain(tile.value)}**", plain(clip(tile.note, limit))) for tile in view.tiles],
            ("Value",),
        ),
        "",
        f"**{plain(view.change_heading)}**",
        "",
    ]
    for number, card in enumerate(view.changes, 1):
        lines += _change(number, card, limit, with_evidence=with_evidence)
    if view.no_change:
        lines.append(plain(view.no_change))
    return lines


def _sentence(text: str) -> str:
    """Whole: where there is no room, its row goes."""
    return prose(text, SENTENCE_LIMIT)


def _parts_table(view: View) -> list[str]:
    if not view.bar:
        return [plain(view.parts_missing)]
    rows = [
        (
            segment.label,
            f"`{text_bar(segment.ratio)}`",
            segment.time,
            segment.share,
            segment.source,
            prose(segment.detail, 80),
        )
        for segment in view.bar
    ]
    lines = table(("Family", "", "Time", "Share", "Source", "Largest part"), rows, ("Time", "Share"))
    return [*lines, "", plain(view.input_missing)] if view.input_missing else lines


def _wall_lines(view: View) -> list[str]:
    rows = [
        (s.label, f"`{text_bar(s.ratio)}`", s.time, s.share, s.source, plain(clip(s.detail, 80))) for s in view.wall.bar
    ]
    header = ("Stage", "", "Time", "Share", "Source", "What")
    return [*table(header, rows, ("Time", "Share")), "", plain(view.wall.caption)]


def _cost_lines(view: View) -> list[str]:
    """Lost time by cause, what each finding gives back, and whose hours these are."""
    lines: list[str] = []
    for known in (view.cost.lost, view.cost.fixes):
        if known is not None:
            rows = [[_sentence(cell) for cell in row] for row in known.rows[:_COST_ROWS]]
            lines += [*table(known.columns, rows, known.columns[known.text_columns :]), ""]
            if len(known.rows) > _COST_ROWS:
                lines += [f"These are the largest {_COST_ROWS} of {len(known.rows)}; all are in the JSON.", ""]
    return [*lines, plain(view.cost.caption)]


def _fact_lines(facts: Sequence[Fact]) -> list[str]:
    return [
        f"- {plain(fact.label)}: {plain(fact.value)}{f' ({plain(fact.note)})' if fact.note else ''}" for fact in facts
    ]


def _details(view: View) -> Iterator[tuple[str, list[str], int]]:
    """Sections in order of use: summary, lines, and how many lines at least make sense (a table's head and a row)."""
    yield "Where the step goes", _parts_table(view), 3
    for name, logged in (("GPUs in the logs", view.logs.devices), ("Memory snapshots", view.logs.snapshots)):
        if logged is not None:
            shown = [[plain(cell) for cell in row] for row in logged.rows]
            yield name, table(logged.columns, shown, logged.columns[logged.text_columns :]), 3
    if view.wall.title:
        yield f"The whole run. {view.wall.title}", _wall_lines(view), 3
    if view.cost.title:
        yield f"Lost time. {view.cost.title}", _cost_lines(view), 3
    if view.waiting:
        yield "Who waits for whom", [f"- {_sentence(line)}" for line in view.waiting], 1
    if view.ledger is not None:
        numbers = view.ledger.columns[view.ledger.text_columns :]
        shown = [[plain(cell) for cell in row] for row in view.ledger.rows[:_LEDGER_ROWS]]
        yield "Waiting by rank", table(view.ledger.columns, shown, numbers), 3
    for card in view.changes:
        if card.code and len(card.code.splitlines()) <= _CODE_LINES:
            yield f"Code for {card.rule}", _fence(card.code), 10_000
    if view.probes.facts:
        yield "Probes in the run", [*_fact_lines(view.probes.facts), "", plain(view.probes.caption)], 1
    if view.waterfall.table is not None:
        known = view.waterfall.table
        shown = [[_sentence(cell) for cell in row] for row in known.rows]
        numbers = known.columns[known.text_columns :]
        lines = [*table(known.columns, shown, numbers), "", plain(view.waterfall.caption)]
        yield view.waterfall.title, lines, 3
    if view.others:
        rows = [(other.bound, other.state, other.share, other.saving, _sentence(other.reason)) for other in view.others]
        yield (
            "Why not the others",
            table(("Bound", "Result", "Share", "Best saving", "Reason"), rows, ("Share", "Best saving")),
            3,
        )
    rest = [card for card in view.cards if card not in view.changes]
    if rest:
        titles = [f"{card.shape} {_sentence(card.title)} {plain(card.rule)}" for card in rest]
        gains = [card.gain or card.throughput or "not stated" for card in rest]
        cells = list(zip(titles, gains, strict=True))
        yield f"Other findings ({len(rest)})", table(("Finding", "Saving"), cells, ("Saving",)), 3
    yield from _of_the_process(view)
    yield "Trust", [*(f"- {_sentence(note)}" for note in view.notes), *_fact_lines(view.trust)], 1
    if view.top_kernels:
        kernels = [[prose(cell, 80) for cell in row] for row in view.top_kernels.rows]
        numbers = view.top_kernels.columns[view.top_kernels.text_columns :]
        caption = [plain(view.top_kernels.caption), ""] if view.top_kernels.caption else []
        yield "Largest kernels", [*caption, *table(view.top_kernels.columns, kernels, numbers)], len(caption) + 3
    blind = [row for group in view.outcomes if group.status in {"missing_data", "error"} for row in group.rows]
    if blind:
        lines = [f"- {plain(row.rule)} {_sentence(row.summary)}: {_sentence(row.hint or row.reason)}" for row in blind]
        yield f"Could not run ({len(blind)})", lines, 1


def _of_the_process(view: View) -> Iterator[tuple[str, list[str], int]]:
    """Its loader's workers and its memory."""
    if view.workers.parts is not None:
        parts = [[plain(cell) for cell in row] for row in view.workers.parts.rows]
        batch = table(view.workers.parts.columns, parts, ("Time", "Share"))
        yield "Inside the loader's workers", [*batch, "", *_fact_lines(view.workers.facts)], 3
    if view.oom.facts:
        yield "Out of memory", _fact_lines(view.oom.facts), 1
    if view.memory.facts:
        yield "Memory", _fact_lines(view.memory.facts), 1


def render(report: Report) -> str:
    """The report as Markdown of at most 6,000 bytes: tables lose rows, sentences stay whole."""
    view = build(report)
    heads = (_head(view, limit, with_evidence=told) for limit, told in _HEADS)
    lines = next((head for head in heads if size(head) <= LIMIT_BYTES - _RESERVE_BYTES), None)
    if lines is None:
        lines = _head(view, _HEADS[-1][0])[:4]
    footer = ["", f"<sub>{plain(view.rule_count)} Made by profilerkit, {plain(view.created)}.</sub>"]
    for summary, body, least in _details(view):
        frame = ["", f"<details><summary>{plain(summary)}</summary>", "", "", "</details>"]
        room = LIMIT_BYTES - _RESERVE_BYTES - size(lines) - size(frame) - size(footer)
        shown = fitted(body, least, room)
        if shown:
            lines += [*frame[:3], *shown, *frame[3:]]
    if size(lines) + size(footer) <= LIMIT_BYTES:
        lines += footer
    return "\n".join(lines) + "\n"
