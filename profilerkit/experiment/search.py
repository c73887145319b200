"""Measure changes in turns with the baseline until it is known what each saves, then those that help together."""

import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime

from profilerkit.capture.changes import known_settings
from profilerkit.compare.steps import Timed, step_change, t99
from profilerkit.experiment.losses import COARSE, ROUNDING, compared
from profilerkit.experiment.plan import Candidate, code_of, joined
from profilerkit.experiment.runs import InProcess, Ran, Runner
from profilerkit.model import revise
from profilerkit.model.diff import Range
from profilerkit.model.finding import SettingChange
from profilerkit.model.trial import Attempt, Numbers, Outcome, Trial
from profilerkit.units import format_ns

#: Runs of each side before anything is said, and after which no more is asked (choices): two tell whether losses are
#: the same from run to run.
FEWEST_RUNS, MOST_RUNS = 2, 5
#: A saving is known well enough when its 99 % interval is no wider than this to each side, share of the step: what is
#: told is compared in whole points (a choice).
HALF_WIDTH = 0.03
#: Intervals are wider by this, as they are looked at after each turn: in simulated trials, whose runs differ by 1 to
#: 10 % and drift by up to 20 %, a change of nothing then wins in 5 of 1,000, and the interval holds zero in 975.
LOOKS = 1.08
FEW_STEPS = 30  #: a program that makes fewer steps is too short to tell small savings (a choice)
#: Other work took more than this share of the steps: the run is made once more, but no more of them than this, for a
#: machine that is always busy (choices).
MOST_WAITED, MOST_AGAIN = 0.15, 3
#: All together save at least this share of what they save one after another, or each is tried without (a choice).
WHOLE = 0.9
#: What a change saves, or adds to what others do, is worth having from here on, share of the step (a choice).
WORTH = 0.01
#: The type in which matrices of FP32 are multiplied then, as torch's documentation says.
_MULTIPLIED: dict[tuple[str, object], str] = {
    ("matmul_precision", "high"): "tf32",
    ("matmul_precision", "medium"): "bf16",
}


class BudgetSpentError(Exception):
    """No time is left for another run."""


