"""What a comparison tells beside its verdict: the typical step, what differs, kernels, all ranks of a job."""

import random
import re

import pytest
from msgspec.structs import replace

from profilerkit.api import analyze
from profilerkit.compare import compare
from profilerkit.compare.steps import resampled_median
from profilerkit.model.finding import Evidence, Finding, Fix, Saving, SettingChange
from profilerkit.model.report import MOST_KERNELS, Compute, Kernel
from profilerkit.model.run import Loader
from profilerkit.model.step import JobSteps, Rank, StepTimes, Stretches
from profilerkit.report import html, markdown, terminal
from profilerkit.report.blocks import Name
from profilerkit.report.diff_document import document_of_diff, kernels_table
from profilerkit.report.wording import value_text
from tests.comparisons import MS, report_of, times_of
from tests.recipes import Log, training, write_run
from tests.report.pages import Page, spaces


def forms(diff):
    """The comparison in every form, without marks that a form needs and the blanks around links."""
    page = re.sub(r"(?<=\() | (?=[;)])", "", Page(html.render(diff)).text)
    return tuple(map(spaces, (terminal.render(diff), markdown.render(diff).replace("\\", ""), page)))


def row_of(diff, label):
    """Before, after and change of a number; ``None`` where it is not shown."""
    numbers = next(one for one in document_of_diff(diff).sections if one.id == "numbers")
    return next((row[1:] for row in numbers.blocks[0].rows if row[0] == label), None)


# The typical step.


