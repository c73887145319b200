"""Compilations of torch.compile after the steps had settled: by the timers, or by what a trace shows."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping

import numpy as np

from profilerkit.analysis.events import EVENT_DTYPE
from profilerkit.analysis.host.host_facts import CompileFacts
from profilerkit.analysis.intervals import I64
from profilerkit.analysis.parts import leaf
from profilerkit.analysis.stats import median
from profilerkit.analysis.steps.find import in_step
from profilerkit.analysis.steps.log import StepLog
from profilerkit.analysis.trace_view import TraceView
from profilerkit.rundir.layout import EventKind

#: Torch's number of what was compiled, ``2/1``: region and, from 1 on, how often it was compiled again. Its own name
#: stands before it where the trace shows the region run.
_NUMBER = re.compile(r"^(?:Torch-Compiled Region: |\[)?(\d{1,9})/(\d{1,9})\b")
_MOST_NAMED = 5
#: Steps without a compilation whose median is typical (a choice: it is none of the odd ones).
_FEWEST_OTHERS = 3
#: Behind that number, the guard that failed; and the numbers in it, which differ from one failure to the next. Bounded:
#: names in a run directory may be of any length.
_GUARD = re.compile(r"^\S{0,40}\d/\d{1,9}\S{0,40} (.{1,200})")
_VALUES = re.compile(r"-?\d[\d.]*(?:e-?\d+)?")


def compiles_of_log(events: bytes, names: Mapping[int, str], log: StepLog) -> CompileFacts | None:
    """Compilations in the steady steps as the timers saw them; ``None`` where nothing was compiled in the whole run."""
    table = np.frombuffer(events, dtype=EVENT_DTYPE)
    table = table[table["kind"] == EventKind.COMPILE]
    if not len(table):
        return None
    step = in_step(table["start"].astype(np.int64), log.start, log.stop)
    judged = table[(step >= 0) & log.steady[np.maximum(step, 0)]]
    share, longer = _lost(log.time[log.steady], log.compiling[log.steady])
    every = [names.get(number, "") for number in np.unique(table["name"]).tolist()]
    again = [names.get(number, "") for number in np.unique(judged["name"]).tolist()]
    return CompileFacts(
        share=share,
        longer=longer,
        steps=int((log.compiling[log.steady] > 0).sum()),
        of=int(log.steady.sum()),
        regions=_regions(every),
        recompiled=_recompiled(again),
        source="measured",
        guards=_guards([names.get(number, "") for number in judged["name"].tolist()]),
    )


def compiles_of_trace(view: TraceView) -> CompileFacts | None:
    """Compilations in a trace from its first steady step on; ``None`` where it shows nothing compiled.

    Steps that compile are no steady ones while others are left. Once the steps had settled, they cost all the same.
    """
    columns, steps, compiles, per_step = view.columns, view.steps, view.names.compiles, view.parts.per_step
    used = np.unique(columns.name).tolist()
    shown = [columns.strings[name] for name in used if columns.strings[name].startswith("Torch-Compiled Region: ")]
    if not shown and not any(compiles[name] for name in used):
        return None
    state = np.array(steps.state)
    counted = (state == "steady") | (state == "compile")
    counted[: state.tolist().index("steady") if "steady" in steps.state else 0] = False
    compiling = per_step[:, leaf("warm.compile")]
    share, longer = _lost((steps.end - steps.start)[counted], compiling[counted])
    return CompileFacts(
        share=share,
        longer=longer,
        steps=int((compiling[counted] > 0).sum()),
        of=int(counted.sum()),
        regions=_regions(shown),
        recompiled=_recompiled(shown),
        source="derived",
    )


def _lost(time: I64, compiling: I64) -> tuple[float, float]:
    """Share of the steps' time in compilations, and in what steps with one take beyond the typical one without."""
    total = max(int(time.sum()), 1)
    share = min(int(compiling.sum()) / total, 1.0)
    compiles = compiling > 0
    if (~compiles).sum() < _FEWEST_OTHERS:
        return share, share
    longer = time[compiles] - median(time[~compiles])
    return share, max(float(longer[longer > 0].sum()) / total, share)


def _numbers(texts: Iterable[str]) -> set[tuple[int, int]]:
    found = (_NUMBER.match(text) for text in texts)
    return {(int(match[1]), int(match[2])) for match in found if match}


def _regions(texts: Iterable[str]) -> int | None:
    """How many regions the names are of; ``None`` where none tells its number.

    >>> _regions(["0/0", "[0/1]", "Torch-Compiled Region: 3/0", "frame"])
    2
    """
    return len({region for region, _ in _numbers(texts)}) or None


def _recompiled(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(f"{region}/{again}" for region, again in sorted(_numbers(texts)) if again)[:_MOST_NAMED]


def _guards(texts: Iterable[str]) -> tuple[str, ...]:
    """The guards behind these names, most often first.

    >>> _guards(["0/1 L['w'] == 0.5", "0/2 L['w'] == 1e-05", "0/3", "1/1 len(L['x']) == 3"])
    ("L['w'] == 0.5", "len(L['x']) == 3")
    """
    found = [match[1] for match in map(_GUARD.match, texts) if match]
    kinds = Counter(_VALUES.sub("", guard) for guard in found)
    first = {_VALUES.sub("", guard): guard for guard in reversed(found)}
    return tuple(first[kind] for kind, _ in kinds.most_common(_MOST_NAMED))
