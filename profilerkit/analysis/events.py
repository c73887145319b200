"""Read the light tier's events, and find evaluation without a name in them."""

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from profilerkit.analysis.host.names import is_feeding_phase
from profilerkit.analysis.intervals import Spans, covered, time_within, union
from profilerkit.analysis.stats import median, quantile
from profilerkit.model import revise
from profilerkit.rundir.layout import EventFlag, EventKind
from profilerkit.rundir.reader import RankRecord
from profilerkit.trace.columns import I64, Bools

#: numpy twin of ``rundir.layout.EVENT``.
EVENT_DTYPE = np.dtype(
    [("kind", "<u2"), ("flags", "<u2"), ("name", "<u4"), ("start", "<i8"), ("dur", "<i8"), ("value", "<i8")]
)
Events = npt.NDArray[np.void]

#: Fetches of the training thread that do not feed the training.
NOT_TRAINING = EventFlag.OTHER_LOADER | EventFlag.IN_PHASE
NOT_A_WAIT = EventFlag.LAST | EventFlag.OTHER_THREAD | NOT_TRAINING  #: fetches in which no step waits for its batch


class Timed(msgspec.Struct, frozen=True):
    """Intervals of one kind, sorted by start; arrays are ``(n,)`` int64, times in ns."""

    start: I64
    end: I64
    flags: I64

    def __len__(self) -> int:
        return len(self.start)

    def where(self, mask: Bools) -> "Timed":
        """Those that the mask keeps."""
        return Timed(self.start[mask], self.end[mask], self.flags[mask])

    def has(self, flags: int) -> Bools:
        """``(n,)`` mask of those with any of ``flags``."""
        found: Bools = (self.flags & flags) != 0
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


def trains(events: Events, *, backward: bool) -> Bools:
    """Which are the training thread's optimizer steps, and its backward passes where ``backward``: all are recorded."""
    kinds = (EventKind.BACKWARD, EventKind.OPTIMIZER) if backward else (EventKind.OPTIMIZER,)
    found: Bools = np.isin(events["kind"], kinds) & ((events["flags"] & EventFlag.OTHER_THREAD) == 0)
    return found


def fetches_here(events: Events) -> Bools:
    """Which are fetches of the training thread."""
    found: Bools = (events["kind"] == EventKind.WAIT) & ((events["flags"] & EventFlag.OTHER_THREAD) == 0)
    return found


