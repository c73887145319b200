"""What alone kept the device from computing, and what the host was late with behind that.

The breakdown gives an instant to what the device did. What one fix recovers follows from what was ready when: work
starts when the last of its launch, its transfers and its stream's earlier work is there (the last-arriver rule).
"""

import msgspec
import numpy as np
import numpy.typing as npt

from profilerkit.analysis.host.activity import HostActivity
from profilerkit.analysis.host.gaps import Issued, in_order
from profilerkit.analysis.host.names import QUIET_NS
from profilerkit.analysis.intervals import I64, NO_SEGMENTS, Segments
from profilerkit.analysis.leaves import LEAVES, leaf
from profilerkit.trace.columns import TraceColumns

#: Work that starts within this time after a transfer on another stream ended, issued long before, is taken to have
#: waited for it where the trace does not record which stream waits for which (HTA calls gaps below 30 µs kernel waits).
RELEASE_NS = 30_000

#: What the host does when it waits for the device itself: for its queue, or for the copy it is in.
_WAITS_FOR_DEVICE = np.array([name.startswith("sync.") or name in ("input.h2d", "mem.offload") for name in LEAVES])


class Held(msgspec.Struct, frozen=True):
    """What kept the device from computing.

    Attributes:
        alone: time that one part recovers when it alone is removed, by part.
        hidden: time in which the host had not issued the next work either while the device communicated or copied, by
            what the host did: a fix of it shows only once the transfer is gone as well.
    """

    alone: Segments
    hidden: Segments


def releases(
    columns: TraceColumns, idle: Segments, exposed: Segments, transfers: I64, issued: Issued, host: HostActivity
) -> Held:
    """Who held the device, from what it waited for last.

    An idle device waits for the host alone. While a transfer runs, the next work waits for the transfer from when the
    host has issued it, if it starts as the transfer ends; before that for both. Where it starts beside the transfer it
    never waited for that: exposed is not blocking. A host of which nothing was recorded meanwhile, and that issues the
    next work right after the transfer, waited for it too.

    Args:
        columns: the trace.
        idle: the idle time of the device, labelled with its causes.
        exposed: the time in which it only communicated or copied, labelled with what.
        transfers: rows of the communication and the copies.
        issued: the device's events.
        host: what its threads did.
    """
    if not len(exposed):
        return Held(idle, NO_SEGMENTS)
    place, at, thread = issued.next(exposed.end)
    late = np.where(place < len(issued.rows), np.clip(at, exposed.start, exposed.end), exposed.start)
    ends, awaited = _ended(columns, exposed, transfers, issued, place)
    alone, hidden = [idle, _pick(late, exposed.end, exposed.label, awaited)], []
    for key in np.unique(thread).tolist():
        own = (thread == key) & (late > exposed.start)
        told = host.label(exposed.start[own], late[own], key)
        under = np.searchsorted(exposed.start, told.start, side="right") - 1
        # A host that waits for the device waits for the transfer.
        soon = (at - exposed.end)[under] <= QUIET_NS
        blocked = _WAITS_FOR_DEVICE[told.label] | ((told.label == leaf("idle.unknown")) & soon & ends[under])
        alone.append(_pick(told.start, told.end, exposed.label[under], blocked))
        alone.append(_pick(told.start, told.end, told.label, ~blocked & ~ends[under]))
        hidden.append(_pick(told.start, told.end, told.label, ~blocked & ends[under]))
    return Held(in_order(alone), in_order(hidden))


def _ended(
    columns: TraceColumns, exposed: Segments, transfers: I64, issued: Issued, place: I64
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Whether a transfer ended with each piece of ``exposed``, and whether the work at ``place`` waited for that."""
    end = columns.ts_ns[transfers] + columns.dur_ns[transfers]
    order = np.lexsort((columns.dur_ns[transfers], end))
    last = order[np.searchsorted(end[order], exposed.end, side="right") - 1]
    ends = end[last] == exposed.end
    known = place < len(issued.rows)
    following = issued.rows[np.minimum(place, len(issued.rows) - 1)]
    awaited = ends & ~(known & (columns.ts_ns[following] - exposed.end > RELEASE_NS))
    if columns.stream_waits:
        pairs = zip(columns.stream[following].tolist(), columns.stream[transfers[last]].tolist(), strict=True)
        related = np.array([mine == other or (mine, other) in columns.stream_waits for mine, other in pairs])
        awaited &= related | ~known
    return ends, awaited


def _pick(start: I64, end: I64, label: I64, rows: npt.NDArray[np.bool_]) -> Segments:
    keep = rows & (end > start)
    return Segments(start[keep], end[keep], label[keep])
