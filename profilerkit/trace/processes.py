"""Files that hold several processes, as tools that merge the traces of ranks write them."""

import numpy as np

from profilerkit.model.change import revise
from profilerkit.trace.columns import I32, I64, Bools, Category, Damage, TraceColumns
from profilerkit.trace.distinct import kept, only
from profilerkit.trace.links import is_launch, launch_of

_STEP = "ProfilerStep"
_WORK = (Category.KERNEL, Category.MEMCPY, Category.MEMSET)
_ON_DEVICE = (*_WORK, Category.GPU_ANNOTATION, Category.SYNC)


def by_process(columns: TraceColumns) -> tuple[TraceColumns, ...]:
    """Return the columns of each process of a file that trained, one for each rank; all of them where only one did.

    Where the reader does not know them, processes that trained have marks of steps of their own; where none has any,
    operators and launches. What ran on a device is of the process that it stands beside in the file where the processes
    stand one after the other, else of the one whose launches it follows closest. Ranks are numbered by their devices
    where each has others, else in the order of the file, unless only one process is there.
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
    """Return the processes in the order of their threads, and which of them each thread is of."""
    ids: dict[str, int] = {}
    place = np.array([ids.setdefault(pid, len(ids)) for pid, _ in columns.threads], np.int64)
    return list(ids), place


def _trained(columns: TraceColumns, pid_of: I64) -> tuple[bool, I64]:
    """Return whether marks of steps tell which processes trained, and these processes in the order of the file."""

    def having(rows: Bools) -> I64:
        used, first = np.unique(pid_of[columns.thread[rows]], return_index=True)
        return used[np.argsort(first)]

    steps = np.array([text.startswith(_STEP) for text in columns.strings], np.bool_)
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
    """Return the events in ``keep``, and what their threads say of flows and memory."""
    threads: I32 = np.unique(columns.thread[keep])
    flows = only(columns.flows, np.isin(columns.flows.thread, threads))
    memory = only(columns.memory, np.isin(columns.memory.thread, threads))
    meta = revise(columns.meta, process=pid, processes=())
    return revise(kept(columns, keep), flows=flows, memory=memory, meta=meta)


def _devices(columns: TraceColumns) -> tuple[int, ...]:
    return tuple(np.unique(columns.device[columns.is_a(*_WORK) & (columns.device >= 0)]).tolist())
