"""What the simulator knows: every instant of a rank's steady window and the leaf it belongs to.

The definitions are those of §1.3 and §1.5 of the diagnosis method; the causes are not read from names but are what the
simulator did: kernels know their roof, host time its cause, collectives when their last member came.
"""

import itertools
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from simulator.job import Job
from simulator.kernels import leaf_of_length
from simulator.machine import Rank, Work

Piece = tuple[int, int, str]

#: Causes of host time that keep their name behind a sync; plain work of the host is then what the sync left behind.
_PLAIN = ("over.dispatch", "over.python")


def steady_spans(job: Job, rank: Rank) -> list[tuple[int, int]]:
    """The steps to be judged, each from its start to the next one's.

    Without the first of the recording, warm-up, the last, which has no successor, and those that compiled, unless all
    of them do.
    """
    start = {number: start for number, start, _ in rank.marks}
    return [(start[number], start[number + 1]) for number in steady_numbers(job, rank)]


def steady_numbers(job: Job, rank: Rank) -> list[int]:
    """The numbers of the steps to be judged."""
    first = max(job.warmup, 1)
    followed = [number for number, _, _ in rank.marks[:-1] if number >= first]
    return [number for number in followed if number not in job.odd.compile_steps] or followed


def leaf_ns(job: Job, rank: Rank, device: int = 0) -> dict[str, int]:
    """Leaf to time in the steady window of one rank and device; the times sum to the window exactly."""
    pieces = list(_pieces(rank, device))
    starts = [piece[0] for piece in pieces]
    found: Counter[str] = Counter()
    total = 0
    for low, high in steady_spans(job, rank):
        total += high - low
        for start, end, leaf in pieces[max(bisect_right(starts, low) - 1, 0) : bisect_left(starts, high)]:
            if min(end, high) > max(start, low):
                found[leaf] += min(end, high) - max(start, low)
    assert sum(found.values()) == total, "the simulator's own parts must sum to the window"
    return dict(found)


def shares(job: Job, rank: Rank) -> dict[str, float]:
    """Leaf to its share of the steady window."""
    times = leaf_ns(job, rank)
    total = sum(times.values())
    return {leaf: value / total for leaf, value in sorted(times.items())}


def misaligned_share(job: Job, rank: Rank) -> float:
    """How much of the steady window runs math kernels with a dimension that is no multiple of 8."""
    return _share_of_works(job, rank, lambda work: (work.end - work.start) * work.name.count("align1"))


def contended_share(job: Job, rank: Rank) -> float:
    """How much of the steady window kernels lose to collectives beside them."""
    return _share_of_works(job, rank, lambda work: 0 if work.meeting else max(work.end - work.start - work.ns, 0))


def compiling_share(job: Job, rank: Rank) -> float:
    """How much of the recorded steps, the judged ones and the others, is compiling."""
    recorded = [mark for mark in rank.marks if mark[0] >= 0]
    low, high = recorded[0][1], recorded[-1][2]
    return sum(min(e, high) - max(s, low) for s, e, cause in rank.did if cause == "warm.compile" and e > low) / (
        high - low
    )


def _share_of_works(job: Job, rank: Rank, counted: Callable[[Work], int]) -> float:
    spans = steady_spans(job, rank)
    low, high = spans[0][0], spans[-1][1]
    total = sum(end - start for start, end in spans)
    return sum(counted(work) for work in rank.works if low <= work.start < high and work.device == 0) / total


def step_ns(job: Job, rank: Rank) -> float:
    """Mean steady step."""
    spans = steady_spans(job, rank)
    return sum(end - start for start, end in spans) / len(spans)


def done_step_ns(job: Job, rank: Rank) -> float:
    """Mean steady step, from when all that was issued before it was done: a host that runs ahead gains nothing."""
    marks = {number: start for number, start, _ in rank.marks}
    works = sorted((work for work in rank.works if work.device == 0), key=lambda work: work.called)
    done, at, latest = {}, 0, 0
    for number, start in sorted(marks.items()):
        while at < len(works) and works[at].called < start:
            latest = max(latest, works[at].end)
            at += 1
        done[number] = max(start, latest)
    steps = steady_numbers(job, rank)
    return sum(done[number + 1] - done[number] for number in steps) / len(steps)


