"""Say what was recorded of a run, what was damaged or missing, and what recording cost."""

from collections.abc import Iterable, Sequence
from typing import Literal

import numpy as np

from profilerkit.analysis.device.kernels import LaunchFacts
from profilerkit.analysis.events import EVENT_DTYPE
from profilerkit.analysis.rank_facts import RankFacts
from profilerkit.analysis.ranks.alike import why_no_trace
from profilerkit.analysis.steps.series import Doubt, weaknesses
from profilerkit.analysis.trace_facts import TraceFacts
from profilerkit.model import revise
from profilerkit.model.run import INPUT_WAIT, OPERATOR_TRACE, STEP_TIMERS, CaptureCost, Series, Signal, Trust
from profilerkit.model.step import WHOLE_TRACE
from profilerkit.rundir.layout import EventKind, NoKernels
from profilerkit.rundir.reader import RankRecord, named_ranks
from profilerkit.trace.columns import ANOTHER_FOLLOWS, Damage, Recorder
from profilerkit.units import format_count, format_ratio

NAMED = 5  #: places and files beyond so many are counted instead of named


def damage_notes(traces: Sequence[tuple[str, Damage]]) -> list[str]:
    """Sentences about the damage of some traces, given with their names; of several traces each sentence names its own.

    >>> damage_notes([("trace.json", Damage(notes=("the compressed data ends early",)))])
    ['The compressed data ends early.']
    """
    several = len(traces) > 1
    notes = []
    for name, damage in traces:
        said = [f"{note[0].upper()}{note[1:]}." for note in damage.notes]
        if several and (counted := _counted(damage)):
            said.insert(0, f"{counted}.")
        notes += [f"{name}: {sentence}" if several else sentence for sentence in said]
    if several and len(notes) > NAMED:
        notes = [*notes[:NAMED], f"{len(notes) - NAMED} more sentences about damaged traces are left out."]
    places = [f"{name}: {place}" if several else place for name, damage in traces for place in damage.samples]
    return notes + [f"Damaged: {place}" for place in places[:NAMED]]


def _counted(damage: Damage) -> str:
    """How much was lost and repaired; empty when nothing was."""
    counts = ((damage.dropped, "dropped"), (damage.repaired, "repaired"))
    said = [f"{count:,} {'event' if count == 1 else 'events'} {what}" for count, what in counts if count]
    return ", ".join([*said, *(["the end is missing"] if damage.truncated else [])])


def record_notes(records: Sequence[RankRecord]) -> list[str]:
    """What was missing or damaged in the ranks' records; each sentence names the ranks it is about."""
    of: dict[str, list[int]] = {}
    for record in records:
        for note in record.notes:
            of.setdefault(note, []).append(record.rank)
    return [f"{named_ranks(ranks)}: {note}" for note, ranks in of.items()]


def capture_cost(record: RankRecord | None, step_ns: int) -> CaptureCost | None:
    """What recording this rank cost; ``None`` without a run directory that says so. A step takes ``step_ns``."""
    meta, end = (record.meta, record.end) if record else (None, None)
    if record is None or meta is None or meta.own_cost is None:
        return None
    closed_ns = end.closed_perf_ns if end else None
    return CaptureCost(
        per_step_ns=meta.self_ns_per_step,
        start_ns=meta.own_cost.start_ns,
        close_ns=closed_ns - end.end_perf_ns if end and closed_ns is not None else None,
        windows_ns=_paused_ns(record, step_ns),
    )


def _paused_ns(record: RankRecord, step_ns: int) -> int | None:
    """Time the loop stood still for trace windows; ``None`` without a window."""
    events = np.frombuffer(record.events, dtype=EVENT_DTYPE)
    windows = events[events["kind"] == EventKind.WINDOW]
    if not len(windows):
        return None
    known = [(status.first_step, status.start_perf_ns, status.end_perf_ns) for status, _ in record.windows]
    traced_ns = {first: end - start for first, start, end in known if start is not None and end is not None}
    spans = zip(windows["value"].tolist(), windows["dur"].tolist(), strict=True)
    return sum(int(max(0, dur_ns - traced_ns[first] - step_ns)) for first, dur_ns in spans if first in traced_ns)


