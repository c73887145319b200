"""The vocabulary of a report: sections of blocks, in which numbers and names stay values until a walker prints them.

A section is made once, and ``html``, ``markdown`` and ``terminal`` each walk the same blocks. No block holds markup.
"""

from typing import Any, Literal

import msgspec

from profilerkit.model.step import Family

Tone = Literal["high", "medium", "low", "good", "info"]
NameKind = Literal["user", "path", "kernel", "code"]
Form = Literal["area", "line", "dash", "point"]
_END = 92.0  #: from this percent on the label of a tick would leave the page, if it stood in the middle below it


class Value(msgspec.Struct, frozen=True):
    """A number with its unit and how it came about; ``None`` means not measured."""

    number: float | None
    unit: str = "count"
    source: str = ""


class Name(msgspec.Struct, frozen=True):
    """Text that a stranger chose, by its kind: it is clipped where it is shown, and whole on hover."""

    text: str
    kind: NameKind = "user"


class Segment(msgspec.Struct, frozen=True):
    """One piece of a bar in a family's colour; ``ratio`` is its share of the whole that the bar shows, 0 to 1.

    A piece ``beside`` that whole is drawn after it, to the same scale, and named with its time instead of a share.
    """

    family: Family
    label: str
    ratio: float
    time: Value
    detail: str = ""
    source: str = ""
    beside: bool = False


class Bar(msgspec.Struct, frozen=True):
    """Segments side by side; ``width`` is its length beside other bars, 0 to 1."""

    label: str
    segments: tuple[Segment, ...]
    caption: str = ""
    width: float = 1.0


Cell = str | Value | Name | Bar


class Text(msgspec.Struct, frozen=True):
    """A paragraph of words, values and names; in words paired backticks are code."""

    pieces: tuple[str | Value | Name, ...]
    style: Literal["plain", "note", "warning"] = "plain"

    @classmethod
    def of(cls, *pieces: str | Value | Name, style: Literal["plain", "note", "warning"] = "plain") -> "Text":
        """The paragraph of these pieces."""
        return cls(pieces, style)


class Heading(msgspec.Struct, frozen=True):
    """A heading within a section."""

    text: str


class Fact(msgspec.Struct, frozen=True):
    """A label, its value, and what qualifies it (may be empty)."""

    label: str
    value: Cell
    note: str = ""


class Facts(msgspec.Struct, frozen=True):
    """Labels with their values."""

    rows: tuple[Fact, ...]


class Table(msgspec.Struct, frozen=True):
    """A table whose first ``text_columns`` are text and the others numbers; ``more`` says what was left out.

    ``anchors`` are ids of the rows. A ``searchable`` table gets a search field, and its columns sort.
    """

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    text_columns: int = 1
    more: str = ""
    anchors: tuple[str, ...] = ()
    title: str = ""
    searchable: bool = False


class Code(msgspec.Struct, frozen=True):
    """Code to paste, with a button that copies it."""

    text: str


class Tick(msgspec.Struct, frozen=True):
    """A value on an axis; ``at`` is percent from its left or lower end."""

    at: float
    label: str

    @property
    def before(self) -> float:
        """Ratio of the length of a label below the box that stands before its tick."""
        return 0.85 if self.at > _END else 0.5


class Axis(msgspec.Struct, frozen=True):
    """Name of an axis, with its unit, and its ticks."""

    name: str
    ticks: tuple[Tick, ...]


class Shape(msgspec.Struct, frozen=True):
    """Areas, lines or points of one colour."""

    #: A family of parts, ``mark`` for the colour of text, ``rule`` for that of hairlines, or ``unknown`` for an outline
    #: without a fill; with `` pale`` or `` faint`` behind it, a lighter shade.
    colour: str
    form: Form  #: how the path is drawn; points have a size of their own, whatever the box becomes
    path: str  #: SVG path data in a box of 100 × 100 with y downwards. A point is ``Mx yh0``.
    title: str = ""  #: shown on hover; may be empty


class Label(msgspec.Struct, frozen=True):
    """Text above a place of the box, in percent from its left and upper end.

    It begins there (``right``), or ends there (``left``), as text near the right end must; or it stays ``within`` the
    box: right of its place at the left end, left of it at the right end.
    """

    x: float
    y: float
    text: str
    side: Literal["right", "left", "within"] = "right"


