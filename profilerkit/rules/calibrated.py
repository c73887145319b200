"""The savings of findings as a report has them: replayed, without the recorder, and calibrated."""

import math
from collections.abc import Callable, Sequence

import msgspec

from profilerkit.analysis.facts import Facts, belongs
from profilerkit.analysis.replay import changes
from profilerkit.analysis.replay.gate import ReplayFacts, savings
from profilerkit.analysis.steps.phases import HOST_PARTS
from profilerkit.analysis.steps.series import FEW_STEPS
from profilerkit.analysis.whatif import handover_share, made_in_line, relative_error
from profilerkit.model import revise
from profilerkit.model.finding import Confidence, Finding, Method, Outcome, Saving
from profilerkit.model.run import STEP_TIMERS
from profilerkit.model.step import PAUSES, WAITS
from profilerkit.rules.api import SMALLEST_SAVING, judged, weakest
from profilerkit.rules.input.pageable_copy import PageableCopy
from profilerkit.rules.parts import COMPUTING, PARTS_OF_RULE, PHASES, cause_of, shortened
from profilerkit.units import format_ns, format_ratio

#: Traced steps this much longer or shorter than the untraced ones, relative to them, are not replayed for them.
_ALIKE = (0.8, 1.5)
#: A cause whose share of the traced steps is this many times smaller or larger than of all steps is not the same there.
_SAME_CAUSE = 2.0
_OWN_PYTHON_NS = 100_000.0  #: a stretch of Python that is the user's own, not the gap between two operators


class Priced(msgspec.Struct, frozen=True):
    """A finding whose fix can be replayed."""

    rule: str  #: code of its rule
    finding: Finding
    change: changes.Change  #: what the fix does to the steps
    scale: float  #: what a saving of the traced steps is in the run's steps


def _fewer_waits(facts: Facts, finding: Finding) -> changes.Change | None:
    """Return the waits that the model of the loader leaves."""
    kept = _kept(facts, finding, WAITS)
    return changes.LoaderWaits(kept) if kept is not None else None


def _kept(facts: Facts, finding: Finding, parts: tuple[str, ...]) -> float | None:
    """Of the time in ``parts``, what the formula leaves. The bound is no measure of it: the steps' noise is in it."""
    share = facts.share(*parts)
    return max(1.0 - finding.saving.expected / share, 0.0) if finding.saving and share else None


def _copied_aside(facts: Facts, finding: Finding) -> changes.Change | None:
    """Copies that nothing waits for, where there is computation to hide all of them behind."""
    hidden = finding.saving is not None and facts.share(*COMPUTING) >= finding.saving.most
    return changes.HiddenCopies() if hidden else None


def _faster(kind: str) -> Callable[[Facts, Finding], changes.Change | None]:
    """Return the kernels of a kind, so much faster that they alone would save what was expected."""

    def change(facts: Facts, finding: Finding) -> changes.Change | None:
        if facts.replay is None or finding.saving is None:
            return None
        share = facts.replay.share_of(kind)
        if finding.saving.expected >= share:
            return None
        return changes.Kernels(1.0 / (1.0 - finding.saving.expected / share), COMPUTING, kind)

    return change


def _fewer_collectives_exposed(facts: Facts, finding: Finding) -> changes.Change | None:
    known = finding.saving is not None and finding.saving.method != "bound"
    return changes.HiddenCollectives() if finding.detail == "no-overlap" and known and facts.mode == "gpu" else None


def _quicker_host(facts: Facts, finding: Finding) -> changes.Change | None:
    if finding.detail == "launch":
        return changes.OneLaunch() if facts.mode == "gpu" else None
    longer = _OWN_PYTHON_NS if facts.mode == "gpu" else 0.0
    return changes.HostTime(("over.python",), longer_than_ns=longer) if finding.detail == "python" else None


def _shorter_phase(facts: Facts, finding: Finding) -> changes.Change | None:
    part = PHASES.get(finding.detail)
    kept = _kept(facts, finding, (part,)) if part else None
    return changes.Phases((part,), kept) if part and kept is not None else None


