"""Two reports compared: what is real, what is noise, what cannot be compared."""

import doctest
import importlib
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from profilerkit.api import analyze
from profilerkit.compare import compare
from profilerkit.compare.gates import judge_budget, parse_budget, parse_limit
from profilerkit.compare.steps import (
    FEWEST_STEPS,
    SMALLEST_RATIO,
    foreign_ratio,
    resampled_mean,
    step_change,
    timed_steps,
)
from profilerkit.compare.verdict import headline, judgement
from profilerkit.errors import UsageError
from profilerkit.model.diff import Range
from profilerkit.model.finding import Evidence, Finding, Fix, Saving, SettingChange
from profilerkit.model.memory import Memory
from profilerkit.model.run import Loader
from profilerkit.model.verdict import RuledOut
from profilerkit.report.diff_document import document_of_diff
from tests.comparisons import MS, STEP_MS, host_samples, parts_of, report_of, times_of, verdict_of
from tests.recipes import Log, write_run

MODULES = ("steps", "gates", "parts")


@pytest.mark.parametrize("module", MODULES)
def test_examples_hold(module):
    result = doctest.testmod(importlib.import_module(f"profilerkit.compare.{module}"))
    assert result.attempted > 0
    assert result.failed == 0


WORKERS = "More workers, and keep them."
#: The settings of fixes by their texts, which say nothing of them: words may change.
SETTINGS = {WORKERS: (SettingChange("num_workers", 0, 4),)}


def finding(severity="high", expected=0.2, fix="", bound="input-bound", changes=(), **fields):
    evidence = Evidence(label="wait", value=1.0, unit="ns", source="measured", origin="x")
    saving = Saving(low=expected - 0.05, expected=expected, high=expected + 0.05, method="analytic")
    return Finding(
        title="The loader is slow",
        bound=bound,
        confidence="high",
        severity=severity,
        why="x",
        evidence=(evidence,),
        saving=saving,
        fix=Fix(text=fix, changes=changes or SETTINGS.get(fix, ())) if fix else None,
        **fields,
    )


def about(what, title, **fields):
    made = finding(**fields)
    return replace(made, title=title, evidence=(replace(made.evidence[0], label=f"{what}, time per occurrence"),))


# The step.


@pytest.mark.parametrize("seed", range(20))
def test_two_recordings_of_one_program_do_not_differ(seed):
    before, after = report_of(times_of(seed=2 * seed)), report_of(times_of(seed=2 * seed + 1))
    assert verdict_of(before, after) == "no real change"


@pytest.mark.parametrize("seed", range(20))
def test_a_tenth_more_is_found_and_a_tenth_less(seed):
    before, after = report_of(times_of(seed=2 * seed)), report_of(times_of(1.1 * STEP_MS, seed=2 * seed + 1))
    assert verdict_of(before, after) == "slower"
    assert verdict_of(after, before) == "faster"


def test_equal_reports_do_not_differ():
    diff = compare(report_of(), report_of())
    assert diff.verdict == "no real change"
    assert diff.step.judged.expected == 0.0
    assert diff.differences == ()
    assert diff.headline.startswith("No real change: ")
    assert diff.step.judged.low < 0 < diff.step.judged.high


def test_a_change_below_what_is_worth_naming_is_none_however_sure_it_is():
    steady = [30 * MS] * 240
    many = [report_of(steady)] * 12
    above, below = 1 + SMALLEST_RATIO + 0.002, 1 + SMALLEST_RATIO - 0.002

    def judged(scale):
        longer = [report_of([round(scale * 30 * MS)] * 240)] * 12
        return verdict_of(many[0], longer[0], also_before=many[1:], also_after=longer[1:])

    assert judged(below) == "no real change"
    assert judged(above) == "slower"


def test_one_recording_of_each_cannot_show_what_differs_from_run_to_run():
    diff = compare(report_of([30 * MS] * 240), report_of([31 * MS] * 240))
    assert diff.step.judged.expected == pytest.approx(1 / 30)
    assert diff.verdict == "no real change"
    assert 0.03 < diff.step.visible_ratio < 0.06


def test_waiting_for_a_processor_that_others_had_is_no_change_of_the_program():
    quiet = times_of()
    busy = [round(time_ns / 0.7) for time_ns in times_of(seed=1)]
    diff = compare(report_of(quiet, queued=0.0), report_of(busy, queued=0.3))
    assert diff.step.mean.expected > 0.4
    assert abs(diff.step.judged.expected) < 0.2
    assert diff.verdict == "no real change"
    assert (
        "for 0 % of the time before and 30 % after; this is subtracted. As timed the step changed by +4"
        in diff.notes[0]
    )


def test_the_times_shown_are_derived_and_the_correction_is_called_estimated():
    diff = compare(report_of([30 * MS] * 240, queued=0.5), report_of([30 * MS] * 240))
    assert diff.step.own_before_ns == pytest.approx(15 * MS)
    assert diff.step.quiet_before_ns == pytest.approx(15 * MS * math.exp(-0.4 * 0.5))
    assert diff.headline.startswith("The step takes 144 % longer: an estimated 12.3 ms → 30.0 ms without what other")
    assert (
        "Without the waiting it is 15.0 ms → 30.0 ms; the estimated cost of cold caches is subtracted" in diff.notes[0]
    )


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [
        (-0.05, 0.04, "No real change"),
        (-0.04, 0.05, "No real change"),
        (-0.04, 0.051, "No measurable change"),
        (-0.051, 0.04, "No measurable change"),
        (-0.3, 0.1, "No measurable change"),
    ],
)
def test_no_change_is_told_from_one_that_cannot_be_told(low, high, said):
    diff = compare(report_of(), report_of())
    step = replace(diff.step, judged=Range(low=low, expected=0.001, high=high))
    assert headline("no real change", step, (), (diff.before, diff.after), ()).startswith(said)
    word = document_of_diff(replace(diff, step=step, verdict="no real change")).first.word
    assert said.upper() in word


