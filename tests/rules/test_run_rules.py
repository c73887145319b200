"""Rules about the run: what training stops for, and what it shares its host, its device and its link with."""

import numpy as np
import pytest

from profilerkit.analysis.host.lines import HotLine
from profilerkit.analysis.memory.history import LogFacts, Rests
from profilerkit.analysis.steps.series import Stall, StepSeries
from profilerkit.analysis.steps.wall_clock import Pause
from profilerkit.analysis.surroundings import HostLink, Surroundings
from profilerkit.diagnosis.verdict import diagnose
from profilerkit.model import revise
from profilerkit.model.memory import Memory, MemoryGrowth
from profilerkit.model.run import STEP_TIMERS, Loader, Series, Signal
from profilerkit.rules import RULES
from profilerkit.rules.api import Fired, MissingData, Passed
from profilerkit.rules.runner import run_rules
from tests.recipes import INPUT, MS, S, facts, replace, steps
from tests.rules import contract
from tests.rules.test_rules import JUST, check, ended, finding, on_host, stalling, timers_only, uneven


def pausing(share, kind="checkpoint", *, count=4, apart=10, inferred=False, stalls=(), **changes):
    """A recorded run of ``count * apart`` steps that stands still for ``share`` of its time."""
    number = round(count * apart)
    pause = Pause(
        kind=kind, count=count, run_count=count, time_ns=round(share * S), share=share, steps=number, inferred=inferred,
        steps_apart=float(apart) if count > 1 else None,
    )  # fmt: skip
    return facts(pauses=(pause,), stalls=stalls, **changes)


def ratio(name, mean, n=60):
    return Series(name=name, unit="ratio", n=n, mean=mean, p10=mean, p90=mean, maximum=mean)


def contended(own=1.0, cores=8.0, n=60, **means):
    """A host with the means of its signals, on which the run uses ``own`` of its ``cores``."""
    used = (
        ()
        if own is None
        else (Series(name="host.process_cores", unit="cores", n=n, mean=own, p10=0, p90=0, maximum=0),)
    )
    return facts(samples=(*(ratio(f"host.{name}", mean, n) for name, mean in means.items()), *used), usable_cores=cores)


def shared(strangers=1, *, held=None, siblings=0):
    return facts(surroundings=Surroundings(strangers=strangers, strangers_bytes=held, siblings=siblings))


def growing(last=2.0, *, count=60, part=None, stages=None, shape=None, **changes):
    """Steps of 100 ms at first and ``last`` times that at last; ``part`` holds all of the growth.

    ``stages`` hold these shares of it.
    """
    line = np.linspace(0.0, 1.0, count) if shape is None else shape(np.linspace(0.0, 1.0, count))
    more = np.rint(line * (last - 1.0) * 100 * MS).astype(np.int64)
    time = 100 * MS + more
    of_all = np.ones(count, dtype=bool)
    split = {part: more, "compute.math": time - more} if part else {}
    staged = {name: np.rint(share * more).astype(np.int64) for name, share in (stages or {}).items()}
    series = StepSeries(np.arange(count), time, of_all, of_all, split, stages=staged)
    return facts(steps=steps(count, mean_ns=int(time.mean())), step_series=(series,), **changes)


GROWS = MemoryGrowth(
    of="process", bytes_per_step=1e6, low_bytes_per_step=9e5, high_bytes_per_step=1.1e6, n=40, first_step=0,
    last_step=59, grows=True,
)  # fmt: skip


def crowded(last, *, computed, queue=0.5):
    """Steps of which the last ones queue for ``queue`` of their time, and compute ``computed`` times as long."""
    known = growing(last, mode="cpu")
    (series,) = known.step_series
    line = np.linspace(0.0, 1.0, len(series.time))
    queued = np.rint(line * queue * series.time).astype(np.int64)
    cpu = np.rint((1.0 + line * (computed - 1.0)) * 100 * MS).astype(np.int64)
    return replace(known, step_series=(replace(series, queued=queued, computed=cpu),))


def resting(idle=0.3, *, length=12, period=60, sample_ns=S, within=None):
    """A log of a GPU that is idle for so much of the time, at intervals of so many samples."""
    seen = Rests(
        label="GPU 3", n=600, idle_ratio=idle, resting_ratio=idle if within is None else within, count=9,
        length=length, period=period, sample_ns=sample_ns,
    )  # fmt: skip
    return replace(facts(), logs=LogFacts(alone=True, rests=(seen,)))


