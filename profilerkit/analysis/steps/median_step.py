"""The timeline of the median step: its lanes, and its gaps with the parts that the partition gave them."""

import numpy as np

from profilerkit.analysis.intervals import Segments, Spans, paint, union
from profilerkit.analysis.leaves import LEAVES
from profilerkit.analysis.steps.lanes import lane_of
from profilerkit.analysis.trace_facts import TraceFacts, leaf_times
from profilerkit.model.median_step import Gap, MedianStep
from profilerkit.model.step import PARTS

#: Gaps that are told one by one (a choice).
MOST_GAPS = 20
#: What computes where the main thread is treated as the device; all else keeps it from that.
_COMPUTES = np.array([PARTS[name][0] in ("compute", "memory") for name in LEAVES])


def median_step(trace: TraceFacts, rank: int | None) -> MedianStep | None:
    """The median step of a trace, ``rank``'s; ``None`` without a steady step."""
    found, steps, parts = trace.lanes, trace.steps, trace.partition
    if found is None:
        return None
    step = Spans(steps.start[found.row : found.row + 1], steps.end[found.row : found.row + 1])
    did = _within(parts.segments, step)
    idle = found.idle if found.idle is not None else _without_computing(did)
    attributed = paint(idle, [did])
    gap = np.searchsorted(idle.start, attributed.start, side="right") - 1
    per_gap = np.zeros((len(idle), len(LEAVES)), dtype=np.int64)
    np.add.at(per_gap, (gap, attributed.label), attributed.end - attributed.start)
    longest = np.argsort(idle.start - idle.end, kind="stable")[:MOST_GAPS]
    start = int(step.start[0])
    return MedianStep(
        step=int(steps.index[found.row]),
        rank=rank,
        of=int(steps.judged.sum()),
        mode=parts.mode,
        time_ns=step.total_ns,
        idle_ns=idle.total_ns,
        causes=dict(sorted(leaf_times(per_gap.sum(axis=0)).items(), key=lambda cause: -cause[1])),
        gaps=tuple(
            Gap(
                start_ns=int(idle.start[row]) - start,
                end_ns=int(idle.end[row]) - start,
                part=LEAVES[int(per_gap[row].argmax())],
                part_ns=int(per_gap[row].max()),
            )
            for row in longest.tolist()
        ),
        gap_count=len(idle),
        lanes=(lane_of("Step", "step", did, step), *found.lanes),
        streams_left_out=found.streams_left_out,
        threads_left_out=found.threads_left_out,
    )


def _within(segments: Segments, step: Spans) -> Segments:
    """The segments of one step; the partition is cut where steps meet."""
    first, after = np.searchsorted(segments.start, [step.start[0], step.end[0]])
    rows = slice(int(first), int(after))
    return Segments(segments.start[rows], segments.end[rows], segments.label[rows])


def _without_computing(did: Segments) -> Spans:
    idle = ~_COMPUTES[did.label]
    return union(did.start[idle], did.end[idle])
