"""The Report: everything a renderer may know, and its JSON schema."""

from typing import Literal

import msgspec

from profilerkit.model.communication import Communication, Crowd
from profilerkit.model.events import MedianStep
from profilerkit.model.finding import Finding, Outcome, Source, in_order
from profilerkit.model.ledger import Cost, Ledger
from profilerkit.model.memory import Memory, MemorySnapshot, OutOfMemory
from profilerkit.model.run import Run, Trust, Workers
from profilerkit.model.step import JobSteps, Part, Rank, RankSteps, Steps, StepTimes
from profilerkit.model.verdict import Verdict, Waterfall

SCHEMA_VERSION = 1
MOST_KERNELS = 20  #: names that ``Report.kernels`` holds at most, those with the largest total time


class Kernel(msgspec.Struct, frozen=True, kw_only=True):
    """A kernel (or, on a CPU-only run, an operator) summed over the steady window.

    Operators count with their own time, without what is nested in them. ``None`` means not known.

    Attributes:
        kind: math, membw, comm or other: what most of its time is bound by.
        share: total time / steady time; may overlap with other streams.
        kind_source: derived from shapes and the device's peaks, or estimated from the name.
        priced_ns: time of the calls whose arithmetic and traffic follow from recorded shapes.
        flops: of those calls; a multiply and an add count two. ``None`` for what does not compute in this sense.
        bytes: of those calls: every input read once, every output written once.
        efficiency: the time those calls would take at the rates real kernels reach / ``priced_ns``, 0 to 1.
        precision: short name of the type most of the time is computed in; tf32 for FP32 on matrix units.
        tensor_core: runs on matrix units, as its name says; ``None`` for what computes nothing.
        line: the innermost line of Python outside torch around that call.
    """

    name: str
    kind: str
    count: int
    total_ns: int
    median_ns: int
    share: float
    kind_source: Source | None = None
    priced_ns: int | None = None
    flops: int | None = None
    bytes: int | None = None
    efficiency: float | None = None
    precision: str | None = None
    tensor_core: bool | None = None
    operator: str | None = None
    module: str | None = None
    line: str | None = None
    per_step_ns: float | None = None


class Compute(msgspec.Struct, frozen=True, kw_only=True):
    """What the compute kernels of the steady window do, derived. ``None`` means not known.

    Attributes:
        by_shape_ratio: share of the kernel time whose bound follows from shapes and peaks; names tell the rest.
        efficiency: the least time the shapes of those kernels allow on this device / the time they took, 0 to 1.
        priced_ratio: share of the time of math kernels whose FLOPs follow from shapes.
        beyond_ratio: share of the kernel time that ran faster than the peaks allow: from a cache, by an algorithm
            that saves arithmetic, or priced wrongly. It counts as fully efficient.
        tensor_core_ratio: share of the math kernels' time on matrix units, as names tell.
        peaks_flops_per_s: dense peaks of the device by type, as far as its specification gives them.
        mfu: FLOPs without recomputation / (step time × peak); only where nearly all math kernels are priced.
    """

    spec: str | None = None
    by_shape_ratio: float | None = None
    efficiency: float | None = None
    priced_ratio: float | None = None
    beyond_ratio: float | None = None
    small_ratio: float | None = None
    tensor_core_ratio: float | None = None
    flops_per_step: float | None = None
    recomputed_flops_per_step: float | None = None
    precision: str | None = None
    peak_flops_per_s: float | None = None
    peaks_flops_per_s: dict[str, float] = {}
    peak_bytes_per_s: float | None = None
    mfu: float | None = None
    hfu: float | None = None


class HostCopy(msgspec.Struct, frozen=True, kw_only=True):
    """Copies between host and device of one kind in the steady window, against the host link and never device memory.

    Attributes:
        bytes_per_s: rate of the copies of at least 64 KiB; smaller ones are bound by latency. ``None`` without any.
        link_ratio: that rate / the peak of the link; ``None`` for an unknown device.
    """

    direction: Literal["to device", "to host"]
    memory: Literal["pageable", "pinned"] | None
    per_step: float
    bytes_per_step: float | None
    time_ns: float
    bytes_per_s: float | None = None
    link_ratio: float | None = None


class Collective(msgspec.Struct, frozen=True, kw_only=True):
    """Collectives of one name and group, summed over the steady window. ``None`` means not recorded.

    Attributes:
        exposed_ns: when no compute kernel ran beside them.
        kind: all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, reduce, gather, scatter, send_recv, barrier
            or unknown.
        bytes_source: measured where the metadata says the bytes, derived where the operator's shapes do.
        matched: how many could be matched with the same collective of other ranks; ``None`` if none could.
        wait_ns: of ``total_ns``, waiting for the last rank to arrive; ``None`` unless all were, with all members.
        transfer_ns: the rest of ``total_ns``; ``None`` likewise.
        algorithm_bytes_per_s: bytes / time, over the transfers where ranks were matched, else over ``total_ns``, which
            makes it a lower bound.
        bus_bytes_per_s: the same by what a link carries (nccl-tests' factors by kind and group size).
        link_ratio: bus bandwidth / peak of the device's link; ``None`` where either is not known.
        link_bytes_per_s: that peak; ``None`` where it is not known, or the group also uses the network.
        bandwidth_is_bound: whether the bandwidths, and the ratio, are lower bounds: their time holds waiting.
    """

    name: str
    count: int
    total_ns: int
    exposed_ns: int
    bytes: int | None = None
    dtype: str | None = None
    group_size: int | None = None
    kind: str = "unknown"
    bytes_source: Source | None = None
    matched: int | None = None
    wait_ns: int | None = None
    transfer_ns: int | None = None
    algorithm_bytes_per_s: float | None = None
    bus_bytes_per_s: float | None = None
    link_ratio: float | None = None
    link_bytes_per_s: float | None = None
    bandwidth_is_bound: bool = False


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Hold the result of an analysis. ``None`` anywhere below means not measured, never zero."""

    schema_version: int = SCHEMA_VERSION
    verdict: Verdict
    steps: Steps
    breakdown: tuple[Part, ...]
    ranks: tuple[Rank, ...]
    outcomes: tuple[Outcome, ...]
    kernels: tuple[Kernel, ...]
    collectives: tuple[Collective, ...]
    memory: Memory
    trust: Trust
    run: Run
    compute: Compute | None = None
    copies: tuple[HostCopy, ...] = ()
    communication: Communication | None = None
    workers: Workers | None = None
    ledger: Ledger | None = None
    oom: OutOfMemory | None = None
    snapshots: tuple[MemorySnapshot, ...] = ()
    waterfall: Waterfall | None = None
    cost: Cost | None = None
    median_step: MedianStep | None = None
    crowd: Crowd | None = None
    rank_steps: RankSteps | None = None
    job_steps: JobSteps | None = None

    @property
    def step_times(self) -> StepTimes | None:
        """Return the times of a steady step: over all ranks where several were recorded; ``None`` without steps."""
        return self.job_steps.time_ns if self.job_steps else self.steps.time_ns

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Return all findings, largest expected saving first."""
        return tuple(finding for _, finding in in_order(self.outcomes))

    def __repr__(self) -> str:
        """Return the verdict in one line: ``<Report input-bound: Training waits …>``; the JSON has everything."""
        headline = "".join(char if char.isprintable() else "?" for char in self.verdict.headline)
        return f"<Report {self.verdict.bound}: {headline}>"
