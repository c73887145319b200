"""Verdicts of recordings that settle none: the leading bound, likely, or none; and what the next recording needs."""

from collections.abc import Sequence
from statistics import fmean

from profilerkit.analysis.facts import Facts
from profilerkit.analysis.memory.history import LogFacts, file_and_line, own_line
from profilerkit.analysis.trust import SHOW_KERNELS, WITH_DEVICE, fitting
from profilerkit.analysis.whatif import unnamed_pauses
from profilerkit.model import revise
from profilerkit.model.finding import Bound, Confidence, Outcome, in_order
from profilerkit.model.memory import MemorySnapshot
from profilerkit.model.run import OPERATOR_TRACE, STEP_TIMERS, Series
from profilerkit.model.step import PARTS, UNSPLIT, WHOLE_TRACE, family_of
from profilerkit.model.verdict import BOUND_FAMILY, FAMILY_BOUND, RECORD, RECORD_MORE, Verdict
from profilerkit.rules.api import ENOUGH_STEPS, each, judged, record_enough
from profilerkit.rules.comm.exposed_collectives import to_divide
from profilerkit.rules.comm.transfers import late_rank, who, whose
from profilerkit.units import format_bytes, format_count, format_ns, format_ratio, format_value

#: More of the step than this unexplained, or in one part that no rule priced, and there is no verdict.
LARGEST_UNPRICED = 0.25
#: How an export of Nsight Systems shows what the host does (its user guide: --trace, NVTX ranges of Python).
SHOW_HOST = (
    "Record it with torch.autograd.profiler.emit_nvtx(), a range around each fetch of a batch, "
    "and nsys profile --trace=cuda,nvtx,osrt."
)
#: A recording without steps lasts from its first device event to its last: fewer than these always fill it (a choice).
FEWEST_EVENTS = 3
#: Events of a file that is cut off and marks no step (a choice: one step of a small network writes some hundreds).
FEWEST_OF_A_PART = 1_000
#: Where the device was not recorded, from this share of the step on what the host does is named (a choice).
LARGEST_ON_HOST = 0.5
_ON_HOST: dict[Bound, str] = {
    "input-bound": "Getting batches takes",
    "memory-bound": "Allocating memory takes",
    "overhead-bound": "Issuing work takes",
}
#: Steps from which on run traces a loop by default: 5 of warm-up, one of the profiler's own, 10 traced (its help).
_TRACED_FROM = 16
#: More of the time than this waiting for a processor, and a recording on a quieter host tells more than a longer one.
BUSY_HOST = 0.10


def inconclusive(headline: str, refuted_by: str, command: str = "") -> Verdict:
    """No verdict; ``refuted_by`` says what would give one, and ``command`` records it, if one does."""
    return Verdict(bound="inconclusive", confidence="low", headline=headline, refuted_by=refuted_by, command=command)


def likely(facts: Facts, bound: Bound, headline: str, refuted_by: str, command: str = "") -> Verdict:
    """Return the leading bound of a recording that cannot settle one; ``refuted_by`` says what would."""
    verdict = inconclusive(headline, refuted_by, command)
    return revise(verdict, bound=bound, detail="likely", share=facts.family(BOUND_FAMILY[bound]))