def test_a_change_that_only_the_correction_sees_is_none():
    step = replace(
        compare(report_of(), report_of(times_of(1.2 * STEP_MS, seed=1))).step, own_before_ns=30.0, own_after_ns=30.5
    )
    assert judgement(step, ()) == "no real change"
    assert judgement(replace(step, own_after_ns=31.0), ()) == "slower"


def test_a_busy_host_hides_smaller_changes():
    quiet, busy = (compare(report_of(queued=q), report_of(queued=q)).step.visible_ratio for q in (0.0, 0.3))
    assert busy > 2 * quiet


def test_where_waiting_is_not_known_on_one_side_it_is_taken_out_on_neither():
    diff = compare(report_of(queued=0.3), report_of(queued=None))
    assert diff.step.judged.expected == 0.0
    assert diff.step.judged.high > compare(report_of(), report_of()).step.judged.high
    assert any("was not recorded on both sides" in note for note in diff.notes)


def test_a_run_that_fills_the_processors_waits_for_itself():
    own = host_samples(cpu=1.0, process_cores=0.5, worker_cores=1.5, thread_queue=0.4)
    foreign = host_samples(cpu=1.0, process_cores=0.5, thread_queue=0.4)
    assert foreign_ratio(report_of(samples=own)) == 0.0
    assert foreign_ratio(report_of(samples=foreign)) == 1.0
    half = host_samples(cpu=1.0, process_cores=0.5, worker_cores=0.75, thread_queue=0.4)
    assert foreign_ratio(report_of(samples=half)) == 0.5
    assert foreign_ratio(report_of()) == 1.0
    slow = [round(time_ns / 0.7) for time_ns in times_of(seed=1)]
    assert verdict_of(report_of(), report_of(slow, queued=0.3, samples=own)) == "slower"


def test_ranks_of_one_job_that_fill_the_processors_wait_for_each_other():
    share = {"world_size": 4, "host_ranks": 4}
    alone = host_samples(cpu=0.6, process_cores=0.3, thread_queue=0.02)
    full = host_samples(cpu=1.0, process_cores=0.5, thread_queue=0.5)
    siblings = host_samples(sibling_cores=7.5)
    assert foreign_ratio(report_of(samples=full, **share)) is None
    assert foreign_ratio(report_of(samples=(*full, *siblings), **share)) == 0.0
    before = report_of(queued=0.02, samples=(*alone, *siblings), **share)
    slow = times_of(56, seed=3)
    after = report_of(slow, queued=0.5, samples=(*full, *siblings), **share)
    assert verdict_of(before, after) == "slower"
    unknown = compare(before, report_of(slow, queued=0.5, samples=full, **share))
    assert unknown.step.mean.expected == pytest.approx(unknown.step.judged.expected) == pytest.approx(0.87, abs=0.02)
    assert unknown.step.visible_ratio > 0.5
    assert "not every rank was sampled" in unknown.notes[0]


def test_on_a_device_waiting_is_not_taken_out_but_hides_what_it_may_have_caused():
    known = {"devices": ("NVIDIA H100",)}

    def diff(queued):
        return compare(
            report_of(queued=0.0, **known), report_of(times_of(1.1 * STEP_MS, seed=1), queued=queued, **known)
        )

    assert diff(0.0).verdict == "slower"
    assert diff(0.2).verdict == "no real change"
    assert diff(0.2).step.judged.expected == pytest.approx(diff(0.2).step.mean.expected)
    assert "because the device may or may not have waited for it" in diff(0.2).notes[0]


def test_pressure_on_the_processors_hides_more_where_steps_wait_for_workers():
    parts = {"compute.math": 0.4, "input.prep": 0.6}
    workers = {"parts": parts, "loader": loader(2)}
    calm, pressed = (
        compare(report_of(**workers, samples=samples), report_of(**workers, samples=samples)).step.visible_ratio
        for samples in (host_samples(cpu_pressure=0.0), host_samples(cpu_pressure=0.6))
    )
    assert pressed > 3 * calm
    alone = report_of(parts=parts, samples=host_samples(cpu_pressure=0.6))
    assert compare(alone, alone).step.visible_ratio == pytest.approx(calm)


def test_operators_threads_that_wait_for_others_hide_what_that_may_have_caused():
    def diff(before, after, *, factor=2.0, queued=0.5, **samples):
        cores = {"cpu": 1.0, "process_cores": 0.6, "thread_queue": queued, **samples}
        slow = times_of(factor * STEP_MS, seed=1)
        calm = report_of(queued=queued, samples=host_samples(**cores, pool_queue=before))
        return compare(calm, report_of(slow, queued=queued, samples=host_samples(**cores, pool_queue=after)))

    assert diff(0.0, 0.0).verdict == diff(0.0, 0.6, worker_cores=1.4).verdict == "slower"
    assert diff(0.1, 0.1, factor=1.5, queued=0.0).verdict == "slower"
    for hidden in (diff(0.0, 0.6), diff(0.6, 0.6), diff(0.6, 0.6, queued=0.0)):
        assert hidden.verdict == "no real change"
        assert any("kept threads of operators waiting, too" in note for note in hidden.notes)
        assert not any(row.is_real for row in hidden.parts)


def test_a_run_that_failed_is_named_before_its_numbers_are():
    notes = compare(report_of(), report_of(ending="failed")).notes
    assert notes[0] == "The run after failed: its steps may not be those of a whole run."


def test_more_recordings_show_smaller_changes():
    def side(scale, seeds):
        return [report_of(times_of(scale * STEP_MS, seed=seed)) for seed in seeds]

    before, after = side(1.0, range(5)), side(1.04, range(5, 10))
    assert verdict_of(before[0], after[0]) == "no real change"
    diff = compare(before[0], after[0], also_before=before[1:], also_after=after[1:])
    assert diff.verdict == "slower"
    assert (diff.before.recordings, diff.after.recordings) == (5, 5)
    assert "From 5 and 5 recordings" in " ".join(diff.notes)


