"""What the training process does on the host besides issuing work: collections, Python, compilations, threads."""

from dataclasses import dataclass

from profilerkit.model.finding import Source


@dataclass(frozen=True, slots=True)
class CollectionFacts:
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


@dataclass(frozen=True, slots=True)
class HotLine:
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


@dataclass(frozen=True, slots=True)
class PythonFacts:
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


@dataclass(frozen=True, slots=True)
class CompileFacts:
    """What torch.compile did once the steps had settled.

    Attributes:
        share: of the time of the judged steps, and of those among them that were left out because they compile.
        steps: steps that compile.
        of: how many steps these are among.
        regions: compiled regions that ran or were compiled; ``None`` where no name told.
        recompiled: regions that were compiled more than once, as torch numbers them, at most five.
        source: measured by the timers, or derived from a trace.
    """

    share: float
    steps: int
    of: int
    regions: int | None
    recompiled: tuple[str, ...]
    source: Source


@dataclass(frozen=True, slots=True)
class HostFacts:
    """Each is ``None`` where the recording does not tell.

    Attributes:
        collections: garbage collections; all zero where they were watched and none took 50 µs.
        python: ``None`` where the trace shows no long stretch.
        compiles: ``None`` where nothing is known to be compiled.
        threads: intra-op threads of torch in the training process.
        between_ratio: share of the Python between operators in gaps below 1 ms; 0 without a trace.
    """

    collections: CollectionFacts | None = None
    python: PythonFacts | None = None
    compiles: CompileFacts | None = None
    threads: int | None = None
    between_ratio: float = 0.0
