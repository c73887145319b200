"""A rule's documentation page, made from its docstring and its thresholds."""

import dataclasses
import html
import inspect
import re
import textwrap
from collections.abc import Sequence

from profilerkit.rules.rule import HEADINGS, Rule

_HEADING = re.compile(r"^(" + "|".join(HEADINGS) + r"):[ \t]*", re.MULTILINE)
# An underscore inside of a word is no markup (CommonMark 0.31, 6.2).
_READ_BY_MARKDOWN = re.compile(r"[\\`*\[\]<>|#~$]|(?<!\w)_|_(?!\w)")


def sections(rule: Rule) -> dict[str, str]:
    """Heading to text, in the order of the docstring; empty without headings."""
    pieces = _HEADING.split(_docstring(rule))
    return {heading: " ".join(body.split()) for heading, body in zip(pieces[1::2], pieces[2::2], strict=True)}


def thresholds(rule: Rule) -> dict[str, object]:
    """Option name to value."""
    return {field.name: getattr(rule, field.name) for field in dataclasses.fields(rule)}


def page_of(rule: Rule) -> dict[str, str]:
    """Every heading and its text, and the options as the last.

    A rule of somebody else may lack our headings: then its docstring as it stands is the claim.
    """
    page = sections(rule)
    if tuple(page) != HEADINGS:
        page = {HEADINGS[0]: " ".join(_docstring(rule).split()) or rule.summary}
    options = ", ".join(f"{name} = {value}" for name, value in thresholds(rule).items())
    return page | ({"Options": options} if options else {})


def render_text(rule: Rule, width: int = 80) -> str:
    """The page for a terminal; of a rule without our headings the paragraphs of the docstring stand by themselves."""
    lines = [f"{rule.code} {rule.name}", *_wrapped(rule.summary, width), ""]
    page = sections(rule)
    if tuple(page) != HEADINGS:
        lines += _paragraphs(_docstring(rule), width)
    else:
        for heading, text in page.items():
            lines += [heading, *_wrapped(text, width - 2, indent="  "), ""]
    options = thresholds(rule)
    if options:
        lines += ["Options", *(f"  {name} = {value}" for name, value in options.items())]
        lines += ["", *textwrap.wrap(f"To set one, write it in pyproject.toml below {table_of(rule)}.", width)]
    return "\n".join(lines).rstrip() + "\n"


def _wrapped(text: str, width: int, indent: str = "") -> list[str]:
    """The text in lines, each ending at a blank: hyphens stand inside of names and formulas."""
    return textwrap.wrap(text, width, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)


def _paragraphs(text: str, width: int) -> list[str]:
    """Each paragraph and a blank line; one that fits keeps its own lines, which may be a list or code."""
    lines: list[str] = []
    for paragraph in filter(None, re.split(r"\n\s*\n", text)):
        own = paragraph.splitlines()
        lines += [*(own if max(map(len, own)) <= width else _wrapped(" ".join(paragraph.split()), width)), ""]
    return lines


def table_of(rule: Rule) -> str:
    """The table of ``pyproject.toml`` that holds the rule's options."""
    return f"[tool.profilerkit.rules.{rule.code}]"


def render_markdown(rules: Sequence[Rule]) -> str:
    """The pages of the rules as Markdown, one section each."""
    return "\n".join(_markdown(rule) for rule in rules)


def render_html(rules: Sequence[Rule]) -> str:
    """The pages of the rules as a fragment of HTML: one ``article`` each, no style, no script."""
    return "".join(_html(rule) for rule in rules)


def _docstring(rule: Rule) -> str:
    """The rule's own; what a dataclass writes in its place, the call that makes one, explains nothing."""
    written = inspect.cleandoc(type(rule).__doc__ or "")
    return "" if written.startswith(f"{type(rule).__name__}(") else written


def _markdown(rule: Rule) -> str:
    def plain(text: str) -> str:
        return _READ_BY_MARKDOWN.sub(r"\\\g<0>", text)

    entries = [f"**{heading}.** {plain(text)}\n" for heading, text in page_of(rule).items()]
    return "\n".join([f"## {rule.code} {plain(rule.name)}\n", f"{plain(rule.summary)}.\n", *entries])


def _html(rule: Rule) -> str:
    entries = "".join(f"<dt>{heading}</dt><dd>{html.escape(text)}</dd>\n" for heading, text in page_of(rule).items())
    code, name = html.escape(rule.code), html.escape(rule.name)
    return (
        f'<article id="{code}">\n<h2>{code} {name}</h2>\n<p>{html.escape(rule.summary)}</p>\n'
        f"<dl>\n{entries}</dl>\n</article>\n"
    )
