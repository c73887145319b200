"""Settings: flags win over ``PROFILERKIT_*``, these over ``[tool.profilerkit]``, this over the defaults."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from profilerkit.errors import ConfigError, UsageError

SEVERITIES = ("high", "medium", "low")


@dataclass(frozen=True, slots=True)
class Settings:
    """What can be set for an analysis outside the call itself.

    Attributes:
        select: rule codes or their prefixes to run, for example ``IN`` or ``IN002``; empty means all.
        ignore: rule codes or their prefixes not to run.
        device: name of the device to compare with when the recording does not know it; ``None`` means as recorded.
        fail_on: exit with 1 when a finding has this severity or a higher one; ``None`` means never.
        communication_kernels: patterns of kernel names that are communication beside the known ones, each a regular
            expression or ``all_reduce=expression``; text stands for several when blanks separate them.
    """

    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    device: str | None = None
    fail_on: str | None = None
    communication_kernels: tuple[str, ...] = ()


_NAMES = tuple(field.name for field in fields(Settings))
#: Settings that are lists: what separates items in text, what they hold, and how they are written.
_LISTS: dict[str, tuple[str | None, str, str]] = {
    "select": (",", "rule codes", '["IN", "CO003"]'),
    "ignore": (",", "rule codes", '["IN", "CO003"]'),
    "communication_kernels": (None, "patterns", '["all_reduce=^my_all_reduce"]'),
}


def did_you_mean(name: str, known: Sequence[str]) -> str:
    """A hint with the known name closest to a mistyped one, or an empty string when none is close.

    >>> did_you_mean("analyse", ["analyze", "rules"]), did_you_mean("x", ["analyze"])
    ('did you mean analyze?', '')
    """
    from difflib import get_close_matches

    by_lower = {candidate.lower(): candidate for candidate in known}
    closest = get_close_matches(name.lower(), by_lower, n=1)
    return f"did you mean {by_lower[closest[0]]}?" if closest else ""


def unknown_word(word: str, known: Sequence[str], *, what: str, hint: str) -> UsageError:
    """The error for a word that is not among the known ones; ``hint`` is for when none comes close."""
    shown = known if len(known) <= 8 else [*known[:6], f"… {len(known) - 6} more"]
    return UsageError(
        f"unknown {what} {word!r}",
        cause=f"known: {', '.join(shown)}",
        hint=did_you_mean(word, known) or hint,
    )


def rule_prefixes(wanted: Sequence[str], codes: Sequence[str]) -> tuple[str, ...]:
    """Codes or their beginnings, written as the known codes are. Raises ``UsageError`` for one that no code has.

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
    flags: Mapping[str, Any],
    *,
    environment: Mapping[str, str] | None = None,
    start: Path | None = None,
) -> Settings:
    """The settings in force. A flag that is ``None`` or empty was not given.

    ``environment`` is ``os.environ`` and ``start``, where the search for ``pyproject.toml`` begins, is the working
    directory unless given. Raises ``ConfigError`` for an unknown key, a wrong type or a value that is not allowed.
    """
    settings = replace(Settings(), **_from_pyproject(start or Path.cwd()))
    settings = replace(settings, **_from_environment(os.environ if environment is None else environment))
    given = {name: value for name, value in flags.items() if name in _NAMES and value not in (None, [], ())}
    return replace(settings, **{name: _checked(name, value, "the command line") for name, value in given.items()})


def _from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in _NAMES:
        variable = f"PROFILERKIT_{name.upper()}"
        if environment.get(variable):
            found[name] = _checked(name, environment[variable], variable)
    return found


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
        table = document.get("tool", {}).get("profilerkit", {})
        return _checked_table(table, path)
    return {}


def _checked_table(table: Any, path: Path) -> dict[str, Any]:
    if not isinstance(table, dict):
        raise ConfigError(f"[tool.profilerkit] in {path} is not a table", hint='write it as select = ["IN"] below it')
    where = f"[tool.profilerkit] in {path}"
    for key in table:
        if key.replace("-", "_") not in _NAMES:
            known = [name.replace("_", "-") for name in _NAMES]
            hint = did_you_mean(key, known) or f"known settings: {', '.join(known)}"
            raise ConfigError(f"unknown setting {key!r}", cause=f"it stands in {where}", hint=hint)
    return {key.replace("-", "_"): _checked(key.replace("-", "_"), value, where) for key, value in table.items()}


def _checked(name: str, value: Any, where: str) -> Any:
    """The value in the type of its setting. Lists may also be written as text."""
    option = name.replace("_", "-")
    if name in _LISTS:
        separator, noun, example = _LISTS[name]
        items = [value] if isinstance(value, str) else value
        if not isinstance(items, (list, tuple)) or not all(isinstance(item, str) for item in items):
            raise ConfigError(
                f"{option} is not a list of {noun}",
                cause=f"{where} says {value!r}",
                hint=f"write {option} = {example}",
            )
        return tuple(piece.strip() for item in items for piece in item.split(separator) if piece.strip())
    if not isinstance(value, str):
        raise ConfigError(f"{option} is not text", cause=f"{where} says {value!r}", hint=f'write {option} = "…"')
    if name == "fail_on" and value not in SEVERITIES:
        hint = did_you_mean(value, SEVERITIES) or f"allowed: {', '.join(SEVERITIES)}"
        raise ConfigError(f"{value!r} is not a severity", cause=f"{where} sets {option}", hint=hint)
    return value
