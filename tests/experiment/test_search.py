"""Changes are measured in turns with the baseline, and only what helps for certain is advised."""

import json
import math
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from profilerkit.compare.steps import Resampled, Timed
from profilerkit.experiment.plan import Candidate, candidates_of, joined
from profilerkit.experiment.runs import Ended, Ran, Runner
from profilerkit.experiment.search import MOST_RUNS, Search
from profilerkit.experiment.trying import Trying
from profilerkit.model import revise
from profilerkit.model.finding import Evidence, Finding, Fix, Outcome, Saving, SettingChange

FUSED = Candidate(changes=(SettingChange("fused", False, True),))
WORKERS = Candidate(changes=(SettingChange("num_workers", 0, 3),))
BF16 = Candidate(changes=(SettingChange("autocast", "off", "bf16"),))
BASE_NS, LOSSES = 100e6, [1.0, 0.9, 0.8]


class Program:
    """Stands in for the user's command: each change makes its steps that much longer, as a factor."""

    steps = 60

    def __init__(
        self,
        factors: Mapping[str, float],
        *,
        noise: float = 0.002,
        losses: Mapping[str, Sequence[float]] | None = None,
        joint: Callable[[set[str]], float] | None = None,
        seconds: float = 10.0,
        seed: int = 0,
        problems: Mapping[str, str] | None = None,
        waited: Sequence[float] = (),
        drift: float = 0.0,
        base: Sequence[float] = LOSSES,
    ) -> None:
        self.factors, self.noise, self.joint, self.seconds = factors, noise, joint, seconds
        self.losses, self.problems, self.waited = losses or {}, problems or {}, list(waited)
        self.random, self.drift, self.base = random.Random(seed), drift, list(base)
        self.now_s = 0.0
        self.started: list[str] = []

    def clock(self) -> float:
        return self.now_s

    def run(self, name: str, changes: Sequence[SettingChange] = (), *, deep: bool = False) -> Ran:
        assert name not in self.started  # each run has a directory of its own
        self.started.append(name)
        self.now_s += self.seconds
        made = {change.setting for change in changes}
        problem = next((self.problems[one] for one in made if one in self.problems), "")
        if problem:
            return Ran(place=Path(name), problem=problem, seconds=self.seconds)
        factor = self.joint(made) if self.joint else 1.0
        if not self.joint:
            for one in made:
                factor *= self.factors.get(one, 1.0)
        mean_ns = BASE_NS * factor * self.random.gauss(1.0, self.noise) * math.exp(self.drift * self.now_s)
        steps = Resampled(mean_ns, mean_ns * 0.002, 20)
        waited = self.waited.pop(0) if self.waited else 0.0
        timed = Timed(steps, steps, steps, waited, is_taken_out=True)
        losses = next((list(self.losses[one]) for one in made if one in self.losses), self.base)
        return Ran(place=Path(name), timed=timed, ended=Ended(losses=losses, ended="steps"), seconds=self.seconds)


def searched(program: Program, *candidates: Candidate, budget_s: float = 1e6, **options: Any) -> Any:
    search = Search(program, budget_s=budget_s, say=lambda _: None, clock=program.clock, **options)
    search.search(candidates)
    return search.trial("train", ["python", "train.py"])


def test_each_change_is_measured_alone_and_those_that_help_together() -> None:
    trial = searched(Program({"num_workers": 0.7, "fused": 0.94}), WORKERS, FUSED)
    workers, fused = trial.attempts
    assert (workers.outcome, fused.outcome) == ("faster", "faster")
    assert workers.saving.expected == pytest.approx(0.30, abs=0.01)
    assert trial.together is not None
    assert trial.together.saving.expected == pytest.approx(1 - 0.7 * 0.94, abs=0.01)
    assert workers.kept
    assert fused.kept
    assert workers.numbers == "same"


def test_what_adds_nothing_beside_the_others_is_left_out() -> None:
    def joint(made: set[str]) -> float:
        return 0.7 if "num_workers" in made else 0.9 if "fused" in made else 1.0

    trial = searched(Program({}, joint=joint), WORKERS, FUSED)
    workers, fused = trial.attempts
    assert (workers.outcome, fused.outcome) == ("faster", "faster")
    assert workers.kept
    assert not fused.kept
    assert trial.together is None