def budget_notes(records: Iterable[RankRecord]) -> list[str]:
    """What was turned off because recording cost too much; equal sentences of several ranks once."""
    notes: list[str] = []
    for record in records:
        own = record.meta.own_cost if record.meta else None
        if own is None:
            continue
        notes += [f"{text[:1].upper()}{text[1:]}." for text in own.turned_off]
        if own.is_exceeded:
            notes.append(
                f"Recording every step cost more than its budget of {format_ratio(own.budget_ratio)}, even with parts "
                "of it turned off; light=False records trace windows alone."
            )
    return list(dict.fromkeys(notes))


#: Signals of the trust section, the feature that gives them, and how the names of its series begin.
_COUNTERS = (("GPU counters", "nvml", "gpu."), ("host counters", "host", "host."))


def counter_signals(record: RankRecord | None, samples: Sequence[Series], hint: str) -> tuple[Signal, ...]:
    """What was sampled of the device and of the host; ``hint`` is how to get what is missing.

    A device that was lost in the run was measured in part. GPM is told only of a device that was found.
    """
    meta = record.meta if record is not None else None
    said = []
    for name, feature, prefix in _COUNTERS:
        state = meta.features.get(feature) if meta is not None else None
        reason = state.reason if state is not None and not state.on else ""
        if not any(series.name.startswith(prefix) for series in samples):
            nothing = "nothing was sampled" if record is not None else "a trace holds no counters"
            said.append(_seen(name, reason or nothing, hint))
        else:
            said.append(Signal(name=name, state="partial", reason=reason) if reason else _seen(name, None))
    gpu = meta.gpu if meta is not None else None
    if gpu is not None:
        said.insert(1, _seen("busy parts of the GPU (GPM)", gpu.gpm or None))
    return tuple(said)


def _seen(name: str, reason: str | None, hint: str = "") -> Signal:
    """A signal that was measured, or is missing for a reason."""
    if reason is None:
        return Signal(name=name, state="measured")
    return Signal(name=name, state="missing", reason=reason, hint=hint)


def signals_of(trace: TraceFacts, framework: str) -> tuple[Signal, ...]:
    """What was read of such a profile, and what is not to be had from it."""
    marks = f"the profile has none; steps were taken from {trace.steps.found_by}" if trace.steps.inferred else None
    unread = f"not read from a profile of {framework}"
    hint = "look at the host's rows in the profile itself, for example in XProf or Perfetto"
    return (
        _seen("device events", None),
        _seen(
            "step marks", marks, "jax.profiler.StepTraceAnnotation, or tf.profiler.experimental.Trace, around each step"
        ),
        *(_seen(name, unread, hint) for name in ("launch calls of device work", INPUT_WAIT, "Python stacks", "memory")),
    )


