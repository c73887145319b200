"""Logs beside a trace or a run: joined on the time of day, or kept apart with the reason."""

from collections.abc import Sequence

import msgspec
import numpy as np

from profilerkit.analysis.rank_facts import RankFacts
from profilerkit.analysis.ranks.matching import EPOCH_NS
from profilerkit.rundir.sampled import Sample
from profilerkit.trace.logs import GpuLog, SamplerLog, SnapshotLog
from profilerkit.units import format_long_ns

#: Samples of a device within the recorded steps below which they say nothing of these (a choice).
FEWEST_SAMPLES = 3

_AS_UTC = "; its times have no time zone and are read as UTC"


class JoinedGpu(msgspec.Struct, frozen=True):
    """The device of a log that is the judged rank's, with its samples during the recorded steps."""

    label: str
    samples: tuple[Sample, ...]


def join_sampler(log: SamplerLog, rank: RankFacts, *, only: bool) -> tuple[JoinedGpu | None, str]:
    """The judged rank's device in the log, and in a sentence why it is taken for it or is not.

    Args:
        log: the log.
        rank: the judged rank.
        only: whether it is the only rank of its run, as far as that is known.
    """
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
    return JoinedGpu(gpu.label, inside), f"{log.origin} is joined with {rank.origin} on the clock: {said}"


def is_of_the_time(log: SamplerLog, rank: RankFacts) -> bool:
    """Whether the log goes on while the rank's steps do; not where either has no time of day."""
    span = recorded_span(rank)
    times = [sample.t_ns for gpu in log.gpus for sample in gpu.samples]
    return log.clock != "none" and span is not None and min(times) <= span[1] and max(times) >= span[0]


def join_snapshot(log: SnapshotLog, rank: RankFacts) -> tuple[bool, str]:
    """Whether the history of the snapshot covers recorded steps, and in a sentence why it does or does not."""
    apart = f"{log.origin} is kept apart from {rank.origin}: "
    span = recorded_span(rank)
    times = _times(log)
    if span is None:
        return False, f"{apart}the recording has no time of day."
    if not times:
        return False, f"{apart}the snapshot has no times."
    if min(times) > span[1] or max(times) < span[0]:
        return False, f"{apart}its history and the recorded steps are from different times ({_relation(times, span)})."
    return True, f"{log.origin} is joined with {rank.origin} on the clock: its history covers recorded steps."


def join_logs(sampler: SamplerLog, snapshot: SnapshotLog) -> tuple[bool, str]:
    """Whether two logs are of the same time, and in a sentence why they are taken for it or are not."""
    apart = f"{snapshot.origin} is kept apart from {sampler.origin}: "
    sampled = [sample.t_ns for gpu in sampler.gpus for sample in gpu.samples] if sampler.clock != "none" else []
    times = _times(snapshot)
    if not sampled or not times:
        return False, f"{apart}{'the snapshot' if sampled else 'the log'} has no times."
    zone = _AS_UTC if sampler.clock == "no zone" else ""
    if min(times) > max(sampled) or max(times) < min(sampled):
        return False, f"{apart}they are from different times{zone}."
    return True, f"{snapshot.origin} is joined with {sampler.origin} on the clock: they are of the same time{zone}."


def _times(snapshot: SnapshotLog) -> list[int]:
    return [event.time_ns for device in snapshot.devices for event in device.events if event.time_ns is not None]


def recorded_span(rank: RankFacts) -> tuple[int, int] | None:
    """Ns since the epoch of the beginning of the first step and the end of the last; ``None`` where not known."""
    if rank.trace is not None and len(rank.trace.steps.start):
        base = rank.trace.meta.base_time_ns or 0
        first, last = int(rank.trace.steps.start.min()) + base, int(rank.trace.steps.end.max()) + base
        return (first, last) if first > EPOCH_NS else None
    if rank.log is not None and len(rank.log.start) and rank.record is not None and rank.record.clock is not None:
        clock = rank.record.clock
        return clock.unix_ns(int(rank.log.start[0])), clock.unix_ns(int(np.max(rank.log.stop)))
    return None


def _device_of(log: SamplerLog, rank: RankFacts, *, only: bool) -> tuple[GpuLog | None, str]:
    """The device of the rank, and how it was found where that is not certain; else why none was.

    A log of one device is no proof that it is this one: another device of the host may have been sampled.
    """
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
