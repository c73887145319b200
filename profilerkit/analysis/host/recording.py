"""What recording a trace costs the host: the device works as before, and so it seems to wait longer for the host."""

import numpy as np

from profilerkit.analysis.host.host_facts import RecordingFacts
from profilerkit.analysis.host.names import HostNames, backward_threads, main_thread
from profilerkit.analysis.intervals import Segments, Spans, covered
from profilerkit.analysis.leaves import leaf
from profilerkit.trace.columns import EMIT_NVTX, Category, TraceColumns

#: What recording one event takes its thread, ns: an operator, its shapes, an allocation or release, and a call of a
#: Python function. Medians of three loops of small operators (torch 2.13 on a CPU, thread CPU time of the same steps
#: with and without): 270 to 410, 210 to 320, 100 to 280, 310 to 580. CUPTI's work at each launch is not in it.
OPERATOR_NS, SHAPES_NS, ALLOCATION_NS, CALL_NS = 320.0, 290.0, 130.0, 360.0
#: The same of an operator's range under Nsight Systems: ``aten::t``, which holds two ranges more, lasts 7.1 and 8.5 µs
#: in two public exports with emit_nvtx, and 2.9 to 4.8 µs in six traces of torch.profiler.
RANGE_NS = 2_000.0

#: Share of the steps that recording takes by these, from which an option slows the host. They are for a quick host and
#: few counters: torch's own documentation names 4 µs for an operator (torch.autograd.profiler.profile, use_cuda).
NOTED_SHARE = 0.01
#: Parts in which the device waits for what the launching thread does, which is slower while it is recorded.
HOST_PARTS = ("over.dispatch", "over.python", "over.launch", "sync.drain")


def recording_facts(
    columns: TraceColumns, names: HostNames, segments: Segments, window: Spans, issuing: Spans
) -> RecordingFacts | None:
    """Estimate what recording took of the mean steady step; ``None`` without a steady step.

    Args:
        columns: the trace.
        names: its classified names.
        segments: the partition.
        window: the steady steps.
        issuing: when the host issued them.
    """
    if not len(window):
        return None
    main, recorded = main_thread(columns), columns.meta.recorded
    threads = np.r_[main, backward_threads(columns, names, main)]
    mine = np.isin(columns.thread, threads)
    calls = mine & columns.is_a(Category.PYTHON) & ~(names.collects | names.compiles)[columns.name]
    by_nvtx = EMIT_NVTX in recorded
    each = OPERATOR_NS + (SHAPES_NS if "record_shapes" in recorded else 0.0)
    kinds = {
        EMIT_NVTX: (columns.ts_ns[mine & columns.is_a(Category.CPU_OP)], RANGE_NS if by_nvtx else each),
        "with_stack": (columns.ts_ns[calls], CALL_NS),
        "profile_memory": (columns.memory.ts_ns[np.isin(columns.memory.thread, threads)], ALLOCATION_NS),
    }
    taken = {name: each * float(covered(issuing, at).sum()) for name, (at, each) in kinds.items()}
    slow = {name for name, time in taken.items() if time >= NOTED_SHARE * window.total_ns}
    unseen = {name for name in recorded if name in kinds and not len(kinds[name][0])}
    at = np.concatenate([at for at, _ in kinds.values()])
    cost = np.repeat([each for _, each in kinds.values()], [len(at) for at, _ in kinds.values()])
    inside = covered(issuing, at)
    waits = covered(window, at) & covered(segments.only(*(leaf(part) for part in HOST_PARTS)), at)
    return RecordingFacts(
        options=tuple(name for name in kinds if name in slow | unseen and (by_nvtx or name != EMIT_NVTX)),
        events=float(inside.sum()) / len(window),
        waited_ns=float(cost[waits].sum()) / len(window),
        hidden_ns=float(cost[inside & ~waits].sum()) / len(window),
    )
