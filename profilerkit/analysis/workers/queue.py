"""A loader beyond its means: its batches through its queue again with other settings, its epochs, and padding."""

from collections.abc import Mapping
from itertools import pairwise

import msgspec
import numpy as np
import numpy.typing as npt

from profilerkit.analysis.events import EVENT_DTYPE, NOT_A_WAIT, NOT_TRAINING, Events, SkippedBatches, skipped_batches
from profilerkit.analysis.steps.log import StepLog
from profilerkit.analysis.workers.anatomy import Fetches, all_records, judged_fetches, stage_times
from profilerkit.model import revise
from profilerkit.model.run import Loader, Workers
from profilerkit.rundir.layout import UNKNOWN_US, EventFlag, EventKind
from profilerkit.rundir.reader import RankRecord
from profilerkit.trace.columns import I64, Bools

MOST_REPLAY_ERROR = 0.05  #: a replay that misses the measured time by more than this predicts nothing


class QueueFacts(msgspec.Struct, frozen=True):
    """The judged batches put through the loader's queue again, as recorded and with other settings.

    Savings are ratios of the replayed time from fetch to fetch with the present settings, negative where it grows.
    """

    batches: int
    error_ratio: float  #: replayed / measured time from fetch to fetch, less one
    by_prefetch: Mapping[int, float]  #: ``prefetch_factor`` to its saving
    #: Number of workers to its saving, at the present ``prefetch_factor``; cores are not considered.
    by_workers: Mapping[int, float]
    out_of_order: float  #: saving with ``in_order=False``
    slow_ratio: float  #: share of the wait in fetches of batches that took more than twice the median
    #: Part of every batch's work that is removed, between 0 and 1, to its saving; rising.
    by_cheaper: Mapping[float, float] = msgspec.field(default_factory=dict)

    def cheaper(self, removed: float) -> float:
        """Saving if every batch took this part less of a worker; between two replays on the line that joins them.

        >>> QueueFacts(20, 0.0, {}, {}, 0.0, 0.0, {0.5: 0.2, 1.0: 0.3}).cheaper(0.75)
        0.25
        """
        known = [(0.0, 0.0), *sorted(self.by_cheaper.items())]
        for (low, less), (high, more) in pairwise(known):
            if removed <= high:
                return less + (more - less) * (removed - low) / (high - low)
        return known[-1][1]

    @property
    def is_faithful(self) -> bool:
        """Whether the replay with the present settings comes out as measured."""
        return abs(self.error_ratio) <= MOST_REPLAY_ERROR


class EpochFacts(msgspec.Struct, frozen=True):
    """The epochs of the training's loader, each from one first fetch to the next; at least one.

    A trace alone tells of means, of those that begin in its steady steps; the last fetch is part of the opening then.
    """

    count: int
    steps: float | None = None  #: of a whole epoch, mean; ``None`` below two epochs
    time_ns: float | None = None  #: from one first fetch to the next, median; ``None`` below two epochs
    #: Median of what the end of an epoch and the first fetch of the next take beyond a usual fetch, or the first
    #: fetches beyond those of kept workers if that is more; ``None`` below two epochs.
    boundary_ns: float | None = None
    opening_ns: float | None = None  #: of that, in the first fetch
    #: What the last fetch, in which workers are shut down, and the first fetches of the next epoch take beyond those of
    #: kept workers; ``None`` without records of workers.
    restart_ns: float | None = None
    renewed: bool | None = None  #: whether no worker served two epochs; ``None`` where that was not seen
    #: Mean fetch of the first epoch without its first one; ``None`` when the epoch had no other.
    first_wait_ns: float | None = None
    later_wait_ns: float | None = None  #: median of the same over the later epochs; ``None`` without any
    #: Of the bytes that the first epoch's batches read, from storage; ``None`` when not recorded.
    first_stored_ratio: float | None = None
    later_stored_ratio: float | None = None  #: the same of all later ones


class PaddingFacts(msgspec.Struct, frozen=True):
    """Padding in the batches of token sequences that capture looked at, in the judged steps."""

    looks: int
    padded_ratio: float
    beyond_ratio: float


class LoadingFacts(msgspec.Struct, frozen=True):
    """What the judged rank's records tell of its loader; each is ``None`` where they do not.

    ``items`` is the mean number of samples in a batch made by a worker, ``skipped`` what was dropped before training.
    """

    queue: QueueFacts | None = None
    epochs: EpochFacts | None = None
    items: float | None = None
    skipped: SkippedBatches | None = None
    padding: PaddingFacts | None = None