class Search:
    """Hold every run so far; ``trial`` may be asked for at any time, also after an interrupt."""

    def __init__(
        self,
        runs: Runner | InProcess,
        *,
        budget_s: float,
        say: Callable[[str], object],
        takes_differences: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare to measure.

        Args:
            runs: what runs the command.
            budget_s: wall clock for all runs, those made before included: only a run longer than all before ends later.
            say: told what goes on, one line each.
            takes_differences: advise changes that change the numbers too.
            clock: seconds.
        """
        self._runs = runs
        self._say = say
        self._effects = {name: setting.numbers for name, setting in known_settings().items()}
        self._takes_differences = takes_differences
        self._clock = clock
        self._began_s = clock()
        self._ends_s = self._began_s + budget_s
        self.longest_s = 0.0  # of a run so far: no other is begun that would then end too late
        self._baseline: list[Ran] = []
        self._made: dict[Candidate, list[Ran]] = {}
        self._singles: list[Candidate] = []
        self._together: Candidate | None = None
        self._disturbed = 0
        self.precision: str | None = None  # the type that the program multiplies in, as a report names it
        self.notes: list[str] = []

    def search(self, candidates: Sequence[Candidate]) -> None:
        """Measure each alone, then together; ends early where the budget does."""
        self._singles = list(candidates)
        with suppress(BudgetSpentError):
            self._in_turns(self._singles)
            self._join()
            return
        least_s = self.longest_s * (1 + FEWEST_RUNS * (1 + len(self._singles)))
        enough_s = math.ceil(max(least_s, 2 * (self._ends_s - self._began_s)))
        self.notes.append(f"Time ran out before everything was measured: use `profilerkit try --budget {enough_s}`.")

    def _in_turns(self, candidates: Sequence[Candidate]) -> None:
        """Run baseline and candidates in turns until each is settled."""
        waiting = list(candidates)
        while waiting:
            turn: list[Candidate | None] = [None, *waiting]
            # The order changes from turn to turn, so that what drifts does not favour the same one.
            for candidate in turn if len(self._baseline) % 2 == 0 else reversed(turn):
                self._once(candidate)
                if self._baseline and self._baseline[-1].problem:
                    return
            waiting = [one for one in waiting if not self._is_settled(one)]

    def _once(self, candidate: Candidate | None) -> None:
        made = self._baseline if candidate is None else self._made.setdefault(candidate, [])
        what = "baseline" if candidate is None else candidate.name
        if made and made[-1].problem:
            return
        ran = self._run(f"{what}-{len(made) + 1}", candidate)
        made.append(ran)
        if candidate is None and not ran.problem and 0 < ran.ended.steps < self._runs.steps:
            self._runs.steps = ran.ended.steps  # all runs make the same ones
            if ran.ended.ended == "program" and ran.ended.steps < FEW_STEPS:
                self.notes.append(f"The program ends after {ran.ended.steps} steps: let it train longer.")
        self._disturbed += ran.waited_ratio > MOST_WAITED
        if ran.waited_ratio > MOST_WAITED and self._disturbed <= MOST_AGAIN:
            again = self._run(f"{what}-{len(made)}-again", candidate)
            if not again.problem and again.waited_ratio <= ran.waited_ratio:
                made[-1] = again

    def _run(self, name: str, candidate: Candidate | None) -> Ran:
        if self._clock() + self.longest_s > self._ends_s:
            raise BudgetSpentError
        began_s = self._clock() - self._began_s
        ran = revise(self._runs.run(name, candidate.changes if candidate else ()), began_s=began_s)
        self.longest_s = max(self.longest_s, ran.seconds)
        step = f"mean step {format_ns(ran.timed.own.centre_ns)}" if ran.timed else ran.problem
        self._say(f"{name}: {step}")
        return ran

    def _is_settled(self, candidate: Candidate) -> bool:
        made = self._made[candidate]
        saving = self._saving(candidate)
        if made[-1].problem or len(made) >= MOST_RUNS or self._baseline[-1].problem:
            return True
        if saving is None or min(len(made), len(self._baseline)) < FEWEST_RUNS:
            return False
        if saving.high < WORTH:
            return True  # nobody needs to know how much it costs
        half = (saving.high - saving.low) / 2
        return half <= HALF_WIDTH and (saving.low >= 2 * half or max(saving.high, -saving.low) <= HALF_WIDTH)

    def _effects_of(self, changes: Sequence[SettingChange]) -> set[str]:
        return {self._effects.get(change.setting, "same") for change in changes}

    # What helps together

    def _join(self) -> None:
        """Measure what helps as one, and leave out what then no longer does."""
        helpful = self._helpful()
        if len(helpful) < 2:
            return
        whole = self._measured(helpful)
        saving = self._saving(whole)
        one_by_one = 1.0
        for one in helpful:
            one_by_one *= 1.0 - self._expected(one)
        if saving is None or saving.expected < WHOLE * (1.0 - one_by_one):
            helpful = self._less_idle(helpful, whole)
            whole = self._measured(helpful) if len(helpful) > 1 else helpful[0]
        # What each may do to the losses alone, all may not do together.
        self._together = whole if self._may_advise(self._attempt(whole)) else helpful[0]

    def _helpful(self) -> list[Candidate]:
        """What is faster for certain and may be advised, the largest saving first; of two values of a setting one."""
        found = [one for one in self._singles if one in self._made and self._may_advise(self._attempt(one))]
        best, taken = list[Candidate](), set[str]()
        for one in sorted(found, key=lambda one: -self._expected(one)):
            if not one.settings <= taken:
                best.append(one)
                taken |= one.settings
        return best

    def _may_advise(self, attempt: Attempt) -> bool:
        is_probe = any(change.setting == "ceiling" for change in attempt.changes)
        effects = set(self._effects_of(attempt.changes))
        # Workers and compiled code draw other random numbers: that is advised, and the losses are to be looked at.
        is_doubted = attempt.numbers == "differs" and effects != {"redrawn"}
        is_doubted |= attempt.numbers == "unknown" and "differs" in effects
        return attempt.outcome == "faster" and not is_probe and (self._takes_differences or not is_doubted)

    def _less_idle(self, helpful: list[Candidate], whole: Candidate) -> list[Candidate]:
        """Leave out, the least first, what the others are as fast without."""
        kept = list(helpful)
        for one in reversed(helpful):
            rest = [other for other in kept if other is not one]
            if not rest:
                break
            without = self._measured(rest) if len(rest) > 1 else rest[0]
            if self._expected(whole) - self._expected(without) < WORTH:
                kept, whole = rest, without
        return kept

    def _measured(self, candidates: Sequence[Candidate]) -> Candidate:
        one = joined(candidates)
        known = next((other for other in self._made if other.name == one.name), None)
        if known is None:
            self._in_turns([one])
        return known or one

    # What is known

    def _saving(self, candidate: Candidate) -> Range | None:
        return _saving(self._baseline, self._made.get(candidate, ()))

    def _expected(self, candidate: Candidate) -> float:
        saving = self._saving(candidate)
        return saving.expected if saving else 0.0

    def _numbers(self, candidate: Candidate, useful: Sequence[Ran]) -> tuple[Numbers, float | None, float | None]:
        baseline, changed = ([ran.ended.losses for ran in side] for side in (self._baseline, useful))
        numbers, apart, own = compared(baseline, changed, self._rounding(candidate.changes))
        if numbers == "rounding" and "differs" in self._effects_of(candidate.changes):
            numbers = "differs"
        return numbers, apart, own

    def _rounding(self, changes: Sequence[SettingChange]) -> float:
        """How far rounding alone moves losses: by the types that multiply, where a change may round otherwise."""
        if "rounding" not in self._effects_of(changes):
            return ROUNDING
        types = [self.precision, *(_MULTIPLIED.get((change.setting, change.proposed)) for change in changes)]
        return max(COARSE.get(name or "", ROUNDING) for name in types)

    def _attempt(self, candidate: Candidate) -> Attempt:
        made, saving = self._made.get(candidate, []), self._saving(candidate)
        useful = [ran for ran in made if not ran.problem]
        numbers, apart, own = self._numbers(candidate, useful)
        problem = next((ran.problem for ran in made if ran.problem), "" if made else "there was no time left for it")
        return Attempt(
            changes=candidate.changes,
            outcome="failed" if problem or saving is None else _outcome(saving, len(useful)),
            rules=candidate.rules,
            predicted=candidate.predicted,
            saving=None if problem else saving,
            step_ns=None if problem else _mean_ns(useful),
            numbers=numbers,
            apart=apart,
            runs=len(useful),
            tried=bool(made),
            reason=problem or self._doubt(candidate, numbers, apart, own),
            lines=useful[0].lines if useful else (),
            code=code_of(candidate, useful[0].packages if useful else {}),
        )

    def _doubt(self, candidate: Candidate, numbers: Numbers, apart: float | None, own: float | None) -> str:
        """Why its losses say less than they seem to; may be empty."""
        if numbers == "unknown" and apart is not None and own is not None:
            return f"losses of the baseline differ by {own:.0e} from run to run"
        if numbers == "differs" and "redrawn" in self._effects_of(candidate.changes):
            return "it may draw other random numbers: losses may differ as with another seed, so look at them"
        return ""

    def trial(self, name: str, command: Sequence[str]) -> Trial:
        """Return what is known so far."""
        helpful = self._helpful()
        advised = [self._together] if self._together else helpful[:1]
        kept = {change for one in advised for change in one.changes}
        attempts = [self._attempt(one) for one in self._singles]
        together = self._attempt(self._together) if self._together and len(self._together.changes) > 1 else None
        notes = [*self.notes]
        if self._disturbed:
            seen = f"Other programs slowed {self._disturbed} run{'s' if self._disturbed > 1 else ''}"
            notes.append(f"{seen}: repeat the trial on a quieter machine.")
        if problem := next((ran.problem for ran in self._baseline if ran.problem), ""):
            notes.append(f"A run without changes failed: {problem}.")
        own = _saving(self._baseline, self._baseline)
        return Trial(
            name=name,
            command=tuple(command),
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            step_ns=_mean_ns(self._baseline),
            # The interval of the ratio of two equal sides is wider than that of one of them by the root of two.
            spread=(own.high - own.low) / 2 / 2**0.5 if own else None,
            runs=len(self._baseline),
            steps=self._runs.steps,
            seconds=self._clock() - self._began_s,
            attempts=tuple(revise(one, kept=set(one.changes) <= kept) for one in attempts),
            together=revise(together, kept=True) if together else None,
            notes=tuple(notes),
        )


def _saving(baseline: Sequence[Ran], changed: Sequence[Ran]) -> Range | None:
    """Saving and its 99 % interval, without what drifts steadily; ``None`` before a run of each.

    How much runs differ is known from them alone, and is at least what ``step_change`` assumes.
    """
    sides = [[(ran.began_s, ran.timed) for ran in side if ran.timed] for side in (baseline, changed)]
    if not all(sides):
        return None
    is_own = all(timed.is_taken_out for side in sides for _, timed in side)
    levels = [[(at_s, math.log(one.level_ns if is_own else one.timed.centre_ns)) for at_s, one in s] for s in sides]
    slope, seen = _fitted(*levels)
    before, after = ([_scaled(one, math.exp(-slope * at_s)) for at_s, one in side] for side in sides)
    change = step_change(before, after).judged
    centre = math.log1p(change.expected)
    half = max(centre - math.log1p(change.low), seen)
    return Range(low=-math.expm1(centre + half), expected=-change.expected, high=-math.expm1(centre - half))


def _scaled(timed: Timed, factor: float) -> Timed:
    own, raw = (revise(one, centre_ns=one.centre_ns * factor) for one in (timed.own, timed.timed))
    return revise(timed, own=own, timed=raw)


def _fitted(before: Sequence[tuple[float, float]], after: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Drift that both sides share, and half-width of the 99 % interval of how far they are apart without it.

    Each point is a time and the logarithm of a level. By least squares; two runs of a side show no drift.
    """
    means = [[sum(values) / len(side) for values in zip(*side, strict=True)] for side in (before, after)]
    away = [(at - mean[0], y - mean[1]) for side, mean in zip((before, after), means, strict=True) for at, y in side]
    spread = sum(at * at for at, _ in away)
    has_drift = spread > 0 and min(len(before), len(after)) > FEWEST_RUNS
    slope = sum(at * y for at, y in away) / spread if has_drift else 0.0
    degrees = len(away) - 2 - has_drift
    if degrees < 1:
        return slope, 0.0
    variance = sum((y - slope * at) ** 2 for at, y in away) / degrees
    lever = (means[1][0] - means[0][0]) ** 2 / spread if has_drift else 0.0
    return slope, LOOKS * t99(degrees) * math.sqrt(variance * (1 / len(before) + 1 / len(after) + lever))


def _outcome(saving: Range, runs: int) -> Outcome:
    if runs < FEWEST_RUNS:
        return "no_change"
    if saving.low > 0:
        return "faster"
    return "slower" if saving.high < 0 else "no_change"


def _mean_ns(made: Sequence[Ran]) -> float | None:
    found = [ran.timed.own.centre_ns for ran in made if ran.timed]
    return sum(found) / len(found) if found else None
