"""``profilerkit rules``: the list of rules, one rule's page, or the report's JSON schema."""

import argparse
import json
import textwrap
from typing import TYPE_CHECKING

from profilerkit.cli.arguments import add_allow_rules, one_of, project_settings
from profilerkit.cli.console import DONE, Console
from profilerkit.config import unknown_word

if TYPE_CHECKING:
    from collections.abc import Sequence

    from profilerkit.rules.api import Rule


_EPILOG = """\
examples:
  profilerkit rules input                         the rules about input
  profilerkit rules starved_device                the page of IN001
  profilerkit rules -f md > rules.md              every page

Rules of your project are listed too: rules-path in pyproject.toml. They are
code, so they are loaded once you allow them: profilerkit rules --allow-rules"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``rules``."""
    parser.add_argument("code", nargs="?", metavar="CODE", help="a rule to explain, or a family to list")
    parser.epilog = _EPILOG
    formats = ("text", "json", "md", "html")
    known, form = "|".join(formats), one_of("--format", formats)
    parser.add_argument("-f", "--format", metavar=known, type=form, default="text", help="default: text")
    parser.add_argument("--json", action="store_const", const="json", dest="format", help="same as -f json")
    add_allow_rules(parser)
    parser.add_argument("--facts", action="store_true", help="list what a rule may ask for, instead")
    parser.add_argument("--schema", action="store_true", help="print the JSON schema of report.json instead")


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Print what was asked for."""
    if arguments.schema:
        from profilerkit.report.json import schema_text

        console.raw(schema_text().rstrip())
        return DONE
    from profilerkit.rules import docs

    if arguments.facts:
        console.out(docs.render_facts(console.width))
        return DONE
    rules = _known(arguments, console)
    wanted = arguments.code
    exact = [rule for rule in rules if wanted and wanted.lower() in (rule.code.lower(), rule.name.lower())]
    family = (wanted or "").lower()  # or the beginning of a code
    listed = [rule for rule in rules if not wanted or rule.family == family or rule.code.lower().startswith(family)]
    if not exact and not listed:
        known = [name for rule in rules for name in (rule.code, rule.name, rule.family)]
        raise unknown_word(wanted, known, what="rule", hint="profilerkit rules lists them")
    if arguments.format == "text" and not exact:
        console.out(_table(listed, console.width))
    elif arguments.format == "text":
        console.out(docs.render_text(exact[0], width=console.width))
    else:
        console.raw(_document(exact or listed, arguments.format, bool(exact), console.width))
    return DONE


def _known(arguments: argparse.Namespace, console: Console) -> "list[Rule]":
    """The built-in rules, those of other packages and the project's own, by code and with the project's options."""
    from profilerkit.plugins import all_rules, without_withheld
    from profilerkit.rules.runner import with_options

    settings = project_settings(arguments, console, runs_rules=False)
    rules, notes, withheld = all_rules(settings)
    for note in notes:
        console.note(note)
    if withheld:
        settings = without_withheld(settings, rules)
    return sorted(with_options(rules, settings.rules)[0], key=lambda rule: rule.code)


def _document(rules: "Sequence[Rule]", form: str, is_one: bool, width: int) -> str:
    """The pages of the rules in a form for other programs; a rule that was named is one record, not a list."""
    from profilerkit.rules import docs

    if form == "md":
        return docs.render_markdown(rules)
    if form == "html":
        return docs.render_html(rules)
    records = [
        {
            "code": rule.code,
            "name": rule.name,
            "family": rule.family,
            "summary": rule.summary,
            "options": docs.thresholds(rule),
            "page": docs.render_text(rule, width=width),
        }
        for rule in rules
    ]
    return json.dumps(records[0] if is_one else records, indent=2, ensure_ascii=False)


def _table(rules: "Sequence[Rule]", width: int) -> str:
    family_width = max(len(rule.family) for rule in rules)
    lines = []
    for rule in rules:
        lead = f"{rule.code:<6} {rule.family:<{family_width}}  "
        lines += textwrap.wrap(rule.summary, width, initial_indent=lead, subsequent_indent=" " * len(lead))
    return "\n".join(lines)
