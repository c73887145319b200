"""What a gate asked of a run or of a comparison, and how it ended."""

from typing import Literal

import msgspec

GateStatus = Literal["passed", "failed", "not judged"]


class Gate(msgspec.Struct, frozen=True, kw_only=True):
    """One limit and what was found.

    Attributes:
        name: the metric, for example ``step_time``.
        limit: what was asked, for a person: ``at most 200 ms``.
        measured: what was found, for a person; ``not measured`` without a number.
        status: a limit that could not be judged neither passed nor failed.
        reason: one sentence: why it failed or could not be judged; empty for a gate that passed.
    """

    name: str
    limit: str
    measured: str
    status: GateStatus
    reason: str = ""
