"""Facts: the pure numbers rules read. ``None`` means not measured; nothing here decides anything."""

from collections.abc import Mapping
from typing import Literal

import msgspec
import numpy as np

from profilerkit.analysis.communication.table import CollectiveWork, CommFacts
from profilerkit.analysis.device.bus_copies import SmallCopyFacts
from profilerkit.analysis.device.copies import CopyFacts
from profilerkit.analysis.device.device_facts import AllocatorFacts, ChainFacts, ColdFacts, DeviceFacts, SyncFacts
from profilerkit.analysis.device.kernels import LaunchFacts
from profilerkit.analysis.device.roofline import MathFacts
from profilerkit.analysis.doubts import Doubt
from profilerkit.analysis.host.host_facts import HostFacts, InputFacts
from profilerkit.analysis.host.lines import HotLine
from profilerkit.analysis.intervals import I64
from profilerkit.analysis.kernel_losses.find import KernelLosses
from profilerkit.analysis.ledger.pauses import Pause
from profilerkit.analysis.logs.history import LogFacts
from profilerkit.analysis.memory.use import MemoryUse
from profilerkit.analysis.replay.gate import ReplayFacts
from profilerkit.analysis.stats import ratio_error
from profilerkit.analysis.steps.series import FEW_STEPS, Stall, StepSeries
from profilerkit.analysis.surroundings import Surroundings, Throttling
from profilerkit.analysis.workers.loading import LoadingFacts
from profilerkit.hardware import DeviceSpec
from profilerkit.model.communication import Communication
from profilerkit.model.events import MedianStep
from profilerkit.model.finding import SOURCES_BY_STRENGTH, CodeLine, Evidence, Probed, Source
from profilerkit.model.memory import Memory
from profilerkit.model.report import Compute, HostCopy, Kernel
from profilerkit.model.run import Loader, Series, Trust, Workers
from profilerkit.model.step import Family, JobSteps, Part, Rank, RankSteps, Steps
from profilerkit.rundir.layout import NoKernels
from profilerkit.trace.columns import Recorder

#: A part is of one step where the others have less than this ratio of its share of all (a choice: recorded allocations
#: of one step of three left a tenth, waits that came in bursts 0.6).
LEFT_BY_ONE = 0.5
#: In ``Facts.evidence``: as many observations as there are steady steps.
STEADY = -1


