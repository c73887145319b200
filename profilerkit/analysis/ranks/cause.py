"""Why the late rank is late: what it did longer than the others before they had to wait for it."""

from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from profilerkit.analysis.device.kernels import COMMUNICATION
from profilerkit.analysis.intervals import I64, Segments
from profilerkit.analysis.parts import LEAVES, leaf
from profilerkit.analysis.ranks.waiting import Arrivals
from profilerkit.analysis.trace_facts import TraceFacts
from profilerkit.model.step import Part

F64 = npt.NDArray[np.float64]

#: Share of the waiting that a cause must explain; else the waiting is called unattributed (TraceML demands 80 %).
FEWEST_EXPLAINED = 0.60
#: The same of the part that holds most of what a rank does longer, where only breakdowns tell (a choice: on a busy host
#: of two ranks the one with the longer sequences computed for 40 to 60 % of what the other one waited).
FEWEST_LED = 0.25
#: Ranks that the late one is compared with: the median of more changes nothing.
MOST_COMPARED = 16

#: Seeded training repeats its FLOPs exactly; so much is left for a last batch that is short.
SAME_FLOPS_RATIO = 0.02
#: Share of the window from which a kernel, or on a CPU-only run an operator, must run as often on both.
SHOWN_SHARE = 0.05

#: Parts that one cause makes longer together; each of the others is a cause of its own.
_TOGETHER = ("input.", "compute.", "sync.")
#: Parts that are no cause: other waiting, what nobody can name, and what the profiler did.
_NO_CAUSE = ("comm.", "idle.", "other.prof")


class Cause(msgspec.Struct, frozen=True):
    """What made a rank late, summed over the judged steps.

    Attributes:
        part: the largest part of what it did longer; ``None`` when nothing explains enough of the waiting.
        explained_ns: how much longer, where there is such a part.
        waited_ns: exposed waiting of the median other rank, in the spans that ended with this rank's arrival.
    """

    part: str | None
    explained_ns: float
    waited_ns: float

    @property
    def coverage(self) -> float | None:
        """Explained / waited, at most 1; ``None`` where nobody had to wait."""
        return min(self.explained_ns / self.waited_ns, 1.0) if self.waited_ns > 0 else None


def cause_of(
    rank: int, arrivals: Sequence[Arrivals], segments: Sequence[Segments | None], to_common: Sequence[int | None]
) -> Cause:
    """Compare the late rank with the others in the spans that ended when it arrived last.

    A span runs from the previous common arrival to this one, so that it is the same stretch of time for all, and the
    spans lie end to end: what a rank did behind a transfer that hid it counts too. In it the others waited; what the
    late rank did longer than their median is why.

    Args:
        rank: position of the late rank.
        arrivals: matched collectives.
        segments: per rank its partition, with waiting labelled, on its own clock.
        to_common: per rank what to add to its clock.
    """
    own = [entry for entry in arrivals if rank in entry.members]
    instants = np.unique(np.concatenate([entry.arrived for entry in own]))
    excess = np.zeros(len(LEAVES))
    for entry in own:
        mine = int(np.flatnonzero(entry.members == rank)[0])
        late = (entry.last == mine) & (entry.step >= 0)
        before = np.searchsorted(instants, entry.arrived[late], side="left") - 1
        others = _compared(entry.members[entry.members != rank])
        # The span of the first collective begins when all of them were recorded.
        begin = max(_begin(segments[member], to_common[member]) for member in (rank, *others))
        end = np.maximum(entry.arrived[late], begin)
        start = np.where(before >= 0, np.maximum(instants[np.maximum(before, 0)], begin), begin)
        times = [_times(segments[other], to_common[other], start, end) for other in others]
        if len(end) and times:
            excess += (_times(segments[rank], to_common[rank], start, end) - np.median(times, axis=0)).sum(axis=0)
    return _named(excess)


def _begin(segments: Segments | None, to_common: int | None) -> int:
    """When a rank's partition begins on the common clock; 0 where it has none."""
    return int(segments.start[0]) + (to_common or 0) if segments is not None and len(segments) else 0


def _compared(others: I64) -> list[int]:
    """At most ``MOST_COMPARED`` of the ranks, evenly chosen."""
    keep = np.unique(np.linspace(0, len(others) - 1, min(len(others), MOST_COMPARED)).round().astype(np.int64))
    return [int(rank) for rank in others[keep]]


