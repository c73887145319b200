"""The terminal's page: paragraphs, tables and bars, in the characters and colours of the stream."""

from collections.abc import Sequence
from io import StringIO

from profilerkit.model.step import Family
from profilerkit.report.blocks import Segment, Tone
from profilerkit.report.inert import to_ascii

MIN_WIDTH = 40
#: In fewer columns a table with sentences in it cannot be read.
NARROW = 60

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
#: The fill of a piece beside the whole.
_BESIDE_FILL, _ASCII_BESIDE_FILL = "╌", "-"


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
                name,
                justify="right" if is_number else "left",
                no_wrap=is_number,
                overflow="fold",
                min_width=least,
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
