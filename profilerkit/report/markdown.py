"""Report to Markdown for a pull request: at most 6,000 bytes, whatever the report holds."""

import re
from collections.abc import Iterator, Sequence

from profilerkit.model.report import Report
from profilerkit.report.findings import evidence_in_words
from profilerkit.report.inert import clip, code_spans
from profilerkit.report.records import Card, Fact, View
from profilerkit.report.view import build

LIMIT_BYTES = 6_000
#: Finds the comment to update on the next run.
MARKER = "<!-- profilerkit-report -->"

_BAR_CELLS = 20
# Room for the closing tags and the line that says what was left out.
_RESERVE_BYTES = 120
# How many characters a name or sentence keeps; the first limit that fits is used. Ordinary text never meets one.
_TEXT_LIMITS = (600, 200, 100, 50)
_CODE_LINES = 12
_LEDGER_ROWS = 8

_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "|": "&#124;", "@": "@\u200b"}
_ESCAPED = re.compile(r"[\\`*_\[\]~#$]")


def _plain(text: str) -> str:
    """Text that Markdown, HTML, tables, mentions and automatic links leave alone."""
    text = "".join(_ENTITIES.get(char, char) for char in text)
    # Entities contain "#": escape what Markdown reads only where no entity stands.
    pieces = re.split(r"(&#?\w+;)", text)
    escaped = "".join(piece if index % 2 else _ESCAPED.sub(r"\\\g<0>", piece) for index, piece in enumerate(pieces))
    return escaped.replace("://", "&#58;//").replace("www.", "www&#46;")


def _code(text: str) -> str:
    """A code span; a pipe would end a table cell even inside one, so such text is written plain."""
    if not text.strip() or "|" in text or "`" in text:
        return _plain(text)
    return f"`{text}`"


def _prose(text: str, limit: int) -> str:
    return "".join(_code(piece) if is_code else _plain(piece) for is_code, piece in code_spans(clip(text, limit)))


def _table(header: Sequence[str], rows: Sequence[Sequence[str]], numbers: Sequence[str]) -> list[str]:
    """Lines of a table; the columns named in ``numbers`` stand right."""
    rule = ["--:" if name in numbers else ":--" for name in header]
    return [f"| {' | '.join(cells)} |" for cells in (header, rule, *rows)]


def _fence(code: str) -> list[str]:
    longest = max((len(run) for run in re.findall(r"`+", code)), default=0)
    fence = "`" * max(3, longest + 1)
    return [f"{fence}python", *code.splitlines(), fence]


def _change(number: int, card: Card, limit: int) -> list[str]:
    told = _prose(evidence_in_words(card), limit)
    saving = f"est. saving **{_plain(card.saving)}**, " if card.saving else ""
    return [
        f"{number}. {card.shape} **{_prose(card.title, limit)}** {_plain(card.rule)}<br>",
        f"   {saving}confidence {card.confidence}. {_prose(card.fix, limit)} Evidence: {told}",
    ]


def _head(view: View, limit: int) -> list[str]:
    """What is never left out: verdict, four numbers, top changes."""
    lines = [
        MARKER,
        f"**{view.kind.shape} {_plain(clip(view.kind.text, limit))}** · {_plain(clip(view.run_name, min(limit, 80)))}",
        "",
        f"### {_prose(view.headline, limit)}",
        "",
        *(f"**{_plain(text)}**<br>" for text in view.limits),
        _prose(view.consequence, limit),
        *([f"<br>{_plain(view.wall.first)}"] if view.wall.first else []),
        "",
        *_table(
            ("Number", "Value", "Note"),
            [(_plain(tile.label), f"**{_plain(tile.value)}**", _plain(clip(tile.note, limit))) for tile in view.tiles],
            ("Value",),
        ),
        "",
        f"**{_plain(view.change_heading)}**",
        "",
    ]
    for number, card in enumerate(view.changes, 1):
        lines += _change(number, card, limit)
    if view.no_change:
        lines.append(_plain(view.no_change))
    return lines


def _text_bar(ratio: float) -> str:
    filled = round(ratio * _BAR_CELLS)
    return "█" * filled + "░" * (_BAR_CELLS - filled)


def _parts_table(view: View) -> list[str]:
    if not view.bar:
        return [_plain(view.parts_missing)]
    rows = [
        (
            segment.label,
            f"`{_text_bar(segment.ratio)}`",
            segment.time,
            segment.share,
            segment.source,
            _prose(segment.detail, 80),
        )
        for segment in view.bar
    ]
    table = _table(("Family", "", "Time", "Share", "Source", "Largest part"), rows, ("Time", "Share"))
    return [*table, "", _plain(view.input_missing)] if view.input_missing else table


def _wall_lines(view: View) -> list[str]:
    rows = [
        (s.label, f"`{_text_bar(s.ratio)}`", s.time, s.share, s.source, _plain(clip(s.detail, 80)))
        for s in view.wall.bar
    ]
    header = ("Stage", "", "Time", "Share", "Source", "What")
    return [*_table(header, rows, ("Time", "Share")), "", _plain(view.wall.caption)]


