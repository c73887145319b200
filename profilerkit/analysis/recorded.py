"""What the judged rank's records show beside its steps: host, memory, pauses, surroundings, probes, its whole time."""

from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from profilerkit.analysis.facts import Facts
from profilerkit.analysis.host.host_facts import (
    HostFacts,
    InputFacts,
    PythonFacts,
    between_ratio,
    collection_facts,
    compiles_of_log,
)
from profilerkit.analysis.host.lines import HotLine, growing_line, lines_of
from profilerkit.analysis.intervals import I64
from profilerkit.analysis.ledger.account import rank_ledger
from profilerkit.analysis.ledger.pauses import pauses
from profilerkit.analysis.memory.use import MemoryUse, allocator_settings, allocator_use, copied_pages, page_faults
from profilerkit.analysis.rank_facts import RankFacts
from profilerkit.analysis.ranks.alike import host_ranks, sibling_cores
from profilerkit.analysis.steps.log import StepLog
from profilerkit.analysis.surroundings import surroundings, throttling
from profilerkit.analysis.trace_facts import TraceFacts
from profilerkit.analysis.whatif import workers_now
from profilerkit.analysis.workers.queue import loading_facts
from profilerkit.model.change import revise
from profilerkit.model.finding import Probed
from profilerkit.model.ledger import Ledger, RankWall, Stage
from profilerkit.rundir.documents import ProbeRun, ProbesRecord
from profilerkit.rundir.reader import RankRecord, RunRecord

#: Resamples of the steps, and the share of their results that the interval leaves out at each end.
_RESAMPLES, _TAIL = 1_000, 0.05
#: Fewer timed steps of a kind say nothing.
_FEWEST = 5
#: More, and times beyond this, are no recording of ours.
_MOST, _LONGEST_NS = 10_000, 1 << 50


def probed(record: ProbesRecord | None) -> tuple[Probed, ...]:
    """Every probe that was asked for, with its result or the reason why there is none: once, where two share one."""
    made = [] if record is None else [_probed(run) for run in record.probes]
    first = {(probe.name, probe.reason): number for number, probe in reversed(list(enumerate(made)))}
    return tuple(
        probe
        for number, probe in enumerate(made)
        if probe.share is not None or first[probe.name, probe.reason] == number
    )


def _probed(run: ProbeRun) -> Probed:
    about = Probed(name=run.name, change=run.change, first_step=run.first_step, last_step=run.last_step)
    usual, control, timed = (_times(values) for values in (run.usual_ns, run.control_ns, run.probed_ns))
    reason = run.reason
    if not reason and (usual is None or control is None or timed is None or min(len(usual), len(timed)) < _FEWEST):
        reason = "its record is damaged"
    if reason or usual is None or control is None or timed is None:
        return revise(about, reason=reason)
    share, low, high = saved(usual, control, timed)
    return revise(
        about,
        share=share,
        low=low,
        high=high,
        steps=len(timed),
        step_ns=round(float(usual.mean())),
        without_ns=round(float((control if len(control) else usual).mean())),
        probed_ns=round(float(timed.mean())),
        reason=run.note,
    )


def _times(values: tuple[int, ...]) -> I64 | None:
    if len(values) > _MOST or any(not 0 < value < _LONGEST_NS for value in values):
        return None
    return np.array(values, dtype=np.int64)


def saved(usual: I64, control: I64, timed: I64) -> tuple[float, float, float]:
    """How much shorter the ``timed`` steps are, as a share of the ``usual`` ones; its 90 % interval by bootstrap.

    Means are compared, not medians: with several workers most batches may come in bursts, and then the median step
    waits for nothing while the mean one does.

    Args:
        usual: steps of the run.
        control: steps that differ from ``timed`` in the change alone; empty where the usual ones do.
        timed: steps with the change.

    >>> usual, timed = np.full(8, 100), np.full(8, 60)
    >>> saved(usual, np.empty(0, dtype=np.int64), timed)
    (0.4, 0.4, 0.4)
    >>> saved(usual, np.full(8, 80), timed)
    (0.2, 0.2, 0.2)
    """
    random = np.random.default_rng(0)

    def means(values: I64) -> I64:
        resampled: I64 = values[random.integers(0, len(values), (_RESAMPLES, len(values)))].mean(axis=1)
        return resampled

    before, of = control if len(control) else usual, means(usual)
    shares = ((of if before is usual else means(before)) - means(timed)) / of
    low, high = np.quantile(shares, [_TAIL, 1.0 - _TAIL])
    share = float((before.mean() - timed.mean()) / usual.mean())
    return share, min(float(low), share), max(float(high), share)


