"""Diff to text for a terminal, in the manner of a report's."""

from collections.abc import Sequence

from profilerkit.model.change import revise
from profilerkit.model.diff import Diff
from profilerkit.model.gate import Gate
from profilerkit.report.diff_tables import KERNELS, gate_table
from profilerkit.report.diff_view import DiffView, build
from profilerkit.report.inert import inert
from profilerkit.report.page import NARROW, STYLES, Page, bar
from profilerkit.report.records import Table

#: Rows of the tables of parts and of kernels: the others moved less.
_PARTS = 6
_ROWS = 12
_LABEL_WIDTH = 8
_NAME = 35


def render(diff: Diff, *, width: int = 80, colour: bool = False, ascii_only: bool = False) -> str:
    """The comparison as text.

    Args:
        diff: what to show.
        width: columns; below 40 the text is set for 40.
        colour: add ANSI colours; words carry the same meaning.
        ascii_only: print nothing outside ASCII.
    """
    view = build(diff)
    page = Page(width, colour, ascii_only)
    page.line((view.names, "dim"))
    page.line((view.different, ""))
    page.line((f"{view.shape} {view.word}", STYLES[view.tone]))
    page.line((view.headline, "bold"))
    if view.typical:
        page.line((view.typical, ""))
    page.blank()
    for tile in view.tiles:
        page.line((f"{tile.label}: ", ""), (tile.value, "bold"), (f" · {tile.note}" if tile.note else "", "dim"))
    _bars(page, view)
    _section(page, "What is different", view.differences if view.more_differs else None)
    _section(page, "Spans", view.spans)
    _section(page, "What holds the memory", view.memory)
    _section(page, "Gates", view.gates, rows=len(diff.gates))
    _section(page, "Fixes: predicted and measured", view.fixes)
    _section(page, "What moved", view.parts, rows=_PARTS)
    _section(page, KERNELS, _one_line_each(view.kernels), rows=_PARTS)
    _section(page, "Findings", view.findings)
    if view.unchanged:
        page.line((view.unchanged, "dim"))
    if view.notes:
        page.blank()
    for note in view.notes:
        page.line((note, "dim"))
    return page.text()


def render_gates(gates: Sequence[Gate], *, width: int = 80, colour: bool = False, ascii_only: bool = False) -> str:
    """Only the gates, as text: what ``profilerkit check`` prints."""
    page = Page(width, colour, ascii_only)
    table = gate_table(gates)
    if table is not None:
        _table(page, table, len(gates))
    return page.text()


def _bars(page: Page, view: DiffView) -> None:
    if not view.bars:
        return
    page.blank()
    for side in view.bars:
        page.line((f"{side.label:<{_LABEL_WIDTH}}{side.time}", ""))
        bar(page, side.segments, max(round(page.width * side.ratio), 1))
    names = " · ".join(f"{segment.label} {segment.share}" for segment in view.bars[-1].segments)
    page.line((f"After: {names}", "dim"))


def _one_line_each(table: Table | None) -> Table | None:
    """The table with names so short that no row wraps in 80 columns."""
    return revise(table, rows=tuple((inert(row[0], _NAME), *row[1:]) for row in table.rows)) if table else None


def _section(page: Page, title: str, table: Table | None, *, rows: int = _ROWS) -> None:
    if table is None:
        return
    page.blank()
    page.line((title, "bold"))
    _table(page, table, rows)


def _table(page: Page, table: Table, limit: int) -> None:
    """A table, or in few columns each row as a sentence."""
    shown = table.rows[:limit]
    if page.width < NARROW:
        for row in shown:
            page.line((" · ".join(cell for cell in row if cell), ""))
    else:
        columns = [(name, index >= table.text_columns) for index, name in enumerate(table.columns)]
        page.table(columns, [[(cell.replace("`", ""), "") for cell in row] for row in shown])
    if len(table.rows) > limit:
        page.line((f"{len(table.rows) - limit} more.", "dim"))