def linked(generation=3, width=16, *, samples=60, share=0.2, best=(4, 16)):
    link = HostLink(
        generation=generation, generation_max=best[0], width=width, width_max=best[1], samples=samples
    )  # fmt: skip
    return facts({"input.h2d": share}, surroundings=Surroundings(link=link))


QUIET = {"steal": 0.0, "cpu_pressure": 0.0, "cpu_throttled": 0.0, "thread_queue": 0.0}
FIRES = [
    ("RU001", stalling(0.1)),
    ("RU001", pausing(0.1)),
    ("RU002", stalling(0.1, kind="evaluation", part="other.eval")),
    ("RU002", pausing(0.1, "evaluation", inferred=True)),
    ("RU002", pausing(0.1, "logging")),
    ("RU005", contended(**{**QUIET, "steal": 0.1})),
    ("RU005", contended(**QUIET, pool_queue=0.3)),
    ("RU006", shared()),
    ("RU007", linked()),
    ("RU008", resting()),
    ("RU009", growing()),
    ("RU009", growing(part="input.fetch")),
]
PASSES = [
    ("RU001", facts()),
    ("RU001", pausing(0.01)),
    ("RU002", facts()),
    ("RU002", pausing(0.5)),
    ("RU005", contended(**QUIET)),
    ("RU006", shared(0)),
    ("RU007", linked(4)),
    ("RU008", resting(0.05)),
    ("RU009", growing(1.0)),
    ("RU009", growing(0.5)),
]
MISSING = [
    ("RU001", facts(steady=5)),
    ("RU002", facts(steady=5)),
    ("RU005", facts()),
    ("RU006", facts()),
    ("RU006", timers_only()),
    ("RU007", facts()),
    ("RU008", facts()),
    ("RU009", facts()),
    ("RU009", growing(count=29)),
]
NOT_APPLICABLE = [
    ("RU006", on_host()),
    ("RU007", on_host()),
    ("RU008", on_host()),
    ("RU008", replace(facts(), logs=LogFacts(alone=False))),
]
#: Just fires, just does not.
THRESHOLDS = {
    ("RU001", "smallest_share"): (pausing(0.0223), pausing(0.02 - JUST)),
    ("RU002", "smallest_share"): (pausing(0.05, "logging"), pausing(0.05 - JUST, "logging")),
    ("RU005", "steal_ratio"): (contended(**{**QUIET, "steal": 0.02 + JUST}), contended(**{**QUIET, "steal": 0.02})),
    ("RU005", "pressure_ratio"): (contended(cpu_pressure=0.20 + JUST), contended(cpu_pressure=0.20)),
    ("RU005", "throttled_ratio"): (contended(cpu_throttled=0.01 + JUST), contended(cpu_throttled=0.01)),
    ("RU005", "queue_ratio"): (contended(thread_queue=0.10 + JUST), contended(thread_queue=0.10)),
    ("RU005", "own_ratio"): (contended(own=6.4 - JUST, cpu_pressure=0.9), contended(own=6.4, cpu_pressure=0.9)),
    ("RU009", "smallest_growth"): (growing(1.23), growing(1.17)),
    ("RU008", "idle_ratio"): (resting(0.10), resting(0.10 - JUST)),
}
TRIED_BELOW = {
    ("RU001", "background_ratio"),
    ("RU001", "device_hours_between_failures"),
    ("RU001", "hours_between_failures"),
    ("RU001", "longer_interval"),
    ("RU001", "fewest_steps"),
    ("RU002", "rarer_ratio"),
    ("RU002", "batched_ratio"),
    ("RU002", "fewest_steps"),
    ("RU005", "fewest_samples"),
    ("RU007", "fewest_samples"),
}


@pytest.mark.parametrize(("code", "known"), FIRES)
def test_the_rule_fires(code, known):
    contract.fires(code, known)


@pytest.mark.parametrize(("code", "known"), PASSES)
def test_the_rule_passes_with_the_number_that_says_so(code, known):
    contract.passes(code, known)


@pytest.mark.parametrize(("code", "known"), MISSING)
def test_the_rule_abstains_without_its_signal_and_says_how_to_record_it(code, known):
    contract.abstains(code, known)


