"""Document to text for a terminal: at most width columns, plain ASCII when asked, colour never the only carrier."""

from collections.abc import Sequence
from io import StringIO

from profilerkit.model import revise
from profilerkit.model.diff import Diff, Gate
from profilerkit.model.events import RawEvents
from profilerkit.model.report import Report
from profilerkit.model.step import Family
from profilerkit.model.trial import Trial
from profilerkit.report import blocks
from profilerkit.report.blocks import Segment, Tone
from profilerkit.report.findings import Anchors, evidence_row, first_sentence, numbered, require_evidence
from profilerkit.report.inert import SENTENCE_LIMIT, clip, inert, to_ascii
from profilerkit.report.sections import document
from profilerkit.report.wording import cell_text, number_text, segment_text
from profilerkit.units import format_count, format_ns

MIN_WIDTH = 40
NARROW = 60  #: in fewer columns a table with sentences in it cannot be read

STYLES: dict[Tone, str] = {
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
_BESIDE_FILL, _ASCII_BESIDE_FILL = "╌", "-"  #: the fill of a piece beside the whole


class Page:
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

    @property
    def fills(self) -> dict[Family, str]:
        """The character of each family."""
        return _ASCII_FILLS if self.ascii_only else _FILLS

    def fill(self, segment: Segment) -> str:
        """The character of a piece of a bar."""
        if segment.beside:
            return _ASCII_BESIDE_FILL if self.ascii_only else _BESIDE_FILL
        return self.fills[segment.family]

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
            least = None if is_number else 8
            table.add_column(
                name, justify="right" if is_number else "left", no_wrap=is_number, overflow="fold", min_width=least
            )
        for row in rows:
            table.add_row(*(Text(self.clean(text), style, overflow="fold") for text, style in row))
        self.console.print(table)

    def text(self) -> str:
        """Everything printed so far, without blanks at line ends."""
        return "\n".join(line.rstrip() for line in self._buffer.getvalue().splitlines()) + "\n"


def cells(ratios: Sequence[float], width: int) -> list[int]:
    """Whole cells per segment that sum to ``width``; a segment that exists keeps one.

    >>> cells([0.5, 0.495, 0.005], 10)
    [5, 4, 1]
    """
    counts = [max(1, int(ratio * width)) for ratio in ratios]
    by_error = sorted(range(len(counts)), key=lambda index: counts[index] - ratios[index] * width)
    for index in by_error[: max(0, width - sum(counts))]:
        counts[index] += 1
    while sum(counts) > width:
        counts[counts.index(max(counts))] -= 1
    return counts


def bar(page: Page, segments: Sequence[Segment], width: int | None = None) -> None:
    """Segments side by side over ``width`` columns, those of the page without it."""
    segments = [segment for segment in segments if segment.ratio]
    whole = max(sum(segment.ratio for segment in segments), 1.0)
    counts = cells([segment.ratio / whole for segment in segments], page.width if width is None else width)
    page.line(*((page.fill(s) * n, _FILL_STYLES[s.family]) for s, n in zip(segments, counts, strict=True)))


#: Fixes on the first screen, the lines of code of each, and the lines against the headline.
_FIXES, _CODE_LINES, _LIMITS = 3, 2, 2
_ROWS, _NAME = 12, 35  #: rows of a table, and characters of a name in it
TITLE = 150  #: characters of a title or of a fix that fit into a line or two


def render(
    record: Report | Diff | Trial,
    *,
    width: int = 80,
    colour: bool = False,
    ascii_only: bool = False,
    verbose: bool = False,
) -> str:
    """The report as text of at most 24 lines of 80 columns; with ``verbose`` all its sections, as of other records.

    Args:
        record: what to show; the patch of a trial is left to ``--write``.
        width: columns; below 40 the text is set for 40.
        colour: add ANSI colours; shapes and words carry the same meaning.
        ascii_only: print nothing outside ASCII.
        verbose: add the sections of the page.
    """
    shown = revise(record, patch="") if isinstance(record, Trial) else record
    made = document(shown, whole=verbose)
    page = Page(width, colour, ascii_only)
    _first(page, made.first)
    for number, found in enumerate(made.first.fixes[:_FIXES], start=1):
        page.line(
            (f"{number}. ", "bold"),
            (_plain(first_sentence(found.fix), TITLE), "bold"),
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
    if verbose or not isinstance(record, Report):
        _sections(page, made)
    return page.text()


def render_gates(gates: Sequence[Gate], *, width: int = 80, colour: bool = False, ascii_only: bool = False) -> str:
    """Only the gates, as text: what ``profilerkit check`` prints."""
    from profilerkit.report.diff_document import gate_table

    page, table = Page(width, colour, ascii_only), gate_table(gates)
    if table is not None:
        _table(page, table, len(gates))
    return page.text()


def _plain(text: str, limit: int = 4_000) -> str:
    plain = cell_text(text).replace("`", "")
    return plain if len(plain) <= limit else f"{plain[: limit - 1]}…"


def _first(page: Page, first: blocks.First) -> None:
    page.line((_plain(first.about, page.width), "dim"))
    if first.lead:
        page.line((_plain(first.lead), ""))
    sure = f" · confidence {first.confidence}" if first.confidence else ""
    kind = f" · {first.kind}" if first.kind else ""
    page.line((f"{first.shape} {first.word}", STYLES[first.tone]), (f"{kind}{sure}", ""))
    page.line((_plain(first.headline, TITLE), "bold"))
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
        page.line((_plain(line, 4 * page.width), "yellow"))


def _sections(page: Page, made: blocks.Document) -> None:
    for section in made.sections:
        page.blank()
        page.line((_plain(section.title), "bold"), (f" · {_plain(section.summary)}" if section.summary else "", "dim"))
        for block in section.blocks:
            _block(page, block)


def _block(page: Page, block: blocks.Block) -> None:
    if isinstance(block, blocks.Text):
        page.line(
            (
                " ".join("".join(_plain(cell_text(piece)) for piece in block.pieces).split()),
                "dim" if block.style == "note" else "",
            )
        )
    elif isinstance(block, blocks.Heading):
        page.line((_plain(block.text), "bold"))
    elif isinstance(block, blocks.Facts):
        for fact in block.rows:
            note = f" · {fact.note}" if fact.note else ""
            page.line((f"{fact.label}: ", ""), (cell_text(fact.value), "bold"), (note, "dim"))
    elif isinstance(block, blocks.Table):
        _table(page, block, _ROWS)
    elif isinstance(block, blocks.Bar):
        bar(page, block.segments, max(round(page.width * block.width), 1))
        page.line((cell_text(block), "dim"))
    elif isinstance(block, blocks.Code):
        for line in block.text.splitlines():
            page.line((line, "cyan"), indent=3)
    elif isinstance(block, blocks.Chart):
        page.line((_plain(block.title), ""))
        _table(page, block.table, _ROWS)
    elif isinstance(block, blocks.Figure):
        page.line((_plain(block.title), ""))
        if block.static:
            _block(page, block.static)
    else:
        _finding(page, block)


def _finding(page: Page, found: blocks.Finding, also: str = "") -> None:
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


def _table(page: Page, table: blocks.Table, limit: int) -> None:
    if table.title:
        page.line((table.title, "bold"))
    rows = [
        [cell_text(cell, _NAME).replace("`", "").replace("\u00a0", " ") for cell in row] for row in table.rows[:limit]
    ]
    if page.width < NARROW:
        page.line((" · ".join(table.columns), "bold"))
        for row in rows:
            page.line((" · ".join(cell for cell in row if cell), ""))
    else:
        columns = [(name, index >= table.text_columns) for index, name in enumerate(table.columns)]
        page.table(columns, [[(cell, "") for cell in row] for row in rows])
    if len(table.rows) > limit:
        page.line((f"{len(table.rows) - limit} more.", "dim"))


# A name of raw events; the middle of a longer one is left out.
_NAME_LIMIT = 70
_WHERE_LIMIT = 18


def render_evidence(
    report: Report,
    wanted: str,
    tables: Sequence[RawEvents],
    *,
    unknown: str = "",
    width: int = 80,
    colour: bool = False,
    ascii_only: bool = False,
) -> str:
    """The evidence of a number, in any case, and the raw events behind it as text; the look is that of ``render``.

    ``unknown`` says in a sentence why there are no ``tables`` of events.

    Raises:
        UsageError: the report has no such evidence.
    """
    require_evidence(report, wanted)
    number = wanted.strip().upper()
    backing = numbered(report)[number]
    row = evidence_row(backing.evidence, Anchors())
    page = Page(width, colour, ascii_only)
    interval = f" ({row.interval})" if row.interval else ""
    page.line((f"{number}  ", "bold"), (row.label, ""), (f": {row.value}", "bold"), (interval, ""))
    page.line((" · ".join(piece for piece in (row.source, row.basis) if piece), "dim"), indent=4)
    if row.origin:
        page.line((f"taken from {row.origin}", "dim"), indent=4)
    title = inert(backing.finding.title, SENTENCE_LIMIT).replace("`", "")
    page.line((f"backs {inert(backing.outcome.rule, 24)}: {title}", "dim"), indent=4)
    if not tables and unknown:
        page.blank()
        page.line((inert(unknown, SENTENCE_LIMIT), ""))
    for table in tables:
        page.blank()
        _events_table(page, table)
    return page.text()


def _events_table(page: Page, table: RawEvents) -> None:
    shown, count = len(table.rows), format_count(table.count)
    which = {"longest": f"the {shown} longest of {count}", "even": f"{shown} of {count}, at an even distance"}
    title = f"{inert(table.what)}, from {inert(table.origin)}: "
    page.line((title, ""), (which[table.order] if shown < table.count else f"all {count}", "bold"))
    is_trace = table.clock == "trace"
    clock = "Trace time, ns" if is_trace else "After the first"
    known = [
        ("Step", True, [("" if row.step is None else format_count(row.step)) for row in table.rows]),
        (clock, True, [str(row.start_ns) if is_trace else format_ns(row.start_ns) for row in table.rows]),
        ("Length" if table.unit == "ns" else "Value", True, [number_text(row.value, table.unit) for row in table.rows]),
        ("Where", False, [inert(row.where, _WHERE_LIMIT) for row in table.rows]),
        ("What", False, [inert(row.name, _NAME_LIMIT) for row in table.rows]),
    ]
    columns = [column for column in known if any(column[2])]
    cells = [[(cells[index], "") for _, _, cells in columns] for index in range(shown)]
    page.table([(name, is_number) for name, is_number, _ in columns], cells)
    if shown < table.count:
        page.line((f"{format_count(table.count - shown)} more are not shown.", "dim"))