class Facts(msgspec.Struct, frozen=True):
    """Everything the rules may know about a run, in the words of the judged rank.

    Attributes:
        mode: gpu, cpu (main thread is treated as the device) or steps (timers only).
        step_ns: median steady step, ns; ``None`` if there is none.
        step_error_ns: its standard error; ``None`` for a single step.
        parts: breakdown of the judged rank, largest first.
        ranks: every rank that was read.
        rank_steps: each of them in each judged step; ``None`` for a single one.
        job_steps: the judged steps as means over the ranks; ``None`` likewise.
        lines: of the user's that hold most of a place, as far as stacks were sampled; the places are ``lines_of``'s.
        judged_rank: position in ``ranks`` of the rank the parts describe.
        missing_ranks: ranks of the job that were not read; ``None`` when unknown.
        waiting_share: share of a step that the median other rank waits for the judged one; ``None`` if none is late.
        jitter_share: what of it would be left if that rank came with the others; ``None`` likewise.
        shown_share: share in which transfers are exposed on the median other rank that the judged one computes through;
            ``None`` likewise, and where transfers are not known.
        late_by_timers: whether the judged rank spends much more than the others in what timers measure, and nothing
            else tells who waits for whom.
        late_by_clock: whether only the devices' clocks show that the others wait for it.
        timed_may_be_hidden: whether devices may have worked beside what the timers measured, and no trace tells.
        communication: what the collectives of all ranks say; ``None`` when none was seen.
        device_events_missing: the trace shows that a device was used, and holds none of its events.
        has_rival: another profiler kept the judged rank from being traced.
        kernels_unseen: why the trace of a run that trained on a device holds none of the device's events though they
            were asked for, and its timers tell the story; ``None`` where nothing is missing.
        doubts: what makes the split of the step less sure.
        failure: which rank failed first and which left no word of its end; ``None`` when all came to their end.
        raised: whether an exception ended a rank; after a mere silence the run may still be under way.
        refused: no rank recorded anything, because the disk took nothing: it was full, or the host went down.
        usable_cores: of the host, divided among its ranks; ``None`` when unknown.
        has_whole_host: the run may use all cores of its host, as far as that is known.
        host_ranks: recorded ranks on the judged rank's host, which share its cores; ``None`` when unknown.
        spec: device peaks; ``None`` for an unknown device.
        workers: what the loader's worker processes did; ``None`` without any, or where that was not recorded.
        taken: share of the recorded step in the queue for processors that other programs hold; 0 where none is known.
        alone: part to the share of the traced step that it alone kept the device from computing; derived, empty
            without device events.
        hidden: part to the share in which the host was held up by it while the device communicated or copied; a fix of
            it shows only once that transfer is gone as well.
        loading: the replayed queue of the loader and its epochs; ``None`` without records of steps.
        copies: of batches, from pageable memory; ``None`` without device events, and so ``pinned`` and
            ``small_copies``.
        pinned: the same from pinned memory, or such as the trace does not name.
        host: what the training process does besides issuing work.
        memory_use: what memory costs beside its size.
        pauses: what training stood still for, over all steps of a run that was recorded whole.
        surroundings: what the run shares its device with.
        kernel_losses: what the device's kernels waste; ``None`` without device events.
        throttling: how far the device's clock was held down; ``None`` where it was not sampled.
        collective_work: what the collectives are made of; ``None`` without a trace.
        logs: what logs beside the recording, or alone, say; ``None`` without any.
        by_dumps: nothing but dumps of flight recorders was read; the steps are what their collectives repeat.
        replay: some of the traced steps as a graph that runs again with changes; ``None`` where none could be built.
        median_step: one traced step as a timeline; ``None`` without a trace that holds a steady one.
        framework: what was profiled, where it is not PyTorch.
        recorder: the tool that has to record more.
        unprofiled: of what kinds the trace's events are, where none is a profiler's.
        probes: those that were asked for, made or not.
        step_series: the judged rank's steps with their parts, by its timers and by its trace, as far as there are any.
    """

    mode: Literal["gpu", "cpu", "steps"]
    steps: Steps
    step_ns: float | None
    step_error_ns: float | None
    parts: tuple[Part, ...]
    ranks: tuple[Rank, ...]
    trust: Trust
    judged_rank: int = 0
    world_size: int | None = None
    missing_ranks: int | None = None
    waiting_share: float | None = None
    jitter_share: float | None = None
    shown_share: float | None = None
    late_by_timers: bool = False
    late_by_clock: bool = False
    timed_may_be_hidden: bool = False
    communication: Communication | None = None
    device_events_missing: bool = False
    kernels_unseen: NoKernels | None = None
    has_rival: bool = False
    doubts: tuple[Doubt, ...] = ()
    failure: str | None = None
    raised: bool = False
    refused: bool = False
    input: InputFacts | None = None
    loader: Loader | None = None
    workers: Workers | None = None
    usable_cores: float | None = None
    has_whole_host: bool = False
    host_ranks: int | None = None
    device: DeviceFacts | None = None
    copies: CopyFacts | None = None
    syncs: SyncFacts | None = None
    allocator: AllocatorFacts | None = None
    math: MathFacts | None = None
    chains: ChainFacts | None = None
    comm: CommFacts | None = None
    stalls: tuple[Stall, ...] = ()
    cold: ColdFacts | None = None
    spec: DeviceSpec | None = None
    kernels: tuple[Kernel, ...] = ()
    compute: Compute | None = None
    host_copies: tuple[HostCopy, ...] = ()
    memory: Memory = msgspec.field(default_factory=Memory)
    samples: tuple[Series, ...] = ()
    trace_read: bool = True
    launches: LaunchFacts | None = None
    taken: float = 0.0
    alone: Mapping[str, float] = msgspec.field(default_factory=dict)
    hidden: Mapping[str, float] = msgspec.field(default_factory=dict)
    loading: LoadingFacts | None = None
    pinned: CopyFacts | None = None
    small_copies: SmallCopyFacts | None = None
    host: HostFacts = msgspec.field(default_factory=HostFacts)
    memory_use: MemoryUse = msgspec.field(default_factory=MemoryUse)
    pauses: tuple[Pause, ...] = ()
    surroundings: Surroundings = msgspec.field(default_factory=Surroundings)
    kernel_losses: KernelLosses | None = None
    throttling: Throttling | None = None
    collective_work: CollectiveWork | None = None
    logs: LogFacts | None = None
    by_dumps: bool = False
    replay: ReplayFacts | None = None
    median_step: MedianStep | None = None
    framework: str | None = None
    recorder: Recorder = "torch"
    unprofiled: str | None = None
    probes: tuple[Probed, ...] = ()
    rank_steps: RankSteps | None = None
    step_series: tuple[StepSeries, ...] = ()
    job_steps: JobSteps | None = None
    lines: Mapping[str, HotLine] = msgspec.field(default_factory=dict)

    def share(self, *names: str) -> float:
        """Share of the steady step that belongs to these parts; a name ending in ``.`` takes its whole group."""
        return sum(part.share for part in self.parts if belongs(part.part, names))

    def alone_share(self, *names: str) -> float:
        """Share of the traced step that these parts alone kept the device from computing; names as in ``share``."""
        return sum(value for part, value in self.alone.items() if belongs(part, names))

    def hidden_share(self, *names: str) -> float:
        """Share in which these parts held the host behind a transfer; names as in ``share``."""
        return sum(value for part, value in self.hidden.items() if belongs(part, names))

    def family(self, family: Family) -> float:
        """Share of the steady step that belongs to a family."""
        return sum(part.share for part in self.parts if part.family == family)

    def time_ns(self, *names: str) -> float:
        """Mean time per steady step of these parts, ns; names as in ``share``."""
        mean = self.mean_step_ns
        return self.share(*names) * mean if mean else 0.0

    def share_error(self, *names: str) -> float | None:
        """Return the relative standard error of a share, over judged steps; names as in ``share``.

        ``None`` where the parts of single steps are not known, or of one step only.
        """
        known = self._in_steps(names)
        return ratio_error(*known) if known else None

    def is_of_one_step(self, *names: str) -> bool:
        """Return whether one of fewer than ``FEW_STEPS`` judged steps holds most of some parts; names as in ``share``.

        What recurs keeps ``LEFT_BY_ONE`` of its share when the step that holds most of it is left out.
        """
        spent, time = self._in_steps(names) or (np.zeros(0), np.zeros(0))
        if not 1 < len(spent) < FEW_STEPS or not spent.any():
            return False
        others = np.arange(len(spent)) != spent.argmax()
        left, whole = float(spent[others].sum()), float(spent.sum())
        return left * float(time.sum()) < LEFT_BY_ONE * whole * float(time[others].sum())

    def _in_steps(self, names: tuple[str, ...]) -> tuple[I64, I64] | None:
        """Time of parts in each judged step, and of the step; ``None`` where no series splits it."""
        for series in self.step_series:
            chosen = [spent for part, spent in series.parts.items() if belongs(part, names)]
            if chosen:
                return np.sum(chosen, axis=0)[series.steady], series.time[series.steady]
        return None

    @property
    def on_device(self) -> bool:
        """Whether the steps are those of a device: by its trace, or by its own clock."""
        return self.mode == "gpu" or self.steps.ahead_ns is not None

    @property
    def short_python_ratio(self) -> float:
        """Share of the Python time between operators that lies in short gaps, not in longer stretches."""
        return self.device.between_ratio if self.device is not None else self.host.between_ratio

    @property
    def mean_step_ns(self) -> float | None:
        """Mean steady step, ns."""
        return float(self.steps.time_ns.mean) if self.steps.time_ns else None

    def measured(self, signal: str) -> bool:
        """Whether the recording holds a signal of the trust section whole."""
        return any(known.name == signal and known.state == "measured" for known in self.trust.signals)

    def series(self, name: str) -> Series | None:
        """One sampled signal's summary, ``None`` if it was not sampled."""
        return next((series for series in self.samples if series.name == name), None)

    @property
    def rank(self) -> Rank:
        """The judged rank."""
        return self.ranks[self.judged_rank]

    @property
    def judged_steps(self) -> tuple[int, int] | None:
        """Return the first and last steady step among the rows kept."""
        steady = [row.index for row in self.steps.rows if row.state == "steady"]
        return (steady[0], steady[-1]) if steady else None

    def present(self, *names: str) -> tuple[str, ...]:
        """Return those parts of the judged step that have a share of it, largest first; names as in ``share``."""
        return tuple(part.part for part in self.parts if self.share(part.part) and belongs(part.part, names))

    def evidence(
        self,
        label: str,
        value: float | None,
        unit: str,
        origin: str,
        source: Source = "measured",
        *,
        n: int | None = STEADY,
        low: float | None = None,
        high: float | None = None,
        steps: tuple[int, int] | None = None,
        range_ns: tuple[int, int] | None = None,
        behind: tuple[str, ...] = (),
        line: CodeLine | None = None,
    ) -> Evidence:
        """Return evidence about the judged rank; ``n`` counts its steady steps unless given."""
        return Evidence(
            label,
            value,
            unit,
            source,
            origin,
            n=self.steps.steady if n == STEADY else n,
            low=low,
            high=high,
            rank=self.rank.rank,
            steps=steps,
            range_ns=range_ns,
            behind=behind,
            line=line,
        )

    def share_evidence(self, label: str, *parts: str, origin: str = "partition of the steady window") -> Evidence:
        """Return the share of the step that a group of parts owns; it is as good as its weakest part."""
        present = self.present(*parts)
        sources = [part.source for part in self.parts if part.part in present]
        source: Source = max(sources, key=SOURCES_BY_STRENGTH.index, default="derived")
        share = self.share(*parts)
        return self.evidence(label, share, "ratio", origin, source, steps=self.judged_steps, behind=present)


def belongs(part: str, names: tuple[str, ...]) -> bool:
    """Whether a part is one of ``names``, or in a group named with its dot."""
    return part in names or any(name.endswith(".") and part.startswith(name) for name in names)
