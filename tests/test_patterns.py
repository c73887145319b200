"""No name, however long, makes the search for what it stands for slow."""

import importlib
import pkgutil
import re
import time
from collections.abc import Iterator

import pytest

import profilerkit.analysis
import profilerkit.trace
from profilerkit.analysis.communication.registry import built_in
from profilerkit.analysis.host.names import _LONGEST_FRAME

LENGTH = 40_000
#: These repair the text of a file, not names; they have tests of their own.
TEXT_OF_FILES = ("profilerkit.formats.kineto.repair", "profilerkit.formats.kineto.salvage")
#: Searched in the beginning of a name only.
FRAMES = "profilerkit.analysis.host.names"
#: A linear search takes a few ms; one that starts again at each word takes a hundred times as long.
LONGEST_S = 0.15


def patterns_in(value: object) -> Iterator[re.Pattern[str]]:
    if isinstance(value, re.Pattern):
        yield from (value,) if isinstance(value.pattern, str) else ()
    elif isinstance(value, tuple | list):
        for entry in value:
            yield from patterns_in(entry)
    elif isinstance(value, dict):
        yield from patterns_in(tuple(value.values()))


def all_patterns() -> Iterator[tuple[str, re.Pattern[str]]]:
    for package in (profilerkit.analysis, profilerkit.trace):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if module.name not in TEXT_OF_FILES:
                for name, value in vars(importlib.import_module(module.name)).items():
                    yield from ((f"{module.name}.{name}", pattern) for pattern in patterns_in(value))
    registry = built_in()
    yield from (("registry", pattern) for pattern in (registry.communication, *patterns_in(registry.kinds)))


def hostile(pattern: re.Pattern[str]) -> Iterator[str]:
    """Names made of the pattern's own words, again and again, with its beginning before and nothing that ends it."""
    words = set(re.findall(r"[A-Za-z_:]{2,}", re.sub(r"\\[A-Za-z]", " ", pattern.pattern)))
    begin = re.match(r"\^(?:\(\?:)?([A-Za-z_:]+)", pattern.pattern)
    for word in ("x", "0", " ", ".py(1", "): ", *sorted(words)):
        yield (begin[1] if begin else "") + word * (LENGTH // len(word)) + "\n!\n"


@pytest.mark.parametrize(("place", "pattern"), [pytest.param(*found, id=found[0]) for found in all_patterns()])
def test_a_search_takes_time_in_proportion_to_the_name(place, pattern):
    longest = _LONGEST_FRAME if place.startswith(FRAMES) else None
    for text in hostile(pattern):
        start = time.thread_time()
        pattern.search(text[:longest])
        assert time.thread_time() - start < LONGEST_S, text[:60]
