"""The vocabulary of a report: sections of blocks, in which numbers and names stay values until a walker prints them.

A section is made once, and ``html``, ``markdown`` and ``terminal`` each walk the same blocks. No block holds markup.
"""

from typing import Any, Literal

import msgspec

from profilerkit.model.step import Family

Tone = Literal["high", "medium", "low", "good", "info"]
NameKind = Literal["user", "path", "kernel", "code"]
Form = Literal["area", "line", "dash", "point"]
#: From this percent on the label of a tick would leave the page, if it stood in the middle below it.
_END = 92.0


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
    """Areas, lines or points of one colour.

    Attributes:
        colour: a family of parts, ``mark`` for the colour of text, ``rule`` for that of hairlines, or ``unknown`` for
            an outline without a fill; with `` pale`` or `` faint`` behind it, a lighter shade.
        form: how the path is drawn; points have a size of their own, whatever the box becomes.
        path: SVG path data in a box of 100 × 100 with y downwards. A point is ``Mx yh0``.
        title: shown on hover; may be empty.
    """

    colour: str
    form: Form
    path: str
    title: str = ""


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
    """One static figure with its twin: shapes in percent of a box that the page may stretch, and text as text.

    Attributes:
        anchor: its name for links.
        title: its finding in words, with the numbers.
        caption: how many, of which rank and steps, and how each number was got.
        height_px: of the box.
        shapes: drawn in this order.
        x: the axis below.
        y: the axis at the left; the name stands above the box.
        legend: colour and name of what is shown, at most seven; empty where direct labels say it. ``blank`` is the
            colour of the page.
        labels: direct labels.
        table: the same numbers as a table.
    """

    anchor: str
    title: str
    caption: str
    height_px: int
    shapes: tuple[Shape, ...]
    x: Axis
    y: Axis
    legend: tuple[tuple[str, str], ...]
    labels: tuple[Label, ...]
    table: Table


class Figure(msgspec.Struct, frozen=True):
    """A figure that a script of the package draws; without script its static twin is shown.

    Attributes:
        anchor: id of the element that the script fills; its data are in the element ``<anchor>-data`` as JSON.
        title: its finding in words.
        data: what the script reads; hostile text in it stays text.
        script: file in ``report/templates/`` with the script.
        static: the same without script.
        plotly: whether the script calls ``window.loadPlotly()``; plotly is packed into the page only then.
    """

    anchor: str
    title: str
    data: dict[str, Any]
    script: str
    static: Chart | Table | None = None
    plotly: bool = False


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
        return (
            ("Why", self.why),
            ("Where", self.where),
            ("Change", self.fix),
            ("Confirm", self.confirm),
        )


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
    """The first screen: verdict, one bar, the first fix or the command that helps, and what disturbs.

    Attributes:
        about: name, devices and steps of the run.
        lead: what is read before the verdict; may be empty.
        made: the day.
        tone: the verdict's, and ``shape`` its sign, each enough by itself.
        word: the verdict: ``INPUT-BOUND``, and ``kind`` its sub-cause in words; may be empty.
        headline: one sentence.
        bar: of the mean step; ``None`` where it was not split, and ``missing`` says why.
        lines: what stands against the headline: damage, failures, a busy machine.
        fixes: what to change, the first thing first.
        because: why the first fix helps, and the user's own line; may be empty.
        advice: what helps where there is no fix, and ``command`` to paste.
        confidence: how sure the verdict is.
        measure: the command that shows whether the fix worked; may be empty.
    """

    about: str
    made: str
    tone: Tone
    shape: str
    word: str
    headline: str
    confidence: str
    kind: str = ""
    lead: str = ""
    bars: tuple[Bar, ...] = ()
    missing: str = ""
    lines: tuple[str, ...] = ()
    fixes: tuple[Finding, ...] = ()
    because: str = ""
    advice: str = ""
    command: str = ""
    measure: str = ""


class Document(msgspec.Struct, frozen=True):
    """A page: its title, the first screen, and what is folded below."""

    title: str
    first: First
    sections: tuple[Section, ...]
