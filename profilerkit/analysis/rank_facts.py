"""Join what a rank's timers and its trace say into one breakdown of the steady step."""

from collections.abc import Mapping
from functools import cached_property
from typing import Literal

import msgspec
import numpy as np

from profilerkit.analysis.events import with_evaluation
from profilerkit.analysis.host.host_facts import InputFacts
from profilerkit.analysis.samples import signals, summarise
from profilerkit.analysis.stats import Numbers, median, median_error
from profilerkit.analysis.steps.find import FEWEST_STEPS, TraceSteps
from profilerkit.analysis.steps.log import StepLog, exposed, log_of
from profilerkit.analysis.steps.series import OUTLIER_RATIO, STALL_KINDS, Stall, StepSeries, unnamed_stalls
from profilerkit.analysis.steps.table import NO_STEPS, log_series, log_steps, trace_series, trace_steps
from profilerkit.analysis.steps.wall_clock import Account, account
from profilerkit.analysis.trace_facts import TraceFacts
from profilerkit.analysis.workers.anatomy import named_wait, worker_facts
from profilerkit.model import revise
from profilerkit.model.finding import Source
from profilerkit.model.run import Series, Workers
from profilerkit.model.step import NAMED_PAUSES, PARTS, UNSPLIT, WAITS, Part, Steps, leaf, leaf_times
from profilerkit.rundir.reader import RankRecord
from profilerkit.trace.columns import F64, I64

# Timers see every step: its length, the waits, the named phases. A trace sees a few steps in detail, and slows the host
# while it does. So the lengths come from the timers, the composition of the rest from the trace, and what neither
# explains stays unexplained.

#: Untraced steps may be longer than the traced composition by this ratio before the rest of them is unexplained.
SAME_RATIO = 1.25

#: Parts in which the device works; the rest is the host keeping it waiting.
_WORK = ("compute.", "comm.", "input.h2d", "sync.d2h")

#: The part that the profiler does not slow on a CPU, and the least that it leaves of the others (a choice).
_BLOCKED = "input.fetch"
_LEAST_RATIO = 0.5

Times = dict[str, tuple[float, Source]]


def compose(
    measured: I64, spent: Mapping[str, I64], traced: Mapping[str, float], *, room: I64, on_gpu: bool, stall_ns: float
) -> Times:
    """Leaf to mean time per judged step, ns, and how it came about; the times sum to the mean step.

    Steps that are longer than the typical one by more than their own waits and phases are a periodic stall or stay
    unexplained: the trace of other steps does not tell what happened in them.

    Args:
        measured: ``(n_steps,)`` int64 ns that the judged steps took.
        spent: leaf to the time of waits, named phases and collections, in the order in which they claim the step.
        traced: leaf to its time of a traced step, ns.
        room: time of each step in which the device may have stood still, as far as its clock tells; all of it without.
        on_gpu: a device works beside the host, so that waits and phases may be hidden behind it.
        stall_ns: mean time per step of an unnamed periodic stall.

    >>> time, traced = np.full(4, 100), {"compute.math": 50.0, "over.python": 20.0}
    >>> found = compose(time, {"input.wait": np.full(4, 30)}, traced, room=time, on_gpu=False, stall_ns=0.0)
    >>> {name: round(value) for name, (value, _) in found.items()}
    {'input.wait': 30, 'compute.math': 50, 'over.python': 20}
    """
    work = {name: value for name, value in traced.items() if name.startswith(_WORK)}
    host = {name: value for name, value in traced.items() if name not in work}
    time = measured.astype(np.float64)
    idle = np.maximum(time - sum(work.values()), 0.0) if on_gpu else time
    taken = exposed(spent, np.minimum(room, idle))
    rest = time - sum(taken.values())
    source: Source = "derived" if on_gpu else "measured"
    out: Times = {name: (float(values.mean()), source) for name, values in taken.items()}
    typical = min(float(np.median(rest)), float(rest.mean()))
    slow = float(rest.mean()) - typical
    stall = min(stall_ns, slow)
    for name, entry in (
        *_shared_out(typical, work, host, on_gpu=on_gpu).items(),
        ("other.stall", (stall, "derived")),
        ("idle.unknown", (slow - stall, "derived")),
    ):
        out[name] = (out[name][0] if name in out else 0.0) + entry[0], entry[1]
    return {name: entry for name, entry in out.items() if entry[0] > 0}


