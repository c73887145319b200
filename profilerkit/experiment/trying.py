"""The whole of a trial: a first run that is diagnosed, then what it proposes, measured in turns."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from profilerkit.capture.changes import known_settings
from profilerkit.config import unknown_word
from profilerkit.errors import UsageError
from profilerkit.experiment.plan import VARIABLE, Candidate, by_hand, candidates_of
from profilerkit.experiment.runs import InProcess, Ran, Runner
from profilerkit.experiment.search import Search
from profilerkit.model.finding import SettingChange
from profilerkit.model.report import Report
from profilerkit.results import Trial as Shown
from profilerkit.results import as_trial

#: Steps of a run: as many as take this long, s, within these bounds (choices): fewer tell little of a short step.
RUN_S, FEWEST_STEPS, MOST_STEPS = 4.0, 60, 2_000
FIRST_STEPS = 120  #: of the first run, which is diagnosed
#: What is tried where nothing is proposed, with a device and without: what often helps, and seldom changes a loss by
#: more than rounding (a choice).
USUAL = {
    False: (Candidate(changes=(SettingChange("fused", "", True),)),),
    True: tuple(
        Candidate(changes=(SettingChange(name, "", value),))
        for name, value in (("fused", True), ("matmul_precision", "high"), ("channels_last", True))
    ),
}
_PATIENCE_S = 60.0  #: a later run may start more slowly than the first, s (a choice)


def asked(text: str) -> Candidate:
    """Return a change that the user names, as ``num_workers=4``.

    Raises:
        UsageError: there is no such setting, it does not take this value, or there is none.
    """
    name, equals, value = text.partition("=")
    if not equals or name == VARIABLE:
        missing = "value" if not equals else "name"
        raise UsageError(f"the change {text} has no {missing}", hint="write NAME=VALUE, for example num_workers=4")
    if name.startswith(VARIABLE):
        return Candidate(changes=(SettingChange(name, "", value),))
    known = known_settings()
    if name not in known:
        raise unknown_word(name, list(known), what="setting", hint=f"the settings are {', '.join(known)}")
    if allowed := known[name].instead_of(_value(value)):
        raise UsageError(f"{name} cannot be {value or 'empty'}", cause=f"it is {allowed}", hint=f"write --fix {name}=…")
    return Candidate(changes=(SettingChange(name, "", _value(value)),))


def _value(text: str) -> bool | int | float | str:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return text


def to_try(report: Report, fixes: Sequence[Candidate] = ()) -> tuple[Candidate, ...]:
    """Return what is tried after this report of a first run, in this order: fixes that are asked for come first."""
    return candidates_of(report.outcomes, known_settings(), fixes) or USUAL[bool(report.run.devices)]


class Trying:
    """Find out what helps; ``trial`` may be asked for after an interrupt too."""

    def __init__(
        self,
        runs: Runner | InProcess,
        *,
        fixes: Sequence[Candidate] = (),
        budget_s: float,
        takes_differences: bool = False,
        say: Callable[[str], object] = lambda _text: None,
    ) -> None:
        """Prepare. ``fixes`` are tried beside what the first run proposes; the rest is as ``Search`` takes it."""
        self._runs, self._fixes = runs, fixes
        self._has_steps = runs.steps > 0
        self.search = Search(runs, budget_s=budget_s, say=say, takes_differences=takes_differences)

    def first(self) -> Ran:
        """Run it as it is, and diagnose it.

        Raises:
            UsageError: it cannot be measured.
        """
        runs = self._runs
        runs.steps = runs.steps or FIRST_STEPS
        first = runs.run("first", deep=True)
        if first.report is None or first.timed is None:
            output = first.place.parent / "ends" / first.place.name / "output.txt"
            where = f"its output is in {output}" if isinstance(runs, Runner) else ""
            raise UsageError("the program cannot be measured", cause=first.problem, hint=where)
        self.search.longest_s = first.seconds
        if isinstance(runs, Runner):
            runs.longest_s = 2 * first.seconds + _PATIENCE_S
        if not self._has_steps:
            mean_s = first.timed.timed.centre_ns / 1e9
            runs.steps = min(max(round(RUN_S / mean_s), FEWEST_STEPS), MOST_STEPS)
        return first

    def rest(self, first: Ran) -> None:
        """Measure what is to be tried after the first run."""
        assert first.report is not None
        self.search.precision = first.report.compute.precision if first.report.compute else None
        if left := by_hand(first.report.outcomes, known_settings()):
            self.search.notes.append(f"Not tried, as it needs a change of your code: {'; '.join(left)}.")
        candidates = to_try(first.report, self._fixes)
        if candidates in USUAL.values():
            self.search.notes.append("No finding proposes a change that can be made here: these are the usual ones.")
        self.search.search(candidates)

    def interrupted(self) -> None:
        """Note that not everything was measured."""
        self.search.notes.append("It was interrupted, so only what was measured until then is shown.")


def try_fixes(
    train: Callable[[], object],
    path: str | Path | None = None,
    *,
    steps: int | None = None,
    seconds: float = 60.0,
    budget: float = 900.0,
    fixes: Sequence[str] = (),
    allow_differences: bool = False,
) -> Shown:
    """Call ``train`` again and again, in this process, and measure what each proposed fix saves.

    Args:
        train: makes its model, optimizer and loaders anew at each call, and trains. Each call ends after a few steps.
        path: a directory for the runs; ``runs/try-NAME`` when not given, with a number where that is taken.
        steps: of each call; as many as take 4 s when not given, and at least 60.
        seconds: a call ends after so long from its first step on.
        budget: seconds for all calls, or at most one call more.
        fixes: changes to try beside those that the first run proposes, as ``num_workers=4``.
        allow_differences: advise changes that change the losses, too.

    Returns:
        What was measured, the advice in ``attempts`` that are ``kept``. After an interrupt, what was known by then.

    Raises:
        UsageError: a fix is unknown, or the function cannot be measured.
    """
    from profilerkit.rundir.places import candidates

    name = getattr(train, "__name__", "function")
    wanted = Path(path) if path is not None else Path("runs") / f"try-{name}"
    place = next(where for where in candidates(wanted) if not where.exists())
    runs = InProcess(train=train, directory=place.absolute(), steps=steps or 0, seconds=seconds)
    trying = Trying(runs, fixes=[asked(text) for text in fixes], budget_s=budget, takes_differences=allow_differences)
    first = trying.first()
    try:
        trying.rest(first)
    except KeyboardInterrupt:
        trying.interrupted()
    return as_trial(trying.search.trial(name, ()))
