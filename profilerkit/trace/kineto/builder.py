"""Chunks of typed events into growing columns."""

from collections import Counter
from itertools import compress, repeat
from operator import attrgetter, is_, is_not
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import Raw

from profilerkit.trace import clocks
from profilerkit.trace.classify import classify
from profilerkit.trace.clocks import F64
from profilerkit.trace.columns import (
    I32,
    I64,
    Bools,
    CollectiveArgs,
    Damage,
    Flows,
    MemoryInstants,
    TraceColumns,
    TraceMeta,
)
from profilerkit.trace.kineto import records
from profilerkit.trace.kineto.collectives import collective, collective_args
from profilerkit.trace.kineto.numbers import Parts, as_int32, whole_numbers
from profilerkit.trace.kineto.records import FlowEnd, FlowStart, Instant, Metadata, Span, SpanArgs
from profilerkit.trace.strings import RawTextIds, StringIds, ThreadIds, id_text, printable_text

# ns and float µs of a group of events
Stamps = tuple[I64, F64]

_TIMED = frozenset(
    (
        records.Span,
        records.ExactSpan,
        records.FlowStart,
        records.ExactFlowStart,
        records.FlowEnd,
        records.ExactFlowEnd,
        records.Instant,
        records.ExactInstant,
    )
)
_NAMING = frozenset(("process_name", "thread_name"))
_SPAN_NUMBERS = ("correlation", "external_id", "stream", "device", "bytes")
_MEMORY_NUMBERS = ("bytes", "allocated", "reserved", "device_type", "device")

_name, _cat, _ts, _dur = attrgetter("name"), attrgetter("cat"), attrgetter("ts"), attrgetter("dur")
_pid_tid, _args, _id = attrgetter("pid", "tid"), attrgetter("args"), attrgetter("id")
_dims, _types, _collective = attrgetter("input_dims"), attrgetter("input_types"), attrgetter("collective")


