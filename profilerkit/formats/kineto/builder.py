"""Chunks of typed events into growing columns."""

from collections import Counter
from itertools import compress
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Raw

from profilerkit.formats import values
from profilerkit.formats.kineto import records
from profilerkit.formats.kineto.records import FRAME, NO_TEXT
from profilerkit.formats.limits import COLLECTIVES
from profilerkit.trace.classify import CATEGORIES, classify
from profilerkit.trace.columns import (
    I64,
    WORK,
    Bools,
    CollectiveArgs,
    Damage,
    Flows,
    MemoryInstants,
    TraceColumns,
    TraceMeta,
    Wanted,
)

# ns and float µs of a group of events
Stamps = tuple[I64, values.F64]
Values = dict[str, npt.NDArray[Any]]
Dtypes = dict[str, npt.DTypeLike]

_FAMILIES: tuple[type, ...] = (records.Span, records.FlowStart, records.Instant)
_UNPAIRED, _SKIPPED_FLOWS = ({records.UNUSED[phase] for phase in phases} for phases in ("BEbe", "sf"))
_SPANS: Dtypes = {
    **dict.fromkeys(("name", "kind", "thread", "device"), np.int32),
    **dict.fromkeys(("ts_ns", "dur_ns", "correlation", "external_id", "stream", "bytes"), np.int64),
}
_SHAPES: Dtypes = {
    **dict.fromkeys(("input_dims", "input_types", "concrete_inputs"), np.int32),
    "blocks_per_sm": np.float32,
}
_FLOWS: Dtypes = {"id": np.int64, "kind": np.int32, "starts": np.bool_, "ts_ns": np.int64, "thread": np.int32}
_MEMORY: Dtypes = {
    **dict.fromkeys(("ts_ns", "bytes", "allocated", "reserved", "address"), np.int64),
    **dict.fromkeys(("device_type", "device", "thread"), np.int32),
}
# Events are only named when they were rejected; a report shows no more of them.
_REJECTED_NAMED = 5


