"""Bursts: small collectives one after the other on the host, with only their calls between them."""

import numpy as np

from profilerkit.analysis.communication.log import CollectiveLog
from profilerkit.analysis.intervals import Spans, covered, index_at, intersect, subtract, union

#: Up to this size a collective takes as long as an empty one (R38's latency floor was measured with half of it).
TINY_BYTES = 64_000
#: A longer pause between two collectives is more than calling the next one (a choice).
LONGEST_CALL_NS = 1_000_000


def burst_ns(log: CollectiveLog, window: Spans, working: Spans) -> float:
    """Time of bursts of tiny collectives beyond the first of each, ns per judged step: what joining them would save.

    The calls between them count, and the waits for the other ranks at each; what computes beside them does not, nor the
    first one of each burst, at which a late rank is waited for however many follow. 0 where collectives run on a
    device, which starts the next one while the host goes on.

    Args:
        log: the collectives of the trace.
        window: the judged steps.
        working: when operators that are no collectives run.
    """
    if not log.on_host or not len(window):
        return 0.0
    tiny = (log.bytes >= 0) & (log.bytes <= TINY_BYTES) & log.joint & covered(window, log.start)
    step = index_at(window, log.start)
    soon = (step[1:] == step[:-1]) & (log.start[1:] - log.end[:-1] < LONGEST_CALL_NS)
    follows = tiny[1:] & tiny[:-1] & soon
    edges = np.flatnonzero(np.diff(np.r_[False, follows, False].astype(np.int8)))
    first, last = edges[::2], edges[1::2]
    if not len(first):
        return 0.0
    spans = intersect(window, union(log.start[first], log.end[last]))
    kept = intersect(window, union(log.start[first], log.end[first]))
    return subtract(subtract(spans, kept), working).total_ns / len(window)
