"""Print a rule's page: its docstring, with the values of its settings filled in."""

import functools
import html
import inspect
import re
import textwrap
from collections.abc import Sequence

from profilerkit.rules.api import HEADINGS, Facts, Rule
from profilerkit.units import format_bytes, format_count, format_decimal, format_ns

#: Headings whose text is code, and the one whose lines are addresses.
CODE = ("Example", "Use instead")
SOURCES = "Sources"
_HEADING = re.compile(r"^(" + "|".join(HEADINGS) + r"):[ \t]*", re.MULTILINE)
#: A member of a class, not one that begins with an underscore.
_MEMBER = re.compile(r"    (?:def )?([a-z]\w*)(?=\(| = |: \w)")
_SETTING = re.compile(r"\{(\w+)\}")
# An underscore inside of a word is no markup (CommonMark 0.31, 6.2).
_READ_BY_MARKDOWN = re.compile(r"[\\`*\[\]<>|#~$]|(?<!\w)_|_(?!\w)")


def sections(rule: Rule) -> dict[str, str]:
    """Return heading to text, in the order of the docstring; code and addresses keep their lines."""
    first, *pieces = _HEADING.split(_docstring(rule))
    page = dict(zip((HEADINGS[0], *pieces[::2]), (first, *pieces[1::2]), strict=True))
    return {heading: _text(rule, heading, body) for heading, body in page.items()}


def _text(rule: Rule, heading: str, body: str) -> str:
    if heading in CODE or heading == SOURCES:
        return textwrap.dedent(body).strip()
    known = thresholds(rule)
    filled = _SETTING.sub(lambda match: spoken(match[1], known[match[1]]) if match[1] in known else match[0], body)
    return " ".join(filled.split())


def spoken(name: str, value: object) -> str:
    """Return a setting as a sentence writes it; its name says the unit, and a number below 1 is a share.

    >>> spoken("smallest_share", 0.03), spoken("smallest_wait_ns", 2_000_000), spoken("fewest_steps", 2)
    ('3 %', '2 ms', '2')
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    bytes_written = format_bytes if value % 1024 == 0 else functools.partial(format_decimal, unit="B")
    for ending, written in (("_ns", format_ns), ("_bytes", bytes_written)):
        if name.endswith(ending):
            return re.sub(r"\.0+(?= )", "", written(value))
    return f"{100 * value:.3g} %" if 0 < value < 1 else format_count(value)


def thresholds(rule: Rule) -> dict[str, object]:
    """Return setting to value."""
    return {option: getattr(rule, option) for option in rule.__struct_fields__}


def page_of(rule: Rule) -> dict[str, str]:
    """Return every heading and its text, and the settings as the last.

    A rule of somebody else may lack our headings: then its docstring as it stands is the text.
    """
    page = sections(rule)
    if len(page) == 1:
        page = {HEADINGS[0]: " ".join(_docstring(rule).split()) or rule.summary}
    settings = ", ".join(f"{name} = {value}" for name, value in thresholds(rule).items())
    return page | ({"Settings": settings} if settings else {})


def render_text(rule: Rule, width: int = 80) -> str:
    """Return the page for a terminal; the docstring's own paragraphs where a rule lacks our headings."""
    lines = [f"{rule.code} {rule.name}", *_wrapped(rule.summary, width), ""]
    page = sections(rule)
    if len(page) == 1:
        lines += _paragraphs(_docstring(rule), width)
    else:
        for heading, text in page.items():
            keeps_lines = heading in CODE or heading == SOURCES
            body = textwrap.indent(text, "  ").splitlines() if keeps_lines else _wrapped(text, width - 2, indent="  ")
            lines += [heading, *body, ""]
    settings = thresholds(rule)
    if settings:
        lines += ["Settings", *(f"  {name} = {value}" for name, value in settings.items())]
        table = f"[tool.profilerkit.rules.{rule.code}]"
        lines += ["", *textwrap.wrap(f"To change a setting, write it in pyproject.toml below {table}.", width)]
    return "\n".join(lines).rstrip() + "\n"


def render_facts(width: int = 80) -> str:
    """Return the members of ``Facts`` in the order of its source, each with what is said of it there."""
    above: list[str] = []
    rows: list[str] = []
    for line in inspect.getsource(Facts).splitlines():
        if line.startswith("    #: ") or (above and line.startswith("    # ")):
            above.append(line.strip("# :"))
            continue
        if found := _MEMBER.match(line):
            member = inspect.getattr_static(Facts, found[1])
            told = " ".join(above) or (inspect.getdoc(member) or "").partition("\n")[0]
            name = f"{found[1]}(…)" if inspect.isfunction(member) else found[1]
            rows += textwrap.wrap(f"{name}  {told}", width, subsequent_indent="    ")
        above = []
    return "\n".join(rows).replace("``", "")


def _wrapped(text: str, width: int, indent: str = "") -> list[str]:
    """Return the text in lines that break at blanks: names and formulas hold hyphens."""
    return textwrap.wrap(text, width, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)


def _paragraphs(text: str, width: int) -> list[str]:
    """Return each paragraph and a blank line; a paragraph that fits keeps its lines, which may be a list or code."""
    lines: list[str] = []
    for paragraph in filter(None, re.split(r"\n\s*\n", text)):
        own = paragraph.splitlines()
        lines += [*(own if max(map(len, own)) <= width else _wrapped(" ".join(paragraph.split()), width)), ""]
    return lines


def render_markdown(rules: Sequence[Rule]) -> str:
    """Return the pages of the rules as Markdown, one section each."""
    return "\n".join(_markdown(rule) for rule in rules)


def render_html(rules: Sequence[Rule]) -> str:
    """Return the pages of the rules as a fragment of HTML: one ``article`` each, no style, no script."""
    return "".join(_html(rule) for rule in rules)


def _docstring(rule: Rule) -> str:
    return inspect.cleandoc(vars(type(rule)).get("__doc__") or "")


def _markdown(rule: Rule) -> str:
    def entry(heading: str, text: str) -> str:
        if heading in CODE:
            return f"**{heading}**\n\n```python\n{text}\n```\n"
        if heading == SOURCES:
            return f"**{heading}**\n\n" + "".join(f"- <{address}>\n" for address in text.split())
        return f"**{heading}.** {plain(text)}\n"

    def plain(text: str) -> str:
        return _READ_BY_MARKDOWN.sub(r"\\\g<0>", text)

    entries = [entry(heading, text) for heading, text in page_of(rule).items()]
    return "\n".join([f"## {rule.code} {plain(rule.name)}\n", f"{plain(rule.summary)}.\n", *entries])


def _html(rule: Rule) -> str:
    def entry(heading: str, text: str) -> str:
        if heading in CODE:
            return f"<pre>{html.escape(text)}</pre>"
        if heading == SOURCES:
            links = [html.escape(address) for address in text.split()]
            return " ".join(f'<a href="{link}">{link}</a>' for link in links)
        return html.escape(text)

    entries = "".join(f"<dt>{heading}</dt><dd>{entry(heading, text)}</dd>\n" for heading, text in page_of(rule).items())
    code, name = html.escape(rule.code), html.escape(rule.name)
    return (
        f'<article id="{code}">\n<h2>{code} {name}</h2>\n<p>{html.escape(rule.summary)}</p>\n'
        f"<dl>\n{entries}</dl>\n</article>\n"
    )
