"""Diff to Markdown for a pull request: at most 6,000 bytes, whatever the recordings hold."""

from collections.abc import Sequence

from profilerkit.model.diff import Diff
from profilerkit.model.gate import Gate
from profilerkit.report.diff_tables import KERNELS, gate_table
from profilerkit.report.diff_view import DiffView, build
from profilerkit.report.inert import clip
from profilerkit.report.markdown_text import LIMIT_BYTES, fitted, plain, prose, size, table, text_bar
from profilerkit.report.records import Table

#: Finds the comment to update on the next run.
MARKER = "<!-- profilerkit-diff -->"
GATES_MARKER = "<!-- profilerkit-check -->"

_RESERVE_BYTES = 60
# How many characters a name or sentence keeps; the first limit that fits is used.
_TEXT_LIMITS = (400, 160, 60)


def render(diff: Diff) -> str:
    """The comparison as Markdown of at most 6,000 bytes: tables lose rows, sentences stay whole."""
    view = build(diff)
    heads = (_head(view, limit) for limit in _TEXT_LIMITS)
    lines = next((head for head in heads if size(head) <= LIMIT_BYTES // 2), None) or _head(view, _TEXT_LIMITS[-1])[:6]
    footer = ["", f"<sub>Made by profilerkit, {plain(view.created)}.</sub>"]
    sections = [
        ("Spans", _rows(view.spans), True),
        ("What holds the memory", _rows(view.memory), True),
        ("Gates", _rows(view.gates), True),
        ("Fixes: predicted and measured", _rows(view.fixes), True),
        ("What is different", _rows(view.differences), False),
        ("What limits this comparison", [f"- {prose(note, 400)}" for note in view.notes], False),
        ("What moved", _rows(view.parts), False),
        (KERNELS, _rows(view.kernels), False),
        ("Findings", [*_rows(view.findings), *(["", plain(view.unchanged)] if view.unchanged else [])], False),
    ]
    for title, body, is_open in sections:
        if not body:
            continue
        frame = [f"**{title}**", "", ""] if is_open else _folded(title)
        room = LIMIT_BYTES - _RESERVE_BYTES - size(lines) - size(frame) - size(footer)
        shown = fitted(body, min(3, len(body)), room)
        if shown:
            lines += ["", *frame[:2], *shown] if is_open else [*frame[:3], *shown, *frame[3:]]
    return "\n".join([*lines, *footer]) + "\n"


def render_gates(name: str, headline: str, gates: Sequence[Gate]) -> str:
    """The gates of one run as Markdown of at most 6,000 bytes.

    Args:
        name: of the run.
        headline: its verdict.
        gates: what was asked and found.
    """
    failed = sum(gate.status == "failed" for gate in gates)
    word = f"{failed} of {len(gates)} budgets exceeded" if failed else "Within budget"
    lines = [GATES_MARKER, f"### {word}: {plain(clip(name, 80))}", "", prose(headline, 400), ""]
    body = _rows(gate_table(gates))
    return "\n".join([*lines, *fitted(body, min(3, len(body)), LIMIT_BYTES - size(lines) - _RESERVE_BYTES)]) + "\n"


def _head(view: DiffView, limit: int) -> list[str]:
    tiles = [(plain(tile.label), f"**{plain(tile.value)}**", plain(clip(tile.note, limit))) for tile in view.tiles]
    bars = [f"- {bar.label}, {bar.time}: `{text_bar(bar.ratio)}`" for bar in view.bars]
    return [
        MARKER,
        f"**{view.shape} {view.word}** · {plain(clip(view.names, limit))}",
        "",
        prose(view.different, limit),
        "",
        f"### {prose(view.headline, limit)}",
        "",
        *([prose(view.typical, limit), ""] if view.typical else []),
        *table(("Number", "Value", "Note"), tiles, ("Value",)),
        *(["", *bars] if bars else []),
    ]


def _rows(known: Table | None) -> list[str]:
    if known is None:
        return []
    cells = [[prose(cell, 160) for cell in row] for row in known.rows]
    return table(known.columns, cells, known.columns[known.text_columns :])


def _folded(title: str) -> list[str]:
    return ["", f"<details><summary>{plain(title)}</summary>", "", "", "</details>"]
