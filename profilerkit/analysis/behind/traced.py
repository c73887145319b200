"""Raw events of a trace: the longest intervals of a part of the step, each with the event that fills it."""

from collections.abc import Sequence

import numpy as np

from profilerkit.analysis.behind.recorded import longest
from profilerkit.analysis.communication.table import TRANSFER
from profilerkit.analysis.host.gaps import in_order
from profilerkit.analysis.host.names import HostNames, backward_threads, main_thread
from profilerkit.analysis.intervals import I64, Segments, Spans, intersect, with_label
from profilerkit.analysis.leaves import LEAVES, leaf
from profilerkit.analysis.partition import judged_device_rows
from profilerkit.analysis.steps.find import in_step
from profilerkit.analysis.trace_facts import TraceFacts
from profilerkit.model.change import revise
from profilerkit.model.raw import RawEvent, RawEvents
from profilerkit.model.step import PARTS
from profilerkit.trace.columns import Bools, Category, TraceColumns

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
    found = in_order([_intervals(trace, leaf(part)) for part in sorted(wanted)])
    rows = longest(found.end - found.start)
    events = _Events(columns, trace)
    what = ", ".join(PARTS[part][1] for part in parts)
    return RawEvents(
        what=f"Intervals of the judged steps ({what})",
        origin=origin,
        clock="trace",
        unit="ns",
        order="longest",
        count=len(found),
        rows=tuple(events.told(LEAVES[found.label[row]], int(found.start[row]), int(found.end[row])) for row in rows),
    )


def _intervals(trace: TraceFacts, label: int) -> Segments:
    """When a part of the step went on, in the judged steps and cut where they meet."""
    return with_label(intersect(trace.partition.segments.only(label), trace.window), label)


def events_between(range_ns: tuple[int, int], trace: TraceFacts, columns: TraceColumns, origin: str) -> RawEvents:
    """The events that fill most of a range of the trace's clock, those that begin or end outside it cut to it."""
    events = _Events(columns, trace)
    overlap = np.minimum(columns.end_ns, range_ns[1]) - np.maximum(columns.ts_ns, range_ns[0])
    overlap[~(events.device | events.host)] = 0
    rows = longest(overlap)
    return RawEvents(
        what="Events in the range of time",
        origin=origin,
        clock="trace",
        unit="ns",
        order="longest",
        count=int(np.count_nonzero(overlap > 0)),
        rows=tuple(
            events.of_row(int(row), max(int(columns.ts_ns[row]), range_ns[0]), int(overlap[row]))
            for row in rows
            if overlap[row] > 0
        ),
    )


class _Events:
    """The events of a trace that may fill an interval, masks ``(n_events,)``.

    Attributes:
        device: what ran on the judged device.
        host: what the threads did that issue its work, without the marks of steps.
    """

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
