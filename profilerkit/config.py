"""Read settings: flags win over ``PROFILERKIT_*``, these over ``[tool.profilerkit]``, this over the defaults."""

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import date
from pathlib import Path
from typing import Any

from profilerkit.errors import ConfigError, UsageError

SEVERITIES = ("high", "medium", "low")


@dataclass(frozen=True, slots=True)
class Suppression:
    """Suppress the findings of a rule, with a reason.

    Attributes:
        rule: its code.
        reason: why, in the user's words; every report shows it.
        until: the last day on which it holds; ``None`` for always.
    """

    rule: str
    reason: str
    until: date | None = None


class Options(dict[str, Any]):
    """Return the options of one rule by name, as a file holds them; errors name the table and file, ``where``.

    >>> Options({"smallest_share": 0.1}, where="[tool.profilerkit.rules.IN001] in pyproject.toml")["smallest_share"]
    0.1
    """

    def __init__(self, values: Mapping[str, Any], *, where: str) -> None:
        super().__init__(values)
        self.where = where


@dataclass(frozen=True, slots=True)
class Settings:
    """Hold the settings of an analysis.

    Attributes:
        select: rule codes or their prefixes to run, for example ``IN`` or ``IN002``; empty means all.
        ignore: rule codes or their prefixes not to run.
        device: name of the device to compare with when the recording does not know it; ``None`` means as recorded.
        fail_on: exit with 1 when a finding has this severity or a higher one; ``None`` means never.
        communication_kernels: more kernel names that are communication, each a regular expression or
            ``all_reduce=expression``. In text, blanks separate them.
        rules_path: directory or file with rules of the project, whose code is run.
        rules_from: the ``pyproject.toml`` that names these rules, which are then loaded only if the user allowed
            them; ``None`` where a variable or the caller does. Not itself a setting.
        rules: rule code to its options by name.
        suppress: rules whose findings are set aside, each with its reason.
        gpu_hour_price: price of one GPU for one hour, in any currency; ``None`` shows no cost.
        budgets: metric and limit of each line of ``[tool.profilerkit.budgets]``, as they stand there; as text
            ``step_time=200ms,input=20%``.
    """

    select: Sequence[str] = ()
    ignore: Sequence[str] = ()
    device: str | None = None
    fail_on: str | None = None
    communication_kernels: Sequence[str] = ()
    rules_path: str | None = None
    rules_from: Path | None = None
    rules: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    suppress: Sequence[Suppression] = ()
    gpu_hour_price: float | None = None
    budgets: tuple[tuple[str, str], ...] = ()


_FLAGS, _VARIABLE = "the command line", "PROFILERKIT_"  #: where a setting stands that is not in a file

_NAMES = tuple(setting.name for setting in fields(Settings) if setting.name != "rules_from")
_TABLES = ("rules", "suppress")  #: settings that only a file can hold
#: Settings that are lists: what separates items in text, what they hold, and how they are written.
_LISTS: dict[str, tuple[str | None, str, str]] = {
    "select": (",", "rule codes", '["IN", "CO003"]'),
    "ignore": (",", "rule codes", '["IN", "CO003"]'),
    "communication_kernels": (None, "patterns", '["all_reduce=^my_all_reduce"]'),
}


def did_you_mean(name: str, known: Sequence[str]) -> str:
    """Return a hint with the known name closest to a mistyped one; empty when none is close.

    >>> did_you_mean("analyse", ["analyze", "rules"]), did_you_mean("x", ["analyze"])
    ('did you mean analyze?', '')
    """
    from difflib import get_close_matches

    by_lower = {candidate.lower(): candidate for candidate in known}
    closest = get_close_matches(name.lower(), by_lower, n=1)
    return f"did you mean {by_lower[closest[0]]}?" if closest else ""


def unknown_word(word: str, known: Sequence[str], *, what: str, hint: str) -> UsageError:
    """Return the error for a word that is not among the known ones; ``hint`` is for when none comes close."""
    shown = known if len(known) <= 8 else [*known[:6], f"… {len(known) - 6} more"]
    return UsageError(
        f"unknown {what} {word!r}", cause=f"known: {', '.join(shown)}", hint=did_you_mean(word, known) or hint
    )


