"""Say what was recorded of a run, what was damaged or missing, and what recording cost."""

from collections.abc import Iterable, Sequence
from typing import Literal

import numpy as np

from profilerkit.analysis.device.kernels import LaunchFacts
from profilerkit.analysis.events import EVENT_DTYPE
from profilerkit.analysis.rank_facts import RankFacts
from profilerkit.analysis.ranks.alike import why_no_trace
from profilerkit.analysis.trace_facts import TraceFacts
from profilerkit.model.change import revise
from profilerkit.model.run import INPUT_WAIT, OPERATOR_TRACE, STEP_TIMERS, CaptureCost, Series, Signal
from profilerkit.rundir.layout import EventKind
from profilerkit.rundir.reader import RankRecord, named_ranks
from profilerkit.trace.columns import Damage, Recorder
from profilerkit.units import format_count, format_ratio

#: Places and files beyond so many are counted instead of named.
NAMED = 5


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
    """Time the loop stood still for trace windows; ``None`` without a window.

    Each took that much longer than the steps traced in it, and than the one before them in which torch got ready.
    """
    events = np.frombuffer(record.events, dtype=EVENT_DTYPE)
    windows = events[events["kind"] == EventKind.WINDOW]
    if not len(windows):
        return None
    traced_ns = {
        status.first_step: status.end_perf_ns - status.start_perf_ns
        for status, _ in record.windows
        if status.start_perf_ns is not None and status.end_perf_ns is not None
    }
    spans = zip(windows["value"].tolist(), windows["dur"].tolist(), strict=True)
    return sum(int(max(0, dur_ns - traced_ns[first] - step_ns)) for first, dur_ns in spans if first in traced_ns)


def budget_notes(records: Iterable[RankRecord]) -> list[str]:
    """What was turned off because recording cost too much; equal sentences of several ranks once."""
    notes: list[str] = []
    for record in records:
        own = record.meta.own_cost if record.meta else None
        if own is None:
            continue
        notes += [_sentence(text) for text in own.turned_off]
        if own.is_exceeded:
            notes.append(
                f"Recording every step cost more than its budget of {format_ratio(own.budget_ratio)}, even with parts "
                "of it turned off; light=False records trace windows alone."
            )
    return list(dict.fromkeys(notes))


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


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
            reason = reason or ("nothing was sampled" if record is not None else "a trace holds no counters")
            said.append(Signal(name=name, state="missing", reason=reason, hint=hint))
        elif reason:
            said.append(Signal(name=name, state="partial", reason=reason))
        else:
            said.append(Signal(name=name, state="measured"))
    gpu = meta.gpu if meta is not None else None
    if gpu is not None and gpu.gpm:
        said.insert(1, Signal(name="busy parts of the GPU (GPM)", state="missing", reason=gpu.gpm))
    elif gpu is not None:
        said.insert(1, Signal(name="busy parts of the GPU (GPM)", state="measured"))
    return tuple(said)


def unread(framework: str) -> str:
    """What such a profile lacks, in one sentence."""
    return (
        f"This is a profile of {framework}: device work and step marks are read; launches, loader waits and Python "
        "are not."
    )


def signals_of(trace: TraceFacts, framework: str) -> tuple[Signal, ...]:
    """What was read of such a profile, and what is not to be had from it."""
    hint = "look at the host's rows in the profile itself, for example in XProf or Perfetto"
    kind = f"a profile of {framework}"
    if trace.steps.inferred:
        steps = Signal(
            name="step marks",
            state="missing",
            reason=f"the profile has none; steps were taken from {trace.steps.found_by}",
            hint="jax.profiler.StepTraceAnnotation, or tf.profiler.experimental.Trace, around each step",
        )
    else:
        steps = Signal(name="step marks", state="measured")
    return (
        Signal(name="device events", state="measured"),
        steps,
        Signal(name="launch calls of device work", state="missing", reason=f"not read from {kind}", hint=hint),
        Signal(name=INPUT_WAIT, state="missing", reason=f"not read from {kind}", hint=hint),
        Signal(name="Python stacks", state="missing", reason=f"not read from {kind}", hint=hint),
        Signal(name="memory", state="missing", reason=f"not read from {kind}", hint=hint),
    )


#: How a trace shows the device, what Python does, and how a loop without a loader shows what it waits for.
SHOW_DEVICE = "ProfilerActivity.CUDA"
SHOW_STACKS = "torch.profiler: with_stack=True"
SHOW_FETCHES = 'wrap the iterable of batches, prof.wrap(batches), or fetch each one under prof.phase("data")'
_FETCHES = "an NVTX range around each fetch of a batch, named for it"
_OPERATORS = "torch.autograd.profiler.emit_nvtx() around the steps"
#: How Nsight Systems shows what torch.profiler would show another way (its user guide: --trace; torch's emit_nvtx), by
#: how that does. Shapes and memory it shows not at all.
_WITH_NSYS = {
    SHOW_DEVICE: "nsys profile --trace=cuda,nvtx,osrt",
    "ProfilerActivity.CUDA beside ProfilerActivity.CPU": "nsys profile --trace=cuda,nvtx,osrt",
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
        return Signal(name="memory", state="measured")
    sampled = [series.name for series in chosen.samples if series.name in ("gpu.memory_used", "host.process_memory")]
    if chosen.log is not None and sampled:
        return Signal(name="memory", state="partial", reason="memory use was sampled, not allocations", hint=hint)
    return Signal(name="memory", state="missing", reason="not recorded", hint=hint)


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

    def signal(name: str, present: bool, reason: str, hint: str) -> Signal:
        return (
            Signal(name=name, state="measured")
            if present
            else Signal(name=name, state="missing", reason=reason, hint=hint)
        )

    no_steps = "no step was recorded" if record else "only a trace was given"
    no_device = "the trace has none; the main thread is treated as the device" if trace else "there is no trace"
    if chosen.unseen is not None:
        no_device = "the trace has none, although they were asked for"
    lacking = trace.meta.no_operators if trace else why_no_trace(record)
    signals = (
        signal(STEP_TIMERS, chosen.log is not None, no_steps, capture),
        signal(INPUT_WAIT, chosen.input is not None, "no loader was seen", "wrap the loader: prof.wrap(loader)"),
        signal(OPERATOR_TRACE, not lacking, lacking or "", "profilerkit.profile(..., deep=True)"),
        signal(
            "device events",
            trace is not None and trace.partition.mode == "gpu",
            no_device,
            "the end of the file is missing" if trace and trace.damage.truncated else SHOW_DEVICE,
        ),
        *_launch_signal(trace.launches if trace else None),
        signal("operator shapes", "record_shapes" in recorded, "not recorded", "torch.profiler: record_shapes=True"),
        signal("Python stacks", "with_stack" in recorded, "not recorded", SHOW_STACKS),
        _memory_signal(chosen),
        *counter_signals(record, chosen.samples, capture),
        signal(
            "unprofiled step time",
            chosen.log is not None,
            no_steps if record else "only profiled steps were given",
            capture,
        ),
    )
    recorder = trace.meta.recorder if trace else "torch"
    return tuple(revise(known, hint=fitting(known.hint, recorder)) if known.hint else known for known in signals)