def _shared_out(typical: float, work: Mapping[str, float], host: Mapping[str, float], *, on_gpu: bool) -> Times:
    """The rest of the typical step by the traced composition.

    Kernels keep their traced length; what is left of the step is host time, less than traced where the profiler slowed
    the host. On a CPU-only run it slows operators and collectives as well, so these are scaled alike: of gloo runs
    whose traced steps took 1.3 and 1.5 times as long, operators and transfers had grown as much as Python, or more.
    What is blocked on reading is not slowed: of a loop that sleeps for 24 ms of each step 20 were left otherwise.
    """
    if not on_gpu and (blocked := _blocked(typical, {**work, **host})):
        rest = {name: value for name, value in host.items() if name != _BLOCKED}
        return {**_shared_out(typical - blocked, work, rest, on_gpu=False), _BLOCKED: (blocked, "derived")}
    working, waiting = sum(work.values()), sum(host.values())
    if not working + waiting:
        return {"idle.unknown": (typical, "derived")}
    if on_gpu:
        kept = min(1.0, typical / working) if working else 1.0
        left = typical - kept * working
        bent = min(left / waiting, SAME_RATIO) if waiting else 0.0
    else:
        kept = bent = min(typical / (working + waiting), SAME_RATIO)
    exact = on_gpu and kept == 1.0
    out: Times = {name: (kept * value, "measured" if exact else "derived") for name, value in work.items()}
    out |= {name: (bent * value, "derived") for name, value in host.items()}
    unknown = out.get("idle.unknown", (0.0, "derived"))[0] + typical - kept * working - bent * waiting
    return {**out, "idle.unknown": (unknown, "derived")}


def _blocked(typical: float, traced: Mapping[str, float]) -> float:
    """Time blocked on reading, ns, where all of the traced step does not fit the typical one; 0 where it does.

    It keeps its length while the others keep ``_LEAST_RATIO`` of theirs, and is never scaled by more than they are.
    """
    blocked, whole = traced.get(_BLOCKED, 0.0), sum(traced.values())
    if typical >= whole or not blocked:
        return 0.0
    return max(min(blocked, typical - _LEAST_RATIO * (whole - blocked)), blocked * typical / whole)


BLOCKED_RATIO = 0.5  #: share of CPU time below which the loading thread is blocked rather than computing


COMPUTING_RATIO = 0.7  #: above this share of CPU time the loading thread computes

#: Leaves the timers measure themselves: of these a trace's composition is not used where there are timers.
LOGGED = (*NAMED_PAUSES, "over.gc")
_LONGEST_NS = int(np.iinfo(np.int64).max)  #: longer than any step
#: Utilisation is of the second before its sample, about (NVML: of the last sample period, at most a second).
SAMPLE_NS = 1_000_000_000
#: What a trace shows instead of a phase that only the timers know, the likeliest first.
_UNMARKED_PHASES = ("warm.compile", "over.python")
#: Parts of a trace that rest on which thread launched what, not on an event of their own.
_DERIVED = (
    *("comm.skew", "comm.lat", "comm.bw", "over.", "sync.drain", "idle."),
    *("compute.other", "warm.compile", "mem.offload"),
)


# Without slots: what is derived is kept beside the fields.
class RankFacts(msgspec.Struct, frozen=True, dict=True):
    """One rank's story: what was read of it, its breakdown and its steps.

    ``steps`` is what the report shows of them, ``series`` all of them; ``None`` where there is none. ``unseen`` is a
    trace that lacks all of the device's events though the rank trained on one: its timers tell the rank's story.
    ``sampled_busy_ratio`` is the mean share of the judged steps' time in which NVML saw the device run kernels.
    """

    rank: int | None
    origin: str
    trace: TraceFacts | None
    log: StepLog | None
    record: RankRecord | None
    parts: tuple[Part, ...]
    steps: Steps
    series: StepSeries | None
    step_error_ns: float | None
    input: InputFacts | None
    stalls: tuple[Stall, ...]
    samples: tuple[Series, ...]
    inflation_ratio: float | None
    sampled_busy_ratio: float | None = None
    workers: Workers | None = None
    unseen: TraceFacts | None = None

    @cached_property
    def account(self) -> Account | None:
        """What its time went to, computed at the first use and kept; ``None`` without records of its training."""
        return account(self.record, self.log) if self.record is not None else None

    @property
    def mode(self) -> Literal["gpu", "cpu", "steps"]:
        """Whose work the parts tell: the device's, the host's, or only the timers'."""
        return self.trace.partition.mode if self.trace else "steps"

    def share(self, name: str) -> float:
        """Share of one part."""
        return next((part.share for part in self.parts if part.part == name), 0.0)


