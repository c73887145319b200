"""A job of any number of ranks as summaries: one rank is late, one host is slow, clocks are apart, some are missing."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from profilerkit import __version__
from profilerkit.analysis.communication.log import KINDS, Channel, CollectiveLog
from profilerkit.analysis.intervals import EMPTY, Segments, Spans
from profilerkit.analysis.trace_facts import TraceFacts
from profilerkit.formats.jobs import Reading
from profilerkit.model import revise
from profilerkit.model.step import LEAVES, leaf
from profilerkit.summaries.files import SUFFIX, Header, digest, write

I64 = npt.NDArray[np.int64]

PER_HOST = 8
STEPS, PER_STEP = 50, 20
#: Computation before a collective, its transfer, how much ranks vary, and what the planted ones take longer, ns.
_COMPUTE_NS, _TRANSFER_NS, _JITTER_NS = 4_000_000, 500_000, 20_000
_LATE_NS, _SLOW_NS = 3_000_000, 1_000_000
_OFFSET_NS = 5_000_000
_BYTES = 25_000_000
_BASE_NS = 1_790_000_000_000_000_000


@dataclass(frozen=True, slots=True)
class Job:
    """What is planted.

    Attributes:
        ranks: of the job.
        late: the rank that is late before every collective.
        slow: the host whose ranks are all slower.
        missing: ranks without a summary.
    """

    ranks: int
    late: int
    slow: int
    missing: frozenset[int]

    @property
    def slow_ranks(self) -> range:
        """The ranks of the slow host."""
        return range(self.slow * PER_HOST, (self.slow + 1) * PER_HOST)


def job_of(ranks: int) -> Job:
    """A job of so many ranks; one in a hundred is missing, none of those that are looked for."""
    rng = np.random.default_rng(ranks)
    slow = ranks // PER_HOST * 2 // 3
    late = ranks // 3
    fixed = {late, *range(slow * PER_HOST, (slow + 1) * PER_HOST)}
    others = [rank for rank in range(ranks) if rank not in fixed]
    missing = rng.choice(others, size=max(1, ranks // 100), replace=False)
    return Job(ranks, late, slow, frozenset(int(rank) for rank in missing))


def write_ranks(job: Job, template: TraceFacts, directory: Path, ranks: range) -> None:
    """Write the summaries of some of the ranks, as ``profilerkit map`` would of their traces."""
    ends = _ends()
    for rank in ranks:
        if rank not in job.missing:
            name = f"rank{rank:05d}.json.gz"
            header = Header(
                version=__version__, origin=name, trace_bytes=0, trace_mtime_ns=0, reading=digest(Reading())
            )
            write(facts_of(job, template, rank, ends), directory / f"{name}{SUFFIX}", header)


def _ends() -> I64:
    """``(n,)`` when each collective ends: the late rank comes last, and all compute again after it."""
    count = STEPS * PER_STEP
    return np.arange(1, count + 1, dtype=np.int64) * (_COMPUTE_NS + _LATE_NS + _TRANSFER_NS)


def facts_of(job: Job, template: TraceFacts, rank: int, ends: I64) -> TraceFacts:
    """What a trace of this rank would hold: it computes, comes to a collective, and leaves it with the others."""
    rng = np.random.default_rng((job.ranks, rank))
    begins = np.r_[0, ends[:-1]]
    own = _LATE_NS if rank == job.late else _SLOW_NS if rank in job.slow_ranks else 0
    computes = _COMPUTE_NS + own + rng.integers(0, _JITTER_NS, len(ends))
    arrives = np.minimum(begins + computes, ends - _TRANSFER_NS)
    leaves = ends + rng.integers(0, 2_000, len(ends))
    leaves[-1] = ends[-1]
    offset = int(rng.integers(-_OFFSET_NS, _OFFSET_NS))
    bounds = np.r_[0, ends[PER_STEP - 1 :: PER_STEP]]
    steps = Spans(bounds[:-1] + offset, bounds[1:] + offset)
    segments = _segments(begins + offset, arrives + offset, ends + offset)
    return revise(
        template,
        meta=revise(
            template.meta,
            rank=rank,
            world_size=job.ranks,
            host=f"node{rank // PER_HOST:04d}",
            base_time_ns=_BASE_NS,
            groups=(),
        ),
        steps=revise(
            template.steps,
            index=np.arange(STEPS),
            start=steps.start,
            end=steps.end,
            state=("steady",) * STEPS,
            optimizes=np.ones(STEPS, dtype=bool),
        ),
        partition=revise(
            template.partition,
            segments=segments,
            per_step=_per_step(segments, steps),
            alone=None,
            hidden=None,
            lead_in=EMPTY,
            copies=np.empty(0, dtype=np.int64),
            copy_leaf=np.empty(0, dtype=np.int64),
        ),
        window=steps,
        n_steady=STEPS,
        collectives=_log(arrives + offset, np.minimum(leaves, ends) + offset, job.ranks),
        collective_work=None,
        replay=None,
        kernel_losses=None,
        warmup=None,
    )


def _segments(begins: I64, arrives: I64, ends: I64) -> Segments:
    start, end = np.c_[begins, arrives].ravel(), np.c_[arrives, ends].ravel()
    label = np.tile(np.array([leaf("compute.math"), leaf("comm.other")], dtype=np.int64), len(begins))
    return Segments(start, end, label)


def _per_step(segments: Segments, steps: Spans) -> I64:
    out = np.zeros((len(steps), len(LEAVES)), dtype=np.int64)
    step = np.searchsorted(steps.start, segments.start, side="right") - 1
    np.add.at(out, (step, segments.label), segments.end - segments.start)
    return out


def _log(start: I64, end: I64, ranks: int) -> CollectiveLog:
    count = len(start)
    return CollectiveLog(
        start=start,
        end=end,
        name=np.zeros(count, dtype=np.int32),
        kind=np.full(count, KINDS.index("all_reduce"), dtype=np.int8),
        title=np.zeros(count, dtype=np.int32),
        dtype=np.full(count, -1, dtype=np.int32),
        channel=np.zeros(count, dtype=np.int32),
        sequence=np.arange(count, dtype=np.int64),
        bytes=np.full(count, _BYTES, dtype=np.int64),
        measured=np.ones(count, dtype=bool),
        size=np.full(count, ranks, dtype=np.int32),
        names=("ncclDevKernel_AllReduce_Sum_bf16_RING_LL",),
        channels=(Channel("default_pg", 0),),
        on_host=False,
    )
