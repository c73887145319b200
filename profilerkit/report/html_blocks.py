"""Blocks to HTML: one function for each kind. Everything is escaped; markup is written here alone."""

import re
from collections.abc import Callable
from typing import Any

from markupsafe import Markup

from profilerkit.report import blocks
from profilerkit.report.findings import first_sentence
from profilerkit.report.inert import code_spans, inert
from profilerkit.report.wording import cell_text, segment_text, share_text, value_text

#: Characters of a kernel's name that are shown; its whole is on hover.
_NAME = 90
_LONGEST = 4_000
_NUMBERED, _NAMED = 0.1, 0.17  #: from this share on a piece of a bar has its number, and from the other one its name
#: One beside the whole has its name from here on, and its time only where there is room for both.
_NAMED_BESIDE = 0.12
_TALL_ROWS = 12
_LINES = 2  #: lines against the headline on the first screen; the others stand in the sections


#: The blank between a number and its unit, where no line may end.
_UNIT = re.compile(r"(?<=\d) (?=(?:%|[nµm]?s|[KMGT]?i?B|×)(?!\w))")


def words(text: str) -> Markup:
    """Escaped text in which paired backticks become ``<code>``, and a number stays on the line of its unit."""
    pieces = (
        Markup("<code>{}</code>").format(one) if is_code else _UNIT.sub("\u00a0", one)
        for is_code, one in code_spans(inert(text, _LONGEST))
    )
    return Markup("").join(pieces)


def _inline(piece: blocks.Cell) -> Markup:
    if isinstance(piece, blocks.Value):
        title = Markup(' title="{}"').format(piece.source) if piece.source else ""
        return Markup("<span class=v{}>{}</span>").format(title, value_text(piece))
    if isinstance(piece, blocks.Name):
        full = inert(piece.text, _LONGEST)
        kind = "code" if piece.kind in ("kernel", "code") else "span"
        return Markup('<{0} title="{1}">{2}</{0}>').format(Markup(kind), full, inert(piece.text, _NAME))  # noqa: S704
    if isinstance(piece, blocks.Bar):
        return bar(piece, is_small=True)
    return words(piece)


def bar(block: blocks.Bar, *, is_small: bool = False) -> Markup:
    """Segments side by side; narrow ones are named on hover and for listeners."""
    fills = []
    whole = max(sum(segment.ratio for segment in block.segments), 1.0)
    for segment in block.segments:
        ratio = segment.ratio / whole * block.width
        share = "" if segment.beside else share_text(segment.ratio).replace(" ", "\u00a0")
        shown = "" if is_small else _shown(segment, ratio, share)
        hover = ", ".join(piece for piece in (segment.detail, value_text(segment.time), share, segment.source) if piece)
        fills.append(
            Markup('<span class="fill {}{}" style="flex-grow:{:.4f}" title="{}: {}">{}</span>').format(
                "beside" if segment.beside else segment.family,
                " tight" if ratio < 0.14 else "",
                segment.ratio,
                segment.label,
                hover,
                shown,
            )
        )
    label = f"{block.label}: {cell_text(block)}"
    return Markup('<div class="bar{}" style="width:{:.2f}%" role="img" aria-label="{}">{}</div>').format(
        " small" if is_small else "", 100 * block.width, label, Markup("").join(fills)
    )


def _shown(segment: blocks.Segment, ratio: float, share: str) -> Markup:
    is_named = ratio >= (_NAMED_BESIDE if segment.beside else _NAMED)
    number = share if ratio >= _NUMBERED else ""
    if segment.beside:
        number = value_text(segment.time) if ratio >= _NAMED else ""
    return Markup('<span class="name">{}</span>{}').format(f"{segment.label} " if is_named else "", number)


def _names(block: blocks.Bar) -> Markup:
    rows = (
        Markup('<li><span class="swatch {}"></span>{}</li>').format(
            "beside" if segment.beside else segment.family, segment_text(segment)
        )
        for segment in block.segments
    )
    return Markup('<ul class="legend names" aria-hidden="true">{}</ul>').format(Markup("").join(rows))