def _fact_lines(facts: Sequence[Fact]) -> list[str]:
    return [
        f"- {_plain(fact.label)}: {_plain(fact.value)}{f' ({_plain(fact.note)})' if fact.note else ''}"
        for fact in facts
    ]


def _details(view: View) -> Iterator[tuple[str, list[str], int]]:
    """Sections in order of use: summary, lines, and how many lines at least make sense (a table's head and a row)."""
    yield "Where the step goes", _parts_table(view), 3
    if view.wall.title:
        yield f"The whole run. {view.wall.title}", _wall_lines(view), 3
    if view.waiting:
        yield "Who waits for whom", [f"- {_prose(line, 300)}" for line in view.waiting], 1
    if view.ledger is not None:
        numbers = view.ledger.columns[view.ledger.text_columns :]
        shown = [[_plain(cell) for cell in row] for row in view.ledger.rows[:_LEDGER_ROWS]]
        yield "Waiting by rank", _table(view.ledger.columns, shown, numbers), 3
    for card in view.changes:
        if card.code and len(card.code.splitlines()) <= _CODE_LINES:
            yield f"Code for {card.rule}", _fence(card.code), 10_000
    if view.others:
        rows = [
            (other.bound, other.state, other.share, other.saving, _prose(other.reason, 160)) for other in view.others
        ]
        yield (
            "Why not the others",
            _table(("Bound", "Result", "Share", "Best saving", "Reason"), rows, ("Share", "Best saving")),
            3,
        )
    rest = [card for card in view.cards if card not in view.changes]
    if rest:
        cells = [
            (f"{card.shape} {_prose(card.title, 100)} {_plain(card.rule)}", card.gain or "not stated") for card in rest
        ]
        yield f"Other findings ({len(rest)})", _table(("Finding", "Saving"), cells, ("Saving",)), 3
    blind = [row for group in view.outcomes if group.status in {"missing_data", "error"} for row in group.rows]
    if blind:
        lines = [
            f"- {_plain(row.rule)} {_prose(row.summary, 120)}: {_prose(row.hint or row.reason, 160)}" for row in blind
        ]
        yield f"Could not run ({len(blind)})", lines, 1
    if view.workers.parts is not None:
        parts = [[_plain(cell) for cell in row] for row in view.workers.parts.rows]
        batch = _table(view.workers.parts.columns, parts, ("Time", "Share"))
        yield "Inside the loader's workers", [*batch, "", *_fact_lines(view.workers.facts)], 3
    if view.oom.facts:
        yield "Out of memory", _fact_lines(view.oom.facts), 1
    if view.memory.facts:
        yield "Memory", _fact_lines(view.memory.facts), 1
    yield "Trust", [*(f"- {_prose(note, 240)}" for note in view.notes), *_fact_lines(view.trust)], 1
    if view.top_kernels:
        kernels = [[_prose(cell, 80) for cell in row] for row in view.top_kernels.rows]
        numbers = view.top_kernels.columns[view.top_kernels.text_columns :]
        caption = [_plain(view.top_kernels.caption), ""] if view.top_kernels.caption else []
        yield "Largest kernels", [*caption, *_table(view.top_kernels.columns, kernels, numbers)], len(caption) + 3


def _size(lines: Sequence[str]) -> int:
    return sum(len(line.encode("utf-8", "replace")) + 1 for line in lines)


def _fitted(lines: list[str], least: int, room: int) -> list[str]:
    """As many whole lines as fit, and how many are missing; nothing when fewer than ``least`` fit."""
    kept: list[str] = []
    for line in lines:
        if _size([*kept, line]) > room:
            break
        kept.append(line)
    if len(kept) == len(lines):
        return kept
    if len(kept) < least:
        return []
    return [*kept, "", f"{len(lines) - len(kept)} more, left out for want of room."]


def render(report: Report) -> str:
    """The report as Markdown of at most 6,000 bytes: tables lose rows, sentences stay whole."""
    view = build(report)
    heads = (_head(view, limit) for limit in _TEXT_LIMITS)
    lines = next((head for head in heads if _size(head) <= LIMIT_BYTES - _RESERVE_BYTES), None)
    if lines is None:
        lines = _head(view, _TEXT_LIMITS[-1])[:4]
    footer = ["", f"<sub>{_plain(view.rule_count)} Made by profilerkit, {_plain(view.created)}.</sub>"]
    for summary, body, least in _details(view):
        frame = ["", f"<details><summary>{_plain(summary)}</summary>", "", "", "</details>"]
        room = LIMIT_BYTES - _RESERVE_BYTES - _size(lines) - _size(frame) - _size(footer)
        fitted = _fitted(body, least, room)
        if fitted:
            lines += [*frame[:3], *fitted, *frame[3:]]
    if _size(lines) + _size(footer) <= LIMIT_BYTES:
        lines += footer
    return "\n".join(lines) + "\n"
