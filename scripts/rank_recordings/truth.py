"""What really happened in a recorded loop, by the timers of its ranks, and whether the injection is there."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, quantiles

from rank_recordings.kinds import LATE_RANK, WORLD_SIZE, Kind

#: Marks of one step on a clock that all processes of a host share, ns: start, fetched, computed, arrived, left, end.
Marks = dict[str, int]

#: Steps of which a busy machine makes a tenth so many times longer than another tenth show nothing else.
_UNEVEN_RATIO = 2.5
#: A late rank is last in nearly every step and makes the other wait, most of that time is what was injected, and the
#: transfers beside it are short.
_LATE_LAST_RATIO, _LATE_WAIT_RATIO, _CAUSE_RATIO, _LATE_TRANSFER_RATIO = 0.9, 0.3, 0.8, 0.15
#: Where no rank is late, each is the last one in so many of the steps at least: of 30 fair draws, 98 % are.
_ANY_LAST_RATIO = 0.3
#: How long ranks wait for each other under jitter.
_JITTER_WAIT_RATIO = 0.08
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


def read_truth(directory: Path, name: str) -> Truth:
    """The truth of the loop ``name`` of a recording."""
    paths = [directory / "timers" / f"{name}.{rank}.json" for rank in range(WORLD_SIZE)]
    return truth_of([json.loads(path.read_text("utf-8")) for path in paths])


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


def document(kind: Kind, loop: str, truths: dict[str, Truth]) -> dict[str, object]:
    """What ``truth.json`` holds: per loop the ranks, and why it is not valid (empty when it is)."""
    loops = {name: {"invalid": invalid(kind, truth), **asdict(truth)} for name, truth in truths.items()}
    return {"loop": loop, "injected": asdict(kind), **loops}


def invalid(kind: Kind, truth: Truth) -> str:
    """Why the loop is not what ``kind`` says, as happens on a machine that is too busy; empty when it is."""
    wait, transfer = truth.wait_ms / truth.step_ms, truth.transfer_ms / truth.step_ms
    uneven = max(rank.uneven_ratio for rank in truth.ranks)
    last = min(rank.last_ratio for rank in truth.ranks)
    if uneven > _UNEVEN_RATIO:
        return f"slow steps take {uneven:.1f} times as long as quick ones"
    if kind.rank is not None:
        return _invalid_late(kind, truth)
    if not kind.jitter_ms and "comm-bound" not in kind.bounds:
        return (
            "" if wait + transfer <= _HEALTHY_RATIO else f"waiting and transfer are {wait + transfer:.0%} of the step"
        )
    if last < _ANY_LAST_RATIO:
        return f"one rank was last in {last:.0%} of the steps only"
    if kind.jitter_ms:
        return "" if wait >= _JITTER_WAIT_RATIO else f"waiting is {wait:.0%} of the step only"
    longer = abs(truth.ranks[0].wait_ms - truth.ranks[1].wait_ms) / truth.step_ms
    there = transfer >= _BOUND_TRANSFER_RATIO and longer <= _BOUND_LATE_RATIO
    return (
        "" if there else f"transfer is {transfer:.0%} of the step, and one rank waits {longer:.0%} more than the other"
    )


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
