"""From a number to the raw events behind it: the longest intervals of a trace, the timers' records and the samples."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from profilerkit.analysis.communication.table import TRANSFER
from profilerkit.analysis.events import EVENT_DTYPE, NOT_A_WAIT
from profilerkit.analysis.host.gaps import in_order
from profilerkit.analysis.host.names import HostNames, backward_threads, is_feeding_phase, main_thread, phase_leaf
from profilerkit.analysis.intervals import Spans, intersect, with_label
from profilerkit.analysis.partition import judged_device_rows
from profilerkit.analysis.rank_facts import LOGGED, RankFacts
from profilerkit.analysis.samples import signals
from profilerkit.analysis.steps.find import in_step
from profilerkit.analysis.steps.log import StepLog
from profilerkit.analysis.steps.series import with_watched
from profilerkit.analysis.trace_facts import TraceFacts
from profilerkit.model import revise
from profilerkit.model.events import RawEvent, RawEvents
from profilerkit.model.finding import STEP_LENGTHS, Evidence
from profilerkit.model.step import LEAVES, PARTS, WAITS, leaf
from profilerkit.rundir.layout import EVENTS, SAMPLES, EventKind
from profilerkit.rundir.reader import RankRecord
from profilerkit.trace.columns import I64, Bools, Category, TraceColumns, TraceMeta

MOST_ROWS = 20  #: rows of one table (a choice: a screen)

_WAIT, _COLLECTION = "wait for a batch", "garbage collection"
_LONGEST = partial(RawEvents, unit="ns", order="longest")


def timed_events(parts: Sequence[str], rank: RankFacts, origin: str) -> RawEvents | None:
    """The timers' longest records of these parts in the judged steps; ``None`` without a log."""
    if rank.log is None or rank.record is None or not parts:
        return None
    log = rank.log
    start, length, names = _records(parts, rank.record)
    step = in_step(start, log.start, log.stop)
    judged = (step >= 0) & log.steady[np.maximum(step, 0)]
    rows = longest(np.where(judged, length, -1))[: np.count_nonzero(judged)]
    return _LONGEST(
        what="Records of the step timers",
        origin=origin,
        clock="run",
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
    # One that gets a batch counts with the waits, whichever of them is told.
    of = [WAITS if is_feeding_phase(phase) else (LEAVES[phase_leaf(phase)],) for phase in phases]
    kept = [row for row, own in enumerate(of) if not set(own).isdisjoint(parts)]
    found.append(named[kept])
    names += [phases[row] for row in kept]
    chosen = np.concatenate(found)
    return chosen["start"].astype(np.int64), np.maximum(chosen["dur"], 0).astype(np.int64), names


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
    return _LONGEST(
        what="Judged steps",
        origin=origin,
        clock="run" if isinstance(source, StepLog) else "trace",
        count=int(np.count_nonzero(series.steady)),
        rows=tuple(
            RawEvent(start_ns=int(start[row]), value=float(series.time[row]), step=int(series.index[row]))
            for row in rows
        ),
    )


def longest(length: I64) -> npt.NDArray[np.intp]:
    """Rows of the longest, at most ``MOST_ROWS``, longest first; of two alike the earlier one."""
    return np.argsort(-length, kind="stable")[:MOST_ROWS]


_HOST_EVENTS = (
    *(Category.CPU_OP, Category.RUNTIME, Category.ANNOTATION),
    *(Category.SYNC, Category.PYTHON, Category.OVERHEAD),
)
#: It covers all of its step, and so says nothing of an interval within.
_STEP_MARK = "ProfilerStep#"
#: One rank alone does not tell waiting for another rank from transfer: its trace has both as exposed communication.
_COMMUNICATION = ("comm.skew", *TRANSFER)


def events_of_parts(parts: Sequence[str], trace: TraceFacts, columns: TraceColumns, origin: str) -> RawEvents:
    """The longest intervals of these parts in the judged steps."""
    wanted = {*parts, *(_COMMUNICATION if set(parts) & set(_COMMUNICATION) else ())}
    segments, labels = trace.partition.segments, map(leaf, sorted(wanted))
    found = in_order([with_label(intersect(segments.only(label), trace.window), label) for label in labels])
    rows = longest(found.end - found.start)
    events = _Events(columns, trace)
    what = ", ".join(PARTS[part][1] for part in parts)
    return _LONGEST(
        what=f"Intervals of the judged steps ({what})",
        origin=origin,
        clock="trace",
        count=len(found),
        rows=tuple(events.told(LEAVES[found.label[row]], int(found.start[row]), int(found.end[row])) for row in rows),
    )


def events_between(range_ns: tuple[int, int], trace: TraceFacts, columns: TraceColumns, origin: str) -> RawEvents:
    """The events that fill most of a range of the trace's clock, those that begin or end outside it cut to it."""
    events = _Events(columns, trace)
    begin = np.maximum(columns.ts_ns, range_ns[0])
    overlap = np.minimum(columns.end_ns, range_ns[1]) - begin
    overlap[~(events.device | events.host)] = 0
    rows = longest(overlap)
    return _LONGEST(
        what="Events in the range of time",
        origin=origin,
        clock="trace",
        count=int(np.count_nonzero(overlap > 0)),
        rows=tuple(events.of_row(int(row), int(begin[row]), int(overlap[row])) for row in rows if overlap[row] > 0),
    )


class _Events:
    """The events of a trace that may fill an interval, masks ``(n_events,)``."""

    def __init__(self, columns: TraceColumns, trace: TraceFacts) -> None:
        steps = Spans(trace.steps.start, trace.steps.end)
        names, main = HostNames.of(columns), main_thread(columns)
        threads = np.r_[main, backward_threads(columns, names, main)]
        marks = np.array([text.startswith(_STEP_MARK) for text in columns.strings], dtype=bool)
        issuing = np.isin(columns.thread, threads) & ~marks[columns.name]
        self._columns, self._trace = columns, trace
        self.device: Bools = judged_device_rows(columns, steps)
        self.host: Bools = columns.is_a(*_HOST_EVENTS) & issuing

    def told(self, part: str, start_ns: int, end_ns: int) -> RawEvent:
        """An interval, and the event that fills most of it: on the device, where it worked, else on the host."""
        columns = self._columns
        if part == "over.launch":
            # What it waits for tells more than what the host did meanwhile.
            waiting = np.flatnonzero(self.device & (columns.ts_ns == end_ns))
            if len(waiting):
                found = self.of_row(int(waiting[0]), start_ns, end_ns - start_ns)
                return revise(found, name=f"until {found.name} starts")
        meanwhile = (columns.ts_ns < end_ns) & (columns.end_ns > start_ns)
        ran, did = np.flatnonzero(self.device & meanwhile), np.flatnonzero(self.host & meanwhile)
        if len(ran):
            found = self.of_row(self._largest(ran, start_ns, end_ns), start_ns, end_ns - start_ns)
            return revise(found, name=f"{found.name} and {len(ran) - 1} more") if len(ran) > 1 else found
        if len(did):
            return self.of_row(self._largest(did, start_ns, end_ns), start_ns, end_ns - start_ns)
        return RawEvent(start_ns=start_ns, value=float(end_ns - start_ns), step=self._step(start_ns))

    def of_row(self, row: int, start_ns: int, length_ns: int) -> RawEvent:
        """An interval with the thread or stream and the name of an event."""
        columns = self._columns
        stream = int(columns.stream[row])
        tid = columns.threads[columns.thread[row]][1]
        return RawEvent(
            start_ns=start_ns,
            value=float(length_ns),
            step=self._step(start_ns),
            where=f"stream {stream}" if self.device[row] and stream >= 0 else f"thread {tid}",
            name=columns.strings[columns.name[row]],
        )

    def _largest(self, rows: I64, start_ns: int, end_ns: int) -> int:
        """The row that overlaps most of the interval, of several the shortest, which is the innermost."""
        columns = self._columns
        overlap = np.minimum(columns.end_ns[rows], end_ns) - np.maximum(columns.ts_ns[rows], start_ns)
        return int(rows[np.lexsort((columns.dur_ns[rows], -overlap))[0]])

    def _step(self, start_ns: int) -> int | None:
        steps = self._trace.steps
        place = int(in_step(np.array([start_ns]), steps.start, steps.end)[0])
        return int(steps.index[place]) if place >= 0 else None


def raw_events(evidence: Evidence, rank: RankFacts, read: Callable[[TraceMeta], TraceColumns]) -> tuple[RawEvents, ...]:
    """What the recording of a rank holds behind a number, a table for each file; empty where that cannot be told."""
    if not files_of(rank):
        return ()  # there are logs alone
    parts = tuple(name for name in evidence.behind if name in PARTS)
    # What the timers measured themselves; the other parts are known from a trace alone.
    timed = () if rank.log is None else (*(WAITS if rank.log.waits_seen else ()), *LOGGED)
    found = [timed_events([name for name in parts if name in timed], rank, files_of(rank)[0])]
    found += [sampled_events(name, rank) for name in evidence.behind if name not in PARTS and name != STEP_LENGTHS]
    if STEP_LENGTHS in evidence.behind:
        found.append(step_events(rank, files_of(rank)[0]))
    trace, traced = rank.trace, [name for name in parts if name not in timed]
    if trace is not None and traced:
        found.append(events_of_parts(traced, trace, read(trace.meta), files_of(rank)[-1]))
    elif trace is not None and not evidence.behind and evidence.range_ns is not None:
        found.append(events_between(evidence.range_ns, trace, read(trace.meta), files_of(rank)[-1]))
    return tuple(table for table in found if table is not None and table.rows)


def files_of(rank: RankFacts) -> tuple[str, ...]:
    """The files of a rank, named from its run on: the timers' before the trace."""
    named = [] if rank.record is None else [f"{rank.record.path.name}/{EVENTS}"]
    if rank.trace is not None:
        path = Path(rank.trace.meta.path)
        run = rank.record.path.parent if rank.record else path.parent
        named.append(path.relative_to(run).as_posix() if path.is_relative_to(run) else path.name)
    return tuple(named)
