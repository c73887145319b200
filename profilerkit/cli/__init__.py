"""The command line: one module per verb."""

import argparse
import gc
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from types import ModuleType

from profilerkit import __version__
from profilerkit.cli.arguments import Parser, one_of
from profilerkit.cli.console import FAILED, Boundary, Console
from profilerkit.errors import UsageError

#: Each verb is the module of its name. Only the one that was called is imported: `--help` must stay fast.
VERBS = {
    "run": "record a training command without changing its script",
    "watch": "show a running job and its verdict so far",
    "analyze": "find what bounds a recorded run, and write its report",
    "try": "apply the proposed fixes to a training command, and measure them",
    "diff": "compare two runs and report which changes are real",
    "map": "summarise the traces of many ranks",
    "reduce": "make one report of many summaries",
    "check": "check a run against its budgets",
    "demo": "train a small slow model, and try the fix that its report proposes",
    "export": "write a recorded run for another viewer, such as Perfetto",
    "rules": "list the rules, or explain one",
    "guide": "show the guide, or one of its pages",
    "doctor": "check what this machine can record",
}

_EPILOG = """\
examples:
  profilerkit run train.py --lr 0.1               my loop is slow
  profilerkit analyze trace.json.gz               somebody sent a trace
  profilerkit diff runs/train runs/train-2        compare two runs
  profilerkit check runs/train                    stop regressions in CI
  profilerkit guide first-hour                    learn more

exit codes:
  0    done; findings alone do not fail
  1    a gate failed (analyze --fail-on, diff --fail-if, check)
  2    bad usage, unreadable input, or an internal error
  3    inconclusive, or not judged, under --strict; a demo proved nothing
  130  interrupted

Data goes to standard output, everything else to standard error.
profilerkit VERB --help explains a verb.

Tab completion needs argcomplete and one line in the start-up file of the shell:
  bash, zsh  eval "$(register-python-argcomplete profilerkit)"
  fish       register-python-argcomplete --shell fish profilerkit | source"""

_TRAINING = ("run", "try", "demo")  #: verbs whose process or environment a training command gets
#: Objects that a process makes before garbage is looked for: more than the modules of ``analyze`` hold.
_COLLECTED_AFTER = 100_000
_ASKED_BY_SHELL = "_ARGCOMPLETE"  #: set by the shell's completion, which asks for the words that may follow


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb and return the exit code."""
    if _ASKED_BY_SHELL in os.environ:
        return _complete()
    words = list(sys.argv[1:] if argv is None else argv)
    boundary = Boundary(Console(debug="--debug" in words))
    with boundary:
        if argv is None and _find_verb(words) not in _TRAINING:  # the process is ours
            gc.set_threshold(_COLLECTED_AFTER)
            os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # numpy starts a thread for each core, and each spins
        boundary.code = _run(words, boundary)
    return boundary.code


def _complete() -> int:
    """Print the words that may follow what stands in the shell; argcomplete does so and ends the process."""
    try:
        from argcomplete import autocomplete
    except ImportError:
        return FAILED
    typed = os.environ.get("COMP_LINE", "").split()
    top, parsers = _parsers(next((word for word in typed if word in VERBS), None))
    for parser in (top, *parsers.values()):
        for action in parser._actions:
            if known := getattr(action.type, "known", ()):
                action.completer = lambda known=known, **_: known  # type: ignore[attr-defined]
    autocomplete(top)
    return FAILED


def _run(words: list[str], boundary: Boundary) -> int:
    verb = _find_verb(words)
    command: list[str] = []
    if verb in ("run", "try"):
        words, command = _module(verb).split(words)
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
        import logging

        level = logging.DEBUG if boundary.console.debug else logging.INFO
        logging.basicConfig(level=level, format="%(levelname)s %(name)s: %(message)s")
        logging.getLogger("profilerkit").setLevel(level)
    code: int = _module(verb).run(arguments, boundary.console)
    return code


def _module(verb: str) -> ModuleType:
    """Return the module of a verb; a statement cannot import one that is named ``try``."""
    return import_module(f"profilerkit.cli.{'try_fixes' if verb == 'try' else verb}")


def _find_verb(words: list[str]) -> str | None:
    """The first word that is neither an option nor the value of one; ``None`` when there is none."""
    takes_value = False
    for word in words:
        if not takes_value and not word.startswith("-"):
            if word not in VERBS:
                raise _unknown_verb(word)
            return word
        takes_value = word == "--color"
    return None


def _unknown_verb(word: str) -> UsageError:
    """Return the error for a word that is no verb, with the verb that a script or a recording was meant for."""
    from pathlib import Path
    from shlex import quote

    from profilerkit.config import unknown_word

    error = unknown_word(word, list(VERBS), what="verb", hint="see profilerkit --help")
    if word.endswith(".py"):
        error.hint = f"did you mean profilerkit run {quote(word)}?"
    elif word.endswith((".json", ".json.gz")) or Path(word).exists():
        error.hint = f"did you mean profilerkit analyze {quote(word)}?"
    return error


def _parsers(verb: str | None) -> tuple[Parser, dict[str, Parser]]:
    """The parser of the whole line and those of the verbs, of which only the called one knows its arguments."""
    common = Parser(add_help=False, argument_default=argparse.SUPPRESS)
    flags = common.add_argument_group("everywhere")
    flags.add_argument("-q", "--quiet", action="store_true", help="print nothing but errors and asked-for data")
    flags.add_argument("-v", "--verbose", action="store_true", help="print more about the work")
    flags.add_argument("--debug", action="store_true", help="show tracebacks and all log messages")
    words = ("auto", "always", "never")
    flags.add_argument("--color", metavar="|".join(words), type=one_of("--color", words), help="default: auto")

    top = Parser(
        prog="profilerkit",
        description="Find what bounds a PyTorch training run, what to change, and what that saves.",
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
            _module(name).add_arguments(parsers[name])
    return top, parsers