#: How a trace shows the device, what Python does, and how a loop without a loader shows what it waits for.
SHOW_DEVICE = "ProfilerActivity.CUDA"
WITH_DEVICE = "ProfilerActivity.CUDA beside ProfilerActivity.CPU"
SHOW_STACKS = "torch.profiler: with_stack=True"
SHOW_FETCHES = 'wrap the iterable of batches, prof.wrap(batches), or fetch each one under prof.phase("data")'
_FETCHES = "an NVTX range around each fetch of a batch, named for it"
_OPERATORS = "torch.autograd.profiler.emit_nvtx() around the steps"
_PERMISSION = (
    "run the container with --cap-add=SYS_ADMIN, or load the NVIDIA driver with NVreg_RestrictProfilingToAdminUsers=0"
)
_OTHER_TOOL = "stop the other profiler of this process, such as nsys or ncu: CUPTI serves one at a time"
#: How to have the profiler see kernels, by why it saw none (NVIDIA's page on ERR_NVGPUCTRPERM; CUPTI's documentation).
SHOW_KERNELS: dict[NoKernels, str] = {
    "not_built": "install a build of torch with CUDA's profiler: torch.profiler.supported_activities() lists it",
    "other_tool": _OTHER_TOOL,
    "permission": _PERMISSION,
    "wsl": "trace on Linux itself, or with a Windows driver that supports CUPTI under WSL 2",
    "unknown": f"{_PERMISSION}; or {_OTHER_TOOL}; or update a driver that is older than torch's CUDA",
    "not_asked": f"record with {WITH_DEVICE}",
    "mps": "look at the device with torch.mps.profiler and Instruments: torch.profiler does not see it",
    "npu": "record with torch_npu.profiler.profile and its ProfilerActivity.NPU",
    "cut": "record fewer steps, or save the trace again",
}
#: How Nsight Systems shows what torch.profiler would show another way (its user guide: --trace; torch's emit_nvtx), by
#: how that does. Shapes and memory it shows not at all.
_WITH_NSYS = {
    SHOW_DEVICE: "nsys profile --trace=cuda,nvtx,osrt",
    SHOW_KERNELS["not_asked"]: "record with nsys profile --trace=cuda,nvtx,osrt",
    "ProfilerActivity.CPU": _OPERATORS,
    "torch.profiler": _OPERATORS,
    "profilerkit.profile(..., deep=True)": _OPERATORS,
    "torch.profiler marks those of torch.optim": _OPERATORS,
    SHOW_STACKS: "an NVTX range around each function to distinguish",
    "torch.profiler: record_shapes=True": "a trace of torch.profiler, record_shapes=True: an export holds no shapes",
    "torch.profiler: profile_memory=True": "a trace of torch.profiler, profile_memory=True: an export holds no memory",
    SHOW_FETCHES: f"put {_FETCHES}",
    "wrap the loader: prof.wrap(loader)": _FETCHES,
    "wrap the loader: for batch in prof.wrap(loader)": _FETCHES,
    "wrap the loader: prof.wrap(loader); without one: prof.phase('data'), or with_stack=True": _FETCHES,
}


def fitting(hint: str, recorder: Recorder) -> str:
    """Return how the tool that wrote a file records what is missing in it; ``hint`` is how torch.profiler does."""
    return _WITH_NSYS.get(hint, hint) if recorder == "nsys" else hint


def _launch_signal(launches: LaunchFacts | None) -> tuple[Signal, ...]:
    """How much of the device's work is joined to the call that launched it; none without device events."""
    if launches is None:
        return ()
    said = []
    if launches.unlinked:
        said.append(
            f"{format_count(launches.unlinked)} of {format_count(launches.events)} device events have no launch call "
            "in the trace; they count in full"
        )
    if launches.in_graphs:
        said.append(
            f"{format_count(launches.in_graphs)} of {format_count(launches.events)} device events were launched by "
            f"{format_count(launches.graph_launches)} graph launch{'' if launches.graph_launches == 1 else 'es'}"
        )
    state: Literal["measured", "partial"] = "partial" if launches.unlinked else "measured"
    return (Signal(name="launch calls of device work", state=state, reason="; ".join(said)),)


def _memory_signal(chosen: RankFacts) -> Signal:
    """Whether the allocator told of its memory, or only samples show the memory's use."""
    hint = "torch.profiler: profile_memory=True"
    if chosen.trace is not None and chosen.trace.memory.peak_allocated_bytes is not None:
        return _seen("memory", None)
    sampled = [series.name for series in chosen.samples if series.name in ("gpu.memory_used", "host.process_memory")]
    if chosen.log is not None and sampled:
        return Signal(name="memory", state="partial", reason="memory use was sampled, not allocations", hint=hint)
    return _seen("memory", "not recorded", hint)