def bursts(usual_ms, rare_ms, *, seed=0, every=8, count=240):
    """Steps of one length with a rare one that takes far longer, at no fixed place."""
    rng = random.Random(seed)
    return [
        (rare_ms if rng.random() < 1 / every else usual_ms) * MS + rng.randrange(-MS // 9, MS // 9)
        for _ in range(count)
    ]


def test_the_typical_step_is_told_where_the_mean_hides_its_change():
    diff = compare(report_of(bursts(165, 1200)), report_of(bursts(139, 1200, seed=1)))
    assert diff.verdict == "no real change"
    assert diff.step.typical.high < 0
    assert diff.step.typical.expected == pytest.approx(139 / 165 - 1, abs=0.01)
    was, now, change = row_of(diff, "Median step")
    assert (value_text(was), value_text(now)) == ("165\u00a0ms", "139\u00a0ms")
    assert change.startswith("−16 % (−")
    assert "Median step" in terminal.render(diff)


def test_the_interval_of_the_typical_step_holds_what_differs_between_runs():
    step = compare(report_of([30 * MS] * 240), report_of([30 * MS] * 240)).step
    assert step.typical.low < -0.02 < 0.02 < step.typical.high


def test_the_error_of_a_median_sees_that_neighbours_are_alike():
    rng = random.Random(5)
    levels = [rng.randrange(6) * MS for _ in range(12)]
    alike = [30 * MS + levels[number // 40] + rng.randrange(MS) for number in range(480)]
    mixed = rng.sample(alike, len(alike))
    assert resampled_median(alike).centre_ns == resampled_median(mixed).centre_ns
    assert resampled_median(alike).error_ns > 3 * resampled_median(mixed).error_ns


def test_a_typical_step_of_few_uneven_steps_has_no_interval():
    times = [20 * MS, 90 * MS, 55 * MS]
    *_, change = row_of(compare(report_of(times), report_of(times)), "Median step")
    assert change == "0 %, the steps vary too much for an interval"


def test_steps_of_different_work_have_no_typical_change():
    assert row_of(compare(report_of(), report_of(batch_size=64)), "Median step") is None


# The change is that of what is shown.


def test_the_tiles_and_the_headline_each_show_the_change_of_their_own_times():
    """Half of the time before is that of others: 30 ms as timed on both sides, an estimated 12.3 ms without."""
    diff = compare(report_of([30 * MS] * 240, queued=0.5), report_of([30 * MS] * 240))
    assert diff.headline.startswith("The step takes 144 % longer: an estimated 12.3 ms → 30.0 ms without")
    was, now, change = row_of(diff, "Mean step, as timed")
    assert (value_text(was), value_text(now)) == ("30.0\u00a0ms", "30.0\u00a0ms")
    assert change.startswith("0 % (")


def test_of_several_recordings_the_steps_shown_are_those_that_are_compared():
    sides = [[report_of([ms * MS] * 240) for ms in (low, high)] for low, high in ((20, 45), (40, 90))]
    (before, *more), (after, *others) = sides
    diff = compare(before, after, also_before=more, also_after=others)
    was, now, change = row_of(diff, "Mean step")
    assert (value_text(was), value_text(now)) == ("30.0\u00a0ms", "60.0\u00a0ms")
    assert change.startswith("+100 % (")
    assert diff.after.samples_per_s == pytest.approx(32 / 0.060)


def test_a_gate_prints_the_change_of_its_own_numbers_and_the_judged_one_beside():
    after = report_of([33 * MS] * 240)
    known = compare(report_of([30 * MS] * 240), after, ("step_time:+5%", "throughput:-5%")).gates
    assert [gate.measured for gate in known] == ["30.0 ms → 33.0 ms (+10 %)", "1,067/s → 969.7/s (−9.1 %)"]
    (busy,) = compare(report_of([30 * MS] * 240, queued=0.5), after, ("step_time:+5%",)).gates
    assert busy.measured.startswith("30.0 ms → 33.0 ms (+10 %; judged +1")


# What is different.


def test_a_comparison_begins_with_what_is_different_and_ends_no_line_beyond_the_page():
    versions = {f"package{number}": "1.0" for number in range(9)}
    before = report_of(versions=versions, batch_size=32)
    after = report_of(
        versions=dict.fromkeys(versions, "2.0"),
        batch_size=64,
        settings={"OMP_NUM_THREADS": "4"},
        loader=Loader(kind="DataLoader", num_workers=8, batch_size=64),
    )
    diff = compare(before, after)
    line = "Different: batch size 32 → 64, num_workers 0 → 8, and 10 more"
    for text in forms(diff):
        assert line in text
        assert text.index(line) < text.index("Not comparable: ")


def test_runs_that_differ_in_nothing_recorded_say_so():
    for text in forms(compare(report_of(), report_of())):
        assert "Different: nothing that was recorded" in text


def kernel(name, ms, *, operator=None, precision=None, kind="math"):
    total_ns = round(240 * ms * MS)
    return Kernel(
        name=name,
        kind=kind,
        count=240,
        total_ns=total_ns,
        median_ns=round(ms * MS),
        share=ms / 30,
        operator=operator,
        precision=precision,
        per_step_ns=ms * MS,
    )


def traced(*kernels, compute=None, mode="gpu", **more):
    report = report_of([30 * MS] * 240, **more)
    return replace(report, kernels=kernels, compute=compute, trust=replace(report.trust, mode=mode))


def told(diff):
    return [(row.of, row.name, row.before_ns, row.after_ns, row.is_real) for row in diff.kernels]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (traced(compute=Compute(precision="fp32")), traced(compute=Compute(precision="bf16"))),
        (
            traced(kernel("gemm", 9, precision="fp32"), kernel("copy", 12, precision="bf16", kind="membw")),
            traced(kernel("gemm", 4, precision="fp32"), kernel("gemm16", 5, precision="bf16")),
        ),
    ],
    ids=["of the FLOPs", "of the math time"],
)
def test_another_precision_is_a_difference_of_the_work(before, after):
    (row,) = compare(before, after).differences
    assert (row.group, row.name, row.before, row.after) == ("work", "precision", "fp32", "bf16")


# Kernels and operators.


def test_kernels_and_operators_that_changed_are_told_by_their_time_per_step():
    before = traced(kernel("sgemm", 12, operator="aten::mm"), kernel("softmax", 5, operator="aten::softmax"))
    after = traced(kernel("hgemm", 3, operator="aten::mm"), kernel("softmax", 5.2, operator="aten::softmax"))
    diff = compare(before, after)
    assert told(diff) == [
        ("kernel", "sgemm", 12 * MS, 0.0, True),
        ("operator", "aten::mm", 12 * MS, 3 * MS, True),
        ("kernel", "hgemm", 0.0, 3 * MS, True),
        ("kernel", "softmax", 5 * MS, 5.2 * MS, False),
    ]
    for text in forms(diff):
        assert "Kernels and operators that changed most" in text
        assert "−9.00 ms" in text
        assert "softmax" not in text


def test_kernels_that_did_not_change_are_not_shown():
    same = traced(kernel("gemm", 12))
    assert kernels_table(compare(same, same).kernels) is None


def test_each_kernel_has_one_line_in_a_terminal():
    long = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>"
    text = terminal.render(compare(traced(kernel(long, 12)), traced(kernel(long, 3))))
    (row,) = [line for line in text.splitlines() if "−9.00 ms" in line]
    assert row.startswith("void at::native")
    assert len(row) <= 80


@pytest.mark.parametrize(("ms", "is_real"), [(2.4, False), (9, True)])
def test_a_kernel_that_a_full_list_leaves_out_is_not_known_and_takes_less_than_the_listed(ms, is_real):
    others = [kernel(f"other{number}", 2) for number in range(MOST_KERNELS)]
    diff = compare(traced(*others), traced(*others[1:], kernel("new", ms)))
    row = next(row for row in diff.kernels if row.name == "new")
    assert (row.before_ns, row.is_real) == (None, is_real)
    if is_real:
        assert kernels_table(diff.kernels).rows == (
            (Name("new", "kernel"), "kernel", "not listed", "9.00 ms", "not known"),
        )


def test_a_cpu_run_lists_operators():
    before, after = (traced(kernel("aten::mm", ms), mode="cpu") for ms in (12, 3))
    assert told(compare(before, after)) == [("operator", "aten::mm", 12 * MS, 3 * MS, True)]


@pytest.mark.parametrize(
    "after",
    [
        traced(),
        traced(kernel("gemm", 3), mode="cpu"),
        traced(replace(kernel("gemm", 3), per_step_ns=None)),
    ],
    ids=["no kernels", "another device", "an older report"],
)
def test_kernels_that_cannot_be_compared_are_not_told(after):
    assert compare(traced(kernel("gemm", 12)), after).kernels == ()


def test_the_time_of_a_kernel_is_per_judged_step(tmp_path):
    trace = training(steps=9, kernels=3, kernel=100)
    (row,) = analyze(trace.write(tmp_path / "trace.json")).kernels
    assert row.per_step_ns == pytest.approx(300_000)


# Fixes.


def advised(changes, *, low=0.3, high=0.4):
    evidence = Evidence(label="wait", value=1.0, unit="ns", source="measured", origin="x")
    found = Finding(
        title="It is slow",
        bound="input-bound",
        confidence="high",
        severity="high",
        why="x",
        evidence=(evidence,),
        saving=Saving(low=low, expected=(low + high) / 2, high=high, method="analytic"),
        fix=Fix(text="Do that.", changes=changes),
    )
    return {"IN001": (found,)}


def outcome_of(proposed, workers):
    def side(ms, number, findings):
        loader = Loader(kind="DataLoader", num_workers=number, batch_size=32)
        return report_of([ms * MS] * 240, findings=findings, loader=loader)

    changes = () if proposed is None else (SettingChange("num_workers", 0, proposed),)
    diff = compare(side(30, 0, advised(changes)), side(28, workers, {"IN001": "passed"}))
    return [(fix.holds, fix.note) for fix in diff.fixes]


@pytest.mark.parametrize(
    ("proposed", "workers", "expected"),
    [
        (4, 4, (False, "")),
        (4, 0, (None, "not judged: num_workers is still 0, so another change saved this")),
        (4, 2, (None, "not judged: num_workers is 2 now, and the prediction is for 4")),
        (None, 4, (None, "not judged: no setting of this fix is known to have changed")),
        (0, 0, (None, "not judged: num_workers is still 0, so another change saved this")),
    ],
)
def test_a_prediction_misses_only_where_the_setting_of_its_fix_changed(proposed, workers, expected):
    assert outcome_of(proposed, workers) == [expected]


# Jobs.


def job(judged, all_ms, own_ms, *, ranks=4, count=240):
    """A job of traces, told by one rank whose own marks move by 10 ms from step to step."""
    own = [own_ms * MS + (10 * MS if number % 2 else -10 * MS) for number in range(count)]
    report = report_of(own, kind="trace", queued=None, world_size=ranks)
    rank = Rank(rank=judged, origin="a", breakdown=report.breakdown, busy_ratio=None, step_ns=own_ms * MS)
    steps = JobSteps(
        ranks=ranks,
        time_ns=StepTimes(median=all_ms * MS, mean=all_ms * MS, p10=all_ms * MS, p90=all_ms * MS),
        stretches=Stretches(steps=1, time_ns=(all_ms * MS,) * count, queued_ns=(None,) * count),
    )
    return replace(report, ranks=(rank,), job_steps=steps)


def test_a_job_is_compared_by_the_steps_of_all_its_ranks_whichever_is_judged():
    diff = compare(job(1, 44, 48), job(0, 30, 36), ("step_time:+5%",))
    assert diff.verdict == "faster"
    assert (diff.before.mean_ns, diff.after.mean_ns, diff.before.median_ns) == (44 * MS, 30 * MS, 44 * MS)
    assert diff.step.judged.expected == pytest.approx(30 / 44 - 1)
    assert diff.gates[0].measured.startswith("44.0 ms → 30.0 ms")
    assert "The step is the mean of all ranks; its parts are those of rank 1 before and rank 0 after." in diff.notes
    assert value_text(row_of(diff, "Mean step")[0]) == "44.0\u00a0ms"


def test_single_ranks_that_differ_are_not_compared():
    alone = [replace(job(rank, 44, 48), job_steps=None) for rank in (1, 0)]
    assert compare(*alone).obstacles == ("rank 1 before, rank 0 after",)


def test_the_steps_of_a_job_are_the_mean_of_its_ranks(tmp_path):
    logs = [Log(), Log()]
    for number in range(40):
        # The two ranks' marks move against each other; together they take 30 ms.
        moved = 4_000 if number % 2 else -4_000
        logs[0].step(30_000 + moved)
        logs[1].step(30_000 - moved)
    report = analyze(write_run(tmp_path / "run", logs))
    steps = report.job_steps
    assert steps.ranks == 2
    assert (steps.time_ns.mean, steps.time_ns.p90) == (30 * MS, 30 * MS)
    assert set(steps.stretches.time_ns) == {30 * MS}
    assert len(steps.stretches.time_ns) == report.steps.steady
    assert report.steps.time_ns.p90 == 34 * MS


def test_one_rank_is_no_job(tmp_path):
    log = Log()
    for time_ns in times_of(count=40):
        log.step(time_ns // 1_000)
    report = analyze(write_run(tmp_path / "run", [log]))
    assert report.job_steps is None
    assert report.step_times == report.steps.time_ns