@pytest.mark.parametrize(("code", "known"), NOT_APPLICABLE)
def test_the_rule_is_not_about_runs_without_its_subject(code, known):
    contract.is_not_applicable(code, known)


@pytest.mark.parametrize(("code", "known"), [row for row in FIRES if row[0] != "RU002"])
def test_no_rule_speaks_within_the_noise_of_the_step_time(code, known):
    contract.keeps_silent_within_the_noise(code, known)


@pytest.mark.parametrize(("code", "option"), THRESHOLDS)
def test_a_threshold_lies_where_it_says(code, option):
    above, below = THRESHOLDS[code, option]
    assert ended(code, above) is Fired
    assert ended(code, below) is Passed


def test_every_threshold_is_tried_on_both_sides():
    assert set(THRESHOLDS) | TRIED_BELOW == contract.options({code for code, _ in FIRES})


# RU001


def test_a_checkpoint_leaves_a_tenth_of_itself_in_the_loop():
    assert finding("RU001", stalling(0.1)).saving.expected == pytest.approx(0.09)
    assert finding("RU001", stalling(0.1), background_ratio=0.5).saving.expected == pytest.approx(0.05)


def test_the_record_of_the_whole_run_goes_before_the_judged_steps():
    stalls = stalling(0.3).stalls
    found = finding("RU001", pausing(0.04, count=2, apart=100, stalls=stalls))
    assert found.saving.high == pytest.approx(0.04)
    assert found.title == "Checkpoint stops training for 20.0 ms every 100 steps"
    assert [entry.n for entry in found.evidence] == [2, 200, 2]
    assert found.evidence[2].value == 100


def test_what_a_device_works_through_meanwhile_is_not_lost():
    hidden = facts({"other.ckpt": 0.04}, pauses=pausing(0.1).pauses)
    found = finding("RU001", hidden)
    assert (found.saving.expected, found.saving.high) == (pytest.approx(0.036), pytest.approx(0.04))
    assert ended("RU001", facts({"other.ckpt": 0.01}, pauses=pausing(0.1).pauses)) is Passed
    logged = facts({"other.log": 0.06}, pauses=pausing(0.1, "logging").pauses)
    assert finding("RU002", logged).saving.high == pytest.approx(0.06)
    assert finding("RU001", on_host({"other.ckpt": 0.04}, pauses=pausing(0.1).pauses)).saving.high == pytest.approx(0.1)


def test_a_single_checkpoint_has_no_distance():
    found = finding("RU001", pausing(0.1, count=1, apart=100))
    assert found.title == "Checkpoint stops training for 100 ms once"
    assert "→ a background thread." in found.fix.text
    assert "every" not in found.fix.text


def test_what_stops_training_once_among_more_in_the_run_says_so():
    known = pausing(0.1, "evaluation", count=1, apart=100)
    found = finding("RU002", replace(known, pauses=(replace(known.pauses[0], run_count=2),)))
    assert found.title == "Evaluation stops training for 100 ms once among steps, 2 in the run"
    assert "What came before the first of them, or after the last, is not in it." in found.why
    assert "is not in it" not in finding("RU002", known).why


def test_the_interval_is_youngs_where_that_is_longer_than_the_runs():
    # 10 ms each, a day between failures: every sqrt(2 * 0.01 * 86,400) = 41.6 s, of steps of 90 ms.
    text = finding("RU001", pausing(0.1, count=10)).fix.text
    assert "every 10 → 460 steps" in text
    assert "every 24 hours" in text
    many = finding("RU001", pausing(0.1, count=10, world_size=10_000)).fix.text
    assert "every 10 → 210 steps, which loses least if the run fails every 5 hours" in many


@pytest.mark.parametrize(("hours", "said"), [(1.0, True), (0.001, False)])
def test_checkpoints_that_are_rare_already_are_not_made_rarer(hours, said):
    found = finding("RU001", pausing(0.1), device_hours_between_failures=hours)
    assert ("which loses least" in found.fix.text) is said


def test_a_slightly_longer_interval_is_not_worth_naming():
    # 25 ms each, steps of 90 ms: sqrt(2 * 0.025 * 32.4) / 0.09 = 14.1 steps.
    hours = 32.4 / 3_600
    assert "loses least" not in finding("RU001", pausing(0.1), device_hours_between_failures=hours).fix.text
    found = finding("RU001", pausing(0.1), device_hours_between_failures=hours, longer_interval=1.4)
    assert "every 10 → 14 steps" in found.fix.text