def rule_prefixes(wanted: Sequence[str], codes: Sequence[str]) -> tuple[str, ...]:
    """Return codes or their beginnings, written as the known codes are; raise ``UsageError`` for an unknown one.

    >>> rule_prefixes(["in", "Co001"], ["IN001", "CO001"]), rule_prefixes("in", ["IN001"])
    (('IN', 'CO001'), ('IN',))
    """
    found: list[str] = []
    for prefix in [wanted] if isinstance(wanted, str) else wanted:
        spelled = [code[: len(prefix)] for code in codes if code.lower().startswith(prefix.lower())]
        if not spelled:
            raise unknown_word(prefix, codes, what="rule", hint="profilerkit rules lists them")
        found += spelled
    return tuple(dict.fromkeys(found))


def load_settings(
    flags: Mapping[str, Any], *, environment: Mapping[str, str] | None = None, start: Path | None = None
) -> Settings:
    """Return the settings in force. A flag that is ``None`` or empty was not given.

    ``environment`` is ``os.environ`` and ``start``, where the search for ``pyproject.toml`` begins, is the working
    directory unless given. Raises ``ConfigError`` for an unknown key, a wrong type or a value that is not allowed.
    """
    settings = replace(Settings(), **_from_pyproject(start or Path.cwd()))
    set_here = _from_environment(os.environ if environment is None else environment)
    settings = replace(settings, **set_here)
    if "rules_path" in set_here:
        settings = replace(settings, rules_from=None)
    given = {name: value for name, value in flags.items() if name in _NAMES and value not in (None, [], ())}
    return replace(settings, **{name: _checked(name, value, _FLAGS) for name, value in given.items()})


def _from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    variables = {name: f"{_VARIABLE}{name.upper()}" for name in _NAMES if name not in _TABLES}
    return {
        name: _checked(name, environment[variable], variable)
        for name, variable in variables.items()
        if environment.get(variable)
    }


