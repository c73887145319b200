"""The facts of a run with what logs beside it say, or of the logs alone."""

from collections.abc import Sequence

import msgspec

from profilerkit.analysis.facts import Facts
from profilerkit.analysis.logs.history import memory_snapshots
from profilerkit.analysis.logs.joining import JoinedGpu, is_of_the_time, join_logs, join_sampler, join_snapshot
from profilerkit.analysis.logs.log_facts import LogFacts, rests
from profilerkit.analysis.rank_facts import RankFacts
from profilerkit.analysis.samples import summarise
from profilerkit.analysis.surroundings import Surroundings, Throttling, hottest, throttling
from profilerkit.model.change import revise
from profilerkit.model.memory import Memory, MemorySnapshot, OutOfMemory
from profilerkit.model.run import Series, Signal, Trust
from profilerkit.rundir.sampled import Sample
from profilerkit.trace.logs import Log, SamplerLog, SnapshotLog
from profilerkit.units import format_bytes

#: Signals of a sampler's log, and what ``nvidia-smi --query-gpu`` calls them.
_WANTED = (
    ("gpu.utilization", "utilization.gpu"),
    ("gpu.memory_used", "memory.used"),
    ("gpu.power", "power.draw"),
    ("gpu.temperature", "temperature.gpu"),
    ("gpu.sm_clock", "clocks.sm"),
    ("gpu.hw_slowdown", "clocks_throttle_reasons.active"),
)
#: Devices whose samples are kept for a figure: more lanes are too flat to be read (a choice).
MOST_DRAWN = 8
_NO_STEPS = "A sampler shows how busy a device was, not what it did: its log has no steps, kernels or waits."
_APART = "The logs do not say whether they share a run or a device, so each is reported on its own."
_ONLY_LOGS = "only logs were given"
_HISTORY = "torch.cuda.memory._record_memory_history()"


class _Device(msgspec.Struct, frozen=True):
    """One device of a sampler's log by the name the report gives it; ``origin`` is the log's."""

    label: str
    origin: str
    samples: tuple[Sample, ...]


def with_logs(facts: Facts, ranks: Sequence[RankFacts], logs: Sequence[Log]) -> Facts:
    """``facts`` with what the logs say: of the judged rank where they are joined with it, else beside it.

    Args:
        facts: of the run, or of a rank without a recording where there are logs alone.
        ranks: all that were read, in the order of those of the facts.
        logs: what was given beside them; without any the facts stay as they are.
    """
    if not logs:
        return facts
    chosen = ranks[facts.judged_rank]
    alone = chosen.trace is None and chosen.record is None
    samplers = [log for log in logs if isinstance(log, SamplerLog)]
    snapshots = [log for log in logs if isinstance(log, SnapshotLog)]
    devices = _devices(samplers)
    joined, told, notes = _joined(samplers, snapshots, chosen, alone=alone, only=_is_only(ranks, chosen))
    found = tuple(one for log in snapshots for one in memory_snapshots(log))
    own = tuple(one for log in told for one in memory_snapshots(log))
    # Beside steps the figure is of the samples of the run itself.
    drawn = devices[:MOST_DRAWN] if alone else ()
    series = tuple(one for device in devices for one in _summary(device, drawn=device in drawn))
    notes += [*([_APART] if alone and len(samplers) > 1 else []), *_limits(logs, found, series)]
    with_samples = facts if alone else _with_samples(facts, joined)
    # Of another run, for all that is known, nothing is claimed of this one.
    apart = () if alone else tuple(log.origin for log in samplers if not is_of_the_time(log, chosen))
    near = [device for device in devices if device.origin not in apart]
    return revise(
        with_samples,
        logs=LogFacts(
            alone=alone,
            devices=tuple(len(log.gpus) for log in samplers),
            series=series,
            snapshots=found,
            own=found if alone else own,
            rests=tuple(one for device in near if (one := rests(device.label, device.samples)) is not None),
        ),
        throttling=with_samples.throttling or _throttling(near),
        surroundings=_beside(facts.surroundings, near),
        memory=_memory(
            facts.memory, own, devices if alone else [_Device(joined.label, "", joined.samples)] if joined else []
        ),
        memory_use=revise(
            facts.memory_use,
            oom=facts.memory_use.oom or out_of_memory(own),
            allocator_settings=next((log.settings for log in told), None)
            if facts.memory_use.allocator_settings is None
            else facts.memory_use.allocator_settings,
        ),
        trust=_trust(facts.trust, series, found, notes, alone=alone),
    )


