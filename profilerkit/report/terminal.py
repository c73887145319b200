"""Report to text for a terminal: at most ``width`` columns, plain ASCII when asked, colour never the only carrier."""

from collections.abc import Sequence
from io import StringIO

from profilerkit.model.report import Report
from profilerkit.model.step import Family
from profilerkit.report.findings import evidence_in_words
from profilerkit.report.inert import to_ascii
from profilerkit.report.records import Card, Segment, Tone, View
from profilerkit.report.view import build

MIN_WIDTH = 40
# In fewer columns a table with sentences in it cannot be read.
_NARROW = 60
# Ranks shown of those that cause waiting.
_LEDGER_ROWS = 8
# Findings named of those that are not among the top changes.
_OTHER_FINDINGS = 8

_STYLES: dict[Tone, str] = {
    "high": "bold red",
    "medium": "bold yellow",
    "low": "bold blue",
    "good": "bold green",
    "info": "bold",
}
_FILL_STYLES: dict[Family, str] = {
    "input": "yellow",
    "memory": "green",
    "communication": "red",
    "compute": "blue",
    "overhead": "magenta",
    "other": "bright_black",
}
# The fill tells the family without colour.
_FILLS: dict[Family, str] = {
    "input": "█",
    "memory": "▒",
    "communication": "▚",
    "compute": "▓",
    "overhead": "▞",
    "other": "░",
}
_ASCII_FILLS: dict[Family, str] = {
    "input": "#",
    "memory": "+",
    "communication": "%",
    "compute": "=",
    "overhead": "o",
    "other": ".",
}


