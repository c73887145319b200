"""Which savings are of the same time: two fixes of one cause must not look like two savings."""

from collections.abc import Mapping, Sequence

from profilerkit.analysis.facts import Facts
from profilerkit.analysis.parts import WAITS
from profilerkit.analysis.replay.gate import savings
from profilerkit.model.change import revise
from profilerkit.model.finding import Evidence, Finding, Outcome
from profilerkit.rules.parts import PARTS_OF_RULE, shortened
from profilerkit.rules.replayed import Priced, priced
from profilerkit.rules.runner import numbered

#: A second fix that adds less than this of its own saving to what the first one saves is of the same time (a choice).
OWN_RATIO = 0.5
#: Shares are sums of rounded parts.
_ROUNDING = 1e-6

_Entry = tuple[str, Finding]


def with_overlaps(facts: Facts, outcomes: Sequence[Outcome]) -> tuple[Outcome, ...]:
    """The outcomes, in which each finding names the rule whose larger saving is of the same time, if there is one.

    The larger of two stands alone; of equals the one with a fix. A finding of the same cause that leaves its fix to
    that rule is told there, evidence and all: its own rule passes.
    """
    found = [(outcome.rule, finding) for outcome in outcomes for finding in outcome.findings if finding.saving]
    found.sort(key=lambda entry: (-_expected(entry[1]), entry[1].fix is None))
    changes = {id(entry.finding): entry for entry in priced(facts, outcomes)}
    alone: list[_Entry] = []
    beside: dict[int, _Entry] = {}
    within: dict[int, list[Evidence]] = {}
    for entry in found:
        first = next((known for known in alone if _overlap(facts, known, entry, changes)), None)
        if first is None:
            alone.append(entry)
        else:
            beside[id(entry[1])] = first
            if _is_told_by(first, entry[1]):
                within.setdefault(id(first[1]), []).extend(entry[1].evidence)
    return numbered([_revised(outcome, beside, within) for outcome in outcomes])


def _is_told_by(first: _Entry, second: Finding) -> bool:
    """Return whether ``second`` is of the same cause as ``first``, which has the fix that it lacks.

    Of the wait for data a rule that knows what the workers do names the cause more closely.
    """
    rule, known = first
    same = known.detail == second.detail or PARTS_OF_RULE.get(rule) == WAITS
    return second.fix is None is not known.fix and known.bound == second.bound and same


def _revised(outcome: Outcome, beside: Mapping[int, _Entry], within: Mapping[int, Sequence[Evidence]]) -> Outcome:
    """The outcome with what its findings overlap with, without those told by others, and with what these ones tell."""
    findings: list[Finding] = []
    reason = ""
    for finding in outcome.findings:
        rule, first = beside.get(id(finding), ("", None))
        if first is not None and _is_told_by((rule, first), finding):
            reason = f"reported with {rule}, which has the fix"
            continue
        known = {entry.label for entry in finding.evidence}
        more = [entry for entry in within.get(id(finding), ()) if entry.label not in known]
        findings.append(revise(finding, overlaps=rule, evidence=(*finding.evidence, *more)))
    if reason and not findings:
        return revise(outcome, status="passed", reason=reason, findings=(), page={})
    return revise(outcome, findings=tuple(findings))


def _expected(finding: Finding) -> float:
    return finding.saving.expected if finding.saving else 0.0


def _overlap(facts: Facts, first: _Entry, second: _Entry, changes: Mapping[int, Priced]) -> bool:
    """Return whether the fix of ``second`` shortens what that of ``first`` has shortened already.

    Where their rules are about the same parts the two are replayed together. Where that cannot be done, savings that
    are more than these parts take overlap for certain, as any do that are more than the step; and of the very same
    parts a first one of most takes most of the second. Fixes of the wait for data are other ways to one end.
    """
    if first[1].rank != second[1].rank:
        return False
    both = _expected(first[1]) + _expected(second[1])
    own, other = (shortened(facts, rule, finding.detail) for rule, finding in (first, second))
    if not set(own) & set(other):
        return both > 1.0
    if own == other == WAITS:
        return True
    replayed = [changes.get(id(finding)) for _, finding in (first, second)]
    if facts.replay is not None and replayed[0] is not None and replayed[1] is not None:
        one, two = replayed[0].change, replayed[1].change
        before, after, together = savings(facts.replay, [[one], [two], [one, two]])
        return together - before < OWN_RATIO * after
    share = facts.share(*own, *other)
    return both > share or (own == other and _expected(first[1]) >= (1.0 - OWN_RATIO) * share * (1.0 - _ROUNDING))