def _from_pyproject(start: Path) -> dict[str, Any]:
    import tomllib

    for directory in (start.absolute(), *start.absolute().parents):
        path = directory / "pyproject.toml"
        if not path.is_file():
            continue
        try:
            document = tomllib.loads(path.read_text("utf-8"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
            raise ConfigError(f"{path} cannot be read", cause=str(error), hint="correct the file") from error
        found = _checked_table(document.get("tool", {}).get("profilerkit", {}), path)
        if "rules_path" in found:
            found["rules_from"] = path
            if directory != start.absolute():
                found["rules_path"] = str(directory / found["rules_path"])
        return found
    return {}


def _checked_table(table: Any, path: Path) -> dict[str, Any]:
    if not isinstance(table, dict):
        raise ConfigError(f"[tool.profilerkit] in {path} is not a table", hint='write it as select = ["IN"] below it')
    where = f"[tool.profilerkit] in {path}"
    for key in table:
        if key.replace("-", "_") not in _NAMES:
            known = [name.replace("_", "-") for name in _NAMES]
            raise _unknown_key(key, f"unknown setting {key!r}", known, "known settings", where)
    return {key.replace("-", "_"): _checked(key.replace("-", "_"), value, where) for key, value in table.items()}


def _unknown_key(key: str, what: str, known: Sequence[str], all_of_them: str, where: str) -> ConfigError:
    hint = did_you_mean(key, known) or f"{all_of_them}: {', '.join(known)}"
    return ConfigError(what, cause=f"it is in {where}", hint=hint)


def _refused(what: str, value: Any, where: str, hint: str) -> ConfigError:
    return ConfigError(what, cause=f"{where} says {value!r}", hint=hint)


def _checked(name: str, value: Any, where: str) -> Any:
    """The value in the type of its setting. Lists may also be written as text."""
    option = name.replace("_", "-")
    if name in _PARSED:
        return _PARSED[name](value, where)
    if name in _LISTS:
        separator, noun, example = _LISTS[name]
        items = [value] if isinstance(value, str) else value
        if not isinstance(items, (list, tuple)) or not all(isinstance(item, str) for item in items):
            raise _refused(f"{option} is not a list of {noun}", value, where, f"write {option} = {example}")
        return tuple(piece.strip() for item in items for piece in item.split(separator) if piece.strip())
    if not isinstance(value, str):
        raise _refused(f"{option} is not text", value, where, f'write {option} = "…"')
    if name == "fail_on" and value not in SEVERITIES:
        hint = did_you_mean(value, SEVERITIES) or f"allowed: {', '.join(SEVERITIES)}"
        raise ConfigError(f"{value!r} is not a severity", cause=f"{where} sets {option}", hint=hint)
    return value


def _price(value: Any, where: str) -> float:
    """A price of at least 0; text, as a variable has it, is read as a number."""
    try:
        price = float(value) if not isinstance(value, bool) else math.nan
    except (TypeError, ValueError):
        price = math.nan
    if not (math.isfinite(price) and price >= 0):
        raise ConfigError(
            f"{'--' if where == _FLAGS else ''}gpu-hour-price is not a price",
            cause=f"{where} says {value!r}, and a price is a number of 0 or more",
            hint="write a number, for example 2.5",
        )
    return price


def _rule_options(value: Any, where: str) -> dict[str, Options]:
    """Rule to options; which rules and options there are is known only where the rules are."""
    if not isinstance(value, dict) or not all(isinstance(options, dict) for options in value.values()):
        example = "write [tool.profilerkit.rules.IN001] with smallest_share = 0.1 below it"
        raise _refused("rules is not a table of tables", value, where, example)
    return {
        code: Options(
            {key.replace("-", "_"): item for key, item in options.items()},
            where=where.replace("]", f".rules.{code}]", 1),
        )
        for code, options in value.items()
    }


def _suppressions(value: Any, where: str) -> tuple[Suppression, ...]:
    example = 'write [[tool.profilerkit.suppress]] and below it rule = "IN002" and reason = "…"'
    if not isinstance(value, list) or not all(isinstance(entry, dict) for entry in value):
        raise _refused("suppress is not a list of tables", value, where, example)
    return tuple(_suppression(entry, where, example) for entry in value)


def _suppression(entry: dict[str, Any], where: str, example: str) -> Suppression:
    """One entry. Without a reason there is none: a report has to say why it is silent."""
    known = ("rule", "reason", "until")
    for key in entry:
        if key not in known:
            raise _unknown_key(key, f"unknown key {key!r} of a suppression", known, "known keys", where)
    rule, reason, until = (entry.get(key) for key in known)
    for key, text in (("rule", rule), ("reason", reason)):
        if not isinstance(text, str) or not text.strip():
            raise _refused(f"a suppression has no {key}", entry, where, example)
    try:
        last = date.fromisoformat(until) if isinstance(until, str) else until
    except ValueError:
        last = until
    if last is not None and type(last) is not date:
        raise ConfigError(f"{until!r} is not a day", cause=f"{where} sets until", hint="write until = 2026-12-31")
    return Suppression(rule=str(rule).strip(), reason=" ".join(str(reason).split()), until=last)


def _budgets(value: Any, where: str) -> tuple[tuple[str, str], ...]:
    """Metric and limit, not yet read: what metrics there are is known further up."""
    if isinstance(value, str):
        pieces = [piece.partition("=") for piece in value.split(",")]
        value = {metric: limit for metric, _, limit in pieces} if all(limit for _, _, limit in pieces) else value
    if not isinstance(value, dict) or not all(isinstance(limit, str) for limit in value.values()):
        example = 'write step_time = "200 ms" under [tool.profilerkit.budgets]'
        raise _refused("budgets is not a table of limits as text", value, where, example)
    return tuple((metric.strip(), limit.strip()) for metric, limit in value.items())


#: Settings that are neither a list nor text.
_PARSED: dict[str, Callable[[Any, str], Any]] = {
    "rules": _rule_options,
    "suppress": _suppressions,
    "gpu_hour_price": _price,
    "budgets": _budgets,
}