def _bar_block(block: blocks.Bar) -> Markup:
    caption = Markup('<p class="caption">{}</p>').format(words(block.caption)) if block.caption else ""
    return Markup("{}{}").format(bar(block), caption)


def _text(block: blocks.Text) -> Markup:
    pieces = Markup("").join(_inline(piece) for piece in block.pieces)
    return Markup('<p class="{}">{}</p>').format(block.style, pieces)


def _heading(block: blocks.Heading) -> Markup:
    return Markup("<h3>{}</h3>").format(words(block.text))


def _facts(block: blocks.Facts) -> Markup:
    note = Markup(' <span class="muted">· {}</span>')
    rows = (
        Markup("<div><dt>{}</dt><dd>{}{}</dd></div>").format(
            fact.label, _inline(fact.value), note.format(fact.note) if fact.note else ""
        )
        for fact in block.rows
    )
    return Markup('<dl class="facts">{}</dl>').format(Markup("").join(rows))


_SHORT = 8  #: characters of a word that is not broken over lines, such as the code of a rule


def _cell(table: blocks.Table, number: int, cell: blocks.Cell) -> Markup:
    kind = "number" if number >= table.text_columns else "lead" if number == 0 else ""
    if isinstance(cell, str) and len(cell) <= _SHORT and " " not in cell:
        kind = f"{kind} short".strip()
    value = (
        Markup(' data-v="{}"').format(cell.number) if isinstance(cell, blocks.Value) and cell.number is not None else ""
    )
    return Markup('<td class="{}" data-label="{}"{}><div>{}</div></td>').format(
        kind, table.columns[number], value, _inline(cell)
    )


def _table(table: blocks.Table, *, is_twin: bool = False) -> Markup:
    label = table.title or table.caption or table.columns[0]
    head = Markup("").join(
        Markup('<th scope="col"{}>{}</th>').format(
            Markup(' class="number"') if number >= table.text_columns else "", name
        )
        for number, name in enumerate(table.columns)
    )
    rows = Markup("").join(
        Markup("<tr{}>{}</tr>").format(
            Markup(' id="{}"').format(table.anchors[number]) if table.anchors else "",
            Markup("").join(_cell(table, column, cell) for column, cell in enumerate(row)),
        )
        for number, row in enumerate(table.rows)
    )
    title = Markup("<h3>{}</h3>").format(table.title) if table.title and not is_twin else ""
    caption = Markup("<caption>{}</caption>").format(words(table.caption)) if table.caption else ""
    more = Markup('<p class="muted">{}</p>').format(table.more) if table.more else ""
    classes = "scroll" + (" tall" if len(table.rows) > _TALL_ROWS else "") + (" twin" if is_twin else "")
    return Markup(
        '{}<div class="{}" tabindex="0" role="group" aria-label="{}"><table class="{}">{}'
        "<thead><tr>{}</tr></thead><tbody>{}</tbody></table></div>{}"
    ).format(title, classes, label, "stacked sort" if table.searchable else "stacked", caption, head, rows, more)


def code(block: blocks.Code, *, is_page: bool = True) -> Markup:
    """Code to paste; the script of a page shows the button."""
    button = Markup('<button type="button" class="copy" hidden>Copy</button>') if is_page else ""
    return Markup('<div class="code">{}<pre><code>{}</code></pre></div>').format(button, block.text)