def refusal(facts: Facts) -> Verdict | None:
    """The verdict of a recording that shows nothing of a step's bound, or only what is likely; ``None`` of others."""
    if facts.raised and not facts.steps.count:
        return inconclusive("The run ended before its first step did", "Fix what ended it, and record again.")
    if facts.refused and not facts.steps.count:
        return inconclusive(
            "Nothing was recorded: the disk was full, or the host went down",
            "Make sure that there is room on the disk, and record again.",
        )
    if facts.failure and not facts.steps.count:
        return inconclusive("No step was recorded yet", "Wait for some steps, or look for what ended the run.")
    if facts.unprofiled and facts.steps.time_ns is None:
        return inconclusive(
            f"This file holds no events of a profiler: {facts.unprofiled}",
            f"Record some steps with {RECORD}, or with torch.profiler.",
            RECORD,
        )
    if facts.steps.time_ns is None and facts.steps.count and facts.mode == "steps":
        said = "No step's time is known: the device had finished none when the recording ended"
        return inconclusive(said, "Let more steps pass.")
    if facts.steps.time_ns is None and facts.steps.count and facts.trust.truncated:
        return inconclusive("The file is cut off before a step ends", "Record fewer steps, or save the trace again.")
    if facts.steps.time_ns is None or not facts.mean_step_ns:
        return inconclusive("No training step was recorded", "Call prof.step(), or wrap the loader.")
    if facts.device_events_missing:
        remedy = _to_show_kernels(facts)
        if facts.kernels_unseen == "cut":
            return inconclusive("The file is cut off before any device event", remedy)
        shares: dict[Bound, float] = {
            "input-bound": facts.family("input"),
            "memory-bound": facts.share("mem.alloc"),
            "overhead-bound": facts.share("over."),
        }
        bound = max(shares, key=lambda name: shares[name])
        waits = facts.share("sync.", "input.h2d")
        if not waits or shares[bound] < LARGEST_ON_HOST:
            return inconclusive("The run used a device, but none of its events is in the trace", remedy)
        mean_ns = facts.mean_step_ns or 0.0
        held, step = format_ns(shares[bound] * mean_ns), each(facts, format_ns(mean_ns))
        return likely(facts, bound, f"{_ON_HOST[bound]} {held} of {step}; no device was recorded", remedy)
    if facts.launches is not None and facts.launches.lost_much:
        return inconclusive(
            f"The file is damaged: {format_ratio(facts.launches.lost_ratio or 0.0)} of the device's work is missing",
            "Save the trace again: what the device did is not all there.",
        )
    few = _too_little(facts)
    return _cold_start(facts) if few is None and facts.cold and facts.cold.dominates else few


def _to_show_kernels(facts: Facts) -> str:
    """Return how the next recording holds the device's events, a sentence."""
    hint = fitting(SHOW_KERNELS[facts.kernels_unseen or "unknown"], facts.recorder)
    return f"{hint[0].upper()}{hint[1:]}."


def _cold_start(facts: Facts) -> Verdict:
    """No verdict where modules are loaded or graphs captured: that is done once. Allocation is named: it returns."""
    share, allocating = facts.cold.share if facts.cold else 0.0, facts.share("mem.alloc")
    is_capture = facts.cold is not None and facts.cold.capture_share >= share / 2
    what = "the capture of a graph was recorded: it" if is_capture else "a cold start was recorded: first-use work"
    enough = record_enough(facts, f"record {ENOUGH_STEPS} more once first-use work has ended")
    if allocating >= LARGEST_UNPRICED and allocating > facts.share("warm."):
        said = f"Only a cold start was recorded: allocator calls take {format_ratio(allocating)}"
        return revise(likely(facts, "overhead-bound", said, enough), share=share)
    return inconclusive(f"Only {what} takes {format_ratio(share)}", enough)


def _too_little(facts: Facts) -> Verdict | None:
    """The refusal of a recording that ran beside the work, or holds so little of it that it fills its own time."""
    count = facts.launches.events if facts.launches is not None else FEWEST_EVENTS
    if facts.mode == "cpu" and facts.trace_read and not facts.share("compute.", "over.", "comm.", "input.", "mem."):
        said = "No operator and no kernel was recorded"
    elif facts.steps.found_by == WHOLE_TRACE and count < FEWEST_EVENTS:
        said = f"Only {count} device events were recorded" if count > 1 else "Only 1 device event was recorded"
        said = said if count else "No device event was recorded"
    elif facts.steps.found_by == WHOLE_TRACE and facts.trust.truncated and facts.trust.events < FEWEST_OF_A_PART:
        said = f"The file is cut off after {format_count(facts.trust.events)} events, before a step has ended"
    else:
        return None
    what = "while steps run" if facts.steps.found_by == WHOLE_TRACE else "what happens in the steps"
    return inconclusive(said, f"Record {what}: {RECORD}.", RECORD)


