"""The parameters of a simulated training job. Defaults mean: nothing is wrong.

A cause is injected by changing a field, and removed by setting it back: simulating again gives the true saving.
"""

from dataclasses import dataclass, field

from simulator.kernels import A100, Chip

US = 1_000
MS = 1_000_000


@dataclass(frozen=True)
class Model:
    """A transformer: ``layers`` blocks of width ``hidden`` over ``tokens`` tokens.

    Attributes:
        lean: a layer is two linear maps and nothing else.
        gathers: embedding look-ups of ``gather_rows`` rows in every layer.
        head_rows: rows that go through a last linear map to a vocabulary of ``vocabulary`` words.
    """

    layers: int = 1
    hidden: int = 2048
    tokens: int = 8192
    fp32: bool = False
    tf32: bool = False
    attention: bool = True
    lean: bool = False
    gathers: int = 0
    gather_rows: int = 0
    head_rows: int = 0
    vocabulary: int = 50_257


@dataclass(frozen=True)
class Host:
    """What the host needs, µs: per operator, between operators, per launch call, and how it hears of the device.

    Attributes:
        latency_us: from the return of a launch call to the kernel's start on an idle stream.
        readback: the loss is read at the end of every step.
        queue: kernels that can be issued ahead of the device.
        python_us: the user's own Python at the start of every step.
    """

    operator_us: float = 9.0
    between_us: float = 3.0
    launch_us: float = 4.5
    latency_us: float = 2.5
    wake_us: float = 5.0
    jitter_ratio: float = 0.01
    readback: bool = True
    queue: int = 400
    python_us: float = 0.0


@dataclass(frozen=True)
class Data:
    """The batch: how it is made, and how it gets to the device.

    Attributes:
        fetch_us: how long the loop takes to get a batch that is ready.
        workers: worker processes; each makes one batch after the other, ``produce_us`` each. Without any the loop
            makes them itself.
        prefetch: batches that each worker may be ahead.
    """

    fetch_us: float = 90.0
    workers: int = 4
    prefetch: int = 2
    produce_us: float = 0.0
    bytes: int = 131_072
    gb_per_s: float = 22.0
    pinned: bool = True
    own_stream: bool = False


@dataclass(frozen=True)
class Tiny:
    """Operators on tensors of a few kilobytes at the start of the forward pass, issued one by one.

    Attributes:
        reads: how many of them read a value back to the host.
    """

    count: int = 0
    operator_us: float = 25.0
    kernel_us: float = 4.0
    reads: int = 0


@dataclass(frozen=True)
class Reads:
    """Values read back in the middle of the step; afterwards the host works for ``after_us`` before the next launch.

    With ``kept`` they stay on the device, and the host does its work without them.
    """

    count: int = 0
    after_us: float = 0.0
    kept: bool = False


@dataclass(frozen=True)
class Extra:
    """Kernels beside the model: pointwise chains, bursts of small ones, a second stream, a second device."""

    chain: int = 0
    chain_us: float = 0.0
    small: int = 0
    small_us: float = 0.0
    side: int = 0
    side_us: float = 0.0
    second_device_ratio: float = 0.0


@dataclass(frozen=True)
class Memory:
    """The allocator: retries per step, µs each; which nodes of a layer are recomputed; bytes in use and reserved."""

    retries: int = 0
    free_us: float = 0.0
    malloc_us: float = 0.0
    recomputed: tuple[int, ...] = ()
    reentrant: bool = False
    allocated_bytes: int = 30 << 30
    reserved_bytes: int = 36 << 30


@dataclass(frozen=True)
class Comm:
    """Communication of several ranks.

    Attributes:
        kind: ``ddp``, ``fsdp``, ``pipeline``, or empty for one rank alone.
        buckets: collectives per layer.
        bytes: of each; of FSDP the whole layer.
        bus_gb_per_s: bus bandwidth (nccl-tests), ``latency_us`` the floor of every transfer.
        overlapped: starts during backward.
        slow_ratio: how much slower kernels run beside a collective.
        microbatches: of the pipeline.
    """

    kind: str = ""
    ranks: int = 1
    buckets: int = 4
    bytes: int = 25 << 20
    bus_gb_per_s: float = 180.0
    latency_us: float = 25.0
    overlapped: bool = True
    slow_ratio: float = 1.0
    microbatches: int = 4


@dataclass(frozen=True)
class Late:
    """One rank that is late: its workers take longer for a batch, or its device is slower."""

    rank: int = -1
    produce_us: float = 0.0
    slow_ratio: float = 1.0


@dataclass(frozen=True)
class Odd:
    """What happens beside training: compilation in some steps, the profiler's own work, a CUDA graph.

    Attributes:
        captured: the Python and the operators of the step are in the graph as well: nothing of them runs again.
        checkpoint_every: steps between two checkpoints of ``checkpoint_us``; 0 for none.
    """

    compile_steps: tuple[int, ...] = ()
    compile_us: float = 0.0
    overhead_us: float = 0.0
    overhead_events: int = 2
    graph: bool = False
    captured: bool = False
    checkpoint_every: int = 0
    checkpoint_us: float = 0.0


@dataclass(frozen=True)
class Recording:
    """What the profiler was told to record, and what of it got lost.

    Attributes:
        offsets_ns: of each rank's clock.
        lost_launches: share of runtime calls that are missing.
        cut_start: capture begins in the middle of a step, so that kernels without launches come first.
        lost_streams: streams of which no event was recorded: what waited for them has no reason to.
        devices: entries of ``deviceProperties``.
        has_device: device events are there at all; ``has_launches`` the same for runtime calls.
        annotations: annotations are repeated on the rows of the device.
        window_ns: from when to when was recorded; ``None`` for from just before the first mark to the end. What was
            queued before and runs in the window is there without its launch.
    """

    sync_rows: bool = False
    stacks: bool = False
    flows: bool = False
    instants: bool = False
    shapes: bool = True
    metadata: str = "full"
    offsets_ns: tuple[int, ...] = ()
    lost_launches: float = 0.0
    cut_start: bool = False
    lost_streams: tuple[int, ...] = ()
    devices: int = 1
    has_device: bool = True
    has_launches: bool = True
    annotations: bool = True
    window_ns: tuple[int, int] | None = None


@dataclass(frozen=True)
class Job:
    """One simulated run. ``warmup`` of the recorded ``steps`` are slow, ``before`` come before the recording.

    ``faster`` is how many times faster all kernels run than they should by their roofs.
    """

    seed: int
    chip: Chip = A100
    steps: int = 12
    warmup: int = 0
    before: int = 2
    reached: dict[str, float] = field(default_factory=dict)
    model: Model = field(default_factory=Model)
    host: Host = field(default_factory=Host)
    data: Data = field(default_factory=Data)
    tiny: Tiny = field(default_factory=Tiny)
    reads: Reads = field(default_factory=Reads)
    extra: Extra = field(default_factory=Extra)
    memory: Memory = field(default_factory=Memory)
    comm: Comm = field(default_factory=Comm)
    late: Late = field(default_factory=Late)
    odd: Odd = field(default_factory=Odd)
    recording: Recording = field(default_factory=Recording)
    faster: float = 1.0
