"""Facts to findings: one rule per file of a family's folder, found there."""

from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

from profilerkit.rules.api import Rule

FAMILIES = ("comm", "compute", "input", "memory", "overhead", "run")  #: folders of the rules


def _built_in() -> list[Rule]:
    """Return a rule of every rule class that a module of a family's folder defines."""
    folders = [(family, str(Path(__file__).parent / family)) for family in FAMILIES]
    names = [f"{__name__}.{family}.{module.name}" for family, folder in folders for module in iter_modules([folder])]
    found = [(name, member) for name in names for member in vars(import_module(name)).values()]
    classes = [(name, member) for name, member in found if isinstance(member, type) and issubclass(member, Rule)]
    return [rule() for name, rule in classes if rule.__module__ == name]


RULES: tuple[Rule, ...]  #: every built-in rule, sorted by code; imported when first asked for


@cache
def _sorted() -> tuple[Rule, ...]:
    return tuple(sorted(_built_in(), key=lambda rule: rule.code))


def __getattr__(name: str) -> tuple[Rule, ...]:
    if name != "RULES":
        raise AttributeError(name)
    return _sorted()