def _chart(data: blocks.Chart) -> Markup:
    legend = Markup("").join(
        Markup('<li><span class="swatch {}" aria-hidden="true"></span>{}</li>').format(colour, name)
        for colour, name in data.legend
    )
    y_ticks = Markup("").join(
        Markup('<span style="bottom:{:.2f}%">{}</span>').format(tick.at, tick.label) for tick in data.y.ticks
    )
    grid = Markup("").join(Markup('<path class="grid" d="M0 {:.2f}H100"/>').format(100 - t.at) for t in data.y.ticks)
    shapes = Markup("").join(
        Markup('<path class="{} {}" d="{}">{}</path>').format(
            shape.form, shape.colour, shape.path, Markup("<title>{}</title>").format(shape.title) if shape.title else ""
        )
        for shape in data.shapes
    )
    labels = Markup("").join(map(_label, data.labels))
    x_ticks = Markup("").join(
        Markup('<span{} style="left:{:.2f}%">{}</span>').format(
            Markup(' class="end"') if tick.before > 0.5 else "", tick.at, tick.label
        )
        for tick in data.x.ticks
    )
    return Markup(_CHART).format(  # noqa: S704 - written here
        anchor=data.anchor,
        title=words(data.title),
        legend=Markup('<ul class="legend">{}</ul>').format(legend) if legend else "",
        y=data.y.name,
        height=data.height_px,
        y_ticks=y_ticks,
        shapes=grid + shapes,
        labels=labels,
        x_ticks=x_ticks,
        x=data.x.name,
        caption=words(data.caption),
        table=_table(data.table, is_twin=True),
    )


_CHART = """<figure class="chart" id="{anchor}">
<p class="figure-title" id="{anchor}-title">{title}</p>{legend}
<p class="axis-name" aria-hidden="true">{y}</p>
<div class="box" style="height:{height}px"><div class="ticks-y" aria-hidden="true">{y_ticks}</div>
<svg viewBox="0 0 100 100" preserveAspectRatio="none" role="img" aria-labelledby="{anchor}-title">{shapes}</svg>
{labels}</div>
<div class="ticks-x" aria-hidden="true">{x_ticks}</div>
<p class="axis-name x" aria-hidden="true">{x}</p>
<figcaption class="caption">{caption}</figcaption>
</figure>{table}"""


def _label(label: blocks.Label) -> Markup:
    within = f";transform:translate(-{label.x:.2f}%,-110%)" if label.side == "within" else ""
    return Markup('<span class="label {}" aria-hidden="true" style="left:{:.2f}%;top:{:.2f}%{}">{}</span>').format(
        label.side, label.x, label.y, within, label.text
    )


def _figure(figure: blocks.Figure) -> Markup:
    static = block(figure.static) if figure.static else ""
    return Markup(
        '<figure><p class="figure-title">{}</p><div id="{}" class="plot" hidden></div></figure>'
        '<div class="static">{}</div>'
    ).format(words(figure.title), figure.anchor, static)


def _evidence(found: blocks.Finding) -> Markup:
    rows = Markup("").join(
        Markup(
            '<tr id="{}"><td class="lead" data-label="Evidence"><div>{}</div></td>'
            '<td data-label="What"><div>{}</div></td>'
            '<td class="number" data-label="Value"><div>{}{}</div></td>'
            '<td data-label="Rests on"><div>{}</div></td></tr>'
        ).format(
            row.id,
            row.id,
            row.label,
            row.value,
            Markup("").join(Markup("<small>{}</small>").format(more) for more in (row.also, row.interval) if more),
            " · ".join(piece for piece in (row.source, row.basis or "the whole recording", row.origin) if piece),
        )
        for row in found.evidence
    )
    return Markup(
        '<div class="scroll evidence" tabindex="0" role="group" aria-label="Evidence of {}">'
        '<table class="stacked"><thead><tr><th scope="col">Evidence</th><th scope="col">What</th>'
        '<th scope="col" class="number">Value</th>'
        '<th scope="col">Rests on</th></tr></thead><tbody>{}</tbody></table></div>'
    ).format(found.anchor, rows)


def _finding(found: blocks.Finding, *, is_other: bool = False) -> Markup:
    level = Markup("h4") if is_other else Markup("h3")
    facts = [found.saves, f"confidence {found.confidence}", found.scope, found.method, found.rule]
    parts = [
        Markup("<{0}>{1}{2}</{0}>").format(level, "Or: " if is_other else "", words(found.title)),
        Markup('<p class="saving">{}</p>').format(" · ".join(fact for fact in facts if fact)),
    ]
    for label, text in found.reasons:
        if text:
            parts.append(Markup('<p><span class="muted">{}:</span> {}</p>').format(label, words(text)))
        if label == "Change" and found.code:
            parts.append(code(found.code))
    parts.append(_evidence(found))
    parts += [_finding(other, is_other=True) for other in found.others]
    return Markup('<article class="card tone-{}" id="{}">{}</article>').format(
        found.tone, found.anchor, Markup("").join(parts)
    )


