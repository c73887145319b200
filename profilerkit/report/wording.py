"""The words of the report: verdicts, savings, sources, counts."""

from collections import Counter
from collections.abc import Iterable, Sequence

from profilerkit.model.finding import (
    SOURCES_BY_STRENGTH,
    Finding,
    Outcome,
    Saving,
    Severity,
    Source,
    Status,
    Throughput,
)
from profilerkit.model.report import Report
from profilerkit.model.step import PARTS, WHOLE_TRACE, Family, taken_share
from profilerkit.model.verdict import Verdict
from profilerkit.report.inert import SENTENCE_LIMIT, inert
from profilerkit.report.oom import oom_line
from profilerkit.report.records import Kind, Tone
from profilerkit.units import (
    format_count,
    format_gain,
    format_ns,
    format_ns_range,
    format_ratio,
    format_ratio_range,
    is_open,
)

FAMILY_LABELS: dict[Family, str] = {
    "input": "Input",
    "memory": "Memory",
    "communication": "Communication",
    "compute": "Compute",
    "overhead": "Host overhead",
    "other": "Other",
}

#: How a step stands to the steady window; also the usual reasons for leaving steps out.
STATE_WORDS = {
    "steady": "steady",
    "warmup": "warm-up",
    "compile": "compile",
    "cut": "cut off",
    "disturbed": "disturbed",
    "probe": "put in by probes",
}

DETAIL_WORDS = {
    "fetch": "reading data",
    "prep": "preparing samples",
    "ipc": "joining and handing over batches",
    "h2d": "copying batches to the device",
    "wait": "waiting for batches",
    "bandwidth": "bandwidth",
    "capacity": "capacity",
    "latency": "latency",
    "imbalance": "uneven work",
    "slower": "a slower rank",
    "no-overlap": "no overlap",
    "launch": "issuing work",
    "python": "Python code",
    "sync": "host syncs",
    "gc": "garbage collection",
    "checkpoint": "checkpoints",
    "evaluation": "evaluation",
    "compile": "compilation",
    "contention": "contention",
    "autotune": "searches for algorithms",
    "clock": "a throttled clock",
    "grid": "badly filled grids",
    "alignment": "odd matrix sizes",
    "optimizer": "the optimizer",
    "hook": "hooks",
    "rollout": "rollouts",
    "read": "reading values one by one",
    "layout": "layout conversions",
}

METHOD_WORDS = {
    "bound": "upper bound",
    "analytic": "analytic model",
    "replay": "replay of the step",
    "probe": "what a probe gained",
}

SHAPES: dict[Tone, str] = {"high": "▲", "medium": "■", "low": "●", "good": "●", "info": "◇"}

_TONES: dict[Severity, Tone] = {"high": "high", "medium": "medium", "low": "low", "info": "info"}

STATUS_LABELS: dict[Status, str] = {
    "passed": "Passed",
    "not_applicable": "Not applicable",
    "missing_data": "Could not run: data missing",
    "error": "Could not run: the rule failed",
    "suppressed": "Suppressed",
    "off": "Switched off",
}

#: From this expected saving on a bound is named and a finding can be severe.
SMALL_SAVING = 0.10
# Steps from which on their length is a steady state's even without a verdict (R56).
_STEADY_STEPS = 8
# Suppressed rules named beside the verdict, and how much of each reason.
_SUPPRESSED_SHOWN = 4
_REASON_LIMIT = 200
# A smaller share would be printed as 0.0 %.
_SMALLEST_SHARE = 0.0005

#: How a rule ended, said of several.
STATUS_VERBS: dict[Status, str] = {
    "passed": "passed",
    "not_applicable": "did not apply",
    "missing_data": "lacked data",
    "error": "failed",
    "suppressed": "suppressed",
    "off": "switched off",
}


def plural(count: int, noun: str) -> str:
    """A count with its noun.

    >>> plural(1, "step"), plural(2000, "step")
    ('1 step', '2,000 steps')
    """
    return f"{format_count(count)} {noun}{'' if count == 1 else 's'}"


def listed(items: Sequence[str]) -> str:
    """Items as a person lists them.

    >>> listed(["a", "b", "c"])
    'a, b and c'
    """
    return " and ".join(piece for piece in (", ".join(items[:-1]), items[-1] if items else "") if piece)


def share_text(ratio: float) -> str:
    """A share of the step; one that is there but rounds to nothing says so.

    >>> share_text(0.24), share_text(0.0002), share_text(0.0)
    ('24 %', '< 0.1 %', '0 %')
    """
    return "< 0.1 %" if 0.0 < ratio < _SMALLEST_SHARE else format_ratio(ratio)