def shows_idle_device(facts: Facts) -> bool:
    """Return whether unexplained time is a device's that waits for its host.

    Without a trace, a device, or a record of the host nothing tells whether it went into the data or other work.
    """
    return facts.mode == "gpu" and facts.trace_read and not facts.framework and _shows_host(facts)


def _shows_host(facts: Facts) -> bool:
    """Return whether any call of the host that launched the device's work was recorded."""
    return facts.launches is None or facts.launches.unlinked < facts.launches.events


def unexplained_verdict(facts: Facts) -> Verdict:
    """Return the verdict where the unexplained time is more than any saving."""
    if shows_idle_device(facts):
        return likely(facts, "overhead-bound", _unexplained(facts), *what_to_record(facts))
    return inconclusive(_unexplained(facts), *what_to_record(facts))


def _unexplained(facts: Facts) -> str:
    """Return what cannot be explained: why a rank is late, if it is waited for that long, else the step."""
    if facts.waiting_share is not None and facts.waiting_share >= LARGEST_UNPRICED:
        waited = format_ratio(facts.waiting_share)
        return f"The others wait {waited} of {judged(facts)} for rank {late_rank(facts)}, cause unknown"
    if facts.share(UNSPLIT):
        return idle_without_trace(facts)[0]
    share = format_ratio(facts.share("idle.unknown"))
    if facts.has_rival:
        return f"Another profiler is on, and {share} of {judged(facts)} cannot be explained"
    if shows_idle_device(facts):
        return f"{who(facts)} is idle for {share} of {judged(facts)}, for no recorded reason"
    return f"{share} of {judged(facts)} cannot be explained"


def idle_without_trace(facts: Facts) -> tuple[str, str, str]:
    """Return how long the device is idle for no reason that timers show, what would show it, and by which command."""
    held, step = format_ns(facts.time_ns("idle.unknown")), format_ns(facts.mean_step_ns or 0.0)
    if any(part.part == UNSPLIT and part.source == "estimated" for part in facts.parts):
        return f"Without a trace, {held} of {each(facts, step)} cannot be explained", *what_to_record(facts)
    return f"{who(facts)} is idle for {held} of {each(facts, step)}; the timers do not show why", *what_to_record(facts)


def what_to_record(facts: Facts) -> tuple[str, str]:
    """Return how the next recording would explain more, and the command for it: empty where none fits."""
    if facts.unwritten is not None:
        return f"Record it again where every record can be written: {facts.unwritten}.", ""
    if facts.has_rival:
        return "Switch the other profiler off, or let it trace some steps only, and record again.", ""
    if facts.framework:
        return "Look at what the host did meanwhile in the profile itself, for example in XProf or Perfetto.", ""
    if facts.kernels_unseen is not None:
        return _to_show_kernels(facts), ""
    if (queued := max(queued_share(facts), facts.taken)) >= BUSY_HOST:
        waited = f"the training thread waited {format_ratio(queued)} of the time for a processor"
        return f"Record it again while nothing else runs on this host: {waited}.", ""
    if facts.mode == "gpu" and not _shows_host(facts):
        return f"Record what the host does as well: {fitting('ProfilerActivity.CPU', facts.recorder)}.", ""
    if facts.trace_read and facts.measured(STEP_TIMERS):
        said = "Record more steps, with the names of functions."
        return f"{said} In a script: profile(..., trace_steps=30, with_stack=True).", RECORD_MORE
    if facts.recorder == "nsys":
        return f"The host did something that was not recorded. {SHOW_HOST}", ""
    if facts.trace_read:
        return f"Record more steps, with every stream and the host: {WITH_DEVICE}.", RECORD
    why = next((signal.reason for signal in facts.trust.signals if signal.name == OPERATOR_TRACE), "")
    # A shorter loop is not traced by the same command either.
    command = RECORD if facts.steps.count >= _TRACED_FROM else ""
    return f"Record a trace of some steps{f'; this run has none: {why}' if why else ''}.", command


