"""The names that users import, and those that the annotations of their code need."""

import ast
import inspect
import typing
from importlib import import_module
from pathlib import Path

import pytest

import profilerkit

TYPES = (
    *("Diff", "Finding", "Fix", "Outcome", "Profile", "Report", "Saving", "Settings"),
    *("TraceHandler", "Trial", "Verdict"),
)


def test_every_public_name_is_there_and_listed_once():
    assert dir(profilerkit) == sorted(profilerkit.__all__)
    for name in profilerkit.__all__:
        assert getattr(profilerkit, name) is not None
    assert set(TYPES) <= set(profilerkit.__all__)


def test_what_is_not_public_is_no_attribute():
    with pytest.raises(AttributeError, match="has no attribute 'analyse'"):
        _ = profilerkit.analyse


def test_type_checkers_see_the_same_names():
    """They read the imports below ``TYPE_CHECKING``; Python reads the lazy table."""
    tree = ast.parse(Path(profilerkit.__file__).read_text("utf-8"))
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    imported = {alias.asname: (node.module, alias.name) for node in block.body for alias in node.names}
    assert set(imported) | {"__version__"} == set(profilerkit.__all__)
    for name, (module, attribute) in imported.items():
        assert getattr(import_module(module), attribute) is getattr(profilerkit, name)


def classes_in(hint):
    """Return our classes within an annotation."""
    if inspect.isclass(hint) and hint.__module__.startswith("profilerkit."):
        yield hint
    for inner in typing.get_args(hint):
        yield from classes_in(inner)


@pytest.mark.parametrize("name", ["analyze", "diff", "load", "profile", "reduce", "summarise", "trace_handler"])
def test_what_a_public_function_takes_and_gives_can_be_annotated(name):
    hints = typing.get_type_hints(
        getattr(profilerkit, name), localns={known: getattr(profilerkit, known) for known in profilerkit.__all__}
    )
    named = {found.__name__ for hint in hints.values() for found in classes_in(hint)}
    assert named <= set(profilerkit.__all__)
