"""Evidence that rules of several families have: lines, waits for a processor, the workers, kernels."""

import re
from collections.abc import Sequence

from profilerkit.analysis.facts import Facts
from profilerkit.analysis.host.lines import HotLine
from profilerkit.model import revise
from profilerkit.model.finding import CodeLine, Evidence, Source
from profilerkit.rules.api import sampled_evidence
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
    calls, place = " → ".join(map(frame_text, line.frames)), code_line(line.frames[-1])
    row = facts.evidence(f"{label} in {line_text(line)}", line.share, "ratio", f"sampled stacks: {calls}", n=line.looks)
    return (revise(row, low=line.low, high=line.high, steps=facts.judged_steps, line=place),)


#: Where the share comes from.
ORIGIN = "run queue of the training thread"
SIGNAL = "host.thread_queue"
POOL = "host.pool_queue"  #: the same of the threads that operators share their work with
#: Judged steps of that long, in seconds, have samples of their own (a choice: a sample is taken every second).
_ENOUGH_S = 5


def queued_evidence(facts: Facts, label: str) -> Evidence | None:
    """Return the share of the time in which the training thread queued for a processor; ``None`` if not known."""
    series = facts.series(SIGNAL)
    if series is None:
        return None
    judged_s = facts.steps.steady * (facts.mean_step_ns or 0.0) / 1e9
    of_steps = facts.steps.queued_ratio if facts.taken or judged_s >= _ENOUGH_S else None
    found = sampled_evidence(facts, series, label, ORIGIN)
    return found if of_steps is None else revise(found, value=of_steps, source="derived", n=None, low=None, high=None)


def over_all_samples(facts: Facts, evidence: Evidence) -> str:
    """Return what all samples say beside the evidence of the judged steps, a sentence; empty where it is theirs."""
    series = facts.series(SIGNAL)
    if series is None or evidence.behind != (SIGNAL,) or evidence.source != "derived":
        return ""
    return f"In the judged steps; {format_ratio(series.mean)} over all samples. "


def kernel_share(
    label: str, share: float | None, origin: str, n: int | None = None, source: Source = "measured"
) -> Evidence:
    """Return the share of the step that ``n`` calls, or the kernels of ``n`` steps, take."""
    return Evidence(f"{label}, share of the step", share, "ratio", source, origin, n=n)
