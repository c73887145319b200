"""Load rules and renderers of other packages and of the project, which the user allows; a broken one is left out."""

import hashlib
import inspect
import json
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple

from profilerkit.config import Settings
from profilerkit.errors import UsageError, raised
from profilerkit.formats.registry import entry_points, package_of
from profilerkit.rundir.files import read_regular, write_whole

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from profilerkit.model.report import Report
    from profilerkit.rules.api import Rule


_MOST_BYTES = 1 << 20  #: a rule is a page of text. A larger file is none, and is neither read nor run.


def rule_files(path: Path) -> dict[Path, bytes | None]:
    """Return the Python files of a file or directory of rules, with their content.

    In a directory, files whose names begin with ``_`` or ``test_`` hold no rules. The content is ``None`` for what
    cannot be read, is no regular file, or is larger than 1 MiB.
    """
    named = sorted(path.glob("*.py")) if path.is_dir() else [path]
    return {file: _content(file) for file in named if not (path.is_dir() and file.name.startswith(("_", "test_")))}


def _content(file: Path) -> bytes | None:
    try:
        return read_regular(file, _MOST_BYTES, named=True)
    except OSError:
        return None


def is_allowed(path: Path, files: Mapping[Path, bytes | None]) -> bool:
    """Return whether you allowed exactly these files of that path."""
    return _allowed().get(os.path.realpath(path)) == _digest(files)


def allow(path: Path) -> Path:
    """Allow the rules of a path as they are now, and return the file that says so, which only you can read.

    Raises:
        UsageError: it cannot be written.
    """
    try:
        record = _record()
        record.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        known = {**_allowed(), os.path.realpath(path): _digest(rule_files(path))}
        write_whole(record, json.dumps(known, indent=2).encode(), mode=0o600)
    except (OSError, RuntimeError) as error:  # RuntimeError: there is no home directory
        raise UsageError(
            "the rules cannot be recorded as allowed",
            cause=str(error),
            hint="set XDG_CONFIG_HOME to a directory of yours, or name the rules with PROFILERKIT_RULES_PATH",
        ) from error
    return record


def _record() -> Path:
    base = os.environ.get("XDG_CONFIG_HOME", "")
    return (Path(base) if Path(base).is_absolute() else Path.home() / ".config") / "profilerkit" / "allowed_rules.json"


def _allowed() -> dict[str, str]:
    """Path to digest. A record that another user owns or may write counts as none."""
    try:
        record = _record()
        found = record.stat()
        if found.st_uid != os.geteuid() or found.st_mode & 0o022:
            return {}
        known = json.loads(record.read_text("utf-8"))
    except (OSError, RuntimeError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}


def _digest(files: Mapping[Path, bytes | None]) -> str:
    told = hashlib.sha256()
    for file, content in files.items():
        told.update(repr((file.name, content)).encode("utf-8", "surrogateescape"))
    return told.hexdigest()


RULE_GROUP = "profilerkit.rules"  #: each entry point is a ``Rule``, or a class of one that needs no arguments
#: Each entry point is a function from a ``Report`` to text; its name is the name of the format.
RENDERER_GROUP = "profilerkit.renderers"

logger = logging.getLogger(__name__)


_PROJECT_MODULES = "profilerkit_project_rules"  #: under which name the files of a project's own rules are imported


class KnownRules(NamedTuple):
    """Hold the rules of an analysis.

    Attributes:
        all: the built-in rules, those of other packages and the project's own.
        notes: a sentence for each rule that cannot be used, and about the project's code.
        withheld: whether the project has rules that were not loaded, because the user did not allow them.
    """

    all: "tuple[Rule, ...]"
    notes: tuple[str, ...]
    withheld: bool


def all_rules(settings: Settings) -> KnownRules:
    """Return the rules: the project's own only where their path was named explicitly, or the user allowed them."""
    from profilerkit.rules import RULES

    others, notes = installed_rules()
    known = (*RULES, *others)
    if settings.rules_path is None:
        return KnownRules(known, notes, withheld=False)
    path = Path(settings.rules_path)
    files = rule_files(path)
    about, withheld = _about(settings, files)
    if withheld:
        return KnownRules(known, (*about, *notes), withheld=True)
    own, said = project_rules(path, [rule.code for rule in known], files)
    return KnownRules((*known, *own), (*about, *notes, *said), withheld=False)


def about_project_rules(settings: Settings) -> tuple[str, ...]:
    """Return the note that says whose code is run, or was found and not run. Empty where the project has no rules."""
    return () if settings.rules_path is None else _about(settings, rule_files(Path(settings.rules_path)))[0]


def _about(settings: Settings, files: Mapping[Path, bytes | None]) -> tuple[tuple[str, ...], bool]:
    path = Path(settings.rules_path or "")
    if not path.exists():
        return (), False
    if settings.rules_from is None or is_allowed(path, files):
        return (f"Rules were loaded from {path}, whose code is run.",), False
    said = (
        f"Rules were found in {path} and not loaded: they are code that you have not allowed, or that has changed "
        "since. To allow them: profilerkit rules --allow-rules"
    )
    return (said,), True


