"""Rules as a project wants them: with its own thresholds, and without the findings it has set aside."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any

from profilerkit.config import Suppression, did_you_mean, unknown_word
from profilerkit.errors import ConfigError
from profilerkit.rules.rule import Rule


def with_options(
    rules: Sequence[Rule], options: Mapping[str, Mapping[str, Any]]
) -> tuple[tuple[Rule, ...], tuple[str, ...]]:
    """The rules with options by code or name, and a sentence about each rule that has another option than its own.

    Raises:
        UsageError: there is no such rule.
        ConfigError: the rule has no such option, or the value is not of the option's kind.
    """
    changes: dict[str, dict[str, Any]] = {}
    for wanted, values in options.items():
        rule = _find(wanted, rules)
        changes.setdefault(rule.code, {}).update({name: _checked(rule, name, value) for name, value in values.items()})
    tuned = tuple(dataclasses.replace(rule, **changes[rule.code]) if rule.code in changes else rule for rule in rules)
    said = [_said(before, after) for before, after in zip(rules, tuned, strict=True)]
    return tuned, tuple(sentence for sentence in said if sentence)


def in_force(
    suppressions: Sequence[Suppression], rules: Sequence[Rule], today: date
) -> tuple[tuple[Suppression, ...], tuple[str, ...]]:
    """The suppressions that hold today, by the code of their rule, and a sentence about each that has ended.

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


def _checked(rule: Rule, name: str, value: Any) -> Any:
    """The value in the type of the option's default; a whole number may stand for one with a fraction."""
    known = {field.name: getattr(rule, field.name) for field in dataclasses.fields(rule)}
    if name not in known:
        hint = did_you_mean(name, list(known)) or (f"its options: {', '.join(known)}" if known else "it has no options")
        raise ConfigError(f"{rule.code} has no option {name!r}", cause=f"see profilerkit rules {rule.code}", hint=hint)
    default = known[name]
    if isinstance(default, float) and type(value) is int:
        return float(value)
    if isinstance(default, tuple) and isinstance(value, list):
        return tuple(value)
    if default is not None and type(value) is not type(default):
        raise ConfigError(
            f"{name} of {rule.code} has the wrong kind of value",
            cause=f"it is {value!r}, and its default is {default!r}",
            hint=f"write {name.replace('_', '-')} = {json.dumps(default)}",
        )
    return value


def _said(before: Rule, after: Rule) -> str:
    pairs = [
        (field.name, getattr(before, field.name), getattr(after, field.name)) for field in dataclasses.fields(before)
    ]
    changed = [f"{name} {old} → {new}" for name, old, new in pairs if old != new]
    return f"{before.code} was judged with other options than its own: {', '.join(changed)}." if changed else ""
