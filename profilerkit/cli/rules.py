"""``profilerkit rules``: the list of rules, one rule's page, or the report's JSON schema."""

import argparse
import dataclasses
import inspect
import json
import textwrap
from typing import TYPE_CHECKING, Any

from profilerkit.cli.arguments import one_of
from profilerkit.cli.console import DONE, Console
from profilerkit.config import unknown_word

if TYPE_CHECKING:
    from collections.abc import Sequence

    from profilerkit.rules.rule import Rule


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``rules``."""
    parser.add_argument("code", nargs="?", metavar="CODE", help="a code or name to explain, or a prefix to list")
    formats = ("text", "json")
    parser.add_argument(
        "--format", metavar="|".join(formats), type=one_of("--format", formats), default="text", help="default: text"
    )
    parser.add_argument("--json", action="store_const", const="json", dest="format", help="the same as --format json")
    parser.add_argument("--schema", action="store_true", help="print the JSON schema of report.json instead")


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Print what was asked for."""
    if arguments.schema:
        from profilerkit.model.report import json_schema

        console.raw(json.dumps(json_schema(), indent=2))
        return DONE
    from profilerkit.plugins import installed_rules
    from profilerkit.rules import RULES

    others, unusable = installed_rules()
    for note in unusable:
        console.note(note)
    wanted, rules = arguments.code, sorted((*RULES, *others), key=lambda rule: rule.code)
    exact = [rule for rule in rules if wanted and wanted.lower() in (rule.code.lower(), rule.name.lower())]
    listed = [rule for rule in rules if wanted is None or rule.code.lower().startswith(wanted.lower())]
    if not exact and not listed:
        known = [name for rule in rules for name in (rule.code, rule.name)]
        raise unknown_word(wanted, known, what="rule", hint="profilerkit rules lists them")
    if arguments.format == "json":
        records = [_record(rule, console.width) for rule in exact or listed]
        console.raw(json.dumps(records[0] if exact else records, indent=2, ensure_ascii=False))
    elif exact:
        console.out(_page(exact[0], console.width))
    else:
        console.out(_table(listed, console.width))
    return DONE


def _table(rules: "Sequence[Rule]", width: int) -> str:
    family_width = max(len(rule.family) for rule in rules)
    lines = []
    for rule in rules:
        lead = f"{rule.code:<6} {rule.family:<{family_width}}  "
        lines += textwrap.wrap(rule.summary, width, initial_indent=lead, subsequent_indent=" " * len(lead))
    return "\n".join(lines)


def _page(rule: "Rule", width: int) -> str:
    """A rule's page; a rule of another package may lack our headings, then its docstring is shown as it stands."""
    from profilerkit.rules.docs import render_text

    try:
        return render_text(rule, width=width)
    except (KeyError, ValueError):
        text = inspect.cleandoc(type(rule).__doc__ or "")
        return f"{rule.code} {rule.name}\n{rule.summary}\n\n{text}".rstrip() + "\n"


def _record(rule: "Rule", width: int) -> dict[str, Any]:
    options = {field.name: getattr(rule, field.name) for field in dataclasses.fields(rule)}
    return {
        "code": rule.code,
        "name": rule.name,
        "family": rule.family,
        "summary": rule.summary,
        "options": options,
        "page": _page(rule, width),
    }
