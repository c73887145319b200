"""How the losses of runs with changes compare with those of the baseline, and with how much those differ themselves."""

import math
from collections.abc import Sequence
from itertools import combinations

from profilerkit.model.trial import Numbers

Losses = Sequence[float | None]
#: Losses of the first steps differ by rounding alone up to here: FP32 has 1.2e-7, and a loss sums over many values.
_HEAD, _ROUNDING = 5, 1e-6
#: Later ones too, since each step starts from what rounding made of the one before (a choice).
_GROWN = 1e-3
#: A loss near zero is compared with this share of the largest one: training drives losses down to rounding itself.
_LEAST = 1e-3


def compared(baseline: Sequence[Losses], changed: Sequence[Losses]) -> tuple[Numbers, float | None, float | None]:
    """Compare losses with those of the baseline's runs.

    Returns:
        The judgement, the largest relative difference between the sides, and that among runs of the baseline. ``None``
        where nothing was compared; infinity where one has a loss that is no number and the other not.

    >>> compared([[1.0, 0.5], [1.0, 0.5]], [[1.0, 0.5]])
    ('same', 0.0, 0.0)
    >>> compared([[1.0, 0.5], [1.0, 0.5]], [[1.0, 0.6]])[0], compared([[], []], [[1.0]])[0]
    ('differs', 'unknown')
    """
    mine, own = [_apart(baseline[0], one) for one in changed] if baseline else [], _among(baseline)
    known = [one for one in mine if one is not None]
    if not known or len(known) < len(mine):
        return "unknown", None, own
    head, apart = max(one[0] for one in known), max(one[1] for one in known)
    if own is not None and own > _GROWN:
        return ("unknown" if apart <= own else "differs"), apart, own
    if apart == 0.0:
        return "same", apart, own
    return ("rounding" if head <= _ROUNDING and apart <= _GROWN else "differs"), apart, own


def _among(runs: Sequence[Losses]) -> float | None:
    found = [apart[1] for first, second in combinations(runs, 2) if (apart := _apart(first, second)) is not None]
    return max(found, default=None)


def _apart(first: Losses, second: Losses) -> tuple[float, float] | None:
    """The largest relative difference of the first losses and of all that both have; ``None`` where there are none."""
    pairs = list(zip(first, second, strict=False))
    if not pairs:
        return None
    largest = max((abs(a) for a in first if a is not None and math.isfinite(a)), default=0.0)
    found = [_difference(a, b, _LEAST * largest) for a, b in pairs]
    return max(found[:_HEAD]), max(found)


def _difference(a: float | None, b: float | None, least: float) -> float:
    whole = [one is not None and math.isfinite(one) for one in (a, b)]
    if a == b or not any(whole):
        return 0.0
    if a is None or b is None or not all(whole):
        return math.inf
    return abs(a - b) / max(abs(a), abs(b), least)
