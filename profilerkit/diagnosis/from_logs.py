"""The verdict on logs alone: none, with what was seen in its headline."""

from collections.abc import Sequence
from statistics import fmean

from profilerkit.analysis.facts import Facts
from profilerkit.analysis.logs.log_facts import LogFacts
from profilerkit.diagnosis.refusal import inconclusive
from profilerkit.model.finding import Outcome, in_order
from profilerkit.model.run import Series
from profilerkit.model.snapshot import MemorySnapshot
from profilerkit.model.verdict import Verdict
from profilerkit.units import format_bytes, format_ratio, format_value

_RECORD = "Record the steps: profilerkit run -- train.py, or a trace of torch.profiler beside the logs."


def verdict_on_logs(logs: LogFacts, facts: Facts, outcomes: Sequence[Outcome]) -> Verdict:
    """No bound: without steps nothing tells what a run spends its time on."""
    found = next((finding.title for _, finding in in_order(outcomes)), None)
    oom = facts.memory_use.oom
    if found is None and oom is not None and oom.requested_bytes is not None:
        found = f"{oom.device} had no memory left for a request of {format_bytes(oom.requested_bytes)}"
    return inconclusive(found or _devices(logs) or _memory(logs.snapshots) or "The logs hold no samples", _RECORD)


def _devices(logs: LogFacts) -> str:
    """What the samplers saw of the devices; empty without any."""
    if not sum(logs.devices):
        return ""
    who, verb = _who(logs.devices)
    if use := logs.of_devices("gpu.utilization"):
        return f"{who} {verb} busy {format_ratio(_mean(use))} of the sampled time"
    if power := logs.of_devices("gpu.power"):
        return f"{who} took {format_value(_mean(power), 'mW')} on average"
    if heat := logs.of_devices("gpu.temperature"):
        return f"{who} {verb} {_mean(heat):.0f} °C hot on average"
    return f"{who} {verb} sampled"


def _who(devices: Sequence[int]) -> tuple[str, str]:
    """Whose numbers these are, and the verb behind it: devices of different logs may be the same ones.

    >>> _who([8]), _who([1, 1, 1]), _who([8, 1])
    (('8 GPUs', 'were'), ('In 3 logs of one GPU each, the GPU', 'was'), ('In 2 logs, the GPUs', 'were'))
    """
    if len(devices) > 1:
        logs = f"In {len(devices)} logs"
        return (f"{logs} of one GPU each, the GPU", "was") if max(devices) == 1 else (f"{logs}, the GPUs", "were")
    return ("The GPU", "was") if devices[0] == 1 else (f"{devices[0]} GPUs", "were")


def _mean(series: Sequence[Series]) -> float:
    return fmean(one.mean for one in series)


def _memory(snapshots: Sequence[MemorySnapshot]) -> str:
    """The largest peak of the snapshots, else what was in use; empty without any."""
    if not snapshots:
        return ""
    largest = max(snapshots, key=lambda one: one.peak_bytes or one.in_use_bytes)
    if largest.peak_bytes is None:
        return f"{format_bytes(largest.in_use_bytes)} were in use when {largest.origin} was taken"
    more = " or more" if largest.is_lower_bound else ""
    idle = f", {format_ratio(largest.idle_ratio)} of what is reserved idle" if largest.idle_ratio is not None else ""
    return f"Memory peaked at {format_bytes(largest.peak_bytes)}{more}{idle}"