def test_recordings_that_differ_more_than_was_assumed_widen_the_interval():
    alike = [timed_steps(report_of(times_of(seed=seed))) for seed in range(4)]
    apart = [timed_steps(report_of(times_of(ms, seed=seed))) for seed, ms in enumerate((24, 30, 36, 30))]
    assert step_change(apart, alike).visible_ratio > 2 * step_change(alike, alike).visible_ratio


def test_blocks_see_that_neighbours_are_alike():
    alike = [30 * MS + (6 * MS if number // 40 % 2 else 0) for number in range(480)]
    mixed = [30 * MS + (6 * MS if number % 2 else 0) for number in range(480)]
    assert resampled_mean(alike).centre_ns == resampled_mean(mixed).centre_ns
    assert resampled_mean(alike).error_ns > 3 * resampled_mean(mixed).error_ns


def test_the_interval_of_independent_steps_is_that_of_their_mean():
    rng = random.Random(3)
    times = [round(30 * MS * (1 + rng.gauss(0, 0.1))) for _ in range(1000)]
    assert resampled_mean(times).error_ns == pytest.approx(0.1 * 30 * MS / math.sqrt(1000), rel=0.25)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.floats(0.5, 2.0), st.floats(0.0, 0.6))
def test_the_other_way_round_is_the_inverse(seed, scale, queued):
    before = timed_steps(report_of(times_of(seed=seed), queued=queued))
    after = timed_steps(report_of(times_of(scale * STEP_MS, seed=seed + 1)))
    there, back = step_change([before], [after]).judged, step_change([after], [before]).judged
    assert (1 + there.expected) * (1 + back.expected) == pytest.approx(1.0)
    assert (1 + there.low) * (1 + back.high) == pytest.approx(1.0)
    assert there.low <= there.expected <= there.high


def test_what_every_second_step_costs_is_seen_although_every_second_row_is_left_out(tmp_path):
    def recorded(name, second):
        log = Log()
        for _ in range(2_000):
            log.step(30_000)
            log.step(second)
        return analyze(write_run(tmp_path / name, [log]))

    before, after = recorded("before", 30_000), recorded("after", 45_000)
    assert after.steps.thinned
    diff = compare(before, after)
    assert diff.verdict == "slower"
    assert diff.step.judged.expected == pytest.approx(0.25, abs=0.001)


def test_steps_of_no_time_have_no_ratio():
    diff = compare(report_of([0] * 240), report_of(), ["step_time:+5%"])
    assert diff.obstacles == ("no step times before",)
    assert diff.gates[0].status == "not judged"


@pytest.mark.parametrize("queued", [1.0, 1.5])
def test_samples_that_say_a_step_only_waited_leave_it_some_time(queued):
    step = compare(report_of(), report_of([30 * MS] * 240, queued=queued)).step
    assert math.isfinite(step.judged.expected)
    assert step.judged.low < step.judged.expected < step.judged.high


def test_rows_that_stand_for_many_are_not_compared():
    report = report_of()
    thinned = replace(report, steps=replace(report.steps, count=4_000, steady=4_000, thinned=True))
    diff = compare(report, thinned)
    assert diff.obstacles == ("the report after lists 240 of 4000 steps: analyze it again",)
    assert diff.step is None


# What cannot be compared.


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ({"devices": ("NVIDIA A100",)}, {"devices": ("NVIDIA H100",)}, "hardware NVIDIA A100 → NVIDIA H100"),
        ({"processors": ("AMD EPYC",)}, {"processors": ("Intel Xeon",)}, "hardware AMD EPYC → Intel Xeon"),
        ({"usable_cores": 2.0}, {"usable_cores": 4.0}, "usable cores 2 → 4"),
        ({"batch_size": 32}, {"batch_size": 64}, "batch size 32 → 64"),
        ({"world_size": 1}, {"world_size": 2}, "world size 1 → 2"),
        ({"batches_per_step": 1.0}, {"batches_per_step": 4.0}, "batches per step 1 → 4"),
        ({"kind": "run"}, {"kind": "trace"}, "only the run after was timed under torch's profiler"),
    ],
)
def test_what_makes_runs_incomparable_is_named(before, after, said):
    diff = compare(report_of(**before), report_of(times_of(2 * STEP_MS), **after))
    assert diff.verdict == "not comparable"
    assert diff.obstacles == (said,)
    assert diff.headline == f"Not comparable: {said}"
    assert diff.step is None
    assert compare(report_of(**before), report_of(**before)).verdict == "no real change"


@pytest.mark.parametrize("name", ["devices", "batch_size", "world_size", "usable_cores", "batches_per_step"])
def test_what_one_side_does_not_tell_is_no_obstacle(name):
    diff = compare(report_of(**{name: () if name == "devices" else None}), report_of())
    assert diff.verdict == "no real change"


def test_what_was_taken_to_be_equal_is_said():
    diff = compare(report_of(batch_size=None, processors=()), report_of())
    assert diff.notes[-1] == "Not known on both sides, and assumed to be the same: the batch size, the hardware."


def test_between_accelerators_another_host_is_only_a_difference():
    known = {"devices": ("NVIDIA H100",)}
    diff = compare(report_of(**known), report_of(**known, processors=("Intel Xeon",), usable_cores=64.0))
    assert diff.verdict == "no real change"
    assert [row.name for row in diff.differences] == ["processor", "usable cores"]


@pytest.mark.parametrize(("count", "verdict"), [(FEWEST_STEPS, "no real change"), (FEWEST_STEPS - 1, "not comparable")])
def test_few_steps_are_not_compared(count, verdict):
    diff = compare(report_of(), report_of(times_of(count=count)))
    assert diff.verdict == verdict
    if verdict == "not comparable":
        assert diff.obstacles == (f"too few steady steps after: {count}, and {FEWEST_STEPS} are needed",)


def test_only_steady_steps_count():
    assert verdict_of(report_of(), report_of(state="warmup")) == "not comparable"


# What is different.


