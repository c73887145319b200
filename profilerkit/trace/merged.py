"""Put several traces together, and take apart a file that holds several processes or events twice."""

from collections.abc import Hashable, Sequence
from itertools import accumulate
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from profilerkit.model import revise
from profilerkit.trace.columns import (
    I32,
    I64,
    WORK,
    Bools,
    Category,
    Damage,
    Flows,
    MemoryInstants,
    TraceColumns,
    saying,
)
from profilerkit.trace.launches import is_launch, launch_of

Array = npt.NDArray[Any]
_Record = TypeVar("_Record", TraceColumns, MemoryInstants, Flows)

# An odd constant of 64 random bits: sums of products with it differ wherever one summand does, but for chance.
_MIX = np.uint64(0x9E3779B97F4A7C15)

#: Name, category, time and thread come first in a record, and tell almost all events apart.
_TELLING = 4


def distinct(columns: TraceColumns) -> TraceColumns:
    """The columns without exact copies: events, or memory instants, that agree with an earlier one in everything read.

    Recorders do not write such copies; files that were put together do.
    """
    keep_instant = ~copies(list(_rows(columns.memory, len(columns.memory.ts_ns)).values()))
    if not keep_instant.all():
        columns = revise(columns, memory=only(columns.memory, keep_instant))
    keep = ~copies(list(_rows(columns, len(columns)).values()))
    if keep.all():
        return columns
    note = f"{int((~keep).sum()):,} events are exact copies of others and count once."
    return revise(kept(columns, keep), damage=revise(columns.damage, notes=(*columns.damage.notes, note)))


def kept(columns: TraceColumns, keep: Bools) -> TraceColumns:
    """The columns with the events in ``keep`` and what is said of them; flow links and memory instants stay."""
    row: I64 = np.cumsum(keep) - 1
    collectives = tuple(revise(args, row=int(row[args.row])) for args in columns.collectives if keep[args.row])
    return revise(only(columns, keep), collectives=collectives)


def copies(arrays: Sequence[Array]) -> Bools:
    """``(n,)`` mask of the rows that agree with an earlier one in every array.

    >>> copies([np.array([1, 2, 1, 1]), np.array([5, 6, 5, 7])]).tolist()
    [False, False, True, False]
    """
    repeated = np.zeros(len(arrays[0]), dtype=np.bool_)
    mixed = np.zeros(len(repeated), dtype=np.uint64)
    for place, array in enumerate(arrays):
        mixed ^= array.astype(np.uint64)
        mixed *= _MIX
        mixed ^= mixed >> np.uint64(29)
        if place in (_TELLING, len(arrays) - 1):
            ordered = np.sort(mixed)
            if not (ordered[1:] == ordered[:-1]).any():
                return repeated
    order = np.argsort(mixed, kind="stable")
    same = np.ones(max(len(order) - 1, 0), dtype=np.bool_)
    for array in arrays:
        same &= array[order[1:]] == array[order[:-1]]
    repeated[order[1:][same]] = True
    return repeated


def _rows(record: TraceColumns | MemoryInstants | Flows, length: int) -> dict[str, Array]:
    found = {name: getattr(record, name) for name in record.__struct_fields__}
    return {name: value for name, value in found.items() if isinstance(value, np.ndarray) and value.shape == (length,)}


def only(record: _Record, keep: Bools) -> _Record:
    """The record with the rows in ``keep``."""
    rows = {name: array[keep] for name, array in _rows(record, len(keep)).items()}
    return revise(record, **rows)  # the names are those of arrays


def repeated(columns: TraceColumns, rows: I64) -> TraceColumns:
    """The columns with the events in ``rows`` once more behind all others; what is said of them is not repeated."""
    found = {name: np.r_[array, array[rows]] for name, array in _rows(columns, len(columns)).items()}
    return revise(columns, **found)  # the names are those of arrays


#: Columns that hold ids of strings.
_TEXTS = ("name", "input_types", "input_dims", "concrete_inputs")
_Text = TypeVar("_Text", bound=Hashable)

_HOST = (Category.CPU_OP, Category.RUNTIME, Category.ANNOTATION)


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
        meta=revise(moved[0].meta, further=tuple(window.meta.path for window in windows[1:])),
        windows=tuple(_begin_ns(window) for window in moved),
    )


def _common(tables: Sequence[Sequence[_Text]]) -> tuple[tuple[_Text, ...], list[I32]]:
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
    host = window.ts_ns[window.is_a(*_HOST)]
    return int(host.min() if len(host) else window.ts_ns.min())


_STEP = "ProfilerStep"
_ON_DEVICE = (*WORK, Category.GPU_ANNOTATION, Category.SYNC)


