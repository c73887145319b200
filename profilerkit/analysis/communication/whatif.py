"""How much shorter the step gets with less, quicker or better placed communication; shares of the steady step.

E is exposed communication, Q all of it. A wire that is k times quicker shortens the step by at most
min(E, Q (1 - 1/k)) and not by E (1 - 1/k): what is hidden gets shorter as well.
"""

from collections.abc import Callable, Sequence

from profilerkit.analysis.communication.registry import UNKNOWN
from profilerkit.analysis.communication.table import TRANSFER, Traffic
from profilerkit.analysis.facts import Facts
from profilerkit.analysis.ranks.waiting import LATENCY_FLOOR_NS
from profilerkit.analysis.replay.changes import FEWEST_BUCKETS
from profilerkit.analysis.whatif import alone_compute
from profilerkit.model.communication import ParallelName

#: Share of reductions before the backward pass from which all of unknown groups may be of activations (a choice).
_MANY_BEFORE = 0.05
_REDUCE = ("all_reduce", "reduce_scatter", "reduce")


def rows(facts: Facts, chosen: Callable[[Traffic], bool]) -> tuple[Traffic, ...]:
    """The traffic that ``chosen`` holds for; empty without a trace."""
    return tuple(row for row in facts.collective_work.traffic if chosen(row)) if facts.collective_work else ()


def dimension(facts: Facts, row: Traffic) -> ParallelName | None:
    """What the traffic's group divides: by its description, else the job's only dimension; ``None`` where unknown."""
    known = facts.communication.parallelism if facts.communication is not None else ()
    return row.dimension or (known[0].name if len(known) == 1 else None)


def may_overlap(facts: Facts, row: Traffic) -> bool:
    """Whether traffic may run beside computing: gradients and sharded parameters may, activations are waited for.

    Of a group that nothing tells about, reductions are of gradients if a backward pass shows and none precedes it.
    """
    divided, work = dimension(facts, row), facts.collective_work
    if divided in ("data", "sharded data"):
        gathers = row.kind == "all_gather" and divided == "sharded data"
        return gathers or row.kind in (*_REDUCE, UNKNOWN)
    if divided is not None or row.kind not in _REDUCE or work is None or work.backward_alone_ns is None:
        return False
    return work.before_backward_ratio < _MANY_BEFORE


def share_of_step(facts: Facts, time_ns: float) -> float:
    """A time of the trace as a share of the steady step; on a host everything is quicker alike without the trace."""
    step = facts.mean_step_ns
    if facts.mode == "cpu" and facts.collective_work is not None:
        step = facts.collective_work.step_ns
    return min(time_ns / step, 1.0) if step else 0.0


def exposed(facts: Facts) -> float:
    """E: the share that nothing hides, without waiting for another rank and without the bubbles of a pipeline."""
    bubble = rows(facts, lambda row: row.kind == "send_recv" and dimension(facts, row) == "pipeline")
    return max(facts.share(*TRANSFER) - exposed_of(facts, bubble), 0.0)


def exposed_of(facts: Facts, chosen: Sequence[Traffic]) -> float:
    """The part of the exposed share in which ``chosen`` ran."""
    return exposed_time(facts, sum(row.exposed_ns for row in chosen))


def exposed_time(facts: Facts, time_ns: float) -> float:
    """Exposed time of the trace as its part of the exposed share."""
    work = facts.collective_work
    return facts.share(*TRANSFER) * min(time_ns / work.exposed_ns, 1.0) if work and work.exposed_ns else 0.0


def transferred(facts: Facts, chosen: Sequence[Traffic]) -> float:
    """Q of ``chosen``: the share in which they ran, hidden or not."""
    return max(share_of_step(facts, sum(row.transfer_ns for row in chosen)), exposed_of(facts, chosen))


def less(facts: Facts, chosen: Sequence[Traffic], gone: float) -> tuple[float, float]:
    """Saving and its bound if the share ``gone`` of the transfer time of ``chosen`` went: (expected, bound)."""
    bound = min(exposed(facts), transferred(facts, chosen) * gone)
    return min(exposed_of(facts, chosen), bound), bound


def overlap_ratio(facts: Facts, chosen: Sequence[Traffic]) -> float:
    """Hidden part of the transfer time of ``chosen``; 1 where they take no time."""
    total = transferred(facts, chosen)
    return 1.0 - exposed_of(facts, chosen) / total if total else 1.0


def available(facts: Facts, chosen: Sequence[Traffic]) -> float:
    """C_avail: computing beside no communication that ``chosen`` could run beside.

    Reductions have the backward pass, where it shows: before it there is no gradient; the others the whole step.
    """
    alone, work = alone_compute(facts), facts.collective_work
    if work is None or work.backward_alone_ns is None:
        return alone
    backward = min(share_of_step(facts, work.backward_alone_ns), alone)
    reduces = exposed_of(facts, [row for row in chosen if row.kind in _REDUCE])
    others = exposed_of(facts, [row for row in chosen if row.kind not in _REDUCE])
    return min(min(reduces, backward) + others, alone) if others else backward


def could_hide(facts: Facts, chosen: Sequence[Traffic]) -> float:
    """The part of the transfer time of ``chosen`` that is hidden or has computing to hide behind; 1 without any."""
    total = transferred(facts, chosen)
    behind = available(facts, chosen) + total - exposed_of(facts, chosen)
    return min(behind / total, 1.0) if total else 1.0


def hidden(facts: Facts, chosen: Sequence[Traffic], pieces: float = 0.0) -> tuple[float, float]:
    """Saving and its bound if ``chosen`` overlapped as far as there is computing: (expected, bound).

    The last of the ``pieces`` they are divided into has nothing left to hide behind; one would be divided in two.
    """
    bound = min(exposed_of(facts, chosen), available(facts, chosen))
    count = max(pieces or sum(row.per_step for row in chosen), FEWEST_BUCKETS)
    return min(max(exposed_of(facts, chosen) - transferred(facts, chosen) / count, 0.0), bound), bound


def floor_ns(facts: Facts) -> int:
    """How long a message of next to nothing takes: measured where ranks were matched, else ``LATENCY_FLOOR_NS``."""
    measured = facts.collective_work.floor_ns if facts.collective_work is not None else None
    return measured if measured is not None else LATENCY_FLOOR_NS


def joined(facts: Facts, chosen: Sequence[Traffic], *, all_small: bool) -> tuple[float, float]:
    """Saving and its bound if each kind of ``chosen`` became one message: (expected, bound).

    The bytes take as long as before; of each message but one the latency goes, and on a host the calls between them and
    the waits at each: known where ``chosen`` are ``all_small`` collectives.
    """
    work = facts.collective_work
    burst = share_of_step(facts, work.burst_ns) if work is not None and all_small else 0.0
    bound = max(exposed_of(facts, chosen), burst)
    latency = sum(max(row.per_step - 1.0, 0.0) * min(floor_ns(facts), row.median_ns) for row in chosen)
    return min(max(share_of_step(facts, latency), burst), bound), bound
