"""Which runtime call launched which device work."""

import re

import numpy as np

from profilerkit.trace.columns import I64, Bools, Category, TraceColumns

# cudaLaunchKernel, cuLaunchKernelEx, hipModuleLaunchKernel, cudaMemcpyAsync, cudaGraphLaunch …
_LAUNCHING = re.compile(r"launch|memcpy|memset|graph", re.IGNORECASE)


def launch_of(columns: TraceColumns) -> I64:
    """Return ``(n_events,)`` int64: for device work the row of the runtime call that launched it, else -1.

    Joined by correlation against runtime rows only, as device and sync rows carry the same numbers. One call may
    launch many kernels (graphs). Of several runtime rows with one correlation the launch itself wins over calls
    around it, then the first. Device work without a correlation is joined by its flow link.
    """
    launch = np.full(len(columns), -1, np.int64)
    device = np.flatnonzero(columns.is_a(Category.KERNEL, Category.MEMCPY, Category.MEMSET))
    calls = np.flatnonzero(columns.is_a(Category.RUNTIME))
    if not len(device) or not len(calls):
        return launch
    known = calls[columns.correlation[calls] >= 0]
    launch[device] = _first_match(
        columns.correlation[known], known, columns.correlation[device], preferred=is_launch(columns)[known]
    )
    loose = device[columns.correlation[device] < 0]
    if len(loose):
        launch[loose] = _by_flow(columns, calls, loose)
    return launch


def is_launch(columns: TraceColumns) -> Bools:
    """Return ``(n_events,)`` mask of the events named as calls that launch work."""
    by_name = np.array([_LAUNCHING.search(text) is not None for text in columns.strings], np.bool_)
    return by_name[columns.name]


def _first_match(keys: I64, rows: I64, wanted: I64, *, preferred: Bools) -> I64:
    """Return for each wanted key the row that has it, preferred rows before others, then the lowest; else -1.

    >>> keys, rows, wanted = np.array([7, 7, 9]), np.array([0, 1, 4]), np.array([9, 7, 8])
    >>> _first_match(keys, rows, wanted, preferred=np.array([False, True, True])).tolist()
    [4, 1, -1]
    """
    found = np.full(len(wanted), -1, np.int64)
    if not len(keys):
        return found
    order = np.lexsort((rows, ~preferred, keys))
    keys, rows = keys[order], rows[order]
    at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    hit = (keys[at] == wanted) & (wanted >= 0)
    found[hit] = rows[at[hit]]
    return found


def _by_flow(columns: TraceColumns, calls: I64, loose: I64) -> I64:
    """Return for each row in ``loose`` the call its flow starts at, -1 without one.

    A flow end stands at the thread and start of its kernel, a flow start at those of its call.
    """
    flows = columns.flows
    none = np.full(len(loose), -1, np.int64)
    kinds = [index for index, text in enumerate(columns.strings) if text != "fwdbwd"]
    between = np.isin(flows.kind, kinds) & (flows.id >= 0)
    starts, ends = np.flatnonzero(between & flows.starts), np.flatnonzero(between & ~flows.starts)
    if not len(starts) or not len(ends):
        return none
    places = np.concatenate(
        [
            np.stack([columns.thread[calls], columns.ts_ns[calls]], axis=1),
            np.stack([columns.thread[loose], columns.ts_ns[loose]], axis=1),
            np.stack([flows.thread, flows.ts_ns], axis=1),
        ]
    )
    _, place = np.unique(places, axis=0, return_inverse=True)
    call_place, loose_place, flow_place = np.split(place.ravel(), [len(calls), len(calls) + len(loose)])
    call_of_start = _first_match(call_place, calls, flow_place[starts], preferred=is_launch(columns)[calls])
    end_of_loose = _first_match(flow_place[ends], ends, loose_place, preferred=np.ones(len(ends), np.bool_))
    flow_id = np.where(end_of_loose >= 0, flows.id[end_of_loose], -1)
    linked = call_of_start >= 0
    return _first_match(
        flows.id[starts[linked]], call_of_start[linked], flow_id, preferred=np.ones(int(linked.sum()), np.bool_)
    )
