"""Collectives of one rank: how long, how much of it nothing hides, how large."""

import numpy as np
import numpy.typing as npt

from profilerkit.analysis.facts import CommFacts
from profilerkit.analysis.intervals import I64, Spans, intersect, subtract, union
from profilerkit.analysis.kernels import KernelNames
from profilerkit.model.report import Collective
from profilerkit.trace.columns import Category, CollectiveArgs, TraceColumns

#: Below this a collective runs at the latency floor of the link, not at its bandwidth (R38).
SMALL_COLLECTIVE_BYTES = 1_000_000

#: Bytes per element by the names torch writes into collective metadata.
_ELEMENT_BYTES = {
    "Double": 8, "Long": 8, "ComplexFloat": 8, "Float": 4, "Int": 4, "Half": 2, "BFloat16": 2, "Short": 2,
    "Byte": 1, "Char": 1, "Bool": 1, "Float8_e4m3fn": 1, "Float8_e5m2": 1,
}  # fmt: skip


def payload_bytes(args: CollectiveArgs) -> int | None:
    """Bytes a collective moves: the larger of its sides; ``None`` when the metadata does not say."""
    size = _ELEMENT_BYTES.get(args.dtype or "")
    elements = max(args.in_elements or 0, args.out_elements or 0)
    return size * elements if size and elements else None


def comm_facts(
    columns: TraceColumns,
    kinds: KernelNames,
    window: Spans,
    judged: npt.NDArray[np.bool_],
    *,
    device: npt.NDArray[np.bool_] | None,
) -> CommFacts | None:
    """Communication inside ``window``; ``None`` when none was seen.

    What hides it is compute kernels: a copy or a memset beside a collective does no work of the step's.
    On a CPU-only trace the transfers are the ``gloo:*`` spans, and what hides them is the operators of other threads.

    Args:
        columns: the trace.
        kinds: its classified names.
        window: the judged steps.
        judged: ``(n_events,)`` events that start inside it.
        device: ``(n_events,)`` events of the judged device; ``None`` on a CPU-only trace.
    """
    names = kinds.communication[columns.name]
    if device is None:
        transferring, working = columns.is_a(Category.ANNOTATION, Category.CPU_OP), columns.is_a(Category.CPU_OP)
    else:
        transferring = working = device & (columns.category == Category.KERNEL)
    rows = np.flatnonzero(judged & names & transferring)
    if not len(rows):
        return None
    count = max(len(window), 1)
    transfers = intersect(window, union(columns.ts_ns[rows], columns.end_ns[rows]))
    work = working & ~names
    compute = intersect(window, union(columns.ts_ns[work], columns.end_ns[work]))
    exposed = subtract(transfers, compute)
    small_ratio, table = _table(columns, rows, exposed)
    return CommFacts(
        per_step=len(rows) / count,
        total_ns=transfers.total_ns / count,
        exposed_ns=exposed.total_ns / count,
        alone_compute_ns=subtract(compute, transfers).total_ns / count,
        small_ratio=small_ratio,
        table=table,
    )


def _table(columns: TraceColumns, rows: I64, exposed: Spans) -> tuple[float | None, tuple[Collective, ...]]:
    """Share of the time in small collectives, and all of ``rows`` grouped by name, type and group size."""
    metadata = {args.row: args for args in columns.collectives}
    groups: dict[tuple[str, str | None, int | None], list[int]] = {}
    payload: dict[int, int] = {}
    for row in rows.tolist():
        args = metadata.get(row)
        size = payload_bytes(args) if args else None
        if size is not None:
            payload[row] = size
        name = args.name if args else columns.strings[columns.name[row]]
        key = (name, args.dtype if args else None, args.group_size if args else None)
        groups.setdefault(key, []).append(row)
    table = []
    for (name, dtype, group_size), members in groups.items():
        chosen = np.array(members, dtype=np.int64)
        known = [payload[row] for row in members if row in payload]
        spans = union(columns.ts_ns[chosen], columns.end_ns[chosen])
        table.append(
            Collective(
                name=name,
                count=len(members),
                total_ns=int(columns.dur_ns[chosen].sum()),
                exposed_ns=intersect(exposed, spans).total_ns,
                bytes=sum(known) if len(known) == len(members) else None,
                dtype=dtype,
                group_size=group_size,
            )
        )
    table.sort(key=lambda entry: -entry.total_ns)
    sized = np.array(list(payload), dtype=np.int64)
    small = np.array([payload[row] < SMALL_COLLECTIVE_BYTES for row in sized.tolist()], dtype=bool)
    timed = int(columns.dur_ns[sized].sum())
    ratio = float(columns.dur_ns[sized[small]].sum()) / timed if timed else None
    return ratio, tuple(table[:20])