_NOT_THE_TRAINING = EventFlag.OTHER_THREAD | NOT_TRAINING

Records = npt.NDArray[np.void]


def epoch_facts(events: bytes, log: StepLog, records: Records, pids: I64, loader: Loader | None) -> EpochFacts | None:
    """The epochs of one rank; ``None`` where no first fetch was recorded."""
    table = np.frombuffer(events, dtype=EVENT_DTYPE)
    waits = table[(table["kind"] == EventKind.WAIT) & ((table["flags"] & _NOT_THE_TRAINING) == 0)]
    waits = waits[np.argsort(waits["start"], kind="stable")]
    firsts = waits[(waits["flags"] & EventFlag.FIRST) != 0]
    if not len(firsts):
        return None
    begins = firsts["start"].astype(np.int64)
    first, later = _usual_waits(waits, begins)
    stored = _stored_ratios(records, begins)
    facts = EpochFacts(
        count=len(begins),
        renewed=_renewed(table, waits, begins, pids),
        first_wait_ns=first,
        later_wait_ns=later,
        first_stored_ratio=stored[0],
        later_stored_ratio=stored[1],
    )
    return _with_boundaries(facts, waits, firsts, log, records, loader) if len(begins) > 1 else facts


def _epoch_of(instants: I64, begins: I64) -> I64:
    """Which epoch each instant lies in, -1 before the first."""
    epoch: I64 = np.searchsorted(begins, instants, side="right") - 1
    return epoch


def _usual_waits(waits: Records, begins: I64) -> tuple[float | None, float | None]:
    """Mean fetch of the first epoch, and the median of the later epochs' means, without first and last fetches."""
    usual = waits[(waits["flags"] & (EventFlag.FIRST | NOT_A_WAIT)) == 0]
    epoch = _epoch_of(usual["start"].astype(np.int64), begins)
    means = [float(usual["dur"][epoch == number].mean()) for number in np.unique(epoch[epoch >= 0]).tolist()]
    if not means or not (epoch == 0).any():
        return None, None
    return means[0], float(np.median(means[1:])) if len(means) > 1 else None


def _stored_ratios(records: Records, begins: I64) -> tuple[float | None, float | None]:
    """Of the bytes read by the batches of the first and of the later epochs, the share that came from storage."""
    known = records[(records["read"] >= 0) & (records["stored"] >= 0)]
    epoch = _epoch_of(known["start"].astype(np.int64), begins)

    def ratio(chosen: Bools) -> float | None:
        read = int(known["read"][chosen].sum())
        return min(int(known["stored"][chosen].sum()) / read, 1.0) if read else None

    return ratio(epoch == 0), ratio(epoch > 0)


def _renewed(table: Records, waits: Records, begins: I64, pids: I64) -> bool | None:
    """Whether each epoch had workers of its own; ``None`` unless two epochs show theirs."""
    looks = table[(table["kind"] == EventKind.QUEUE) & np.isin(table["name"], pids)]
    start = waits["start"].astype(np.int64)
    before = np.searchsorted(start, begins) - 1
    ended = np.maximum.accumulate(start + waits["dur"].astype(np.int64))[before]
    epoch = _epoch_of(looks["start"].astype(np.int64), np.where(before >= 0, ended, begins))
    pairs = np.unique(np.c_[epoch[epoch >= 0], looks["name"][epoch >= 0].astype(np.int64)], axis=0)
    if len(np.unique(pairs[:, 0])) < 2:
        return None
    return len(np.unique(pairs[:, 1])) == len(pairs)


