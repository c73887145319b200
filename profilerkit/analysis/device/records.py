"""What a trace says of its device, in a few numbers each. ``None`` means not measured."""

import msgspec

#: Share of the launched work that a damaged file may lack. Each kernel is a gap that looks like idle time: a trace of
#: eight ranks' training without 4 % of them turned from bound by communication to bound by the host.
MOST_LOST = 0.02
#: First-use work of this share of the window is what was recorded; below it what is beside can still be named.
MOST_OF_A_WINDOW = 0.5


class LaunchFacts(msgspec.Struct, frozen=True):
    """How the device's events are joined to the calls that launched them, over the whole trace.

    Attributes:
        events: kernels, copies and memsets.
        unlinked: of these, without a launch call in the trace; they count in full, what they waited for is less sure.
        in_graphs: of these, launched by a graph.
        graph_launches: calls that launched a graph.
        lost_ratio: share of the launched work of the judged steps that is not in the trace: calls without their kernel,
            or math operators without a runtime call, whichever is more (0 on all whole CUDA and HIP traces tried);
            ``None`` for a file that is whole.
    """

    events: int
    unlinked: int
    in_graphs: int
    graph_launches: int
    lost_ratio: float | None = None

    @property
    def lost_much(self) -> bool:
        """Whether so much is lost that idle time cannot be told from lost work."""
        return self.lost_ratio is not None and self.lost_ratio >= MOST_LOST


class DeviceFacts(msgspec.Struct, frozen=True):
    """What ran on the device, per steady step.

    Attributes:
        name: ``None`` when the trace does not say.
        kernels_per_step: count.
        median_kernel_ns: duration.
        busy_ratio: time in which any event ran.
        queue_empty_ratio: share of kernels that started with nothing queued ahead of them; ``None`` without launches.
        between_ratio: share of the idle Python time that lies in short gaps between operators, not in longer stretches.
        late_launch_ratio: share of the launch latency that lies in gaps longer than 1 ms, which no launch takes.
    """

    name: str | None
    kernels_per_step: float
    median_kernel_ns: float
    busy_ratio: float
    queue_empty_ratio: float | None
    between_ratio: float
    late_launch_ratio: float = 0.0


class CopyFacts(msgspec.Struct, frozen=True):
    """Copies of batches to the device, at least 64 KiB each, per steady step.

    ``exposed_ns`` is the time in which the device ran nothing else, the host's part of the copies included;
    ``in_line_ratio`` the share of their time on the stream that computes.
    """

    per_step: float
    bytes_per_step: float
    time_ns: float
    exposed_ns: float
    in_line_ratio: float = 1.0

    @property
    def bytes_per_s(self) -> float:
        """Achieved rate."""
        return self.bytes_per_step / (self.time_ns * 1e-9) if self.time_ns else 0.0


class SyncFacts(msgspec.Struct, frozen=True):
    """Blocking calls per steady step: how many, how long the host waited in them, which names how often.

    ``awaited_ratio`` is the share of the exposed time of copies to the host in those that the host waited for in their
    own call; 0.0 without any. ``idle_after_ns`` is how long the device stood still once the calls had returned,
    whatever the host did then: without the call it would have done that while the device worked.
    """

    per_step: float
    blocked_ns: float
    culprits: tuple[tuple[str, int], ...]
    awaited_ratio: float
    idle_after_ns: float = 0.0


class AllocatorFacts(msgspec.Struct, frozen=True):
    """cudaMalloc / cudaFree and their kin, per steady step."""

    calls_per_step: float


class WideMath(msgspec.Struct, frozen=True):
    """Math of 32 bits on matrix units: ``3xtf32`` or ``tf32``, and how much of its share is of known shapes."""

    type: str
    share: float
    priced_share: float


class MathFacts(msgspec.Struct, frozen=True):
    """Matrix, convolution and attention kernels: time shares of the steady step by what names and arguments tell.

    ``fp32_share`` is FP32 on the vector units, ``wide`` what else computes in 32 bits, ``narrow_share`` what does in 16
    or fewer. ``priced_share`` is that of the FP32 kernels whose shapes are known, ``floor_share`` what the faster type
    would leave of these and of the priced ``wide`` ones at the rates that real kernels reach: never less than their
    bytes take. ``fastest_share`` is the same at the very peaks of arithmetic and memory. ``compute_major`` is ``None``
    also for an unknown device of AMD, where it says nothing of the units.
    """

    fp32_share: float
    tensor_core_share: float
    compute_major: int | None
    example: str | None
    priced_share: float = 0.0
    floor_share: float = 0.0
    fastest_share: float = 0.0
    wide: tuple[WideMath, ...] = ()
    narrow_share: float = 0.0

    @property
    def is_mostly_vector(self) -> bool:
        """Whether FP32 on the vector units takes more time than the matrix units do."""
        return self.fp32_share > self.tensor_core_share

    @property
    def wide_share(self) -> float:
        """Share of the step that computes in 32 bits."""
        return self.fp32_share + sum(found.share for found in self.wide)


class ChainFacts(msgspec.Struct, frozen=True):
    """Chains of at least three fusible kernels in a row on one stream, those of the optimizer left out.

    ``mean_length`` is weighted by their time: what fusion saves of a chain grows with its length.
    ``memory_ratio`` is the rate of their compulsory traffic / the device's memory bandwidth, over those whose traffic
    is known; ``None`` where that is less than half of their time.
    """

    share: float
    chains_per_step: float
    mean_length: float
    example: tuple[str, ...]
    memory_ratio: float | None = None


class ColdFacts(msgspec.Struct, frozen=True):
    """First-use work in a short window.

    ``share`` of the window is idle under such calls and captures of graphs, ``capture_share`` under the latter;
    ``calls`` are the names with most of that, and their time, ns.
    """

    share: float
    calls: tuple[tuple[str, int], ...]
    capture_share: float = 0.0

    @property
    def dominates(self) -> bool:
        """Whether most of the window is first-use work, so that the rest says nothing of later steps."""
        return self.share >= MOST_OF_A_WINDOW