def test_settings_and_versions_that_differ_are_listed_with_both_values():
    before = report_of(versions={"torch": "2.12", "numpy": "2.0"}, settings={"OMP_NUM_THREADS": "1", "quiet": "False"})
    after = report_of(
        versions={"torch": "2.13", "numpy": "2.0"},
        settings={"quiet": "True"},
        loader=Loader(kind="DataLoader", num_workers=4, batch_size=32),
    )
    rows = [(row.group, row.name, row.before, row.after) for row in compare(before, after).differences]
    assert rows == [
        ("loader", "num_workers", "0", "4"),
        ("settings", "OMP_NUM_THREADS", "1", None),
        ("software", "torch", "2.12", "2.13"),
    ]


# Parts.


def test_the_part_that_moved_is_named_and_its_neighbours_are_not():
    before = report_of([30 * MS] * 240, parts={"input.prep": 10 / 30, "compute.math": 20 / 30})
    after = report_of([20 * MS] * 240, parts={"compute.math": 19.9 / 20, "over.gc": 0.1 / 20})
    rows = {row.part: row for row in compare(before, after).parts}
    assert list(rows) == ["input.prep", "compute.math", "over.gc"]
    assert (rows["input.prep"].before_ns, rows["input.prep"].after_ns) == (10 * MS, 0)
    assert [row.is_real for row in rows.values()] == [True, False, False]


def test_without_parts_on_a_side_nothing_moved():
    after = replace(report_of(), breakdown=())
    assert compare(report_of(), after).parts == ()


def untraced(report):
    """The report as the timers alone tell it: the wait for data, and the rest of the step."""
    parts = parts_of({"input.wait": 0.2, "idle.unknown": 0.8}, report.steps.time_ns.mean)
    return replace(report, breakdown=parts, trust=replace(report.trust, mode="steps"))


def test_what_only_a_trace_tells_is_not_compared_with_what_none_told():
    diff = compare(report_of(), untraced(report_of()), ("compute:+3pt", "input:+3pt"))
    assert diff.parts == ()
    assert any("Only the run before has a trace" in note for note in diff.notes)
    assert [gate.status for gate in diff.gates] == ["not judged", "passed"]


def test_a_part_that_a_side_does_not_measure_took_no_time_that_is_known():
    logging = {"input.wait": 0.2, "idle.unknown": 0.7, "other.log": 0.1}
    before = untraced(report_of())
    rows = compare(before, replace(before, breakdown=parts_of(logging, 30 * MS))).parts
    row = next(row for row in rows if row.part == "other.log")
    assert (row.before_ns, row.before_share, row.is_real) == (None, None, False)


def test_a_part_that_one_side_does_not_measure_stands_where_its_time_would_put_it():
    before = untraced(report_of())
    logging = {"input.wait": 0.3, "idle.unknown": 0.4, "other.log": 0.3}
    after = replace(before, breakdown=parts_of(logging, 30 * MS))
    for sides in ((before, after), (after, before)):
        assert [row.part for row in compare(*sides).parts] == ["idle.unknown", "other.log", "input.wait"]


def test_a_part_of_a_newer_version_is_compared_and_counts_as_other():
    (known, *others) = report_of().breakdown
    newer = replace(report_of(), breakdown=(replace(known, part="compute.quantum"), *others))
    for before, after, took_ns in ((newer, newer, known.time_ns), (report_of(), newer, None)):
        row = next(row for row in compare(before, after).parts if row.part == "compute.quantum")
        assert (row.family, row.before_ns, row.after_ns) == ("other", took_ns, known.time_ns)
        assert (row.before_share, row.after_share) == (took_ns and known.share, known.share)


@pytest.mark.parametrize(
    ("name", "status"), [("overhead", "not judged"), ("over.python", "not judged"), ("input", "passed")]
)
def test_without_a_trace_only_the_wait_for_data_has_a_share(name, status):
    assert judge_budget(parse_budget(name, "30 %"), untraced(report_of())).status == status


def test_a_family_that_the_verdict_calls_not_measured_has_no_share():
    report = report_of(parts={"compute.math": 1.0})
    unseen = RuledOut(bound="input-bound", share=None, saving=None, reason="no loader was seen", state="not measured")
    report = replace(report, verdict=replace(report.verdict, ruled_out=(unseen,)))
    assert judge_budget(parse_budget("input", "30 %"), report).status == "not judged"


# Findings.


def states(before, after):
    return [(row.rule, row.state) for row in compare(report_of(findings=before), report_of(findings=after)).findings]


def test_findings_are_gone_new_worse_better_or_unchanged():
    before = {
        "IN001": (finding(),),
        "IN002": (finding(expected=0.2),),
        "IN003": (finding(expected=0.4),),
        "IN004": (finding(expected=0.2),),
        "CP001": "passed",
    }
    after = {
        "IN001": "passed",
        "IN002": (finding(expected=0.301),),
        "IN003": (finding(expected=0.299),),
        "IN004": (finding(expected=0.299),),
        "CP001": (finding(),),
    }
    assert states(before, after) == [
        ("IN001", "gone"),
        ("CP001", "new"),
        ("IN002", "worse"),
        ("IN003", "better"),
        ("IN004", "unchanged"),
    ]


def test_without_savings_the_severity_tells():
    low, high = (replace(finding(severity=word), saving=None) for word in ("low", "high"))
    assert states({"IN001": (low,)}, {"IN001": (high,)}) == [("IN001", "worse")]
    assert states({"IN001": (high,)}, {"IN001": (low,)}) == [("IN001", "better")]
    assert states({"IN001": (high,)}, {"IN001": (high,)}) == [("IN001", "unchanged")]


@pytest.mark.parametrize(
    ("after_ms", "expected", "state"),
    [
        (30, 0.24, "unchanged"),
        (40, 0.24, "worse"),
        (40, 0.16, "unchanged"),
        (20, 0.16, "better"),
        (40, 0.229, "unchanged"),
    ],
)
def test_savings_that_overlap_have_changed_only_with_the_step(after_ms, expected, state):
    before = report_of([30 * MS] * 240, findings={"IN001": (finding(expected=0.2),)})
    after = report_of([after_ms * MS] * 240, findings={"IN001": (finding(expected=expected),)})
    assert [row.state for row in compare(before, after).findings] == [state]


