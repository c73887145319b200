"""Document to text for a terminal: at most ``width`` columns, plain ASCII when asked, colour never the only carrier."""

from collections.abc import Sequence

from profilerkit.model.diff import Diff
from profilerkit.model.gate import Gate
from profilerkit.model.report import Report
from profilerkit.report import blocks as b
from profilerkit.report.diff_document import document_of_diff
from profilerkit.report.diff_tables import gate_table
from profilerkit.report.findings import first_sentence
from profilerkit.report.inert import clip
from profilerkit.report.page import NARROW, STYLES, Page, bar
from profilerkit.report.sections import document
from profilerkit.report.wording import cell_text, segment_text

#: Fixes on the first screen, the lines of code of each, and the lines against the headline.
_FIXES, _CODE_LINES, _LIMITS = 3, 2, 2
#: Rows of a table, and characters of a name in it.
_ROWS, _NAME = 12, 35
#: Characters of a title that fits into a line or two.
_TITLE = 150


def render(
    report: Report, *, width: int = 80, colour: bool = False, ascii_only: bool = False, verbose: bool = False
) -> str:
    """The report as text of at most 24 lines of 80 columns; with ``verbose`` all its sections.

    Args:
        report: what to show.
        width: columns; below 40 the text is set for 40.
        colour: add ANSI colours; shapes and words carry the same meaning.
        ascii_only: print nothing outside ASCII.
        verbose: add the sections of the page.
    """
    made = document(report)
    page = Page(width, colour, ascii_only)
    _first(page, made.first)
    for number, found in enumerate(made.first.fixes[:_FIXES], start=1):
        page.line(
            (f"{number}. ", "bold"),
            (_plain(first_sentence(found.fix), 110), "bold"),
            (f" ({found.saves})" if found.saves else "", ""),
        )
        for line in (found.code.text.splitlines() if found.code else [])[:_CODE_LINES]:
            page.line((clip(line, 2 * page.width - 8), "cyan"), indent=3)
        if found.where:
            page.line((f"at {_plain(found.where)}", ""), indent=3)
    if not made.first.fixes and made.first.advice:
        page.line((_plain(made.first.advice, 300), "bold"))
        if made.first.because:
            page.line((_plain(made.first.because, 300), ""))
        if made.first.command:
            page.line((made.first.command, "cyan"), indent=3)
    if verbose:
        _sections(page, made)
    return page.text()


def render_diff(diff: Diff, *, width: int = 80, colour: bool = False, ascii_only: bool = False) -> str:
    """The comparison as text; its arguments are those of ``render``."""
    made = document_of_diff(diff)
    page = Page(width, colour, ascii_only)
    _first(page, made.first)
    _sections(page, made)
    return page.text()


def render_gates(gates: Sequence[Gate], *, width: int = 80, colour: bool = False, ascii_only: bool = False) -> str:
    """Only the gates, as text: what ``profilerkit check`` prints."""
    page, table = Page(width, colour, ascii_only), gate_table(gates)
    if table is not None:
        _table(page, table, len(gates))
    return page.text()


def _plain(text: str, limit: int = 4_000) -> str:
    """Text without its backticks."""
    plain = cell_text(text).replace("`", "")
    return plain if len(plain) <= limit else f"{plain[: limit - 1]}…"


def _first(page: Page, first: b.First) -> None:
    page.line((_plain(first.about, page.width), "dim"))
    if first.lead:
        page.line((_plain(first.lead), ""))
    sure = f" · confidence {first.confidence}" if first.confidence else ""
    kind = f" · {first.kind}" if first.kind else ""
    page.line((f"{first.shape} {first.word}", STYLES[first.tone]), (f"{kind}{sure}", ""))
    page.line((_plain(first.headline, _TITLE), "bold"))
    for one in first.bars:
        if len(first.bars) > 1:
            page.line((one.caption, ""))
        bar(page, one.segments, max(round(page.width * one.width), 1))
    for one in first.bars[-1:]:
        names = [f"{page.fill(s)} {segment_text(s)}" for s in one.segments]
        page.line((" · ".join(names), "dim"))
    if first.missing:
        page.line((first.missing, "dim"))
    for line in first.lines[:_LIMITS]:
        page.line((_plain(line, 2 * page.width), "yellow"))


def _sections(page: Page, made: b.Document) -> None:
    for section in made.sections:
        page.blank()
        page.line((_plain(section.title), "bold"), (f" · {_plain(section.summary)}" if section.summary else "", "dim"))
        for block in section.blocks:
            _block(page, block)


def _block(page: Page, block: b.Block) -> None:
    """Write any block; a chart is shown by its title and table."""
    if isinstance(block, b.Text):
        page.line(
            (
                " ".join("".join(_plain(cell_text(piece)) for piece in block.pieces).split()),
                "dim" if block.style == "note" else "",
            )
        )
    elif isinstance(block, b.Heading):
        page.line((_plain(block.text), "bold"))
    elif isinstance(block, b.Facts):
        for fact in block.rows:
            note = f" · {fact.note}" if fact.note else ""
            page.line((f"{fact.label}: ", ""), (cell_text(fact.value), "bold"), (note, "dim"))
    elif isinstance(block, b.Table):
        _table(page, block, _ROWS)
    elif isinstance(block, b.Bar):
        bar(page, block.segments, max(round(page.width * block.width), 1))
        page.line((cell_text(block), "dim"))
    elif isinstance(block, b.Code):
        for line in block.text.splitlines():
            page.line((line, "cyan"), indent=3)
    elif isinstance(block, b.Chart):
        page.line((_plain(block.title), ""))
        _table(page, block.table, _ROWS)
    elif isinstance(block, b.Figure):
        page.line((_plain(block.title), ""))
        if block.static:
            _block(page, block.static)
    else:
        _finding(page, block)


def _finding(page: Page, found: b.Finding, also: str = "") -> None:
    page.line((f"{also}{_plain(found.title)} ", "bold"), (found.rule, "dim"))
    facts = (found.saves, f"confidence {found.confidence}", found.scope, found.method)
    page.line((" · ".join(fact for fact in facts if fact), "dim"), indent=3)
    for label, text in found.reasons:
        if text:
            page.line((f"{label}: {_plain(text)}", ""), indent=3)
        if label == "Change" and found.code:
            for line in found.code.text.splitlines():
                page.line((line, "cyan"), indent=6)
    for row in found.evidence:
        page.line((f"{row.id} {row.label}: {row.value}", "dim"), indent=3)
    for other in found.others:
        _finding(page, other, "Or: ")


def _table(page: Page, table: b.Table, limit: int) -> None:
    """A table, or in few columns each row as a sentence."""
    if table.title:
        page.line((table.title, "bold"))
    rows = [
        [cell_text(cell, _NAME).replace("`", "").replace("\u00a0", " ") for cell in row] for row in table.rows[:limit]
    ]
    if page.width < NARROW:
        for row in rows:
            page.line((" · ".join(cell for cell in row if cell), ""))
    else:
        columns = [(name, index >= table.text_columns) for index, name in enumerate(table.columns)]
        page.table(columns, [[(cell, "") for cell in row] for row in rows])
    if len(table.rows) > limit:
        page.line((f"{len(table.rows) - limit} more.", "dim"))
