"""The lines of the user's that rules name: how they are written, and the evidence for them."""

import re
from collections.abc import Sequence

from profilerkit.analysis.facts import Facts
from profilerkit.analysis.host.lines import HotLine
from profilerkit.model.finding import CodeLine, Evidence
from profilerkit.units import format_ratio

#: Where a frame's file and line stand in its name.
PLACE = re.compile(r"^(?P<file>.*\.py)\((?P<line>\d+)\): (?P<function>.*)$", re.DOTALL)
#: What runs inside these is a function's own work, and told under it.
_COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")
_BUILTIN = re.compile(r"^<(?:built-in )?(?:function|method) (?P<function>[^ >]*)", re.DOTALL)


def frame_text(frame: str) -> str:
    """Return a frame for a reader: the function and where it is.

    >>> frame_text("/opt/app/data/owl.py(301): resize"), frame_text("<built-in method read of _io.FileIO object>")
    ('resize (data/owl.py:301)', 'read')
    """
    if found := code_line(frame):
        return f"{found.function} ({found.file}:{found.line})"
    builtin = _BUILTIN.match(frame)
    return builtin["function"].strip("'") if builtin else frame


def code_line(frame: str | None) -> CodeLine | None:
    """Return the file, line and function of a frame; ``None`` where it has no place in a file."""
    place = PLACE.match(frame or "")
    return CodeLine("/".join(place["file"].split("/")[-2:]), int(place["line"]), place["function"]) if place else None


def placed(frames: Sequence[str]) -> str:
    """Return the innermost frame that is a function in a file, else the innermost: a built-in is in no file.

    >>> placed(["a.py(3): main", "a.py(5): tokenize", "a.py(5): <listcomp>", "<built-in function sum>"])
    'a.py(5): tokenize'
    """
    places = ((frame, PLACE.match(frame)) for frame in reversed(frames))
    named = (frame for frame, place in places if place and place["function"] not in _COMPREHENSIONS)
    return next(named, frames[-1])


def line_text(line: HotLine) -> str:
    """Return the function of a line, and where it is."""
    return frame_text(line.frames[-1])


def in_line(line: HotLine | None) -> str:
    """Return the place of a line after a space, for a title or a fix; empty where none is known."""
    return "" if line is None else f" in {line_text(line)}"


def told_line(line: HotLine | None, of: str) -> str:
    """Return a sentence, after a space, of how much of something a line holds; empty where none is known."""
    return "" if line is None else f" {format_ratio(line.share)} of {of} is spent in {line_text(line)}."


def line_evidence(facts: Facts, label: str, line: HotLine | None) -> tuple[Evidence, ...]:
    """Return the share of a place that a line holds, with its interval; nothing where no line is known."""
    if line is None:
        return ()
    return (
        facts.evidence(
            f"{label} in {line_text(line)}",
            line.share,
            "ratio",
            f"sampled stacks: {' → '.join(frame_text(frame) for frame in line.frames)}",
            n=line.looks,
            low=line.low,
            high=line.high,
            steps=facts.judged_steps,
            line=code_line(line.frames[-1]),
        ),
    )
