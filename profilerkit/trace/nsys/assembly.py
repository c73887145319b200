"""The events of one process of an export into the columns of a trace."""

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from profilerkit.trace.classify import classify
from profilerkit.trace.columns import (
    F32,
    I32,
    I64,
    Bools,
    Damage,
    DeviceProperties,
    Flows,
    MemoryInstants,
    TraceColumns,
    TraceMeta,
    Wanted,
)
from profilerkit.trace.kineto.numbers import as_int32
from profilerkit.trace.nsys.names import Names
from profilerkit.trace.nsys.tables import Rows
from profilerkit.trace.strings import ThreadIds

#: Kineto's words for the kinds of events, which ``classify`` knows.
KERNEL, MEMCPY, MEMSET, RUNTIME, SYNC, OPERATOR, ANNOTATION = KINDS = (
    "kernel",
    "gpu_memcpy",
    "gpu_memset",
    "cuda_runtime",
    "cuda_sync",
    "cpu_op",
    "user_annotation",
)
#: As many as Kineto's traces are believed to have: 2**31 blocks on a device with a single multiprocessor.
_MOST_BLOCKS_PER_SM = 2.0**31


class Events(msgspec.Struct, frozen=True):
    """Rows of one kind with their names, ``(n,)`` ids."""

    kind: str
    rows: Rows
    name: I32

    def column(self, name: str) -> I64:
        """Return a column of the table, -1 where it has none of that name."""
        return self.rows[name] if name in self.rows.columns else np.full(len(self.rows), -1, np.int64)


def assembled(
    meta: TraceMeta, damage: Damage, events: Sequence[Events], names: Names, waits: frozenset[tuple[int, int]]
) -> TraceColumns:
    """Return the columns of some events, one kind after the other."""
    threads = ThreadIds()
    thread = np.concatenate([_threads(found, threads) for found in events])
    name = np.concatenate([found.name for found in events])
    kind = np.concatenate([_kinds(found, names) for found in events])
    start, end = (np.concatenate([found.rows[column] for found in events]) for column in ("start", "end"))
    strings = tuple(names.strings)
    absent = np.full(len(start), -1, np.int32)
    return TraceColumns(
        meta=meta,
        damage=damage,
        name=name,
        category=classify(name, kind, thread, strings=strings, kinds=KINDS, threads=tuple(threads.texts)),
        ts_ns=start,
        dur_ns=end - start,
        thread=thread,
        correlation=_joined(events, "correlationId"),
        external_id=absent.astype(np.int64),
        stream=_joined(events, "streamId"),
        device=as_int32(_joined(events, "deviceId")),
        bytes=np.maximum(_joined(events, "bytes"), -1),
        input_types=absent,
        input_dims=absent,
        concrete_inputs=absent,
        blocks_per_sm=np.concatenate([_blocks_per_sm(found, meta.devices) for found in events]),
        strings=strings,
        threads=tuple(threads.texts),
        thread_names={},
        collectives=(),
        flows=Flows.none(),
        memory=MemoryInstants.none(),
        read=Wanted.EVERYTHING,
        stream_waits=waits,
    )


def stream_waits(syncs: Rows, waiting: Bools, recorded: Mapping[str, I64]) -> frozenset[tuple[int, int]]:
    """Return which stream waited for which; empty unless the recorded event of every wait is known.

    Args:
        syncs: synchronizations.
        waiting: which of them make a stream wait for an event.
        recorded: the stream and the synchronization id of each event that was recorded.
    """
    event, stream = syncs["eventSyncId"][waiting], syncs["streamId"][waiting]
    order = np.argsort(recorded["eventSyncId"], kind="stable")
    known = recorded["eventSyncId"][order]
    if not len(event) or not len(known):
        return frozenset()
    at = np.minimum(np.searchsorted(known, event), len(known) - 1)
    if not ((known[at] == event) & (event > 0)).all():
        return frozenset()
    return frozenset(zip(stream.tolist(), recorded["streamId"][order[at]].tolist(), strict=True))


def _joined(events: Sequence[Events], name: str) -> I64:
    return np.concatenate([found.column(name) for found in events])


def _kinds(events: Events, names: Names) -> I32:
    kind = np.full(len(events.rows), KINDS.index(events.kind), np.int32)
    if events.kind == ANNOTATION:
        kind[names.is_operator(events.name)] = KINDS.index(OPERATOR)
    return kind


def _threads(events: Events, threads: ThreadIds) -> I32:
    """Return ``(n,)`` thread ids: a stream of a device, or a thread of the process."""
    on_device = "streamId" in events.rows.columns
    keys = [events.rows[name] for name in (("deviceId", "streamId") if on_device else ("pid", "tid"))]
    if not len(events.rows):
        return np.empty(0, np.int32)
    used, place = np.unique(np.stack(keys), axis=1, return_inverse=True)
    prefix = "stream " if on_device else ""
    known = np.array([threads[str(first), f"{prefix}{second}"] for first, second in used.T.tolist()], np.int32)
    return known[place.ravel()]


def _blocks_per_sm(events: Events, devices: Sequence[DeviceProperties]) -> F32:
    """Return ``(n,)`` blocks of each kernel's grid for each multiprocessor, 0 where not known."""
    out = np.zeros(len(events.rows), np.float32)
    if events.kind != KERNEL:
        return out
    grid = np.ones(len(out))
    for axis in ("gridX", "gridY", "gridZ"):
        grid *= np.maximum(events.column(axis), 0)
    for device in devices:
        if device.multiprocessors:
            mine = (events.rows["deviceId"] == device.id) & (grid <= _MOST_BLOCKS_PER_SM * device.multiprocessors)
            out[mine] = grid[mine] / device.multiprocessors
    return out