def test_the_finding_that_is_left_is_not_taken_for_the_one_that_went():
    def stop(what, time, **fields):
        return about(what, f"{what} stops training for {time} every 50 steps", **fields)

    before = {"RU002": (stop("Evaluation", "3.1 s"), stop("Logging", "1.2 s", expected=0.1))}
    after = {"RU002": (stop("Logging", "980 ms", expected=0.12),)}
    rows = compare(report_of(findings=before), report_of(findings=after)).findings
    assert [(row.state, row.title.split()[0]) for row in rows] == [("gone", "Evaluation"), ("unchanged", "Logging")]


def test_a_title_in_other_words_is_the_same_finding_where_the_cause_is():
    before = {"CO001": (finding(detail="bandwidth"),)}
    after = {"CO001": (replace(finding(detail="bandwidth"), title="The link is slow"),)}
    assert states(before, after) == [("CO001", "unchanged")]


def test_another_late_rank_is_the_same_finding():
    before, after = {"CO003": (finding(rank=2),)}, {"CO003": (finding(rank=5),)}
    assert states(before, after) == [("CO003", "unchanged")]


def test_findings_of_two_ranks_are_two():
    before = {"IN001": (finding(rank=0), finding(rank=1))}
    assert states(before, {"IN001": (finding(rank=1),)}) == [("IN001", "gone"), ("IN001", "unchanged")]


def test_a_finding_whose_rule_could_not_run_says_so():
    (row,) = compare(
        report_of(findings={"IN001": (finding(),)}), report_of(findings={"IN001": "missing_data"})
    ).findings
    assert (row.state, row.reason) == ("gone", "missing data: No such signal.")
    (row,) = compare(report_of(), report_of(findings={"IN001": (finding(),)})).findings
    assert (row.state, row.reason) == ("new", "the rule was not known")


# Fixes.


def loader(workers):
    return Loader(kind="DataLoader", num_workers=workers, batch_size=32)


def fixes(before_findings, after_findings, *, after_ms=24.0, workers=0):
    before = report_of([30 * MS] * 240, findings=before_findings, loader=loader(0))
    after = report_of([round(after_ms * MS)] * 240, findings=after_findings, loader=loader(workers))
    return compare(before, after).fixes


@pytest.mark.parametrize(
    ("after_ms", "holds"), [(24.0, True), (22.4, None), (21.5, False), (25.6, None), (26.6, False)]
)
def test_a_prediction_holds_with_a_proven_saving_in_it_and_misses_when_none_that_may_have_been_is(after_ms, holds):
    (fix,) = fixes({"IN001": (finding(fix=WORKERS),)}, {"IN001": "passed"}, after_ms=after_ms, workers=4)
    assert fix.how == "the setting is as proposed"
    assert fix.measured.expected == pytest.approx(1 - after_ms / 30)
    assert fix.holds is holds


def test_a_setting_as_proposed_counts_although_its_finding_remains():
    found = {"IN001": (finding(fix=WORKERS),)}
    (fix,) = fixes(found, found, workers=4)
    assert (fix.how, fix.holds) == ("the setting is as proposed", True)


def test_another_value_than_the_proposed_one_is_another_fix():
    found = {"IN001": (finding(fix=WORKERS),)}
    assert fixes(found, found, workers=2) == ()
    (fix,) = fixes(found, {"IN001": "passed"}, workers=2)
    assert (fix.how, fix.holds) == ("the finding is gone", None)
    assert fix.note == "not judged: num_workers is 2 now, and the prediction is for 4"


def test_a_finding_that_went_while_its_setting_is_what_it_was_is_told_and_not_judged():
    before = {"IN001": (finding(fix=WORKERS),), "CP001": (finding(fix="Do that."),)}
    (left,) = fixes({"IN001": (finding(fix=WORKERS),)}, {"IN001": "passed"})
    assert (left.how, left.holds) == ("the finding is gone", None)
    assert left.note == "not judged: num_workers is still 0, so another change saved this"
    first, second = fixes(before, {"IN001": "passed", "CP001": "passed"})
    assert [(fix.rule, fix.holds) for fix in (first, second)] == [("CP001", True), ("IN001", None)]
    assert second.note == left.note


def test_what_went_of_another_bound_by_an_unknown_change_keeps_a_fix_from_being_judged():
    before = {"IN001": (finding(fix=WORKERS),), "CP001": (finding(fix="Do that.", bound="compute-bound"),)}
    first, second = fixes(before, {"IN001": "passed", "CP001": "passed"})
    assert (first.rule, first.holds) == ("CP001", None)
    assert "several fixes" in first.note
    assert "still 0" in second.note


def test_a_finding_that_went_while_its_time_is_still_there_was_not_fixed():
    """Behind a larger wait nobody could tell what Python cost: nobody moved it off the loop."""
    python = finding(fix="Move it off the loop.", bound="overhead-bound")
    known = {"IN001": (finding(fix=WORKERS),), "OV005": (python,)}
    before = report_of([30 * MS] * 240, findings=known, loader=loader(0))
    after = report_of([24 * MS] * 240, findings={"IN001": "passed", "OV005": "passed"}, loader=loader(4))

    def judged(left):
        split = parts_of({"input.wait": 0.2, "over.python": left, "compute.math": 0.8 - left}, 24 * MS)
        first = parts_of({"input.wait": 0.4, "over.python": 0.3, "compute.math": 0.3}, 30 * MS)
        sides = replace(before, breakdown=first), replace(after, breakdown=split)
        return [(row.rule, row.holds) for row in compare(*sides).fixes]

    assert judged(left=0.36) == [("IN001", True)]  # 8.6 of 9 ms
    assert judged(left=0.35) == [("IN001", None), ("OV005", None)]


def test_a_setting_that_is_named_as_another_way_does_not_tell_whether_the_fix_was_applied():
    text = "Free the cores. Where that cannot be, num_workers 0 → 4 may take more."
    (fix,) = fixes({"IN005": (finding(fix=text),)}, {"IN005": "passed"})
    assert (fix.how, fix.holds) == ("the finding is gone", True)


