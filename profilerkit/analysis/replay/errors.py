"""How far predictions of each kind of fix are off, and the interval that follows from it."""

import math

from profilerkit.analysis.facts import Facts
from profilerkit.analysis.replay.changes import Change
from profilerkit.analysis.whatif import MODEL_ERROR, UNKNOWN_NOISE, Z90, relative_error
from profilerkit.model.finding import Saving

#: Relative error of predicted savings by kind of fix, root mean square, and on how many applied fixes it rests
#: (reports/accuracy.json, ``scores.errors``: replayed fixes of the input rules, and of those about the host). A kind
#: with fewer than four has the error that analytic predictions are given (a guess), and says so.
ERROR_BY_FIX: dict[str, tuple[float, int]] = {
    **dict.fromkeys(("phase", "sync", "launch", "kernels", "copies", "communication", "allocator"), (MODEL_ERROR, 0)),
    "input": (0.09, 8),
    "host": (0.08, 4),
}


def interval(facts: Facts, change: Change, expected: float, bound: float) -> Saving:
    """The saving of one replayed change, with what the replay, the steps and the kind of fix leave uncertain.

    ``expected`` is held between nothing and the bound; ``low`` lies 1.64 standard errors below it (§3.1 of the
    diagnosis method).
    """
    assert facts.replay is not None
    expected = min(max(expected, 0.0), bound)
    relative, cases = ERROR_BY_FIX[change.fix_class]
    noise = relative_error(facts) if facts.step_error_ns is not None else UNKNOWN_NOISE
    spread = math.hypot(facts.replay.error, noise, relative * expected)
    calibration = f"calibrated on {cases} cases" if cases else "uncalibrated"
    low = max(expected - Z90 * spread, 0.0)
    return Saving(low=low, expected=expected, high=bound, method="replay", calibration=calibration)
