"""Which savings are of the same time: two fixes of one cause must not look like two savings."""

from collections.abc import Mapping, Sequence

from profilerkit.analysis.facts import Facts
from profilerkit.analysis.leaves import WAITS
from profilerkit.analysis.replay.joint import savings
from profilerkit.model.change import revise
from profilerkit.model.finding import Finding, Outcome
from profilerkit.rules.parts import shortened
from profilerkit.rules.replayed import Priced, priced

#: A second fix that adds less than this of its own saving to what the first one saves is of the same time (a choice).
OWN_RATIO = 0.5

_Entry = tuple[str, Finding]


def with_overlaps(facts: Facts, outcomes: Sequence[Outcome]) -> tuple[Outcome, ...]:
    """The outcomes, in which each finding names the rule whose larger saving is of the same time, if there is one.

    The larger of two stands alone; of equals the one with a fix.
    """
    found = [(outcome.rule, finding) for outcome in outcomes for finding in outcome.findings if finding.saving]
    found.sort(key=lambda entry: (-_expected(entry[1]), entry[1].fix is None))
    changes = {id(entry.finding): entry for entry in priced(facts, outcomes)}
    alone: list[_Entry] = []
    beside: dict[int, str] = {}
    for entry in found:
        first = next((known for known in alone if _overlap(facts, known, entry, changes)), None)
        if first is None:
            alone.append(entry)
        else:
            beside[id(entry[1])] = first[0]
    return tuple(
        revise(outcome, findings=tuple(revise(f, overlaps=beside.get(id(f), "")) for f in outcome.findings))
        for outcome in outcomes
    )


def _expected(finding: Finding) -> float:
    return finding.saving.expected if finding.saving else 0.0


def _overlap(facts: Facts, first: _Entry, second: _Entry, changes: Mapping[int, Priced]) -> bool:
    """Whether the fix of ``second`` shortens what that of ``first`` has shortened already.

    Where their rules are about the same parts the two are replayed together. Where that cannot be done, savings that
    are more than these parts take overlap for certain, as any do that are more than the step; and a first one of most
    of the parts takes as much of what the second one is about. Fixes of the wait for data are other ways to one end.
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
    return both > share or _expected(first[1]) > (1.0 - OWN_RATIO) * share
