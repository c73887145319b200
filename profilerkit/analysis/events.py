"""The light tier's records as arrays, which fetches feed the training, and batches dropped before it trains."""

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from profilerkit.analysis.host.names import is_feeding_phase
from profilerkit.analysis.intervals import I64, Mask, Spans, union
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


def spans_of(events: Events) -> Spans:
    """When any of the events runs."""
    start = events["start"].astype(np.int64)
    return union(start, start + events["dur"])


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


#: Fewer batches are fetched ahead, or looked at (a choice); and of as many as a few steps take the same holds.
_FEWEST, _STEPS = 64, 4
#: Between two fetches nothing is done with a batch in less than this. Recording a fetch takes 5 to 40 µs of it.
_NOTHING_NS = 100_000


class SkippedBatches(msgspec.Struct, frozen=True):
    """Batches that were fetched in a row and dropped before the first one that trained.

    Attributes:
        count: of them.
        start_ns: the first fetch began.
        end_ns: the fetch of the batch that trained began.
        until_ns: the last record of the run.
    """

    count: int
    start_ns: int
    end_ns: int
    until_ns: int

    @property
    def time_ns(self) -> int:
        """What they took, ns."""
        return self.end_ns - self.start_ns

    @property
    def ratio(self) -> float:
        """Their share of the time from their first one to the end of the run."""
        return self.time_ns / max(self.until_ns - self.start_ns, 1)


def skipped_batches(events: Events) -> SkippedBatches | None:
    """The batches that were dropped before the first backward pass or optimizer step; ``None`` where none were."""
    trained = np.sort(events["start"][trains(events, backward=True)].astype(np.int64))
    fetches = timed(events[fetches_here(events) & ((events["flags"] & NOT_A_WAIT) == 0)])
    if not len(trained):
        return None
    count = int(np.searchsorted(fetches.start, trained[0])) - 1  # the last one before trains
    optimized = int((events["kind"] == EventKind.OPTIMIZER).sum())
    per_step = (len(fetches) - count) / max(optimized, 1)
    if count < max(_FEWEST, _STEPS * per_step) or fetches.has(EventFlag.GRAPHS)[: count + 1].any():
        return None
    ended = events[fetches_here(events) & ((events["flags"] & EventFlag.LAST) != 0)]["start"]
    # Who keeps all batches, or reads them once, comes to the end of the data, or fetches no more.
    if len(fetches) < count + 2 or (ended < trained[0]).any():
        return None
    between = fetches.start[1 : count + 1] - fetches.end[:count]
    if float(np.median(between)) > _NOTHING_NS:
        return None
    return SkippedBatches(count, int(fetches.start[0]), int(fetches.start[count]), int(events["start"].max()))
