"""Arguments whose errors know what was probably meant; settings with consent to rules; what ``--no-redact`` decides."""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from profilerkit.cli.console import Console
from profilerkit.config import Settings, load_settings
from profilerkit.errors import UsageError

if TYPE_CHECKING:
    from profilerkit.model.report import Report


class Parser(argparse.ArgumentParser):
    """A parser that raises ``UsageError`` instead of printing and exiting."""

    def error(self, message: str) -> NoReturn:
        """Raise what argparse found wrong."""
        raise UsageError(f"{self.prog} cannot be run as given", cause=message, hint=f"see {self.prog} --help")

    def reject(self, extra: Sequence[str]) -> NoReturn:
        """Raise for arguments nobody takes, with the option that was probably meant."""
        from profilerkit.config import did_you_mean

        first = extra[0]
        kind = "option" if first.startswith("-") else "argument"
        # Compared without their dashes, which all options share.
        known = [option[2:] for option in self._option_string_actions if option.startswith("--")]
        word = first.partition("=")[0].lstrip("-")
        close = did_you_mean(word, known).replace("did you mean ", "did you mean --") if kind == "option" else ""
        raise UsageError(
            f"unknown {kind} {first}",
            cause=f"{self.prog} takes no such {kind}",
            hint=close or f"see {self.prog} --help",
        )


def one_of(option: str, known: Sequence[str]) -> Callable[[str], str]:
    """An argument type that takes one of a few words."""

    def parse(text: str) -> str:
        return _known(option, text, known)

    parse.known = known  # type: ignore[attr-defined]  # what a shell's completion offers
    return parse


def some_of(
    option: str, known: Sequence[str], more: Callable[[], Sequence[str]] = tuple
) -> Callable[[str], tuple[str, ...]]:
    """An argument type that takes a few words separated by commas; ``more`` is asked when one is not in ``known``."""

    def parse(text: str) -> tuple[str, ...]:
        words = [word.strip() for word in text.split(",")]
        allowed = known if set(words) <= set(known) else [*known, *more()]
        return tuple(dict.fromkeys(_known(option, word, allowed) for word in words))

    parse.known = known  # type: ignore[attr-defined]
    return parse


def _known(option: str, word: str, known: Sequence[str]) -> str:
    if word not in known:
        from profilerkit.config import unknown_word

        raise unknown_word(word, known, what=f"value for {option}:", hint=f"give {option} one of these")
    return word


def seconds(option: str, least: float, most: float) -> Callable[[str], float]:
    """An argument type that takes a time between two others, both included."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if not least <= value <= most:
            raise UsageError(
                f"{option} is {text}",
                cause=f"it must be a number of seconds from {least:g} to {most:,.0f}",
                hint=f"write {option} {max(least, 5):g}",
            )
        return value

    return parse


def add_no_redact(parser: argparse.ArgumentParser) -> None:
    """Declare ``--no-redact``."""
    parser.add_argument(
        "--no-redact",
        action="store_true",
        help="show values of the command line, messages, user and host names, and paths",
    )


def shown_report(
    report: "Report", paths: Sequence[Path], arguments: argparse.Namespace, *, is_local: bool = False
) -> "Report":
    """The report as it is told: redacted unless ``--no-redact``.

    Where ``is_local``, for the terminal of who asks, the plain words of what a program said are shown.
    """
    if arguments.no_redact:
        return report
    from profilerkit.report.redaction import redacted
    from profilerkit.rundir.places import identity_of

    return redacted(report, identity_of(paths), is_local=is_local)


def add_allow_rules(parser: argparse.ArgumentParser) -> None:
    """Declare ``--allow-rules``."""
    parser.add_argument(
        "--allow-rules",
        action="store_true",
        help="load the rules that pyproject.toml names, now and later, until one of their files changes",
    )


def project_settings(arguments: argparse.Namespace, console: Console, *, runs_rules: bool = True) -> Settings:
    """Return the settings in force, and say whose rules are loaded, or were found and are not.

    Raises:
        UsageError: a setting is wrong, or ``--allow-rules`` finds no rules.
    """
    from profilerkit.plugins import about_project_rules, allow

    settings = load_settings(vars(arguments))
    if arguments.allow_rules:
        if settings.rules_from is None or not Path(settings.rules_path or "").exists():
            raise UsageError(
                "--allow-rules found no rules",
                cause="no pyproject.toml here or above names a rules-path that exists",
                hint='write rules-path = "checks" under [tool.profilerkit]',
            )
        record = allow(Path(settings.rules_path or ""))
        console.note(f"allowed the rules in {settings.rules_path} as they are now; recorded in {record}")
    if runs_rules:
        for sentence in about_project_rules(settings):
            console.note(sentence)
    return settings
