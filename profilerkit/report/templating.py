"""The package's own templates, style sheets and scripts."""

import re
from collections.abc import Collection, Sequence
from functools import lru_cache
from importlib.resources import files
from typing import TYPE_CHECKING

from profilerkit.report.citations import TOKEN, cited
from profilerkit.report.inert import code_spans
from profilerkit.report.palette import css_variables
from profilerkit.report.records import EvidenceRow

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

_NUMBER_UNIT = re.compile(r"(?<=\d) (?=(?:%|ns|µs|ms|s|B|KiB|MiB|GiB|TiB)(?![A-Za-z]))")
#: A step by its number, or the two ends of a range; not ``step 12.5 ms``.
_STEP = re.compile(
    r"(?<![\w-])([Ss]teps? )([0-9]+)(?:(–| and | to )([0-9]+))?(?![–.,]?[0-9]|[\s\u00a0](?:%|[nµm]?s\b))"
)

#: Ranks and devices by their numbers: ``rank 1``, ``Ranks 0, 3 and 5``, ``GPU 1``.
_RANK = r"(?<![\w-])(?:[Rr]ank|GPU)(?: |s (?:[0-9]+(?:, | and |–| to ))*)[0-9]+(?![.,]?[0-9]|[\s\u00a0](?:%|[nµm]?s\b))"


@lru_cache(maxsize=1)
def environment() -> "Environment":
    """The package's templates: everything put into them is escaped."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    made = Environment(
        loader=PackageLoader("profilerkit.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["units"] = _join_units
    made.filters["prose"] = _prose
    made.filters["steps"] = _step_links
    made.filters["cited"] = _cited
    return made


def _join_units(text: str) -> str:
    """The text with a no-break space between a number and its unit."""
    return _NUMBER_UNIT.sub("\u00a0", text)


def _prose(text: str) -> "Markup":
    """Escaped text in which paired backticks become ``<code>``."""
    from markupsafe import Markup, escape

    pieces = (
        Markup("<code>{}</code>").format(piece) if is_code else escape(_join_units(piece))
        for is_code, piece in code_spans(text)
    )
    return Markup("").join(pieces)


def _cited(
    text: str,
    own: Sequence[EvidenceRow] = (),
    shared: Sequence[EvidenceRow] = (),
    *,
    steps: Collection[str] = (),
    table: str = "",
    about: str = "",
    is_finding: bool = False,
) -> "Markup":
    """Like ``prose``, with each number as a link to its row of evidence.

    Args:
        text: a sentence.
        own: rows of what it is about.
        shared: rows of everything else.
        steps: anchors of the steps that have a row of their own.
        table: anchor of the table that the other numbers are from; empty where there is none.
        about: the name of a number that stands alone.
        is_finding: the sentence is a finding's, which may use numbers of others by chance.
    """
    from markupsafe import Markup, escape

    def link(token: re.Match[str]) -> str:
        row = cited(token, own, shared, about, is_finding=is_finding)
        shown = escape(_join_units(token[0]))
        if row is None:
            return Markup('<a class="n" href="#{}">{}</a>').format(table, shown) if table else shown
        return Markup('<a class="n" href="#{}">{}</a>').format(row.id, shown)

    pieces: list[str] = []
    for is_code, piece in code_spans(text):
        if is_code:
            pieces.append(Markup("<code>{}</code>").format(piece))
            continue
        at = 0
        # A step and a rank are named by a number, which is no quantity.
        for found in re.finditer(rf"{_STEP.pattern}|{_RANK}|{TOKEN.pattern}", piece):
            pieces.append(escape(piece[at : found.start()]))
            token = TOKEN.match(piece, found.start())
            pieces.append(link(token) if token else _step_links(found[0], steps))
            at = found.end()
        pieces.append(escape(piece[at:]))
    return Markup("").join(pieces)


def _step_links(text: str, rows: Collection[str]) -> "Markup":
    """Escaped text in which a step that has one of these rows, such as ``step-17``, leads to it; a range both ends."""
    from markupsafe import Markup, escape

    def linked(match: re.Match[str]) -> str:
        word, first, between, last = match.groups()
        ends = [f"step-{number}" for number in (first, last) if number]
        # One end of a range alone would say that the range is that step.
        if any(end not in rows for end in ends):
            return match[0]
        if last is None:
            return f'<a href="#{ends[0]}">{word}{first}</a>'
        return f'{word}<a href="#{ends[0]}">{first}</a>{between}<a href="#{ends[1]}">{last}</a>'

    return Markup(_STEP.sub(linked, str(escape(text))))  # noqa: S704 - escaped, and what is put in is digits


def asset(name: str) -> str:
    """A style sheet or script that stands beside the templates."""
    return files("profilerkit.report").joinpath("templates", name).read_text(encoding="utf-8")


def page_css() -> str:
    """Both schemes and the style sheet; paper is always light."""
    return (
        f":root{{color-scheme:light dark;{css_variables('light')}}}\n"
        f"@media screen and (prefers-color-scheme:dark){{:root{{{css_variables('dark')}}}}}\n"
        f"{asset('report.css')}"
    )
