"""Which names are communication, which collective each is, and the bytes and bandwidths that it represents."""

import re
import tomllib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from profilerkit.errors import UsageError

UNKNOWN = "unknown"
SEND_RECV = "send_recv"
#: Of a name, what the user's patterns are searched in: no kernel needs more to be recognised, and the time a pattern
#: can take grows with it.
SEARCHED_CHARACTERS = 200
#: Repetitions without a bound in one pattern of the user's: each multiplies the time by the length of the name.
MOST_REPETITIONS = 3


class Registry(msgspec.Struct, frozen=True):
    """The names of communication: the first of the user's ``custom`` patterns, then of ``kinds``, counts."""

    communication: re.Pattern[str]
    kinds: tuple[tuple[str, re.Pattern[str]], ...]
    custom: tuple[tuple[str, re.Pattern[str]], ...] = ()

    def communicates(self, name: str) -> bool:
        """Whether an event of this name is communication."""
        return self.communication.search(name) is not None or self._custom_kind(name) is not None

    def kind(self, name: str) -> str:
        """The collective that a kernel's name, an annotation or ``Collective name`` stands for.

        >>> [built_in().kind(name) for name in ("ncclDevKernel_AllReduce_Sum", "nccl:_all_gather_base", "rccl_main")]
        ['all_reduce', 'all_gather', 'unknown']
        """
        own = self._custom_kind(name)
        if own is not None and own != UNKNOWN:
            return own
        return next((kind for kind, pattern in self.kinds if pattern.search(name)), UNKNOWN)

    def _custom_kind(self, name: str) -> str | None:
        text = name[:SEARCHED_CHARACTERS]
        return next((kind for kind, pattern in self.custom if pattern.search(text)), None)


@cache
def built_in() -> Registry:
    """The table that ships with the program."""
    table: dict[str, list[dict[str, Any]]] = tomllib.loads(Path(__file__).with_name("kernels.toml").read_text("utf-8"))
    return Registry(
        communication=re.compile("|".join(f"(?:{row['match']})" for row in table["library"]), re.IGNORECASE),
        kinds=tuple((row["name"], re.compile(row["match"], re.IGNORECASE)) for row in table["kind"]),
    )


def with_patterns(texts: Sequence[str]) -> Registry:
    """The table with the user's own: a regular expression, or ``all_reduce=expression`` to say which collective it is.

    Raises:
        UsageError: an expression cannot be compiled, or could take more than the time of a search.

    >>> with_patterns(["all_reduce=^my_sum"]).kind("my_sum_kernel"), with_patterns(["^my_"]).communicates("my_kernel")
    ('all_reduce', True)
    """
    return Registry(built_in().communication, built_in().kinds, tuple(_compiled(text) for text in texts))


def _compiled(text: str) -> tuple[str, re.Pattern[str]]:
    kind, equals, expression = text.partition("=")
    if not equals or kind not in (UNKNOWN, *dict(built_in().kinds)):
        kind, expression = UNKNOWN, text
    shown = repr(text if len(text) <= SEARCHED_CHARACTERS else f"{text[:SEARCHED_CHARACTERS]}…")
    try:
        pattern = re.compile(expression, re.IGNORECASE)
    except (re.error, OverflowError, RecursionError) as error:
        raise UsageError(
            f"{shown} is not a regular expression", cause=str(error), hint="see the syntax of Python's module re"
        ) from error
    if pattern.search(""):
        raise UsageError(
            f"{shown} would make every kernel communication",
            cause="it matches an empty name",
            hint='write part of the name: communication-kernels = ["all_reduce=^my_all_reduce"]',
        )
    if why := _costly(expression):
        raise UsageError(
            f"{shown} could take very long on some names",
            cause=why,
            hint="write a simpler expression, for example the beginning of the name",
        )
    return kind, pattern


def _costly(expression: str) -> str:
    """Why a search could take long, as where a repeated group repeats or chooses within itself; else empty."""
    if len(expression) > SEARCHED_CHARACTERS:
        return f"it is longer than {SEARCHED_CHARACTERS} characters"
    bare = re.sub(r"\\.|\[\^?\]?[^\]]*\]", "x", expression)
    bare = re.sub(r"\(\?(?:P?<\w+>|P=\w+|[a-zA-Z-]*:?)?[=!]?", "(", bare)
    if len(re.findall(r"[*+{]", bare)) > MOST_REPETITIONS:
        return f"it repeats more than {MOST_REPETITIONS} times"
    inner = [False]
    for index, char in enumerate(bare):
        if char == "(":
            inner.append(False)
        elif char == ")" and len(inner) > 1:
            varies = inner.pop()
            if varies and bare[index + 1 : index + 2] in ("*", "+", "{"):
                return "a repeated group repeats or chooses within itself"
            inner[-1] = inner[-1] or varies
        elif char in "*+{|?":
            inner[-1] = True
    return ""


MOST_BYTES = 1 << 50  #: no tensor is larger; what says so is damaged


def bus_factor(kind: str, group_size: int | None) -> float | None:
    """Bus bandwidth / algorithm bandwidth (nccl-tests, PERFORMANCE.md); ``None`` where kind or group is not known.

    >>> bus_factor("all_reduce", 8), bus_factor("all_gather", 8), bus_factor("broadcast", 8)
    (1.75, 0.875, 1.0)
    """
    if kind in ("broadcast", "reduce", "send_recv"):
        return 1.0
    if kind in (UNKNOWN, "barrier") or group_size is None or group_size < 2:
        return None
    share = (group_size - 1) / group_size
    return 2.0 * share if kind == "all_reduce" else share
