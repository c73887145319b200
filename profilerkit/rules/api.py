"""What a rule is, and what it is written with: a failing state, its thresholds, and one pure check of the facts."""

import re
from collections.abc import Callable
from typing import ClassVar, ParamSpec

import msgspec

from profilerkit.analysis.facts import STEADY
from profilerkit.analysis.facts import Facts as Facts
from profilerkit.analysis.trust import SHOW_KERNELS
from profilerkit.analysis.whatif import at_most as at_most
from profilerkit.analysis.whatif import relative_error
from profilerkit.analysis.whatif import saving as saving
from profilerkit.model import revise as revise
from profilerkit.model.finding import STEP_LENGTHS as STEP_LENGTHS
from profilerkit.model.finding import Bound as Bound
from profilerkit.model.finding import Confidence as Confidence
from profilerkit.model.finding import Evidence as Evidence
from profilerkit.model.finding import Finding as Finding
from profilerkit.model.finding import Fix as Fix
from profilerkit.model.finding import Saving as Saving
from profilerkit.model.finding import SettingChange as SettingChange
from profilerkit.model.finding import Source as Source
from profilerkit.model.run import OPERATOR_TRACE, STEP_TIMERS, Series
from profilerkit.model.step import PARTS, WHOLE_TRACE, within
from profilerkit.model.step import WAITS as WAITS
from profilerkit.rules.parts import PARTS_OF_RULE
from profilerkit.units import format_ns, format_ratio

#: Headings of a rule's page, in this order; its docstring begins with the text of the first.
HEADINGS = (
    "What it finds",
    "Why it costs",
    "Example",
    "Use instead",
    "How it is measured",
    "When it is wrong",
    "Sources",
)

SMALLEST_SAVING = 0.02  #: no rule speaks below this expected saving, nor below two standard errors of the step time
#: Steady steps needed for high and for medium confidence.
STEPS_FOR_HIGH = 8
STEPS_FOR_MEDIUM = 2
#: So many reasons for doubt leave low confidence (a choice: two weaknesses are common, three a bad recording).
DOUBTS_FOR_LOW = 3
LOST_EVENTS = 0.1  #: share of the events read that, when as many were lost, leaves no more than a first impression

#: Standard deviation over mean from which few steps are told as their mean: one of seven, half as long again, has 0.16.
#: More steps are told as their mean where the median is that far from it (a choice).
UNEVEN_CV = 0.15

_Claim = ParamSpec("_Claim")
_ORDER: tuple[Confidence, ...] = ("low", "medium", "high")


class Fired(msgspec.Struct, frozen=True):
    """The failing state was found."""

    findings: tuple[Finding, ...]


class Passed(msgspec.Struct, frozen=True):
    """The state was looked for and is not there; ``reason`` is the number that says so."""

    reason: str


class NotApplicable(msgspec.Struct, frozen=True):
    """The rule is about something this run does not have."""

    reason: str


class MissingData(msgspec.Struct, frozen=True):
    """The rule cannot tell; ``hint`` says how to record what it needs."""

    reason: str
    hint: str


Result = Fired | Passed | NotApplicable | MissingData


