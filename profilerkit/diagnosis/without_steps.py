"""Verdicts on logs or flight recorder dumps alone, which have no steps: what is likely, and what was seen."""

from collections.abc import Sequence
from statistics import fmean

from profilerkit.analysis.facts import Facts
from profilerkit.analysis.logs.history import file_and_line, own_line
from profilerkit.analysis.logs.log_facts import LogFacts
from profilerkit.diagnosis.refusal import inconclusive
from profilerkit.model.finding import Bound, Confidence, Outcome, in_order
from profilerkit.model.run import Series
from profilerkit.model.snapshot import MemorySnapshot
from profilerkit.model.verdict import RECORD, Verdict
from profilerkit.units import format_bytes, format_count, format_ratio, format_value

_STEPS = f"Record the steps: {RECORD}, or a trace of torch.profiler"
#: What would settle each verdict.
_FAILED = "Make the changes in their order; profilerkit diff BEFORE.pickle AFTER.pickle compares the peaks."
_PEAK = (
    "Nothing but memory was recorded. Record how full the device is, nvidia-smi --query-gpu=timestamp,memory.used,"
    f"memory.total --format=csv -l 1, and the steps, {RECORD}."
)
_BUSY = f"A sampler sees that kernels run, not which. Record what they compute: {RECORD}."
_IDLE = f"A sampler does not see what the host does meanwhile. Record it: {RECORD}."
_WHY = f"Record the late rank's steps to learn why: {RECORD}, or a trace of torch.profiler."
#: Mean utilisation from which a device is said to be the bound, not the host (a choice: the rest would save at most as
#: much).
BUSY = 0.8


def verdict_on_logs(logs: LogFacts, facts: Facts, outcomes: Sequence[Outcome]) -> Verdict:
    """Out of memory where a request failed; else what samples of the device, or else the memory, make likely.

    A device that is busy nearly always bounds the run itself; one that is not waits for its host. A snapshot speaks of
    nothing but memory.
    """
    found = next((finding.title for _, finding in in_order(outcomes)), "")
    failed = next((one for one in reversed(logs.own) if one.failed), None)
    if failed is not None:
        asked = failed.failed[-1]
        at = f" at {file_and_line(own_line(asked.frames))}" if asked.frames else ""
        said = f"cuda:{failed.device} had no memory left for {format_bytes(asked.requested_bytes)}{at}"
        return _likely("memory-bound", "high", said, _FAILED)
    use = logs.of_devices("gpu.utilization")
    if use and not facts.framework:
        is_busy = (_at_work(logs) or _mean(use)) >= BUSY
        bound: Bound = "compute-bound" if is_busy else "overhead-bound"
        return _likely(bound, "low", found or _devices(logs), _BUSY if is_busy else _IDLE)
    if sum(logs.devices):
        return inconclusive(found or _devices(logs), f"{_STEPS} beside the logs.", RECORD)
    if logs.snapshots:
        return _likely("memory-bound", "low", found or _memory(logs.snapshots), _PEAK)
    return inconclusive(found or "The logs hold no samples", f"{_STEPS} beside the logs.", RECORD)


def _likely(bound: Bound, sure: Confidence, headline: str, refuted_by: str) -> Verdict:
    """Return a verdict without shares; of memory it is about how much there is."""
    detail = "capacity" if bound == "memory-bound" else ""
    return Verdict(
        bound=bound, detail=detail, confidence=sure, headline=headline, refuted_by=refuted_by, command=RECORD
    )


def _devices(logs: LogFacts) -> str:
    """Return what the samplers saw of the devices; empty without any."""
    if not sum(logs.devices):
        return ""
    who, verb = _who(logs.devices)
    if use := logs.of_devices("gpu.utilization"):
        if 0 < (used := len(logs.rests)) < len(use):
            is_or_are = "was" if used == 1 else "were"
            return f"{used} of {len(use)} GPUs {is_or_are} in use, and busy {format_ratio(_at_work(logs))} of the time"
        return f"{who} {verb} busy {format_ratio(_mean(use))} of the sampled time"
    if power := logs.of_devices("gpu.power"):
        return f"{who} took {format_value(_mean(power), 'mW')} on average"
    if heat := logs.of_devices("gpu.temperature"):
        return f"{who} {verb} {_mean(heat):.0f} °C hot on average"
    return f"{who} {verb} sampled"


def _at_work(logs: LogFacts) -> float:
    """How busy the devices that were used are, from their first work to their last; 0 where that is not known."""
    return fmean(1.0 - one.idle_ratio for one in logs.rests) if logs.rests else 0.0


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
    """Return the largest peak of the snapshots, else what was in use, and who holds most of it; empty without any."""
    if not snapshots:
        return ""
    largest = max(snapshots, key=lambda one: one.peak_bytes or one.in_use_bytes)
    total = largest.in_use_bytes if largest.peak_bytes is None else largest.peak_bytes
    line = next((row for row in largest.live if row.line is not None), None)
    most = f", {format_ratio(line.bytes / total)} for {file_and_line(line.line)}" if line is not None and total else ""
    if largest.peak_bytes is None:
        return f"{format_bytes(total)} were in use when {largest.origin} was taken{most}"
    more = " or more" if largest.is_lower_bound else ""
    return f"Memory peaked at {format_bytes(total)}{more}{most}"


def verdict_on_dumps(facts: Facts, outcomes: Sequence[Outcome]) -> Verdict:
    """No bound: dumps hold when collectives were issued, and nothing of what the time between them went into."""
    fired = next((finding.title for _, finding in in_order(outcomes)), None)
    return (
        inconclusive(fired, _WHY, RECORD)
        if fired is not None
        else inconclusive(_seen(facts), f"{_STEPS} of every rank.", RECORD)
    )


def _seen(facts: Facts) -> str:
    """Return what the dumps show where nobody is found late."""
    found = facts.communication
    held = found.flight.held if found is not None and found.flight is not None else 0
    if not held:
        return "The dumps hold no collective"
    if len(facts.ranks) == 1:
        return "One rank's dump does not show who comes last"
    if not facts.steps.count:
        return "The collectives in the dumps do not repeat in a clear period"
    if found is None or not found.matched:
        return f"The {len(facts.ranks)} dumps do not show when the ranks arrived"
    return f"No rank is provably late in {format_count(found.matched)} collectives of {len(facts.ranks)} ranks"