def _summary(device: _Device, *, drawn: bool) -> tuple[Series, ...]:
    """The series of one device; with strips from its first sample on where it is drawn."""
    samples = device.samples
    timed = len({sample.t_ns for sample in samples}) > 1
    if drawn and not timed:
        # A log without times is drawn by the number of the sample.
        samples = tuple(Sample(t_ns=place * 10**9, gpu=sample.gpu) for place, sample in enumerate(samples))
    start_ns = samples[0].t_ns if drawn and samples else None
    return summarise(samples, None, start_ns, device=device.label, timed=timed)


def _beside(known: Surroundings, devices: Sequence[_Device]) -> Surroundings:
    """The surroundings with the hottest device of the logs, where they tell."""
    found = hottest([(device.label, device.samples) for device in devices])
    return known if found is None else revise(known, hottest=found)


def _devices(logs: Sequence[SamplerLog]) -> list[_Device]:
    """The devices of all logs; with their log's name where there are several."""
    of = {log.origin: f" of {log.origin}" if len(logs) > 1 else "" for log in logs}
    return [_Device(f"{gpu.label}{of[log.origin]}", log.origin, gpu.samples) for log in logs for gpu in log.gpus]


def _joined(
    samplers: Sequence[SamplerLog], snapshots: Sequence[SnapshotLog], rank: RankFacts, *, alone: bool, only: bool
) -> tuple[JoinedGpu | None, list[SnapshotLog], list[str]]:
    """The judged rank's device, the snapshots of its steps, and which logs were joined or kept apart and why.

    Of logs alone a single snapshot is that of the run, unless the samplers' logs are of another time.
    """
    if alone:
        pairs = [join_logs(sampler, snapshot) for snapshot in snapshots for sampler in samplers]
        is_one = len(snapshots) == 1 and all(is_same for is_same, _ in pairs)
        return None, list(snapshots) if is_one else [], [said for _, said in pairs]
    notes: list[str] = []
    gpu: JoinedGpu | None = None
    own: list[SnapshotLog] = []
    for log in samplers:
        found, said = join_sampler(log, rank, only=only)
        gpu = gpu or found
        notes.append(said)
    for snapshot in snapshots:
        is_own, said = join_snapshot(snapshot, rank)
        own += [snapshot] if is_own else []
        notes.append(said)
    return gpu, own, notes


def _is_only(ranks: Sequence[RankFacts], chosen: RankFacts) -> bool:
    """Whether nothing tells of another rank than the judged one."""
    world = chosen.trace.meta.world_size if chosen.trace is not None else None
    return len(ranks) == 1 and (world or 1) == 1


def _with_samples(facts: Facts, joined: JoinedGpu | None) -> Facts:
    """The facts with the samples of the recorded steps, where the recording has none of its own."""
    if joined is None or any(series.name.startswith("gpu.") for series in facts.samples):
        return facts
    return revise(
        facts,
        samples=(*facts.samples, *summarise(joined.samples, None, device=f"{joined.label}, recorded steps")),
        throttling=throttling([joined.samples], 0),
    )


def _throttling(devices: Sequence[_Device]) -> Throttling | None:
    """That of the device whose clock was held down most; ``None`` where no log tells."""
    samples = [device.samples for device in devices]
    found = [(throttling(samples, place), device.label) for place, device in enumerate(devices)]
    known = [revise(one, device=label) for one, label in found if one is not None]
    return max(known, key=lambda one: one.slowed_ratio, default=None)


