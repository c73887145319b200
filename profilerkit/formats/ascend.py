"""The rows of an Ascend NPU, which torch_npu writes without categories: their processes say what they are."""

import re
from collections.abc import Sequence

import numpy as np

from profilerkit.model import revise
from profilerkit.trace.columns import Category, DeviceProperties, TraceColumns

HARDWARE = "Ascend Hardware"  #: the process of what the streams do
_COLLECTIVES = ("HCCL", "Communication")  #: the process of the collectives, by the age of torch_npu
_STREAM = re.compile(r"Stream (\d{1,9})", re.ASCII)
# Streams also wait, signal, and carry out the pieces of collectives, which have rows of their own as wholes.
_COLLECTIVE, _COPY, _PIECE = "hcom_", "MEMCPY", re.compile(r"(?i)EVENT_|NOTIFY|WRITE|SDMA|RDMA|REDUCE_|OTHER$")
_ISSUES = "async_npu"  #: links from what issued a kernel to the kernel


def of_npu(columns: TraceColumns, places: Sequence[tuple[str, str]]) -> TraceColumns:
    """Return the columns with the NPU's kernels, copies and collectives, and the operators that issued them as calls.

    Args:
        columns: the trace as it is written.
        places: process and line of each thread.
    """
    process = np.array([process for process, _ in places])[columns.thread]
    found = [_STREAM.match(line) for _, line in places]
    stream = np.array([int(match[1]) if match else -1 for match in found], np.int64)[columns.thread]
    is_piece, is_copy, is_whole = (
        np.array(values, np.bool_)[columns.name]
        for values in (
            [_PIECE.match(text) is not None for text in columns.strings],
            [text.startswith(_COPY) for text in columns.strings],
            [text.startswith(_COLLECTIVE) for text in columns.strings],
        )
    )
    work = ((process == HARDWARE) & ~is_piece) | (np.isin(process, _COLLECTIVES) & is_whole)
    flows = columns.flows
    issues = flows.starts & np.array([text == _ISSUES for text in columns.strings], np.bool_)[flows.kind]
    starts = set(zip(flows.thread[issues].tolist(), flows.ts_ns[issues].tolist(), strict=True))
    operators = np.flatnonzero(columns.category == Category.CPU_OP)
    at = zip(columns.thread[operators].tolist(), columns.ts_ns[operators].tolist(), strict=True)
    category = np.where(work, np.where(is_copy, Category.MEMCPY, Category.KERNEL), columns.category)
    category[operators[[place in starts for place in at]]] = Category.RUNTIME
    return revise(
        columns,
        category=category.astype(np.int8),
        device=np.where(work, 0, columns.device).astype(np.int32),
        stream=np.where(work, stream, columns.stream),
        meta=revise(columns.meta, devices=(DeviceProperties(id=0, name="Ascend NPU"),)),
    )
