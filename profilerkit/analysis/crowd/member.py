"""What is kept of each of thousands of ranks: a few kilobytes."""

import msgspec
import numpy as np

from profilerkit.analysis.communication.log import CollectiveLog
from profilerkit.analysis.communication.parallelism import named_groups
from profilerkit.analysis.intervals import I64, Spans
from profilerkit.analysis.ranks.alignment import RankLog
from profilerkit.analysis.trace_facts import TraceFacts, leaf_times
from profilerkit.model.crowd import Condition
from profilerkit.trace.columns import ProcessGroup

#: What ranks are grouped by where nothing says their host.
NO_HOST = ""


class Member(msgspec.Struct, frozen=True):
    """One rank of many.

    Attributes:
        name: for sentences: ``rank 2``, else the name of its file.
        rank: its number; ``None`` where the trace does not say.
        host: of it; empty where the trace does not say. Hostile text.
        log: its collectives; ``None`` where none was seen.
        base_ns: what its clock counts from; ``None`` where the trace does not say.
        steady: its judged steps on its own clock.
        numbers: ``(n,)`` int64 of these steps.
        shares: part to its share of the judged steps.
        device: name of its device; ``None`` where the trace does not say.
        groups: its process groups that say what of the job they divide.
        condition: of its device and host; ``None`` where it was not sampled.
    """

    name: str
    rank: int | None
    host: str
    log: CollectiveLog | None
    base_ns: int | None
    steady: Spans
    numbers: I64
    shares: dict[str, float]
    device: str | None
    groups: tuple[ProcessGroup, ...] = ()
    condition: Condition | None = None

    @property
    def step_ns(self) -> float | None:
        """Median judged step; ``None`` without one."""
        return float(np.median(self.steady.end - self.steady.start)) if len(self.steady) else None

    @property
    def rank_log(self) -> RankLog:
        """What matching needs of it."""
        return RankLog(self.name, self.log, self.base_ns)


def member_of(facts: TraceFacts, origin: str, condition: Condition | None = None) -> Member:
    """What is kept of a rank's facts; ``origin`` names it where the trace does not say its number."""
    rank, total = facts.meta.rank, facts.window.total_ns
    return Member(
        name=origin if rank is None else f"rank {rank}",
        rank=rank,
        host=facts.meta.host or NO_HOST,
        log=facts.collectives,
        base_ns=facts.meta.base_time_ns,
        steady=facts.window,
        numbers=facts.steps.index[facts.steps.judged],
        shares={name: value / total for name, value in leaf_times(facts.totals).items()} if total else {},
        device=facts.properties.name if facts.properties else None,
        groups=named_groups(facts.meta.groups, facts.collectives),
        condition=condition,
    )
