"""The command line: one module per verb."""

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

from profilerkit import __version__
from profilerkit.cli.arguments import Parser, one_of
from profilerkit.cli.console import FAILED, Boundary, Console

#: Each verb is the module of its name. Only the one that was called is imported: `--help` must stay fast.
VERBS = {
    "run": "record a training command without touching its script",
    "watch": "show what a running job does, and what bounds it so far",
    "analyze": "say what bounds a recorded run, and write its report",
    "diff": "say what changed between two runs, and whether it is real",
    "map": "summarise the traces of many ranks, wherever they lie",
    "reduce": "say what bounds a run of any size, from its summaries",
    "check": "hold a run against its budgets",
    "demo": "train a small slow model for real, apply the fix, compare",
    "export": "write a recorded run for another viewer: Perfetto",
    "rules": "list the rules, or explain one",
    "doctor": "check what this machine can record",
}

_EPILOG = """\
exit codes:
  0    done; findings alone do not fail
  1    a gate failed (analyze --fail-on, diff --fail-if, check)
  2    bad usage, unreadable input, or an internal error
  3    the verdict is inconclusive, under --strict; a demo proved nothing
  130  interrupted

Data goes to standard output, everything else to standard error.
profilerkit VERB --help explains a verb."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb and return the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    boundary = Boundary(Console(debug="--debug" in words))
    with boundary:
        boundary.code = _run(words, boundary)
    return boundary.code


def _run(words: list[str], boundary: Boundary) -> int:
    verb = _find_verb(words)
    command: list[str] = []
    if verb == "run":
        words, command = import_module("profilerkit.cli.run").split(words)
    top, parsers = _parsers(verb)
    arguments, extra = top.parse_known_args(words, argparse.Namespace(command=command))
    if extra:
        (parsers[verb] if verb else top).reject(extra)
    if verb is None:
        print(top.format_help(), end="", file=sys.stderr)
        return FAILED
    boundary.console = Console(
        colour=getattr(arguments, "color", "auto"),
        quiet=getattr(arguments, "quiet", False),
        debug=getattr(arguments, "debug", False),
    )
    if getattr(arguments, "verbose", False) or boundary.console.debug:
        _log_to_stderr(boundary.console.debug)
    code: int = import_module(f"profilerkit.cli.{verb}").run(arguments, boundary.console)
    return code


def _find_verb(words: list[str]) -> str | None:
    """The first word that is neither an option nor the value of one; ``None`` when there is none."""
    takes_value = False
    for word in words:
        if not takes_value and not word.startswith("-"):
            if word not in VERBS:
                from profilerkit.config import unknown_word

                raise unknown_word(word, list(VERBS), what="verb", hint="see profilerkit --help")
            return word
        takes_value = word == "--color"
    return None


def _parsers(verb: str | None) -> tuple[Parser, dict[str, Parser]]:
    """The parser of the whole line and those of the verbs, of which only the called one knows its arguments."""
    common = Parser(add_help=False, argument_default=argparse.SUPPRESS)
    flags = common.add_argument_group("everywhere")
    flags.add_argument("-q", "--quiet", action="store_true", help="print nothing but errors and asked-for data")
    flags.add_argument("-v", "--verbose", action="store_true", help="say more about what is done")
    flags.add_argument("--debug", action="store_true", help="show tracebacks and everything that is logged")
    words = ("auto", "always", "never")
    flags.add_argument("--color", metavar="|".join(words), type=one_of("--color", words), help="default: auto")

    top = Parser(
        prog="profilerkit",
        description="What bounds a PyTorch training run, what to change, and what it will gain.",
        epilog=_EPILOG,
        parents=[common],
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    top.add_argument("--version", action="version", version=f"profilerkit {__version__}")
    verbs = top.add_subparsers(dest="verb", metavar="VERB", title="verbs", parser_class=Parser)
    parsers = {}
    for name, summary in VERBS.items():
        parsers[name] = verbs.add_parser(
            name,
            help=summary,
            description=f"{summary[0].upper()}{summary[1:]}.",
            parents=[common],
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        if name == verb:
            import_module(f"profilerkit.cli.{name}").add_arguments(parsers[name])
    return top, parsers


def _log_to_stderr(everything: bool) -> None:
    import logging

    logging.basicConfig(
        level=logging.DEBUG if everything else logging.INFO, format="%(levelname)s %(name)s: %(message)s"
    )
    logging.getLogger("profilerkit").setLevel(logging.DEBUG if everything else logging.INFO)
