"""What is kept on the host, or made again, to save the memory of a device."""

import numpy as np
import numpy.typing as npt

from profilerkit.analysis.device.copies import TO_DEVICE, TO_HOST, directions
from profilerkit.analysis.intervals import I64, covered, index_at
from profilerkit.analysis.memory.use import Offload
from profilerkit.analysis.steps.find import TraceSteps, in_step
from profilerkit.analysis.steps.phases import reruns
from profilerkit.trace.columns import TraceColumns


def offloaded(columns: TraceColumns, rows: I64, count: int) -> Offload | None:
    """The offload copies ``rows`` of the steady window, per step of ``count``; ``None`` without any.

    Copies of unknown size count as empty.
    """
    if not len(rows):
        return None
    direction, size = directions(columns, rows), np.maximum(columns.bytes[rows], 0)
    pageable = np.array(["pageable" in columns.strings[name].lower() for name in columns.name[rows].tolist()])
    total = int(size.sum())
    return Offload(
        to_device_bytes=int(size[direction == TO_DEVICE].sum()) / count,
        to_host_bytes=int(size[direction == TO_HOST].sum()) / count,
        pageable_ratio=int(size[pageable].sum()) / total if total else float(pageable.mean()),
    )


def recomputed_bytes(columns: TraceColumns, steps: TraceSteps, on_device: npt.NDArray[np.bool_]) -> int | None:
    """Bytes that the recomputed forward code of a steady step leaves allocated, all its stretches together, mean.

    Backward frees them again before the next stretch is recomputed, so that they are never alive at once. ``None``
    without memory instants.

    Args:
        columns: the trace.
        steps: its steps.
        on_device: ``(n_instants,)`` which memory instants are those of the judged memory.
    """
    instants = columns.memory
    step = in_step(instants.ts_ns, steps.start, steps.end)
    judged = on_device & (step >= 0)
    judged[judged] = steps.judged[step[judged]]
    if not judged.any():
        return None
    found = reruns(columns)
    if found is None or not len(found[1]):
        return 0
    line, again = found
    place = line.place(instants.thread[judged], instants.ts_ns[judged])
    inside = covered(again, place)
    left = np.zeros(len(again), dtype=np.int64)
    np.add.at(left, index_at(again, place[inside]), instants.bytes[judged][inside])
    return int(np.maximum(left, 0).sum()) // max(len(steps.steady), 1)