class Rule(msgspec.Struct, frozen=True):
    """One failing state. The fields of a subclass are its thresholds.

    Class attributes:
        code: stable identifier, family letters and number.
        summary: the claim in one line.
        name: the failing state as a noun; the class's own name unless set.
        family: the folder the rule lives in; ``own`` for a rule from outside of this package, unless set.
        reads_logs: it can speak of samples alone, without a step. The others end in missing data then.
        reads_dumps: it can speak of the collectives of flight recorders alone.
        of_any_framework: whether what it says, fix included, holds for a run of another framework than PyTorch.
    """

    code: ClassVar[str]
    summary: ClassVar[str]
    name: ClassVar[str]
    family: ClassVar[str]
    reads_logs: ClassVar[bool] = False
    reads_dumps: ClassVar[bool] = False
    of_any_framework: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        """Name the rule after its class, and its family after its folder."""
        *package, family, _ = f"..{cls.__module__}".split(".")
        if "name" not in vars(cls):
            cls.name = re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()
        if "family" not in vars(cls):
            cls.family = family if package[-2:] == ["profilerkit", "rules"] else "own"

    def check(self, facts: Facts) -> Result:
        """Decide from facts alone; never guess a missing one."""
        raise NotImplementedError

    def worth_saying(self, facts: Facts, expected: float) -> bool:
        """Return whether a saving is above the floor, and its cause surely there.

        What counts is the share of the step that the rule is about, by two standard errors, not how much the step time
        varies: steps that differ are those with a cause. But what one of them holds alone is no cause in the others.
        Where no parts of single steps are known the step time has to do.
        """
        parts = PARTS_OF_RULE.get(self.code, ())
        error = facts.share_error(*parts)
        if error is None:
            return expected >= max(SMALLEST_SAVING, 2.0 * relative_error(facts))
        return expected >= SMALLEST_SAVING and 2.0 * error <= 1.0 and not facts.is_of_one_step(*parts)


def unsure(what: str, expected: float) -> Passed:
    """Say why a rule that saw its cause stays silent: what a fix would save is too little, or not sure enough."""
    why = "too little to name" if expected < SMALLEST_SAVING else "and the steps differ too much to be sure"
    return Passed(f"{what}: a fix would save {format_ratio(expected)}, {why}")


def no_device(facts: Facts, reason: str) -> NotApplicable | MissingData:
    """Return how a rule about device events ends without any: not recorded, or, where a trace was read, not there."""
    if facts.trace_read:
        return NotApplicable(reason)
    if facts.kernels_unseen is not None:
        return MissingData("the trace holds none of the device's events", SHOW_KERNELS[facts.kernels_unseen])
    return MissingData("what the device did is only seen in a trace", "profilerkit.profile(..., deep=True)")


def confidence(facts: Facts, at_most: Confidence) -> Confidence:
    """``at_most``, lowered by what makes the steady steps a weak sample of the run.

    Fewer than ``STEPS_FOR_HIGH`` steps and each doubt (noise, drift, steps from one end, traced steps unlike the
    others, contention, damage) weigh alike: any of them leaves medium, ``DOUBTS_FOR_LOW`` of them low. A single step,
    and a recording of which parts are lost, leave low by themselves.
    """
    if facts.logs is not None and facts.logs.alone:
        return at_most  # what is said of logs rests on no step
    steady, trust = facts.steps.steady, facts.trust
    doubts = len(facts.doubts) + (steady < STEPS_FOR_HIGH)
    is_in_parts = trust.truncated or trust.dropped >= LOST_EVENTS * max(trust.events, 1)
    if steady < STEPS_FOR_MEDIUM or doubts >= DOUBTS_FOR_LOW or is_in_parts:
        return "low"
    return weakest(at_most, "medium" if doubts else "high")


def weakest(*values: Confidence) -> Confidence:
    """Return the lowest of several confidences."""
    return min(values, key=_ORDER.index)


def is_mean(facts: Facts) -> bool:
    """Return whether a mean time is no step's own: few judged steps differ that much, or the mean and the median do."""
    times = facts.steps.time_ns
    if times is None:
        return False
    cv = times.cv_ratio if facts.steps.steady < STEPS_FOR_HIGH else None
    return (cv or 0.0) >= UNEVEN_CV or abs(times.mean - times.median) >= UNEVEN_CV * times.mean


def may_train(facts: Facts) -> bool:
    """Return whether the step may train: operators were not recorded, or a backward pass or optimizer is among them."""
    phases = {phase.name for phase in facts.host.phases}
    return not facts.measured(OPERATOR_TRACE) or not phases.isdisjoint(("backward", "optimizer"))


def judged(facts: Facts) -> str:
    """``the step``, or ``the recording`` where nothing in it marks a step."""
    return "the recording" if facts.steps.found_by == WHOLE_TRACE else "the step"