def _with_boundaries(
    facts: EpochFacts, waits: Records, firsts: Records, log: StepLog, records: Records, loader: Loader | None
) -> EpochFacts:
    """The facts with what lies between two epochs."""
    begins = firsts["start"].astype(np.int64)
    # Of the steps in which the epochs begin: a pause of a trace window at the fetch is not counted as its wait.
    steps = np.diff(np.searchsorted(np.sort(log.start), begins, side="right"))
    usual = waits["dur"][(waits["flags"] & (EventFlag.FIRST | NOT_A_WAIT)) == 0]
    lasts = waits[(waits["flags"] & EventFlag.LAST) != 0]
    ends = np.zeros(len(begins), dtype=np.int64)  # of each epoch, its last fetch
    epoch = _epoch_of(lasts["start"].astype(np.int64), begins)
    np.add.at(ends, epoch[epoch >= 0], lasts["dur"][epoch >= 0])
    beyond = np.maximum(firsts["dur"].astype(np.int64) - (round(float(np.median(usual))) if len(usual) else 0), 0)
    restarts = _restarts(waits, begins, records, loader)
    gap = beyond if restarts is None else np.maximum(beyond, restarts)
    return revise(
        facts,
        steps=float(steps.mean()),
        time_ns=float(np.median(np.diff(begins))),
        # Medians: where a trace window opened in a first fetch, the workers started while it did.
        boundary_ns=float(np.median(gap[1:] + ends[:-1])),
        opening_ns=float(np.median(beyond[1:])),
        restart_ns=float(np.median(restarts[1:] + ends[:-1])) if restarts is not None else None,
    )


def _restarts(waits: Records, begins: I64, records: Records, loader: Loader | None) -> I64 | None:
    """``(n_epochs,)`` ns that an epoch's first fetches take beyond those of kept workers; ``None`` without records."""
    if not len(records):
        return None
    begin = records["idle"] == UNKNOWN_US  # the first batch that its worker made in an epoch
    start = records["start"].astype(np.int64)
    if (loader is not None and loader.is_iterable) or not begin.any() or begin.all():
        began = np.sort(start)
        first = waits["dur"][np.searchsorted(waits["start"], begins)].astype(np.int64)
        starting: I64 = np.clip(began[np.minimum(np.searchsorted(began, begins), len(began) - 1)] - begins, 0, first)
        return starting
    made = sum(records[stage][~begin, 0].astype(np.int64) for stage in ("samples", "collate")) * 1000
    kept_ns = round(float(np.median(made)))
    workers = np.bincount(np.maximum(_epoch_of(start[begin], begins), 0), minlength=len(begins))
    if loader is not None and loader.num_workers:  # those of an evaluation begin as well
        workers = np.minimum(workers, loader.num_workers)
    fetches = waits[(waits["flags"] & NOT_A_WAIT) == 0]
    epoch = _epoch_of(fetches["start"].astype(np.int64), begins)
    place = np.arange(len(fetches)) - np.searchsorted(epoch, epoch)
    of_first = (epoch >= 0) & (place < np.maximum(workers, 1)[np.maximum(epoch, 0)])
    opening = np.bincount(epoch[of_first], weights=fetches["dur"][of_first], minlength=len(begins))
    beyond: I64 = np.maximum(np.rint(opening).astype(np.int64) - kept_ns, 0)
    return beyond


MOST_WORKERS = 16  #: no more workers than this are proposed
PREFETCH = 2  #: batches under way per worker where the loader's setting is not known: torch's default

# Torch gives batch i to worker i mod W, keeps W · prefetch batches under way, issues one more each time the loop
# receives one, and hands batches over in their order (``_try_put_index`` and ``_next_data`` of
# ``_MultiProcessingDataLoaderIter`` in torch 2.13). Out of order it hands over what arrives first and gives the next
# batch to the first worker in turn that has fewer than ``prefetch`` of them.


class Replayed(msgspec.Struct, frozen=True):
    """One iteration of a loader, in the order in which the loop got the batches; times from its start."""

    batch: I64
    asked: I64
    received: I64
    end_ns: int