@pytest.mark.parametrize("code", ["RU001", "RU002"])
def test_twenty_steps_are_needed_to_say_that_nothing_recurs(code):
    assert ended(code, facts(steps=steps(19, count=20))) is Passed
    assert ended(code, facts(steps=steps(18, count=19))) is MissingData
    assert ended(code, facts(steps=steps(18, count=19)), fewest_steps=19) is Passed


@pytest.mark.parametrize(("code", "least"), [("RU001", "20 steps"), ("RU002", "20 steps"), ("ME004", "20 s")])
def test_a_run_that_was_recorded_whole_is_asked_to_go_on_and_not_to_be_recorded(code, least):
    known = replace(facts(steady=8), memory=Memory())
    assert check(code, known).hint == "record the whole run: profilerkit.profile(...)"
    timed = revise(known.trust, signals=(Signal(name=STEP_TIMERS, state="measured"),))
    assert check(code, replace(known, trust=timed)).hint == f"let the run go on for at least {least}"


# RU002


@pytest.mark.parametrize("kind", ["evaluation", "logging", "unnamed", "ema update"])
def test_other_stalls_can_be_made_half_as_frequent(kind):
    assert finding("RU002", stalling(0.1, kind=kind)).saving.expected == pytest.approx(0.05)
    assert finding("RU002", stalling(0.1, kind=kind), rarer_ratio=0.9).saving.expected == pytest.approx(0.09)


def test_each_kind_of_stop_is_told_by_its_own_rule():
    both = (*stalling(0.1).stalls, *stalling(0.2, kind="evaluation", part="other.eval").stalls)
    assert finding("RU001", facts(stalls=both)).detail == "checkpoint"
    assert finding("RU002", facts(stalls=both)).detail == "evaluation"


def test_the_fix_names_the_distance_and_twice_that():
    known = stalling(0.2, kind="logging", part="other.log")
    assert finding("RU002", known).fix.text == "Log every 10 → 20 steps, or from a background thread."
    never = replace(known, stalls=(replace(known.stalls[0], period=None),))
    assert finding("RU002", never).fix.text == "Log half as often, or from a background thread."


def test_a_phase_of_every_step_is_said_to_be_in_every_step():
    known = stalling(0.2, kind="logging", part="other.log")
    every = replace(known, stalls=(replace(known.stalls[0], period=1),))
    assert finding("RU002", every).title == "Logging stops training for 300 ms in every step"
    assert finding("RU002", known).title.endswith("every 10 steps")


@pytest.mark.parametrize("known", [stalling(0.5, kind="unnamed"), pausing(0.1, "evaluation", inferred=True)])
def test_steps_that_vary_do_not_hide_a_stop(known):
    assert finding("RU002", replace(known, step_error_ns=0.5 * known.step_ns)).saving.high >= 0.1


def test_a_stall_without_a_name_is_less_sure_and_asks_for_one():
    found = finding("RU002", stalling(0.1, kind="unnamed", part=None, source="derived"))
    assert found.confidence == "medium"
    assert "prof.phase" in found.fix.code


def test_a_stop_of_a_loop_without_a_loader_may_be_the_rollout_that_feeds_it():
    known = stalling(0.1, kind="unnamed", part=None, source="derived")
    assert "rollout" in finding("RU002", replace(known, input=None)).fix.text
    assert "rollout" not in finding("RU002", replace(known, input=INPUT)).fix.text


def test_a_long_stop_that_recurs_in_a_loop_without_a_loader_is_a_rollout():
    model = HotLine(("ppo.py(9): collect",), 0.1, 0.05, 0.2, 60)
    known = replace(stalling(0.5, kind="unnamed", part=None, source="derived"), input=None, lines={"model": model})
    found = finding("RU002", known)
    assert (found.detail, found.title) == ("rollout", "What is likely a rollout takes 300 ms every 10 steps")
    assert (found.saving.method, found.saving.high) == ("bound", 0.5)
    assert finding("RU002", replace(known, input=INPUT)).detail == "python"
    named = replace(stalling(0.5, kind="evaluation", part="other.eval"), input=None)
    assert finding("RU002", named).detail == "evaluation"
    assert finding("RU002", replace(known, stalls=stalling(0.15, kind="unnamed", part=None).stalls)).detail == "python"
    seldom = HotLine(model.frames, 0.1 - JUST, 0.05, 0.2, 60)
    assert finding("RU002", replace(known, lines={"model": seldom})).detail == "python"
    assert finding("RU002", replace(known, lines={})).detail == "python"


