"""Facts: the pure numbers rules read. ``None`` means not measured; nothing here decides anything."""

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from functools import cached_property
from typing import Any, Self, TypeVar

import numpy as np

from profilerkit.analysis.device.kernel_losses import KernelLosses
from profilerkit.analysis.host.host_facts import InputFacts
from profilerkit.analysis.host.lines import HotLine, growing_line, lines_of
from profilerkit.analysis.job_facts import (
    all_ranks,
    communication_of,
    device_of_run,
    host_facts,
    judged_of,
    known_world,
    memory_of_run,
    scaled_shares,
    timed_rank,
    with_links,
)
from profilerkit.analysis.memory.history import LogFacts
from profilerkit.analysis.memory.use import MemoryUse, memory_use_of
from profilerkit.analysis.rank_facts import RankFacts
from profilerkit.analysis.ranks.alike import sibling_cores, together, uneven_steps, why_no_trace, without_trace
from profilerkit.analysis.ranks.job import compare, notes_of
from profilerkit.analysis.ranks.late import late_by_timers, may_be_hidden
from profilerkit.analysis.ranks.waiting import job_steps, rank_steps
from profilerkit.analysis.stats import ratio_error
from profilerkit.analysis.steps.lanes import median_step
from profilerkit.analysis.steps.series import FEW_STEPS, StepSeries
from profilerkit.analysis.steps.table import NO_STEPS, trace_series
from profilerkit.analysis.steps.wall_clock import Pause, pauses
from profilerkit.analysis.surroundings import Surroundings, Throttling, surroundings, throttling
from profilerkit.analysis.trace_facts import TraceFacts, device_spec
from profilerkit.analysis.trust import doubts_of, trust_of
from profilerkit.analysis.workers.queue import LoadingFacts, loading_facts
from profilerkit.model import revise
from profilerkit.model.events import MedianStep
from profilerkit.model.finding import SOURCES_BY_STRENGTH, CodeLine, Evidence, Source
from profilerkit.model.report import HostCopy, Kernel
from profilerkit.model.run import Loader, Series, Trust
from profilerkit.model.step import Family, Rank
from profilerkit.rundir.ending import Ending
from profilerkit.rundir.layout import RIVAL, NoKernels
from profilerkit.rundir.reader import RunRecord
from profilerkit.trace.columns import I64, Recorder

#: A part is of one step where the others have less than this ratio of its share of all (a choice: recorded allocations
#: of one step of three left a tenth, waits that came in bursts 0.6).
LEFT_BY_ONE = 0.5
#: In ``Facts.evidence``: as many observations as there are steady steps.
STEADY = -1

_Value = TypeVar("_Value")


_NOTHING = RankFacts(None, "", None, None, None, (), NO_STEPS, None, None, None, (), (), None)


def _of_rank(get: Callable[[RankFacts], _Value]) -> cached_property[_Value]:
    """A member that the judged rank holds."""
    return cached_property(lambda facts: get(facts.chosen))


def _member(get: Callable[["Facts"], _Value]) -> cached_property[_Value]:
    return cached_property(get)


def _of_trace(get: Callable[[TraceFacts], _Value | None]) -> cached_property[_Value | None]:
    """A member that the judged rank's trace holds; ``None`` without a trace."""
    return cached_property(lambda facts: None if facts.trace is None else get(facts.trace))


