"""Garbage collections in the judged steps, as the timers recorded them."""

import numpy as np

from profilerkit.analysis.events import EVENT_DTYPE
from profilerkit.analysis.host.host_facts import CollectionFacts
from profilerkit.analysis.steps.find import in_step
from profilerkit.analysis.steps.log import StepLog
from profilerkit.rundir.layout import EventKind

#: Number of the oldest generation: a collection of it looks at every object.
OLDEST = 2


def collection_facts(events: bytes, log: StepLog) -> CollectionFacts:
    """The collections of at least 50 µs in steady steps; shorter ones are not recorded."""
    table = np.frombuffer(events, dtype=EVENT_DTYPE)
    table = table[table["kind"] == EventKind.GC]
    step = in_step(table["start"].astype(np.int64), log.start, log.stop)
    table = table[(step >= 0) & log.steady[np.maximum(step, 0)]]
    if not len(table):
        return CollectionFacts(per_step=0.0, pause_ns=0.0, longest_ns=0, full=0)
    return CollectionFacts(
        per_step=len(table) / max(int(log.steady.sum()), 1),
        pause_ns=float(table["dur"].mean()),
        longest_ns=int(table["dur"].max()),
        full=int((table["value"] >= OLDEST).sum()),
    )