def rank_facts(origin: str, trace: TraceFacts | None, record: RankRecord | None) -> RankFacts:
    """Join a trace and a step log; either may be missing, not both. The record it keeps has inferred phases as well."""
    if record is not None:
        record = with_evaluation(record)
    return _joined(origin, trace, record, log_of(record) if record else None)


def with_trace(rank: RankFacts, trace: TraceFacts) -> RankFacts:
    """The rank with another reading of the same trace."""
    return _joined(rank.origin, trace, rank.record, rank.log)


def _joined(origin: str, trace: TraceFacts | None, record: RankRecord | None, log: StepLog | None) -> RankFacts:
    unseen = None
    if trace is not None and log is not None and trace.partition.mode == "cpu" and _used_a_device(record):
        trace, unseen = None, trace  # else the host's operators would pass for the device's work
    inflation = _inflation(trace, log)
    workers = worker_facts(record, log) if record is not None and log is not None else None
    wait_part = input_part(log, record, workers) if log is not None else "input.wait"
    if log is not None and log.steady.any():
        parts = _parts_by_log(log, trace, record, wait_part)
    elif trace is not None:
        count = max(trace.n_steady, 1)
        times = leaf_times(trace.totals)
        step_ns = sum(times.values()) / count
        # Without an event of a fetch, what leads up to the batch copies stands for it.
        derived = (*_DERIVED, *(WAITS if len(trace.partition.lead_in) else ()))
        source: dict[bool, Source] = {True: "derived", False: "measured"}
        each = {name: (value / count, source[name.startswith(derived)]) for name, value in times.items()}
        parts = _parts(each, step_ns)
    else:
        parts = ()
    steps, series = _steps(trace, log, record, wait_part)
    rank = record.rank if record else trace.meta.rank if trace else None
    return RankFacts(
        rank=rank,
        origin=origin,
        trace=trace,
        log=log,
        record=record,
        parts=parts,
        steps=steps,
        series=series,
        step_error_ns=median_error(series.time[series.steady]) if series else None,
        input=_input(trace, log, record),
        stalls=log.stalls if log else _trace_stalls(series) if series else (),
        samples=summarise(record.samples, record.rank, int(log.start[0]) if log else None) if record else (),
        inflation_ratio=inflation,
        sampled_busy_ratio=float(busy.mean()) if len(busy := _utilization(log, record)) else None,
        workers=workers,
        unseen=unseen,
    )


def _steps(
    trace: TraceFacts | None, log: StepLog | None, record: RankRecord | None, wait_part: str
) -> tuple[Steps, StepSeries | None]:
    """The steps for the report, and as arrays: of the timers where they tell any, else of the trace."""
    if log is not None and (log.steady.any() or trace is None):
        series = log_series(log, wait_part, record.samples if record else ())
        found_by = record.meta.steps_found_by if record and record.meta else None
        steps = log_steps(log, series, found_by or "the training loop")
        return steps, series if steps.steady else None
    if trace is not None:
        series = trace_series(trace)
        return trace_steps(trace, series), series
    return NO_STEPS, None


def _inflation(trace: TraceFacts | None, log: StepLog | None) -> float | None:
    """Profiled over unprofiled step time; ``None`` unless both were timed."""
    if trace is None or log is None or not trace.n_steady or trace.steps.found_by != "ProfilerStep":
        return None
    disturbed = np.array([state == "disturbed" for state in log.state], dtype=bool)
    if not disturbed.any():
        return None
    traced = trace.steps.index
    near = log.steady & (log.index >= traced.min() - BESIDE) & (log.index <= traced.max() + BESIDE)
    unprofiled = median(log.time[near if np.count_nonzero(near) >= FEWEST_STEPS else log.steady])
    return median(trace.window.end - trace.window.start) / unprofiled if unprofiled else None


#: Untraced steps on each side of a window that its steps are compared with: a run may get slower or quicker meanwhile.
BESIDE = 50


def _parts(times: Times, step_ns: float) -> tuple[Part, ...]:
    """The parts of a step, largest first."""
    parts = [
        Part(part=name, family=PARTS[name][0], time_ns=round(time_ns), share=time_ns / step_ns, source=source)
        for name, (time_ns, source) in times.items()
        if round(time_ns) > 0
    ]
    return tuple(sorted(parts, key=lambda part: -part.time_ns))