class ColumnBuilder:
    """Turns lists of events into columns, interning every text.

    Attributes:
        strings: names, flow categories and raw shapes to ids.
        kinds: category texts to ids.
        threads: (pid, tid) to ids.
        dropped: why complete events were dropped, and how many.
        unpaired: begin and end events that were left out.
    """

    def __init__(self) -> None:
        self.strings = StringIds()
        self.kinds = StringIds()
        self.threads = ThreadIds()
        self.dropped: Counter[str] = Counter()
        self.unpaired = 0
        self.n_spans = 0
        self._raw_ids = RawTextIds(self.strings)
        self._spans = Parts()
        self._flows = Parts()
        self._memory = Parts()
        self._collectives: list[CollectiveArgs] = []
        self._names: list[Metadata] = []

    def add(self, events: list[records.Event], text: bytes = b"") -> bool:
        """Add the events of one chunk, or return False and add nothing when they need the exact decoder.

        Args:
            events: decoded from ``text``, or one by one by the exact decoder.
            text: the JSON array they were decoded from.

        Raises:
            msgspec.ValidationError: the metadata of a collective is of odd types; nothing was added.
        """
        classes = list(map(type, events))
        groups: list[tuple[Any, list[Any], Stamps]] = []
        for found in set(classes) & _TIMED:
            group: list[Any] = list(compress(events, map(is_, classes, repeat(found))))
            stamps = clocks.stamps_to_ns(list(map(_ts, group)))
            if stamps is None:
                return False
            groups.append((found, group, stamps))
        has_collectives = any(
            any(map(_collective, map(_args, group))) for found, group, _ in groups if issubclass(found, Span)
        )
        wide_args = collective_args(events, text) if has_collectives else []
        for found, group, stamps in groups:
            if issubclass(found, Span):
                self._add_spans(group, stamps, wide_args)
            elif issubclass(found, FlowStart):
                self._add_flows(group, stamps, are_starts=not issubclass(found, FlowEnd))
            else:
                self._add_memory(group, stamps)
        if Metadata in classes:
            self._names += [event for event in events if isinstance(event, Metadata) and event.name in _NAMING]
        self.unpaired += classes.count(records.Begin) + classes.count(records.End)
        return True

    def _add_spans(self, spans: list[Span], stamps: Stamps, wide_args: list[SpanArgs]) -> None:
        count = len(spans)
        ts_ns, ts_us = stamps
        dur_us = clocks.float_us(list(map(_dur, spans)))
        possible = self._possible(ts_us, dur_us)
        args = list(map(_args, spans))
        columns: dict[str, npt.NDArray[Any]] = {
            "name": np.fromiter(map(self.strings.__getitem__, map(_name, spans)), np.int32, count),
            "kind": np.fromiter(map(self.kinds.__getitem__, map(_cat, spans)), np.int32, count),
            "ts_ns": ts_ns,
            "dur_ns": clocks.us_to_ns(dur_us),
            "thread": np.fromiter(map(self.threads.__getitem__, map(_pid_tid, spans)), np.int32, count),
            "input_dims": self._raw_text(list(map(_dims, args))),
            "input_types": self._raw_text(list(map(_types, args))),
        }
        for column in _SPAN_NUMBERS:
            columns[column] = whole_numbers(list(map(attrgetter(column), args)))
        if "Runtime" in self.kinds:
            external = whole_numbers([a.external_id_2021 for a in args])
            columns["external_id"] = np.where(external >= 0, external, columns["external_id"])
        columns["device"] = as_int32(columns["device"])
        self._add_collectives(wide_args, possible)
        self._spans.append(columns, keep=possible)
        self.n_spans += int(possible.sum())

    def _possible(self, ts_us: F64, dur_us: F64) -> Bools:
        """Return ``(n,)`` which events have a time that can be true; the others are counted by reason."""
        possible = np.ones(len(ts_us), np.bool_)
        for reason, is_bad in (
            ("without a start", np.isnan(ts_us)),
            ("with a start no clock can show", ~clocks.is_time(ts_us)),
            ("with a negative duration", dur_us < 0),
            ("with a duration of more than ten years", ~(dur_us <= clocks.LONGEST_DURATION_US)),
            ("with an end no clock can show", ~clocks.is_time(ts_us + dur_us)),
        ):
            bad = is_bad & possible
            if bad.any():
                self.dropped[reason] += int(bad.sum())
                possible &= ~bad
        return possible

    def _add_collectives(self, args: list[SpanArgs], possible: Bools) -> None:
        rows = self.n_spans + np.cumsum(possible) - 1
        for index, found in enumerate(args):
            if possible[index] and (row_args := collective(int(rows[index]), found)) is not None:
                self._collectives.append(row_args)

    def _raw_text(self, texts: list[Raw]) -> I32:
        ids = np.full(len(texts), -1, np.int32)
        given = list(map(is_not, texts, repeat(records.NO_TEXT)))
        if any(given):
            found = list(map(self._raw_ids.__getitem__, map(bytes, compress(texts, given))))
            ids[np.array(given)] = found
        return ids

    def _add_flows(self, flows: list[FlowStart], stamps: Stamps, *, are_starts: bool) -> None:
        ts_ns, ts_us = stamps
        count = len(flows)
        columns: dict[str, npt.NDArray[Any]] = {
            "id": whole_numbers(list(map(_id, flows))),
            "kind": np.fromiter(map(self.strings.__getitem__, map(_cat, flows)), np.int32, count),
            "starts": np.full(count, are_starts),
            "ts_ns": ts_ns,
            "thread": np.fromiter(map(self.threads.__getitem__, map(_pid_tid, flows)), np.int32, count),
        }
        self._flows.append(columns, keep=clocks.is_time(ts_us))

    def _add_memory(self, instants: list[Instant], stamps: Stamps) -> None:
        ts_ns, ts_us = stamps
        args = list(map(_args, instants))
        columns = {column: whole_numbers(list(map(attrgetter(column), args))) for column in _MEMORY_NUMBERS}
        columns["ts_ns"] = ts_ns
        sized = [event.name == "[memory]" and event.args.bytes is not None for event in instants]
        self._memory.append(columns, keep=clocks.is_time(ts_us) & np.array(sized))

    def notes(self) -> list[str]:
        """Return what was left out and why, one sentence each."""
        notes = [f"{count} events {reason} were dropped" for reason, count in self.dropped.items()]
        if self.unpaired:
            notes.append(f"{self.unpaired} begin and end events are not complete events and were left out")
        return notes

    def finish(self, meta: TraceMeta, damage: Damage) -> TraceColumns:
        """Return the columns of everything added; the builder is spent."""
        texts = self.threads.texts
        thread_names = self._thread_names()
        spans, flows, memory = self._spans, self._flows, self._memory
        name, thread = spans.joined("name", np.int32), spans.joined("thread", np.int32)
        strings, threads = tuple(map(printable_text, self.strings)), tuple(texts)
        category = classify(
            name, spans.joined("kind", np.int32), thread, strings=strings, kinds=tuple(self.kinds), threads=threads
        )
        return TraceColumns(
            meta=meta,
            damage=damage,
            name=name,
            category=category,
            ts_ns=spans.joined("ts_ns", np.int64),
            dur_ns=spans.joined("dur_ns", np.int64),
            thread=thread,
            correlation=spans.joined("correlation", np.int64),
            external_id=spans.joined("external_id", np.int64),
            stream=spans.joined("stream", np.int64),
            device=spans.joined("device", np.int32),
            bytes=spans.joined("bytes", np.int64),
            input_types=spans.joined("input_types", np.int32),
            input_dims=spans.joined("input_dims", np.int32),
            strings=strings,
            threads=threads,
            thread_names=thread_names,
            collectives=tuple(self._collectives),
            flows=Flows(
                id=flows.joined("id", np.int64),
                kind=flows.joined("kind", np.int32),
                starts=flows.joined("starts", np.bool_),
                ts_ns=flows.joined("ts_ns", np.int64),
                thread=flows.joined("thread", np.int32),
            ),
            memory=MemoryInstants(
                ts_ns=memory.joined("ts_ns", np.int64),
                bytes=memory.joined("bytes", np.int64),
                allocated=memory.joined("allocated", np.int64),
                reserved=memory.joined("reserved", np.int64),
                device_type=as_int32(memory.joined("device_type", np.int64)),
                device=as_int32(memory.joined("device", np.int64)),
            ),
        )

    def _thread_names(self) -> dict[int, str]:
        """Return thread id to name; a thread without one of its own takes its process's."""
        processes: dict[str, str] = {}
        names: dict[tuple[str, str], str] = {}
        for event in self._names:
            pid, name = id_text(event.pid), printable_text((event.args.name or "").strip())
            if name and event.name == "process_name":
                processes[pid] = name
            elif name:
                names[pid, id_text(event.tid)] = name
        found = {thread: names.get(pair) or processes.get(pair[0]) for pair, thread in self.threads.texts.items()}
        return {thread: name for thread, name in found.items() if name}
