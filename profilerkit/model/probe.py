"""What an in-run probe measured, and how that compares with what a finding predicts."""

from typing import Literal

import msgspec

from profilerkit.model.probe_names import ProbeName

#: How a prediction and a probe agree: they do; the probe gained clearly less, or clearly more; it tried other values
#: than the fix proposes; or the steps beside it were not like those of the run.
Agreement = Literal["agrees", "below", "above", "other", "unlike"]


class Probed(msgspec.Struct, frozen=True, kw_only=True):
    """One probe: how much shorter the run's own steps were with one thing changed. Measured, or not at all.

    Attributes:
        name: which probe.
        change: what its steps did differently, with the values.
        share: how much shorter they were, of the step before and after; negative where they were longer. ``None`` where
            the probe was not made or not finished.
        low: lower end of its interval, which nine of ten such measurements stay within; ``None`` without ``share``.
        high: upper end; likewise.
        steps: probed steps that were timed.
        step_ns: mean step of the run beside it, which ``share`` is of; ``None`` without ``share``.
        without_ns: mean step without the change: that, or one on a batch at hand where that one is too; likewise.
        probed_ns: mean step with the change; likewise.
        first_step: number of the first step that the probe put in; ``None`` where it put in none.
        last_step: of the last one.
        reason: why there is no ``share``; else what weakens it; may be empty.
        agreement: with the saving that a finding predicts; ``None`` where there is nothing to compare.
    """

    name: ProbeName
    change: str = ""
    share: float | None = None
    low: float | None = None
    high: float | None = None
    steps: int = 0
    step_ns: int | None = None
    without_ns: int | None = None
    probed_ns: int | None = None
    first_step: int | None = None
    last_step: int | None = None
    reason: str = ""
    agreement: Agreement | None = None