def each(facts: Facts, time: str = "") -> str:
    """``every step``, ``the mean step`` where few differ, ``the recording`` that marks none; ``time`` is its length."""
    which, what = judged(facts).split()
    if what == "step":
        which = "the mean" if is_mean(facts) else "every"
    return " ".join(word for word in (which, time, what) if word)


def spent(facts: Facts, share: float) -> str:
    """Return a share of the step as time: ``12.0 ms of every step``."""
    return f"{format_ns(share * (facts.mean_step_ns or 0.0))} of {each(facts)}"


ENOUGH_STEPS = 10  #: steps asked for where too few were recorded
#: What to do then; the first steps are warm-up.
RECORD_ENOUGH = f"Record at least {ENOUGH_STEPS} steps after the first 5."
#: Why a step is not judged, after a count of such steps.
_UNUSED = {"warmup": "warm-up", "compile": "compiling", "cut": "cut off", "disturbed": "slowed by the profiler"}


def used_steps(facts: Facts) -> str:
    """Return how many of the recorded steps could be judged, and why not the others, in parentheses."""
    steps = facts.steps
    why = ", ".join(f"{count} {_UNUSED.get(state, state)}" for state, count in steps.dropped.items())
    return f"{steps.steady} of {steps.count} recorded steps could be judged" + (f" ({why})" if why else "")


def record_enough(facts: Facts, more: str) -> str:
    """What to record: so many steps, or, where as many were recorded, which of them could be judged, and ``more``."""
    if facts.steps.count < ENOUGH_STEPS:
        return RECORD_ENOUGH
    return f"{used_steps(facts)}: {more}."


def part_words(part: str) -> str:
    """Return a part of the step inside a sentence."""
    return within(PARTS[part][1]) if part in PARTS else part


def record_longer(facts: Facts, least: str) -> str:
    """How to record what only many steps show: ``least`` of them where the whole run was recorded and was too short."""
    timed = facts.measured(STEP_TIMERS)
    return f"let the run go on for at least {least}" if timed else "record the whole run: profilerkit.profile(...)"


def rows(
    facts: Facts,
    origin: str,
    *numbers: tuple[str, float | None, str],
    source: Source = "measured",
    n: int | None = STEADY,
) -> tuple[Evidence, ...]:
    """Return evidence about the judged rank for each label, value and unit, all from one place."""
    return tuple(facts.evidence(label, value, unit, origin, source, n=n) for label, value, unit in numbers)


def sampled_evidence(facts: Facts, series: Series, label: str, origin: str) -> Evidence:
    """Return the mean of a sampled signal, a share of the time, between its 10th and 90th percentile."""
    found = facts.evidence(label, series.mean, "ratio", origin, n=series.n, behind=(series.name,))
    return revise(found, low=series.p10, high=series.p90)


def finding_for(
    facts: Facts,
    *,
    bound: Bound | None,
    title: str,
    why: str,
    evidence: tuple[Evidence, ...],
    at_most: Confidence,
    detail: str = "",
    saving: Saving | None = None,
    fix: Fix | None = None,
    confirm: str = "",
) -> Finding:
    """Return a finding with what every rule fills in alike: confidence capped by the steps, and the rank.

    Evidence whose value was not measured is left out, unless there is no other.
    """
    return Finding(
        title=title,
        bound=bound,
        why=why,
        evidence=tuple(row for row in evidence if row.value is not None) or evidence,
        confidence=confidence(facts, at_most),
        detail=detail,
        saving=saving,
        fix=fix,
        confirm=confirm,
        rank=facts.rank.rank if len(facts.ranks) > 1 else None,
    )


def _alone(make: Callable[_Claim, Finding]) -> Callable[_Claim, Fired]:
    def fired(*args: _Claim.args, **claim: _Claim.kwargs) -> Fired:
        return Fired((make(*args, **claim),))

    return fired


fired = _alone(finding_for)  #: end a rule with one finding, which is made as by ``finding_for``