class Facts:
    """Everything the rules may know about a run, in the words of the judged rank.

    Each member is computed when it is first asked for, from what was read alone, and kept. ``revise`` gives a copy with
    other values.

    Args:
        read: its ranks; without any, as in tests, only ``known`` members are not missing.
        run: what the whole run left behind; ``None`` where only traces were given.
        ending: how it ended; ``None`` where that is not known.
        device_name: overrides the one in the trace.
        world_size: ranks of the job as its manifest says; ``None`` leaves it to the traces.
        recorded: how many different ranks there are; ``None`` takes each of ``read`` for one.
        told: position of the rank that is judged where nobody is waited for; ``None`` leaves it to the facts.
        notes: what is said about the run as a whole, for the trust section.
        known: members that are not computed.
    """

    def __init__(
        self,
        read: Sequence[RankFacts] = (),
        /,
        *,
        run: RunRecord | None = None,
        ending: Ending | None = None,
        told: int | None = None,
        world_size: int | None = None,
        recorded: int | None = None,
        notes: Sequence[str] = (),
        device_name: str | None = None,
        **known: Any,
    ) -> None:
        self._read, self._run, self._ending, self._told = read or (_NOTHING,), run, ending, told
        self._world, self._recorded, self._notes = world_size, recorded, notes
        self._device_name = device_name
        self.__dict__.update(known if read else {"trace_read": True, **known})

    def __replace__(self, **changes: object) -> Self:
        unknown = [name for name in changes if not isinstance(getattr(type(self), name, None), cached_property)]
        if unknown:
            raise TypeError(f"facts have no {', '.join(unknown)}")
        made = copy(self)
        made.__dict__.update(changes)
        return made

    # The job, and which of its ranks is judged.

    #: Ranks of the job.
    world_size = _member(lambda facts: known_world(facts._read, facts._world))
    #: The ranks after they were compared.
    job = _member(lambda facts: compare(facts._read, facts.world_size))
    #: Position of the rank that the others wait for by the timers alone.
    timed = _member(lambda facts: timed_rank(facts.job))
    #: Position in ``ranks`` of the rank the parts describe.
    judged_rank = _member(lambda facts: judged_of(facts.job, facts.timed, facts._told))
    #: What was read of the judged rank.
    chosen = _member(lambda facts: facts.job.ranks[judged_of(facts.job, facts.timed, facts._told)])

    #: What the judged rank's trace says; ``None`` without one.
    trace = _of_rank(lambda rank: rank.trace)
    #: What it left in a run directory; ``None`` where only traces were given.
    record = _of_rank(lambda rank: rank.record)
    #: What the judged rank's record says of its process.
    meta = _of_rank(lambda rank: rank.record.meta if rank.record else None)
    #: Every rank that was read.
    ranks = _member(lambda facts: all_ranks(facts.job))

    @cached_property
    def missing_ranks(self) -> int | None:
        """Ranks of the job that were not read; ``None`` when unknown."""
        read = self._recorded or len(self.job.ranks)
        return max(self.world_size - read, 0) if self.world_size is not None else None

    #: Share of a step that the median other rank waits for the judged one; ``None`` if none is late.
    waiting_share = _member(lambda facts: facts.job.waiting_share)
    #: What of it would be left if that rank came with the others; ``None`` likewise.
    jitter_share = _member(lambda facts: facts.job.jitter_share)
    #: Share in which transfers are exposed on the median other rank that the judged one computes through.
    shown_share = _member(lambda facts: facts.job.shown_share)
    #: Whether the judged rank spends much more than the others in what timers measure, and nothing else tells.
    late_by_timers = _member(lambda facts: facts.timed == facts.judged_rank)
    #: Whether only the devices' clocks show that the others wait for it.
    late_by_clock = _member(lambda facts: facts.late_by_timers and late_by_timers(facts.job.ranks) is None)
    #: Whether devices may have worked beside what the timers measured, and no trace tells.
    timed_may_be_hidden = _member(lambda facts: may_be_hidden(facts.job.ranks))
    #: Each rank in each judged step; ``None`` for a single one.
    rank_steps = _member(lambda facts: rank_steps(facts.job.ranks, facts.job.ledger))
    #: The judged steps as means over the ranks; ``None`` likewise.
    job_steps = _member(lambda facts: job_steps(facts.job.ranks, facts.judged_rank))
    #: What the collectives of all ranks say; ``None`` when none was seen.
    communication = _member(lambda facts: communication_of(facts.job, facts.judged_rank, facts.timed))
    #: Which rank failed first and which left no word of its end; ``None`` when all came to their end.
    failure = _member(lambda facts: facts._ending.failure if facts._ending else None)
    #: Whether an exception ended a rank; after a mere silence the run may still be under way.
    raised = _member(lambda facts: facts._ending is not None and facts._ending.raised)
    #: Whether no rank recorded anything, as the disk took nothing: it was full, or the host went down.
    refused = _member(lambda facts: facts._ending is not None and facts._ending.refused)

    # How far to trust it.

    #: What makes the split of the step less sure.
    doubts = _member(lambda facts: tuple(doubts_of(facts.chosen, without_trace(facts.job.ranks))))

    @cached_property
    def trust(self) -> Trust:
        """What was recorded, how completely, and what recording cost."""
        ranks = self.job.ranks
        of_the_run = [*without_trace(ranks), *notes_of(self.job, self.world_size), *uneven_steps(ranks)]
        return trust_of(ranks, self.chosen, [*self._notes, *of_the_run], self.doubts)

    #: Whether another profiler kept the judged rank from being traced.
    has_rival = _member(lambda facts: facts.trace is None and RIVAL in why_no_trace(facts.record))
    #: Whether the judged rank has a trace.
    trace_read = _member(lambda facts: facts.trace is not None)

    @cached_property
    def device_events_missing(self) -> bool:
        """Whether the trace shows that a device was used, and holds none of its events."""
        if self.trace is None or self.trace.no_kernels is None:
            return False
        # Of a file that is cut off the device's events may be what is missing; the whole file of another rank tells.
        whole = any(r.trace and r.mode == "cpu" and r.trace.no_kernels is None for r in self.job.ranks)
        return not (self.trace.damage.truncated and whole)

    @cached_property
    def kernels_unseen(self) -> NoKernels | None:
        """Why a trace lacks the device's events; timers tell the story if there are any. ``None``: it lacks none."""
        if self.trace is not None:
            return self.trace.no_kernels if self.device_events_missing else None
        if self.chosen.unseen is None or self.record is None:
            return None
        return next((status.no_kernels for status, _ in self.record.windows if status.no_kernels), "unknown")

    #: The framework that the trace is of, where it is not PyTorch.
    framework = _of_trace(lambda trace: trace.meta.framework)
    #: Of what kinds the trace's events are, where none is a profiler's.
    unprofiled = _of_trace(lambda trace: trace.meta.unprofiled)
    #: The tool that has to record more.
    recorder: cached_property[Recorder] = _member(lambda facts: facts.trace.meta.recorder if facts.trace else "torch")
    #: Whether only dumps of flight recorders were read; the steps are what their collectives repeat.
    by_dumps: cached_property[bool] = _member(lambda _: False)
    #: What logs beside the recording, or alone, say.
    logs: cached_property[LogFacts | None] = _member(lambda _: None)

    # The judged steps.

    #: gpu, cpu (main thread is treated as the device) or steps (timers only).
    mode = _of_rank(lambda rank: rank.mode)
    #: How many steps were recorded and judged, and how long they took.
    steps = _of_rank(lambda rank: rank.steps)
    #: Standard error of the median steady step; ``None`` for a single step.
    step_error_ns = _of_rank(lambda rank: rank.step_error_ns)
    #: Breakdown of the judged rank, largest first.
    parts = _of_rank(lambda rank: rank.parts)
    #: The batches of the judged steps, and the processes that made them; ``None`` without records of them.
    workers = _of_rank(lambda rank: rank.workers)
    #: Disturbances that recur.
    stalls = _of_rank(lambda rank: rank.stalls)

    #: Median steady step, ns; ``None`` if there is none.
    step_ns = _of_rank(lambda rank: float(rank.steps.time_ns.median) if rank.steps.time_ns else None)

    @cached_property
    def step_series(self) -> tuple[StepSeries, ...]:
        """The judged rank's steps with their parts, by its timers and by its trace, as far as there are any."""
        traced = trace_series(self.trace) if self.trace and self.chosen.log is not None else None
        return tuple(series for series in (self.chosen.series, traced) if series is not None)

    @cached_property
    def median_step(self) -> MedianStep | None:
        """One traced step as a timeline; ``None`` without a trace that holds a steady one."""
        trace = self.trace
        if trace is None or not trace.lanes:
            return None
        return median_step(trace.lanes, trace.steps, trace.partition, self.chosen.rank)

    #: Why the judged rank's records are not whole; ``None`` where they are, or where nothing tells.
    unwritten = _member(lambda facts: facts.record.end.stopped_because if facts.record and facts.record.end else None)
    #: Share of the recorded step in the queue for processors that other programs hold; 0 where none is known.
    taken: cached_property[float] = _member(lambda _: 0.0)

    # Loading and the host.

    @cached_property
    def lines(self) -> Mapping[str, HotLine]:
        """The user's lines that hold most of a place, as far as stacks were sampled; the places are ``lines_of``'s."""
        record, log = self.record, self.chosen.log
        if record is None or log is None:
            return {}
        growing = growing_line(record, log)
        return {**lines_of(record, log), **({"growing": growing} if growing else {})}

    @cached_property
    def loader(self) -> Loader | None:
        """The loader's settings, where its waits are those of the steps."""
        log = self.chosen.log
        return self.meta.loader if self.meta and (log is None or log.waits_seen) else None

    @cached_property
    def input(self) -> InputFacts | None:
        """How batches are waited for."""
        known, line = self.chosen.input, self.lines.get("input")
        if known is None or line is None or worker_count(self.loader, known):
            return known
        return revise(known, frames=line.frames, frames_ratio=line.share)

    @cached_property
    def loading(self) -> LoadingFacts | None:
        """The replayed queue of the loader and its epochs; of a trace alone epochs only, ``None`` where none begins."""
        epochs = self.trace.epochs if self.trace is not None else None
        alone = LoadingFacts(epochs=epochs) if epochs is not None else None
        return loading_facts(self.record, self.chosen.log, self.chosen.workers) or alone

    #: What the training process does besides issuing work.
    host = _member(lambda facts: host_facts(facts.record, facts.chosen.log, facts.trace, facts.lines.get("python")))
    #: Recorded ranks on the judged rank's host, which share its cores; ``None`` when unknown.
    host_ranks = _member(lambda facts: len(together(facts.job.ranks, facts.chosen)) or None)
    #: Usable cores of the judged rank's host, divided among the ranks recorded there; ``None`` when unknown.
    usable_cores = _member(lambda facts: facts.meta.usable_cores / (facts.host_ranks or 1) if facts.meta else None)

    @cached_property
    def has_whole_host(self) -> bool:
        """Whether the run may use all cores of its host, as far as that is known."""
        meta = self.meta
        return meta is not None and meta.host_cores is not None and meta.usable_cores >= meta.host_cores

    #: Sampled signals, each in a summary.
    samples = _member(
        lambda facts: (*facts.chosen.samples, *sibling_cores(facts.job.ranks, facts.chosen, facts.world_size))
    )

    @cached_property
    def pauses(self) -> tuple[Pause, ...]:
        """What training stood still for, over all steps of a run that was recorded whole."""
        record, log = self.record, self.chosen.log
        return () if record is None or log is None else pauses(record, log, self.chosen.account)

    @cached_property
    def surroundings(self) -> Surroundings:
        """What the run shares its device with."""
        record, log = self.record, self.chosen.log
        if record is None or log is None:
            return Surroundings()
        return surroundings(record, log, [rank.record for rank in self.job.ranks if rank.record])

    # The device and its memory.

    #: Device peaks; ``None`` for an unknown device.
    spec = _member(lambda facts: device_spec(facts.trace.properties if facts.trace else None, facts._device_name))
    #: The device in the run's steps: it works in each as long as in a traced one.
    device = _member(lambda facts: device_of_run(facts.chosen))

    @cached_property
    def throttling(self) -> Throttling | None:
        """How far the device's clock was held down; ``None`` where it was not sampled."""
        gpu = self.meta.gpu if self.meta else None
        samples = [rank.record.samples if rank.record else () for rank in self.job.ranks]
        return throttling(samples, self.judged_rank, gpu.power_limit_default_mw if gpu else None)

    #: Part to the share of the traced step that it alone kept the device from computing; empty without a device.
    alone: cached_property[Mapping[str, float]] = _member(
        lambda facts: facts.trace.shares(facts.trace.partition.alone) if facts.trace else {}
    )

    #: Part to the share in which the host was held up by it while the device communicated or copied: a fix of it shows
    #: only once that transfer is gone as well.
    hidden: cached_property[Mapping[str, float]] = _member(
        lambda facts: facts.trace.shares(facts.trace.partition.hidden) if facts.trace else {}
    )
    #: Of batches, from pageable memory; ``None`` without device events, and so ``pinned`` and ``small_copies``.
    copies = _of_trace(lambda trace: trace.copies)
    #: The same from pinned memory, or such as the trace does not name.
    pinned = _of_trace(lambda trace: trace.pinned)
    #: Transfers below 4 KiB between host and device, per steady step.
    small_copies = _of_trace(lambda trace: trace.small_copies)
    #: Blocking calls per steady step, and how long the host waited in them.
    syncs = _of_trace(lambda trace: trace.syncs)
    #: Calls such as cudaMalloc and cudaFree, per steady step.
    allocator = _of_trace(lambda trace: trace.allocator)
    #: First-use work in a short window.
    cold = _of_trace(lambda trace: trace.cold)
    #: How the device's events are joined to the calls that launched them.
    launches = _of_trace(lambda trace: trace.launches)
    #: What the compute kernels of the steady window do.
    compute = _of_trace(lambda trace: trace.compute)
    #: What the collectives are made of; ``None`` without a trace.
    collective_work = _of_trace(lambda trace: trace.collective_work)
    #: Some of the traced steps as a graph that runs again with changes; ``None`` where none could be built.
    replay = _of_trace(lambda trace: trace.replay)
    #: Kernels with most time.
    kernels: cached_property[tuple[Kernel, ...]] = _member(lambda facts: facts.trace.kernels if facts.trace else ())
    #: Copies between host and device.
    host_copies: cached_property[tuple[HostCopy, ...]] = _member(
        lambda facts: facts.trace.host_copies if facts.trace else ()
    )
    #: Matrix products, in shares of the run's step.
    math = _member(lambda facts: scaled_shares(facts.trace.math if facts.trace else None, facts.chosen))
    #: Runs of kernels that can be fused, in shares of the run's step.
    chains = _member(lambda facts: scaled_shares(facts.trace.chains if facts.trace else None, facts.chosen))

    @cached_property
    def kernel_losses(self) -> KernelLosses | None:
        """What the device's kernels waste; ``None`` without device events."""
        losses = self.trace.kernel_losses if self.trace else None
        found = scaled_shares(losses, self.chosen)
        # What the host takes is in these.
        return found and losses and revise(found, optimizer=losses.optimizer, searches=losses.searches)

    #: The table of collectives, with the share of the link's peak they reach.
    comm = _member(lambda facts: with_links(facts.trace.comm, facts.spec) if facts.trace and facts.trace.comm else None)
    #: What the trace and the samplers tell of it.
    memory = _member(lambda facts: memory_of_run(facts.chosen))

    @cached_property
    def memory_use(self) -> MemoryUse:
        """What memory costs beside its size."""
        manifest = self._run.manifest if self._run else None
        known = self.trace.memory_use if self.trace else MemoryUse()
        return memory_use_of(known, self.record, self.chosen.log, manifest.environment if manifest else None)

    # Views of the members.

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
    def operator_share(self) -> float:
        """Share of the step in which an operator holds a device's host for so long that it computes or compiles."""
        return self.device.held_ratio * self.share("over.dispatch") if self.device is not None else 0.0

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
        n = self.steps.steady if n == STEADY else n
        row = Evidence(label, value, unit, source, origin, n=n, low=low, high=high, rank=self.rank.rank)
        return revise(row, steps=steps, range_ns=range_ns, behind=behind, line=line)

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


def worker_count(loader: Loader | None, known: InputFacts | None) -> int | None:
    """Worker processes of the loader; 0 when the main process loads, ``None`` when unknown."""
    if loader and loader.num_workers is not None:
        return loader.num_workers
    return 0 if known is not None and known.single_process else None