def replay_queue(
    making: I64,
    using: I64,
    *,
    workers: int,
    prefetch: int = 2,
    delivery_ns: int = 0,
    start_ns: int = 0,
    in_order: bool = True,
    first: int = 0,
) -> Replayed:
    """Run one iteration of a loader: what the loop waits when batch i takes ``making[i]`` and is used ``using[i]``.

    Exact integer arithmetic, O(n) in the order of the sampler; out of order O(n · batches under way).

    ``making`` is the work of one worker on each batch in the order of the sampler, ``using`` the time from one fetch to
    the next by position in the loop. ``prefetch`` batches are under way per worker. From when a batch is made the loop
    can have it after ``delivery_ns``; workers begin ``start_ns`` late. ``first`` is the number in its epoch of the
    first batch, which says whose turn it is.

    >>> slow_first = np.array([90, 10, 10, 10])
    >>> replay_queue(slow_first, np.full(4, 20), workers=2).received.tolist()
    [90, 110, 130, 150]
    >>> replay_queue(slow_first, np.full(4, 20), workers=2, in_order=False).batch.tolist()
    [1, 3, 0, 2]
    """
    times = making.tolist()
    free = [start_ns] * workers  # when each worker has made all that it was given
    held = [0] * workers  # batches of each that the loop has not received
    owner: dict[int, int] = {}  # of the batches under way
    ready: dict[int, int] = {}  # when the loop can have them
    turn, now = first % workers, 0

    def issue(number: int) -> None:
        nonlocal turn
        while not in_order and held[turn] >= prefetch:
            turn = (turn + 1) % workers
        free[turn] = max(free[turn], now) + times[number]
        held[turn] += 1
        owner[number], ready[number] = turn, free[turn] + delivery_ns
        turn = (turn + 1) % workers

    for number in range(min(workers * prefetch, len(times))):
        issue(number)
    batch, asked, received = [], [], []
    for place, use in enumerate(using.tolist()):
        # Of two that can be had at once the one issued first.
        number = place if in_order else min(ready, key=lambda known: (ready[known], known))
        batch.append(number)
        asked.append(now)
        now = max(now, ready.pop(number))
        received.append(now)
        held[owner.pop(number)] -= 1
        if place + workers * prefetch < len(times):
            issue(place + workers * prefetch)
        now += use
    taken, begun, got = (np.array(values, dtype=np.int64) for values in (batch, asked, received))
    return Replayed(taken, begun, got, now)


PREFETCHES = (2, 4, 8)  #: prefetch that is tried: more than 8 takes memory for little
CHEAPER = (0.25, 0.5, 0.75, 1.0)  #: parts of the work on each batch that are tried without
MOST_FETCHES = 2_000  #: the last fetches only, to bound the time: 20 replays of so many take 0.2 s
#: Batches put through the queue before a stretch that does not begin with an epoch: it starts as full as it was.
WARM_BATCHES = 256
#: Fewer fetches than this tell nothing of a queue (a choice: two rounds of four workers with their prefetch).
FEWEST_FETCHES = 16
SLOW_BATCH = 2.0  #: a batch is slow beyond this multiple of the median


class _Stretch(msgspec.Struct, frozen=True):
    """Fetches one after the other in one epoch, ``(n,)`` int64 ns each."""

    making: I64
    using: I64
    waits: I64
    cpu: I64
    lay_ready: Bools
    first: int
    start_ns: int | None


def queue_facts(
    fetches: Fetches,
    records: npt.NDArray[np.void],
    *,
    workers: int,
    prefetch: int,
    delivery_ns: int | None,
    pinned: bool = False,
) -> QueueFacts | None:
    """Replay the judged fetches; ``None`` where too few of them follow each other."""
    stretches = _stretches(fetches, records)
    count = sum(len(stretch.waits) for stretch in stretches)
    if count < FEWEST_FETCHES:
        return None
    names = ("waits", "making", "lay_ready", "cpu")
    waits, making, lay_ready, cpu = (np.concatenate([getattr(one, name) for one in stretches]) for name in names)
    # A batch that lies ready is received in this time; the loop spends it whatever the workers do.
    # Where none ever did, receiving one is part of its delivery.
    receiving = int(np.median(waits[lay_ready])) if lay_ready.any() else min(int(waits.min()), delivery_ns or 0)
    delivery = max((delivery_ns or 0) - receiving, 0)
    # In which the loop's thread computes nothing.
    known = cpu[lay_ready & (cpu >= 0)]
    unanswered = max(receiving - int(np.median(known)), 0) if len(known) and not pinned else 0

    def time_ns(workers: int, prefetch: int, *, in_order: bool = True, kept: float = 1.0) -> int:
        received = receiving - round(unanswered * (1.0 - kept))
        return sum(
            _replayed(stretch, received, delivery, workers=workers, prefetch=prefetch, in_order=in_order)
            for stretch in (revise(one, making=(one.making * kept).astype(np.int64)) for one in stretches)
        )

    now = max(time_ns(workers, prefetch), 1)
    measured = max(int(waits.sum()) + sum(int(stretch.using.sum()) for stretch in stretches), 1)
    slow = making > SLOW_BATCH * np.median(making)
    return QueueFacts(
        batches=count,
        error_ratio=now / measured - 1.0,
        by_prefetch={depth: 1.0 - time_ns(workers, depth) / now for depth in PREFETCHES if depth > prefetch},
        by_workers={more: 1.0 - time_ns(more, prefetch) / now for more in range(workers + 1, MOST_WORKERS + 1)},
        out_of_order=1.0 - time_ns(workers, prefetch, in_order=False) / now,
        slow_ratio=float(waits[slow].sum()) / max(int(waits.sum()), 1),
        by_cheaper={less: 1.0 - time_ns(workers, prefetch, kept=1.0 - less) / now for less in CHEAPER},
    )