def test_evaluation_that_nobody_named_is_told_once_and_less_sure():
    unnamed = Stall(
        kind="unnamed", part=None, count=4, period=10, excess_ns=25.0 * MS, share=0.1, source="derived", steps=(9, 39)
    )
    known = pausing(0.1, "evaluation", inferred=True, stalls=(unnamed,))
    found = finding("RU002", known)
    assert (found.detail, found.confidence) == ("evaluation", "medium")
    other = replace(unnamed, excess_ns=51.0 * MS)  # more than twice as long as the evaluation
    assert len(check("RU002", replace(known, stalls=(other,))).findings) == 2
    named = replace(known.pauses[0], inferred=False)
    assert len(check("RU002", replace(known, pauses=(named,))).findings) == 2


def test_an_evaluation_is_made_cheaper_before_it_is_made_rarer():
    known = pausing(0.5, "evaluation", inferred=True)
    costly = replace(known.pauses[0], batches=500.0, records_graphs=True)
    found = finding("RU002", replace(known, pauses=(costly,)))
    assert found.fix.text.startswith("Evaluate under torch.no_grad()")
    assert "larger batches" in found.fix.text
    assert found.saving.expected == pytest.approx(0.45)
    longer = replace(costly, batches=200.0)  # of 0.6 ms each
    assert finding("RU002", replace(known, pauses=(longer,))).saving.expected == pytest.approx(0.25)
    assert "no_grad" in found.fix.code
    assert "no_grad" not in finding("RU002", known).fix.text


def test_evaluation_that_has_no_part_of_its_own_is_not_called_unexplained():
    pauses = pausing(0.35, "evaluation", inferred=True).pauses
    known = facts({"idle.unknown": 0.4}, pauses=pauses)
    found = diagnose(known, run_rules(known, RULES))
    assert (found.bound, found.detail) == ("overhead-bound", "evaluation")
    unknown = facts({"idle.unknown": 0.4})
    assert diagnose(unknown, run_rules(unknown, RULES)).detail == "likely"
    both = facts({"idle.unknown": 0.4, "other.stall": 0.2}, pauses=pauses)  # the stall took 20 of the 35 points
    assert diagnose(both, run_rules(both, RULES)).confidence == "low"


def test_a_stall_too_small_to_fix_is_not_denied():
    assert "the largest stop costs 3.0 %" in check("RU002", stalling(0.03, kind="logging")).reason


def test_where_the_time_of_an_unnamed_stall_goes_is_told():
    known = stalling(0.1, kind="unnamed", part=None, source="derived")
    grown = replace(known, stalls=(replace(known.stalls[0], grew="over.python", coverage=0.8),))
    assert "80 % of it is in one part: Python between operators" in finding("RU002", grown).why
    assert "part" not in finding("RU002", known).why


@pytest.mark.parametrize("code", ["RU001", "RU002"])
def test_a_share_of_more_than_the_judged_steps_says_of_which(code):
    kind = {"RU001": "checkpoint", "RU002": "logging"}[code]
    assert "all 40 recorded steps, not only the 36 judged ones, that is 10 %" in (
        finding(code, pausing(0.1, kind, steady=36)).why
    )
    assert "Spread over all steps that is 10 %" in finding(code, pausing(0.1, kind, steady=40)).why


# RU004


def test_slow_steps_that_are_pauses_of_the_recorded_run_are_not_told_twice():
    pauses = pausing(0.09, "evaluation", inferred=True).pauses
    assert ended("RU004", uneven(share=0.1, pauses=pauses)) is Passed
    assert ended("RU004", uneven(share=0.2, pauses=pauses)) is Fired


# RU005


def test_what_takes_the_processors_decides_the_fix():
    texts = {
        name: finding("RU005", contended(**{name: 0.5})).fix.text
        for name in ("steal", "cpu_throttled", "cpu_pressure", "thread_queue")
    }
    assert "not lent to other guests" in texts["steal"]
    assert texts["cpu_throttled"] == "Raise the quota of 8 cores."
    assert texts["cpu_pressure"] == texts["thread_queue"] == "Stop or move what else runs on this host."


