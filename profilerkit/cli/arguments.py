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