def weakest(sources: Iterable[Source]) -> Source:
    """The source that a sum of these numbers may claim."""
    return max(sources, key=SOURCES_BY_STRENGTH.index)


def part_label(part: str) -> str:
    """The words for a part; an unknown part keeps its own name."""
    return PARTS[part][1] if part in PARTS else inert(part)


def tone_of(severity: Severity) -> Tone:
    """The tone in which a finding of this severity is printed."""
    return _TONES[severity]


def is_steady(report: Report) -> bool:
    """Whether the judged steps are a steady state: a few without a verdict, as of a cold start, are not."""
    return report.verdict.bound != "inconclusive" or report.steps.steady >= _STEADY_STEPS


def marks_none(report: Report) -> bool:
    """Whether nothing marks a step, so that the whole recording was judged like one."""
    return report.steps.found_by == WHOLE_TRACE


def judged_steps(report: Report) -> str:
    """How many steps the numbers are about, and whether they are steady: ``48 steady steps``."""
    return plural(report.steps.steady, "steady step" if is_steady(report) else "judged step")


def step_ns(report: Report) -> int | None:
    """Mean steady step of the program, ns, which savings are ratios of; ``None`` without a step.

    What the step waited for processors that other programs held is left out: no fix of the program takes it off.
    """
    return round(report.steps.time_ns.mean * (1.0 - taken_share(report.breakdown))) if report.steps.time_ns else None


def saving_range(saving: Saving) -> str:
    """The saving as a share of the step: ``48–61 %``, or ``up to 61 %`` where the range is no help."""
    return format_gain(saving.low, saving.high, saving.method)


def saving_text(saving: Saving, mean_ns: int | None) -> str:
    """The saving in time and share: ``84.5–107 ms per step (48–61 %, 55 % expected)``."""
    is_wide, most = is_open(saving.low, saving.high, saving.method), format_ratio(saving.high)
    is_said = not is_wide or (saving.expected > 0 and format_ratio(saving.expected) != most)
    expected = f", {format_ratio(saving.expected)} expected" if is_said else ""
    if mean_ns is None:
        return f"{saving_range(saving)}{expected} of the step"
    if is_wide:
        return f"up to {format_ns(saving.high * mean_ns)} per step ({most}{expected})"
    return f"{format_ns_range(saving.low * mean_ns, saving.high * mean_ns)} per step ({saving_range(saving)}{expected})"


def throughput_text(gain: Throughput) -> str:
    """The gain in samples per second: ``60–120 % more samples per second (85 % expected)``."""
    return f"{format_ratio_range(gain.low, gain.high)} more samples per second ({format_ratio(gain.expected)} expected)"


def source_of(saving: Saving | Throughput, unit: str) -> Source:
    """How a number of it came about: a probe measures shares of the step, and times follow from those."""
    if saving.method != "probe":
        return "estimated"
    return "derived" if unit == "ns" else "measured"


def method_text(saving: Saving | Throughput) -> str:
    """How the saving, or the gain, was computed and how it was calibrated."""
    return f"{METHOD_WORDS[saving.method]}, {inert(saving.calibration)}"


def kind_of(verdict: Verdict, findings: Sequence[tuple[Outcome, Finding]]) -> Kind:
    """Shape, word and confidence; the tone is that of the worst finding which argues for the verdict."""
    tone: Tone = "medium"
    if verdict.bound == "balanced" or (verdict.bound == "compute-bound" and verdict.saving is None):
        tone = "good"
    elif verdict.bound == "inconclusive":
        tone = "info"
    else:
        severities = {finding.severity for _, finding in findings if finding.bound == verdict.bound}
        tone = next((_TONES[level] for level in ("high", "medium", "low") if level in severities), "medium")
    detail = DETAIL_WORDS.get(verdict.detail, inert(verdict.detail))
    if verdict.rank is not None:
        detail = f"{detail} on rank {verdict.rank}" if detail else f"rank {verdict.rank}"
    shape = "◇" if verdict.bound == "inconclusive" else SHAPES[tone]
    return Kind(shape, tone, verdict.bound.upper(), detail, verdict.confidence)


def rule_count(outcomes: Sequence[Outcome]) -> str:
    """How many rules fired and could not run, for example ``3 of 31 rules fired; 4 could not run.``."""
    if not outcomes:
        return "No rule was run."
    fired = sum(outcome.status == "fired" for outcome in outcomes)
    blind = sum(outcome.status in {"missing_data", "error"} for outcome in outcomes)
    text = f"{fired} of {plural(len(outcomes), 'rule')} fired"
    return f"{text}; {blind} could not run." if blind else f"{text}."


