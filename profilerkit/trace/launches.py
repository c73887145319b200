"""Find which runtime call launched which device work, and put each device's clock on the host's by that."""

import re

import numpy as np

from profilerkit.model import revise
from profilerkit.trace.columns import I64, WORK, Bools, Category, TraceColumns, saying

# cudaLaunchKernel, cuLaunchKernelEx, hipModuleLaunchKernel, cudaMemcpyAsync, cudaGraphLaunch …
_LAUNCHING = re.compile(r"launch|memcpy|memset|graph", re.IGNORECASE)

TO_NPU = "async_npu"  #: category of torch_npu's flow links, from the operator that issues a kernel to the kernel


def launch_of(columns: TraceColumns) -> I64:
    """Return ``(n_events,)`` int64: for device work the row of the runtime call that launched it, else -1.

    Joined by correlation against runtime rows only, as device and sync rows carry the same numbers. One call may
    launch many kernels (graphs). Of several runtime rows with one correlation the launch itself wins over calls
    around it, then the first. Device work without a correlation is joined by its flow link.
    """
    launch = np.full(len(columns), -1, np.int64)
    device = np.flatnonzero(columns.is_a(*WORK))
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
    """Return ``(n_events,)`` mask of the events named as runtime calls that launch work."""
    return saying(columns, _LAUNCHING.search, Category.RUNTIME)[columns.name]


def issues_to_npu(columns: TraceColumns) -> Bools:
    """Return ``(n_flows,)`` mask of the flow starts at which an operator issues work to an Ascend NPU."""
    return columns.flows.starts & np.array([text == TO_NPU for text in columns.strings], np.bool_)[columns.flows.kind]


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
    of_backward = next((index for index, text in enumerate(columns.strings) if text == "fwdbwd"), -1)
    between = (flows.kind != of_backward) & (flows.id >= 0)
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


#: An idle device starts what is launched within 5 to 60 µs, in 40 recordings of CUDA and ROCm. So starts that all come
#: later than this after an idle time, and ends that come later than this after the host waited for them, show a clock
#: that is off: by 156 to 823 ms where it was seen.
FEWEST_NS = 1_000_000
#: A device is idle once it did nothing for longer than a launch takes.
_IDLE_NS = 20_000
#: So many pairs must agree, within ``FEWEST_NS``: records that were joined by mistake do not.
_AGREEING = 3

_WAITS_FOR_ALL = re.compile(r"(?:Device|Ctx|Context)Synchronize")
_WAITS_FOR_STREAM = "Stream Sync"


def aligned(columns: TraceColumns, launches: I64) -> TraceColumns:
    """Return the columns with the work of each device on the host's clock, and a note for each device moved.

    A device's clock is off where its work starts before it was launched, where all of it starts long after although
    the device was idle, or where it ends long after the host had waited for it. A queue that never ran empty has large
    lags too, but no idle times and no waits that return early: it is left as it is.

    Args:
        columns: the trace.
        launches: ``(n_events,)`` launching runtime row of each device event, -1 for none.
    """
    work = np.flatnonzero((launches >= 0) & columns.is_a(*WORK))
    ts_ns, flows = columns.ts_ns, columns.flows.ts_ns
    notes: list[str] = []
    for device in np.unique(columns.device[work]).tolist():
        offset_ns = _offset_ns(columns, launches, work[columns.device[work] == device])
        if not offset_ns:
            continue
        way = "behind" if offset_ns > 0 else "ahead of"
        size = f"{abs(offset_ns) / 1e6:.3g} ms" if abs(offset_ns) >= 1e6 else f"{abs(offset_ns) / 1e3:.3g} µs"
        whose = f"the clock of device {device}" if device >= 0 else "the device's clock"
        notes.append(f"{whose} is {size} {way} the host's, by its launches: its records were moved by that")
        mine = columns.is_a(*WORK) & (columns.device == device)
        streams = np.unique(columns.thread[mine])
        mine |= (columns.category == Category.GPU_ANNOTATION) & np.isin(columns.thread, streams)
        ts_ns = np.where(mine, columns.ts_ns - offset_ns, ts_ns)
        flows = np.where(np.isin(columns.flows.thread, streams), columns.flows.ts_ns - offset_ns, flows)
    if not notes:
        return columns
    damage = revise(columns.damage, notes=(*columns.damage.notes, *notes))
    return revise(columns, damage=damage, ts_ns=ts_ns, flows=revise(columns.flows, ts_ns=flows))


def _offset_ns(columns: TraceColumns, launches: I64, work: I64) -> int:
    """Return by how much the clock of one device is behind the host's, ns; 0 where nothing shows that it is off."""
    launched = columns.ts_ns[launches[work]]
    lag = columns.ts_ns[work] - launched
    ordered = np.sort(lag)
    agreeing = np.flatnonzero(ordered[_AGREEING - 1 :] - ordered[: 1 - _AGREEING] <= FEWEST_NS)
    if len(agreeing):
        least = int(ordered[agreeing[0]])
        order = np.argsort(columns.ts_ns[work], kind="stable")
        done = np.maximum.accumulate(columns.end_ns[work[order]])
        after_idle = lag[order[1:][columns.ts_ns[work[order[1:]]] - done[:-1] > _IDLE_NS]]
        if least < 0:
            return least
        if least >= FEWEST_NS and len(after_idle) >= _AGREEING and np.median(after_idle) - least <= FEWEST_NS:
            return least
    if ordered[0] < FEWEST_NS:
        return 0
    late = _late_ns(columns, work, launched)
    return min(late, int(ordered[0])) if late >= FEWEST_NS else 0


def _late_ns(columns: TraceColumns, work: I64, launched: I64) -> int:
    """Return how long after a wait of the host the work ends that it waited for, ns at most; negative for before."""
    calls = np.flatnonzero(columns.is_a(Category.RUNTIME))
    whole = saying(columns, _WAITS_FOR_ALL.search, Category.RUNTIME)
    late = [_latest_ns(columns, calls[whole[columns.name[calls]]], work, launched)]
    syncs = np.flatnonzero(columns.category == Category.SYNC)
    stream_sync = saying(columns, _WAITS_FOR_STREAM.__eq__, Category.SYNC)
    syncs = syncs[stream_sync[columns.name[syncs]]]
    for stream in np.unique(columns.stream[syncs]).tolist():
        mine = columns.stream[work] == stream
        late.append(_latest_ns(columns, syncs[columns.stream[syncs] == stream], work[mine], launched[mine]))
    return max(late)


def _latest_ns(columns: TraceColumns, waits: I64, work: I64, launched: I64) -> int:
    """Return how long after any of the waits work ends that was launched before it, ns at most."""
    order = np.argsort(launched, kind="stable")
    before = np.searchsorted(launched[order], columns.ts_ns[waits], side="left")
    waits, before = waits[before > 0], before[before > 0]
    if not len(waits):
        return -FEWEST_NS
    done = np.maximum.accumulate(columns.end_ns[work[order]])
    return int((done[before - 1] - columns.end_ns[waits]).max())
