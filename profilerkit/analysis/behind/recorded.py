"""Raw events of the light tier: the timers' records, the samples, and the steps."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from profilerkit.analysis.events import EVENT_DTYPE, NOT_A_WAIT
from profilerkit.analysis.host.names import is_feeding_phase, phase_leaf
from profilerkit.analysis.intervals import I64
from profilerkit.analysis.leaves import LEAVES, WAITS
from profilerkit.analysis.rank_facts import LOGGED, RankFacts
from profilerkit.analysis.samples import signals
from profilerkit.analysis.steps.find import in_step
from profilerkit.analysis.steps.log import StepLog
from profilerkit.analysis.steps.stalls import with_watched
from profilerkit.model.raw import RawEvent, RawEvents
from profilerkit.rundir.layout import SAMPLES, EventKind
from profilerkit.rundir.reader import RankRecord

#: Rows of one table (a choice: a screen).
MOST_ROWS = 20

_WAIT, _COLLECTION = "wait for a batch", "garbage collection"


def timed_parts(rank: RankFacts) -> tuple[str, ...]:
    """The parts of the step that the timers measured themselves; the others are known from a trace alone."""
    if rank.log is None:
        return ()
    return (*(WAITS if rank.log.waits_seen else ()), *LOGGED)


def timed_events(parts: Sequence[str], rank: RankFacts, origin: str) -> RawEvents | None:
    """The timers' longest records of these parts in the judged steps; ``None`` without a log."""
    if rank.log is None or rank.record is None or not parts:
        return None
    log = rank.log
    start, length, names = _records(parts, rank.record)
    step = in_step(start, log.start, log.stop)
    judged = (step >= 0) & log.steady[np.maximum(step, 0)]
    rows = longest(np.where(judged, length, -1))[: np.count_nonzero(judged)]
    return RawEvents(
        what="Records of the step timers",
        origin=origin,
        clock="run",
        unit="ns",
        order="longest",
        count=int(np.count_nonzero(judged)),
        rows=tuple(
            RawEvent(
                start_ns=int(start[row] - log.start[0]),
                value=float(length[row]),
                step=int(log.index[step[row]]),
                name=names[row],
            )
            for row in rows
        ),
    )


def _records(parts: Sequence[str], record: RankRecord) -> tuple[I64, I64, list[str]]:
    """Start and length in ns, and the name, of each record that belongs to the parts."""
    events = np.frombuffer(record.events, dtype=EVENT_DTYPE)
    named, texts = with_watched(events[events["kind"] == EventKind.PHASE], events, record.names)
    found, names = [], []
    if set(parts) & set(WAITS):
        waits = events[(events["kind"] == EventKind.WAIT) & ((events["flags"] & NOT_A_WAIT) == 0)]
        found.append(waits)
        names += [_WAIT] * len(waits)
    if "over.gc" in parts:
        collections = events[events["kind"] == EventKind.GC]
        found.append(collections)
        names += [_COLLECTION] * len(collections)
    phases = [texts.get(int(name_id), "phase") for name_id in named["name"]]
    kept = [row for row, phase in enumerate(phases) if not set(_parts_of(phase)).isdisjoint(parts)]
    found.append(named[kept])
    names += [phases[row] for row in kept]
    chosen = np.concatenate(found)
    return chosen["start"].astype(np.int64), np.maximum(chosen["dur"], 0).astype(np.int64), names


def _parts_of(phase: str) -> tuple[str, ...]:
    """The part of a phase by its name; one that gets a batch counts with the waits, whichever of them is told."""
    return WAITS if is_feeding_phase(phase) else (LEAVES[phase_leaf(phase)],)


def sampled_events(name: str, rank: RankFacts) -> RawEvents | None:
    """The samples of one signal at an even distance; ``None`` where it was not sampled."""
    if rank.record is None:
        return None
    signal = next((found for found in signals(rank.record.samples) if found.name == name), None)
    if signal is None:
        return None
    count = len(signal.values)
    shown = np.unique(np.linspace(0, count - 1, min(count, MOST_ROWS)).round().astype(np.int64))
    return RawEvents(
        what=f"Samples of {name}",
        origin=f"{rank.record.path.name}/{SAMPLES}",
        clock="run",
        unit=signal.unit,
        order="even",
        count=count,
        rows=tuple(
            RawEvent(start_ns=round(float(signal.at_s[row]) * 1e9), value=float(signal.values[row])) for row in shown
        ),
    )


def step_events(rank: RankFacts, origin: str) -> RawEvents | None:
    """The longest of the judged steps; ``None`` without a step."""
    series, source = rank.series, rank.log or (rank.trace.steps if rank.trace else None)
    if series is None or source is None:
        return None
    start = source.start - (source.start[0] if isinstance(source, StepLog) else 0)
    rows = longest(np.where(series.steady, series.time, -1))[: np.count_nonzero(series.steady)]
    return RawEvents(
        what="Judged steps",
        origin=origin,
        clock="run" if isinstance(source, StepLog) else "trace",
        unit="ns",
        order="longest",
        count=int(np.count_nonzero(series.steady)),
        rows=tuple(
            RawEvent(start_ns=int(start[row]), value=float(series.time[row]), step=int(series.index[row]))
            for row in rows
        ),
    )


def longest(length: I64) -> npt.NDArray[np.intp]:
    """Rows of the longest, at most ``MOST_ROWS``, longest first; of two alike the earlier one."""
    return np.argsort(-length, kind="stable")[:MOST_ROWS]
