"""What the collectives of a rank are made of and what they cost beside themselves: the records rules read.

Times are ns per steady step on the trace's own clock, waiting for other ranks left out where it is known. ``None``
means that the trace cannot say.
"""

from typing import Literal

import msgspec

from profilerkit.analysis.intervals import Spans
from profilerkit.model.communication import ParallelName

# Times are ns per steady step on the trace's own clock, waiting for other ranks left out where it is known. ``None``
# means that the trace cannot say.

#: Size of one collective: below 1 MB the link's latency rules, from 64 MB on its bandwidth.
SizeClass = Literal["small", "middle", "large"]


class Traffic(msgspec.Struct, frozen=True):
    """Collectives of one kind, process group, type and size class.

    Attributes:
        kind: as in ``Collective.kind``.
        dimension: what of the job the process group divides, as its description says; ``None`` where it says nothing.
        dtype: element type in torch's words; ``None`` where unknown.
        group_size: members of the group.
        size: class by bytes; ``None`` where the bytes are unknown.
        per_step: how many.
        bytes_per_step: of all of them, by nccl-tests' convention.
        transfer_ns: when any of them ran.
        exposed_ns: of that, when nothing hid it.
        median_ns: of one of them.
        bus_bytes_per_s: by what a link carries; ``None`` where waiting is in the time as well.
    """

    kind: str
    dimension: ParallelName | None
    dtype: str | None
    group_size: int | None
    size: SizeClass | None
    per_step: float
    bytes_per_step: float | None
    transfer_ns: float
    exposed_ns: float
    median_ns: float
    bus_bytes_per_s: float | None = None


class Accumulation(msgspec.Struct, frozen=True):
    """Steps of several backward passes, each of which reduces its gradients.

    Attributes:
        passes: backward passes per step, or per optimizer step.
        reductions: collectives that reduce gradients in each of them.
        early_ns: transfer per step of those in all passes but the last.
        early_exposed_ns: of that, when nothing hid it.
        transfer_ns: transfer of all of them.
        groups: the optimizer steps, where each has a step for each of its passes; else ``None``.
    """

    passes: int
    reductions: int
    early_ns: float
    early_exposed_ns: float
    transfer_ns: float
    groups: Spans | None = None


class ReducerWork(msgspec.Struct, frozen=True):
    """What DistributedDataParallel's reducer does beside reducing, by its own events.

    Attributes:
        searches: searches of the graph for parameters without a gradient, per step.
        search_ns: time of these in which the device, where there is one, has nothing to do.
        copies: gradients copied from a bucket back to where the optimizer finds them, per step.
        copy_ns: time of these copies.
        fill_ns: time in which gradients were brought into buckets, divided by the number of ranks.
    """

    searches: float
    search_ns: float
    copies: float
    copy_ns: float
    fill_ns: float = 0.0


class Engine(msgspec.Struct, frozen=True):
    """An engine of parallel training that devices have a better one for.

    Attributes:
        name: ``DataParallel``, or ``gloo`` where it reduces what lies on devices.
        exposed_ns: time of its transfers in which the device computes nothing.
    """

    name: Literal["DataParallel", "gloo"]
    exposed_ns: float


class Contention(msgspec.Struct, frozen=True):
    """Kernels of one name and shape, beside a collective and alone.

    Attributes:
        groups: names with shapes that were seen in both places.
        kernels: calls beside collectives that could be compared.
        usual_ns: what these would take alone.
        excess_ns: what they took beyond that.
        beside_ns: time of all kernels beside collectives, those that could not be compared among them.
    """

    groups: int
    kernels: int
    usual_ns: float
    excess_ns: float
    beside_ns: float


class CollectiveWork(msgspec.Struct, frozen=True):
    """What a trace tells of its communication beyond its totals.

    Attributes:
        step_ns: mean traced steady step.
        traffic: most transfer time first; empty without collectives.
        exposed_ns: exposed communication that is not known to be waiting.
        transfer_ns: when any collective ran.
        backward_alone_ns: computing of the backward pass beside no collective; ``None`` where no backward pass shows.
        floor_ns: how long a transfer of next to nothing takes in this run; ``None`` where ranks were not matched.
        accumulation: ``None`` where a step has one backward pass, or its passes reduce different things.
        passes: backward passes in the median step; ``None`` where none shows.
        reducer: ``None`` where no event of DistributedDataParallel's reducer was seen.
        engine: ``None`` without such an engine.
        contention: ``None`` where no kernel was seen both beside a collective and alone, with shapes.
        before_backward_ratio: share of the reductions that were started before their step's first backward pass, and
            hold activations therefore.
        second_gathers_ns: transfer of the later half of each step's all-gathers.
        second_gathers_exposed_ns: of that, when nothing hid it.
        under_input_ns: transfers that run while the host waits for data, and would be waited for without that. 0 on a
            device, whose own wait is counted.
        burst_ns: bursts of tiny collectives on the host beyond the first of each, with the calls and waits in them.
    """

    step_ns: float
    traffic: tuple[Traffic, ...] = ()
    exposed_ns: float = 0.0
    transfer_ns: float = 0.0
    backward_alone_ns: float | None = None
    floor_ns: int | None = None
    accumulation: Accumulation | None = None
    passes: int | None = None
    reducer: ReducerWork | None = None
    engine: Engine | None = None
    contention: Contention | None = None
    before_backward_ratio: float = 0.0
    second_gathers_ns: float = 0.0
    second_gathers_exposed_ns: float = 0.0
    under_input_ns: float = 0.0
    burst_ns: float = 0.0