def _times(segments: Segments | None, to_common: int | None, start: I64, end: I64) -> F64:
    """``(n_spans, n_leaves)`` ns of each leaf within each span of the common clock."""
    out = np.zeros((len(start), len(LEAVES)))
    if segments is None or to_common is None or not len(segments):
        return out
    for label in np.unique(segments.label).tolist():
        spans = segments.only(label)
        before = np.r_[0, np.cumsum(spans.end - spans.start)]

        def until(instants: I64, spans_start: I64 = spans.start, spans_end: I64 = spans.end, sums: I64 = before) -> I64:
            """Time of this leaf before each instant."""
            index = np.searchsorted(spans_start, instants, side="right")
            over = np.where(index > 0, np.maximum(spans_end[np.maximum(index - 1, 0)] - instants, 0), 0)
            return sums[index] - over

        out[:, label] = until(end - to_common) - until(start - to_common)
    return out


def cause_by_parts(
    late: Sequence[Part], others: Sequence[Sequence[Part]], waited_ns: float, *, among: Sequence[str] = ()
) -> Cause:
    """Compare the mean steps of the late rank and of the others, where no span of a collective tells.

    Their steps are equally long: what the others do less they wait. Where that explains too little, as on a busy host,
    the part that holds most of it is named all the same, with how much it explains.

    Args:
        late: the breakdown of the late rank.
        others: of the other ranks, at least one.
        waited_ns: per step, by the median of them.
        among: names of parts that are compared, or their beginnings; all where it is empty.
    """

    def spent(parts: Sequence[Part], names: Sequence[str]) -> float:
        return float(sum(part.time_ns for part in parts if part.part in names))

    groups = [[name for name in group if not among or name.startswith(tuple(among))] for group in _groups()]
    excess = [spent(late, group) - float(np.median([spent(other, group) for other in others])) for group in groups]
    most = int(np.argmax(excess))
    explained, whole = excess[most], sum(max(value, 0.0) for value in excess)
    leads = not among and explained >= max(FEWEST_EXPLAINED * whole, FEWEST_LED * waited_ns)
    if waited_ns <= 0 or explained <= 0 or not (leads or explained >= FEWEST_EXPLAINED * waited_ns):
        return Cause(None, max(explained, 0.0), max(waited_ns, 0.0))
    own = {part.part: part.time_ns for part in late}
    return Cause(max(groups[most], key=lambda name: own.get(name, 0)), explained, waited_ns)


def _groups() -> list[list[str]]:
    """The parts that may be a cause, those together that one cause makes longer."""
    groups: dict[str, list[str]] = {}
    for part in LEAVES:
        if not part.startswith(_NO_CAUSE):
            groups.setdefault(next((prefix for prefix in _TOGETHER if part.startswith(prefix)), part), []).append(part)
    return list(groups.values())


def _named(excess: F64) -> Cause:
    """The cause with the largest excess, if it explains enough of the waiting."""
    waited = float(-excess[leaf("comm.skew")])
    groups = [[leaf(name) for name in group] for group in _groups()]
    best = max(groups, key=lambda members: float(excess[members].sum()))
    explained = float(excess[best].sum())
    if waited <= 0 or explained < FEWEST_EXPLAINED * waited:
        return Cause(None, max(explained, 0.0), max(waited, 0.0))
    return Cause(LEAVES[max(best, key=lambda index: excess[index])], explained, waited)


def same_work(late: TraceFacts, others: Sequence[TraceFacts]) -> bool | None:
    """Whether the rank runs the same kernels on the same amount of work per step as any other rank.

    ``None`` where the shapes that tell the amount were not recorded.
    """
    told = [_same(late, other) for other in others]
    known = [same for same in told if same is not None]
    return any(known) if known else None


def more_work(late: TraceFacts, others: Sequence[TraceFacts]) -> float:
    """Share of the rank's FLOPs per step that no other rank has; 0 where it is not known."""
    ours = late.compute.flops_per_step
    theirs = [flops for other in others if (flops := other.compute.flops_per_step)]
    return max(1.0 - max(theirs) / ours, 0.0) if ours and theirs else 0.0


def _same(one: TraceFacts, other: TraceFacts) -> bool | None:
    ours, theirs = one.compute.flops_per_step, other.compute.flops_per_step
    if not ours or not theirs:
        return None
    if abs(ours - theirs) > SAME_FLOPS_RATIO * max(ours, theirs):
        return False
    first, second = _per_step(one), _per_step(other)
    shown = {name for found in (first, second) for name, (_, share) in found.items() if share >= SHOWN_SHARE}
    return all(name in first and name in second and first[name][0] == second[name][0] for name in shown)


def _per_step(trace: TraceFacts) -> dict[str, tuple[int, float]]:
    """Name to calls per step, rounded, and share of the window, of the largest kernels that compute."""
    count = max(trace.n_steady, 1)
    return {
        kernel.name: (round(kernel.count / count), kernel.share)
        for kernel in trace.kernels
        if kernel.kind != COMMUNICATION
    }
