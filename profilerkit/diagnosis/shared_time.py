"""Which findings save the same time: two fixes of one cause must not look like two savings."""

from collections.abc import Mapping, Sequence

from profilerkit.analysis.facts import Facts
from profilerkit.analysis.leaves import WAITS
from profilerkit.analysis.replay.joint import savings
from profilerkit.diagnosis.best import PARTS_OF_RULE
from profilerkit.model.change import revise
from profilerkit.model.finding import Finding, Outcome
from profilerkit.rules.replayed import Priced, priced

#: A second fix whose saving adds less than this of itself to the first one's saves the same time (a choice).
OWN_RATIO = 0.5

_Entry = tuple[str, Finding]


def with_shared_time(facts: Facts, outcomes: Sequence[Outcome]) -> tuple[Outcome, ...]:
    """The outcomes, in which each finding names the rule whose larger saving is the same time, if there is one.

    The larger of two is told whole; of equals the one with a fix.
    """
    found = [(outcome.rule, finding) for outcome in outcomes for finding in outcome.findings if finding.saving]
    found.sort(key=lambda entry: (-_expected(entry[1]), entry[1].fix is None))
    changes = {id(entry.finding): entry for entry in priced(facts, outcomes)}
    whole: list[_Entry] = []
    same: dict[int, str] = {}
    for entry in found:
        first = next((known for known in whole if _is_same_time(facts, known, entry, changes)), None)
        if first is None:
            whole.append(entry)
        else:
            same[id(entry[1])] = first[0]
    return tuple(
        revise(outcome, findings=tuple(revise(f, same_time_as=same.get(id(f), "")) for f in outcome.findings))
        for outcome in outcomes
    )


def _expected(finding: Finding) -> float:
    return finding.saving.expected if finding.saving else 0.0


def _is_same_time(facts: Facts, first: _Entry, second: _Entry, changes: Mapping[int, Priced]) -> bool:
    """Whether the fix of ``second`` shortens what that of ``first`` has shortened already.

    The parts that their rules are about have to meet. Then the two are replayed together; where that cannot be done,
    savings that are more than these parts take overlap for certain. Fixes of the wait for data are other ways to the
    same end.
    """
    own, other = (PARTS_OF_RULE.get(rule, ()) for rule, _ in (first, second))
    if not set(own) & set(other) or first[1].rank != second[1].rank:
        return False
    if own == other == WAITS:
        return True
    alone = [changes.get(id(finding)) for _, finding in (first, second)]
    if facts.replay is not None and alone[0] is not None and alone[1] is not None:
        before, after, together = savings(
            facts.replay, [[alone[0].change], [alone[1].change], [alone[0].change, alone[1].change]]
        )
        return together - before < OWN_RATIO * after
    return _expected(first[1]) + _expected(second[1]) > facts.share(*own, *other)