def test_of_two_values_of_a_setting_the_better_one_is_kept() -> None:
    class Workers(Program):
        def run(self, name: str, changes: Sequence[SettingChange] = (), *, deep: bool = False) -> Ran:
            self.factors = {"num_workers": 0.8 if SettingChange("num_workers", 0, 2) in changes else 0.6, "fused": 0.9}
            return super().run(name, changes, deep=deep)

    two = Candidate(changes=(SettingChange("num_workers", 0, 2),))
    assert [one.kept for one in searched(Workers({}), two, WORKERS).attempts] == [False, True]
    trial = searched(Workers({}), two, WORKERS, FUSED)
    assert [one.kept for one in trial.attempts] == [False, True, True]
    assert trial.together.saving.expected == pytest.approx(1 - 0.6 * 0.9, abs=0.01)


def test_a_change_that_is_part_of_another_one_is_measured_with_it_once() -> None:
    both = Candidate(changes=(*WORKERS.changes, *FUSED.changes))
    trial = searched(Program({"num_workers": 0.7, "fused": 0.94}), both, WORKERS, FUSED)
    assert [one.kept for one in trial.attempts] == [True, True, True]
    assert trial.together is None or trial.together.changes == both.changes


def test_what_costs_time_is_told_and_not_advised() -> None:
    (workers,) = searched(Program({"num_workers": 1.11}), WORKERS).attempts
    assert workers.outcome == "slower"
    assert not workers.kept
    assert workers.saving.expected == pytest.approx(-0.11, abs=0.02)


def test_what_is_not_worth_having_is_run_no_more_often_than_that_takes_to_know() -> None:
    program = Program({"num_workers": 1.3}, noise=0.04, seed=1)
    (workers,) = searched(program, WORKERS).attempts
    assert (workers.outcome, workers.runs) == ("slower", 3)
    assert workers.saving.high - workers.saving.low > 0.06


def test_changed_losses_are_told_and_advised_only_where_the_user_takes_them() -> None:
    losses = {"autocast": [1.002, 0.9, 0.8]}
    (bf16,) = searched(Program({"autocast": 0.6}, losses=losses), BF16).attempts
    assert (bf16.outcome, bf16.numbers, bf16.kept) == ("faster", "differs", False)
    assert bf16.apart == pytest.approx(0.002, rel=0.01)
    (taken,) = searched(Program({"autocast": 0.6}, losses=losses), BF16, takes_differences=True).attempts
    assert taken.kept


#: Of a GPT in FP32 on an H200, and with TF32: apart by 4e-7 first, by 1.3e-6 at the third.
WIDE = [9.409341812, 9.410494804, 9.357113838]
TF32 = [9.409345627, 9.410497665, 9.357101440]


def test_rounding_is_that_of_the_type_that_multiplies() -> None:
    """Products of TF32 round at 5e-4, those of a program in bf16 at 4e-3; a loader rounds nothing."""
    precision = Candidate(changes=(SettingChange("matmul_precision", "highest", "high"),))
    for change, main, numbers in (
        (precision, "fp32", "rounding"),
        (FUSED, "fp32", "differs"),
        (FUSED, "bf16", "rounding"),
        (WORKERS, "bf16", "differs"),
    ):
        (setting,) = change.settings
        program = Program({setting: 0.8}, losses={setting: TF32}, base=WIDE)
        search = Search(program, budget_s=1e6, say=lambda _: None, clock=program.clock)
        search.precision = main
        search.search([change])
        assert search.trial("train", []).attempts[0].numbers == numbers


@pytest.mark.parametrize("main", ["fp32", "bf16"])
def test_coarse_rounding_excuses_no_other_training(main: str) -> None:
    """Warm-up makes the first steps alike: a model that does not learn, or learns something else, differs later."""
    learns = [10.8 - 2.7 * min(1.0, (step / 60) ** 2) for step in range(60)]
    jumps = [loss * (1.0 if step < 20 else 1.1) for step, loss in enumerate(learns)]
    swapped = [learns[1], learns[0], *learns[2:]]
    for other in ([10.8] * 60, jumps, swapped if main == "fp32" else jumps):
        program = Program({"fused": 0.8}, losses={"fused": other}, base=learns)
        search = Search(program, budget_s=1e6, say=lambda _: None, clock=program.clock)
        search.precision = main
        search.search([FUSED])
        (made,) = search.trial("train", []).attempts
        assert (made.numbers, made.kept) == ("differs", False)


