"""Arguments: argparse whose errors have three parts and know what was probably meant."""

import argparse
from collections.abc import Callable, Sequence
from typing import NoReturn

from profilerkit.errors import UsageError


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
        known = list(self._option_string_actions) if kind == "option" else []
        raise UsageError(
            f"unknown {kind} {first}",
            cause=f"{self.prog} takes no such {kind}",
            hint=did_you_mean(first.partition("=")[0], known) or f"see {self.prog} --help",
        )


def one_of(option: str, known: Sequence[str]) -> Callable[[str], str]:
    """An argument type that takes one of a few words."""

    def parse(text: str) -> str:
        return _known(option, text, known)

    return parse


def some_of(option: str, known: Sequence[str]) -> Callable[[str], tuple[str, ...]]:
    """An argument type that takes a few words separated by commas."""

    def parse(text: str) -> tuple[str, ...]:
        return tuple(dict.fromkeys(_known(option, word.strip(), known) for word in text.split(",")))

    return parse


def unknown_word(word: str, known: Sequence[str], *, what: str, hint: str) -> UsageError:
    """The error for a word that is not among the known ones; ``hint`` is for when none comes close."""
    from profilerkit.config import did_you_mean

    shown = known if len(known) <= 8 else [*known[:6], f"… {len(known) - 6} more"]
    return UsageError(
        f"unknown {what} {word!r}",
        cause=f"known: {', '.join(shown)}",
        hint=did_you_mean(word, known) or hint,
    )


def _known(option: str, word: str, known: Sequence[str]) -> str:
    if word not in known:
        raise unknown_word(word, known, what=f"value for {option}:", hint=f"give {option} one of these")
    return word