def _parts_by_log(
    log: StepLog, trace: TraceFacts | None, record: RankRecord | None, wait_part: str
) -> tuple[Part, ...]:
    """The mean untraced step: timers for what they measure, the trace's composition for the rest."""
    steady = log.steady
    waits = {wait_part} if log.waits_seen else set()
    spent = {
        name: values[steady] for name, values in log.spent(wait_part).items() if name in waits or name != wait_part
    }
    step_ns = float(log.time[steady].mean())
    traced = _composition(log, trace) if trace is not None else _at_work(log, record, step_ns)
    unnamed = sum(stall.share for stall in log.stalls if stall.part is None)
    on_gpu = trace.partition.mode == "gpu" if trace is not None else _used_a_device(record)
    times = compose(log.time[steady], spent, traced, room=log.room[steady], on_gpu=on_gpu, stall_ns=unnamed * step_ns)
    # Without a trace only the device's clock shows how much of a wait the device worked through.
    device = log.device
    known = {
        UNSPLIT: (device is not None and device.work_ns is not None) or len(_utilization(log, record)) > 0,
        wait_part: device is not None and device.saw_waits,
    }
    # Derived where nobody named it, or it rests on other ranks' clocks.
    sources: dict[str, Source] = dict.fromkeys((*log.inferred_phases, "comm.skew", "comm.lat", "comm.bw"), "derived")
    for name in (UNSPLIT, *waits) if trace is None and _used_a_device(record) else ():
        sources[name] = "derived" if known[name] else "estimated"
    told = {name: (value, sources.get(name, source)) for name, (value, source) in times.items()}
    return _parts(told, step_ns)


def _used_a_device(record: RankRecord | None) -> bool:
    """Whether the recorded process trained on a device."""
    return record is not None and record.meta is not None and record.meta.device_name is not None


def _at_work(log: StepLog, record: RankRecord | None, step_ns: float) -> dict[str, float]:
    """Return the device's work of a step without a trace, ns, as one part; empty where nothing shows how long it was.

    It is how long the device ran kernels, as NVML sampled it, or how long the host waited in calls until it was done:
    the longer one, as each may miss something. The device's clock, in the steps that nothing held up, bounds it: copies
    are in that time too.
    """
    at_most = log.device.work_ns if log.device is not None else None
    busy = _utilization(log, record) if _used_a_device(record) else _NO_SAMPLES
    known = [median(busy) * step_ns] if len(busy) else []
    if at_most is not None:
        return {UNSPLIT: min([at_most, *known])}
    if _used_a_device(record):
        known.append(float(log.sync[log.steady].mean()))
    return {UNSPLIT: min(max(known), step_ns)} if max(known, default=0.0) else {}


#: Samples of a device's utilisation in the judged steps, below which they are what happened to be going on (a choice).
_FEWEST_SAMPLES = 3
_NO_SAMPLES = np.empty(0)


def _utilization(log: StepLog | None, record: RankRecord | None) -> Numbers:
    """Return the shares of time in which the device ran kernels, of samples taken wholly in judged steps."""
    if record is None or log is None:
        return _NO_SAMPLES
    low, high = log.window
    inside = [sample for sample in record.samples if low + SAMPLE_NS <= sample.t_ns <= high]
    found = next((found.values for found in signals(inside) if found.name == "gpu.utilization"), _NO_SAMPLES)
    return found if len(found) >= _FEWEST_SAMPLES else _NO_SAMPLES


def _composition(log: StepLog, trace: TraceFacts) -> dict[str, float]:
    """Leaf to mean time per typical traced step, ns, without what the timers measure themselves, and without stops."""
    per_step = trace.partition.per_step[trace.steps.judged]
    left_out = [leaf(name) for name in (*LOGGED, *(WAITS if log.waits_seen else ()))]
    weight, stopped = _weights(log, trace.steps, per_step.sum(axis=1) - per_step[:, left_out].sum(axis=1))
    count = max(len(weight), 1)
    times = {name: value / count for name, value in leaf_times(np.rint(weight @ per_step).astype(np.int64)).items()}
    traced = {name: value for name, value in times.items() if leaf(name) not in left_out}
    # A trace has no event of a checkpoint, nor the timers' name for a compilation: it shows both as something else.
    unmarked = float(weight @ stopped) / count - sum(times.get(name, 0.0) for name in log.phases)
    for name in _UNMARKED_PHASES:
        taken = min(max(unmarked, 0.0), traced.get(name, 0.0))
        if taken:
            traced[name] -= taken
            unmarked -= taken
    return traced


