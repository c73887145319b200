"""The examples in the docstrings of the analysis hold."""

import doctest
import importlib
from pathlib import Path

import pytest

import profilerkit.analysis

ROOT = Path(profilerkit.analysis.__file__).parent
MODULES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for path in ROOT.rglob("*.py")
    if ">>> " in path.read_text(encoding="utf-8")
)


@pytest.mark.parametrize("module", MODULES)
def test_examples_hold(module):
    result = doctest.testmod(importlib.import_module(f"profilerkit.analysis.{module}"), optionflags=doctest.ELLIPSIS)
    assert result.attempted > 0
    assert result.failed == 0
