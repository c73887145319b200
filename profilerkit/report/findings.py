"""Findings as blocks: largest saving first, each with the findings about the same time inside it."""

from collections import Counter
from typing import NamedTuple

import msgspec

from profilerkit.model.finding import CodeLine, Evidence, Finding, Outcome, in_order, with_fixes
from profilerkit.model.probe import Agreement, Probed
from profilerkit.model.probe_names import PROBE_WORDS
from profilerkit.model.report import Report
from profilerkit.report import blocks
from profilerkit.report.blocks import Block, Fact, Facts, Text
from profilerkit.report.evidence import Anchors, evidence_row
from profilerkit.report.inert import SENTENCE_LIMIT, inert, inert_code
from profilerkit.report.wording import METHOD_WORDS, plural, saving_range, step_ns, throughput_text, tone_of
from profilerkit.units import format_ns, format_ratio, format_ratio_range

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


_AGREEMENTS: dict[Agreement, str] = {
    "agrees": "",
    "below": "This contradicts the prediction: the run itself gained less, so the saving is what was measured.",
    "above": "This is the most that all changes of this kind can save together; this one is predicted to save less.",
    "other": "The fix proposes other values, so this does not check its prediction.",
    "unlike": "The run's steps took a different time than the judged ones, so this does not check the prediction.",
}
#: Of a probe that made the very change that the fix proposes.
_BETTER = "The run itself gained more than predicted, so the saving is what was measured."
_NOTHING = "This contradicts the prediction: the run itself gained next to nothing, so no fix is proposed."


def probed_words(finding: Finding) -> str:
    """The probe beside the prediction; empty without one."""
    probe = finding.probed
    if probe is None:
        return ""
    if probe.share is None:
        return f"Not probed: {inert(probe.reason, SENTENCE_LIMIT)}."
    predicted = f"predicted {saving_range(finding.prediction)}" if finding.prediction else "no saving predicted"
    agreement = _AGREEMENTS[probe.agreement] if probe.agreement else ""
    if finding.predicted is not None:
        agreement = _NOTHING if finding.saving is None else _BETTER if probe.agreement == "above" else agreement
    return " ".join(piece for piece in (f"{_gain(probe)}, {predicted}. {_how(probe)}.", agreement) if piece)


def probe_blocks(report: Report) -> tuple[Block, ...]:
    """Every probe that was asked for, with its result or why there is none."""
    facts = tuple(
        Fact(
            f"{probe.name}: {inert(probe.change) or PROBE_WORDS[probe.name]}",
            _gain(probe) if probe.share is not None else "not measured",
            _note(probe),
        )
        for probe in report.probes
    )
    caption = _caption(report)
    return (Facts(facts), *((Text.of(caption, style="note"),) if caption else ())) if facts else ()


def _caption(report: Report) -> str:
    """What is to be known of them; empty without any."""
    steps = sum(
        probe.last_step - probe.first_step + 1
        for probe in report.probes
        if probe.first_step is not None and probe.last_step is not None
    )
    if not steps:
        return ""
    return (
        f"Probes put {plural(steps, 'step')} into the run and then put its state back. The rest of the report "
        "excludes them. Your loop's own counters, such as a step number or a mean loss, include them."
    )


def _gain(probe: Probed) -> str:
    """``22 % measured (20–24 %)``; of a change that takes time ``76 % longer measured (69–84 %)``."""
    share, low, high = probe.share or 0.0, probe.low or 0.0, probe.high or 0.0
    if low < 0 < high:
        return f"no clear difference measured ({format_ratio(-low)} longer to {format_ratio(high)} shorter)"
    if high <= 0 and share < 0:
        return f"{format_ratio(-share)} longer measured ({format_ratio_range(-high, -low)})"
    return f"{format_ratio(share)} measured ({format_ratio_range(low, high)})"


def _how(probe: Probed) -> str:
    return f"Probe {probe.name}, {inert(probe.change)}, in {_note(probe)}"


def _note(probe: Probed) -> str:
    if probe.share is None:
        return inert(probe.reason, SENTENCE_LIMIT)
    said = plural(probe.steps, "step")
    if probe.without_ns is not None and probe.probed_ns is not None:
        is_own = probe.without_ns == probe.step_ns
        said += "" if is_own else " on a batch at hand"
        said += f", {format_ns(probe.without_ns)} → {format_ns(probe.probed_ns)}"
        said += "" if is_own else f", as a share of the run's own step of {format_ns(probe.step_ns or 0)}"
    return f"{said}; {inert(probe.reason, SENTENCE_LIMIT)}" if probe.reason else said