def _weights(log: StepLog, steps: TraceSteps, time: I64) -> tuple[F64, F64]:
    """``(n_judged,)`` how often each judged step of a trace counts, and how long it stops, ns.

    Steps in which nothing stops, and that are not much longer than the typical one, represent the others of their
    kind, with or without an optimizer step. Where each of a kind stops they count as they are.
    """
    index = steps.index[steps.judged]
    stopped, weight = np.zeros(len(index)), np.ones(len(index))
    named = sum(log.phases.values(), np.zeros_like(log.time))
    _, at, here = np.intersect1d(log.index, index, return_indices=True)
    stopped[here] = named[at]
    for stall in log.stalls:
        if stall.part is None and stall.period:
            stopped[(index - stall.steps[0]) % stall.period == 0] += stall.excess_ns
    typical = median((log.time - log.wait - named)[log.steady])
    for is_kind in (steps.optimizes[steps.judged], ~steps.optimizes[steps.judged]):
        calm = is_kind & (stopped == 0)
        plain = calm & (time <= OUTLIER_RATIO * max(time[calm].min(initial=_LONGEST_NS), typical))
        if plain.any():
            weight[is_kind] = 0.0
            weight[plain] = np.count_nonzero(is_kind) / np.count_nonzero(plain)
    return weight, stopped


def input_part(log: StepLog, record: RankRecord | None, workers: Workers | None = None) -> str:
    """Which input leaf the waits belong to."""
    loader = record.meta.loader if record and record.meta else None
    ratio = _ratio_of_waits(log, log.wait_cpu)
    if workers is not None:
        return named_wait(workers, ratio)
    if ratio is not None:
        ratio = ready_ratio(ratio, _queue_ratio(log) or 0.0)
    if ratio is None or (loader is not None and loader.num_workers not in (0, None)):
        return "input.wait"
    return "input.prep" if ratio >= COMPUTING_RATIO else "input.fetch" if ratio <= BLOCKED_RATIO else "input.wait"


def _ratio_of_waits(log: StepLog, spent: I64) -> float | None:
    """What was ``spent`` in the waits of the steady steps where that is known, over these waits."""
    known = log.steady & (spent >= 0)
    waited = int(log.wait[known].sum())
    return min(float(spent[known].sum()) / waited, 1.0) if waited else None


def _queue_ratio(log: StepLog) -> float | None:
    """Share of the waits of the steady steps in which their thread queued for a processor; ``None`` if none tells."""
    known = log.steady & (log.wait_queue >= 0) & (log.wait_cpu >= 0)
    off_ns, computed = int((log.wait - log.wait_cpu)[known].sum()), _ratio_of_waits(log, log.wait_cpu)
    if off_ns <= 0 or computed is None:
        return None if computed is None or not known.any() else 0.0
    return min(int(log.wait_queue[known].sum()) / off_ns, 1.0) * (1.0 - computed)


def _input(trace: TraceFacts | None, log: StepLog | None, record: RankRecord | None) -> InputFacts | None:
    if log is None or not log.waits_seen:
        return trace.input if trace else None
    loader = record.meta.loader if record and record.meta else None
    single = loader.num_workers == 0 if loader and loader.num_workers is not None else None
    if single is None and trace and trace.input:
        single = trace.input.single_process
    on_device = (trace is not None and trace.partition.mode == "gpu") or _used_a_device(record)
    by_clock = log.device is not None and log.device.saw_waits
    steady_ns = int(log.time[log.steady].sum())
    return InputFacts(
        cpu_ratio=_ratio_of_waits(log, log.wait_cpu),
        queue_ratio=_queue_ratio(log),
        fetches=log.fetches,
        single_process=single,
        source="derived" if on_device and not by_clock else "measured",
        origin="step timers",
        held_ratio=int(log.wait[log.steady].sum()) / steady_ns if steady_ns else None,
        frames=trace.input.frames if trace and trace.input else (),
        frames_ratio=trace.input.frames_ratio if trace and trace.input else None,
    )


def _trace_stalls(series: StepSeries) -> tuple[Stall, ...]:
    """Longer steps that recur; one that grows by a named part bears its name, and waits for data are told as such."""
    return tuple(
        revise(stall, kind=STALL_KINDS[stall.grew], part=stall.grew) if stall.grew in STALL_KINDS else stall
        for stall in unnamed_stalls(series, series.time)
        if stall.grew is None or not stall.grew.startswith("input.")
    )


def ready_ratio(cpu_ratio: float, queue_ratio: float) -> float:
    """Share of a wait in which its thread computed, as far as a busy machine let it."""
    return min(cpu_ratio + queue_ratio, 1.0)
