"""``profilerkit guide``: the pages of the guide, drawn on a terminal and as Markdown elsewhere."""

import argparse
import os
import re

from profilerkit.cli.console import DONE, Console
from profilerkit.config import unknown_word
from profilerkit.guide import TOPICS, page, summary

_EPILOG = """\
examples:
  profilerkit guide first-hour
  profilerkit guide docker          the page with a heading about Docker
  profilerkit guide ci > ci.md      Markdown, to keep or to search"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``guide``."""
    parser.epilog = _EPILOG
    parser.add_argument("topic", nargs="?", metavar="TOPIC", help="a page, or a word of its headings (default: list)")


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Print the list of topics, or one page."""
    found = TOPICS if arguments.topic is None else _find(arguments.topic.lower())
    if arguments.topic is not None and arguments.topic.lower() not in TOPICS:
        console.note(f"No page is called {arguments.topic}; that word is in a heading of {', '.join(found)}.")
    if arguments.topic is None or len(found) > 1:
        width = max(map(len, found))
        console.out("\n".join(f"{topic:<{width}}  {summary(topic)}" for topic in found))
        console.note("next: profilerkit guide " + found[0])
    elif console.live:
        _draw(page(found[0]), console)
    else:
        console.out(page(found[0]))
    return DONE


def _find(word: str) -> tuple[str, ...]:
    if word in TOPICS:
        return (word,)
    heading = re.compile(rf"^#+ .*\b{re.escape(word)}", re.IGNORECASE | re.MULTILINE)
    found = tuple(topic for topic in TOPICS if heading.search(page(topic)))
    if not found:
        raise unknown_word(word, TOPICS, what="topic", hint="profilerkit guide lists the topics")
    return found


def _draw(text: str, console: Console) -> None:
    """Draw Markdown on a terminal, through a pager where it is longer than the screen."""
    from rich.console import Console as Terminal
    from rich.markdown import Markdown

    os.environ.setdefault("LESS", "-FRX")  # a page that fits is printed, and colour is kept
    terminal = Terminal(width=min(console.width, 100), no_color=not console.colour)
    with terminal.pager(styles=console.colour):
        terminal.print(Markdown(text, code_theme="ansi_dark", hyperlinks=False))