def test_a_run_that_takes_all_of_its_cores_waits_for_itself():
    assert "itself uses 7 of the 8 cores in use" in check("RU005", contended(own=7.0, cpu_pressure=0.9)).reason
    workers = ratio("host.worker_cores", 3.0)
    known = contended(own=4.0, cpu_pressure=0.9)
    assert ended("RU005", known) is Fired
    assert ended("RU005", replace(known, samples=(*known.samples, workers))) is Passed
    # Where other cores are idle, those in use are the run's.
    idle = replace(known, samples=(*known.samples, ratio("host.cpu", 0.6)))
    assert ended("RU005", idle) is Fired
    assert ended("RU005", replace(idle, has_whole_host=True)) is Passed
    # What the hypervisor or a quota takes is not the run's own doing.
    assert ended("RU005", contended(own=7.0, steal=0.1)) is Fired


def test_the_worst_is_the_title_and_nothing_is_saved():
    found = finding("RU005", contended(own=2.0, steal=0.05, cpu_pressure=0.6))
    assert found.title == "Some task waits for a processor: 60 % of the time"
    assert [entry.value for entry in found.evidence[2:]] == [2.0, 8.0]
    assert (found.bound, found.saving) == (None, None)
    assert "The run itself uses 2 of its 8 cores." in found.why


def test_what_other_programs_take_bounds_no_program():
    waiting = ratio("host.thread_queue", 0.4), ratio("host.cpu_pressure", 0.9)
    known = on_host({"compute.other": 0.95}, samples=(*waiting, ratio("host.process_cores", 1.0)), usable_cores=8.0)
    found = finding("RU005", known)
    assert found.title in {
        "The training thread waits for a processor: 40 % of the time",
        "Some task waits for a processor: 90 % of the time",
    }
    assert (found.bound, found.saving) == (None, None)
    assert "Stop or move what else runs" in found.fix.text


def test_the_wait_of_the_training_thread_is_that_of_the_judged_steps_where_it_is_known():
    waited = ratio("host.thread_queue", 0.49), ratio("host.process_cores", 1.0)
    known = on_host({"compute.other": 0.95}, samples=waited, usable_cores=8.0)
    steady = round(5e9 / known.mean_step_ns)
    judged = replace(known, steps=revise(known.steps, queued_ratio=0.32, steady=steady))
    found = finding("RU005", judged)
    assert found.title == "The training thread waits for a processor: 32 % of the time"
    assert (found.evidence[0].source, found.evidence[0].low) == ("derived", None)
    assert "49 %" in finding("RU005", known).title
    assert found.why.startswith("In the judged steps; 49 % over all samples.")
    assert ended("RU005", replace(known, steps=revise(known.steps, queued_ratio=0.1, steady=steady))) is Passed
    few = revise(known.steps, queued_ratio=0.1, steady=steady - 1)
    assert ended("RU005", replace(known, steps=few)) is Fired


def test_a_few_seconds_of_samples_are_needed():
    assert ended("RU005", contended(n=5, steal=0.1)) is Fired
    assert ended("RU005", contended(n=4, steal=0.1)) is MissingData
    # The steal of one moment says nothing, whatever else was sampled for longer.
    known = contended(cpu_pressure=0.0)
    assert ended("RU005", replace(known, samples=(*known.samples, ratio("host.steal", 1.0, n=1)))) is Passed


def test_what_waits_is_not_laid_to_others_while_the_runs_own_cores_are_not_known():
    for unknown in (contended(None, cpu_pressure=0.9), contended(cores=None, thread_queue=0.9)):
        assert "run itself uses was not sampled" in check("RU005", unknown).reason
        assert ended("RU005", unknown) is MissingData
    known = contended(cpu_pressure=0.9)
    assert ended("RU005", replace(known, loader=Loader(kind="DataLoader", num_workers=4))) is MissingData
    assert finding("RU005", contended(None, cpu_pressure=0.9, steal=0.1)).title.startswith("Processor time taken")
    assert ended("RU005", contended(None, cpu_pressure=0.1)) is Passed


# RU006


