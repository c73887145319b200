"""What the training process does on the host besides issuing work: collections, Python, compilations, threads."""

import msgspec

from profilerkit.analysis.kernel_losses.records import DenseTables
from profilerkit.model.finding import Source
from profilerkit.trace.classify import Phase


class CollectionFacts(msgspec.Struct, frozen=True):
    """Garbage collections in the judged steps, on any thread: each holds the interpreter.

    Attributes:
        per_step: collections.
        pause_ns: of one, mean.
        longest_ns: the longest.
        full: of all, those of the oldest generation.
    """

    per_step: float
    pause_ns: float
    longest_ns: int
    full: int


class HotLine(msgspec.Struct, frozen=True):
    """The innermost function that holds much of a place, and its line with most looks.

    Attributes:
        frames: ``file.py(12): function`` of its callers in that place and itself, outer first, at most four. Hostile.
        share: of the looks in that place that found it there: in the line where that holds enough, else the function.
        low: lower end of the 95 % interval of the share.
        high: upper end.
        looks: at the place.
    """

    frames: tuple[str, ...]
    share: float
    low: float
    high: float
    looks: int


class PythonFacts(msgspec.Struct, frozen=True):
    """Stretches of Python longer than 1 ms in the judged steps of a trace, in which no operator runs.

    Attributes:
        per_step: stretches.
        longest_ns: start and end of the longest, on the trace's clock.
        frames: the innermost frames that hold most of them, outer first; empty without stacks. Hostile text.
        frames_ratio: share of the stretches in the innermost of them; ``None`` without.
    """

    per_step: float
    longest_ns: tuple[int, int]
    frames: tuple[str, ...] = ()
    frames_ratio: float | None = None


class CompileFacts(msgspec.Struct, frozen=True):
    """What torch.compile did once the steps had settled.

    Attributes:
        share: of the time of the judged steps, and of those among them that were left out because they compile.
        longer: of that time, what the steps that compile take beyond the typical one that does not: compiled code runs
            slowly at first. ``share`` where fewer than three do not compile.
        steps: steps that compile.
        of: how many steps these are among.
        regions: compiled regions that ran or were compiled; ``None`` where no name told.
        recompiled: regions that were compiled more than once, as torch numbers them, at most five.
        guards: that failed and made torch compile again, as torch words them, each once however its numbers differ,
            most often first; empty where nothing tells. Hostile text.
        source: measured by the timers, or derived from a trace.
    """

    share: float
    longer: float
    steps: int
    of: int
    regions: int | None
    recompiled: tuple[str, ...]
    source: Source
    guards: tuple[str, ...] = ()


class HeldFacts(msgspec.Struct, frozen=True):
    """What holds part of the steps of a run without a device.

    Attributes:
        place: ``hook`` of gradients, ``optimizer``, ``read`` of values, ``fetch`` for what computes while the loop gets
            a batch, or the pass in which an operator runs: ``forward``, which is all beside it, or ``backward``.
        operator: the one with most time there; of an optimizer its class. Hostile text.
        per_step: how often a step calls it; of an optimizer all its operators.
        share: of the step that the place takes, Python included; of a pass what the operator takes.
        operator_share: of the step that the operator itself takes.
        line: the line of the user's that calls it, as the profiler names it; ``None`` without stacks.
        time_ns: the same of the median traced step, ns, without what recording it took; 0 for what fewer steps hold.
        style: how an optimizer goes over its tensors: ``single``, ``foreach`` or ``fused``; ``None`` for the others.
    """

    place: str
    operator: str
    per_step: float
    share: float
    operator_share: float
    line: str | None = None
    time_ns: float = 0.0
    style: str | None = None


class RecordingFacts(msgspec.Struct, frozen=True):
    """Time that recording took of the host in the mean judged step, at least, from the events in the trace.

    Attributes:
        options: of the recorder, those that slow the host noticeably, or by what no event tells, as they are called.
        events: operators, Python calls and allocations that were recorded of it.
        waited_ns: to record those in which the device waited for the host.
        hidden_ns: to record the others.
    """

    options: tuple[str, ...]
    events: float
    waited_ns: float
    hidden_ns: float


class PhaseFacts(msgspec.Struct, frozen=True):
    """A phase of the step that torch or the program itself marks, and how long the device waits for the host in it.

    ``idle_ns`` is of the mean judged step.
    """

    name: Phase
    idle_ns: float


class HostFacts(msgspec.Struct, frozen=True):
    """Each is ``None`` where the recording does not tell.

    Attributes:
        collections: garbage collections; all zero where they were watched and none took 50 µs.
        python: ``None`` where the trace shows no long stretch.
        compiles: ``None`` where nothing is known to be compiled.
        threads: intra-op threads of torch in the training process.
        recording: what it costs the host; ``None`` without a steady step of a trace.
        phases: those of the step that are marked in a trace; empty without any.
        switches: of those made for debugging the ones that were on, as ``NAME`` or ``NAME=value``.
        held: what holds the steps of a run without a device, largest first; ``None`` without such a trace.
        tables: those of a run without a device; ``None`` as in ``KernelLosses``.
        between_ratio: share of the Python between operators in gaps below 1 ms; 0 without a trace.
    """

    collections: CollectionFacts | None = None
    python: PythonFacts | None = None
    compiles: CompileFacts | None = None
    threads: int | None = None
    recording: RecordingFacts | None = None
    phases: tuple[PhaseFacts, ...] = ()
    switches: tuple[str, ...] | None = None
    held: tuple[HeldFacts, ...] | None = None
    tables: DenseTables | None = None
    between_ratio: float = 0.0