def test_a_finding_that_could_not_be_looked_for_was_not_fixed():
    assert fixes({"IN001": (finding(fix=WORKERS),)}, {"IN001": "missing_data"}) == ()


def test_several_fixes_at_once_are_not_judged_each():
    before = {"IN001": (finding(fix="Do this."),), "CP001": (finding(fix="Do that."),)}
    rows = fixes(before, {"IN001": "passed", "CP001": "passed"})
    assert [row.holds for row in rows] == [None, None]
    assert "several fixes" in rows[0].note


def test_what_goes_with_the_setting_is_not_judged_beside_it():
    before = {"IN001": (finding(fix=WORKERS),), "CP001": (finding(fix="Do that."),)}
    first, second = fixes(before, {"IN001": "passed", "CP001": "passed"}, workers=4)
    assert (first.rule, first.holds) == ("IN001", True)
    assert (second.rule, second.holds, second.note) == ("CP001", None, "gone with the fix above")


def test_a_finding_of_another_bound_went_by_a_fix_of_its_own():
    other = replace(finding(fix="Do that."), bound="overhead-bound")
    rows = fixes(
        {"IN001": (finding(fix=WORKERS),), "OV001": (other,)}, {"IN001": "passed", "OV001": "passed"}, workers=4
    )
    assert [row.holds for row in rows] == [None, None]
    assert all("several fixes" in row.note for row in rows)


def saved(ratio, *, high=None):
    return Saving(low=0.9 * ratio, expected=ratio, high=high or 1.1 * ratio, method="analytic model")


SMALL_BESIDE = "not judged: too small next to the fix above"


@pytest.mark.parametrize(
    ("savings", "holds"),
    [
        ([saved(0.015)], True),
        ([saved(0.03)], None),
        ([saved(0.015)] * 2, None),  # together they may have saved too much
        ([saved(0.015, high=0.4)], None),
        ([None], None),
    ],
)
@pytest.mark.parametrize(("workers", "text"), [(4, WORKERS), (0, "Do this.")], ids=["setting", "finding"])
def test_what_was_to_save_little_beside_a_fix_does_not_keep_it_from_being_judged(savings, holds, workers, text):
    small = [
        replace(finding(fix=f"Do that {number}.", bound="memory-bound"), saving=saving)
        for number, saving in enumerate(savings)
    ]
    before = {"IN001": (finding(fix=text),), "ME001": tuple(small)}
    first, *others = fixes(before, {"IN001": "passed", "ME001": "passed"}, workers=workers)
    assert (first.rule, first.holds) == ("IN001", holds)
    assert all(fix.holds is None for fix in others)
    assert {fix.note == SMALL_BESIDE for fix in others} == {bool(holds)}


def test_a_setting_of_another_value_says_so_beside_a_larger_fix():
    other = replace(
        finding(fix="More.", changes=(SettingChange("prefetch_factor", 2, 4),), bound="memory-bound"),
        saving=saved(0.01),
    )
    before = report_of(
        [30 * MS] * 240, findings={"IN001": (finding(fix=WORKERS),), "ME001": (other,)}, loader=loader(0)
    )
    before = replace(before, run=replace(before.run, settings={"prefetch_factor": "2"}))
    after = report_of([24 * MS] * 240, findings={"IN001": "passed", "ME001": "passed"}, loader=loader(4))
    after = replace(after, run=replace(after.run, settings={"prefetch_factor": "3"}))
    notes = {fix.rule: fix.note for fix in compare(before, after).fixes}
    assert notes["ME001"] == "not judged: prefetch_factor is 3 now, and the prediction is for 4"


@pytest.mark.parametrize(
    ("after_ms", "left", "holds"),
    [
        (24, 0.05, True),
        (26.6, 0.1, None),
        (24, 0.124, True),  # 3 of 6 ms
        (24, 0.126, "none"),
        (63, 0.096, "none"),  # 6 ms as before: only the step is longer
    ],
)
def test_a_finding_of_which_little_is_left_counts_and_misses_no_promise(after_ms, left, holds):
    found = replace(finding(fix="Do that."), saving=saved(0.2))
    rows = fixes({"CP001": (found,)}, {"CP001": (replace(found, saving=saved(left)),)}, after_ms=after_ms)
    if holds == "none":
        assert rows == ()
        return
    (fix,) = rows
    assert (fix.how, fix.holds) == ("the finding is smaller", holds)
    assert fix.note == ("" if holds else "not judged: part of it remains")


def test_only_the_finding_that_got_smaller_counts():
    found = [replace(finding(fix=f"Do that on {rank}."), saving=saved(0.2), rank=rank) for rank in (0, 1)]
    after = (replace(found[0], saving=saved(0.05)), found[1])
    (fix,) = fixes({"CP001": tuple(found)}, {"CP001": after})
    assert (fix.text, fix.holds) == ("Do that on 0.", True)


def test_other_programs_that_ended_are_no_fix():
    others = finding(fix="Stop what else runs.", bound="overhead-bound")
    (fix,) = fixes(
        {"IN001": (finding(fix=WORKERS),), "RU005": (others,)}, {"IN001": "passed", "RU005": "passed"}, workers=4
    )
    assert (fix.rule, fix.holds) == ("IN001", True)


def test_what_is_left_of_a_rule_was_not_fixed():
    stops = [about(what, what, fix=f"Run {what} less often.") for what in ("Evaluation", "Logging")]
    (fix,) = fixes({"RU002": tuple(stops)}, {"RU002": (stops[1],)})
    assert (fix.text, fix.holds) == ("Run Evaluation less often.", True)


def test_without_comparable_steps_nothing_was_measured():
    before = report_of(findings={"IN001": (finding(fix=WORKERS),)}, loader=loader(0))
    after = report_of(findings={"IN001": "passed"}, loader=loader(4), world_size=2)
    (fix,) = compare(before, after).fixes
    assert (fix.measured, fix.holds, fix.note) == (None, None, "the step times cannot be compared")


