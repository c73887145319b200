"""The first screen: what bounds the run, the first fix, what it saves, how sure that is, and the machine."""

from profilerkit.model.change import revise
from profilerkit.model.finding import Outcome, in_order, with_fixes
from profilerkit.model.report import Report
from profilerkit.model.run import EndKind
from profilerkit.model.step import taken_share
from profilerkit.model.verdict import BOUND_FAMILY
from profilerkit.report.blocks import Bar, Finding, First
from profilerkit.report.breakdown import bar_caption, bar_of, parts_missing
from profilerkit.report.findings import Findings, first_sentence
from profilerkit.report.inert import SENTENCE_LIMIT, inert
from profilerkit.report.sections.memory import oom_advice, oom_headline, oom_held
from profilerkit.report.wording import SHAPES, kind_words, listed, marks_none, plural, verdict_tone
from profilerkit.units import format_count, format_ratio

#: Ends that say more than a verdict that settles nothing, each with its word and what helps; none is what the verdict
#: asks for. A run of which nobody can tell whether it still runs is not called failed.
_ENDS: dict[EndKind, tuple[str, str]] = {
    "failed": ("FAILED", ""),
    "killed": ("FAILED", "Find what killed the run, and record again."),
    "running": ("RUNNING", "Wait for more steps, and analyze the run again."),
}
#: From this share on it is said that other programs hold the processors.
_NOTED_SHARE = 0.05
_BUSY_HOST = "contended_host"
#: A longer reason stands with the evidence: the first screen has 90 words and numbers at most.
_MOST_WORDS = 18
#: A report does not know where the recording lies for its reader.
_MEASURE = "profilerkit diff BEFORE AFTER"
#: Rules whose fixes leave more memory free.
_CURES = ("growing_memory", "fragmented_memory", "oversized_step", "near_capacity")


def first_of(report: Report, findings: Findings) -> First:
    """The first screen of a report whose findings are these."""
    verdict, tone = report.verdict, verdict_tone(report)
    has_bar = any(part.time_ns > 0 for part in report.breakdown)
    first = First(
        about=_about(report),
        made=inert(report.run.created, 40)[:10],
        tone=tone,
        shape=SHAPES[tone],
        word=verdict.bound.upper(),
        kind=kind_words(verdict.detail),
        headline=inert(verdict.headline, 200),
        confidence=verdict.confidence,
        bars=(_bar(report),) if has_bar else (),
        lines=(*limits_of(report), *_machine(report)),
    )
    failure = inert(report.run.failure or "", SENTENCE_LIMIT)
    if report.oom:
        oom = report.oom
        cures = tuple(found for found in findings.fixes if found.rule in _codes(report, _CURES))
        said = f"{first.word}: {first.headline}." if report.verdict.bound != "inconclusive" else ""
        return revise(
            first,
            tone="high",
            shape=SHAPES["high"],
            word="FAILED",
            kind="",
            headline=oom_headline(oom, report),
            confidence="high",
            fixes=cures,
            advice=oom_advice(oom),
            because=oom_held(oom),
            lines=(said, *first.lines) if said else first.lines,
        )
    if verdict.bound == "inconclusive" and failure and report.run.ending in _ENDS:
        word, helps = _ENDS[report.run.ending]
        helps, lines = helps or inert(verdict.refuted_by), (f"{first.headline}.", *first.lines)
        return revise(first, word=word, headline=failure, advice=helps, command=verdict.command, lines=lines)
    first = revise(first, lines=(failure, *first.lines) if failure else first.lines)
    if findings.fixes and report.trust.mode != "logs":
        because = _because(report, findings.fixes[0])
        return revise(first, fixes=findings.fixes, because=because, measure=_MEASURE, missing=_missing(report))
    if not findings.fixes and verdict.bound in ("balanced", "compute-bound"):
        return revise(first, advice="Nothing needs to change.", missing=_missing(report))
    verdict, helps = report.verdict, inert(report.verdict.refuted_by, SENTENCE_LIMIT)
    is_log = report.trust.mode in ("logs", "dumps")
    if verdict.bound != "inconclusive" and not is_log:
        said = f"{first_sentence(helps)}." if verdict.detail == "likely" and helps else "No fix is proposed here."
        return revise(first, advice=said, command=verdict.command)
    headline = "Record the steps of the run to learn what to change"
    if not is_log and helps:
        headline, helps = first_sentence(helps), helps.partition(". ")[2]
    return revise(first, headline=headline, advice=f"{first.headline}.", because=helps, command=verdict.command)


def _because(report: Report, fix: Finding) -> str:
    """Why the first fix helps, without what the headline says, and the user's own line."""
    found, verdict = with_fixes(report.outcomes)[0], report.verdict
    is_own = (found.bound, found.detail) == (verdict.bound, verdict.detail)
    said = first_sentence(fix.why).partition("; ")[0] if is_own else fix.title
    where = f"Where: {fix.where}." if fix.where else ""
    return " ".join(filter(None, (f"{said}." if len(said.split()) <= _MOST_WORDS else "", where)))


def _missing(report: Report) -> str:
    return "" if any(part.time_ns > 0 for part in report.breakdown) else parts_missing(report)


def _codes(report: Report, names: tuple[str, ...]) -> set[str]:
    return {outcome.rule for outcome in report.outcomes if outcome.name in names}


def _bar(report: Report) -> Bar:
    """The step by family; the family that bounds it first."""
    bar = bar_of(report.breakdown, caption=bar_caption(report))
    first = BOUND_FAMILY.get(report.verdict.bound)
    segments = sorted(bar.segments, key=lambda piece: (piece.beside, piece.family != first, -piece.ratio))
    return Bar(bar.label, tuple(segments), bar.caption)


def _about(report: Report) -> str:
    run = report.run
    devices = sorted({inert(device, 40) for device in run.devices if device})
    count = len(report.ranks) if len(report.ranks) > 1 else 0
    pieces = [
        inert(run.name, 60) or "run",
        plural(count, "rank") if count else "",
        listed(devices[:2]),
        plural(report.steps.count, "step") if report.steps.count and not marks_none(report) else "",
    ]
    return " · ".join(piece for piece in pieces if piece)


def _machine(report: Report) -> list[str]:
    """That the host is busy with something else, where it is."""
    found = next((finding for outcome, finding in in_order(report.outcomes) if outcome.name == _BUSY_HOST), None)
    share = taken_share(report.breakdown)
    if found is not None and report.verdict.detail != "contention":
        said = "Busy machine: times above exclude it." if share else "Busy machine."
        return [f"{said} {inert(found.title, SENTENCE_LIMIT)}."]
    if share >= _NOTED_SHARE and found is None:
        held = f"other programs held its processors for {format_ratio(share)} of the step"
        return [f"Busy machine: {held}. Times above exclude it."]
    return []


# Suppressed rules named beside the verdict, and how much of each reason.
_SUPPRESSED_SHOWN = 4
_REASON_LIMIT = 200


def limits_of(report: Report) -> tuple[str, ...]:
    """What stands against the headline, in whole sentences: missing events, suppressed findings."""
    trust = report.trust
    lines: list[str] = []
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
            f"{'The' if len(report.run.files) == 1 else 'A'} file holds a second document after the first: "
            "only the first was read."
        )
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