def test_a_change_that_makes_other_numbers_is_never_within_rounding() -> None:
    for change, numbers in ((FUSED, "rounding"), (BF16, "differs")):
        (name,) = change.settings
        program = Program({name: 0.6}, losses={name: [1.0, 0.9, 0.8 + 1e-7]})
        (made,) = searched(program, change).attempts
        assert (made.numbers, made.kept) == (numbers, numbers == "rounding")


def test_losses_that_other_random_numbers_may_explain_differ_and_the_change_stays_advised() -> None:
    for change, may_redraw in ((WORKERS, True), (FUSED, False)):
        (name,) = change.settings
        program = Program({name: 0.6}, losses={name: [0.95, 1.0, 0.7]})
        (made,) = searched(program, change).attempts
        assert (made.numbers, made.kept) == ("differs", may_redraw)
        assert ("other random numbers" in made.reason) is may_redraw
    (same,) = searched(Program({"num_workers": 0.6}), WORKERS).attempts
    assert (same.reason, same.kept) == ("", True)


def test_a_change_that_could_not_be_made_is_told_with_its_reason() -> None:
    program = Program({"num_workers": 0.7}, problems={"fused": "fused: LBFGS has no fused form"})
    workers, fused = searched(program, WORKERS, FUSED).attempts
    assert (fused.outcome, fused.reason, fused.saving) == ("failed", "fused: LBFGS has no fused form", None)
    assert workers.kept
    assert program.started.count("fused=True-1") == 1


@pytest.mark.parametrize("drift", [0.0, 0.001])
@pytest.mark.parametrize("noise", [0.002, 0.01, 0.03, 0.1])
def test_a_change_of_nothing_is_no_win_and_its_interval_holds_zero(noise: float, drift: float) -> None:
    wins = held = 0
    for seed in range(200):
        program = Program({"fused": 1.0}, noise=noise, seed=seed, drift=drift)
        (fused,) = searched(program, FUSED).attempts
        wins += fused.outcome == "faster"
        held += fused.saving.low <= 0.0 <= fused.saving.high
        assert len(program.started) <= 2 * MOST_RUNS
    assert wins <= 2
    assert held >= 190


def test_a_steady_drift_hides_no_saving() -> None:
    programs = (Program({"fused": 0.93}, noise=0.01, seed=seed, drift=0.001) for seed in range(50))
    outcomes = [searched(program, FUSED).attempts[0].outcome for program in programs]
    assert outcomes.count("faster") >= 45


def test_the_budget_ends_it_with_what_is_known() -> None:
    trial = searched(Program({"num_workers": 0.7}, seconds=10), WORKERS, FUSED, budget_s=35)
    assert trial.runs == 1
    assert any("Time ran out" in note for note in trial.notes)
    assert [attempt.kept for attempt in trial.attempts] == [False, False]


def test_no_run_begins_that_would_end_after_the_budget_if_it_took_as_long_as_the_first() -> None:
    program = Program({"num_workers": 0.7}, seconds=50)
    plain, seen = program.run, SimpleNamespace(compute=None, outcomes=(), run=SimpleNamespace(devices=()))
    program.run = lambda *run, **deep: revise(plain(*run, **deep), report=seen)  # type: ignore[method-assign]
    trying = Trying(program, budget_s=60)  # type: ignore[arg-type]
    trying.search = Search(program, budget_s=60, say=lambda _: None, clock=program.clock)  # type: ignore[arg-type]
    trying.rest(trying.first())
    assert program.started == ["first"]
    assert any("`profilerkit try --budget 250`" in note for note in trying.search.notes)


def test_a_run_beside_other_work_is_made_again() -> None:
    program = Program({"num_workers": 0.7}, waited=[0.0, 0.4])
    trial = searched(program, WORKERS)
    assert program.started[:3] == ["baseline-1", "num_workers=3-1", "num_workers=3-1-again"]
    assert any("Other programs" in note for note in trial.notes)


def test_nothing_is_advised_where_the_program_fails_without_changes() -> None:
    class Failing(Program):
        def run(self, name: str, changes: Sequence[SettingChange] = (), *, deep: bool = False) -> Ran:
            if not changes:
                return Ran(place=Path(name), problem="exit code 1: boom")
            return super().run(name, changes, deep=deep)

    trial = searched(Failing({"num_workers": 0.7}), WORKERS)
    assert trial.notes == ("A run without changes failed: exit code 1: boom.",)
    assert not trial.attempts[0].kept


