"""Findings beside what ``profilerkit try`` measured of their fixes, as the run's directory holds it."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from profilerkit.model import revise
from profilerkit.model.finding import Finding, Outcome, Saving, SettingChange
from profilerkit.model.trial import Attempt, Trial
from profilerkit.rules.api import SMALLEST_SAVING
from profilerkit.rundir.files import read_document
from profilerkit.rundir.layout import TRIAL
from profilerkit.rundir.reader import RunRecord
from profilerkit.secrets import masked_arguments
from profilerkit.units import format_ratio, format_ratio_range

_CALIBRATION = "measured by try"


def trial_of(run: RunRecord) -> tuple[Trial | None, tuple[str, ...]]:
    """Return the trial of the run's own command, and a note on one that is there and cannot be used."""
    try:
        trial = read_document(run.path / TRIAL, Trial)
    except FileNotFoundError:
        return None, ()
    except (OSError, ValueError) as error:
        return None, (f"{TRIAL} is not used: {getattr(error, 'strerror', error)}",)
    argv = run.manifest.argv if run.manifest else ()
    # A redacted trial has its name alone.
    if trial.schema_version != 1 or not _is_of(trial.command or (trial.name, *argv[1:]), argv):
        return None, (f"{TRIAL} is not used: it is of another command",)
    return trial, ()


def _is_of(command: Sequence[str], argv: Sequence[str]) -> bool:
    """Whether a command, as a process is started, ends in the script or module with the arguments that the run had.

    >>> _is_of(("torchrun", "src/train.py", "--lr", "1"), ("/x/src/train.py", "--lr", "1"))
    True
    >>> _is_of(("python", "-m", "net.train"), ("/x/net/train.py",)), _is_of(("python", "eval.py"), ("/x/train.py",))
    (True, False)
    """
    words = tuple(masked_arguments(command[-len(argv) :] if argv else ()))
    if len(words) != len(argv) or words[1:] != tuple(argv[1:]) or not words:
        return False
    ran = Path(argv[0])
    name = f"{ran.parent.name}.py" if ran.name == "__main__.py" else ran.name
    return name in (Path(words[0]).name, f"{words[0].rpartition('.')[2]}.py")


def with_trial(outcomes: Sequence[Outcome], trial: Trial) -> Sequence[Outcome]:
    """Return the outcomes, in which each fix that was tried alone saves what it saved then."""
    made = {_key(one.changes): one for one in trial.attempts if one.saving is not None}
    if not made:
        return outcomes
    return [revise(row, findings=tuple(_beside(finding, made) for finding in row.findings)) for row in outcomes]


def _key(changes: Iterable[SettingChange]) -> frozenset[tuple[str, object]]:
    return frozenset((change.setting, change.proposed) for change in changes)


def _beside(finding: Finding, made: dict[frozenset[tuple[str, object]], Attempt]) -> Finding:
    attempt = made.get(_key(finding.fix.changes)) if finding.fix is not None and finding.fix.changes else None
    if attempt is None or attempt.saving is None or attempt.outcome == "failed":
        return finding
    ends = (attempt.saving.low, attempt.saving.expected, attempt.saving.high)
    low, expected, high = sorted(min(max(value, 0.0), 1.0) for value in ends)
    predicted = finding.saving
    confirm = _sentence(attempt, predicted)
    excluded = high < (predicted.expected if predicted else SMALLEST_SAVING)
    if attempt.outcome == "slower" or (expected < SMALLEST_SAVING and excluded):
        return revise(finding, saving=None, fix=None, confirm=confirm)
    saving = Saving(low=low, expected=expected, high=high, method="trial", calibration=_CALIBRATION)
    return revise(finding, saving=saving, confirm=confirm)


def _sentence(attempt: Attempt, predicted: Saving | None) -> str:
    """The measurement beside the prediction."""
    assert attempt.saving is not None
    low, share, high = attempt.saving.low, attempt.saving.expected, attempt.saving.high
    if attempt.outcome == "no_change":
        found = f"no clear change ({format_ratio(-low)} longer to {format_ratio(high)} shorter)"
        found = "no clear change, in too few runs" if attempt.has_too_few_runs else found
    elif attempt.outcome == "slower":
        found = f"a step {format_ratio(-share)} longer ({format_ratio_range(-high, -low)})"
    else:
        found = f"a step {format_ratio(share)} shorter ({format_ratio_range(low, high)})"
    before = format_ratio_range(predicted.low, predicted.high) if predicted else "nothing"
    losses = " Its losses differ: look at them." if attempt.numbers == "differs" else ""
    return f"`profilerkit try` made this change and measured {found}; {before} was predicted.{losses}"