def phases_aside(events: Events, names: Mapping[int, str]) -> Timed:
    """Named phases of the training thread, but for those that get the next batch."""
    feeding = [number for number, name in names.items() if is_feeding_phase(name)]
    here = (events["flags"] & EventFlag.OTHER_THREAD) == 0
    return timed(events[(events["kind"] == EventKind.PHASE) & here & ~np.isin(events["name"], feeding)])


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

    ``ratio`` is their share of the time from their first one to the end of the run.
    """

    count: int
    end_ns: int
    time_ns: int
    ratio: float


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
    start_ns, end_ns = int(fetches.start[0]), int(fetches.start[count])
    time_ns = end_ns - start_ns
    return SkippedBatches(count, end_ns, time_ns, time_ns / max(int(events["start"].max()) - start_ns, 1))


#: What has a name of its own and is no part of an evaluation.
_NAMED = (EventKind.SAVE, EventKind.COMPILE, EventKind.WINDOW)
#: Gaps without an evaluation that tell how long one usually is (a choice).
_FEWEST_USUAL = 3
_NEVER = np.iinfo(np.int64).max
#: An evaluation makes a gap longer than this quantile of the others: one that does not is not told from them.
_LONG = 0.9


def times_in_mode(events: Events, names: Mapping[int, str], *, backward: bool) -> Timed:
    """From each ``eval()`` on, as long as the gap it lies in is longer than gaps without one.

    A gap lies between two backward passes or optimizer steps; it also holds the next batch and its forward pass, and
    these take what they take elsewhere. Where more batches are fetched than usual, the last ones are the training's:
    the evaluation ends as these begin. An evaluation with a loader of its own is found by its iteration instead.
    Where most gaps of a kind hold an ``eval()``, it is a part of the steps: a critic's while the generator trains.
    """
    here = (events["flags"] & EventFlag.OTHER_THREAD) == 0
    began = np.sort(events["start"][(events["kind"] == EventKind.EVALUATION) & here].astype(np.int64))
    marks = events[trains(events, backward=backward)]
    if not len(began) or len(marks) < 2:
        return NONE
    marks = marks[np.argsort(marks["start"], kind="stable")]
    trained = timed(marks)
    low, high = np.maximum.accumulate(trained.end)[:-1], trained.start[1:]
    phases = phases_aside(events, names)
    aside = joined([phases, timed(events[np.isin(events["kind"], _NAMED)])])
    named = union(aside.start, aside.end)
    free = high - low - time_within(named, low, high)
    fetches = timed(events[fetches_here(events)]).start
    fetched = np.searchsorted(fetches, high) - np.searchsorted(fetches, low)
    gap = np.searchsorted(low, began, side="right") - 1
    inside = (gap >= 0) & (began < high[gap]) & ~covered(union(phases.start, phases.end), began)
    gap, first = np.unique(gap[inside], return_index=True)
    usual, feeding = _usual(gap, marks["kind"][:-1] * 64 + marks["kind"][1:], free, fetched)
    start = began[inside][first]
    steps = np.sort(events["start"][events["kind"] == EventKind.STEP].astype(np.int64))
    end = np.minimum.reduce([start + free[gap] - usual, high[gap], _next(steps, start), _next(fetches, start)])
    reads = (usual >= 0) & (fetched[gap] > feeding)
    if reads.any():
        fed = np.r_[fetches, _NEVER][np.searchsorted(fetches, high[gap]) - np.maximum(feeding, 0)]
        until = np.minimum(np.where(feeding > 0, fed, start + free[gap] - usual), high[gap])
        end = np.where(reads, until, end)
        step = np.r_[0, steps][np.searchsorted(steps, end)]  # its own first batch may have begun one
        start = np.where(reads, np.maximum(start, step), start)
    keep = (usual >= 0) & (end > start)
    return Timed(start[keep], end[keep], np.zeros(int(keep.sum()), dtype=np.int64))


def _usual(gap: I64, kind: I64, free: I64, fetched: I64) -> tuple[I64, I64]:
    """``(n,)`` how long each of these gaps would be without its evaluation, ns, and how many batches it would fetch.

    -1 where that cannot be told.
    """
    without: Bools = np.ones(len(kind), dtype=np.bool_)
    without[gap] = False
    usual = np.full((2, len(gap)), -1, dtype=np.int64)
    for between in np.unique(kind[gap]):
        others = without & (kind == between)
        mine = kind[gap] == between
        if int(np.count_nonzero(others)) < max(_FEWEST_USUAL, int(np.count_nonzero(mine))):
            continue
        told = mine & (free[gap] > quantile(free[others], _LONG))
        usual[:, told] = [[round(median(free[others]))], [round(median(fetched[others]))]]
    return usual[0], usual[1]


def _next(instants: I64, after: I64) -> I64:
    """``(n,)`` the first of the sorted instants behind each; the end of time where none is."""
    found: I64 = np.r_[instants, _NEVER][np.searchsorted(instants, after, side="right")]
    return found


#: The fewest batches of a pass: of two loaders read side by side each may begin with one, or be begun again.
_FEWEST_OF_A_PASS = 2
#: Of one that neither ended nor was broken off: a loop that fetches ahead begins with so many, less one (a choice).
_FEWEST_OPEN = 4
_NAME = "evaluation"


def with_evaluation(record: RankRecord) -> RankRecord:
    """The record with each such pass as an inferred phase, its fetches marked as not the training's."""
    events = np.frombuffer(record.events, dtype=EVENT_DTYPE)
    backward = is_whole(record, EventKind.BACKWARD)
    read = _passes(events, record.names, backward=backward)
    in_mode = times_in_mode(events, record.names, backward=backward)
    told = np.searchsorted(read.end, in_mode.start, side="right") < np.searchsorted(read.start, in_mode.end)
    passes = joined([read, in_mode.where(~told)])
    if not len(passes):
        return record
    number = id_of(_NAME, record.names, events)
    phases = np.zeros(len(passes), dtype=EVENT_DTYPE)
    phases["kind"], phases["flags"], phases["name"] = EventKind.PHASE, EventFlag.INFERRED, number
    phases["start"], phases["dur"] = passes.start, passes.end - passes.start
    events = events.copy()
    inside = fetches_here(events) & covered(union(passes.start, passes.end), events["start"].astype(np.int64))
    events["flags"][inside] |= np.uint16(EventFlag.IN_PHASE)
    names = {**record.names, number: _NAME}
    return revise(record, events=np.concatenate([events, phases]).tobytes(), names=names)