def signals_of_rank(chosen: RankFacts) -> tuple[Signal, ...]:
    """What was recorded of the judged rank and how to record the rest."""
    trace, record = chosen.trace, chosen.record
    if trace and trace.meta.framework:
        return signals_of(trace, trace.meta.framework)
    if trace and trace.meta.unprofiled and chosen.log is None:
        hint = "profilerkit run -- train.py, or torch.profiler"
        return (Signal(name="profiler events", state="missing", reason=trace.meta.unprofiled, hint=hint),)
    recorded = trace.meta.recorded if trace else frozenset()
    capture = "run the loop under profilerkit.profile(...)"

    no_steps = "no step was recorded" if record else "only a trace was given"
    no_device = "the trace has none; the main thread is treated as the device" if trace else "there is no trace"
    if chosen.unseen is not None:
        no_device = "the trace has none, although they were asked for"
    lacking = trace.meta.no_operators if trace else why_no_trace(record)
    on_gpu, timed = trace is not None and trace.partition.mode == "gpu", chosen.log is not None
    why = trace.no_kernels if trace else None
    shapes, stacks = (None if name in recorded else "not recorded" for name in ("record_shapes", "with_stack"))
    signals = (
        _seen(STEP_TIMERS, None if timed else no_steps, capture),
        _seen(INPUT_WAIT, None if chosen.input else "no loader was seen", "wrap the loader: prof.wrap(loader)"),
        _seen(OPERATOR_TRACE, lacking or None, "profilerkit.profile(..., deep=True)"),
        _seen("device events", None if on_gpu else no_device, SHOW_KERNELS[why] if why else SHOW_DEVICE),
        *_launch_signal(trace.launches if trace else None),
        _seen("operator shapes", shapes, "torch.profiler: record_shapes=True"),
        _seen("Python stacks", stacks, SHOW_STACKS),
        _memory_signal(chosen),
        *counter_signals(record, chosen.samples, capture),
        _seen(
            "unprofiled step time", None if timed else no_steps if record else "only profiled steps were given", capture
        ),
    )
    recorder = trace.meta.recorder if trace else "torch"
    return tuple(revise(known, hint=fitting(known.hint, recorder)) if known.hint else known for known in signals)


def trust_of(
    ranks: Sequence[RankFacts], chosen: RankFacts, of_the_run: Sequence[str], doubts: Sequence[Doubt]
) -> Trust:
    """What was recorded of the judged rank, how completely, and what recording cost; ``of_the_run`` are notes."""
    damage = [rank.trace.damage for rank in ranks if rank.trace]
    trace = chosen.trace
    meta = chosen.record.meta if chosen.record else None
    step_ns = chosen.steps.time_ns.median if chosen.steps.time_ns else None
    own = meta.self_ns_per_step if meta else None
    records = [rank.record for rank in ranks if rank.record]
    notes = [*of_the_run, *budget_notes(records)]
    notes += damage_notes([(rank.origin, rank.trace.damage) for rank in ranks if rank.trace])
    notes += record_notes(records)
    if chosen.unseen or (trace and trace.no_kernels and not trace.damage.truncated):
        notes.insert(0, "The run used a device, but the trace holds none of its events.")
    notes += [doubt.words for doubt in doubts if doubt.words not in notes]
    if chosen.steps.inferred and chosen.steps.time_ns:
        is_whole = chosen.steps.found_by == WHOLE_TRACE
        whole = "Nothing marks a step: the whole recording is judged as one."
        notes.append(whole if is_whole else f"Steps were inferred from {chosen.steps.found_by}.")
    return Trust(
        mode="gpu" if chosen.mode == "gpu" else "cpu" if chosen.mode == "cpu" else "steps",
        events=sum(rank.trace.n_events for rank in ranks if rank.trace),
        repaired=sum(entry.repaired for entry in damage),
        dropped=sum(entry.dropped for entry in damage),
        truncated=any(entry.truncated for entry in damage),
        another_follows=any(ANOTHER_FOLLOWS in entry.notes for entry in damage),
        damaged=tuple(
            rank.origin for rank in ranks if rank.trace and (rank.trace.damage.truncated or rank.trace.damage.dropped)
        ),
        inflation_ratio=chosen.inflation_ratio,
        overhead_ratio=own / step_ns if own is not None and step_ns else None,
        cost=capture_cost(chosen.record, step_ns or 0),
        signals=signals_of_rank(chosen),
        notes=tuple(notes),
    )


