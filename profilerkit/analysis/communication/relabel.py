"""Exposed communication of a rank divided into waiting, latency and transfer, once ranks are matched."""

from collections.abc import Sequence

import numpy as np

from profilerkit.analysis.communication.log import CollectiveLog
from profilerkit.analysis.communication.table import Split
from profilerkit.analysis.communication.waiting import Arrivals
from profilerkit.analysis.intervals import Segments, Spans, paint, union, with_label
from profilerkit.analysis.leaves import LEAVES, leaf
from profilerkit.analysis.partition import Partition
from profilerkit.errors import InvariantError
from profilerkit.model.change import revise

#: Transfers below this size take as long as an empty one: their median is the latency floor of the run.
TINY_BYTES = 64 * 1024
#: The floor where no transfer is known to be tiny: an all-reduce of 32 KB over 8 A100.
LATENCY_FLOOR_NS = 44_000


def latency_floor_ns(arrivals: Sequence[Arrivals], logs: Sequence[CollectiveLog | None]) -> int:
    """How long a transfer of next to nothing takes in this run."""
    found = []
    for entry in arrivals:
        log = logs[int(entry.members[0])]
        if log is not None and entry.whole:
            size = log.bytes[entry.rows[0]]
            found.append(entry.transfer[(size >= 0) & (size < TINY_BYTES) & (entry.transfer > 0)])
    tiny = np.concatenate(found) if found else np.empty(0, np.int64)
    return round(float(np.median(tiny))) if len(tiny) else LATENCY_FLOOR_NS


def relabelled(parts: Partition, steps: Spans, log: CollectiveLog, split: Split, floor_ns: int) -> Partition:
    """The partition with its exposed communication divided; what was not matched stays ``comm.other``.

    Of collectives side by side the one that transfers owns the instant: it would be exposed without the waiting too.

    Args:
        parts: of one rank.
        steps: what it partitions.
        log: its collectives.
        split: how they divide.
        floor_ns: how much of each transfer is latency; of a tiny one all is, on however busy a host it took longer.

    Raises:
        InvariantError: the parts of a step would change their sum.
    """
    waits, moves = split.wait >= 0, split.transfer >= 0
    arrived = log.start + np.maximum(split.wait, 0)
    tiny = (log.bytes >= 0) & (log.bytes < TINY_BYTES)
    floor = np.where(tiny, log.end, np.minimum(arrived + floor_ns, log.end))
    layers = [
        with_label(union(start[rows], end[rows]), leaf(name))
        for name, start, end, rows in (
            ("comm.bw", floor, log.end, moves),
            ("comm.lat", arrived, floor, moves),
            ("comm.skew", log.start, arrived, waits),
        )
    ]
    other = leaf("comm.other")
    segments = parts.segments
    painted = paint(segments.only(other), layers)
    kept = segments.label != other
    start = np.r_[segments.start[kept], painted.start]
    order = np.argsort(start, kind="stable")
    divided = Segments(
        start[order],
        np.r_[segments.end[kept], painted.end][order],
        np.r_[segments.label[kept], np.where(painted.label < 0, other, painted.label)][order],
    )
    per_step = np.zeros((len(steps), len(LEAVES)), dtype=np.int64)
    step = np.searchsorted(steps.start, divided.start, side="right") - 1
    np.add.at(per_step, (step, divided.label), divided.end - divided.start)
    if not np.array_equal(per_step.sum(axis=1), parts.per_step.sum(axis=1)):
        raise InvariantError(
            "dividing the communication changed the sum of a step's parts",
            hint="this is a bug in profilerkit; please report it with the traces",
        )
    return revise(parts, segments=divided, per_step=per_step)