def test_a_prediction_is_judged_by_the_steps_as_timed_of_which_it_was_made():
    """Of 30 ms others take 9 and the loader 6; with the loader gone, others take 9 of 24."""
    before = report_of([30 * MS] * 240, queued=9 / 30, findings={"IN001": (finding(fix=WORKERS),)}, loader=loader(0))
    after = report_of([24 * MS] * 240, queued=9 / 24, findings={"IN001": "passed"}, loader=loader(4))
    diff = compare(before, after)
    (fix,) = diff.fixes
    assert diff.step.own_after_ns / diff.step.own_before_ns == pytest.approx(15 / 21)
    assert fix.measured.expected == pytest.approx(0.2)
    assert fix.holds
    missed = report_of([30 * MS] * 240, queued=9 / 30, findings={"IN001": "passed"}, loader=loader(4))
    (fix,) = compare(before, missed).fixes
    assert fix.holds is False


def test_more_load_after_than_before_leaves_open_what_a_fix_saved():
    """20 % less work beside others that take a third of it: the step as timed does not show the saving."""
    before = report_of([30 * MS] * 240, queued=0.0, findings={"IN001": (finding(fix=WORKERS),)}, loader=loader(0))
    after = report_of([32 * MS] * 240, queued=0.25, findings={"IN001": "passed"}, loader=loader(4))
    (fix,) = compare(before, after).fixes
    assert fix.measured.expected < 0
    assert (fix.holds, fix.note) == (None, "neither held nor missed: the measurement is too uncertain")


def test_noise_alone_confirms_no_promise():
    promise = replace(finding(fix=WORKERS), saving=Saving(low=0.01, expected=0.2, high=0.9, method="bound"))
    after = report_of([29.4 * MS] * 240, queued=0.4, findings={"IN001": "passed"}, loader=loader(4))
    before = report_of([30 * MS] * 240, queued=0.0, findings={"IN001": (promise,)}, loader=loader(0))
    (fix,) = compare(before, after).fixes
    assert fix.measured.low < 0 < fix.measured.expected
    assert fix.holds is None


@pytest.mark.parametrize("text", ["num_workers 0 → 4.", "Raise num_workers from 0 to 4.", "More of them."])
def test_no_word_of_a_fix_decides_whether_it_was_applied(text):
    change = SettingChange("num_workers", 0, 4)
    (fix,) = fixes({"IN001": (finding(fix=text, changes=(change,)),)}, {"IN001": "passed"}, workers=4)
    assert (fix.how, fix.holds) == ("the setting is as proposed", True)
    (fix,) = fixes({"IN001": (finding(fix=text),)}, {"IN001": "passed"}, workers=4)
    assert (fix.how, fix.holds) == ("the finding is gone", True)


@pytest.mark.parametrize(("now", "proposed"), [(False, True), (25, 12.5), ("eager", "sdpa")])
def test_a_proposed_value_of_any_kind_is_found_in_the_settings(now, proposed):
    found = {"CO001": (finding(fix="Change it.", changes=(SettingChange("setting", now, proposed),)),)}

    def side(value, ms, findings):
        report = report_of([ms * MS] * 240, findings=findings)
        return replace(report, run=replace(report.run, settings={"setting": str(value)}))

    (fix,) = compare(side(now, 30, found), side(proposed, 24, {"CO001": "passed"})).fixes
    assert (fix.how, fix.holds) == ("the setting is as proposed", True)


@pytest.mark.parametrize("others", [(), (SettingChange("num_workers", 0, 4),)])
def test_a_setting_that_no_report_holds_is_neither_in_force_nor_missing(others):
    change = SettingChange("fused", False, True)
    found = finding(fix="Fuse it.", changes=(change, *others))
    assert fixes({"IN001": (found,)}, {"IN001": (found,)}, workers=0) == ()
    how = "the setting is as proposed" if others else "the finding is gone"
    (fix,) = fixes({"IN001": (found,)}, {"IN001": "passed"}, workers=4)
    assert (fix.how, fix.holds) == (how, True)


# Gates.


def gate(text, before=None, after=None):
    return compare(before or report_of(), after or report_of(), (text,)).gates[0]


@pytest.mark.parametrize(("scale", "status"), [(1.0, "passed"), (1.10, "failed"), (0.8, "passed")])
def test_a_gate_on_the_step_time(scale, status):
    after = report_of([round(scale * 30 * MS)] * 240)
    assert gate("step_time:+5%", report_of([30 * MS] * 240), after).status == status
    assert gate("throughput:-5%", report_of([30 * MS] * 240), after).status == status


@pytest.mark.parametrize(
    ("limit", "status"), [("+9.9%", "failed"), ("+10.1%", "passed"), ("+2.9ms", "failed"), ("+3.1ms", "passed")]
)
def test_the_limit_of_a_real_change_is_its_estimate(limit, status):
    assert gate(f"step_time:{limit}", report_of([30 * MS] * 240), report_of([33 * MS] * 240)).status == status


def test_what_may_be_noise_neither_fails_nor_passes():
    before, after = report_of([30 * MS] * 240), report_of([31 * MS] * 240)
    assert gate("step_time:+5%", before, after).status == "passed"
    found = gate("step_time:+1%", before, after)
    assert (found.status, found.reason) == ("not judged", "it may be noise: a change below 3.7 % cannot be seen")


@pytest.mark.parametrize(("longest_ms", "status"), [(40, "failed"), (32, "not judged"), (30, "passed")])
def test_a_gate_on_a_quantile_does_not_need_the_mean(longest_ms, status):
    after = report_of([30 * MS] * 210 + [longest_ms * MS] * 30)
    assert gate("step_time_p90:+1%", report_of([30 * MS] * 240), after).status == status
    assert gate("step_time_median:+1%", report_of([30 * MS] * 240), after).status == "passed"


def test_a_quantile_that_only_waited_longer_does_not_fail():
    after = report_of([40 * MS] * 240, queued=0.25)
    assert gate("step_time_p90:+5%", report_of([30 * MS] * 240), after).status == "not judged"


