"""The interval of a saving that was replayed."""

import math

from profilerkit.analysis.facts import Facts
from profilerkit.analysis.whatif import MODEL_ERROR, UNKNOWN_NOISE, Z90, relative_error
from profilerkit.model.finding import Saving


def interval(facts: Facts, expected: float, bound: float) -> Saving:
    """The saving of one replayed change, with what the replay and the steps leave uncertain, and a guess for the rest.

    ``expected`` is held between nothing and the bound; ``low`` lies 1.64 standard errors below it (§3.1 of the
    diagnosis method).
    """
    assert facts.replay is not None
    expected = min(max(expected, 0.0), bound)
    noise = relative_error(facts) if facts.step_error_ns is not None else UNKNOWN_NOISE
    spread = math.hypot(facts.replay.error, noise, MODEL_ERROR * expected)
    return Saving(low=max(expected - Z90 * spread, 0.0), expected=expected, high=bound, method="replay")