class Chart(msgspec.Struct, frozen=True):
    """One static figure with its twin: shapes in percent of a box that the page may stretch, and text as text."""

    anchor: str  #: its name for links
    title: str  #: its finding in words, with the numbers
    caption: str  #: how many, of which rank and steps, and how each number was got
    height_px: int  #: of the box
    shapes: tuple[Shape, ...]  #: drawn in this order
    x: Axis  #: the axis below
    y: Axis  #: the axis at the left; the name stands above the box
    #: Colour and name of what is shown, at most seven; empty where direct labels say it. ``blank`` is the colour of the
    #: page.
    legend: tuple[tuple[str, str], ...]
    labels: tuple[Label, ...]  #: direct labels
    table: Table  #: the same numbers as a table


class Figure(msgspec.Struct, frozen=True):
    """A figure that a script of the package draws; without script its static twin is shown."""

    anchor: str  #: id of the element that the script fills; its data are in the element ``<anchor>-data`` as JSON
    title: str  #: its finding in words
    data: dict[str, Any]  #: what the script reads; hostile text in it stays text
    script: str  #: file in ``report/templates/`` with the script
    static: Chart | Table | None = None  #: the same without script
    plotly: bool = False  #: whether the script calls ``window.loadPlotly()``; plotly is packed into the page only then


class EvidenceRow(msgspec.Struct, frozen=True):
    """One number behind a claim; ``also`` is the same number in another unit, and may be empty."""

    id: str
    label: str
    value: str
    interval: str
    basis: str
    source: str
    origin: str
    also: str = ""


class Finding(msgspec.Struct, frozen=True):
    """One finding. ``saves`` is the saving in words, empty where none can be stated; ``where`` is the user's own line.

    ``others`` are findings about the same time: of those only one counts.
    """

    anchor: str
    rule: str
    tone: Tone
    severity: str
    title: str
    saves: str
    method: str
    confidence: str
    scope: str
    why: str
    fix: str
    code: Code | None
    confirm: str
    evidence: tuple[EvidenceRow, ...]
    where: str = ""
    others: tuple["Finding", ...] = ()

    @property
    def reasons(self) -> tuple[tuple[str, str], ...]:
        """Its sentences with their labels; one may be empty."""
        return (("Why", self.why), ("Where", self.where), ("Change", self.fix), ("Confirm", self.confirm))


Block = Text | Heading | Facts | Table | Bar | Code | Chart | Figure | Finding


class Section(msgspec.Struct, frozen=True):
    """One folded part of a report: its id, title, what it holds in a few words, and its blocks.

    ``short`` is its name in the table of contents. ``prints`` says whether paper shows it.
    """

    id: str
    title: str
    summary: str
    blocks: tuple[Block, ...]
    open: bool = False
    short: str = ""
    prints: bool = True


class First(msgspec.Struct, frozen=True):
    """The first screen: verdict, one bar, the first fix or the command that helps, and what disturbs."""

    about: str  #: name, devices and steps of the run
    made: str  #: the day
    tone: Tone  #: the verdict's, and ``shape`` its sign, each enough by itself
    shape: str
    word: str  #: the verdict: ``INPUT-BOUND``, and ``kind`` its sub-cause in words; may be empty
    headline: str  #: one sentence
    confidence: str  #: how sure the verdict is
    kind: str = ""
    lead: str = ""  #: what is read before the verdict; may be empty
    bars: tuple[Bar, ...] = ()  #: of the mean step; empty where it was not split, and ``missing`` says why
    missing: str = ""
    lines: tuple[str, ...] = ()  #: what stands against the headline: damage, failures, a busy machine
    fixes: tuple[Finding, ...] = ()  #: what to change, the first thing first
    because: str = ""  #: why the first fix helps, and the user's own line; may be empty
    advice: str = ""  #: what helps where there is no fix, and ``command`` to paste
    command: str = ""
    measure: str = ""  #: the command that shows whether the fix worked; may be empty


class Document(msgspec.Struct, frozen=True):
    """A page: its title, the first screen, and what is folded below."""

    title: str
    first: First
    sections: tuple[Section, ...]