def test_candidates_are_what_findings_propose_and_the_table_can_make() -> None:
    both = joined([WORKERS, FUSED])
    assert [change.setting for change in both.changes] == ["num_workers", "fused"]
    assert candidates_of((), {"fused"}) == ()


def test_a_change_that_is_asked_for_and_proposed_is_tried_once() -> None:
    saving = Saving(low=0.2, expected=0.3, high=0.4, method="replay")
    evidence = (Evidence(label="wait", value=1.0, unit="ns", source="measured", origin="made"),)
    finding = Finding(
        title="t", bound="input-bound", confidence="high", why="w", evidence=evidence, saving=saving,
        fix=Fix(text="more", changes=WORKERS.changes),
    )  # fmt: skip
    outcome = Outcome(rule="IN002", name="n", summary="s", status="fired", findings=(finding,))
    asked = Candidate(changes=(SettingChange("num_workers", "as it is", 3),))
    found = candidates_of((outcome,), {"num_workers"}, (FUSED, asked))
    assert [one.name for one in found] == ["fused=True", "num_workers=3"]
    assert (found[1].rules, found[1].predicted, found[1].changes) == (("IN002",), saving, WORKERS.changes)


def test_changes_that_differ_only_in_what_a_file_name_cannot_hold_have_names_of_their_own() -> None:
    texts = ("x" * 90 + "1", "x" * 90 + "2", "a/b", "a:b")
    names = {Candidate(changes=(SettingChange("env:A", "", text),)).name for text in texts}
    assert len(names) == 4
    assert all(len(name) < 100 and "/" not in name for name in names)


def test_what_only_some_ranks_can_change_is_changed(tmp_path: Path) -> None:
    ends = tmp_path / "ends" / "one"
    documents = [
        {"refused": {"num_workers": "num_workers is 2 already"}, "losses": [1.0]},
        {"applied": {"num_workers": []}},
    ]
    script = "".join(
        f"open({str(ends / f'rank_{rank:05d}.json')!r}, 'w').write({json.dumps(document)!r});"
        for rank, document in enumerate(documents)
    )
    runner = Runner(
        command=[sys.executable, "-S", "-c", script], directory=tmp_path, start_directory="", steps=1, seconds=1
    )
    ran = runner.run("one", WORKERS.changes)
    assert (ran.ended.losses, ran.ended.applied) == ([1.0], {"num_workers": []})
    assert "already" not in ran.problem


def test_what_changes_the_losses_only_together_is_not_advised_together() -> None:
    program = Program({"num_workers": 0.7, "fused": 0.94})
    plain = program.run

    def run(name: str, changes: Sequence[SettingChange] = (), *, deep: bool = False) -> Ran:
        ran = plain(name, changes, deep=deep)
        return revise(ran, ended=revise(ran.ended, losses=[9.0, 8.0])) if len(changes) > 1 else ran

    program.run = run  # type: ignore[method-assign]
    trial = searched(program, WORKERS, FUSED)
    assert [attempt.kept for attempt in trial.attempts] == [True, False]


def test_a_change_of_numbers_is_not_advised_where_the_losses_tell_nothing() -> None:
    program = Program({"autocast": 0.6}, losses={"autocast": []})
    (bf16,) = searched(program, BF16).attempts
    assert (bf16.outcome, bf16.numbers, bf16.kept) == ("faster", "unknown", False)


def test_a_run_is_kept_where_the_budget_ends_before_it_is_made_again() -> None:
    program = Program({"num_workers": 0.7}, waited=[0.4], seconds=10)
    trial = searched(program, WORKERS, budget_s=15)
    assert trial.runs == 1


def test_all_runs_make_as_many_steps_as_time_allowed_the_first() -> None:
    program = Program({"num_workers": 0.7})
    plain = program.run

    def run(name: str, changes: Sequence[SettingChange] = (), *, deep: bool = False) -> Ran:
        ran = plain(name, changes, deep=deep)
        return revise(ran, ended=revise(ran.ended, ended="time", steps=21))

    program.run = run  # type: ignore[method-assign]
    assert searched(program, WORKERS).steps == 21
