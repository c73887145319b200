"""Write the traces of a run for Perfetto: Chrome's trace format, with our steps, parts, idle causes and findings."""

import gzip
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import msgspec

from profilerkit.analysis.intervals import Segments, Spans, paint, subtract, union
from profilerkit.analysis.partition import judged_device_rows
from profilerkit.analysis.rank_facts import RankFacts
from profilerkit.analysis.trace_facts import TraceFacts
from profilerkit.formats.jobs import read_pooled
from profilerkit.model.finding import Finding
from profilerkit.model.report import Report
from profilerkit.model.step import LEAVES
from profilerkit.report.wording import STATE_WORDS, part_label
from profilerkit.trace.columns import I64, WORK, Category, TraceColumns
from profilerkit.trace.launches import aligned, launch_of
from profilerkit.trace.merged import by_process, distinct

Mask = Callable[[str], str]

#: Events are turned into text so many at a time, which bounds the memory beside the columns of one rank (a choice).
_AT_ONCE = 20_000
#: Time zero lies so long before the first step of all ranks, so that what came before it is not negative.
_LEAD_NS = 3_600_000_000_000
#: Tracks of ours come first, then the device's, then those of threads.
_STEPS, _PARTS, _IDLE, _FINDINGS, _FIRST_STREAM, _FIRST_THREAD = 1, 2, 3, 4, 100, 10_000
#: What runs on a stream, and what its track is called beside the stream.
_ON_DEVICE: dict[object, str] = {
    **dict.fromkeys(WORK, ""),
    Category.GPU_ANNOTATION: ", ranges",
    Category.SYNC: ", waits",
}


def write(path: Path, report: Report, ranks: Sequence[RankFacts], mask: Mask) -> int:
    """Write the ranks that have a trace, one after the other, as gzip; return how many events.

    Findings of the report are marked. Each trace is read again, for facts keep no events; ``mask`` takes names and
    paths out of a text.
    """
    traced = [(entry, trace) for entry in ranks if (trace := entry.trace or entry.unseen) is not None]
    origins = _origins([trace for _, trace in traced])
    with path.open("wb") as raw, gzip.GzipFile("", "wb", 6, raw, 0) as stream:
        out = _Writer(stream, mask)
        for place, ((entry, trace), origin) in enumerate(zip(traced, origins, strict=True)):
            pid = place if entry.rank is None else entry.rank
            _write_rank(out.of(pid, origin), f"Rank {pid}", trace)
            _write_findings(out, trace, [found for found in report.findings if found.rank in (None, entry.rank)])
        out.close()
    return out.count


def _origins(traces: Sequence[TraceFacts]) -> list[int]:
    """Time zero of each trace: of one clock where all name the time that theirs begins at, else each its own."""
    first = [int(trace.steps.start[0]) if len(trace.steps.start) else 0 for trace in traces]
    bases = [trace.meta.base_time_ns for trace in traces]
    known = [base for base in bases if base is not None]
    if len(known) < len(bases):
        return [start - _LEAD_NS for start in first]
    zero = min((base + start for base, start in zip(known, first, strict=True)), default=0) - _LEAD_NS
    return [zero - base for base in known]


class _Writer:
    """Events as text, in the process and on the clock that ``of`` set last."""

    def __init__(self, stream: BinaryIO | gzip.GzipFile, mask: Mask) -> None:
        self._stream, self._mask, self.pid, self._origin = stream, mask, 0, 0
        self.count = 0
        self._stream.write(b'{"displayTimeUnit":"ms","traceEvents":[')

    def of(self, pid: int, origin: int) -> "_Writer":
        """Return itself, for another rank."""
        self.pid, self._origin = pid, origin
        return self

    def text(self, name: str) -> str:
        """Return a name as JSON, without what is redacted."""
        return msgspec.json.encode(self._mask(name)).decode("utf-8")

    def clock(self, at_ns: int) -> str:
        """Return an instant in exact microseconds; what lies hours before the first step is moved there."""
        return _micros(max(at_ns - self._origin, 0))

    def put(self, events: Iterable[str]) -> None:
        """Write the events, each the inside of a JSON object without its process."""
        lines = [f'{{"pid":{self.pid},{event}}}' for event in events]
        if lines:
            self._stream.write(((",\n" if self.count else "\n") + ",\n".join(lines)).encode("utf-8"))
            self.count += len(lines)

    def name_process(self, name: str) -> None:
        """Name the process and set its place."""
        self.put([f'"ph":"M","name":"process_name","args":{{"name":{self.text(name)}}}'])
        self.put([f'"ph":"M","name":"process_sort_index","args":{{"sort_index":{self.pid}}}'])

    def name_track(self, tid: int, name: str) -> None:
        """Name a track and set its place."""
        self.put([f'"tid":{tid},"ph":"M","name":"thread_name","args":{{"name":{self.text(name)}}}'])
        self.put([f'"tid":{tid},"ph":"M","name":"thread_sort_index","args":{{"sort_index":{tid}}}'])

    def pieces(self, tid: int, pieces: Segments, names: Sequence[str]) -> None:
        """Write disjoint pieces on one track; ``names`` are those of their labels."""
        known = [self.text(name) for name in names]
        self.put(
            f'"tid":{tid},"ph":"X","ts":{self.clock(start)},"dur":{_micros(end - start)},"name":{known[label]}'
            for start, end, label in zip(pieces.start.tolist(), pieces.end.tolist(), pieces.label.tolist(), strict=True)
        )

    def close(self) -> None:
        """Write the end of the document."""
        self._stream.write(b"\n]}\n")


