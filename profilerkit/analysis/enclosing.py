"""Which event of a thread was running at given instants."""

import numpy as np

from profilerkit.analysis.intervals import I64
from profilerkit.trace.columns import I32, TraceColumns


def innermost_at(columns: TraceColumns, rows: I64, thread: I32, ts_ns: I64) -> I64:
    """The innermost of the events ``rows`` that runs on ``thread`` at each instant, -1 for none.

    That is the last one that started, which holds as well where events of a thread are not quite nested. Of two with
    the same extent the one that was entered later, with the higher external id, is the inner one. Events that cover
    none of the instants are left out first: a few instants among many events cost two searches.

    Args:
        columns: the trace.
        rows: events of any thread.
        thread: ``(n_instants,)``.
        ts_ns: ``(n_instants,)``.
    """
    out = np.full(len(ts_ns), -1, dtype=np.int64)
    if not len(ts_ns) or not len(rows):
        return out
    asked = np.lexsort((ts_ns, thread))
    numbers, first = np.unique(thread[asked], return_index=True)
    wanted = np.zeros(len(columns.threads) + 1, dtype=np.bool_)
    wanted[numbers] = True
    rows = rows[wanted[columns.thread[rows]]]
    rows = rows[np.argsort(columns.thread[rows], kind="stable")]
    end_ns = columns.end_ns
    low, high = (np.searchsorted(columns.thread[rows], numbers, side=side) for side in ("left", "right"))
    for index, instants in enumerate(np.split(asked, first[1:])):
        own, at = rows[low[index] : high[index]], ts_ns[instants]
        start, end = columns.ts_ns[own], end_ns[own]
        own = own[np.searchsorted(at, end) > np.searchsorted(at, start)]
        if not len(own):
            continue
        own = own[np.lexsort((columns.external_id[own], -end_ns[own], columns.ts_ns[own]))]
        started = np.searchsorted(columns.ts_ns[own], at, side="right")
        found = _last_open(end_ns[own], at, started)
        out[instants] = np.where(found >= 0, own[found], -1)
    return out


def _last_open(end: I64, at: I64, started: I64) -> I64:
    """The last of the first ``started`` intervals that has not ended at each instant, -1 where all have.

    Blocks of 2, 4, 8, … intervals know their latest end: an instant passes over as many as have ended at once.

    >>> _last_open(np.array([90, 20, 40]), np.array([15, 25, 35, 95]), np.array([2, 2, 3, 3])).tolist()
    [1, 0, 2, -1]
    """
    latest = [end]
    while len(latest[-1]) > 1:
        whole = latest[-1][: len(latest[-1]) // 2 * 2]
        latest.append(np.maximum(whole[::2], whole[1::2]))
    block = np.full(len(at), -1, dtype=np.int64)
    level = np.zeros(len(at), dtype=np.int64)
    left, before = np.arange(len(at)), started
    for height, ends in enumerate(latest):
        # What is left over of whole pairs of blocks stands last of all that started before.
        odd = np.flatnonzero(before & 1)
        odd = odd[ends[before[odd] - 1] > at[left[odd]]]
        block[left[odd]], level[left[odd]] = before[odd] - 1, height
        keep = before > 1
        keep[odd] = False
        left, before = left[keep], before[keep] >> 1
    for height in range(len(latest) - 1, 0, -1):
        inside = np.flatnonzero(level >= height)
        later = 2 * block[inside] + 1
        block[inside] = np.where(latest[height - 1][later] > at[inside], later, later - 1)
    return block
