"""Which event of a thread was running at given instants: operators, modules, and the user's code."""

import re

import msgspec
import numpy as np

from profilerkit.analysis.device.kernels import named
from profilerkit.analysis.intervals import Spans, union
from profilerkit.trace.columns import I32, I64, Category, TraceColumns


def innermost_at(columns: TraceColumns, rows: I64, thread: I32, ts_ns: I64) -> I64:
    """The innermost of the events ``rows`` that runs on ``thread`` at each instant, -1 for none.

    That is the last one that started, which holds as well where events of a thread are not quite nested. Of two with
    the same extent the one that was entered later, with the higher external id, is the inner one. Events that cover
    none of the instants are left out first: a few instants among many events cost two searches.
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


class ThreadLine(msgspec.Struct, frozen=True):
    """Every thread on a stretch of its own."""

    first_ns: int
    stretch_ns: int

    @classmethod
    def of(cls, columns: TraceColumns) -> "ThreadLine | None":
        """The line of a trace; ``None`` for an empty one, or if its threads do not fit into 64 bits."""
        if not len(columns):
            return None
        first, last = int(columns.ts_ns.min()), int(columns.end_ns.max())
        stretch = last - first + 1
        return cls(first, stretch) if stretch < np.iinfo(np.int64).max // (len(columns.threads) + 1) else None

    def place(self, thread: I32, instants: I64) -> I64:
        """``(n,)`` int64, where instants of threads lie."""
        return thread.astype(np.int64) * self.stretch_ns + (instants - self.first_ns)

    def extents(self, columns: TraceColumns, rows: I64) -> tuple[I64, I64]:
        """``(n,)`` int64, where events start and end."""
        start = self.place(columns.thread[rows], columns.ts_ns[rows])
        return start, start + columns.dur_ns[rows]

    def spans(self, columns: TraceColumns, rows: I64) -> Spans:
        """The union of events."""
        return union(*self.extents(columns, rows))


def launching_operators(columns: TraceColumns, launches: I64, rows: I64) -> I64:
    """Return for each device event in ``rows`` the row of the operator that launched it, -1 for none.

    Time on the launching thread decides, not the ``External id``: several releases wrote ids of two kinds into one
    trace, so that kernels seem to come from views.
    """
    found = np.full(len(rows), -1, dtype=np.int64)
    linked = np.flatnonzero(launches[rows] >= 0)
    calls = launches[rows[linked]]
    operators = np.flatnonzero(columns.category == Category.CPU_OP)
    found[linked] = innermost_at(columns, operators, columns.thread[calls], columns.ts_ns[calls])
    return found


_MODULE = re.compile(r"^nn\.Module: ")
_LINE = re.compile(r"^(?!nn\.Module: ).*\.py\(\d+\): ")
#: Frames that are nobody's own code: torch, and what of the standard library stands between a loop and a call.
_OUTSIDE = re.compile(
    r"(?:^|/)(?:torch|contextlib\.py|functools\.py|threading\.py|runpy\.py|multiprocessing|concurrent|asyncio)(?:/|\(|$)"
    r"|^<"
)


class CallSite(msgspec.Struct, frozen=True):
    """The innermost ``nn.Module`` and the innermost line outside torch around a call; ``None`` where not recorded."""

    module: str | None
    line: str | None


def call_sites(columns: TraceColumns, calls: I64) -> list[CallSite]:
    """Return where each host event in ``calls`` was made; -1 stands for no event."""
    if not (columns.category == Category.PYTHON).any():
        return [CallSite(None, None)] * len(calls)
    modules, lines, outside = (named(columns, pattern, Category.PYTHON) for pattern in (_MODULE, _LINE, _OUTSIDE))
    thread, ts_ns = columns.thread[calls], columns.ts_ns[calls]
    texts: list[list[str]] = []
    for wanted in (modules, lines & ~outside):
        rows = innermost_at(columns, np.flatnonzero(wanted), thread, ts_ns)
        rows[calls < 0] = -1
        texts.append([columns.strings[columns.name[row]] if row >= 0 else "" for row in rows.tolist()])
    found = zip(*texts, strict=True)
    return [CallSite(module.removeprefix("nn.Module: ") or None, line or None) for module, line in found]