def test_a_gate_on_incomparable_runs_is_not_judged():
    found = gate("step_time:+5%", report_of(world_size=1), report_of(world_size=2))
    assert found.status == "not judged"
    assert found.reason == "not comparable: world size 1 → 2"


@pytest.mark.parametrize(("share", "status"), [(0.229, "passed"), (0.24, "not judged"), (0.27, "failed")])
def test_a_share_changes_by_points(share, status):
    after = report_of(parts={"compute.math": 1 - share, "input.prep": share})
    assert gate("input:+3pt", None, after).status == status
    assert gate("input.prep:+3pt", None, after).status == status
    assert gate("compute:+3pt", None, after).status == "passed"


def test_a_part_that_ten_steps_may_have_shown_otherwise_has_not_moved():
    after = report_of(times_of(seed=2), parts={"compute.math": 0.76, "input.prep": 0.24})
    assert not any(row.is_real for row in compare(report_of(), after).parts)


def test_shares_of_different_work_are_not_judged():
    after = report_of(batch_size=64, parts={"compute.math": 0.5, "input.prep": 0.5})
    assert gate("input:+3pt", None, after).reason == "not comparable: batch size 32 → 64"


def test_nothing_before_is_a_number_that_was_measured():
    before = report_of(parts={"compute.math": 1.0})
    assert gate("input:+3pt", before, replace(report_of(), breakdown=())).reason == "input was not measured after"
    none = replace(before, steps=replace(before.steps, time_ns=replace(before.steps.time_ns, p90=0)))
    assert gate("step_time_p90:+5%", none).reason == "step_time_p90 was 0 before"
    assert gate("step_time_p90:+1ms", none).status == "not judged"


def test_a_gate_on_what_was_not_measured_is_not_judged():
    bare = replace(report_of(), breakdown=())
    assert gate("input:+3pt", None, bare).status == "not judged"
    assert gate("throughput:-5%", report_of(batch_size=None), report_of(batch_size=None)).status == "not judged"


@pytest.mark.parametrize(("severity", "status"), [("high", "failed"), ("medium", "passed")])
def test_a_gate_on_new_findings(severity, status):
    before, after = report_of(findings={"IN001": "passed"}), report_of(findings={"IN001": (finding(severity),)})
    assert gate("findings:high", before, after).status == status
    assert gate("findings:medium", before, after).status == "failed"
    assert gate("findings:high", after, after).status == "passed"


@pytest.mark.parametrize(
    ("before", "after", "status", "measured"),
    [
        ({"peak_process_bytes": 100}, {"peak_process_bytes": 104}, "passed", "100 B → 104 B (of the process)"),
        ({"peak_process_bytes": 100}, {"peak_process_bytes": 106}, "failed", "100 B → 106 B (of the process)"),
        (
            {"peak_process_bytes": 100, "peak_device_used_bytes": 10},
            {"peak_process_bytes": 106, "peak_device_used_bytes": 10},
            "passed",
            "10 B → 10 B (all processes)",
        ),
        ({"peak_reserved_bytes": 9}, {"peak_process_bytes": 9}, "not judged", "9 B (reserved) → 9 B (of the process)"),
    ],
)
def test_the_peak_memory_says_which_it_is_and_is_compared_with_its_like(before, after, status, measured):
    sides = [replace(report_of(), memory=Memory(**known)) for known in (before, after)]
    judged = gate("peak_memory:+5%", *sides)
    assert (judged.status, judged.measured) == (status, measured)


def test_what_could_not_be_looked_for_before_is_no_new_finding():
    before, after = report_of(findings={"IN001": "missing_data"}), report_of(findings={"IN001": (finding(),)})
    assert gate("findings:high", before, after).status == "passed"


@pytest.mark.parametrize(
    ("text", "cause", "hint"),
    [
        ("step_time", "no colon", "step_time:+5%"),
        ("step_tim:+5%", "known: step_time", "did you mean step_time?"),
        ("step_time:5%", "gate needs a rise", "step_time:+5%"),
        ("step_time:-5%", "gate needs a rise", "step_time:+5%"),
        ("throughput:+5%", "gate needs a fall", "throughput:-5%"),
        ("input:+3%", "not a number with one of the units pt", "input:+3pt"),
        ("peak_memory:+1ms", "units B, KiB", "peak_memory:+5%"),
        ("findings:hihg", "known: high", "did you mean high?"),
    ],
)
def test_a_gate_that_cannot_be_read_is_explained(text, cause, hint):
    with pytest.raises(UsageError) as caught:
        parse_limit(text)
    assert cause in caught.value.cause
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("name", "value", "status"),
    [
        ("step_time", "30.1 ms", "passed"),
        ("step_time", "29.9ms", "failed"),
        ("step_time_median", "29.9ms", "failed"),
        ("step_time_p90", "0.0301 s", "passed"),
        ("throughput", "1066/s", "passed"),
        ("throughput", "1067/s", "failed"),
        ("input", "20.1 %", "passed"),
        ("input.prep", "19.9 %", "failed"),
        ("findings", "high", "passed"),
        ("findings", "medium", "failed"),
    ],
)
def test_a_budget_of_one_run(name, value, status):
    report = report_of([30 * MS] * 240, findings={"IN001": (finding("medium"),)})
    assert judge_budget(parse_budget(name, value), report).status == status


@pytest.mark.parametrize(
    ("name", "measured"), [("step_time", "15.0 ms"), ("input", "50 %"), ("other", "20 %"), ("other.queue", "50 %")]
)
def test_a_budget_is_about_the_step_without_what_other_programs_took(name, measured):
    parts = {"input.wait": 0.25, "compute.math": 0.15, "idle.unknown": 0.1, "other.queue": 0.5}
    limit = "20ms" if name == "step_time" else "60 %"
    found = judge_budget(parse_budget(name, limit), report_of([30 * MS] * 240, parts=parts))
    assert (found.measured, found.status) == (measured, "passed")


def test_a_budget_on_what_was_not_measured_is_not_judged():
    assert judge_budget(parse_budget("throughput", "1/s"), report_of(batch_size=None)).status == "not judged"
