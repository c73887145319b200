"""Where the time of a step goes: parts, steps, ranks."""

import re
from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from profilerkit.model.finding import Source

Family = Literal["input", "memory", "communication", "compute", "overhead", "other"]
StepState = Literal["steady", "warmup", "compile", "cut", "disturbed"]

#: Every part a step is partitioned into, its family, and its name: the one glossary of the whole package.
PARTS: dict[str, tuple[Family, str]] = {
    "input.fetch": ("input", "Input wait: reading"),
    "input.prep": ("input", "Input wait: preparing samples"),
    "input.wait": ("input", "Input wait"),
    "input.ipc": ("input", "Input wait: hand-over"),
    "input.h2d": ("input", "Copying the batch to the device"),
    "compute.math": ("compute", "Matrix and convolution math"),
    "compute.small": ("compute", "Small kernels, below 10 µs"),
    "compute.other": ("compute", "Other computation"),
    "compute.unsplit": ("compute", "Device at work, not split without a trace"),
    "compute.membw": ("memory", "Bandwidth-limited kernels"),
    "mem.alloc": ("memory", "Allocator calls"),
    "mem.recompute": ("memory", "Recomputing activations"),
    "mem.offload": ("memory", "Offload copies"),
    "comm.bw": ("communication", "Transfer at bandwidth"),
    "comm.lat": ("communication", "Transfer at the latency floor"),
    "comm.skew": ("communication", "Waiting for another rank"),
    "comm.other": ("communication", "Exposed communication"),
    "over.dispatch": ("overhead", "PyTorch call overhead"),
    "over.python": ("overhead", "Python between operators"),
    "over.launch": ("overhead", "Kernel launch"),
    "over.gc": ("overhead", "Garbage collection"),
    "sync.drain": ("overhead", "Host sync"),
    "sync.d2h": ("overhead", "Copying results to the host"),
    "other.ckpt": ("overhead", "Checkpoint"),
    "other.eval": ("overhead", "Evaluation"),
    "other.log": ("overhead", "Logging"),
    "other.phase": ("overhead", "Named phases"),
    "other.stall": ("overhead", "Unnamed periodic stalls"),
    "warm.compile": ("overhead", "Compiling inside the window"),
    "warm.load": ("other", "Loading modules at first use"),
    "other.queue": ("other", "Waiting for a processor"),
    "other.prof": ("other", "The profiler itself"),
    "idle.unknown": ("other", "Not explained"),
}
LEAVES: tuple[str, ...] = tuple(PARTS)
#: The parts in which the training thread waits for its batch; copying it to the device is another matter.
WAITS = ("input.fetch", "input.prep", "input.ipc", "input.wait")
#: The named parts in which the training stands still for something that is done once in a while; and all such parts.
NAMED_PAUSES = ("other.ckpt", "other.eval", "other.log", "other.phase")
PAUSES = (*NAMED_PAUSES, "other.stall")
#: The device's work of a step where no trace tells its kernels.
UNSPLIT = "compute.unsplit"
_INDEX = {leaf: index for index, leaf in enumerate(LEAVES)}

#: Time in the queue for a processor that other programs hold, whatever the thread was about to do.
QUEUE = "other.queue"
WHOLE_TRACE = "the whole trace"  #: what ``Steps.found_by`` says of a trace in which nothing marks steps
#: How texts name the steps that are judged: ``the step``, ``the mean step``, ``per step`` …
STEP_WORDS = ("the", "each", "every", "mean", "per")
_JUDGED = re.compile(rf"\b(?:the )?({'|'.join(STEP_WORDS)}) step\b", re.IGNORECASE)


def leaf(name: str) -> int:
    """The index of a part in ``LEAVES``."""
    return _INDEX[name]


def leaf_times(totals: Iterable[int]) -> dict[str, int]:
    """Leaf name to ns, without the empty ones."""
    return {LEAVES[index]: int(value) for index, value in enumerate(totals) if value}


def as_judged(text: str, found_by: str) -> str:
    """Return words about the step as words about the recording, where nothing in it marks a step.

    >>> as_judged("12 calls per step, 3 % of the step, in each step", WHOLE_TRACE)
    '12 calls in the recording, 3 % of the recording, in the recording'
    """
    if found_by != WHOLE_TRACE:
        return text
    return _JUDGED.sub(_as_recording, text)


