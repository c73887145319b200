"""The answer: what to change first, every finding with its evidence, and why not the other causes."""

from collections.abc import Iterator

from profilerkit.model import revise
from profilerkit.model.finding import Bound, Outcome, Saving, in_order, with_fixes
from profilerkit.model.report import Report
from profilerkit.model.run import EndKind
from profilerkit.model.step import Family, as_judged, taken_share
from profilerkit.model.verdict import BOUND_FAMILY, Waterfall
from profilerkit.report import blocks, wording
from profilerkit.report.findings import Findings, findings_of, first_sentence
from profilerkit.report.inert import SENTENCE_LIMIT, inert
from profilerkit.report.sections.memory import oom_advice, oom_headline, oom_held
from profilerkit.units import format_count, format_ns, format_ratio

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
_MOST_WORDS = 18  #: a longer reason stands with the evidence: the first screen has 90 words and numbers at most
#: What measures the first fix: before it is made where it is a setting, else after. A report knows neither the places
#: of recordings nor the whole command of its reader.
_TRY, _DIFF = "profilerkit try -- COMMAND", "profilerkit diff BEFORE AFTER"
#: Rules whose fixes leave more memory free.
_CURES = ("growing_memory", "fragmented_memory", "oversized_step", "near_capacity")


def first_of(report: Report, findings: Findings) -> blocks.First:
    """The first screen of a report whose findings are these."""
    verdict, tone = report.verdict, wording.verdict_tone(report)
    first = blocks.First(
        about=_about(report),
        made=inert(report.run.created, 40)[:10],
        tone=tone,
        shape=wording.SHAPES[tone],
        word=verdict.bound.upper(),
        kind=wording.kind_words(verdict.detail),
        headline=inert(verdict.headline, 200),
        confidence=verdict.confidence,
        bars=() if wording.parts_missing(report) else (_bar(report),),
        lines=(*limits_of(report), *_machine(report)),
    )
    failure = inert(report.run.failure or "", SENTENCE_LIMIT)
    if report.oom:
        oom = report.oom
        codes = {outcome.rule for outcome in report.outcomes if outcome.name in _CURES}
        said = f"{first.word}: {first.headline}." if report.verdict.bound != "inconclusive" else ""
        return revise(
            first,
            tone="high",
            shape=wording.SHAPES["high"],
            word="FAILED",
            kind="",
            headline=oom_headline(oom, report),
            confidence="high",
            fixes=tuple(found for found in findings.fixes if found.rule in codes),
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
        because, missing = _because(report, findings.fixes[0]), wording.parts_missing(report)
        return revise(first, fixes=findings.fixes, because=because, measure=_measure(report), missing=missing)
    is_log = report.trust.mode in ("logs", "dumps")
    asks = verdict.detail == "likely" or verdict.command != ""
    if not findings.fixes and verdict.bound in ("balanced", "compute-bound") and not asks and not is_log:
        return revise(first, advice="Nothing needs to change.", missing=wording.parts_missing(report))
    helps = inert(verdict.refuted_by, SENTENCE_LIMIT)
    if verdict.bound != "inconclusive" and not is_log:
        said = f"{first_sentence(helps)}." if asks and helps else "No fix is proposed here."
        return revise(first, advice=said, command=verdict.command)
    headline = "Record the steps of the run to learn what to change"
    if not is_log and helps:
        headline, helps = first_sentence(helps), helps.partition(". ")[2]
    return revise(first, headline=headline, advice=f"{first.headline}.", because=helps, command=verdict.command)


def _measure(report: Report) -> str:
    found = with_fixes(report.outcomes)[0]
    is_tried = found.saving is not None and found.saving.method == "trial"
    is_setting = found.fix is not None and bool(found.fix.changes)
    ended_well = report.run.kind == "run" and report.run.ending not in _ENDS
    return _TRY if ended_well and is_setting and not is_tried else _DIFF


def _because(report: Report, fix: blocks.Finding) -> str:
    """Why the first fix helps, without what the headline says, and the user's own line."""
    found, verdict = with_fixes(report.outcomes)[0], report.verdict
    is_own = (found.bound, found.detail) == (verdict.bound, verdict.detail)
    said = first_sentence(fix.why).partition("; ")[0] if is_own else fix.title
    where = f"Where: {fix.where}." if fix.where else ""
    return " ".join(filter(None, (f"{said}." if len(said.split()) <= _MOST_WORDS else "", where)))


def _bar(report: Report) -> blocks.Bar:
    bar = wording.bar_of(report.breakdown, caption=wording.bar_caption(report))
    first = BOUND_FAMILY.get(report.verdict.bound)
    segments = sorted(bar.segments, key=lambda piece: (piece.beside, piece.family != first, -piece.ratio))
    return blocks.Bar(bar.label, tuple(segments), bar.caption)


def _about(report: Report) -> str:
    run = report.run
    devices = sorted({inert(device, 40) for device in run.devices if device})
    count = len(report.ranks) if len(report.ranks) > 1 else 0
    pieces = [
        inert(run.name, 60) or "run",
        wording.plural(count, "rank") if count else "",
        wording.listed(devices[:2]),
        wording.plural(report.steps.count, "step") if report.steps.count and not wording.marks_none(report) else "",
    ]
    return " · ".join(piece for piece in pieces if piece)


def _machine(report: Report) -> Iterator[str]:
    found = next((finding for outcome, finding in in_order(report.outcomes) if outcome.name == _BUSY_HOST), None)
    share = taken_share(report.breakdown)
    if found is not None and report.verdict.detail != "contention":
        of_pool = any("host.pool_queue" in entry.behind for entry in found.evidence)
        left_out = "exclude it, but for what threads of operators wait" if of_pool else "exclude it"
        said = f"Busy machine: times above {left_out}." if share else "Busy machine."
        yield f"{said} {inert(found.title, SENTENCE_LIMIT)}."
    elif share >= _NOTED_SHARE and found is None:
        held = f"other programs held its processors for {format_ratio(share)} of the step"
        yield f"Busy machine: {held}. Times above exclude it."


# Suppressed rules named beside the verdict, and how much of each reason.
_SUPPRESSED_SHOWN = 4
_REASON_LIMIT = 200


def limits_of(report: Report) -> Iterator[str]:
    """What stands against the headline, in whole sentences: missing events, suppressed findings."""
    trust = report.trust
    alone = len(report.run.files) == 1
    if trust.truncated or trust.dropped:
        what = "A trace is" if not alone else "The file is" if report.run.kind == "trace" else "The trace is"
        if not alone and len(trust.damaged) == 1:
            what = f"The trace of {inert(trust.damaged[0], 60)} is"
        read = f"{wording.plural(trust.events, 'event')} {'was' if trust.events == 1 else 'were'} read"
        lost = f", {format_count(trust.dropped)} {'was' if trust.dropped == 1 else 'were'} dropped"
        yield f"{what} {'cut off' if trust.truncated else 'damaged'}: {read}{lost if trust.dropped else ''}."
    if trust.another_follows:
        yield f"{'The' if alone else 'A'} file holds a second document after the first: only the first was read."
    if report.run.left_out:
        yield f"Left out: {inert('; '.join(report.run.left_out), SENTENCE_LIMIT)}."
    aside = sorted((outcome for outcome in report.outcomes if outcome.suppressed), key=_expected, reverse=True)
    for outcome in aside[:_SUPPRESSED_SHOWN]:
        saves = f" (saves {format_ratio(_expected(outcome))})" if _expected(outcome) else ""
        reason = inert(outcome.reason or "no reason", _REASON_LIMIT).rstrip(".")
        yield f"Suppressed: {inert(outcome.rule, 24)}{saves}: {reason}."
    left = len(aside) - _SUPPRESSED_SHOWN
    if left > 0:
        yield f"{wording.plural(left, 'more rule')} {'was' if left == 1 else 'were'} suppressed."


def _expected(outcome: Outcome) -> float:
    return max((found.saving.expected for found in outcome.suppressed if found.saving), default=0.0)


def other_causes(report: Report) -> blocks.Section | None:
    """Contenders first, then what is ruled out or not measured."""
    verdict, rows = report.verdict, []
    shares: dict[Family, float] = {}
    for part in report.breakdown:
        shares[part.family] = shares.get(part.family, 0.0) + (wording.own_share(part, report.breakdown) or 0.0)
    for bound in verdict.contenders:
        best, family = _best(report, bound), BOUND_FAMILY.get(bound)
        beyond = best is not None and family is not None and best.expected > shares.get(family, 1.0)
        also = ", also in parts of other families" if beyond else ""
        reason = f"Its best fix is expected to save 5 % or more{also}."
        if best is None:
            reason = "The recorder slows the host. Without it, kernels may be the bound."
        rows.append(_cause(bound, "also costs time", shares.get(family) if family else None, best, reason))
    for row in verdict.ruled_out:
        if row.bound not in verdict.contenders:
            best = _best(report, row.bound)
            reason = inert(row.reason, SENTENCE_LIMIT)
            rows.append(_cause(row.bound, row.state, row.share, best, reason, known=row.saving))
    if not rows and not verdict.refuted_by:
        return None
    made: list[blocks.Block] = []
    if rows:
        made.append(blocks.Table("", ("Bound", "State", "Why", "Share", "Saving"), tuple(rows), 3))
    if verdict.refuted_by:
        made.append(blocks.Text.of(f"To check this verdict: {inert(verdict.refuted_by, SENTENCE_LIMIT)}"))
    summary = (
        f"also: {wording.listed(list(verdict.contenders))}" if verdict.contenders else "the number that decides each"
    )
    return blocks.Section("why-not", "Other causes", summary, tuple(made))


def _best(report: Report, bound: Bound) -> Saving | None:
    return next((found.saving for _, found in in_order(report.outcomes) if found.bound == bound and found.saving), None)


def _cause(
    bound: Bound, state: str, share: float | None, best: Saving | None, reason: str, known: float | None = None
) -> tuple[blocks.Cell, ...]:
    saving = wording.saving_range(best) if best else "not estimated" if known is None else format_ratio(known)
    return (bound, state, reason, blocks.Value(share, "ratio"), saving)


_NAMED = 2


def section(report: Report) -> blocks.Section | None:
    """Every finding; ``None`` without any."""
    findings = findings_of(report)
    if not findings.all:
        return None
    shown = first_of(report, findings).fixes[:1]
    more = [found for found in findings.fixes if found not in shown]
    named = [f"{first_sentence(found.fix)}{f': {found.saves}' if found.saves else ''}" for found in more[:_NAMED]]
    made: list[blocks.Block] = list(findings.all)
    if waterfall := waterfall_blocks(report):
        made += [blocks.Heading("The step after each fix"), *waterfall]
    return blocks.Section(
        "fixes",
        f"{len(more)} {'more ' if shown else ''}{'fix' if len(more) == 1 else 'fixes'}" if more else "Evidence",
        " · ".join(named) if named else "why, and the numbers",
        tuple(made),
    )


_TITLE_LIMIT = 120


def waterfall_blocks(report: Report) -> tuple[blocks.Block, ...]:
    """A bar for each fix, set one after another; empty where no fix was replayed."""
    found = report.waterfall
    if found is None or not found.fixes:
        return ()
    last = found.fixes[-1]
    # The largest finding may be none that a replay tells.
    these = f"the fix of {inert(last.rule, 40)}" if len(found.fixes) == 1 else f"these {len(found.fixes)} fixes"
    title = f"With {these} the step takes {format_ns(last.step_ns)} instead of {format_ns(found.now_ns)}."
    rows: list[tuple[blocks.Cell, ...]] = [
        ("Now", "", _fixed_bar("Now", found.now_ns, found), blocks.Value(found.now_ns, "ns"), "")
    ]
    for number, fix in enumerate(found.fixes, start=1):
        label = inert(f"After {fix.rule}" if number == 1 else f"and {fix.rule}", 40)
        bar, time = _fixed_bar(label, fix.step_ns, found), blocks.Value(fix.step_ns, "ns")
        rows.append((label, inert(fix.title, _TITLE_LIMIT), bar, time, blocks.Value(fix.saving, "ratio")))
    if found.floor_ns is not None:
        bar, time = _fixed_bar("Floor", found.floor_ns, found), blocks.Value(found.floor_ns, "ns")
        rows.append(("Floor", "no fix named here gets below this", bar, time, ""))
    caption = f"Replayed together, never added. {_basis(found)}"
    table = blocks.Table(
        caption, ("Step", "Fix", "Length", "Time", "Saved so far"), tuple(rows), 3, title="The step after each fix"
    )
    return (blocks.Text.of(as_judged(title, report.steps.found_by)), table)


def _fixed_bar(label: str, step_ns: float, found: Waterfall) -> blocks.Bar:
    ratio = min(max(step_ns / found.now_ns, 0.0), 1.0) if found.now_ns else 0.0
    return blocks.Bar(label, (blocks.Segment("compute", label, ratio, blocks.Value(step_ns, "ns")),))


def _basis(found: Waterfall) -> str:
    replay = found.replay
    which = (
        wording.plural(replay.steps, "traced step")
        if replay.steps == replay.of
        else f"{replay.steps} of {replay.of} steps"
    )
    return f"n {which}; the unchanged replay is within {format_ratio(replay.worst_step_ratio)}."


def replay_facts(report: Report) -> tuple[blocks.Fact, ...]:
    """For the trust section: whether savings are told from a replay; empty where there was nothing to replay."""
    found = report.waterfall
    if found is None:
        return ()
    if found.replay.refused:
        refused = inert(found.replay.refused, SENTENCE_LIMIT)
        return (blocks.Fact("Replay", "not used", f"{refused}: savings are bounds and formulas"),)
    return (blocks.Fact("Replay", "used for savings", _basis(found)),)


SECTIONS = {10: section, 50: other_causes}
