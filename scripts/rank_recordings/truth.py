"""What really happened in a recorded loop, by the timers of its ranks, and whether the injection is there."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, quantiles

from profilerkit.rundir.reader import read_run
from rank_recordings.kinds import LATE_RANK, WARMUP_STEPS, WORLD_SIZE, Kind

#: Marks of one step on a clock that all processes of a host share, ns: start, fetched, computed, arrived, left, end.
Marks = dict[str, int]

#: Steps of which a busy machine makes a tenth so many times longer than another tenth show nothing else.
_UNEVEN_RATIO = 2.5
#: A late rank is last in nearly every step and makes the other wait, most of that time is what was injected, and the
#: transfers beside it are short.
_LATE_LAST_RATIO, _LATE_WAIT_RATIO, _CAUSE_RATIO, _LATE_TRANSFER_RATIO = 0.9, 0.3, 0.8, 0.15
#: Under jitter the ranks wait for each other, and each is the last one in so many of the steps: of 30 draws, 98 % are.
_JITTER_WAIT_RATIO, _JITTER_LAST_RATIO = 0.08, 0.3
#: Transfers of a step that is bound by them, and what one rank then waits longer than the other.
_BOUND_TRANSFER_RATIO, _BOUND_LATE_RATIO = 0.4, 0.05
#: Waiting and transfers of a healthy step: below the 10 % from which a verdict names them.
_HEALTHY_RATIO = 0.08


@dataclass(frozen=True, slots=True)
class RankTruth:
    """The steps of one rank: the median step and the mean of its stretches.

    Attributes:
        step_ms: the step.
        uneven_ratio: the step that a tenth exceed / the one that a tenth stay below.
        input_ms: until the batch was there.
        compute_ms: the matrix products.
        rest_ms: jitter, forward and backward pass.
        wait_ms: from this rank's arrival at the reduction until the last rank's.
        transfer_ms: from the last arrival until the first rank left.
        last_ratio: share of the steps in which this rank arrived last.
    """

    step_ms: float
    uneven_ratio: float
    input_ms: float
    compute_ms: float
    rest_ms: float
    wait_ms: float
    transfer_ms: float
    last_ratio: float


@dataclass(frozen=True, slots=True)
class Truth:
    """The ranks of one loop."""

    ranks: tuple[RankTruth, ...]

    @property
    def step_ms(self) -> float:
        """The mean of the ranks' median steps."""
        return fmean(rank.step_ms for rank in self.ranks)

    @property
    def wait_ms(self) -> float:
        """How far apart the two ranks arrived, on average."""
        return sum(rank.wait_ms for rank in self.ranks)

    @property
    def transfer_ms(self) -> float:
        """From the last arrival until the first rank left, on average."""
        return self.ranks[0].transfer_ms


def document(kind: Kind, directory: Path, source: str) -> dict[str, object]:
    """What ``truth.json`` holds of one source: its traced steps by rank, and why it is not valid (empty when it is)."""
    paths = [directory / "timers" / f"{source}.{rank}.json" for rank in range(WORLD_SIZE)]
    ranks = [json.loads(path.read_text("utf-8")) for path in paths]
    traced = truth_of([rank[_traced(directory, source)] for rank in ranks])
    judged = truth_of([rank[WARMUP_STEPS:] for rank in ranks])
    return {"invalid": invalid(kind, traced) or invalid(kind, judged), **asdict(traced)}


def _traced(directory: Path, source: str) -> slice:
    """The steps in which a report sees collectives."""
    if source == "trace":
        return slice(WARMUP_STEPS, None)
    window, _ = read_run(directory / source).ranks[0].windows[0]
    return slice(window.first_step, window.last_step + 1)


def truth_of(ranks: Sequence[Sequence[Marks]]) -> Truth:
    """The truth of two ranks.

    Rank 0 arrives at 10 and rank 1 at 30, both leave at 34: rank 0 waits 20, and both transfer for 4.
    """
    steps = list(zip(*ranks, strict=True))
    last = [max(marks["arrived"] for marks in step) for step in steps]
    left = [min(marks["left"] for marks in step) for step in steps]
    transfer_ms = _mean_ms(end - start for start, end in zip(last, left, strict=True))
    tenths = [quantiles([marks["end"] - marks["start"] for marks in rank], n=10) for rank in ranks]
    return Truth(
        tuple(
            RankTruth(
                step_ms=round(tenth[4] / 1e6, 3),
                uneven_ratio=round(tenth[8] / tenth[0], 3),
                input_ms=_mean_ms(marks["fetched"] - marks["start"] for marks in rank),
                compute_ms=_mean_ms(marks["computed"] - marks["fetched"] for marks in rank),
                rest_ms=_mean_ms(marks["arrived"] - marks["computed"] for marks in rank),
                wait_ms=_mean_ms(at - marks["arrived"] for at, marks in zip(last, rank, strict=True)),
                transfer_ms=transfer_ms,
                last_ratio=round(fmean(at == marks["arrived"] for at, marks in zip(last, rank, strict=True)), 3),
            )
            for rank, tenth in zip(ranks, tenths, strict=True)
        )
    )


def _mean_ms(times_ns: Iterable[int]) -> float:
    return round(fmean(times_ns) / 1e6, 3)


def invalid(kind: Kind, truth: Truth) -> str:
    """Why the loop is not what ``kind`` says, as happens on a machine that is too busy; empty when it is."""
    wait, transfer = truth.wait_ms / truth.step_ms, truth.transfer_ms / truth.step_ms
    uneven = max(rank.uneven_ratio for rank in truth.ranks)
    last = min(rank.last_ratio for rank in truth.ranks)
    longer = abs(truth.ranks[0].wait_ms - truth.ranks[1].wait_ms) / truth.step_ms
    if uneven > _UNEVEN_RATIO:
        return f"slow steps take {uneven:.1f} times as long as quick ones"
    if kind.rank is not None:
        return _invalid_late(kind, truth)
    if kind.jitter_ms:
        there = wait >= _JITTER_WAIT_RATIO and last >= _JITTER_LAST_RATIO
        return "" if there else f"waiting is {wait:.0%} of the step, and one rank was last in {last:.0%} of the steps"
    if "comm-bound" in kind.bounds:
        there = transfer >= _BOUND_TRANSFER_RATIO and longer <= _BOUND_LATE_RATIO
        return "" if there else f"transfer is {transfer:.0%} of the step, and one rank waits {longer:.0%} longer"
    spent = wait + transfer
    return "" if spent <= _HEALTHY_RATIO else f"waiting and transfer are {spent:.0%} of the step"


def _invalid_late(kind: Kind, truth: Truth) -> str:
    late, other = truth.ranks[LATE_RANK], truth.ranks[1 - LATE_RANK]
    wait, transfer = other.wait_ms / truth.step_ms, truth.transfer_ms / truth.step_ms
    if late.last_ratio < _LATE_LAST_RATIO or wait < _LATE_WAIT_RATIO:
        return f"rank {LATE_RANK} was last in {late.last_ratio:.0%} of the steps, and waiting is {wait:.0%} of the step"
    if transfer > _LATE_TRANSFER_RATIO:
        return f"transfer is {transfer:.0%} of the step"
    more_ms = late.input_ms - other.input_ms if kind.late_input_ms else late.compute_ms - other.compute_ms
    explained = more_ms / other.wait_ms
    return "" if explained >= _CAUSE_RATIO else f"the injected cost is {explained:.0%} of the waiting only"