def _replayed(stretch: _Stretch, receiving: int, delivery: int, *, workers: int, prefetch: int, in_order: bool) -> int:
    """Time of the stretch in the queue, ns; one that does not begin with an epoch comes behind some of itself."""
    warm = 0 if stretch.start_ns is not None else min(len(stretch.making), WARM_BATCHES)
    before = slice(len(stretch.making) - warm, None)
    found = replay_queue(
        np.r_[stretch.making[before], stretch.making],
        np.r_[stretch.using[before], stretch.using] + receiving,
        workers=workers,
        prefetch=prefetch,
        delivery_ns=delivery,
        start_ns=stretch.start_ns or 0,
        in_order=in_order,
        first=stretch.first - warm,
    )
    return found.end_ns - int(found.asked[warm])


def _stretches(fetches: Fetches, records: npt.NDArray[np.void]) -> list[_Stretch]:
    """The last fetches, cut where a batch does not follow the one before: at epochs, and where some are missing."""
    rows = np.flatnonzero(fetches.row >= 0)[-MOST_FETCHES:]
    if len(rows) < FEWEST_FETCHES:
        return []
    number, start, end = fetches.batch[rows], fetches.start[rows], fetches.end[rows]
    made = records[fetches.row[rows]]
    samples, collate, handover = (stage_times(made, stage) for stage in ("samples", "collate", "handover"))
    making = np.maximum(samples.wall + collate.wall, handover.wall - handover.blocked)
    follows = (np.diff(number) == 1) & (np.diff(rows) == 1)
    using = np.r_[np.maximum(start[1:] - end[:-1], 0), 0]
    known = np.r_[follows, False]
    if not known.any():
        return []
    using[~known] = round(float(np.median(using[known])))
    edges = np.r_[0, np.flatnonzero(~follows) + 1, len(rows)]
    begun = made["start"].astype(np.int64)
    lay_ready = begun + samples.wall + collate.wall + handover.wall <= start
    return [
        _Stretch(
            making=making[low:high],
            using=using[low:high],
            waits=(end - start)[low:high],
            cpu=fetches.cpu[rows[low:high]],
            lay_ready=lay_ready[low:high],
            first=int(number[low]),
            start_ns=max(int(begun[low] - start[low]), 0) if number[low] == 0 else None,
        )
        for low, high in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)
    ]


def loading_facts(record: RankRecord | None, log: StepLog | None, workers: Workers | None) -> LoadingFacts | None:
    """The queue, the epochs and the samples of a batch; ``None`` without records of steps."""
    if record is None or log is None:
        return None
    records, pids = all_records(record.workers)
    loader = record.meta.loader if record.meta else None
    epochs = epoch_facts(record.events, log, records, pids, loader)
    events = np.frombuffer(record.events, dtype=EVENT_DTYPE)
    known = LoadingFacts(epochs=epochs, skipped=skipped_batches(events), padding=_padding(events, log))
    if workers is None:
        return known
    fetches = judged_fetches(record.events, log, records, pids)
    queue = queue_facts(
        fetches,
        records,
        workers=(loader.num_workers if loader else None) or workers.count,
        prefetch=(loader.prefetch_factor if loader else None) or PREFETCH,
        delivery_ns=workers.delivery_ns,
        pinned=bool(loader and loader.pin_memory),
    )
    items = float(records["items"][fetches.row[fetches.row >= 0]].mean())
    return revise(known, queue=queue, items=items)


def _padding(events: Events, log: StepLog) -> PaddingFacts | None:
    """What the looks at batches in the judged steps found; ``None`` without any."""
    low, high = log.window
    looks = events[(events["kind"] == EventKind.PADDING) & (events["start"] >= low) & (events["start"] < high)]
    tokens = float((looks["value"] >> 32).sum())
    if tokens <= 0:
        return None
    padded, beyond = float((looks["value"] & 0xFFFFFFFF).sum()), float(looks["name"].sum())
    return PaddingFacts(len(looks), min(padded / tokens, 1.0), min(beyond / tokens, 1.0))