def _as_recording(found: re.Match[str]) -> str:
    words = "in the recording" if found[1].lower() == "per" else "the recording"
    return words[:1].upper() + words[1:] if found[0][0].isupper() else words


def within(label: str) -> str:
    """Return a label as it reads within a sentence; names of products keep their capital.

    >>> within("Kernel launch"), within("PyTorch call overhead")
    ('kernel launch', 'PyTorch call overhead')
    """
    return label if label.startswith("Py") else f"{label[:1].lower()}{label[1:]}"


def family_of(part: str) -> Family:
    """Return the family of a part; one that this version does not know, of a newer report, counts as other."""
    return PARTS[part][0] if part in PARTS else "other"


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """One class of time in the steady window. The parts of a rank sum to its steady time.

    Attributes:
        time_ns: mean time per steady step, int64 ns.
        share: part / steady step time, 0 to 1. A share is not a saving.
    """

    part: str
    family: Family
    time_ns: int
    share: float
    source: Source


def taken_share(parts: Sequence[Part]) -> float:
    """Share of the step in the queue for processors that other programs hold: no fix of the program takes it off."""
    return sum(part.share for part in parts if part.part == QUEUE)


def own_ratio(parts: Sequence[Part]) -> float:
    """The rest of the step: what verdicts, savings and budgets are about."""
    return 1.0 - taken_share(parts)


class StepTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Steady step time, ns. ``p10``, ``p90`` and ``cv_ratio`` are ``None`` for a single step.

    ``p99`` is ``None`` below 100 steps, where it is no more than the largest value; ``cv_ratio`` is the standard
    deviation over the mean.
    """

    median: int
    mean: int
    p10: int | None = None
    p90: int | None = None
    p99: int | None = None
    cv_ratio: float | None = None


class SlowSteps(msgspec.Struct, frozen=True, kw_only=True):
    """The steady steps that are much longer than the median one, and what grew in them.

    Attributes:
        share: the excess of all of them / steady time.
        part: the part that grew most; ``None`` when none holds most of the excess, or the time was not split.
        part_excess_ns: how much that part grew, mean.
        period: the steps from one to the next, where long steps recur and most slow ones are among them.
        ratio: they are longer than this multiple of the median: 1.3, or 3 where few steps above that hold most of what
            the longer ones take beyond the others.
    """

    count: int
    excess_ns: int
    share: float
    part: str | None = None
    part_excess_ns: int | None = None
    coverage: float | None = None
    period: int | None = None
    first: int
    last: int
    ratio: float = 1.3


class StepRow(msgspec.Struct, frozen=True, kw_only=True):
    """One step of the judged rank.

    Attributes:
        state: why it is in or out of the steady window.
        parts: part name to ns; empty where only the length is known.
        queued_ns: time in which the training thread waited for a processor, derived from samples of each second;
            ``None`` where the kernel did not count it, and in a trace.
    """

    index: int
    start_ns: int
    time_ns: int
    state: StepState
    parts: dict[str, int] = {}
    queued_ns: int | None = None


class Warmup(msgspec.Struct, frozen=True, kw_only=True):
    """What the first steps cost, which are not judged.

    Attributes:
        cause: what most of that was, in words; ``None`` when they were no longer, or it is not known.
    """

    steps: int
    time_ns: int
    excess_ns: int
    cause: str | None = None


class Stretches(msgspec.Struct, frozen=True, kw_only=True):
    """Sums over stretches of consecutive steady steps, which hold what thinned rows leave out.

    All stretches have the same length; the first steady steps, too few for one more stretch, are in none.

    Attributes:
        steps: steady steps in each.
        queued_ns: of each, as in ``StepRow``; ``None`` where a step of it does not tell.
    """

    steps: int
    time_ns: tuple[int, ...]
    queued_ns: tuple[int | None, ...]


class Steps(msgspec.Struct, frozen=True, kw_only=True):
    """The steps that were found and the ones that are judged.

    Attributes:
        found_by: what marks a step, for example ``ProfilerStep`` or ``wrapped loader``.
        inferred: the marker was not given by the user.
        rows: at most 2,000 steps, evenly thinned when there are more; ``thinned`` says so.
        slow: ``None`` when no steady step is slow, or too few are there to compare.
        stretches: all steady steps in sums, where ``rows`` are thinned.
        queued_ratio: share of the judged steps' time in which the training thread was ready and waited for a processor;
            ``None`` where that was not sampled in at least half of it.
        ahead_ns: how much later than the host the device ends a judged step: at least the median by the device's clock,
            in a trace the most. Derived; the times are the device's then. ``None`` where nothing shows it.
    """

    count: int
    steady: int
    dropped: dict[str, int]
    found_by: str
    inferred: bool
    time_ns: StepTimes | None
    warmup: Warmup | None = None
    rows: tuple[StepRow, ...] = ()
    thinned: bool = False
    slow: SlowSteps | None = None
    stretches: Stretches | None = None
    queued_ratio: float | None = None
    ahead_ns: int | None = None


class JobSteps(msgspec.Struct, frozen=True, kw_only=True):
    """The judged rank's steady steps, each as its mean over the ranks that were recorded alike.

    Ranks that train together take equally long on average; a single one also shows what only moves its own marks.

    Attributes:
        stretches: the steps in their order; ``queued_ns`` is the judged rank's.
    """

    ranks: int
    time_ns: StepTimes
    stretches: Stretches


class DeviceWindow(msgspec.Struct, frozen=True, kw_only=True):
    """Interval arithmetic from the first to the last device event of a rank, exact int64 ns.

    ``compute`` counts memsets; ``exposed_comm`` is communication minus compute; ``exposed_copy`` is copies minus
    compute minus communication. ``stretch`` is from the first kernel that was launched while it was
    recorded to the first pause of more than 2 ms between kernels; ``None`` without one. These are the definitions other
    tools use, so the numbers can be compared.
    """

    window_ns: int
    busy_ns: int
    idle_ns: int
    compute_ns: int
    comm_ns: int
    exposed_comm_ns: int
    copy_ns: int
    exposed_copy_ns: int
    stretch_ns: int | None = None


class Rank(msgspec.Struct, frozen=True, kw_only=True):
    """One rank's share of the story.

    Attributes:
        step_ns: median steady step.
        sampled_busy_ratio: share of the steady time in which the device ran kernels, as NVML sampled it; ``None``
            without a sample in it.
        timed_ns: mean time of a steady step in what timers measure: waits for data, garbage collections, named phases
            that most ranks lack; where every rank shows a device, as far as it did not work beside them; ``None``
            without timers, or where they saw no fetch.
        last: in how many matched collectives of the judged steps it arrived last; this and the next five are ``None``
            where its collectives could not be matched with those of other ranks.
        caused_ns: what the others waited for it in the judged steps, all together.
        clock_offset_ns: how far its clock is ahead of the first rank's.
        clock_residual_ns: median distance of its collectives' ends from that offset; ``None`` for the reference.
    """

    rank: int | None
    origin: str
    breakdown: tuple[Part, ...]
    busy_ratio: float | None
    step_ns: int | None
    device: str | None = None
    device_window: DeviceWindow | None = None
    timed_ns: int | None = None
    last: int | None = None
    matched: int | None = None
    caused_ns: int | None = None
    waited_ns: int | None = None
    clock_offset_ns: int | None = None
    clock_residual_ns: int | None = None
    sampled_busy_ratio: float | None = None

    @property
    def device_busy_ratio(self) -> float | None:
        """Busy by the device's events, else by samples."""
        return self.busy_ratio if self.busy_ratio is not None else self.sampled_busy_ratio


class RankSteps(msgspec.Struct, frozen=True, kw_only=True):
    """One time of every rank in every judged step, which tells the ranks apart.

    Attributes:
        of: ``caused``: how long each other member of its collectives waited for the rank, on average, derived.
            ``own``: its step without exposed communication, in which waiting hides. ``step``: its step.
        group: how many neighbouring entries of ``Report.ranks`` share a row, which has the largest of their times.
        index: step numbers of the columns, at most 100.
        time_ns: a row for each group of ranks, at most 64, and in it a column for each step; ``None`` where the time is
            not known.
    """

    of: Literal["caused", "own", "step"]
    group: int
    count: int
    index: tuple[int, ...]
    time_ns: tuple[tuple[int | None, ...], ...]
