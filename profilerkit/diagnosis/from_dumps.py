"""The verdict on flight recorder dumps alone: none, with who is waited for, or what was seen, in its headline."""

from collections.abc import Sequence

from profilerkit.analysis.facts import Facts
from profilerkit.diagnosis.refusal import inconclusive
from profilerkit.model.finding import Outcome, in_order
from profilerkit.model.verdict import Verdict
from profilerkit.units import format_count

_WHY = "Record the late rank's steps to learn why: profilerkit run -- train.py, or a trace of torch.profiler."
_RECORD = "Record the steps: profilerkit run -- train.py, or a trace of torch.profiler of every rank."


def verdict_on_dumps(facts: Facts, outcomes: Sequence[Outcome]) -> Verdict:
    """No bound: dumps hold when collectives were issued, and nothing of what the time between them went into."""
    fired = next((finding.title for _, finding in in_order(outcomes)), None)
    return inconclusive(fired, _WHY) if fired is not None else inconclusive(_seen(facts), _RECORD)


def _seen(facts: Facts) -> str:
    """What the dumps show where nobody is found late."""
    found = facts.communication
    held = found.flight.held if found is not None and found.flight is not None else 0
    if not held:
        return "The dumps hold no collective"
    if len(facts.ranks) == 1:
        return "One rank's dump does not show who comes last"
    if not facts.steps.count:
        return "The collectives in the dumps do not repeat in a clear period"
    if found is None or not found.matched:
        return f"The {len(facts.ranks)} dumps do not show when the ranks arrived"
    return f"No rank is provably late in {format_count(found.matched)} collectives of {len(facts.ranks)} ranks"
