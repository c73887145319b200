"""Facts to findings: one rule per file of a family's folder, found there."""

from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

from profilerkit.rules.api import Rule

#: Folders of the rules.
FAMILIES = ("comm", "compute", "input", "memory", "overhead", "run")


def _built_in() -> list[Rule]:
    """Return a rule of every rule class that a module of a family's folder defines."""
    names = [
        f"{__name__}.{family}.{module.name}"
        for family in FAMILIES
        for module in iter_modules([str(Path(__file__).parent / family)])
    ]
    classes = [(name, found) for name in names for found in vars(import_module(name)).values()]
    return [
        found()
        for name, found in classes
        if isinstance(found, type) and issubclass(found, Rule) and found.__module__ == name
    ]


#: Every built-in rule, sorted by code.
RULES: tuple[Rule, ...] = tuple(sorted(_built_in(), key=lambda rule: rule.code))
