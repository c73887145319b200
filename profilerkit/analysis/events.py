"""The light tier's records as arrays: their dtype, which fetches feed the training, and intervals of one kind."""

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from profilerkit.analysis.host.names import is_feeding_phase
from profilerkit.analysis.intervals import I64, Mask
from profilerkit.rundir.layout import EventFlag, EventKind
from profilerkit.rundir.reader import RankRecord

#: numpy twin of ``rundir.layout.EVENT``.
EVENT_DTYPE = np.dtype(
    [("kind", "<u2"), ("flags", "<u2"), ("name", "<u4"), ("start", "<i8"), ("dur", "<i8"), ("value", "<i8")]
)
Events = npt.NDArray[np.void]

#: Fetches of the training thread that do not feed the training.
NOT_TRAINING = EventFlag.OTHER_LOADER | EventFlag.IN_PHASE
#: Fetches in which no step waits for its batch.
NOT_A_WAIT = EventFlag.LAST | EventFlag.OTHER_THREAD | NOT_TRAINING


class Timed(msgspec.Struct, frozen=True):
    """Intervals of one kind, sorted by start; arrays are ``(n,)`` int64, times in ns."""

    start: I64
    end: I64
    flags: I64

    def __len__(self) -> int:
        return len(self.start)

    def where(self, mask: Mask) -> "Timed":
        """Those that the mask keeps."""
        return Timed(self.start[mask], self.end[mask], self.flags[mask])

    def has(self, flags: int) -> Mask:
        """``(n,)`` mask of those with any of ``flags``."""
        found: Mask = (self.flags & flags) != 0
        return found


NONE = Timed(*(np.empty(0, dtype=np.int64) for _ in range(3)))


def timed(events: Events) -> Timed:
    """Events, in any order, as intervals."""
    events = events[np.argsort(events["start"], kind="stable")]
    start = events["start"].astype(np.int64)
    return Timed(start, start + events["dur"], events["flags"].astype(np.int64))


def joined(parts: Sequence[Timed]) -> Timed:
    """All of them together, by start."""
    if not parts:
        return NONE
    start, end, flags = (np.concatenate([getattr(part, name) for part in parts]) for name in ("start", "end", "flags"))
    order = np.argsort(start, kind="stable")
    return Timed(start[order], end[order], flags[order])


def trains(events: Events, *, backward: bool) -> Mask:
    """Which are the training thread's optimizer steps, and its backward passes where ``backward``: all are recorded."""
    kinds = (EventKind.BACKWARD, EventKind.OPTIMIZER) if backward else (EventKind.OPTIMIZER,)
    found: Mask = np.isin(events["kind"], kinds) & ((events["flags"] & EventFlag.OTHER_THREAD) == 0)
    return found


def fetches_here(events: Events) -> Mask:
    """Which are fetches of the training thread."""
    found: Mask = (events["kind"] == EventKind.WAIT) & ((events["flags"] & EventFlag.OTHER_THREAD) == 0)
    return found


def phases_aside(events: Events, names: Mapping[int, str]) -> Timed:
    """Named phases of the training thread, but for those that get the next batch."""
    feeding = [number for number, name in names.items() if is_feeding_phase(name)]
    here = (events["flags"] & EventFlag.OTHER_THREAD) == 0
    return timed(events[(events["kind"] == EventKind.PHASE) & here & ~np.isin(events["name"], feeding)])


def put_in(events: Events, start: I64) -> Mask:
    """``(n_steps,)`` which of the steps that begin at ``start`` a probe put in, by the PROBE records of ``events``."""
    found = np.zeros(len(start), dtype=np.bool_)
    for probe in events[events["kind"] == EventKind.PROBE]:
        low = int(probe["start"])
        found |= (start >= low) & (start < low + int(probe["dur"]))
    return found


def is_whole(record: RankRecord, kind: EventKind) -> bool:
    """Whether the records of a kind tell its time: backward passes may be timed no longer, to save their cost."""
    backward = record.meta.features.get("backward") if record.meta else None
    return kind != EventKind.BACKWARD or backward is None or backward.on


def id_of(name: str, names: Mapping[int, str], events: Events) -> int:
    """The name id of ``name``: the one it has, or a new one that no phase of ``events`` has either."""
    known = next((number for number, text in names.items() if text == name), None)
    used = events["name"][events["kind"] == EventKind.PHASE]
    return known if known is not None else max([*names, int(used.max(initial=0))]) + 1