def _pieces(rank: Rank, device: int) -> Iterator[Piece]:
    """The whole timeline of a device, cut wherever the owner may change."""
    works = sorted((work for work in rank.works if work.device == device), key=lambda work: work.start)
    edges = sorted({rank.did[0][0], rank.now, *(w.start for w in works), *(w.end for w in works)})
    syncs = {sync.returned: sync for sync in rank.syncs}
    host = _Host(rank)
    active: list[Work] = []
    upcoming = 0
    gap_start = edges[0]
    for low, high in itertools.pairwise(edges):
        while upcoming < len(works) and works[upcoming].start <= low:
            active.append(works[upcoming])
            upcoming += 1
        active = [work for work in active if work.end > low]
        if active:
            yield from _busy(active, low, high)
            gap_start = high
        elif upcoming == len(works):
            yield low, high, "idle.unknown"
        else:
            ending = [work for work in works[upcoming : upcoming + 8] if work.start == works[upcoming].start]
            yield from host.gap(gap_start, high, max(ending, key=lambda work: work.returned), works, syncs)
            gap_start = high


def _busy(active: Sequence[Work], low: int, high: int) -> Iterator[Piece]:
    """Compute before communication before copies; of several kernels the one that ends last."""
    compute = [work for work in active if work.category == "kernel" and work.meeting is None]
    comm = [work for work in active if work.meeting is not None]
    if compute:
        owner = max(compute, key=lambda work: work.end)
        small = owner.args.get("blocks per SM", 1.0) < 1.0 and owner.leaf != "mem.recompute"
        yield low, high, "compute.small" if small else leaf_of_length(owner.leaf, owner.end - owner.start)
    elif comm:
        yield from _transfer(max(comm, key=lambda work: work.end), low, high)
    else:
        yield low, high, max(active, key=lambda work: work.end).leaf


def _transfer(work: Work, low: int, high: int) -> Iterator[Piece]:
    """Exposed time of a collective: until the last member came, then the latency floor, then the wire."""
    assert work.meeting is not None
    begun = work.meeting.last_ns
    floor = begun + work.meeting.latency_ns
    for start, end, leaf in (
        (low, begun, "comm.skew"), (begun, floor, "comm.lat"), (floor, high, "comm.bw"),
    ):  # fmt: skip
        if min(end, high) > max(start, low):
            yield max(start, low), min(end, high), leaf


class _Host:
    """What the host did, for the gaps of its devices."""

    def __init__(self, rank: Rank) -> None:
        self._did = rank.did
        self._starts = [entry[0] for entry in rank.did]

    def gap(
        self, low: int, high: int, ending: Work, works: Sequence[Work], syncs: dict[int, object]
    ) -> Iterator[Piece]:
        """Until the call that issued the next work returned, the host's causes; after that the launch's latency."""
        issued = min(max(ending.returned, low), high)
        drained = self._drained_from(low, issued, ending, works, syncs)
        for start, end, cause in self._during(low, issued):
            if cause == "sync":
                yield start, end, "sync.drain"
            elif cause not in _PLAIN or end <= drained:
                yield start, end, cause
            else:
                if start < drained:
                    yield start, drained, cause
                yield max(start, drained), end, "sync.drain"
        if issued < high:
            yield issued, high, "over.launch"

    def _drained_from(self, low: int, high: int, ending: Work, works: Sequence[Work], syncs: dict[int, object]) -> int:
        """When a sync of the issuing thread returned in the gap that had found the device at work; else its end."""
        for returned in sorted(moment for moment in syncs if low <= moment <= high):
            sync = syncs[returned]
            if sync.thread == ending.thread and sync.called < low and _worked_at(works, sync.called):  # type: ignore[attr-defined]
                return returned
        return high

    def _during(self, low: int, high: int) -> Iterable[Piece]:
        at = max(bisect_right(self._starts, low) - 1, 0)
        while at < len(self._did) and self._did[at][0] < high:
            start, end, cause = self._did[at]
            if min(end, high) > max(start, low):
                yield max(start, low), min(end, high), cause
            at += 1


def _worked_at(works: Sequence[Work], moment: int) -> bool:
    """Whether the device was working: the host has then cut off a queue that was not empty."""
    return any(work.start <= moment < work.end for work in works)
