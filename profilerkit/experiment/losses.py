"""How the losses of runs with changes compare with those of the baseline, and with how much those differ themselves."""

import math
from collections.abc import Sequence
from itertools import combinations

from profilerkit.model.trial import Numbers

Losses = Sequence[float | None]
#: Losses of the first steps differ by rounding alone up to here: FP32 has 1.2e-7, and a loss sums over many values.
_HEAD, ROUNDING = 20, 1e-6
#: Where products have fewer bits: 8 times the 1.3e-6 by which TF32 moved a GPT in its first 20 steps on an H200. FP16
#: keeps as many bits, BF16 three fewer (estimated).
COARSE = {"tf32": 1e-5, "fp16": 1e-5, "bf16": 8e-5}
#: Rounding alone moves no loss by more than this share of what the baseline's went through (a choice): a model that
#: does not learn is apart by all of it.
_MOST_MOVED = 0.1
#: Later ones differ by more, since each step starts from what rounding made of the one before: by at most so many times
#: the largest difference until then (choices). Other data or random numbers are another difference at once.
_GROWTH = 30.0
#: A few runs of the baseline show at least one part in so many of what it differs by itself. From here on, where it is
#: more than rounding, nothing smaller can be told (choices).
_SPREAD, _UNSTEADY = 3.0, 1e-3
#: A loss near zero is compared with this share of the largest one: training drives losses down to rounding itself.
_LEAST = 1e-3


def compared(
    baseline: Sequence[Losses], changed: Sequence[Losses], rounding: float = ROUNDING
) -> tuple[Numbers, float | None, float | None]:
    """Compare losses with those of the baseline's runs; ``rounding`` is how far it alone moves the first ones.

    Returns:
        The judgement, the largest relative difference between the sides, and that among runs of the baseline. ``None``
        where nothing was compared; infinity where one has a loss that is no number and the other not.

    >>> compared([[1.0, 0.5], [1.0, 0.5]], [[1.0, 0.5]])
    ('same', 0.0, 0.0)
    >>> compared([[1.0, 0.5], [1.0, 0.5]], [[1.0, 0.6]])[0], compared([[], []], [[1.0]])[0]
    ('differs', 'unknown')
    >>> [compared([[9.4], [9.4]], [[9.40002]], COARSE.get(name, 1e-6))[0] for name in ("fp32", "tf32")]
    ['differs', 'rounding']
    """
    mine, own = [_differences(baseline[0], one) for one in changed] if baseline else [], _among(baseline)
    if not mine or not all(mine):
        return "unknown", None, own
    apart = max(max(one) for one in mine)
    is_unsteady, is_within = (own or 0.0) > _UNSTEADY, apart <= _SPREAD * (own or 0.0)
    if is_unsteady:
        return ("unknown" if is_within else "differs"), apart, own
    if apart == 0.0:
        return "same", apart, own
    seen = [loss for loss in baseline[0] if loss is not None and math.isfinite(loss)]
    moved = (max(seen) - min(seen)) / (max(map(abs, seen)) or 1.0) if seen else 0.0
    is_small = apart <= max(rounding, _MOST_MOVED * moved)
    is_rounding = is_within or (is_small and all(_is_rounding(one, rounding) for one in mine))
    return ("rounding" if is_rounding else "differs"), apart, own


def _among(runs: Sequence[Losses]) -> float | None:
    return max((max(_differences(*pair), default=0.0) for pair in combinations(runs, 2) if all(pair)), default=None)


def _is_rounding(differences: Sequence[float], rounding: float = ROUNDING) -> bool:
    """Whether they begin as rounding does, and grow from there.

    >>> _is_rounding([0.0] * 30 + [1e-6, 2e-5, 5e-4, 1e-2]), _is_rounding([0.0] * 30 + [1e-4]), _is_rounding([2e-6])
    (True, False, False)
    """
    largest = ROUNDING
    for place, one in enumerate(differences):
        if one > (rounding if place < _HEAD else _GROWTH * largest):
            return False
        largest = max(largest, one)
    return True


def _differences(first: Losses, second: Losses) -> list[float]:
    """The relative difference of each loss that both have."""
    largest = max((abs(a) for a in first if a is not None and math.isfinite(a)), default=0.0)
    return [_difference(a, b, _LEAST * largest) for a, b in zip(first, second, strict=False)]


def _difference(a: float | None, b: float | None, least: float) -> float:
    whole = [one is not None and math.isfinite(one) for one in (a, b)]
    if a == b or not any(whole):
        return 0.0
    if a is None or b is None or not all(whole):
        return math.inf
    return abs(b - a) / max(abs(a), abs(b), least)