def test_strangers_on_the_device_are_counted_with_what_they_hold():
    found = finding("RU006", shared(2, held=3 << 30))
    assert found.title == "2 other processes use the same device and 3.00 GiB of its memory"
    assert (found.bound, found.saving, found.confidence) == (None, None, "high")
    assert finding("RU006", shared()).title == "1 other process uses the same device"


def test_other_ranks_of_the_run_are_no_strangers():
    assert "with 3 other processes of it" in check("RU006", shared(0, siblings=3)).reason


def test_no_command_changes_the_device_for_those_who_share_it():
    fix = finding("RU006", shared(siblings=3)).fix
    assert (fix.code, "MIG slice" in fix.text) == ("", True)


# RU007


@pytest.mark.parametrize(
    ("generation", "width", "rate", "change"),
    [
        (3, 16, "50 %", "generation 3 → 4"),
        (4, 8, "50 %", "lanes 8 → 16"),
        (3, 8, "25 %", "generation 3 → 4, lanes 8 → 16"),
        (1, 16, "13 %", "generation 1 → 4"),
    ],
)
def test_the_rate_of_a_link_follows_from_generation_and_lanes(generation, width, rate, change):
    found = finding("RU007", linked(generation, width))
    assert found.title == f"The PCIe link runs at {rate} of its rate"
    assert found.fix.text.startswith(f"PCIe {change}: reseat")


def test_the_bound_is_what_the_copies_would_lose():
    found = finding("RU007", linked(4, 4, share=0.2))
    assert (found.saving.expected, found.saving.high) == (0.0, pytest.approx(0.15))
    assert (found.bound, found.saving.method) == (None, "bound")
    assert finding("RU007", linked(share=0.01)).saving is None


def test_some_busy_samples_are_needed():
    assert ended("RU007", linked(samples=5)) is Fired
    assert ended("RU007", linked(samples=4)) is MissingData


# RU008


def test_idle_time_is_told_as_it_comes():
    for known, said in (
        (resting(), ": for 12 s every 60 s"),
        (resting(sample_ns=None), ": for 12 samples every 60 samples"),
        (resting(period=None), ", most of it in 9 stretches of about 12 s"),
        (resting(period=None, within=0.0), ", in waits shorter than a sample"),
    ):
        found = finding("RU008", known)
        assert found.title == f"GPU 3 is idle 30 % of the time{said}"
        assert (found.bound, found.fix.code) == (None, "profilerkit run -- train.py")


# RU009


@pytest.mark.parametrize(
    ("part", "bound", "word"),
    [
        ("compute.other", "compute-bound", "graph kept over steps"),
        ("input.fetch", "input-bound", "data set"),
        ("over.gc", "overhead-bound", "collects objects"),
    ],
)
def test_growing_steps_bound_the_run_by_the_part_that_grows(part, bound, word):
    known = growing(4.0, part=part)
    found = finding("RU009", known)
    assert (found.bound, found.detail) == (bound, "growing")
    assert found.title.startswith("Steps get longer: 1")
    assert word in found.fix.text
    assert found.saving.expected == pytest.approx(1 - 107 / 250, abs=0.03)
    verdict = diagnose(known, run_rules(known, RULES))
    assert (verdict.bound, verdict.detail) == (bound, "growing")
    assert "in one part" in found.why


@pytest.mark.parametrize(
    ("stages", "bound", "where", "word"),
    [
        (
            {"after": 0.9},
            "overhead-bound",
            "90 % of the growth is between the optimizer step and the next batch",
            "metric",
        ),
        ({"forward": 0.9}, None, "from the batch to the backward pass", "forward pass"),
        ({"loop": 0.9}, None, "outside of backward pass and optimizer step", "metric"),
        ({"optimizer": 0.9}, "compute-bound", "in the optimizer step", "parameters"),
        ({"backward": 0.65, "forward": 0.35}, "compute-bound", "in the backward pass", "sequences"),
        ({"backward": 0.5, "forward": 0.5}, None, "No part that was timed", "sequences"),
        ({}, None, "No part that was timed", "sequences"),
    ],
)
def test_the_stage_that_grows_bounds_the_run_and_without_one_nothing_does(stages, bound, where, word):
    found = finding("RU009", growing(4.0, stages=stages, mode="cpu"))
    assert (found.bound, found.detail) == (bound, "growing")
    assert where in found.why
    assert word in found.fix.text
    assert found.fix.code == ""  # nothing says that a graph is kept