class ColumnBuilder:
    """Turns lists of events into columns, interning every text.

    Attributes:
        exact: whether chunks have to be decoded with every digit of a start.
        strings: names, flow categories and raw shapes to ids.
        kinds: category texts to ids.
        threads: (pid, tid) to ids.
        dropped: why complete events were dropped, and how many.
        rejected: of the events added last, the indices of the first few that were dropped.
        has_skipped_flows: whether there were flow links, which were not wanted.
        skipped_frames: Python frames that were not wanted.
        unpaired: begin and end events that were left out.
        spans, flows, memory: the columns of complete events, flow links and memory instants.
        collectives: what is said of the collectives among the complete events.
        waits: streams, and those they were made to wait for.
        names: of threads and processes.
    """

    def __init__(self, wanted: Wanted) -> None:
        self.wanted = wanted
        self.strings = values.StringIds()
        self.kinds = values.StringIds()
        self.threads = values.ThreadIds()
        self.dropped: Counter[str] = Counter()
        self.rejected: list[int] = []
        self.has_skipped_flows = False
        self.skipped_frames = 0
        self.unpaired = 0
        self.exact = False
        self._raw_ids = values.RawTextIds(self.strings)
        self._arguments = records.ArgumentsWanted()
        self._pausing = records.PausingFrames()
        self.spans = values.Table(_SPANS | (_SHAPES if Wanted.SHAPES in wanted else {}))
        self.flows = values.Table(_FLOWS)
        self.memory = values.Table(_MEMORY)
        self.collectives: list[CollectiveArgs] = []
        self.waits: set[tuple[int, int]] = set()
        self._plain_collectives = 0
        self.names = records.ThreadNames()

    @property
    def n_spans(self) -> int:
        """How many complete events were added."""
        return self.spans.rows

    def decode(self, array: memoryview | bytes) -> int:
        """Add the events of a JSON list, and return how many elements it has; raises ``UNDECODABLE``, adding none.

        Starts that are written as text, as torch_npu does, are read as what they say from here on.
        """
        try:
            decoded = records.decoder(self.wanted, exact=self.exact).decode(array)
        except msgspec.ValidationError:
            if self.exact:
                raise
            decoded = records.decoder(self.wanted, exact=True).decode(array)
            self.exact = True
        if not self.add(decoded):
            decoded = records.decoder(self.wanted, exact=self.exact).decode(array)
            self.add(decoded)
        return len(decoded)

    def add(self, events: records.Events) -> bool:
        """Add the events of one chunk, or return False, add nothing, and set ``exact`` when floats do not do for them.

        Args:
            events: decoded from one text, or one by one and exactly.

        Raises:
            ValueError: a start is no number; nothing was added.
        """
        self.rejected.clear()
        found = set(map(type, events))
        groups: list[tuple[type, list[Any], Stamps]] = []
        for family in _FAMILIES:
            kinds = [kind for kind in found if issubclass(kind, family)]
            if not kinds:
                continue
            first, last = kinds[0], kinds[-1]  # two of flow links, one of the others
            group: list[Any] = events
            if kinds != list(found):
                group = [event for event in events if type(event) is first or type(event) is last]
            times = [event.ts for event in group]
            if type(times[0]) is Raw:
                stamps: Stamps | None = values.written_to_ns(times)
            else:
                stamps = values.stamps_to_ns(times)
            if stamps is None:
                self.exact = True
                return False
            groups.append((family, group, stamps))
        for family, group, stamps in groups:
            if family is records.FlowStart:
                self._add_flows(group, stamps)
            elif family is records.Instant:
                self._add_memory(group, stamps)
            else:
                self._add_spans(group, stamps, events)
        if records.Metadata in found:
            self.names.add(events)
        self.has_skipped_flows = self.has_skipped_flows or bool(found & _SKIPPED_FLOWS)
        if found & _UNPAIRED:
            self.unpaired += sum(type(event) in _UNPAIRED for event in events)
        return True

    def _add_spans(self, spans: list[records.Span], stamps: Stamps, events: records.Events) -> None:
        """Add complete events, which are among others."""
        kept = self._frames_wanted(spans)
        if kept is not None:
            self.skipped_frames += int(np.count_nonzero(~kept))
            spans, stamps = list(compress(spans, kept)), (stamps[0][kept], stamps[1][kept])
            if not spans:
                return
        # One comprehension for each field: attrgetter is slower, and tuples of fields set off the garbage collector.
        args = [span.args for span in spans]
        dur_us = values.float_us([span.dur for span in spans])
        pairs = zip([span.pid for span in spans], [span.tid for span in spans], strict=True)
        columns: Values = {
            "name": values.small_numbers(list(map(self.strings.__getitem__, [span.name for span in spans]))),
            "kind": values.small_numbers(list(map(self.kinds.__getitem__, [span.cat for span in spans]))),
            "thread": values.small_numbers(list(map(self.threads.__getitem__, pairs))),
            "ts_ns": stamps[0],
            "dur_ns": values.us_to_ns(dur_us),
            "correlation": values.whole_numbers([found.correlation for found in args]),
            "external_id": values.whole_numbers([found.external_id for found in args]),
            "stream": values.whole_numbers([found.stream for found in args]),
            "device": values.as_int32(values.whole_numbers([found.device for found in args])),
            "bytes": values.whole_numbers([found.bytes for found in args]),
        }
        if "Runtime" in self.kinds:
            external = values.whole_numbers([found.external_id_2021 for found in args])
            columns["external_id"] = np.where(external >= 0, external, columns["external_id"])
        if "cuda_sync" in self.kinds:
            awaited = values.whole_numbers([found.awaited_stream for found in args])
            waits = np.flatnonzero(awaited >= 0)
            self.waits.update(zip(columns["stream"][waits].tolist(), awaited[waits].tolist(), strict=True))
        if Wanted.SHAPES in self.wanted:
            self._add_shapes(columns, spans, args)
        possible = self._possible(stamps[1], dur_us)
        named = [index for index, found in enumerate(args) if found.collective]
        if named:
            self._add_collectives(named, args, possible)
        self.spans.append(columns, keep=possible)
        if possible is not None:
            rows = np.flatnonzero([isinstance(event, records.Span) for event in events])
            rows = rows if kept is None else rows[kept]
            self.rejected += rows[np.flatnonzero(~possible)[:_REJECTED_NAMED]].tolist()

    def _frames_wanted(self, spans: list[records.Span]) -> Bools | None:
        if Wanted.PYTHON in self.wanted:
            return None
        pausing = self._pausing
        kept = [span.cat != FRAME or pausing[span.name] for span in spans]
        return None if all(kept) else np.array(kept)

    def _add_shapes(self, columns: Values, spans: list[records.Span], args: list[records.SpanArgs]) -> None:
        """Take what was passed to operators; most events are none, so that they are told apart first."""
        wanted, ids = self._arguments, self._raw_ids
        rows = [row for row, found in enumerate(args) if found.input_dims is not NO_TEXT and wanted[spans[row].name][0]]
        valued = [row for row in rows if wanted[spans[row].name][1]]
        columns |= _absent(len(args))
        columns["blocks_per_sm"] = values.grid_sizes([found.blocks_per_sm for found in args])
        columns["input_dims"][rows] = [ids[bytes(args[row].input_dims)] for row in rows]
        columns["input_types"][rows] = [ids[bytes(args[row].input_types)] for row in rows]
        columns["concrete_inputs"][valued] = [ids[bytes(args[row].concrete_inputs)] for row in valued]

    def _add_collectives(self, named: list[int], args: list[records.SpanArgs], possible: Bools | None) -> None:
        rows = range(len(args)) if possible is None else np.cumsum(possible) - 1
        for index in named:
            if possible is not None and not possible[index]:
                continue
            if len(self.collectives) < COLLECTIVES:
                self.collectives.append(records.collective(self.n_spans + int(rows[index]), args[index]))
            else:
                self._plain_collectives += 1

    def _possible(self, ts_us: values.F64, dur_us: values.F64) -> Bools | None:
        """Return ``(n,)`` which events have a time that can be true, None for all; the others are counted by reason."""
        ends_us = ts_us + dur_us
        if (
            ts_us.min() >= -values.LAST_US
            and ends_us.max() <= values.LAST_US
            and dur_us.min() >= 0
            and dur_us.max() <= values.LONGEST_DURATION_US
        ):
            return None
        possible = np.ones(len(ts_us), np.bool_)
        for reason, is_bad in (
            ("without a start", np.isnan(ts_us)),
            ("with a start no clock can show", ~values.is_time(ts_us)),
            ("with a negative duration", dur_us < 0),
            ("with a duration of more than ten years", ~(dur_us <= values.LONGEST_DURATION_US)),
            ("with an end no clock can show", ~values.is_time(ends_us)),
        ):
            bad = is_bad & possible
            if bad.any():
                self.dropped[reason] += int(bad.sum())
                possible &= ~bad
        return possible

    def _add_flows(self, flows: list[records.FlowStart], stamps: Stamps) -> None:
        pairs = zip([flow.pid for flow in flows], [flow.tid for flow in flows], strict=True)
        columns: Values = {
            "id": values.whole_numbers([flow.id for flow in flows]),
            "kind": values.small_numbers(list(map(self.strings.__getitem__, [flow.cat for flow in flows]))),
            "starts": np.array([not isinstance(flow, records.FlowEnd) for flow in flows]),
            "ts_ns": stamps[0],
            "thread": values.small_numbers(list(map(self.threads.__getitem__, pairs))),
        }
        self.flows.append(columns, keep=values.is_time(stamps[1]))

    def _add_memory(self, instants: list[records.Instant], stamps: Stamps) -> None:
        sized = [event.name == "[memory]" and event.args.bytes is not None for event in instants]
        args = [event.args for event in instants]
        pairs = zip([event.pid for event in instants], [event.tid for event in instants], strict=True)
        columns: Values = {
            "ts_ns": stamps[0],
            "bytes": values.whole_numbers([found.bytes for found in args]),
            "allocated": values.whole_numbers([found.allocated for found in args]),
            "reserved": values.whole_numbers([found.reserved for found in args]),
            "address": values.whole_numbers([found.address for found in args]),
            "device_type": values.as_int32(values.whole_numbers([found.device_type for found in args])),
            "device": values.as_int32(values.whole_numbers([found.device for found in args])),
            "thread": values.small_numbers(list(map(self.threads.__getitem__, pairs))),
        }
        self.memory.append(columns, keep=values.is_time(stamps[1]) & np.array(sized))

    def has_loose_work(self) -> bool:
        """Return whether some device work has no correlation, so that only flow links join it to its launch."""
        kinds = [index for index, text in enumerate(self.kinds) if CATEGORIES.get(text) in WORK or not text]
        work = np.isin(self.spans.view("kind"), np.array(kinds, np.int32))
        return bool((self.spans.view("correlation")[work] < 0).any())

    def notes(self) -> list[str]:
        """Return what was left out and why, one sentence each."""
        notes = [f"{count} events {reason} were dropped" for reason, count in self.dropped.items()]
        if self.unpaired:
            notes.append(f"{self.unpaired} begin and end events are not complete events and were left out")
        if self._plain_collectives:
            notes.append(f"{self._plain_collectives} collectives past the limit were read without their sizes")
        refused = self.strings.refused + self.kinds.refused + self.threads.refused
        if refused:
            notes.append(f"{refused} names past the limit on distinct names were put together as one")
        return notes

    def finish(self, meta: TraceMeta, damage: Damage) -> TraceColumns:
        """Return the columns of everything added; the builder is spent."""
        spans, flows, memory = self.spans, self.flows, self.memory
        if Wanted.SHAPES in self.wanted:
            shapes: Values = {column: spans.take(column) for column in _SHAPES}
        else:
            shapes = _absent(spans.rows)
        strings, threads = tuple(map(values.printable_text, self.strings)), tuple(self.threads.texts)
        name, kind, thread = spans.take("name"), spans.take("kind"), spans.take("thread")
        category = classify(name, kind, thread, strings=strings, kinds=tuple(self.kinds), threads=threads)
        del kind
        return TraceColumns(
            meta=meta,
            damage=damage,
            name=name,
            category=category,
            thread=thread,
            strings=strings,
            threads=threads,
            thread_names=self.names.of(self.threads),
            collectives=tuple(self.collectives),
            flows=Flows(**{column: flows.take(column) for column in _FLOWS}),
            memory=MemoryInstants(**{column: memory.take(column) for column in _MEMORY}),
            read=self.wanted,
            frames_left_out=self.skipped_frames,
            stream_waits=frozenset(self.waits),
            windows=(),
            **{column: spans.take(column) for column in _SPANS if column not in ("name", "kind", "thread")},
            **shapes,
        )


def _absent(count: int) -> Values:
    return {name: np.full(count, -1 if np.dtype(dtype).kind == "i" else 0, dtype) for name, dtype in _SHAPES.items()}
