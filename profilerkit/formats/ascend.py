"""The rows of an Ascend NPU, which torch_npu writes without categories: their processes say what they are."""

import re
from collections.abc import Sequence

import numpy as np

from profilerkit.model import revise
from profilerkit.trace.columns import I32, I64, Category, DeviceProperties, TraceColumns
from profilerkit.trace.launches import issues_to_npu
from profilerkit.trace.merged import repeated

HARDWARE = "Ascend Hardware"  #: the process of what the streams do
_COLLECTIVES = ("HCCL", "Communication")  #: the process of the collectives, by the age of torch_npu
_STREAM = re.compile(r"Stream (\d{1,9})", re.ASCII)
_COLLECTIVE, _COPY = "hcom_", "MEMCPY"
_OF_TORCH = "::"  #: in the name of an operator of torch; CANN's own are called aclnnMm or HcclAllreduce
#: Streams also wait, signal, and carry out the pieces of collectives, which have rows of their own as wholes. CANN
#: writes tasks of a stream as EVENT_WAIT or Write Value, HCCL its pieces as Notify_Wait or RDMASend.
_SPELT_VARIOUSLY = (
    *("Event_Wait", "Event_Record", "Event_Reset", "Notify_Wait", "Notify_Record", "Write_Value", "Write_With_Notify"),
    *("Send_Notify", "Send_Payload", "Rdma_Send", "Reduce_Inline", "Reduce_Async", "Reduce_Async_V2", "Reduce_TBE"),
)
_PIECES = frozenset(
    ("SDMA", "OTHER", "Memcpy", "RDMASend"),
).union(*((name, name.upper(), name.replace("_", " ")) for name in _SPELT_VARIOUSLY))


def of_npu(columns: TraceColumns, places: Sequence[tuple[str, str]]) -> TraceColumns:
    """Return the columns with the NPU's kernels, copies and collectives, and the calls that issue them.

    An operator of torch that issues work itself, without one of CANN's within it, stays and gets a call beside it.

    Args:
        columns: the trace as it is written.
        places: process and line of each thread.
    """
    found = [_STREAM.match(line) for _, line in places]
    stream = np.array([int(match[1]) if match else -1 for match in found], np.int64)[columns.thread]
    devices = _devices(columns, places)
    device = devices[columns.thread]
    on_stream = np.array([process == HARDWARE for process, _ in places], np.bool_)[columns.thread]
    is_piece, is_copy, is_whole = (
        np.array(values, np.bool_)[columns.name]
        for values in (
            [text in _PIECES for text in columns.strings],
            [text.startswith(_COPY) for text in columns.strings],
            [text.startswith(_COLLECTIVE) for text in columns.strings],
        )
    )
    work = (device >= 0) & np.where(on_stream, ~is_piece, is_whole)
    read = revise(
        columns,
        category=np.where(work, np.where(is_copy, Category.MEMCPY, Category.KERNEL), columns.category).astype(np.int8),
        device=np.where(work, device, columns.device),
        stream=np.where(work, stream, columns.stream),
        meta=revise(
            columns.meta,
            devices=tuple(DeviceProperties(id=each, name="Ascend NPU") for each in range(int(devices.max()) + 1)),
        ),
    )
    issuing = _issuing(columns)
    is_operator = np.array([_OF_TORCH in text for text in columns.strings], np.bool_)[columns.name[issuing]]
    with_calls = repeated(read, issuing[is_operator])
    category = with_calls.category.copy()
    category[issuing[~is_operator]] = category[len(columns) :] = Category.RUNTIME
    return revise(with_calls, category=category)


def _devices(columns: TraceColumns, places: Sequence[tuple[str, str]]) -> I32:
    """Return the device of each thread, -1 for none: the place of its process among those of one name."""
    devices = np.full(len(places), -1, np.int32)
    for name in (HARDWARE, *_COLLECTIVES):
        mine = [thread for thread, (process, _) in enumerate(places) if process == name]
        pids = sorted({columns.threads[thread][0] for thread in mine}, key=lambda pid: (len(pid), pid))
        number = {pid: index for index, pid in enumerate(pids)}
        devices[mine] = [number[columns.threads[thread][0]] for thread in mine]
    return devices


def _issuing(columns: TraceColumns) -> I64:
    """Return the rows of what issues work, which is written as operators."""
    flows, issues = columns.flows, issues_to_npu(columns)
    starts = set(zip(flows.thread[issues].tolist(), flows.ts_ns[issues].tolist(), strict=True))
    operators = np.flatnonzero(columns.category == Category.CPU_OP)
    at = zip(columns.thread[operators].tolist(), columns.ts_ns[operators].tolist(), strict=True)
    found: I64 = operators[[place in starts for place in at]]
    return found