def _passes(events: Events, names: Mapping[int, str], *, backward: bool) -> Timed:
    """From the first to the last fetch of each pass without a backward pass, an optimizer step or a new step in it.

    Fetches of another loader than the one that marks the steps form a pass where no training fetch comes between
    them. Other fetches do from the first of a loader's iteration to its end, where more fetches come before the next
    backward pass: those feed it. Where no end was fetched they do as far as there are more of them than feed a backward
    pass otherwise. A run that never trains has no such passes, and what lies in a named phase needs none.
    """
    fetches = timed(events[fetches_here(events)])
    named = phases_aside(events, names)
    phases = union(named.start, named.end)
    if len(phases):
        fetches = fetches.where(~covered(phases, fetches.start))
    if not len(fetches):
        return NONE
    marks = np.sort(events["start"][trains(events, backward=backward)])
    group = np.searchsorted(marks, fetches.start, side="right")
    found = _flagged_passes(fetches, group)
    if len(marks):
        plain = ~fetches.has(NOT_TRAINING)
        found = joined([found, _whole_passes(fetches.where(plain), group[plain], len(marks))])
    steps = np.sort(events["start"][events["kind"] == EventKind.STEP])
    before = np.searchsorted(steps, found.start, side="right")
    return found.where(np.searchsorted(steps, found.end, side="left") <= before)


def _flagged_passes(fetches: Timed, group: I64) -> Timed:
    """Runs of fetches that are flagged, and longer than those of a loader that is read beside the training's."""
    aside = fetches.has(NOT_TRAINING)
    batches = np.r_[0, np.cumsum(aside & ~fetches.has(EventFlag.LAST))]
    training = np.flatnonzero(~aside)
    beside = int(np.median(np.diff(np.r_[batches[training], batches[-1]]))) if len(training) else 0
    before = np.r_[False, aside[:-1] & (group[1:] == group[:-1])]
    after = np.r_[aside[1:] & (group[1:] == group[:-1]), False]
    first, last = np.flatnonzero(aside & ~before), np.flatnonzero(aside & ~after)
    keep = batches[last + 1] - batches[first] >= 2 * beside + _FEWEST_OF_A_PASS
    first, last = first[keep], last[keep]
    return Timed(fetches.start[first], fetches.end[last], np.zeros(len(first), dtype=np.int64))


def _whole_passes(fetches: Timed, group: I64, marks: int) -> Timed:
    """Iterations of a loader from their first fetch to their end, or to where they were broken off."""
    count = len(fetches)
    if not count:
        return NONE
    first, last = fetches.has(EventFlag.FIRST), fetches.has(EventFlag.LAST)
    begin = np.flatnonzero(first & ~last)
    edges = np.flatnonzero(first | last)
    behind = np.searchsorted(group, group[begin], side="right")  # where the fetches of the group end
    stop = np.minimum(np.r_[edges, count][np.searchsorted(edges, begin, side="right")], behind)
    at = np.minimum(stop, count - 1)
    ended = (stop < behind) & last[at] & ~first[at]
    # What is fetched next before a backward pass is the training's; where nothing is, the pass itself may feed it.
    at_end = group[begin] == marks
    whole = ended & ((stop + 1 < behind) | at_end)
    broken = (stop < behind) & first[at]
    # Some loops know the length of a loader and never ask it for more: the group's last fetches are the training's.
    groups, where, counts = np.unique(group, return_inverse=True, return_counts=True)
    amid = np.bincount(where, weights=first | last, minlength=len(groups)) == 0
    left = np.where(at_end, 0, int(np.median(counts[amid])) if amid.any() else count)
    open_ended = (stop == behind) & (at_end | (group[begin] > 0))
    final = np.where(ended, stop, np.where(open_ended, stop - 1 - left, stop - 1))
    batches = final - begin + np.where(ended, 0, 1)
    fewest = np.where(ended & at_end, 1, _FEWEST_OF_A_PASS)  # one whole pass behind the last training feeds nothing
    keep = ((whole | broken) & (batches >= fewest)) | (open_ended & (batches >= _FEWEST_OPEN))
    begin, final = begin[keep], final[keep]
    return Timed(fetches.start[begin], fetches.end[final], np.zeros(len(begin), dtype=np.int64))