_WALK: dict[type, Callable[[Any], Markup]] = {
    blocks.Text: _text,
    blocks.Heading: _heading,
    blocks.Facts: _facts,
    blocks.Table: _table,
    blocks.Bar: _bar_block,
    blocks.Code: code,
    blocks.Chart: _chart,
    blocks.Figure: _figure,
    blocks.Finding: _finding,
}


def block(one: blocks.Block) -> Markup:
    """Any block."""
    return _WALK[type(one)](one)


def section(one: blocks.Section) -> Markup:
    """A folded section; paper shows those that print open."""
    return Markup(
        '<details class="section{}" id="{}"{}><summary><h2>{}</h2> <span class="about">{}</span></summary>'
        "\n{}\n</details>"
    ).format(
        " prints" if one.prints else "",
        one.id,
        Markup(" open") if one.open else "",
        words(one.title),
        words(one.summary),
        Markup("\n").join(map(block, one.blocks)),
    )


def first_screen(first: blocks.First, *, is_page: bool = True) -> Markup:
    """The first screen; in a notebook without ids and script, and of elements that no style sheet there changes."""
    lead = Markup("h1") if is_page else Markup("div")
    parts = [
        Markup('<div class="top"><span>{}</span><span>{}</span></div>').format(first.about, first.made),
        Markup('<div class="lead">{}</div>').format(words(first.lead)) if first.lead else "",
        Markup('<div class="word tone-{}"><span aria-hidden="true">{}</span> {}{}</div>').format(
            first.tone,
            first.shape,
            first.word,
            Markup('<span class="kind"> · {}</span>').format(first.kind) if first.kind else "",
        ),
        Markup('<{0}{1} class="headline">{2}</{0}>').format(
            lead, Markup(' id="headline"') if is_page else "", words(first.headline)
        ),
        *(
            Markup("{}{}").format(
                Markup('<div class="side">{}</div>').format(one.caption) if len(first.bars) > 1 else "", bar(one)
            )
            for one in first.bars
        ),
        *(_names(one) for one in first.bars[-1:] if is_page),
        Markup('<div class="missing">{}</div>').format(first.missing) if first.missing else "",
        _first_fix(first, is_page=is_page),
        Markup("").join(Markup('<div class="limit">{}</div>').format(words(line)) for line in first.lines[:_LINES]),
    ]
    return Markup('<div class="pk-first">{}</div>').format(Markup("").join(parts))


def _first_fix(first: blocks.First, *, is_page: bool) -> Markup:
    if not first.confidence:
        return Markup("")
    sure = [Markup("<span>Confidence: {}</span>").format(first.confidence)]
    if first.measure:
        sure.append(Markup("<span>Measure it: <code>{}</code></span>").format(first.measure))
    because = Markup('<div class="because">{}</div>').format(words(first.because)) if first.because else ""
    parts: list[Markup | str] = []
    for found in first.fixes[:1]:
        head = first_sentence(found.fix)
        parts = [
            Markup('<div class="do">{}</div>').format(words(f"{head}: {found.saves}" if found.saves else head)),
            because,
            code(found.code, is_page=is_page) if found.code else "",
        ]
    if not first.fixes and first.advice:
        parts = [
            Markup('<div class="do">{}</div>').format(words(first.advice)),
            because,
            code(blocks.Code(first.command), is_page=is_page) if first.command else "",
        ]
    return Markup('<div class="fix tone-{}">{}<div class="sure">{}</div></div>').format(
        first.tone, Markup("").join(parts), Markup("").join(sure)
    )
