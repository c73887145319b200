"""What lost time amounts to on all ranks together, in hours and, with a price, in money."""

from typing import Literal

import msgspec

from profilerkit.model.finding import Method
from profilerkit.model.ledger import ENTRIES, Stage

_START_UP: Stage = "start-up"

CostSource = Literal["measured", "derived", "inferred", "estimated"]


class LostTime(msgspec.Struct, frozen=True, kw_only=True):
    """Time in which nothing new of the training was computed, for one cause. Causes do not overlap.

    Attributes:
        cause: a key of ``PARTS`` for time inside the steps, of ``ENTRIES`` for time outside.
        inside: whether it lies inside the steps.
        hours: of all ranks together.
        share: of all hours, 0 to 1.
        cost: hours × price; ``None`` without a price.
        source: estimated where it was recorded on other ranks than all, or told from their names.
    """

    cause: str
    inside: bool
    hours: float
    share: float
    source: CostSource
    cost: float | None = None


class FixValue(msgspec.Struct, frozen=True, kw_only=True):
    """What the saving of a finding amounts to. Those of two findings overlap and must not be added.

    Attributes:
        rule: code of the rule that found it.
        title: of the finding.
        method: how its saving was computed.
        low: hours that it should give back at least; this and the next two are of all ranks together.
        expected: the prediction.
        high: the bound.
        cost: expected hours × price; ``None`` without a price.
    """

    rule: str
    title: str
    method: Method
    low: float
    expected: float
    high: float
    cost: float | None = None


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """The hours of a run by what they were lost to.

    Attributes:
        unit: ``GPU`` where a device was seen, else ``rank``: nobody knows of a GPU that waited.
        scope: the whole recorded run, or as many steps as make a number worth reading where only some were recorded.
        ranks: whose hours are counted: of the job where its size is known, else those that were read.
        ranks_read: how many of them were recorded; what the others lost is taken to be the same.
        hours: of all ranks together.
        price: of one hour of one GPU; ``None`` without, and where the unit is ``rank``.
        lost: largest first, start-up among them.
        fixes: largest expected value first.
    """

    unit: Literal["GPU", "rank"]
    scope: Literal["run", "1000 steps"]
    ranks: int
    ranks_read: int
    hours: float
    price: float | None = None
    lost: tuple[LostTime, ...] = ()
    fixes: tuple[FixValue, ...] = ()

    @property
    def start_up(self) -> tuple[LostTime, ...]:
        """What of ``lost`` went before the first step, as imports do: a run pays it once, however long it trains."""
        return tuple(row for row in self.lost if _is_start_up(row))

    @property
    def lost_in_training(self) -> tuple[LostTime, ...]:
        """Return the rest of ``lost``: what went while the run trained, and after it."""
        return tuple(row for row in self.lost if not _is_start_up(row))


def _is_start_up(row: LostTime) -> bool:
    return not row.inside and row.cause in ENTRIES and ENTRIES[row.cause][0] == _START_UP
