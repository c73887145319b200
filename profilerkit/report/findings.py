"""Findings as blocks, largest saving first, and evidence as numbered rows."""

import re
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from profilerkit.errors import UsageError
from profilerkit.model.finding import CodeLine, Evidence, Finding, Outcome, in_order, with_fixes
from profilerkit.model.report import Report
from profilerkit.model.step import WHOLE_TRACE, as_judged
from profilerkit.report import blocks, wording
from profilerkit.report.blocks import EvidenceRow
from profilerkit.report.inert import SENTENCE_LIMIT, inert, inert_code
from profilerkit.units import format_count, format_ns

_STEP_TIMERS = "step timers"  # their clock is not a trace's: no timeline viewer knows the time
_NUMBER = re.compile(r"E[0-9]{1,6}")  # a number of evidence has so many digits at most
# How the label of a share of what was judged ends.
_SHARES = tuple(as_judged("share of the step", found_by) for found_by in ("", WHOLE_TRACE))


class Anchors:
    """Names for links: stable by meaning, unique within a page."""

    def __init__(self) -> None:
        self._used: set[str] = set()
        self._numbers = (f"E{number}" for number in range(1, 1_000_000))

    def take(self, wanted: str) -> str:
        """``wanted`` as a safe anchor that no evidence has; a second one of the same name gets a number."""
        safe = re.sub(r"[^A-Za-z0-9_-]", "", wanted)[:40] or "finding"
        safe = f"finding-{safe}" if _NUMBER.fullmatch(safe) or safe.startswith("evidence-") else safe
        names: Iterator[str] = (safe if count == 1 else f"{safe}-{count}" for count in range(1, 1_000_000))
        return self._first_free(names)

    def evidence(self, wanted: str) -> str:
        """The runner's number, or the next free one where it gave none."""
        if _NUMBER.fullmatch(wanted) and wanted not in self._used:
            self._used.add(wanted)
            return wanted
        return self._first_free(self._numbers)

    def _first_free(self, names: Iterator[str]) -> str:
        name = next(name for name in names if name not in self._used)
        self._used.add(name)
        return name


def evidence_row(evidence: Evidence, anchors: Anchors, mean_ns: int | None = None, found_by: str = "") -> EvidenceRow:
    """One number as a row of a table; ``mean_ns`` is the steady step, for a share of it as time."""
    unit = inert(evidence.unit, 20)
    interval = ""
    if evidence.low is not None and evidence.high is not None:
        interval = f"{wording.number_text(evidence.low, unit)} to {wording.number_text(evidence.high, unit)}"
    pieces = []
    if evidence.n is not None:
        pieces.append(f"n {format_count(evidence.n)}")
    if evidence.rank is not None:
        pieces.append(f"rank {evidence.rank}")
    if evidence.steps is not None:
        first, last = evidence.steps
        pieces.append(f"step {first}" if first == last else f"steps {first}–{last}")
    if evidence.range_ns is not None and evidence.origin != _STEP_TIMERS:
        pieces.append("trace time {}–{} ns".format(*evidence.range_ns))
    return EvidenceRow(
        id=anchors.evidence(evidence.id),
        label=inert(as_judged(evidence.label, found_by)),
        value=wording.number_text(evidence.value, unit),
        interval=interval,
        basis=" · ".join(pieces),
        source=evidence.source,
        origin=inert(evidence.origin),
        also=as_judged(_as_time(evidence, mean_ns), found_by),
    )


def _as_time(evidence: Evidence, mean_ns: int | None) -> str:
    is_share = evidence.unit == "ratio" and evidence.label.lower().endswith(_SHARES)
    # What a fix saves has its time in a row of its own.
    if not is_share or "saving" in evidence.label.lower() or evidence.value is None or mean_ns is None:
        return ""
    return f"{format_ns(evidence.value * mean_ns)} per step"


class Backing(NamedTuple):
    """A piece of evidence and what it backs."""

    outcome: Outcome
    finding: Finding
    evidence: Evidence


def numbered(report: Report) -> dict[str, Backing]:
    """Every piece of evidence of the findings by its number."""
    found = [
        Backing(outcome, finding, evidence)
        for outcome, finding in in_order(report.outcomes)
        for evidence in finding.evidence
    ]
    anchors = Anchors()
    return {anchors.evidence(backing.evidence.id): backing for backing in found}


def require_evidence(report: Report, wanted: str) -> Evidence:
    """The evidence of a number, in any case. Raises ``UsageError`` with the numbers there are."""
    known = numbered(report)
    found = known.get(wanted.strip().upper())
    if found is not None:
        return found.evidence
    names = sorted(known, key=lambda name: int(name[1:]))
    is_whole = names[-1:] == [f"E{len(names)}"]
    there = "no evidence" if not names else f"{names[0]} to {names[-1]}" if is_whole else wording.listed(names)
    raise UsageError(
        f"there is no evidence {inert(wanted, 20)}",
        cause=f"the report has {there}",
        hint="each finding in the report lists its evidence with these numbers",
    )


_TITLE_LIMIT = 200


def _anchor(outcome: Outcome, finding: Finding, *, is_alone: bool) -> str:
    """``IN001`` or ``IN001-rank5``; of several findings of a rule and rank each with what it is about."""
    scope = "" if finding.rank is None else f"-rank{finding.rank}"
    return f"{outcome.rule}{scope}{'' if is_alone or not finding.detail else f'-{finding.detail}'}"


def _saves(finding: Finding) -> str:
    if finding.saving:
        return f"saves {wording.saving_range(finding.saving)}"
    return wording.throughput_text(finding.throughput) if finding.throughput else ""


def _made(outcome: Outcome, finding: Finding, anchor: str, evidence: tuple[blocks.EvidenceRow, ...]) -> blocks.Finding:
    promised = finding.saving or finding.throughput
    code = inert_code(finding.fix.code) if finding.fix else ""
    return blocks.Finding(
        anchor=anchor,
        rule=inert(outcome.rule, 24),
        tone=wording.tone_of(finding.severity),
        severity=finding.severity,
        title=inert(finding.title, _TITLE_LIMIT),
        saves=_saves(finding),
        method=f"{wording.METHOD_WORDS[promised.method]}, {inert(promised.calibration)}" if promised else "",
        confidence=finding.confidence,
        scope="" if finding.rank is None else f"rank {finding.rank}",
        why=inert(finding.why, SENTENCE_LIMIT),
        fix=inert(finding.fix.text, SENTENCE_LIMIT) if finding.fix else "",
        code=blocks.Code(code) if code else None,
        confirm=inert(finding.confirm, SENTENCE_LIMIT),
        evidence=evidence,
        where=where(finding.line) if finding.line else "",
    )


def where(line: CodeLine) -> str:
    """Return a line of the user's program: ``main (train.py:41)``; at the top of a file ``train.py:41``."""
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
    anchors, mean_ns, found_by = Anchors(), wording.step_ns(report), report.steps.found_by
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
