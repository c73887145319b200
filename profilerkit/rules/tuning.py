"""Rules as a project wants them: with its own thresholds, and without the findings it has set aside."""

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any

from profilerkit.config import Options, Suppression, did_you_mean, unknown_word
from profilerkit.errors import ConfigError
from profilerkit.model.change import revise
from profilerkit.rules.api import Rule


def with_options(
    rules: Sequence[Rule], options: Mapping[str, Mapping[str, Any]]
) -> tuple[tuple[Rule, ...], tuple[str, ...]]:
    """The rules with options by code or name, and a sentence about each rule that has another option than its own.

    Raises:
        UsageError: there is no such rule.
        ConfigError: the rule has no such option, or the value is not of the option's kind or out of its range.
    """
    changes: dict[str, dict[str, Any]] = {}
    for wanted, values in options.items():
        rule = _find(wanted, rules)
        where = values.where if isinstance(values, Options) else f"the options of {rule.code}"
        checked = {
            name: _in_range(rule, name, _checked(rule, name, value, where), where) for name, value in values.items()
        }
        changes.setdefault(rule.code, {}).update(checked)
    tuned = tuple(revise(rule, **changes[rule.code]) if rule.code in changes else rule for rule in rules)
    said = [_said(before, after) for before, after in zip(rules, tuned, strict=True)]
    return tuned, tuple(sentence for sentence in said if sentence)


def in_force(
    suppressions: Sequence[Suppression], rules: Sequence[Rule], today: date
) -> tuple[tuple[Suppression, ...], tuple[str, ...]]:
    """Return the suppressions that hold today, by the code of their rule, and a sentence about each that has ended.

    Raises ``UsageError`` for a rule that does not exist.
    """
    named = [dataclasses.replace(entry, rule=_find(entry.rule, rules).code) for entry in suppressions]
    ended = [entry for entry in named if entry.until is not None and entry.until < today]
    notes = tuple(f"The suppression of {entry.rule} ended on {entry.until}: {entry.reason}" for entry in ended)
    return tuple(entry for entry in named if entry not in ended), notes


def _find(wanted: str, rules: Sequence[Rule]) -> Rule:
    for rule in rules:
        if wanted.lower() in (rule.code.lower(), rule.name.lower()):
            return rule
    known = [name for rule in rules for name in (rule.code, rule.name)]
    raise unknown_word(wanted, known, what="rule", hint="profilerkit rules lists them")


def _checked(rule: Rule, name: str, value: Any, where: str) -> Any:
    """Return the value in the type of the option's default; a whole number may stand for one with a fraction."""
    known = {option: getattr(rule, option) for option in rule.__struct_fields__}
    if name not in known:
        hint = did_you_mean(name, list(known)) or (f"its options: {', '.join(known)}" if known else "it has no options")
        raise ConfigError(f"{rule.code} has no option {name!r}", cause=f"it is in {where}", hint=hint)
    default = known[name]
    if isinstance(default, float) and type(value) is int:
        return float(value)
    if isinstance(default, tuple) and isinstance(value, list):
        return tuple(value)
    if default is not None and type(value) is not type(default):
        raise ConfigError(
            f"{name} of {rule.code} has the wrong kind of value",
            cause=f"{where} says {value!r}, and its default is {default!r}",
            hint=_written(name, default),
        )
    return value


def _in_range(rule: Rule, name: str, value: Any, where: str) -> Any:
    """Return the value. A share, or a ratio whose default is none above 1, is from 0 to 1; other numbers are above 0.

    Of a rule whose default is itself no such number nothing but a finite one is asked.
    """
    default = getattr(rule, name)
    if type(value) not in (int, float) or type(default) not in (int, float):
        return value
    if name.endswith(("_share", "_ratio")) and 0 <= default <= 1:
        fits, range_ = 0 <= value <= 1, "from 0 to 1"
    elif default > 0:
        fits, range_ = 0 < value < math.inf, "above 0"
    else:
        fits, range_ = math.isfinite(value), "a finite number"
    if not fits:
        raise ConfigError(
            f"{name} of {rule.code} is out of its range",
            cause=f"{where} says {value}, and it has to be {range_}",
            hint=_written(name, default),
        )
    return value


def _written(name: str, default: Any) -> str:
    return f"write {name.replace('_', '-')} = {json.dumps(default)}"


def _said(before: Rule, after: Rule) -> str:
    pairs = [(name, getattr(before, name), getattr(after, name)) for name in before.__struct_fields__]
    changed = [f"{name} {old} → {new}" for name, old, new in pairs if old != new]
    return f"{before.code} was judged with other options than its own: {', '.join(changed)}." if changed else ""
