"""Rules and renderers of other packages, found through their entry points; a broken one is named and left out."""

import inspect
import logging
from collections.abc import Callable, Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING

from profilerkit.errors import UsageError

if TYPE_CHECKING:
    from profilerkit.model.report import Report
    from profilerkit.rules.rule import Rule

#: Each entry point is a ``Rule``, or a class of one that needs no arguments.
RULE_GROUP = "profilerkit.rules"
#: Each entry point is a function from a ``Report`` to text; its name is the name of the format.
RENDERER_GROUP = "profilerkit.renderers"

logger = logging.getLogger(__name__)


def installed_rules() -> "tuple[tuple[Rule, ...], tuple[str, ...]]":
    """The rules of other packages by code, and a sentence about each one that cannot be used."""
    from profilerkit.rules import RULES

    rules: list[Rule] = []
    notes: list[str] = []
    for entry in entry_points(group=RULE_GROUP):
        try:
            rules.append(_rule(entry, [rule.code for rule in (*RULES, *rules)]))
        except Exception as error:
            # Code of strangers runs here: what it raises is said in the report and costs that rule alone.
            logger.debug("rule %s of %s cannot be used", entry.name, _package(entry), exc_info=True)
            notes.append(f"The rule {entry.name} of the package {_package(entry)} was left out: {_said(error)}.")
    return tuple(sorted(rules, key=lambda rule: rule.code)), tuple(notes)


def renderer_names() -> list[str]:
    """The formats that other packages add."""
    return sorted({entry.name for entry in entry_points(group=RENDERER_GROUP)})


def find_renderer(name: str) -> "Callable[[Report], str]":
    """The renderer of a format in ``renderer_names``.

    Raises:
        UsageError: it cannot be imported, or, when it is called, fails or does not return text.
    """
    entry = next(iter(entry_points(group=RENDERER_GROUP, name=name)))
    try:
        found = entry.load()
    except Exception as error:
        raise _unusable(entry, _said(error)) from error

    def render(report: "Report") -> str:
        try:
            text = found(report)
        except Exception as error:
            raise _unusable(entry, _said(error)) from error
        if not isinstance(text, str):
            raise _unusable(entry, f"it returned {type(text).__name__} instead of text")
        return text

    return render


def _rule(entry: EntryPoint, taken: Sequence[str]) -> "Rule":
    from profilerkit.rules.rule import Rule

    found = entry.load()
    rule = found() if inspect.isclass(found) else found
    if not isinstance(rule, Rule):
        raise TypeError(f"{entry.value} is no profilerkit.rules.rule.Rule")
    missing = [name for name in ("code", "name", "family", "summary") if not isinstance(getattr(rule, name, None), str)]
    if missing:
        raise TypeError(f"it has no {', '.join(missing)}")
    if rule.code in taken:
        raise ValueError(f"another rule has the code {rule.code}")
    return rule


def _unusable(entry: EntryPoint, cause: str) -> UsageError:
    return UsageError(
        f"the format {entry.name} of the package {_package(entry)} cannot be written",
        cause=cause,
        hint="choose another format, or report this to the authors of that package",
    )


def _package(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist is not None else entry.module


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}".rstrip(" :").removesuffix(".")