class _Page:
    """A rich console that writes to memory; text reaches it as ``Text``, so markup in names is inert."""

    def __init__(self, width: int, colour: bool, ascii_only: bool) -> None:
        from rich.console import Console

        self.width = max(MIN_WIDTH, width)
        self.ascii_only = ascii_only
        self._buffer = StringIO()
        # An empty environment keeps COLUMNS, NO_COLOR and FORCE_COLOR from overruling the caller.
        self.console: Console = Console(
            file=self._buffer,
            width=self.width,
            force_terminal=colour,
            color_system="standard" if colour else None,
            markup=False,
            emoji=False,
            highlight=False,
            legacy_windows=False,
            _environ={},
        )

    def clean(self, text: str) -> str:
        """The text in the character set of the stream."""
        return to_ascii(text) if self.ascii_only else text

    def line(self, *pieces: tuple[str, str], indent: int = 0) -> None:
        """Pieces of (text, style) as one paragraph, wrapped and indented."""
        from rich.padding import Padding
        from rich.text import Text

        text = Text(overflow="fold")
        for piece, style in pieces:
            text.append(self.clean(piece), style)
        self.console.print(Padding(text, (0, 0, 0, indent)))

    def blank(self) -> None:
        """An empty line."""
        self.console.print()

    def table(self, columns: Sequence[tuple[str, bool]], rows: Sequence[Sequence[tuple[str, str]]]) -> None:
        """A table without lines; a column is its name and whether it holds numbers."""
        from rich.table import Table
        from rich.text import Text

        table: Table = Table(box=None, show_edge=False, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
        for name, is_number in columns:
            table.add_column(name, justify="right" if is_number else "left", no_wrap=is_number, overflow="fold")
        for row in rows:
            table.add_row(*(Text(self.clean(text), style, overflow="fold") for text, style in row))
        self.console.print(table)

    def text(self) -> str:
        """Everything printed so far, without blanks at line ends."""
        return "\n".join(line.rstrip() for line in self._buffer.getvalue().splitlines()) + "\n"


def _cells(ratios: Sequence[float], width: int) -> list[int]:
    """Whole cells per segment that sum to ``width``; a segment that exists keeps one.

    >>> _cells([0.5, 0.495, 0.005], 10)
    [5, 4, 1]
    """
    cells = [max(1, int(ratio * width)) for ratio in ratios]
    by_error = sorted(range(len(cells)), key=lambda index: cells[index] - ratios[index] * width)
    for index in by_error[: max(0, width - sum(cells))]:
        cells[index] += 1
    while sum(cells) > width:
        cells[cells.index(max(cells))] -= 1
    return cells


def _bar(page: _Page, segments: Sequence[Segment]) -> None:
    fills = _ASCII_FILLS if page.ascii_only else _FILLS
    segments = [segment for segment in segments if segment.ratio]
    cells = _cells([segment.ratio for segment in segments], page.width)
    page.line(*((fills[s.family] * n, _FILL_STYLES[s.family]) for s, n in zip(segments, cells, strict=True)))


def _verdict(page: _Page, view: View) -> None:
    page.line((view.run_name, "dim"))
    page.line(
        (f"{view.kind.shape} {view.kind.word}", _STYLES[view.kind.tone]), (view.kind.text[len(view.kind.word) :], "")
    )
    page.line((view.headline.replace("`", ""), "bold"))
    for limit in view.limits:
        page.line((limit, "yellow"))
    page.line((view.consequence.replace("`", ""), ""))
    page.blank()
    if page.width < _NARROW:
        for tile in view.tiles:
            page.line((f"{tile.label}: ", ""), (tile.value, "bold"), (f" · {tile.note}" if tile.note else "", "dim"))
        return
    columns = (("Number", False), ("Value", True), ("Note", False))
    page.table(columns, [((t.label, ""), (t.value, "bold"), (t.note, "dim")) for t in view.tiles])


def _parts(page: _Page, view: View) -> None:
    page.blank()
    page.line(("Where the step goes", "bold"))
    if not view.bar:
        page.line((view.parts_missing, ""))
        return
    _bar(page, view.bar)
    page.line((view.bar_caption, "dim"))
    fills = _ASCII_FILLS if page.ascii_only else _FILLS
    rows = [
        ((f"{fills[part.family]} {part.label}", ""), (part.time, ""), (part.share, ""), (part.source, "dim"))
        for part in view.parts
    ]
    page.table((("Part", False), ("Time", True), ("Share", True), ("Source", False)), rows)
    if view.input_missing:
        page.line((view.input_missing, "yellow"))


def _wall(page: _Page, view: View) -> None:
    """The whole run by stage."""
    if not view.wall.title:
        return
    page.blank()
    page.line(("The whole run", "bold"))
    page.line((view.wall.title, ""))
    _bar(page, view.wall.bar)
    page.line((view.wall.caption, "dim"))
    fills = _ASCII_FILLS if page.ascii_only else _FILLS
    columns = [("Stage", False), ("Time", True), ("Share", True), ("Source", False)]
    rows = [
        [(f"{fills[s.family]} {s.label}", ""), (s.time, ""), (s.share, ""), (s.source, "dim")] for s in view.wall.bar
    ]
    if page.width >= _NARROW:
        columns.append(("What", False))
        rows = [[*row, (s.detail, "dim")] for row, s in zip(rows, view.wall.bar, strict=True)]
    page.table(columns, rows)


def _measured(page: _Page, view: View) -> None:
    """What the figures of the HTML report say, in a sentence each."""
    titles = [("Steps", view.steps.title), ("Memory", view.memory.title)]
    known = [(name, title) for name, title in titles if title]
    if known:
        page.blank()
    for name, title in known:
        page.line((f"{name}: ", "bold"), (title, ""))


def _change(page: _Page, number: int, card: Card) -> None:
    page.line(
        (f"{number}. {card.shape} ", _STYLES[card.tone]),
        (card.title.replace("`", ""), "bold"),
        (f"  {card.rule}", "dim"),
    )
    saving = f"Est. saving {card.saving} · " if card.saving else ""
    method = f" · {card.method}" if card.method else ""
    scope = f" · {card.scope}" if card.scope else ""
    page.line((f"{saving}confidence {card.confidence}{method}{scope}", "dim"), indent=3)
    page.line((card.fix.replace("`", ""), ""), indent=3)
    page.line((f"Evidence: {evidence_in_words(card)}", "dim"), indent=3)


def _ranks(page: _Page, view: View) -> None:
    if not view.waiting:
        return
    page.blank()
    page.line(("Who waits for whom", "bold"))
    for line in view.waiting:
        page.line((line.replace("`", ""), ""))
    if view.ledger is not None and page.width >= _NARROW:
        names = view.ledger.columns
        rows = [[(cell, "") for cell in row] for row in view.ledger.rows[:_LEDGER_ROWS]]
        page.table([(name, index >= view.ledger.text_columns) for index, name in enumerate(names)], rows)


def _changes(page: _Page, view: View) -> None:
    page.blank()
    page.line((view.change_heading, "bold"))
    for number, card in enumerate(view.changes, 1):
        _change(page, number, card)
    if view.no_change:
        page.line((view.no_change, ""))
    rest = [card for card in view.cards if card not in view.changes]
    if rest:
        page.blank()
        page.line(("Other findings" if view.changes else "Findings", "bold"))
    for card in rest[:_OTHER_FINDINGS]:
        gain = f", saving {card.gain}" if card.gain else ""
        title = card.title.replace("`", "")
        page.line((f"{card.shape} ", _STYLES[card.tone]), (title, ""), (f"{gain}  {card.rule}", "dim"))
    if len(rest) > _OTHER_FINDINGS:
        page.line((f"{len(rest) - _OTHER_FINDINGS} more.", "dim"))


def _others(page: _Page, view: View) -> None:
    if not view.others:
        return
    page.blank()
    page.line(("Why not the others", "bold"))
    if page.width < _NARROW:
        for row in view.others:
            page.line((f"{row.bound}: share {row.share}, saving {row.saving}", ""))
            page.line((row.reason.replace("`", ""), "dim"), indent=2)
        return
    rows = [
        ((row.bound, ""), (row.share, ""), (row.saving, ""), (row.reason.replace("`", ""), "dim"))
        for row in view.others
    ]
    page.table((("Bound", False), ("Share", True), ("Saving", True), ("Reason", False)), rows)


def _kernels(page: _Page, view: View) -> None:
    if view.top_kernels is None or page.width < _NARROW:
        return
    page.blank()
    page.line(("Largest kernels", "bold"))
    table = view.top_kernels
    if table.caption:
        page.line((table.caption, "dim"))
    columns = [(name, index >= table.text_columns) for index, name in enumerate(table.columns)]
    page.table(columns, [[(cell, "") for cell in row] for row in table.rows])


def _scope(page: _Page, view: View) -> None:
    page.blank()
    page.line((view.rule_count, ""), (f" {view.other_outcomes}", "dim"))
    for note in view.notes[:3]:
        page.line((note.replace("`", ""), "dim"))


def render(report: Report, *, width: int = 80, colour: bool = False, ascii_only: bool = False) -> str:
    """The report as text.

    Args:
        report: what to show.
        width: columns; below 40 the text is set for 40.
        colour: add ANSI colours; shapes, words and fills carry the same meaning.
        ascii_only: print nothing outside ASCII.
    """
    view = build(report)
    page = _Page(width, colour, ascii_only)
    _verdict(page, view)
    _parts(page, view)
    _wall(page, view)
    _kernels(page, view)
    _measured(page, view)
    _ranks(page, view)
    _changes(page, view)
    _others(page, view)
    _scope(page, view)
    return page.text()