def without_withheld(settings: Settings, rules: "Sequence[Rule]") -> Settings:
    """Return the settings without those of rules that are not among ``rules``.

    They name withheld rules by codes that are not known here. Where all rules are loaded such a code is an error.
    """
    names = {name.lower() for rule in rules for name in (rule.code, rule.name)}

    def begins(prefix: str) -> bool:
        return any(name.startswith(prefix.lower()) for name in names)

    return replace(
        settings,
        select=tuple(filter(begins, settings.select)),
        ignore=tuple(filter(begins, settings.ignore)),
        rules={rule: options for rule, options in settings.rules.items() if rule.lower() in names},
        suppress=tuple(entry for entry in settings.suppress if entry.rule.lower() in names),
    )


def project_rules(
    path: Path, taken: Sequence[str], files: Mapping[Path, bytes | None] | None = None
) -> "tuple[tuple[Rule, ...], tuple[str, ...]]":
    """Return the rules of a Python file or directory by code, and a note about each that cannot be used.

    A file stands by itself: it imports what is installed. Every class of a rule that a file defines is one. ``taken``
    are codes that others have; ``files`` is what ``rule_files`` found, so that what was allowed is what runs.
    """
    if not path.exists():
        return (), (f"The rules of {path} were left out: there is no such file or directory.",)
    rules: list[Rule] = []
    notes: list[str] = []
    for file, content in (rule_files(path) if files is None else files).items():
        try:
            found: list[Rule] = []
            for rule in _rules_in(file, content):
                found.append(_usable(rule, [*taken, *(known.code for known in (*rules, *found))]))
            if not found:
                raise TypeError("it defines no profilerkit.rules.api.Rule")
            rules += found
        except (Exception, SystemExit) as error:
            # The user's own code runs here: what it raises is said in the report and costs that file alone.
            logger.debug("the rules of %s cannot be used", file, exc_info=True)
            notes.append(f"The rules file {file} was left out: {raised(error)}.")
    return tuple(sorted(rules, key=lambda rule: rule.code)), tuple(notes)


def _rules_in(file: Path, content: bytes | None) -> "list[Rule]":
    from profilerkit.rules.api import Rule

    if content is None or file.suffix != ".py":
        raise ImportError(f"{file.name} is not a Python file that can be read")
    name = f"{_PROJECT_MODULES}.{file.stem}"
    module = ModuleType(name)
    module.__file__ = str(file)
    # Compiled here: a .pyc beside the file would run instead of what was allowed.
    code = compile(content, str(file), "exec", dont_inherit=True)
    # Dataclasses look their module up by its name.
    sys.modules[name] = module
    with ExitStack() as failed:
        failed.callback(sys.modules.pop, name)
        exec(code, vars(module))  # noqa: S102  the user's own rules, which were named or allowed
        failed.pop_all()
    classes = [found for found in vars(module).values() if inspect.isclass(found) and found.__module__ == name]
    return [found() for found in classes if issubclass(found, Rule) and found.check is not Rule.check]


@cache
def installed_rules() -> "tuple[tuple[Rule, ...], tuple[str, ...]]":
    """Return the rules of other packages by code, and a note about each one that cannot be used.

    They are looked for once.
    """
    from profilerkit.rules import RULES

    rules: list[Rule] = []
    notes: list[str] = []
    for entry in entry_points(group=RULE_GROUP):
        try:
            rules.append(_rule(entry, [rule.code for rule in (*RULES, *rules)]))
        except Exception as error:
            # Code of strangers runs here: what it raises is said in the report and costs that rule alone.
            logger.debug("rule %s of %s cannot be used", entry.name, package_of(entry), exc_info=True)
            notes.append(f"The rule {entry.name} of the package {package_of(entry)} was left out: {raised(error)}.")
    return tuple(sorted(rules, key=lambda rule: rule.code)), tuple(notes)


def renderer_names() -> list[str]:
    """Return the formats that other packages add."""
    return sorted({entry.name for entry in entry_points(group=RENDERER_GROUP)})


def find_renderer(name: str) -> "Callable[[Report], str]":
    """Return the renderer of a format in ``renderer_names``.

    Raises:
        UsageError: it cannot be imported, or, when it is called, fails or does not return text.
    """
    entry = next(entry for entry in entry_points(group=RENDERER_GROUP) if entry.name == name)
    try:
        found = entry.load()
    except Exception as error:
        raise _unusable(entry, raised(error)) from error

    def render(report: "Report") -> str:
        try:
            text = found(report)
        except Exception as error:
            raise _unusable(entry, raised(error)) from error
        if not isinstance(text, str):
            raise _unusable(entry, f"it returned {type(text).__name__} instead of text")
        return text

    return render


def _rule(entry: "EntryPoint", taken: Sequence[str]) -> "Rule":
    from profilerkit.rules.api import Rule

    found = entry.load()
    rule = found() if inspect.isclass(found) else found
    if not isinstance(rule, Rule):
        raise TypeError(f"{entry.value} is not a profilerkit.rules.api.Rule")
    return _usable(rule, taken)


def _usable(rule: "Rule", taken: Sequence[str]) -> "Rule":
    """The rule. Raises where it lacks what every rule has, or another has its code."""
    missing = [name for name in ("code", "name", "family", "summary") if not isinstance(getattr(rule, name, None), str)]
    if missing:
        raise TypeError(f"it has no {', '.join(missing)}")
    if rule.code in taken:
        raise ValueError(f"another rule has the code {rule.code}")
    return rule


def _unusable(entry: "EntryPoint", cause: str) -> UsageError:
    return UsageError(
        f"the format {entry.name} of the package {package_of(entry)} cannot be written",
        cause=cause,
        hint="choose another format, or report this to the authors of that package",
    )