MANY_DROPPED = 0.01  #: share of a trace's events that may be lost before that is a reason to doubt
#: Profiled over unprofiled step time outside of this says that the traced steps are not like the others.
ALIKE = (0.8, 1.5)
#: Mean over median step from which a few slow steps carry the mean, and how much of the step must be
#: unexplained for that to matter: named phases and periodic stalls explain theirs.
OUTLIER_MEAN = 1.2
NOTED_UNKNOWN = 0.10
#: Mean share of time in which some process waited for a core (PSI), from which host times are not the run's own.
HIGH_PRESSURE = 0.4
HIGH_STEAL = 0.02  #: mean share of the processors' time that other guests took, from which they are not either


def doubts_of(chosen: RankFacts, no_trace: Sequence[str]) -> list[Doubt]:
    """What makes the numbers less sure than they look; ``no_trace`` says which ranks have none, while others do."""
    out = [] if chosen.trace else [Doubt("untraced ranks", said) for said in no_trace]
    if chosen.trace and chosen.trace.meta.framework:
        unread = "device work and step marks are read; launches, loader waits and Python are not"
        out.append(Doubt("framework", f"This is a profile of {chosen.trace.meta.framework}: {unread}."))
    if (
        chosen.trace
        and chosen.mode == "cpu"
        and chosen.record is None
        and chosen.trace.meta.devices
        and not chosen.trace.no_kernels
    ):
        hint = fitting(SHOW_DEVICE, chosen.trace.meta.recorder)
        said = f"If the model is on the GPU that the trace lists, record {hint}: its events are missing."
        out.append(Doubt("unseen device", said))
    damage = chosen.trace.damage if chosen.trace else None
    if damage and damage.truncated and chosen.mode == "gpu":
        said = "The end of the file is missing, with some device events: the device did more than is shown."
        out.append(Doubt("cut file", said))
    if chosen.trace and damage and damage.dropped and damage.dropped >= MANY_DROPPED * chosen.trace.n_events:
        said = f"{damage.dropped:,} damaged events could not be read: shares may be off by as much."
        out.append(Doubt("lost events", said))
    ratio, times = chosen.inflation_ratio, chosen.steps.time_ns
    if ratio is not None and not ALIKE[0] <= ratio <= ALIKE[1]:
        said = f"Traced steps took {ratio:.2f} × the time of the others: how the step splits is uncertain."
        out.append(Doubt("traced steps", said))
    unexplained = chosen.share("idle.unknown") >= NOTED_UNKNOWN
    if times is not None and times.mean > OUTLIER_MEAN * times.median > 0 and unexplained:
        said = f"Slow steps raise the mean to {times.mean / times.median:.1f} × the median."
        out.append(Doubt("slow steps", said))
    if chosen.series is not None:
        out += weaknesses(chosen.series, chosen.step_error_ns)
    mean = {series.name: series.mean for series in chosen.samples}
    if (pressure := mean.get("host.cpu_pressure")) is not None and pressure >= HIGH_PRESSURE:
        said = f"The host was busy: tasks waited for a core {100 * pressure:.0f} % of the time (PSI)."
        out.append(Doubt("pressure", said))
    if (steal := mean.get("host.steal")) is not None and steal > HIGH_STEAL:
        taken = f"{100 * steal:.0f} % of its processors' time"
        said = f"Other guests of this machine took {taken}: host times may differ in the next run."
        out.append(Doubt("steal", said))
    return out
