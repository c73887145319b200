"""Measure what a training process does on the host besides issuing work: fetches, Python, compilations."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec
import numpy as np

from profilerkit.analysis.events import EVENT_DTYPE
from profilerkit.analysis.host.feeding import dominant_frames
from profilerkit.analysis.host.names import QUIET_NS
from profilerkit.analysis.intervals import Segments, Spans, covered, intersect, union
from profilerkit.analysis.partition import TraceView
from profilerkit.analysis.stats import median
from profilerkit.analysis.steps.find import in_step
from profilerkit.analysis.steps.log import StepLog
from profilerkit.analysis.workers.queue import EpochFacts
from profilerkit.model import revise
from profilerkit.model.finding import Source
from profilerkit.model.step import leaf
from profilerkit.rundir.layout import EventKind
from profilerkit.trace.columns import I64, Category, names_of


class CollectionFacts(msgspec.Struct, frozen=True):
    """Garbage collections in the judged steps, on any thread: each holds the interpreter."""

    per_step: float
    pause_ns: float
    longest_ns: int
    full: int


class PythonFacts(msgspec.Struct, frozen=True):
    """Stretches of Python longer than 1 ms in the judged steps of a trace, in which no operator runs."""

    per_step: float
    longest_ns: tuple[int, int]
    #: The innermost frames that hold most of them, outer first; empty without stacks. Hostile text.
    frames: tuple[str, ...] = ()
    frames_ratio: float | None = None  #: share of the stretches in the innermost of them; ``None`` without


class CompileFacts(msgspec.Struct, frozen=True):
    """What torch.compile did once the steps had settled."""

    share: float  #: of the time of the judged steps, and of those among them that were left out because they compile
    #: Of that time, what the steps that compile take beyond the typical one that does not: compiled code runs slowly at
    #: first. ``share`` where fewer than three do not compile.
    longer: float
    steps: int
    of: int
    regions: int | None  #: compiled regions that ran or were compiled; ``None`` where no name told
    recompiled: tuple[str, ...]  #: regions that were compiled more than once, as torch numbers them, at most five
    source: Source
    #: That failed and made torch compile again, as torch words them, each once however its numbers differ, most often
    #: first; empty where nothing tells. Hostile text.
    guards: tuple[str, ...] = ()


#: Where a wait for a batch is read from when no event marks it, and the words for it.
Gap = Literal["before the copy", "between steps"]
GAPS: dict[Gap, str] = {
    "before the copy": "the lead-in of the step, up to its batch copy",
    "between steps": "from the end of a step's own range to the next one",
}


class InputFacts(msgspec.Struct, frozen=True):
    """The wait for batches."""

    cpu_ratio: float | None  #: CPU time of the waiting thread / wait; ``None`` when not measured
    fetches: int
    single_process: bool | None  #: the main process loads the data itself; ``None`` when unknown
    source: Source  #: measured by the wrapper's timer, or derived from the trace
    origin: str  #: event name or timer the wait was read from, or the words for ``gap``
    gap: Gap | None = None  #: where the wait was inferred from; ``None`` where an event or a timer marks it
    longest_ns: tuple[int, int] | None = None  #: start and end of the longest wait, on the recording's clock
    #: Share of the steady time in which the thread was getting a batch, hidden by the device or not; ``None`` when that
    #: was not seen.
    held_ratio: float | None = None
    #: Of the calls that hold most of the wait the innermost frames, outer first, as the profiler names them; empty
    #: without Python stacks. Hostile text.
    frames: tuple[str, ...] = ()
    frames_ratio: float | None = None  #: share of the wait in the innermost of them; ``None`` without
    #: Share of the wait in which the waiting thread was ready to run and got no processor: whatever loads the data
    #: would wait for one; ``None`` when not measured.
    queue_ratio: float | None = None


def input_facts(view: TraceView) -> InputFacts | None:
    """Facts of the fetches in the steady steps; ``None`` where neither an event nor a batch copy shows any."""
    columns, names, parts, steps, main = view.columns, view.names, view.parts, view.steps, view.main
    window = steps.by_host.steady
    rows = parts.fed.rows[covered(window, columns.ts_ns[parts.fed.rows])]
    inferred = covered(window, parts.lead_in.start)
    if not len(rows) and not inferred.any():
        return None
    gap: Gap | None = None
    if len(rows):
        # A loader's own events count its fetches; frames around them tell the same again.
        marked, reach = names.loader[columns.name[rows]], np.maximum.accumulate(columns.end_ns[rows])
        outer = np.r_[True, columns.ts_ns[rows][1:] >= reach[:-1]]
        counted = rows[marked if marked.any() else outer]
        spans = Spans(columns.ts_ns[counted], columns.ts_ns[counted] + columns.dur_ns[counted])
        origin = columns.strings[columns.name[counted[(spans.end - spans.start).argmax()]]]
        # In a fetch from worker processes the thread only waits.
        own = parts.fed.rows[~names.multi_process[columns.name[parts.fed.rows]]]
        alone = union(columns.ts_ns[own], columns.end_ns[own])
        held = intersect(window, parts.fed.segments)
    else:
        spans = Spans(parts.lead_in.start[inferred], parts.lead_in.end[inferred])
        held = alone = intersect(window, spans)
        outside = intersect(held, steps.between).total_ns if steps.between is not None else 0
        gap = "between steps" if outside > held.total_ns / 2 else "before the copy"
        origin = GAPS[gap]
    remote, local = (bool(mask[columns.name[rows]].any()) for mask in (names.multi_process, names.single_process))
    longest = int((spans.end - spans.start).argmax())
    kept = None if remote or local else names.feeds  # of a loader it is known what gets the batch
    frames, frames_ratio = dominant_frames(columns, main, intersect(window, alone), kept)
    return InputFacts(
        cpu_ratio=None,
        fetches=len(spans),
        single_process=local if local or remote else None,
        source="derived",
        origin=origin,
        gap=gap,
        longest_ns=(int(spans.start[longest]), int(spans.end[longest])),
        held_ratio=min(held.total_ns / max(steps.steady.total_ns, 1), 1.0),
        frames=frames,
        frames_ratio=frames_ratio if frames else None,
    )


#: Two fetches without a step between them end an epoch where it has more than so many fetches on average: else a step
#: takes two batches. Its first batch takes so much longer than usual: one after a dropped batch does not (choices).
_FETCHES_OF_AN_EPOCH, _OPENING = 4, 2


def epochs_of_trace(view: TraceView) -> EpochFacts | None:
    """Return the epochs that begin in the steady steps of a loader with workers; ``None`` without any.

    The fetch that finds a loader at its end gives no batch: nothing is multiplied or differentiated before the next
    one, the first of an epoch. Workers that are not kept are shut down in it, which takes milliseconds.
    """
    columns, window = view.columns, view.steps.by_host.steady
    rows = view.parts.fed.rows[view.names.multi_process[columns.name[view.parts.fed.rows]]]
    rows = rows[covered(window, columns.ts_ns[rows])]
    trains = (columns.category == Category.CPU_OP) & (view.kinds.math | view.names.backward)[columns.name]
    begun = np.searchsorted(np.sort(columns.ts_ns[trains]), columns.end_ns[rows])
    last = np.flatnonzero(np.diff(begun) == 0)
    last = last[~(np.isin(last - 1, last) | np.isin(last + 1, last))]  # several in a row are batches that were dropped
    lasting = columns.dur_ns[rows]
    if len(rows) <= _FETCHES_OF_AN_EPOCH * len(last):  # a step gets several batches: accumulated, or of two loaders
        return None
    usual_ns = float(np.median(np.delete(lasting, np.r_[last, last + 1])))
    last = last[lasting[last + 1] >= _OPENING * usual_ns]
    if not len(last):
        return None
    lost_ns = float((lasting[last] + np.maximum(lasting[last + 1] - usual_ns, 0)).mean())
    return EpochFacts(
        count=len(last),
        steps=view.count / len(last),
        time_ns=window.total_ns / len(last),
        boundary_ns=lost_ns if len(last) > 1 else None,
        opening_ns=lost_ns,
        renewed=bool(np.median(lasting[last]) >= QUIET_NS),
    )


def between_ratio(segments: Segments, window: Spans) -> float:
    """Share of the Python in the steady window that lies in gaps of at most 1 ms; 0 without any."""
    python = intersect(window, segments.only(leaf("over.python")))
    length = python.end - python.start
    return float(length[length <= QUIET_NS].sum()) / python.total_ns if python.total_ns else 0.0


def python_facts(view: TraceView) -> PythonFacts | None:
    """Python that lasts longer than 1 ms at a time in the steady window; ``None`` without any."""
    columns, window, main, segments = view.columns, view.window, view.main, view.parts.segments
    python = intersect(window, segments.only(leaf("over.python")))
    long = python.end - python.start > QUIET_NS
    if not long.any():
        return None
    spans = Spans(python.start[long], python.end[long])
    longest = int(np.argmax(spans.end - spans.start))
    frames, ratio = dominant_frames(columns, main, spans)
    longest_ns = (int(spans.start[longest]), int(spans.end[longest]))
    return PythonFacts(len(spans) / max(len(window), 1), longest_ns, frames, ratio if frames else None)


#: Torch's number of what was compiled, ``2/1``: region and, from 1 on, how often it was compiled again. Its own name
#: stands before it where the trace shows the region run.
_NUMBER = re.compile(r"^(?:Torch-Compiled Region: |\[)?(\d{1,9})/(\d{1,9})\b")
_MOST_NAMED = 5
_FEWEST_OTHERS = 3  #: steps without a compilation whose median is typical (a choice: it is none of the odd ones)
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
    every, again = ([names.get(number, "") for number in of["name"].tolist()] for of in (table, judged))
    found = _compiles(log.time[log.steady], log.compiling[log.steady], every, again)
    return revise(found, source="measured", guards=_guards(again))


def compiles_of_trace(view: TraceView) -> CompileFacts | None:
    """Compilations in a trace from its first steady step on; ``None`` where it shows nothing compiled."""
    columns, steps, compiles, per_step = view.columns, view.steps, view.names.compiles, view.parts.per_step
    used = names_of(columns, *Category)
    texts = [columns.strings[name] for name in used.tolist()]
    shown = [text for text in texts if text.startswith("Torch-Compiled Region: ")]
    if not shown and not compiles[used].any():
        return None
    state = np.array(steps.state)
    counted = (state == "steady") | (state == "compile")
    counted[: state.tolist().index("steady") if "steady" in steps.state else 0] = False
    time, compiling = (steps.end - steps.start)[counted], per_step[counted, leaf("warm.compile")]
    return _compiles(time, compiling, shown, shown)


def _compiles(time: I64, compiling: I64, every: Iterable[str], again: Iterable[str]) -> CompileFacts:
    """What steps lost to compiling, by the names of all that was compiled and of what was in these steps.

    >>> names = ["0/0", "[0/1]", "Torch-Compiled Region: 3/0", "frame"]
    >>> found = _compiles(np.array([9, 1, 1, 1]), np.array([5, 0, 0, 0]), names, names)
    >>> found.regions, found.recompiled, round(found.longer, 2)
    (2, ('0/1',), 0.67)
    """
    total, compiles = max(int(time.sum()), 1), compiling > 0
    share = longer = min(int(compiling.sum()) / total, 1.0)
    if (~compiles).sum() >= _FEWEST_OTHERS:
        beyond = time[compiles] - median(time[~compiles])
        longer = max(float(beyond[beyond > 0].sum()) / total, share)
    numbers = [{(int(m[1]), int(m[2])) for m in map(_NUMBER.match, texts) if m} for texts in (every, again)]
    return CompileFacts(
        share=share,
        longer=longer,
        steps=int(compiles.sum()),
        of=len(time),
        regions=len({region for region, _ in numbers[0]}) or None,
        recompiled=tuple(f"{region}/{count}" for region, count in sorted(numbers[1]) if count)[:_MOST_NAMED],
        source="derived",
    )


def _guards(texts: Iterable[str]) -> tuple[str, ...]:
    """The guards behind these names, most often first.

    >>> _guards(["0/1 L['w'] == 0.5", "0/2 L['w'] == 1e-05", "0/3", "1/1 len(L['x']) == 3"])
    ("L['w'] == 0.5", "len(L['x']) == 3")
    """
    found = [match[1] for match in map(_GUARD.match, texts) if match]
    kinds = Counter(_VALUES.sub("", guard) for guard in found)
    first = {_VALUES.sub("", guard): guard for guard in reversed(found)}
    return tuple(first[kind] for kind, _ in kinds.most_common(_MOST_NAMED))


OLDEST = 2  #: number of the oldest generation: a collection of it looks at every object


def collection_facts(events: bytes, log: StepLog) -> CollectionFacts:
    """The collections of at least 50 µs in steady steps; shorter ones are not recorded."""
    table = np.frombuffer(events, dtype=EVENT_DTYPE)
    table = table[table["kind"] == EventKind.GC]
    step = in_step(table["start"].astype(np.int64), log.start, log.stop)
    table = table[(step >= 0) & log.steady[np.maximum(step, 0)]]
    return CollectionFacts(
        per_step=len(table) / max(int(log.steady.sum()), 1),
        pause_ns=float(table["dur"].mean()) if len(table) else 0.0,
        longest_ns=int(table["dur"].max(initial=0)),
        full=int((table["value"] >= OLDEST).sum()),
    )
