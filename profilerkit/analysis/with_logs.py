"""The facts of a run with what logs beside it say: joined on the time of day, kept apart, or of the logs alone."""

from collections.abc import Sequence

import msgspec
import numpy as np

from profilerkit.analysis.facts import Facts
from profilerkit.analysis.memory.history import LogFacts, memory_snapshots, rests
from profilerkit.analysis.rank_facts import RankFacts
from profilerkit.analysis.ranks.alike import captured
from profilerkit.analysis.samples import summarise
from profilerkit.analysis.surroundings import Throttling, hottest, throttling
from profilerkit.model import revise
from profilerkit.model.memory import Memory, MemorySnapshot, OutOfMemory
from profilerkit.model.run import Series, Signal
from profilerkit.rundir.sampled import Sample
from profilerkit.trace.logs import GpuLog, Log, SamplerLog, SnapshotLog
from profilerkit.units import format_bytes, format_long_ns

FEWEST_SAMPLES = 3  #: samples of a device within the recorded steps below which they say nothing of these (a choice)

_AS_UTC = "; its times have no time zone and are read as UTC"


class _Device(msgspec.Struct, frozen=True):
    """One device of a sampler's log by the name the report gives it; ``origin`` is the log's."""

    label: str
    origin: str
    samples: tuple[Sample, ...]


def join_sampler(log: SamplerLog, rank: RankFacts, *, only: bool) -> tuple[_Device | None, str]:
    """The judged rank's device in the log, and in a sentence why it is taken for it or is not."""
    apart = f"{log.origin} is kept apart from {rank.origin}: "
    span = recorded_span(rank)
    if span is None:
        return None, f"{apart}the recording has no time of day."
    if log.clock == "none":
        return None, f"{apart}the log has no times."
    zone = _AS_UTC if log.clock == "no zone" else ""
    gpu, why = _device_of(log, rank, only=only)
    if gpu is None:
        return None, f"{apart}{why}."
    inside = tuple(sample for sample in gpu.samples if span[0] <= sample.t_ns <= span[1])
    if len(inside) < FEWEST_SAMPLES:
        seen = _relation([sample.t_ns for sample in gpu.samples], span)
        return None, f"{apart}{len(inside)} samples of {gpu.label} are within the recorded steps ({seen}){zone}."
    named = f", {why}" if why else ""
    said = f"{len(inside)} samples of {gpu.label} are within the recorded steps{named}{zone}."
    return _Device(gpu.label, log.origin, inside), f"{log.origin} is joined with {rank.origin} on the clock: {said}"


def is_of_the_time(log: SamplerLog, rank: RankFacts) -> bool:
    """Whether the log goes on while the rank's steps do; not where either has no time of day."""
    span, times = recorded_span(rank), _sampled(log)
    return bool(times) and span is not None and _overlap(times, span)


def join_snapshot(log: SnapshotLog, rank: RankFacts) -> tuple[bool, str]:
    """Whether the history of the snapshot covers recorded steps, and in a sentence why it does or does not."""
    apart = f"{log.origin} is kept apart from {rank.origin}: "
    span, times = recorded_span(rank), _times(log)
    if span is None:
        return False, f"{apart}the recording has no time of day."
    if not times:
        return False, f"{apart}the snapshot has no times."
    if not _overlap(times, span):
        return False, f"{apart}its history and the recorded steps are from different times ({_relation(times, span)})."
    return True, f"{log.origin} is joined with {rank.origin} on the clock: its history covers recorded steps."


def join_logs(sampler: SamplerLog, snapshot: SnapshotLog) -> tuple[bool, str]:
    """Whether two logs are of the same time, and in a sentence why they are taken for it or are not."""
    apart = f"{snapshot.origin} is kept apart from {sampler.origin}: "
    sampled, times = _sampled(sampler), _times(snapshot)
    if not sampled or not times:
        return False, f"{apart}{'the snapshot' if sampled else 'the log'} has no times."
    zone = _AS_UTC if sampler.clock == "no zone" else ""
    if not _overlap(times, (min(sampled), max(sampled))):
        return False, f"{apart}they are from different times{zone}."
    return True, f"{snapshot.origin} is joined with {sampler.origin} on the clock: they are of the same time{zone}."


def _overlap(times: Sequence[int], span: tuple[int, int]) -> bool:
    return min(times) <= span[1] and max(times) >= span[0]


def _sampled(log: SamplerLog) -> list[int]:
    return [sample.t_ns for gpu in log.gpus for sample in gpu.samples] if log.clock != "none" else []


def _times(snapshot: SnapshotLog) -> list[int]:
    return [event.time_ns for device in snapshot.devices for event in device.events if event.time_ns is not None]


def recorded_span(rank: RankFacts) -> tuple[int, int] | None:
    """Ns since the epoch of the beginning of the first step and the end of the last; ``None`` where not known."""
    if rank.trace is not None and len(rank.trace.steps.start):
        return captured(rank)
    if rank.log is not None and len(rank.log.start) and rank.record is not None and rank.record.clock is not None:
        clock = rank.record.clock
        return clock.unix_ns(int(rank.log.start[0])), clock.unix_ns(int(np.max(rank.log.stop)))
    return None


