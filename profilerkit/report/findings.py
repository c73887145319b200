"""Findings as blocks: largest saving first, each with the findings about the same time inside it."""

from collections import Counter
from typing import NamedTuple

import msgspec

from profilerkit.model.finding import CodeLine, Evidence, Finding, Outcome, in_order, with_fixes
from profilerkit.model.report import Report
from profilerkit.report import blocks
from profilerkit.report.evidence import Anchors, evidence_row
from profilerkit.report.inert import SENTENCE_LIMIT, inert, inert_code
from profilerkit.report.probes import probed_words
from profilerkit.report.wording import METHOD_WORDS, saving_range, step_ns, throughput_text, tone_of

_TITLE_LIMIT = 200


def _anchor(outcome: Outcome, finding: Finding, *, is_alone: bool) -> str:
    """``IN001`` or ``IN001-rank5``; of several findings of a rule and rank each with what it is about."""
    scope = "" if finding.rank is None else f"-rank{finding.rank}"
    return f"{outcome.rule}{scope}{'' if is_alone or not finding.detail else f'-{finding.detail}'}"


def _saves(finding: Finding) -> str:
    """The saving in few words; empty where none can be stated."""
    if finding.saving:
        return f"saves {saving_range(finding.saving)}"
    return throughput_text(finding.throughput) if finding.throughput else ""


def _made(outcome: Outcome, finding: Finding, anchor: str, evidence: tuple[blocks.EvidenceRow, ...]) -> blocks.Finding:
    promised = finding.saving or finding.throughput
    code = inert_code(finding.fix.code) if finding.fix else ""
    return blocks.Finding(
        anchor=anchor,
        rule=inert(outcome.rule, 24),
        tone=tone_of(finding.severity),
        severity=finding.severity,
        title=inert(finding.title, _TITLE_LIMIT),
        saves=_saves(finding),
        method=f"{METHOD_WORDS[promised.method]}, {inert(promised.calibration)}" if promised else "",
        confidence=finding.confidence,
        scope="" if finding.rank is None else f"rank {finding.rank}",
        why=inert(finding.why, SENTENCE_LIMIT),
        fix=inert(finding.fix.text, SENTENCE_LIMIT) if finding.fix else "",
        code=blocks.Code(code) if code else None,
        confirm=inert(finding.confirm, SENTENCE_LIMIT),
        evidence=evidence,
        where=_where(finding.line),
        probed=probed_words(finding),
    )


def _where(line: CodeLine | None) -> str:
    if line is None:
        return ""
    place = f"{inert(line.file)}:{line.line}"
    return place if line.function == "<module>" else f"`{inert(line.function)}` ({place})"


class Findings(NamedTuple):
    """Return the findings as they stand on a page, and those that propose a change, the first thing to do first."""

    all: tuple[blocks.Finding, ...]
    fixes: tuple[blocks.Finding, ...]


def findings_of(report: Report) -> Findings:
    """Every finding, largest expected saving first; one that overlaps another stands within that.

    Evidence has the numbers of ``evidence.numbered``, unique in the report.
    """
    anchors, mean_ns, found_by = Anchors(), step_ns(report), report.steps.found_by
    pairs = in_order(report.outcomes)
    often = Counter((outcome.rule, finding.rank) for outcome, finding in pairs)

    def rows(numbers: tuple[Evidence, ...]) -> tuple[blocks.EvidenceRow, ...]:
        return tuple(evidence_row(number, anchors, mean_ns, found_by) for number in numbers)

    evidence = [rows(finding.evidence) for _, finding in pairs]
    names = [_anchor(one, found, is_alone=often[one.rule, found.rank] == 1) for one, found in pairs]
    made = [
        _made(outcome, finding, anchors.take(name), own)
        for (outcome, finding), name, own in zip(pairs, names, evidence, strict=True)
    ]
    homes = [_home(number, pairs) for number in range(len(pairs))]
    fixes = with_fixes(report.outcomes)
    return Findings(
        tuple(
            msgspec.structs.replace(
                own, others=tuple(made[other] for other, home in enumerate(homes) if home == number)
            )
            for number, own in enumerate(made)
            if homes[number] is None
        ),
        tuple(own for own, (_, one) in zip(made, pairs, strict=True) if any(one is fix for fix in fixes)),
    )


def _home(number: int, pairs: list[tuple[Outcome, Finding]]) -> int | None:
    """Index of the finding that holds this one, followed to the outermost; ``None`` for one that stands alone."""
    at, seen = number, {number}
    while wanted := pairs[at][1].overlaps:
        found = next((other for other, (outcome, _) in enumerate(pairs) if outcome.rule == wanted), None)
        if found is None:
            break
        if found in seen:
            # Each of them names another: the one with the largest saving holds them all.
            at = min(seen)
            break
        at = found
        seen.add(at)
    return None if at == number else at


def first_sentence(text: str) -> str:
    """Return the first sentence without its full stop.

    >>> first_sentence("Raise num_workers. The recording does not say how many cores there are.")
    'Raise num_workers'
    """
    return text.partition(". ")[0].rstrip(".")
