"""Two reports compared, the gates set on them, and the JSON schema."""

from typing import Literal

import msgspec

from profilerkit.model.finding import Saving, Severity
from profilerkit.model.memory import PeakOf
from profilerkit.model.step import Family

GateStatus = Literal["passed", "failed", "not judged"]


class Gate(msgspec.Struct, frozen=True, kw_only=True):
    """One limit and what was found.

    Attributes:
        name: the metric, for example ``step_time``.
        measured: what was found, for a person; ``not measured`` without a number.
    """

    name: str
    limit: str
    measured: str
    status: GateStatus
    reason: str = ""


DIFF_SCHEMA_VERSION = 1

#: A change of the step that is surely no larger is none; of more nobody can tell whether there is one (a choice).
HARDLY = 0.05

Judgement = Literal["faster", "slower", "less memory", "more memory", "no real change", "not comparable"]
SpanOf = Literal["step", "trace", "device", "stretch"]
KernelOf = Literal["kernel", "operator"]
Group = Literal["hardware", "work", "loader", "software", "settings"]
FindingState = Literal["gone", "new", "worse", "better", "unchanged"]


class Range(msgspec.Struct, frozen=True, kw_only=True):
    """An estimate and its interval, in the same unit."""

    low: float
    expected: float
    high: float


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """One of the two runs in short. ``None`` means not measured.

    Attributes:
        queued_ratio: share of the time in which the training thread waited for a processor that other programs used.
        samples_per_s: throughput of all ranks; needs the batch size.
        peak_memory_bytes: of the judged rank: of its device, of the process where no device memory is known.
        recordings: how many recordings of this program the step times come from; the rest is of the first one.
        ranks: how many ranks of the job the step times are the mean of.
    """

    name: str
    created: str
    bound: str
    detail: str
    headline: str
    mode: str
    steady: int
    mean_ns: float | None = None
    median_ns: float | None = None
    p90_ns: float | None = None
    queued_ratio: float | None = None
    samples_per_s: float | None = None
    peak_memory_bytes: int | None = None
    peak_memory_of: PeakOf | None = None
    recordings: int = 1
    ranks: int = 1
    rank: int | None = None


class StepChange(msgspec.Struct, frozen=True, kw_only=True):
    """How much longer the steady step got: after / before − 1, so a negative ratio is a gain.

    Attributes:
        mean: of the mean step as it was timed, with the block bootstrap's interval of the two runs as they were.
        judged: of what the verdict rests on: steps without the time that other programs took, with an interval that
            also holds what differs between two runs of the same program. Estimated, where time was taken out: so is
            what other programs cost by the caches that they left cold.
        own_before_ns: the mean step without the time other programs had its processor, derived; the timed one where
            that is not taken out.
        quiet_before_ns: the mean step as ``judged`` compares it: ``own_before_ns`` without what cold caches are
            estimated to have cost.
        between_runs_ratio: standard deviation between runs of one program that was assumed for this pair.
        visible_ratio: the smallest growth that this pair could have shown; a fall is as many times as little.
        is_taken_out: whether the time that other programs took could be taken out: not on a device, and not where a
            side does not tell it.
        timed: of the step as it was timed, which is what savings are predicted of; its interval also holds what differs
            between two runs of the same program, and what other programs may have cost either. ``None`` in comparisons
            that are older than this field.
        typical: of the median step as it was timed, with an interval by the same resampling and the same allowances.
            ``None`` likewise.
    """

    mean: Range
    judged: Range
    own_before_ns: float
    own_after_ns: float
    quiet_before_ns: float
    quiet_after_ns: float
    between_runs_ratio: float
    visible_ratio: float
    is_taken_out: bool = False
    timed: Range | None = None
    typical: Range | None = None

    @property
    def is_surely_small(self) -> bool:
        """Return whether the judged change is none that matters; of a wider interval nobody can tell whether it is."""
        return max(abs(self.judged.low), abs(self.judged.high)) <= HARDLY

    @property
    def smallest_fall_ratio(self) -> float:
        """Return the smallest fall that this pair could have shown: a growth to 1.25 times is a fall to 0.8, by 0.2."""
        return self.visible_ratio / (1.0 + self.visible_ratio)


class SpanChange(msgspec.Struct, frozen=True, kw_only=True):
    """How long something lasts that there is one of on each side: a difference without an interval.

    Attributes:
        span: of the one step; of a trace without steps as a whole; of its device from the first to the last event; or
            of its kernels up to the first pause, as in ``DeviceWindow``.
        is_visible: whether that is more than two runs of one program are taken to differ by.
    """

    span: SpanOf
    before_ns: int
    after_ns: int
    change: float
    is_visible: bool


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """Something about the runs that is not the same; ``None`` means that this side does not say."""

    group: Group
    name: str
    before: str | None
    after: str | None


