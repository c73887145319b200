"""Batches that a loop fetches and drops before it trains, as one that resumes a run does to get to where that ended."""

import msgspec
import numpy as np

from profilerkit.analysis.events import NOT_A_WAIT, Events, fetches_here, timed, trains
from profilerkit.rundir.layout import EventFlag, EventKind

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