#: What the fix of a rule does to the steps. Rules that are not here keep their bound or formula, as IN011 does: a
#: traced window holds the openings of one epoch or of none, and nothing runs beside them that could be in the way.
_FIXES: dict[str, Callable[[Facts, Finding], changes.Change | None]] = {
    **dict.fromkeys(("IN001", "IN002", "IN003", "IN004", "IN006", "IN007", "IN008"), _fewer_waits),
    **dict.fromkeys(("IN013", "IN014"), _fewer_waits),
    "IN009": lambda facts, _: changes.PinnedCopies(PageableCopy().pinned_bytes_per_ns(facts)),
    "IN010": _copied_aside,
    "ME001": lambda *_: changes.Allocator(),
    **dict.fromkeys(("CO001", "CO002"), _fewer_collectives_exposed),
    "CP001": _faster("fp32"),
    "CP004": _faster("chained"),
    **dict.fromkeys(("OV001", "OV005"), _quicker_host),
    **dict.fromkeys(("OV002", "OV003"), lambda *_: changes.Syncs()),
    # The other stops of RU002 have no part that is theirs alone: they keep their formula.
    **dict.fromkeys(("OV006", "RU001", "RU002"), _shorter_phase),
}


def trusted(facts: Facts) -> ReplayFacts | None:
    """Return the replay, if it meets the traced steps and they are like those of the run."""
    replay, inflation = facts.replay, facts.trust.inflation_ratio
    alike = inflation is None or _ALIKE[0] <= inflation <= _ALIKE[1]
    return replay if replay is not None and replay.is_open and alike else None


def priced(facts: Facts, outcomes: Sequence[Outcome]) -> list[Priced]:
    """Return the findings with a saving whose fix the replay can apply; none where it is not to be trusted."""
    replay = trusted(facts)
    if replay is None:
        return []
    found = []
    for outcome in outcomes:
        change_of = _FIXES.get(outcome.rule)
        if change_of is None:
            continue
        for finding in outcome.findings:
            change = change_of(facts, finding) if finding.saving is not None else None
            if change is None or replay.refuses(change.fix_class):
                continue
            parts = cause_of(outcome.rule, finding.detail)
            traced = sum(share for part, share in replay.shares.items() if belongs(part, parts))
            own = facts.share(*parts)
            scale = own / traced if traced and 1.0 / _SAME_CAUSE <= own / traced <= _SAME_CAUSE else None
            if scale is not None:
                found.append(Priced(outcome.rule, finding, change, scale))
    return found


