"""What is derived of a loader beyond its means: its epochs, the replayed queue, and the samples of a batch."""

from collections.abc import Mapping
from itertools import pairwise

import msgspec
import numpy as np
import numpy.typing as npt

from profilerkit.analysis.events import EVENT_DTYPE, NOT_A_WAIT, NOT_TRAINING, SkippedBatches
from profilerkit.analysis.intervals import I64
from profilerkit.analysis.steps.log import StepLog
from profilerkit.model.change import revise
from profilerkit.model.run import Loader
from profilerkit.rundir.layout import UNKNOWN_US, EventFlag, EventKind

#: A replay that misses the measured time by more than this predicts nothing.
MOST_REPLAY_ERROR = 0.05


class QueueFacts(msgspec.Struct, frozen=True):
    """The judged batches put through the loader's queue again, as recorded and with other settings.

    Savings are ratios of the replayed time from fetch to fetch with the present settings, negative where it grows.

    Attributes:
        error_ratio: replayed / measured time from fetch to fetch, less one.
        by_prefetch: ``prefetch_factor`` to its saving.
        by_workers: number of workers to its saving, at the present ``prefetch_factor``; cores are not considered.
        out_of_order: saving with ``in_order=False``.
        slow_ratio: share of the wait in fetches of batches that took more than twice the median.
        by_cheaper: part of every batch's work that is removed, between 0 and 1, to its saving; rising.
    """

    batches: int
    error_ratio: float
    by_prefetch: Mapping[int, float]
    by_workers: Mapping[int, float]
    out_of_order: float
    slow_ratio: float
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

    Attributes:
        steps: of a whole epoch, mean; ``None`` below two epochs.
        time_ns: from one first fetch to the next, median; ``None`` below two epochs.
        boundary_ns: median of what the end of an epoch and the first fetch of the next take beyond a usual fetch, or
            the first fetches beyond those of kept workers if that is more; ``None`` below two epochs.
        opening_ns: of that, in the first fetch.
        restart_ns: what the last fetch, in which workers are shut down, and the first fetches of the next epoch take
            beyond those of kept workers; ``None`` without records of workers.
        renewed: whether no worker served two epochs; ``None`` where that was not seen.
        first_wait_ns: mean fetch of the first epoch without its first one; ``None`` when the epoch had no other.
        later_wait_ns: median of the same over the later epochs; ``None`` without any.
        first_stored_ratio: of the bytes that the first epoch's batches read, from storage; ``None`` when not recorded.
        later_stored_ratio: the same of all later ones.
    """

    count: int
    steps: float | None = None
    time_ns: float | None = None
    boundary_ns: float | None = None
    opening_ns: float | None = None
    restart_ns: float | None = None
    renewed: bool | None = None
    first_wait_ns: float | None = None
    later_wait_ns: float | None = None
    first_stored_ratio: float | None = None
    later_stored_ratio: float | None = None


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
    table = table[np.argsort(table["start"], kind="stable")]
    waits = table[(table["kind"] == EventKind.WAIT) & ((table["flags"] & _NOT_THE_TRAINING) == 0)]
    firsts = waits[(waits["flags"] & EventFlag.FIRST) != 0]
    if not len(firsts):
        return None
    begins = firsts["start"].astype(np.int64)
    first, later = _usual_waits(waits, begins)
    stored = _stored_ratios(records, begins)
    facts = EpochFacts(
        count=len(begins),
        renewed=_renewed(table, _after_the_last(waits, firsts), pids),
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

    def ratio(chosen: npt.NDArray[np.bool_]) -> float | None:
        read = int(known["read"][chosen].sum())
        return min(int(known["stored"][chosen].sum()) / read, 1.0) if read else None

    return ratio(epoch == 0), ratio(epoch > 0)


def _after_the_last(waits: Records, firsts: Records) -> I64:
    """``(n_epochs,)`` the end of the fetch before each first one, or its own start where there is none."""
    start = waits["start"].astype(np.int64)
    ends = np.maximum.accumulate(start + waits["dur"].astype(np.int64))
    begins = firsts["start"].astype(np.int64)
    before = np.searchsorted(start, begins) - 1
    after: I64 = np.where(before >= 0, ends[before], begins)
    return after


def _renewed(table: Records, begins: I64, pids: I64) -> bool | None:
    """Whether each epoch had workers of its own; ``None`` unless two epochs show theirs."""
    looks = table[(table["kind"] == EventKind.QUEUE) & np.isin(table["name"], pids)]
    epoch = _epoch_of(looks["start"].astype(np.int64), begins)
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
