"""``profilerkit doctor``: what this machine can record, one line per check, and the fix where it cannot."""

import argparse
import json
import textwrap

from profilerkit.cli.checks import Check, run_checks
from profilerkit.cli.console import DONE, FAILED, Console

_PAINT = {"ok": "\x1b[32m", "warn": "\x1b[33m", "fail": "\x1b[31m"}
_PLAIN = "\x1b[0m"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``doctor``."""
    parser.epilog = (
        "ok: works. warn: works without what the line names. fail: profilerkit cannot be\n"
        "used (exit code 2). doctor is read-only; on a GPU it runs one tiny kernel."
    )
    parser.add_argument("--json", action="store_true", help="print the checks as JSON")


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Print every check; fail only when the tool is unusable."""
    checks = run_checks()
    usable = all(check.state != "fail" for check in checks)
    if arguments.json:
        document = {"usable": usable, "checks": [check._asdict() for check in checks]}
        console.raw(json.dumps(document, indent=2, ensure_ascii=False))
    else:
        console.out("\n".join(_lines(check, console) for check in checks))
    return DONE if usable else FAILED


def _lines(check: Check, console: Console) -> str:
    lead = f"{check.state:<5} {check.name:<13} "
    lines = textwrap.wrap(
        check.text, console.width, initial_indent=lead, subsequent_indent=" " * len(lead), break_on_hyphens=False
    )
    if check.fix:
        indent = " " * len(lead)
        lines += textwrap.wrap(
            f"fix: {check.fix}",
            console.width,
            initial_indent=indent,
            subsequent_indent=f"{indent}     ",
            break_on_hyphens=False,
        )
    text = "\n".join(lines)
    if console.colour:
        text = text.replace(check.state, f"{_PAINT[check.state]}{check.state}{_PLAIN}", 1)
    return text