class PartChange(msgspec.Struct, frozen=True, kw_only=True):
    """One part of the step on both sides, mean per steady step; ``None`` where a side does not measure it.

    Attributes:
        is_real: it moved by more than the step's own noise, and by at least 2 % of the step before.
    """

    part: str
    family: Family
    before_ns: int | None
    after_ns: int | None
    before_share: float | None
    after_share: float | None
    is_real: bool


class HolderChange(msgspec.Struct, frozen=True, kw_only=True):
    """What a kind of memory, or a line of Python, holds on both sides; ``None`` where it holds nothing told."""

    name: str
    before_bytes: int | None
    after_bytes: int | None

    @property
    def bytes(self) -> int:
        """Return how much more it holds after."""
        return (self.after_bytes or 0) - (self.before_bytes or 0)


class MemoryChange(msgspec.Struct, frozen=True, kw_only=True):
    """The memory of the fullest snapshot of each side.

    Attributes:
        at_peak: whether it is the peak of a history, on both sides.
        is_lower_bound: whether a history begins late, so that its peak may have been higher.
    """

    before_bytes: int
    after_bytes: int
    change: float
    at_peak: bool
    is_lower_bound: bool
    kinds: tuple[HolderChange, ...] = ()
    lines: tuple[HolderChange, ...] = ()


class KernelChange(msgspec.Struct, frozen=True, kw_only=True):
    """The device time of a kernel or an operator per judged step on both sides, derived.

    Attributes:
        of: a kernel; or an operator, with all kernels listed that it launched most of, or on a CPU-only run its own.
        before_ns: 0 where it did not run, ``None`` where it is not among the largest that the report lists.
        is_real: it changed by more than two runs of one program are taken to differ by, and by at least 2.5 % of the
            step before.
    """

    name: str
    of: KernelOf
    before_ns: float | None
    after_ns: float | None
    is_real: bool


class FindingChange(msgspec.Struct, frozen=True, kw_only=True):
    """One finding on both sides.

    Attributes:
        reason: why a finding that is gone may not be: its rule could not run.
        summary: the rule's claim in one line, as in a report.
    """

    rule: str
    title: str
    state: FindingState
    rank: int | None = None
    before_severity: Severity | None = None
    after_severity: Severity | None = None
    before_saving: Saving | None = None
    after_saving: Saving | None = None
    reason: str = ""
    summary: str = ""


class AppliedFix(msgspec.Struct, frozen=True, kw_only=True):
    """A fix that was proposed before and is in force after, or whose finding is gone or has lost most of its time.

    Attributes:
        predicted: saving of the step; ``None`` when none could be stated.
        holds: whether a saving was proven and lies in the predicted interval; false where the setting was changed as
            proposed and the two intervals do not meet. ``None`` between these, where one of them is missing, where
            several fixes were applied at once and only their sum was measured, beside a fix that saves far more, and
            where less was saved than was predicted of a finding that went, or a part of it, with no known setting.
        note: why ``holds`` is ``None``, else empty.
    """

    rule: str
    text: str
    how: Literal["the setting is as proposed", "the finding is gone", "the finding is smaller"]
    predicted: Saving | None
    measured: Range | None
    holds: bool | None
    note: str = ""


class Diff(msgspec.Struct, frozen=True, kw_only=True):
    """Hold a comparison of two runs. ``None`` anywhere below means not measured, never zero.

    Attributes:
        verdict: faster, slower, no real change or not comparable; of snapshots without steps less or more memory.
        obstacles: why the steps cannot be compared; empty unless the verdict says so, or is about ``spans``.
        spans: where each side has one step, or none: how long that and its parts last, the one that the verdict is
            about first.
        kernels: kernels and operators, largest change first, at most 20; empty where a side lists none.
    """

    schema_version: int = DIFF_SCHEMA_VERSION
    verdict: Judgement
    headline: str
    before: Side
    after: Side
    obstacles: tuple[str, ...] = ()
    step: StepChange | None = None
    spans: tuple[SpanChange, ...] = ()
    differences: tuple[Difference, ...] = ()
    memory: MemoryChange | None = None
    parts: tuple[PartChange, ...] = ()
    kernels: tuple[KernelChange, ...] = ()
    findings: tuple[FindingChange, ...] = ()
    fixes: tuple[AppliedFix, ...] = ()
    gates: tuple[Gate, ...] = ()
    notes: tuple[str, ...] = ()
    profilerkit_version: str = ""
    created: str = ""

    def __repr__(self) -> str:
        """Return the verdict in one line: ``<Diff slower: The step takes …>``; the JSON has everything."""
        headline = "".join(char if char.isprintable() else "?" for char in self.headline)
        return f"<Diff {self.verdict}: {headline}>"