def _device_of(log: SamplerLog, rank: RankFacts, *, only: bool) -> tuple[GpuLog | None, str]:
    """The device of the rank, and how it was found where another one may have been sampled; else why none was."""
    meta = rank.record.meta if rank.record is not None else None
    uuid = meta.device_uuid if meta is not None else None
    if uuid and all(gpu.uuid for gpu in log.gpus):
        same = next((gpu for gpu in log.gpus if gpu.uuid == uuid), None)
        return same, "by its UUID" if same else "none of its devices has the UUID of the recorded one"
    properties = rank.trace.properties if rank.trace is not None else None
    number = properties.id if properties is not None else None
    found = next((gpu for gpu in log.gpus if gpu.index is not None and gpu.index == number), None)
    why = f"which is the recorded device {number} unless CUDA_VISIBLE_DEVICES renumbers them"
    if found is None and len(log.gpus) > 1:
        return None, f"it is unknown which of its {len(log.gpus)} devices was recorded"
    if found is None:
        found, why = log.gpus[0], "taken to be the recorded device, as each has only one"
        if not only:
            return None, "it is of one device, the run has several, and it is unknown whether this is the judged one"
        if None not in (found.index, number):
            return None, f"it is of {found.label}, and the recording numbers its device {number}"
    name = properties.name if properties is not None else meta.device_name if meta is not None else None
    if name and found.model and _plain(name) != _plain(found.model):
        return None, f"its device is a {found.model}, and the recorded one is not"
    return found, why


def _plain(model: str) -> str:
    """A model's name as drivers of all ages agree on it.

    >>> _plain("NVIDIA A100-SXM4-80GB") == _plain("A100-SXM4-80GB")
    True
    """
    return model.lower().removeprefix("nvidia").replace("tesla", "").replace(" ", "")


def _relation(times: Sequence[int], span: tuple[int, int]) -> str:
    """How the log lies to the recorded steps."""
    if not times:
        return "the log has none"
    if min(times) > span[1]:
        return f"the log begins {format_long_ns(min(times) - span[1])} after them"
    if max(times) < span[0]:
        return f"the log ends {format_long_ns(span[0] - max(times))} before them"
    return f"they last {format_long_ns(span[1] - span[0])}"


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


def with_logs(facts: Facts, ranks: Sequence[RankFacts], logs: Sequence[Log]) -> Facts:
    """``facts`` with what the logs say: of the judged rank where they are joined with it, else beside it."""
    if not logs:
        return facts
    chosen = ranks[facts.judged_rank]
    alone = chosen.trace is None and chosen.record is None
    samplers = [log for log in logs if isinstance(log, SamplerLog)]
    snapshots = [log for log in logs if isinstance(log, SnapshotLog)]
    of = {log.origin: f" of {log.origin}" if len(samplers) > 1 else "" for log in samplers}
    devices = [_Device(f"{gpu.label}{of[log.origin]}", log.origin, gpu.samples) for log in samplers for gpu in log.gpus]
    world = chosen.trace.meta.world_size if chosen.trace is not None else None
    only = len(ranks) == 1 and (world or 1) == 1
    joined, told, notes = _joined(samplers, snapshots, chosen, alone=alone, only=only)
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
    heat = hottest([(device.label, device.samples) for device in near])
    signals = tuple(_signal(signal, series, found, alone=alone) for signal in facts.trust.signals)
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
        surroundings=facts.surroundings if heat is None else revise(facts.surroundings, hottest=heat),
        memory=_memory(facts.memory, own, devices if alone else [joined] if joined else []),
        memory_use=revise(
            facts.memory_use,
            oom=facts.memory_use.oom or out_of_memory(own),
            allocator_settings=next((log.settings for log in told), None)
            if facts.memory_use.allocator_settings is None
            else facts.memory_use.allocator_settings,
        ),
        trust=revise(
            facts.trust,
            mode="logs" if alone else facts.trust.mode,
            signals=signals,
            notes=(*notes, *facts.trust.notes) if alone else (*facts.trust.notes, *notes),
        ),
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


def _joined(
    samplers: Sequence[SamplerLog], snapshots: Sequence[SnapshotLog], rank: RankFacts, *, alone: bool, only: bool
) -> tuple[_Device | None, list[SnapshotLog], list[str]]:
    """The judged rank's device, the snapshots of its steps, and which logs were joined or kept apart and why."""
    if alone:
        pairs = [join_logs(sampler, snapshot) for snapshot in snapshots for sampler in samplers]
        is_one = len(snapshots) == 1 and all(is_same for is_same, _ in pairs)
        return None, list(snapshots) if is_one else [], [said for _, said in pairs]
    devices = [join_sampler(log, rank, only=only) for log in samplers]
    histories = [join_snapshot(snapshot, rank) for snapshot in snapshots]
    own = [snapshot for snapshot, (is_own, _) in zip(snapshots, histories, strict=True) if is_own]
    notes = [said for _, said in (*devices, *histories)]
    return next((gpu for gpu, _ in devices if gpu is not None), None), own, notes


def _with_samples(facts: Facts, joined: _Device | None) -> Facts:
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