def _micros(ns: int) -> str:
    return f"{ns // 1000}.{ns % 1000:03d}" if ns % 1000 else str(ns // 1000)


def _write_rank(out: _Writer, name: str, trace: TraceFacts) -> None:
    columns = _columns(trace)
    steps = trace.steps
    out.name_process(name)
    out.name_track(_STEPS, "Steps")
    words = [f"Step {index}, {STATE_WORDS[state]}" for index, state in zip(steps.index, steps.state, strict=True)]
    in_order = steps.start.argsort(kind="stable")  # 0, 1, 2: they are sorted
    out.pieces(_STEPS, Segments(steps.start, steps.end, in_order), words)
    labels = [part_label(leaf) for leaf in LEAVES]
    out.name_track(_PARTS, "Parts of the step")
    out.pieces(_PARTS, trace.partition.segments, labels)
    if trace.partition.mode == "gpu":
        ran = judged_device_rows(columns, Spans(steps.start, steps.end))
        idle = subtract(union(steps.start, steps.end), union(columns.ts_ns[ran], columns.end_ns[ran]))
        out.name_track(_IDLE, "Device idle, by cause")
        out.pieces(_IDLE, paint(idle, [trace.partition.segments]), labels)
    _write_events(out, columns)


def _columns(trace: TraceFacts) -> TraceColumns:
    parts = by_process(read_pooled(trace.meta))
    mine = next((part for part in parts if part.meta.process == trace.meta.process), parts[0])
    columns = distinct(mine)
    return aligned(columns, launch_of(columns))


def _write_events(out: _Writer, columns: TraceColumns) -> None:
    """Every event on the track of its stream or thread, and an arrow from each launch to its work."""
    names = [out.text(name) for name in columns.strings]
    tracks = _Tracks(out, columns)
    longest_first = (-columns.dur_ns).argsort(kind="stable")
    order = longest_first[columns.ts_ns[longest_first].argsort(kind="stable")]
    track_of = columns.correlation * 0
    for rows in _pieces(order):
        start, dur, name, thread, category, device, stream = (
            each[rows].tolist()
            for each in (
                *(columns.ts_ns, columns.dur_ns, columns.name, columns.thread),
                *(columns.category, columns.device, columns.stream),
            )
        )
        tids = [tracks.place(*each) for each in zip(category, device, stream, thread, start, dur, strict=True)]
        track_of[rows] = tids
        out.put(
            f'"tid":{tid},"ph":"X","ts":{out.clock(begin)},"dur":{_micros(length)},"name":{names[text]}'
            for tid, begin, length, text in zip(tids, start, dur, name, strict=True)
        )
    launches = launch_of(columns)
    for rows in _pieces((launches >= 0).nonzero()[0]):
        calls = launches[rows]
        arrays = (rows, track_of[calls], columns.ts_ns[calls], track_of[rows], columns.ts_ns[rows])
        ends = zip(*(each.tolist() for each in arrays), strict=True)
        out.put(
            f'"tid":{tid},"ph":"{phase}","id":"{out.pid}.{row}","cat":"launch","name":"launch","ts":{out.clock(at)}{more}'
            for row, host, called, stream, ran in ends
            for tid, phase, at, more in ((host, "s", called, ""), (stream, "f", ran, ',"bp":"e"'))
        )


def _pieces(rows: I64) -> Iterator[I64]:
    return (rows[at : at + _AT_ONCE] for at in range(0, len(rows), _AT_ONCE))


class _Tracks:
    """The track of each event: of its stream or thread, and of further ones for what would overlap there."""

    def __init__(self, out: _Writer, columns: TraceColumns) -> None:
        self._out, self._columns = out, columns
        self._several = len(columns.meta.devices) > 1
        self._known: dict[str, list[tuple[int, list[int]]]] = {}
        self._next = {True: _FIRST_STREAM, False: _FIRST_THREAD}

    def place(self, category: int, device: int, stream: int, thread: int, start: int, dur: int) -> int:
        """Return the track of an event; those before it began no later."""
        on_device = category in _ON_DEVICE and stream >= 0
        name = self._stream(category, device, stream) if on_device else self._thread(thread)
        tracks = self._known.setdefault(name, [])
        for tid, open_ends in tracks:
            while open_ends and open_ends[-1] <= start:
                open_ends.pop()
            if not open_ends or start + dur <= open_ends[-1]:
                open_ends.append(start + dur)
                return tid
        tid = self._next[on_device]
        self._next[on_device] += 1
        tracks.append((tid, [start + dur]))
        self._out.name_track(tid, name if len(tracks) == 1 else f"{name} ({len(tracks)})")
        return tid

    def _stream(self, category: int, device: int, stream: int) -> str:
        word = _ON_DEVICE[category]
        return f"Device {device}, stream {stream}{word}" if self._several else f"Stream {stream}{word}"

    def _thread(self, thread: int) -> str:
        number = self._columns.threads[thread][1]
        known = self._columns.thread_names.get(thread, "")
        return f"{known} {number}".strip() if known else f"Thread {number}"


def _write_findings(out: _Writer, trace: TraceFacts, findings: Sequence[Finding]) -> None:
    """A mark for each finding where its first evidence lies, else at the first step."""
    first = int(trace.steps.start[0]) if len(trace.steps.start) else 0
    out.name_track(_FINDINGS, "Findings")
    for found in findings:
        at = next((known.range_ns[0] for known in found.evidence if known.range_ns is not None), first)
        fix = f',"fix":{out.text(found.fix.text)}' if found.fix else ""
        said = f'"severity":"{found.severity}","why":{out.text(found.why)}{fix}'
        mark = (
            f'"tid":{_FINDINGS},"ph":"i","s":"t","ts":{out.clock(at)},"name":{out.text(found.title)},"args":{{{said}}}'
        )
        out.put([mark])
