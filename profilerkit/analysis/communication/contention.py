"""Whether kernels run slower beside collectives than alone: the same name on the same shapes, in both places."""

import numpy as np

from profilerkit.analysis.communication.wire import Contention
from profilerkit.analysis.enclosing import launching_operators
from profilerkit.analysis.intervals import I64, Spans, time_within
from profilerkit.trace.columns import TraceColumns

#: Calls that a name with a shape needs alone, so that their median is no accident (a choice).
FEWEST_ALONE = 3
#: Share of a call beside a collective from which it counts as overlapped (a choice).
OVERLAPPED_RATIO = 0.5
#: Shorter kernels are all latency: beside a collective they wait for it, they do not share multiprocessors
#: and bandwidth with it (TraceLens' bound of a short kernel).
SHORTEST_NS = 10_000


def contention(
    columns: TraceColumns, launches: I64, kernels: I64, window: Spans, transfers: Spans
) -> Contention | None:
    """How long kernels take beside ``transfers`` and alone; ``None`` where none with shapes was seen in both places.

    Args:
        columns: the trace.
        launches: ``(n_events,)`` launching runtime row of each device event, -1 for none.
        kernels: rows of the kernels that compute, of the judged steps.
        window: the judged steps.
        transfers: when collectives ran.
    """
    beside = time_within(transfers, columns.ts_ns[kernels], columns.end_ns[kernels])
    beside_ns = int(columns.dur_ns[kernels[beside >= OVERLAPPED_RATIO * columns.dur_ns[kernels]]].sum())
    kernels = kernels[columns.dur_ns[kernels] >= SHORTEST_NS]
    operators = launching_operators(columns, launches, kernels)
    shape = np.where(operators >= 0, columns.input_dims[operators], -1)
    kernels, shape = kernels[shape >= 0], shape[shape >= 0]
    if not len(kernels) or not len(transfers):
        return None
    start, end = columns.ts_ns[kernels], columns.end_ns[kernels]
    beside = time_within(transfers, start, end)
    length = end - start
    which = np.unique(columns.name[kernels] * np.int64(shape.max() + 1) + shape, return_inverse=True)[1]
    order = np.argsort(which, kind="stable")
    edges = np.cumsum(np.bincount(which))[:-1]
    groups, compared, usual_ns, taken_ns = 0, 0, 0.0, 0.0
    for own in np.split(order, edges):
        alone, shared = length[own[beside[own] == 0]], length[own[beside[own] >= OVERLAPPED_RATIO * length[own]]]
        if len(alone) < FEWEST_ALONE or not len(shared):
            continue
        groups, compared = groups + 1, compared + len(shared)
        usual_ns += len(shared) * float(np.median(alone))
        taken_ns += float(shared.sum())
    if not groups:
        return None
    count = max(len(window), 1)
    return Contention(groups, compared, usual_ns / count, max(taken_ns - usual_ns, 0.0) / count, beside_ns / count)
