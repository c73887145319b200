"""The 28 classes of §4.4: how each fault is injected, how it is taken out again, and what a right analysis says.

``CLASSES`` is a table; a line's checks are the whole meaning of "right" for its class. Injected shares are spread over
1 to 50 % of the step, or to what the class can reach.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass

from simulator import faults, right, truth
from simulator.job import Extra, Job, Late, Memory, Odd, Reads
from simulator.right import Check, Severity, by_rank, finds, leaf, never, owns, share_of

LOWEST, HIGHEST = 0.01, 0.50


@dataclass(frozen=True)
class Class:
    """One class of faults.

    Attributes:
        severity: the share of the step that the fault takes in truth, usually that of its leaf; ``None`` where the
            class has no such share.
        inject: a job with the fault at a share; ``relieve`` the same job with the fix that its finding proposes, else
            without the fault; ``None`` where nothing is to save.
        checks: all must hold.
        bound: the bound a finding about it names; empty where none is expected.
        high: the largest share that is drawn, ``low`` the smallest.
    """

    code: str
    what: str
    group: str
    severity: Severity | None
    inject: Callable[[random.Random, float], Job]
    checks: tuple[Check, ...]
    relieve: Callable[[Job], Job] | None = None
    bound: str = ""
    low: float = LOWEST
    high: float = HIGHEST


_KERNELS, _HOST, _INPUT, _MEMORY, _COMM, _ODD = "kernels", "host", "input", "memory", "communication", "odd"
_alone = never("input-bound", "comm-bound")
_python = (owns("over.python"), share_of("compute.math"), _alone)
_late = (share_of("comm.skew"), right.names_late_rank)
_late_by_input = (*_late, right.names_cause("input."), never("comm-bound"))

CLASSES: tuple[Class, ...] = (
    Class("G01", "healthy GEMM", _KERNELS, None, faults.nothing, (share_of("compute.math"), right.no_alarm)),
    Class(
        "G02", "bandwidth-limited chain", _KERNELS, leaf("compute.membw"), faults.pointwise_chain,
        (owns("compute.membw"), _alone), faults.fused_chain, "memory-bound",
    ),
    Class(
        "G03", "small kernels", _KERNELS, leaf("compute.small"), faults.small_kernels,
        (owns("compute.small"), _alone), faults.without(extra=Extra()), "overhead-bound",
    ),
    Class(
        "G04", "FP32 GEMM", _KERNELS, leaf("compute.math"), faults.fp32_gemm,
        (share_of("compute.math"), finds("CP001"), _alone), faults.tensor_cores, "compute-bound",
    ),
    Class(
        "G05", "misaligned dimensions", _KERNELS, by_rank(truth.misaligned_share), faults.misaligned_gemm,
        (share_of("compute.math"), right.efficiency_of_misaligned, _alone), faults.aligned, "compute-bound",
    ),
    Class(
        "G06", "launch-bound", _HOST, leaf("over.dispatch"), faults.slow_launches,
        (owns("over.dispatch"), _alone), faults.as_graph, "overhead-bound",
    ),
    Class(
        "G07", "launch-bound that looks sync-bound", _HOST, leaf("over.dispatch"), faults.reads_among_launches,
        (owns("over.dispatch"), never("overhead-bound (sync)"), _alone), faults.as_graph, "overhead-bound",
    ),
    Class(
        "G08", "sync drain", _HOST, leaf("sync.drain"), faults.drained_queue,
        (owns("sync.drain"), _alone), faults.without(reads=Reads()), "overhead-bound",
    ),
    Class(
        "G09", "pageable host-to-device copy", _INPUT, leaf("input.h2d"), faults.pageable_copy,
        (owns("input.h2d"), never("comm-bound")), faults.pinned, "input-bound",
    ),
    Class(
        "G10", "exposed pinned copy", _INPUT, leaf("input.h2d"), faults.pinned_copy,
        (owns("input.h2d"), never("comm-bound")), faults.copied_aside, "input-bound",
    ),
    Class(
        "G11", "allocator retries", _MEMORY, leaf("mem.alloc"), faults.allocator_retries,
        (owns("mem.alloc"), _alone), faults.without(memory=Memory()), "memory-bound",
    ),
    Class(
        "G12", "recompute", _MEMORY, leaf("mem.recompute"), faults.recomputed_nodes,
        (owns("mem.recompute"), _alone), faults.without(memory=Memory()), "memory-bound", high=0.20,
    ),
    Class(
        "G13", "exposed all-reduce, bandwidth", _COMM, leaf("comm.bw"), faults.slow_wire,
        (owns("comm.bw"), never("input-bound")), faults.no_comm, "comm-bound",
    ),
    Class(
        "G14", "latency-bound buckets", _COMM, leaf("comm.lat"), faults.small_buckets,
        (owns("comm.lat"), finds("CO005", "latency"), never("input-bound")), faults.no_comm, "comm-bound",
    ),
    Class(
        "G15", "no overlap", _COMM, leaf("comm.bw"), faults.no_overlap,
        (owns("comm.bw"), finds("CO002", "no-overlap"), never("input-bound")), faults.hidden_comm, "comm-bound",
    ),
    Class(
        "G16", "skew from an input-slow rank", _COMM, right.waiting, faults.late_by_input,
        _late_by_input, faults.without(late=Late()), "input-bound",
    ),
    Class(
        "G17", "skew from a throttled rank", _COMM, right.waiting, faults.late_by_clock,
        (*_late, right.names_cause("compute."), never("comm-bound", "input-bound")), faults.without(late=Late()),
    ),
    Class(
        "G18", "FSDP over-sharded", _COMM, leaf("comm.bw", "comm.lat"), faults.oversharded,
        (share_of("comm."), right.gathers_twice_the_scatters, finds("CO006"), never("input-bound")), faults.no_comm,
        "comm-bound",
    ),
    Class(
        "G19", "pipeline bubble", _COMM, leaf("comm."), faults.pipeline_bubble,
        (share_of("comm."), right.is_a_pipeline, finds("CO011"), never("input-bound", "comm-bound (bandwidth)")),
        low=0.06,
    ),
    Class(
        "G20", "NCCL slows compute", _COMM, by_rank(truth.contended_share), faults.contended_kernels,
        (share_of("compute.math"), share_of("comm."), never("input-bound")), faults.without_contention, high=0.20,
    ),
    Class(
        "G21", "compile in the window", _HOST, by_rank(truth.compiling_share), faults.recompiles,
        (right.compile_is_apart, _alone), faults.without(odd=Odd()), "overhead-bound",
    ),
    Class(
        "G22", "profiler overhead", _HOST, leaf("other.prof"), faults.profiler_overhead,
        (owns("other.prof"), _alone), faults.without(odd=Odd()),
    ),
    Class(
        "G23", "CUDA graph", _ODD, leaf("over.python"), faults.python_between_graphs,
        _python, faults.no_python, "overhead-bound",
    ),
    Class(
        "G24", "multi-stream compute", _ODD, leaf("compute.membw"), faults.second_stream,
        (share_of("compute.membw"), share_of("compute.math"), _alone),
    ),
    Class(
        "G25", "two GPUs in one trace", _ODD, leaf("over.python"), faults.second_device,
        (*_python, right.sums_to_one), faults.no_python, "overhead-bound",
    ),
    Class("G26", "empty GPU", _ODD, None, faults.no_device, (right.nothing_ran,)),
    Class(
        "G27", "truncated capture", _ODD, leaf("over.python"), faults.truncated_capture,
        _python, faults.no_python, "overhead-bound",
    ),
    Class(
        "G28", "clock skew between ranks, 5 ms", _ODD, right.waiting, faults.late_with_skewed_clocks,
        _late_by_input, faults.without(late=Late()), "input-bound",
    ),
)  # fmt: skip

BY_CODE = {entry.code: entry for entry in CLASSES}
