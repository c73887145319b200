"""Define what ``profilerkit try`` found: changes that were made at run time, what they saved, and what they did."""

from typing import Literal

import msgspec

from profilerkit.model.diff import Range
from profilerkit.model.finding import CodeLine, Saving, SettingChange

#: The losses beside those of the baseline: the same to the last bit; apart by rounding only; apart by more; or nothing
#: can be said, because there are none or because those of the baseline itself differ from run to run.
Numbers = Literal["same", "rounding", "differs", "unknown"]
#: What became of an attempt: it saves time for certain; costs time for certain; neither is certain; it could not be
#: made or did not end well.
Outcome = Literal["faster", "slower", "no_change", "failed"]


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """Hold one change, or several together, with what was predicted and what was measured of it.

    Attributes:
        changes: what was changed at run time.
        rules: codes of the rules whose fix this is; empty for one that no finding proposed.
        predicted: as the finding predicts it; ``None`` where none does.
        saving: measured, as a share of the baseline's step: positive where steps got shorter. ``None`` if not measured.
        step_ns: mean step with the change; ``None`` if not measured.
        numbers: how its losses compare with the baseline's.
        apart: largest relative difference of a loss, 0 to infinity; ``None`` where none was compared.
        runs: runs that were measured.
        tried: it was run at all.
        reason: why it failed; else what weakens the result. May be empty.
        lines: where the user's code has what was changed, such as the call of ``DataLoader``. Empty where unknown.
        code: text to paste; may be empty.
        kept: it is part of what the trial advises.
    """

    changes: tuple[SettingChange, ...]
    outcome: Outcome
    rules: tuple[str, ...] = ()
    predicted: Saving | None = None
    saving: Range | None = None
    step_ns: float | None = None
    numbers: Numbers = "unknown"
    apart: float | None = None
    runs: int = 0
    tried: bool = True
    reason: str = ""
    lines: tuple[CodeLine, ...] = ()
    code: str = ""
    kept: bool = False

    @property
    def text(self) -> str:
        """Return the changes as a fix words them."""
        return ", ".join(change.text for change in self.changes)

    @property
    def has_too_few_runs(self) -> bool:
        """Whether runs are too few: twice the step is not excluded (a choice), or it is apart but was not run again."""
        saving = self.saving
        is_apart = saving is not None and not saving.low <= 0.0 <= saving.high
        return saving is not None and (saving.low < -1.0 or (self.outcome == "no_change" and is_apart))


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """Hold all attempts on one command.

    Attributes:
        name: of the program, as a run's is.
        command: words of the command; empty where they are left out of a shared document.
        created: ISO 8601, UTC.
        step_ns: mean step of the baseline, without what other programs took if known; ``None`` if not measured.
        spread: half-width of its 99 % interval over the baseline's runs, as a ratio of ``step_ns``.
        runs: of the baseline.
        steps: in each run that was measured.
        seconds: what all runs took, wall clock.
        attempts: each change alone, in the order in which they were tried.
        together: what is advised as one, measured as one; ``None`` where it is at most one change.
        notes: what was left out or weakens the whole, one sentence each.
        patch: unified diff of what is advised, for ``patch``; empty where it cannot be written.
    """

    name: str
    created: str
    command: tuple[str, ...] = ()
    step_ns: float | None = None
    spread: float | None = None
    runs: int = 0
    steps: int = 0
    seconds: float = 0.0
    attempts: tuple[Attempt, ...] = ()
    together: Attempt | None = None
    notes: tuple[str, ...] = ()
    patch: str = ""
    schema_version: int = 1
