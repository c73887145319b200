"""A rule's documentation page, made from its docstring and its thresholds."""

import dataclasses
import inspect
import re
import textwrap

from profilerkit.rules.rule import HEADINGS, Rule

_HEADING = re.compile(r"^(" + "|".join(HEADINGS) + r"):[ \t]*", re.MULTILINE)


def sections(rule: Rule) -> dict[str, str]:
    """Heading to text, in the fixed order; a missing heading is a KeyError for whoever asks."""
    text = inspect.cleandoc(type(rule).__doc__ or "")
    pieces = _HEADING.split(text)
    return {heading: " ".join(body.split()) for heading, body in zip(pieces[1::2], pieces[2::2], strict=True)}


def thresholds(rule: Rule) -> dict[str, object]:
    """Option name to value."""
    return {field.name: getattr(rule, field.name) for field in dataclasses.fields(rule)}


def render_text(rule: Rule, width: int = 80) -> str:
    """The page for a terminal."""
    lines = [f"{rule.code} {rule.name}", rule.summary, ""]
    page = sections(rule)
    for heading in HEADINGS:
        lines += [heading, *textwrap.wrap(page[heading], width - 2, initial_indent="  ", subsequent_indent="  "), ""]
    options = thresholds(rule)
    if options:
        lines.append("Options")
        lines += [f"  {name} = {value}" for name, value in options.items()]
    return "\n".join(lines).rstrip() + "\n"
