"""The first screen: what bounds the run, the first fix, what it saves, how sure that is, and the machine."""

from shlex import quote

from profilerkit.model.finding import in_order
from profilerkit.model.report import Report
from profilerkit.model.step import taken_share
from profilerkit.model.verdict import BOUND_FAMILY
from profilerkit.report.blocks import Bar, Finding, First
from profilerkit.report.breakdown import bar_caption, bar_of, parts_missing
from profilerkit.report.inert import SENTENCE_LIMIT, inert
from profilerkit.report.limits import limits_of
from profilerkit.report.wording import SHAPES, listed, marks_none, plural, verdict_tone
from profilerkit.units import format_ratio

#: The command that records what an analysis of logs, dumps or too few steps lacks.
_RECORD = "profilerkit run -- train.py"
#: From this share on it is said that other programs hold the processors.
_NOTED_SHARE = 0.05
_BUSY_HOST = "contended_host"


def first_of(report: Report, findings: tuple[Finding, ...]) -> First:
    """The first screen of a report whose findings are these."""
    verdict, tone = report.verdict, verdict_tone(report)
    fix = next((found for found in findings if found.fix), None)
    has_bar = any(part.time_ns > 0 for part in report.breakdown)
    is_settled = verdict.bound in ("balanced", "compute-bound")
    is_blind = not fix and not is_settled
    if fix is not None and report.trust.mode == "logs":
        is_blind, fix = True, None
    return First(
        about=_about(report),
        made=inert(report.run.created, 40)[:10],
        tone=tone,
        shape=SHAPES[tone],
        word=verdict.bound.upper(),
        headline=inert(verdict.headline, 200),
        confidence=verdict.confidence,
        bars=(_bar(report),) if has_bar else (),
        missing="" if has_bar or is_blind else parts_missing(report),
        lines=(*limits_of(report), *_machine(report)),
        fix=fix,
        advice=_advice(report) if is_blind else "Nothing needs to change." if not fix else "",
        command=_RECORD if is_blind else "",
        measure=f"profilerkit diff {quote(inert(report.run.name, 40) or 'before')} AFTER" if fix else "",
    )


def _bar(report: Report) -> Bar:
    """The step by family; the family that bounds it first."""
    bar = bar_of(report.breakdown, caption=bar_caption(report))
    first = BOUND_FAMILY.get(report.verdict.bound)
    segments = sorted(bar.segments, key=lambda segment: (segment.family != first, -segment.ratio))
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
        return [f"This machine was busy. {inert(found.title, SENTENCE_LIMIT)}."]
    if share >= _NOTED_SHARE and found is None:
        return [f"This machine was busy: other programs held its processors for {format_ratio(share)} of the step."]
    return []


def _advice(report: Report) -> str:
    """What to record, where the recording cannot say what to change."""
    said = inert(report.verdict.refuted_by, SENTENCE_LIMIT)
    if report.verdict.bound == "inconclusive" or report.trust.mode in ("logs", "dumps"):
        return said or "Record the run with its steps."
    return "Record the run again to learn what to change."