_Held = TypeVar("_Held", InputFacts, PythonFacts)


def with_records(facts: Facts, ranks: Sequence[RankFacts], run: RunRecord | None) -> Facts:
    """``facts`` with what is derived of the judged rank's records, which costs too much to derive of every rank.

    Args:
        facts: of the run.
        ranks: all that were read, in the order of those of the facts.
        run: what the whole run left behind; ``None`` where only traces were given.
    """
    chosen = ranks[facts.judged_rank]
    record, log, trace = chosen.record, chosen.log, chosen.trace
    gpu = record.meta.gpu if record and record.meta else None
    known = revise(
        facts,
        host_ranks=host_ranks(ranks, chosen),
        samples=(*facts.samples, *sibling_cores(ranks, chosen, facts.world_size)),
        loading=loading_facts(record, log, chosen.workers),
        host=host_facts(record, log, trace),
        throttling=throttling(
            [rank.record.samples if rank.record else () for rank in ranks],
            facts.judged_rank,
            gpu.power_limit_default_mw if gpu else None,
        ),
        probes=probed(record.probes if record else None),
        memory_use=revise(
            trace.memory_use if trace else MemoryUse(),
            allocator_settings=allocator_settings(run.manifest.environment) if run and run.manifest else None,
            oom=record.oom if record else None,
        ),
    )
    if record is None or log is None:
        return known
    growing = growing_line(record, log)
    lines = {**lines_of(record, log), **({"growing": growing} if growing else {})}
    return revise(
        known,
        memory_use=revise(
            known.memory_use,
            allocator=allocator_use(record.samples, log),
            faults=page_faults(record.samples, log),
            copied=copied_pages(record.samples, log, {worker.pid for worker in record.workers}),
        ),
        pauses=pauses(record, log, chosen.account),
        lines=lines,
        input=_with_frames(facts.input, None if workers_now(facts) else lines.get("input")),
        host=revise(known.host, python=_with_frames(known.host.python, lines.get("python"))),
        surroundings=surroundings(record, log, [rank.record for rank in ranks if rank.record]),
    )


def run_ledger(ranks: Sequence[RankFacts], told: int) -> Ledger | None:
    """The ledger of the rank at position ``told``, with the wall clock of every rank; ``None`` without its timers."""
    ledgers = [rank_ledger(rank.record, rank.log, rank.account) if rank.record else None for rank in ranks]
    chosen = ledgers[told]
    walls = tuple(_by_stage(ledger) for ledger in ledgers if ledger is not None)
    return chosen if chosen is None or len(walls) < 2 else revise(chosen, ranks=walls)


def _by_stage(ledger: Ledger) -> RankWall:
    stages: dict[Stage, int] = {}
    for entry in ledger.entries:
        stages[entry.stage] = stages.get(entry.stage, 0) + entry.time_ns
    return RankWall(rank=ledger.rank, wall_ns=ledger.wall_ns, stages=stages)


def _with_frames(known: _Held | None, line: HotLine | None) -> _Held | None:
    """What held a thread, with the line of stacks that holds most of it; as it is without one."""
    if known is None or line is None:
        return known
    return revise(known, frames=line.frames, frames_ratio=line.share)


def host_facts(record: RankRecord | None, log: StepLog | None, trace: TraceFacts | None) -> HostFacts:
    """What the recording tells; the timers, which see every step, go before the trace."""
    timed = compiles_of_log(record.events, record.names, log) if record is not None and log is not None else None
    return HostFacts(
        collections=collection_facts(record.events, log) if record is not None and log is not None else None,
        python=trace.python if trace is not None else None,
        compiles=timed or (trace.compiles if trace is not None else None),
        recording=trace.recording if trace is not None else None,
        phases=trace.phases if trace is not None else (),
        between_ratio=between_ratio(trace.partition.segments, trace.window) if trace is not None else 0.0,
        threads=record.meta.threads if record is not None and record.meta is not None else None,
        held=trace.held if trace is not None else None,
        tables=trace.tables if trace is not None else None,
        switches=record.meta.switches if record is not None and record.meta is not None else None,
    )
