"""Savings as they are without the recorder, which slows the host and not the device."""

from collections.abc import Sequence

from profilerkit.analysis.facts import Facts
from profilerkit.analysis.steps.phases import HOST_PARTS
from profilerkit.model.change import revise
from profilerkit.model.finding import Confidence, Finding, Outcome
from profilerkit.rules.parts import PARTS_OF_RULE
from profilerkit.rules.rule import SMALLEST_SAVING, weakest
from profilerkit.units import format_ns, format_ratio

#: Of a gain what must be left without the recorder for its confidence to stay (a choice).
MOSTLY_LEFT = 0.5


def slowed_by(facts: Facts) -> tuple[str, ...]:
    """Return options of the recorder that slow the host by what no untraced step tells; empty where none do."""
    found = facts.host.recording
    return found.options if found is not None and facts.trust.inflation_ratio is None else ()


def recording_share(facts: Facts) -> float:
    """Return the share of the traced step that recording takes while the device waits for the host, at least.

    Where kernels find the queue empty, what the host records beside them makes the device wait later. 0 without a
    device: there the recorder slows all that is timed alike.
    """
    found, step = facts.host.recording, facts.mean_step_ns
    if found is None or not step or facts.mode != "gpu":
        return 0.0
    empty = facts.device.queue_empty_ratio if facts.device is not None else None
    return min((found.waited_ns + (empty or 0.0) * found.hidden_ns) / step, facts.share(*HOST_PARTS))


def without_recording(facts: Facts, outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Return the outcomes with the savings of a step that is not recorded, as far as the trace tells.

    Where the recorder slows the host, the time of recording is no part of a saving of the host's time, and nothing of
    it is for certain. The kernels are a larger share of the shorter step. Nothing changes where steps were timed
    without a profiler.
    """
    return [_relieved(facts, outcome) for outcome in outcomes] if slowed_by(facts) else list(outcomes)


def _relieved(facts: Facts, outcome: Outcome) -> Outcome:
    parts, found = PARTS_OF_RULE.get(outcome.rule), outcome.findings
    # Kernels that save by being fewer save the host's time, as a larger batch does.
    fewer = parts == () and any(finding.bound == "overhead-bound" for finding in found)
    if fewer or any(finding.throughput for finding in found) or any(part in HOST_PARTS for part in parts or ()):
        return _of_host(facts, outcome)
    if parts == () and facts.mode == "gpu":
        return revise(outcome, findings=tuple(_of_kernels(facts, finding) for finding in found))
    return outcome


def _of_host(facts: Facts, outcome: Outcome) -> Outcome:
    share = recording_share(facts)
    found = [_slowed(facts, finding, share) for finding in outcome.findings]
    gains = [one.saving or one.throughput for one in found]
    kept = [one for one, gain in zip(found, gains, strict=True) if gain is None or gain.expected >= SMALLEST_SAVING]
    if kept or not found:
        return revise(outcome, findings=tuple(kept))
    reason = f"recording itself takes {format_ratio(share)} of the step or more, and little is left without it"
    return revise(outcome, status="passed", reason=reason, findings=())


def _slowed(facts: Facts, finding: Finding, share: float) -> Finding:
    """Return the finding with what is left of its gain once nothing is recorded, and why."""
    gain = finding.saving or finding.throughput
    if gain is None:
        return finding
    named, left = " and ".join(slowed_by(facts)), 1.0 - share / max(facts.share(*HOST_PARTS), share, 1e-9)
    expected = min(gain.expected * left / max(1.0 - share, 1e-9), gain.high)
    most: Confidence = "medium" if left >= MOSTLY_LEFT else "low"
    by = f", here by {format_ns(share * (facts.mean_step_ns or 0.0))} of the step or more" if share else ""
    return revise(
        finding,
        saving=revise(finding.saving, low=0.0, expected=expected) if finding.saving is not None else None,
        throughput=revise(finding.throughput, low=0.0, expected=expected) if finding.throughput is not None else None,
        confidence=weakest(finding.confidence, most),
        why=f"{finding.why} The recorder itself slows the host ({named}){by}.",
        confirm=f"Record again without {named}: what is left of the idle time is the host's own.",
    )


def _of_kernels(facts: Facts, finding: Finding) -> Finding:
    """Return the finding as a share of the step without the recorder, at most of one without any wait for the host."""
    saved = finding.saving
    if saved is None:
        return finding
    expected = min(saved.expected / (1.0 - recording_share(facts)), 1.0)
    high = min(saved.high / max(1.0 - facts.share(*HOST_PARTS), saved.high), 1.0)
    return revise(finding, saving=revise(saved, expected=expected, high=max(high, expected)))