def test_a_graph_is_kept_where_the_backward_pass_grows_alone_or_memory_with_it():
    limit = 5 / 6
    assert "detach" in finding("RU009", growing(4.0, stages={"backward": limit + JUST}, mode="cpu")).fix.code
    assert finding("RU009", growing(4.0, stages={"backward": limit - JUST}, mode="cpu")).fix.code == ""
    kept = growing(4.0, stages={"backward": 0.7}, memory=Memory(growth=(GROWS,)), mode="cpu")
    assert "detach" in finding("RU009", kept).fix.code
    metric = growing(4.0, stages={"after": 0.9}, memory=Memory(growth=(GROWS,)), mode="cpu")
    assert finding("RU009", metric).fix.code == ""


def test_where_a_device_works_the_hosts_stages_tell_nothing():
    found = finding("RU009", growing(4.0, stages={"after": 0.9}))
    assert (found.bound, "No part that was timed" in found.why) == (None, True)


def test_steps_that_take_longer_from_one_step_on_are_shown_without_a_fix():
    found = finding("RU009", growing(2.0, shape=lambda x: np.where(x < 0.4, 0.0, 1.0)))
    assert found.title == "Steps take longer from step 24 on: 100 ms before, 200 ms after"
    assert (found.bound, found.fix, found.saving, found.detail) == (None, None, None, "jump")


def test_the_line_that_grows_is_named():
    line = HotLine(("train.py(9): main", "train.py(4): metric"), 0.8, 0.7, 0.9, 40)
    found = finding("RU009", replace(growing(4.0), lines={"growing": line}))
    assert found.title.startswith("Steps get longer in metric (train.py:4): ")
    assert found.fix.text.startswith("Look first in metric (train.py:4). ")
    assert found.line.line == 4


def test_where_memory_grows_with_the_steps_a_graph_is_kept():
    assert "retain_graph" in finding("RU009", growing(4.0, memory=Memory(growth=(GROWS,)))).fix.text


@pytest.mark.parametrize(
    "shape",
    [lambda x: np.minimum(3 * x, 1.0), lambda x: np.sin(40 * x)],
    ids=["it settles", "it wanders"],
)
def test_steps_that_stopped_growing_are_not_called_growing(shape):
    assert ended("RU009", growing(2.0, shape=shape)) is Passed


def test_a_machine_that_gets_busier_makes_no_growing_steps():
    assert ended("RU009", growing(1.5, taken=0.6)) is Passed
    assert ended("RU009", growing(2.4, taken=0.6)) is Passed  # a queue of 60 % makes a step 2.5 times as long
    assert ended("RU009", growing(3.0, taken=0.6)) is Fired


def test_growth_on_a_busy_machine_has_low_confidence():
    assert finding("RU009", growing(4.0, taken=0.1)).confidence == "low"
    assert finding("RU009", growing(4.0, taken=0.1 - JUST)).confidence == "medium"
    jump = {"shape": lambda x: np.where(x < 0.4, 0.0, 1.0)}
    assert [finding("RU009", growing(4.0, taken=taken, **jump)).confidence for taken in (0.1, 0.0)] == ["low", "medium"]


# RU009 on a machine that gets busier


def test_a_machine_that_gets_busier_is_no_growth_of_the_program():
    assert ended("RU009", crowded(2.0, computed=1.0)) is Passed  # all of it is waiting for a processor
    assert ended("RU009", crowded(3.0, computed=1.0, queue=0.3)) is Passed  # other threads of the program wait as well
    assert ended("RU009", crowded(3.0, computed=2.1, queue=0.3)) is Fired
    whole, part = (finding("RU009", crowded(3.0, computed=ratio, queue=0.3)).saving.expected for ratio in (2.1, 1.6))
    assert part < whole  # what the machine took is not won back
    assert "0 %" not in check("RU009", crowded(3.0, computed=1.0, queue=0.3)).reason
    alike = crowded(2.0, computed=1.0, queue=0.01)
    assert ended("RU009", alike) is Fired  # no busier: what waits for a disk takes no CPU time
    assert ended("RU009", replace(alike, taken=0.3)) is Passed
    waiting = replace(growing(3.0, part="input.fetch", mode="cpu"), taken=0.3)  # for workers that queue
    assert "other programs" in check("RU009", waiting).reason