def _memory(memory: Memory, snapshots: Sequence[MemorySnapshot], devices: Sequence[_Device]) -> Memory:
    """The memory with what is not known of it yet: of a single snapshot, and of the fullest device."""
    pairs = [
        (max(used), max((gpu.memory_total_bytes for gpu in read if gpu.memory_total_bytes), default=None))
        for device in devices
        if (read := [sample.gpu for sample in device.samples if sample.gpu is not None])
        and (used := [gpu.memory_used_bytes for gpu in read if gpu.memory_used_bytes is not None])
    ]
    most, capacity = max(pairs, key=lambda pair: pair[0] / pair[1] if pair[1] else 0.0, default=(None, None))
    known = revise(
        memory,
        peak_device_used_bytes=memory.peak_device_used_bytes if memory.peak_device_used_bytes is not None else most,
        capacity_bytes=memory.capacity_bytes if memory.capacity_bytes is not None else capacity,
    )
    if len(snapshots) != 1 or snapshots[0].peak_bytes is None or memory.peak_allocated_bytes is not None:
        return known
    only = snapshots[0]
    return revise(
        known,
        peak_allocated_bytes=only.peak_bytes,
        peak_reserved_bytes=only.peak_reserved_bytes,
        growth=known.growth or ((only.growth,) if only.growth else ()),
        # Of a device of unknown size nobody knows whether idle memory matters.
        fragmentation_ratio=only.idle_ratio if known.capacity_bytes else None,
    )


def out_of_memory(snapshots: Sequence[MemorySnapshot]) -> OutOfMemory | None:
    """The last request that failed in the snapshots of a run; ``None`` where none did."""
    failed = [(one.device, request) for one in snapshots for request in one.failed]
    if not failed:
        return None
    device, last = failed[-1]
    return OutOfMemory(
        device=f"cuda:{device}",
        message="",
        requested_bytes=last.requested_bytes,
        step=None,
        free_bytes=last.free_bytes,
        allocated_bytes=last.in_use_bytes,
        reserved_bytes=last.reserved_bytes,
        limit="device",
        frames=last.frames,
    )


def _limits(logs: Sequence[Log], snapshots: Sequence[MemorySnapshot], series: Sequence[Series]) -> list[str]:
    """What the readers left out, and what the formats do not tell."""
    several = len(logs) > 1
    notes = [f"{log.origin}: {note}" if several else note for log in logs for note in log.notes]
    if series:
        notes.append(_NO_STEPS)
        names = {one.name for one in series}
        lacking = [asked for name, asked in _WANTED if name not in names]
        if lacking:
            notes.append(f"The log has no {', '.join(lacking)}; `nvidia-smi --query-gpu` records them.")
    without = list(dict.fromkeys(one.origin for one in snapshots if not one.events))
    if without:
        notes.append(
            f"{', '.join(without)} has no history of requests, so its peak is unknown: only the memory in use at the "
            f"snapshot is. Call {_HISTORY} before the run to record it."
        )
    notes += [
        f"The history of {one.origin} begins with {format_bytes(one.start_in_use_bytes)} in use: older entries were "
        "lost or never recorded, and its peak is a lower bound."
        for one in snapshots
        if one.events and one.start_in_use_bytes
    ]
    return notes


def _trust(
    trust: Trust, series: Sequence[Series], snapshots: Sequence[MemorySnapshot], notes: Sequence[str], *, alone: bool
) -> Trust:
    signals = tuple(_signal(signal, series, snapshots, alone=alone) for signal in trust.signals)
    return revise(
        trust,
        mode="logs" if alone else trust.mode,
        signals=signals,
        notes=(*notes, *trust.notes) if alone else (*trust.notes, *notes),
    )


def _signal(signal: Signal, series: Sequence[Series], snapshots: Sequence[MemorySnapshot], *, alone: bool) -> Signal:
    """A signal as logs leave it: what they have is measured in part, since no step is in them."""
    if signal.state != "missing":
        return signal
    if signal.name == "GPU counters" and series:
        return Signal(name=signal.name, state="partial", reason="from the log of nvidia-smi")
    if signal.name == "memory" and snapshots:
        whole = any(one.events for one in snapshots)
        reason = "from a memory snapshot" if whole else "only its state when a snapshot was taken"
        return Signal(name=signal.name, state="partial", reason=reason, hint="" if whole else _HISTORY)
    return revise(signal, reason=_ONLY_LOGS) if alone else signal