def unpriced_verdict(facts: Facts, part: str, share: float) -> Verdict:
    """The bound that ``part`` is of, which takes ``share`` of the step and of which no rule says what it could save."""
    bound, taken = FAMILY_BOUND.get(family_of(part)), f"{format_ratio(share)} of {judged(facts)}"
    time = f"{format_ns(facts.time_ns(part))} of {each(facts, format_ns(facts.mean_step_ns or 0.0))}"
    said = f"{whose(facts)}{PARTS[part][1]}: {taken}"
    settled_by = f"No fix for it is known here: look by hand at these {time}."
    if part == "comm.skew":
        said = f"Ranks wait {taken} for each other, none provably late"
        settled_by = "Record 10 steps of every rank, and look for work that differs by step and rank."
    elif part.startswith("comm."):
        said = f"{whose(facts)}{taken} is communication that nothing could overlap"
        settled_by = "Compare the bus bandwidth with the link's: the transfers may be slow."
        if first := to_divide(facts):
            settled_by = f"{first}: waiting for a late rank and transfer look the same here."
    return inconclusive(said, settled_by) if bound is None else likely(facts, bound, said, settled_by)


def unexplained_share(facts: Facts) -> float:
    """Return the share of the steady time that nothing explains.

    What a few slow steps take beyond the others is left out: a rule of its own tells of those, and what bounds
    the other steps is known all the same. So is what the record of the run tells as evaluation, which has no part of
    its own, but for what a regular stall took of it; and the time in which the thread waited for a processor, which the
    traced steps need not have shown.
    """
    inferred = sum(pause.share for pause in facts.pauses if pause.inferred) - facts.share("other.stall", "other.eval")
    share = facts.share("idle.unknown") - max(inferred, 0.0) - unnamed_pauses(facts)
    return max(share - queued_share(facts), 0.0)


def queued_share(facts: Facts) -> float:
    """Share of the steady time in which the training thread was ready and others had its processor; 0 if not known.

    Of several ranks on a host each waits for the others' threads as well, and a device works on meanwhile.
    """
    is_known = not facts.on_device and (facts.world_size or 1) == 1 and not facts.taken
    return (facts.steps.queued_ratio or 0.0) if is_known else 0.0


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
#: Rules of an allocator that does not serve requests at once.
_ALLOCATOR = ("ME001", "ME002")
#: Mean utilisation from which a device is said to be the bound (a choice: the rest would save at most as much). What an
#: idle one waits for, a batch or the host's work, no sampler sees.
BUSY = 0.8


def verdict_on_logs(logs: LogFacts, facts: Facts, outcomes: Sequence[Outcome]) -> Verdict:
    """Out of memory where a request failed; else what samples of the device, or else the allocator, make likely.

    How full the memory is bounds nothing, as long as each request is served at once.
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
        if (_at_work(logs) or _mean(use)) >= BUSY:
            return _likely("compute-bound", "low", found or _devices(logs), _BUSY)
        return inconclusive(found or _devices(logs), _IDLE, RECORD)
    if sum(logs.devices):
        return inconclusive(found or _devices(logs), f"{_STEPS} beside the logs.", RECORD)
    if not logs.snapshots:
        return inconclusive(found or "The logs hold no samples", f"{_STEPS} beside the logs.", RECORD)
    if any(outcome.rule in _ALLOCATOR and outcome.findings for outcome in outcomes):
        return _likely("memory-bound", "low", found, _PEAK)
    return inconclusive(found or _memory(logs.snapshots), _PEAK, RECORD)


def _likely(bound: Bound, sure: Confidence, headline: str, refuted_by: str) -> Verdict:
    """Return a verdict without shares; of memory it is about how much there is."""
    verdict = inconclusive(headline, refuted_by, RECORD)
    return revise(verdict, bound=bound, detail="capacity" if bound == "memory-bound" else "", confidence=sure)


def _devices(logs: LogFacts) -> str:
    """Return what the samplers saw of the devices."""
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
    if (fired := next((finding.title for _, finding in in_order(outcomes)), None)) is not None:
        return inconclusive(fired, _WHY, RECORD)
    return inconclusive(_seen(facts), f"{_STEPS} of every rank.", RECORD)


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
