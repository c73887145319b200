"""A check: what was measured, what it has to be, and whether it passes."""

from typing import Any

import msgspec

from profilerkit.model.diff import Range
from profilerkit.model.finding import Saving

NEEDS_GPU = "skipped: needs a GPU"
#: A measured saving may be this far outside of its interval: the noise of two medians, or of two single runs.
_MARGIN = 0.03


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the report.

    Attributes:
        name: unique within its part.
        value: what was measured; ``None`` means not measured.
        reference: what it is held against; ``None`` where nothing is.
        passed: ``pass`` in JSON; ``None`` for a number that is only noted, and for what was not measured.
        why: why it was not measured, or what is meant.
    """

    name: str
    value: Any = None
    reference: Any = None
    passed: bool | None = msgspec.field(name="pass", default=None)
    why: str = ""


def near(name: str, value: float | None, reference: float, most_ratio: float, why: str = "") -> Check:
    """A check that passes where the value is within ``most_ratio`` of the reference; a missing value fails.

    >>> near("step_ms", 20.3, 20.0, 0.02).passed, near("step_ms", 20.5, 20.0, 0.02).passed
    (True, False)
    """
    passed = value is not None and abs(value / reference - 1) <= most_ratio
    return Check(name=name, value=value, reference=reference, passed=passed, why=why)


def between(name: str, value: float | None, low: float, high: float, why: str = "") -> Check:
    """A check that passes where the value is in ``[low, high]``; a missing value fails."""
    passed = value is not None and low <= value <= high
    return Check(name=name, value=value, reference=[low, high], passed=passed, why=why)


def holds(saving: Saving | Range | None, measured: float) -> bool:
    """Whether a saving was told, and a measured one is inside of its interval."""
    return saving is not None and saving.low - _MARGIN <= measured <= saving.high + _MARGIN
