"""What was alive at an instant, and which operator and module had asked for it."""

import re

import numpy as np

from profilerkit.analysis.device.kernels import in_use, matching
from profilerkit.analysis.enclosing import innermost_at
from profilerkit.analysis.intervals import I64
from profilerkit.model.memory import AliveAtPeak
from profilerkit.trace.columns import Category, TraceColumns

#: Operators that only allocate: the one around them says what for.
_ALLOCATES = re.compile(r"^aten::(?:new_)?empty(?:_strided|_like|_permuted)?$|^aten::resize_$")
_MODULE = re.compile(r"^nn\.Module: ")
#: Entries told; the rest is in the sum of allocated memory.
MOST_OWNERS = 20


def alive_at(columns: TraceColumns, rows: I64, allocated: int) -> tuple[tuple[AliveAtPeak, ...], int | None]:
    """The blocks alive after the last of ``rows``, by operator and module, and the bytes older than the recording.

    Of every address the latest instant decides: alive if it allocates. Without addresses nothing is known of either.

    Args:
        columns: the trace.
        rows: memory instants of one device in order of time, up to the one asked about.
        allocated: bytes allocated then.
    """
    instants = columns.memory
    rows = rows[instants.address[rows] >= 0]
    if not len(rows):
        return (), None
    order = np.argsort(instants.address[rows], kind="stable")
    address = instants.address[rows[order]]
    rows = rows[order[np.r_[address[1:] != address[:-1], True]]]
    rows = rows[instants.bytes[rows] > 0]
    before = max(allocated - int(instants.bytes[rows].sum()), 0)
    return _by_owner(columns, rows), before


def _by_owner(columns: TraceColumns, rows: I64) -> tuple[AliveAtPeak, ...]:
    """Blocks put together by operator and module, largest first."""
    thread, ts_ns = columns.memory.thread[rows], columns.memory.ts_ns[rows]
    used = in_use(columns)
    operators = columns.category == Category.CPU_OP
    allocates = matching(columns, used, _ALLOCATES)[columns.name]
    modules = (columns.category == Category.PYTHON) & matching(columns, used, _MODULE)[columns.name]
    op = innermost_at(columns, np.flatnonzero(operators & ~allocates), thread, ts_ns)
    bare = op < 0
    op[bare] = innermost_at(columns, np.flatnonzero(operators & allocates), thread[bare], ts_ns[bare])
    module = innermost_at(columns, np.flatnonzero(modules), thread, ts_ns)
    named = np.stack([np.where(found >= 0, columns.name[found], -1) for found in (op, module)], axis=1)
    owners, index = np.unique(named, axis=0, return_inverse=True)
    index = index.ravel()  # numpy 2.0 gives it the shape of the rows
    count = np.bincount(index, minlength=len(owners))
    total = np.zeros(len(owners), dtype=np.int64)
    np.add.at(total, index, columns.memory.bytes[rows])

    def text(name: int) -> str | None:
        return columns.strings[name] if name >= 0 else None

    known = [
        AliveAtPeak(
            op=text(int(owners[i, 0])), module=text(int(owners[i, 1])), count=int(count[i]), bytes=int(total[i])
        )
        for i in range(len(owners))
    ]
    # Of equal ones the order of the names decides, not that of the events in the file.
    known.sort(key=lambda entry: (-entry.bytes, entry.op or "", entry.module or ""))
    return tuple(known[:MOST_OWNERS])
