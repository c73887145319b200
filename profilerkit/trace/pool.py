"""Several windows of one process, each recorded into a file of its own, as one trace."""

from collections.abc import Hashable, Sequence
from itertools import accumulate
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from profilerkit.model.change import revise
from profilerkit.trace.columns import I32, I64, Category, Damage, Flows, MemoryInstants, TraceColumns, TraceMeta
from profilerkit.trace.readers import read_trace

Array = npt.NDArray[Any]

#: Columns that hold ids of strings.
_TEXTS = ("name", "input_types", "input_dims", "concrete_inputs")
_Text = TypeVar("_Text", bound=Hashable)

_HOST = (Category.CPU_OP, Category.RUNTIME, Category.ANNOTATION)


def read_pooled(meta: TraceMeta) -> TraceColumns:
    """Return the events of a trace again, from all files that it was read from."""
    return pooled([read_trace(path) for path in (meta.path, *meta.further)])


def pooled(windows: Sequence[TraceColumns]) -> TraceColumns:
    """Return the events of all windows as one trace on the clock of the first, one window after the other.

    Nothing links events of different windows. What a file says beside its events is taken from the first one, what was
    wrong with it from all.

    Args:
        windows: at least one, in order of time.
    """
    if len(windows) == 1:
        return windows[0]
    strings, texts = _common([window.strings for window in windows])
    threads, places = _common([window.threads for window in windows])
    moved = [_moved(*of, windows[0]) for of in zip(windows, texts, places, strict=True)]
    begins = [0, *accumulate(len(window) for window in windows)]
    waits = [window.stream_waits for window in windows]
    return revise(
        moved[0],
        meta=revise(moved[0].meta, further=tuple(window.meta.path for window in windows[1:])),
        **_joined(moved, ("correlation", "external_id")),
        flows=Flows(**_joined([window.flows for window in moved], ("id",))),
        memory=MemoryInstants(**_joined([window.memory for window in moved])),
        damage=_damage([window.damage for window in windows]),
        strings=strings,
        threads=threads,
        thread_names={
            int(place[thread]): name
            for place, window in zip(places, windows, strict=True)
            for thread, name in window.thread_names.items()
        },
        collectives=tuple(
            revise(args, row=args.row + begin)
            for begin, window in zip(begins, windows, strict=False)
            for args in window.collectives
        ),
        frames_left_out=sum(window.frames_left_out for window in windows),
        stream_waits=frozenset[tuple[int, int]]().union(*waits) if all(waits) else frozenset(),
        windows=tuple(_begin_ns(window) for window in moved),
    )


def _common(tables: Sequence[Sequence[_Text]]) -> tuple[tuple[_Text, ...], list[I32]]:
    """Return one table of all entries, and for each table the new id of each of its entries."""
    ids: dict[_Text, int] = {}
    places = [np.array([ids.setdefault(text, len(ids)) for text in table], np.int32) for table in tables]
    return tuple(ids), places


def _moved(window: TraceColumns, text: I32, place: I32, first: TraceColumns) -> TraceColumns:
    """Return a window with the ids of the common tables, on the clock of the first one."""
    shift_ns = (window.meta.base_time_ns or 0) - (first.meta.base_time_ns or 0)
    text = np.r_[text, np.int32(-1)]  # which an absent text, -1, takes
    flows, memory = window.flows, window.memory
    columns: dict[str, Array] = {name: text[getattr(window, name)] for name in _TEXTS}
    return revise(
        window,
        **columns,  # the names are those of arrays
        ts_ns=window.ts_ns + shift_ns,
        thread=place[window.thread],
        flows=revise(flows, kind=text[flows.kind], ts_ns=flows.ts_ns + shift_ns, thread=place[flows.thread]),
        memory=revise(memory, ts_ns=memory.ts_ns + shift_ns, thread=place[memory.thread]),
    )


def _joined(records: Sequence[Any], links: Sequence[str] = ()) -> dict[str, Any]:
    """Return the arrays of some records one after the other; ``links`` are numbers that differ between records."""
    names = [name for name in records[0].__struct_fields__ if isinstance(getattr(records[0], name), np.ndarray)]
    columns = {name: [getattr(record, name) for record in records] for name in names}
    return {name: np.concatenate(_apart(found) if name in links else found) for name, found in columns.items()}


def _apart(numbers: Sequence[I64]) -> list[I64]:
    """Return the numbers of each window so that none has one of another; -1 stays.

    >>> [found.tolist() for found in _apart([np.array([7, -1, 9]), np.array([7, 7])])]
    [[0, -1, 1], [2, 2]]
    """
    out, used = [], 0
    for values in numbers:
        known, place = np.unique(values, return_inverse=True)
        new = np.where(known < 0, -1, used + np.cumsum(known >= 0) - 1)
        used += int((known >= 0).sum())
        out.append(new[place].astype(np.int64))
    return out


def _damage(found: Sequence[Damage]) -> Damage:
    return Damage(
        repaired=sum(damage.repaired for damage in found),
        dropped=sum(damage.dropped for damage in found),
        truncated=any(damage.truncated for damage in found),
        samples=tuple(sample for damage in found for sample in damage.samples),
        notes=tuple(dict.fromkeys(note for damage in found for note in damage.notes)),
    )


def _begin_ns(window: TraceColumns) -> int:
    """Return when the host's first event of a window begins, ns."""
    host = window.ts_ns[window.is_a(*_HOST)]
    return int(host.min() if len(host) else window.ts_ns.min())