def by_process(columns: TraceColumns) -> tuple[TraceColumns, ...]:
    """Return the columns of each process of a file that trained, one for each rank; all of them where only one did.

    Processes that trained have marks of steps of their own; where none has any, operators and launches. What ran on a
    device is of the process that it stands beside in the file where the processes stand one after the other, else of
    the one whose launches it follows closest. Ranks are numbered by their devices, or in the order of the file.
    """
    if columns.meta.processes:
        names = [pid for pid, _ in columns.meta.processes]
        owner = np.repeat(np.arange(len(names)), [count for _, count in columns.meta.processes])
    else:
        pids, pid_of = _pids(columns)
        marked, trained = _trained(columns, pid_of)
        if len(trained) < 2:
            known = pids[trained[0]] if marked else None
            return (revise(columns, meta=revise(columns.meta, process=known)),)
        names = [pids[pid] for pid in trained.tolist()]
        owner = _owners(columns, trained, pid_of)
    parts = [_part(columns, owner == place, pid) for place, pid in enumerate(names)]
    parts.sort(key=_devices if len({_devices(part) for part in parts}) == len(parts) else lambda _: 0)
    note = (
        f"the file holds {len(parts)} processes that trained: each was read as a rank, in the order of "
        "their devices or of the file"
    )
    damage = columns.damage
    return tuple(
        revise(
            part,
            meta=revise(part.meta, rank=rank, world_size=columns.meta.world_size or len(parts)),
            damage=Damage(truncated=damage.truncated) if rank else revise(damage, notes=(*damage.notes, note)),
        )
        for rank, part in enumerate(parts)
    )


def _pids(columns: TraceColumns) -> tuple[list[str], I64]:
    ids: dict[str, int] = {}
    place = np.array([ids.setdefault(pid, len(ids)) for pid, _ in columns.threads], np.int64)
    return list(ids), place


def _trained(columns: TraceColumns, pid_of: I64) -> tuple[bool, I64]:
    """Return whether marks of steps tell which processes trained, and these processes in the order of the file."""

    def having(rows: Bools) -> I64:
        used, first = np.unique(pid_of[columns.thread[rows]], return_index=True)
        return used[np.argsort(first)]

    steps = saying(columns, lambda text: text.startswith(_STEP), Category.ANNOTATION)
    marked = having((columns.category == Category.ANNOTATION) & steps[columns.name])
    if len(marked):
        return True, marked
    launching = having((columns.category == Category.RUNTIME) & is_launch(columns))
    return False, launching[np.isin(launching, having(columns.category == Category.CPU_OP))]


def _owners(columns: TraceColumns, trained: I64, pid_of: I64) -> I64:
    """Return ``(n_events,)`` the place in ``trained`` of the process that each event is of."""
    pid = pid_of[columns.thread]
    place = np.full(int(pid_of.max()) + 1, -1, np.int64)
    place[trained] = np.arange(len(trained))
    own = np.where(columns.is_a(*_ON_DEVICE), -1, place[pid])
    rows = [np.flatnonzero(own == process) for process in range(len(trained))]
    first = np.array([found[0] for found in rows])
    if all(rows[process][-1] < first[process + 1] for process in range(len(trained) - 1)):
        beside = np.maximum(np.searchsorted(first, np.arange(len(columns)), side="right") - 1, 0)
        return np.where(own < 0, beside, own)
    for other in np.setdiff1d(pid[own < 0], trained):
        place[other] = _closest(columns, own, pid == other, len(trained))
    return np.where(own < 0, np.maximum(place[pid], 0), own)


def _closest(columns: TraceColumns, own: I64, mine: Bools, count: int) -> int:
    """Return the process that launched most of some work on a device, before it and as shortly before as can be."""
    scores = []
    for process in range(count):
        launches = launch_of(kept(columns, keep := mine | (own == process)))
        rows = np.flatnonzero(keep)
        work = np.flatnonzero(launches >= 0)
        lag = columns.ts_ns[rows[work]] - columns.ts_ns[rows[launches[work]]]
        later = lag[lag >= 0]
        scores.append((len(later), -float(np.median(later)) if len(later) else 0.0))
    return max(range(count), key=scores.__getitem__)


def _part(columns: TraceColumns, keep: Bools, pid: str) -> TraceColumns:
    threads: I32 = np.unique(columns.thread[keep])
    flows = only(columns.flows, np.isin(columns.flows.thread, threads))
    memory = only(columns.memory, np.isin(columns.memory.thread, threads))
    meta = revise(columns.meta, process=pid, processes=())
    return revise(kept(columns, keep), flows=flows, memory=memory, meta=meta)


def _devices(columns: TraceColumns) -> tuple[int, ...]:
    return tuple(np.unique(columns.device[columns.is_a(*WORK) & (columns.device >= 0)]).tolist())
