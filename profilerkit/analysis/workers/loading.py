"""What is derived of a loader beyond its means: the replayed queue, its epochs, and the samples of a batch."""

from collections.abc import Mapping
from itertools import pairwise

import msgspec

from profilerkit.analysis.steps.skipped import SkippedBatches

#: A replay that misses the measured time by more than this predicts nothing.
MOST_REPLAY_ERROR = 0.05


class QueueFacts(msgspec.Struct, frozen=True):
    """The judged batches put through the loader's queue again, as recorded and with other settings.

    Savings are ratios of the replayed time from fetch to fetch with the present settings, negative where it grows.

    Attributes:
        batches: replayed.
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
        count: epochs of which the beginning was recorded.
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
    """Padding in the batches of token sequences that capture looked at, in the judged steps.

    Attributes:
        looks: batches.
        padded_ratio: of their tokens, those that fill a sequence up.
        beyond_ratio: of their tokens, those beyond the longest sequence of the batch.
    """

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