def other_outcomes(outcomes: Sequence[Outcome]) -> str:
    """How the rules that did not fire ended: ``The others: 5 passed, 1 lacked data.``; empty without any."""
    counts = {status: sum(outcome.status == status for outcome in outcomes) for status in STATUS_VERBS}
    ended = [f"{format_count(count)} {STATUS_VERBS[status]}" for status, count in counts.items() if count]
    return f"The others: {', '.join(ended)}." if ended else ""


def consequence_of(report: Report) -> str:
    """The line under the headline: the diagnosis's own, or the saving and the scope."""
    verdict = report.verdict
    if verdict.consequence:
        return inert(verdict.consequence, SENTENCE_LIMIT)
    pieces = []
    if verdict.saving:
        pieces.append(f"Fixing it saves {saving_range(verdict.saving)} of the step.")
    elif verdict.bound == "inconclusive":
        pieces.append(f"{plural(report.steps.steady, 'steady step')} of {report.steps.count} found.")
    pieces.append(rule_count(report.outcomes))
    return " ".join(pieces)


def limits_of(report: Report) -> tuple[str, ...]:
    """What stands against the headline, in whole sentences: a failure, events that are missing, rules switched off."""
    trust = report.trust
    lines = [inert(report.run.failure, SENTENCE_LIMIT)] if report.run.failure else []
    lines += [oom_line(report)] if report.oom else []
    if trust.truncated or trust.dropped:
        alone = len(report.run.files) == 1
        what = "A trace is" if not alone else "The file is" if report.run.kind == "trace" else "The trace is"
        if not alone and len(trust.damaged) == 1:
            what = f"The trace of {inert(trust.damaged[0], 60)} is"
        read = f"{plural(trust.events, 'event')} {'was' if trust.events == 1 else 'were'} read"
        lost = f", {format_count(trust.dropped)} {'was' if trust.dropped == 1 else 'were'} dropped"
        lines.append(f"{what} {'cut off' if trust.truncated else 'damaged'}: {read}{lost if trust.dropped else ''}.")
    if trust.another_follows:
        lines.append(
            f"{'The' if len(report.run.files) == 1 else 'A'} file holds another document behind the first: "
            "only the first was read."
        )
    off = sum(outcome.status == "off" for outcome in report.outcomes)
    if off:
        lines.append(f"{off} of {plural(len(report.outcomes), 'rule')} {'was' if off == 1 else 'were'} switched off.")
    return (*lines, *_suppressed(report))


def _suppressed(report: Report) -> list[str]:
    """What was found and set aside, with the reason that was given, largest expected saving first."""

    def expected(outcome: Outcome) -> float:
        return max((found.saving.expected for found in outcome.suppressed if found.saving), default=0.0)

    def told(outcome: Outcome) -> str:
        saves = f" (saves {format_ratio(expected(outcome))})" if expected(outcome) else ""
        return f"{inert(outcome.rule, 24)}{saves}: {inert(outcome.reason or 'no reason', _REASON_LIMIT).rstrip('.')}."

    aside = sorted((outcome for outcome in report.outcomes if outcome.suppressed), key=expected, reverse=True)
    lines = [f"Suppressed: {told(outcome)}" for outcome in aside[:_SUPPRESSED_SHOWN]]
    left = len(aside) - len(lines)
    return [*lines, *([f"{plural(left, 'more rule')} {'was' if left == 1 else 'were'} suppressed."] if left else [])]


def no_change_text(report: Report) -> str:
    """What stands in the place of the top changes when there are none."""
    if report.run.failure and not report.steps.count:
        return "No change can be recommended: no step was recorded."
    if any(outcome.suppressed for outcome in report.outcomes):
        return "No rule found a change that is worth making, beside what is suppressed."
    if _no_rule_applied(report.outcomes):
        return "No change can be recommended: the rules that know one do not apply to this recording."
    if report.verdict.bound == "inconclusive":
        return "No change can be recommended from this recording."
    return "No rule found a change that is worth making."


def _no_rule_applied(outcomes: Sequence[Outcome]) -> bool:
    """Whether no rule could speak but those about the run as a whole, most are about something else."""
    counts = Counter(outcome.status for outcome in outcomes if not outcome.rule.startswith("RU"))
    silent = counts["not_applicable"] + counts["missing_data"] + counts["off"] == counts.total()
    return silent and counts["not_applicable"] > counts["missing_data"]


def change_heading(findings: Sequence[tuple[Outcome, Finding]]) -> str:
    """The heading over the top changes: they are small when the largest expected saving of theirs is."""
    expected = [finding.saving.expected for _, finding in findings if finding.fix and finding.saving]
    if not expected:
        return "What to change"
    if max(expected) < SMALL_SAVING:
        return "Small changes that remain, largest expected saving first"
    return "What to change, largest expected saving first"
