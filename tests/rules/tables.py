"""Collect the cases of all rules: every file of tests here that has a table of its own adds to them."""

import re
from importlib import import_module
from pathlib import Path

_OWNERS = [
    import_module(f"tests.rules.{path.stem}")
    for path in sorted(Path(__file__).parent.glob("test_*.py"))
    if re.search(r"^(?:FIRES|CASES) = ", path.read_text("utf-8"), re.MULTILINE)
]


def tables(kind):
    """Return each table of cases of this kind, ``fires`` or ``passes``: facts by code, or pairs of the two."""
    owners = [getattr(owner, "CASES", owner) for owner in _OWNERS]
    return [getattr(owner, kind.upper(), None) or getattr(owner, kind) for owner in owners]