def with_replay(facts: Facts, outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Return the outcomes with the savings that the replay expects; the bounds stay."""
    found = priced(facts, outcomes)
    if not found or facts.replay is None:
        return list(outcomes)
    saved = savings(facts.replay, [[entry.change] for entry in found])
    revised: dict[int, Finding] = {}
    for entry, gone in zip(found, saved, strict=True):
        own = entry.finding.saving
        assert own is not None
        expected = min(max(entry.scale * gone, 0.0), own.high)
        trust = own.low / own.expected if own.expected else 0.0
        value = revise(own, low=trust * expected, expected=expected, method="replay")
        revised[id(entry.finding)] = revise(entry.finding, saving=value)
    return [_revised(outcome, revised) for outcome in outcomes]


def _revised(outcome: Outcome, revised: dict[int, Finding]) -> Outcome:
    findings = [revised.get(id(finding), finding) for finding in outcome.findings]
    kept = tuple(
        finding
        for finding, before in zip(findings, outcome.findings, strict=True)
        if finding is before or (finding.saving is not None and finding.saving.expected >= SMALLEST_SAVING)
    )
    if outcome.findings and not kept:
        most = max(finding.saving.expected for finding in findings if finding.saving is not None)
        reason = f"replayed without it, the step is {format_ratio(most)} shorter: other work holds it as long"
        return revise(outcome, status="passed", reason=reason, findings=())
    return revise(outcome, findings=kept)


#: What nine of ten applied fixes stayed within, relative to the predicted saving, and of how many: each was applied in
#: two runs of scripts/benchmark_accuracy on processors of two speeds (reports/accuracy.json and accuracy_second.json).
#: A third run was judged with what they gave (accuracy_third.json).
WITHIN: dict[Method, tuple[float, int]] = {"replay": (0.12, 15), "analytic": (0.27, 16)}
#: The rules whose fixes were among those, by method. All ran on a CPU. The interval of every other saving rests on a
#: guess, and says so: also that of batches which the training thread makes itself, as none of those loops did, one of
#: which nothing is for certain, as there was none, and that of the first workers where the assumed cost of handing a
#: batch over is larger than those errors: the steps were 37 ms or longer.
RULES: dict[Method, tuple[str, ...]] = {
    "replay": ("IN001", "IN002", "IN003", "IN004", "IN006", "IN008", "OV005", "RU002"),
    "analytic": (
        *("CO001", "CO003", "CO005", "CO007"),
        *("IN005", "IN011"),
        "ME001",
        *("OV001", "OV004", "OV006", "OV008"),
        *("RU001", "RU005"),
    ),
}
#: Replayed on a device: of seven savings in public recordings with a measured counterpart (loaders and copies of six
#: programs, one precision) all but one were within this of what was saved or of what was left, whichever is less, and
#: in the simulator 95 of 95 within 0.13. The kinds of fix that were applied in either are ``DEVICE_RULES``.
ON_DEVICE, RECORDED = 0.25, 7
DEVICE_RULES = (*RULES["replay"], *("IN009", "IN010", "CP001", "ME001", "CO001", "CO002"), *("OV001", "OV006", "RU001"))
UNTRIED = 0.41  #: the same for a saving of which no kind was applied (a guess: 1.64 standard errors of a quarter)
Z90 = 1.64  #: quantile of the normal distribution for a two-sided 90 % interval
UNKNOWN_NOISE = 0.1  #: error assumed for what a single step shows, whose own cannot be known, share of the step
#: Of the share that a fix does not touch, what remains for certain however much the steps vary (a choice).
UNTOUCHED = 0.5

#: What a replayed saving is off where nothing is assumed, share of the step: 95 of 100 kinds of fix in the simulator.
REPLAY_ERROR = 0.01
LEAST_LEFT = 0.01  #: what is left of any step at the least (a choice): a saving that takes all of it is none

_FIRST_WORKERS = ("IN001", "IN002")  #: rules that may propose the first workers


def calibrated(facts: Facts, outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Return the outcomes with the intervals of their savings; a fix for what the device works through is none."""
    # Where timers tell the steps, the traced ones need not have waited as the others did.
    is_asked = any(entry.findings for entry in outcomes) and not facts.measured(STEP_TIMERS)
    replay = trusted(facts) if is_asked else None
    kernels = savings(replay, [[changes.OnlyKernels()]])[0] + REPLAY_ERROR if replay is not None else 1.0
    return [_judged(facts, entry, kernels) for entry in outcomes]


def _judged(facts: Facts, outcome: Outcome, kernels: float) -> Outcome:
    limits = [_most(facts, outcome.rule, finding, kernels) for finding in outcome.findings]
    findings = tuple(
        _told(facts, outcome.rule, finding, most)
        for finding, most in zip(outcome.findings, limits, strict=True)
        if finding.saving is None or most >= SMALLEST_SAVING
    )
    if outcome.findings and not findings:
        left = format_ratio(max(limits))
        reason = f"the device computes for all but {left} of the step, which no such fix makes shorter"
        return revise(outcome, status="passed", reason=reason, findings=())
    return revise(outcome, findings=findings)


def _told(facts: Facts, rule: str, finding: Finding, most: float) -> Finding:
    saving = finding.saving
    if saving is None:
        return finding
    if saving.method != "bound":
        error = _error(facts, rule, finding.detail, saving)
        saving = _interval(facts, saving, *_within(facts, rule, saving), error)
    low, expected, high, bound = (min(value, most) for value in (saving.low, saving.expected, saving.high, saving.most))
    known = bound if bound > high else None
    return revise(finding, saving=revise(saving, low=low, expected=expected, high=high, bound=known))


def _most(facts: Facts, rule: str, finding: Finding, kernels: float) -> float:
    """Share of the step that a fix can save at most: what the device does not compute, or what its own parts take.

    No more than ``kernels``, which is saved in the replay where nothing but the kernels takes time.
    Nearly all of it where the rule is about kernels, or about nothing that is known. A host computes at another speed
    as soon as something else leaves it, and in a pause such as an evaluation the device may compute.
    """
    phase = PHASES.get(finding.detail)
    own = (phase,) if phase else shortened(facts, rule)
    if facts.mode != "gpu" or not own or set(own) & {*COMPUTING, *PAUSES}:
        return 1.0 - LEAST_LEFT
    return max(min(max(1.0 - facts.share(*COMPUTING), facts.share(*own)), kernels, 1.0 - LEAST_LEFT), 0.0)


def _within(facts: Facts, rule: str, saving: Saving) -> tuple[float, str]:
    """What predictions like this one were off at most, share of the step, and what tells so; empty where nothing."""
    smaller = min(saving.expected, 1.0 - saving.expected)
    first = rule in _FIRST_WORKERS and handover_share(facts)
    if facts.mode == "gpu":
        tried = saving.method == "replay" and rule in DEVICE_RULES and not first > ON_DEVICE * smaller
        text = f"checked on {RECORDED} recordings and in simulation"
        return (ON_DEVICE * smaller, text) if tried else (UNTRIED * smaller, "")
    share, cases = WITHIN.get(saving.method, (0.0, 0))
    tried = rule in RULES.get(saving.method, ()) and saving.low > 0 and not (rule == "IN001" and made_in_line(facts))
    if not tried or first > share * saving.expected:
        return UNTRIED * smaller, ""
    return share * saving.expected, f"calibrated on {cases} cases"


def _error(facts: Facts, rule: str, detail: str, saving: Saving) -> float | None:
    """Standard error of the saving for what the recorded steps differ: of its cause's share, else of the step."""
    known = facts.share_error(*cause_of(rule, detail))
    if known is not None:
        return known * saving.expected
    return relative_error(facts) if facts.step_error_ns is not None else None


def _interval(facts: Facts, saving: Saving, within: float, told: str, error: float | None) -> Saving:
    """As wide above the expectation as below it where fixes were applied, else up to the bound.

    Its half-width is what predictions were off, and the errors of the steps and the replay, put together as independent
    errors are. What the rule took off the low end for a reason of its own is taken off here as well. The bound is a
    share of steps that vary, with their noise where that is known. On a host it is one of recorded steps, in which the
    rest took longer: the high end may lie above it, by the part of what is left that was off of the saving.
    """
    expected, replay = saving.expected, facts.replay
    replayed = replay.error if replay is not None and saving.method == "replay" else 0.0
    half = math.hypot(within, Z90 * (UNKNOWN_NOISE if error is None else error), Z90 * replayed)
    trusted_ratio = saving.low / expected if expected else 0.0
    low = max(expected - half, 0.0) * trusted_ratio
    # Of a mean step that is off by this much, what no fix touches is off as well.
    bound = saving.most
    few = facts.steps.steady < FEW_STEPS  # whose spread says little: no more than what they show
    slack = trusted_ratio * within / expected * (1.0 - bound) if told and facts.mode != "gpu" and not few else 0.0
    left = 1.0 - UNTOUCHED * (1.0 - bound)
    most = min(bound if few else bound + Z90 * (error or 0.0), left) if bound else 0.0
    high = min(most + slack, left, 2.0 * expected - low) if told else most
    return revise(saving, low=low, high=high, bound=most if told else None, calibration=told or saving.calibration)


MOSTLY_LEFT = 0.5  #: of a gain what must be left without the recorder for its confidence to stay (a choice)


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
        share = recording_share(facts)
        found = tuple(_slowed(facts, finding, share) for finding in outcome.findings)
        gains = [one.saving or one.throughput for one in found]
        kept = [one for one, gain in zip(found, gains, strict=True) if gain is None or gain.expected >= SMALLEST_SAVING]
        if kept or not found:
            return revise(outcome, findings=tuple(kept))
        reason = f"recording itself takes {format_ratio(share)} of the step or more, and little is left without it"
        return revise(outcome, status="passed", reason=reason, findings=())
    if parts == () and facts.mode == "gpu":
        return revise(outcome, findings=tuple(_of_kernels(facts, finding) for finding in found))
    return outcome


def _slowed(facts: Facts, finding: Finding, share: float) -> Finding:
    """Return the finding with what is left of its gain once nothing is recorded, and why."""
    gain = finding.saving or finding.throughput
    if gain is None:
        return finding
    named, left = " and ".join(slowed_by(facts)), 1.0 - share / max(facts.share(*HOST_PARTS), share, 1e-9)
    expected = min(gain.expected * left / max(1.0 - share, 1e-9), gain.high)
    most: Confidence = "medium" if left >= MOSTLY_LEFT else "low"
    by = f", here by {format_ns(share * (facts.mean_step_ns or 0.0))} of {judged(facts)} or more" if share else ""
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
