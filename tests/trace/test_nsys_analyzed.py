"""Exports of Nsight Systems from the file to the report, and real ones."""

from pathlib import Path

import pytest
from nsys_exports import KERNEL, MEMCPY, MS, PID, TID, Export, training

from profilerkit.api import analyze, diff
from profilerkit.errors import UnreadableInputError

TRACES = Path(__file__).resolve().parents[3] / "shared" / "traces"
REAL = (
    pytest.mark.shared_traces,
    pytest.mark.skipif(not (TRACES / "nsys_healthy").is_dir(), reason=f"no shared traces at {TRACES}"),
)


def real(test):
    for mark in REAL:
        test = mark(test)
    return test


def signal(report, name):
    return next(entry for entry in report.trust.signals if entry.name == name)


def findings(report):
    return [finding for outcome in report.outcomes for finding in outcome.findings]


def test_an_export_is_judged_by_its_steps(tmp_path):
    report = analyze(training(10).write(tmp_path / "a.sqlite"))
    assert report.steps.found_by == 'ranges like "step 0"'
    assert report.steps.time_ns.median == 10_000_000
    assert report.run.devices == ("NVIDIA H100 80GB HBM3",)
    assert report.ranks[0].busy_ratio == pytest.approx(0.81, abs=0.02)
    assert signal(report, "operator trace").state == "missing"
    assert "Nsight Systems" in signal(report, "operator trace").reason
    assert signal(report, "operator shapes").state == "missing"
    assert {outcome.status for outcome in report.outcomes if outcome.rule in ("CP010", "OV005")} == {"missing_data"}
    assert signal(report, "memory").state == "missing"
    assert any("no waits of a loader" in note for note in report.trust.notes)


@pytest.mark.parametrize("offset_ms", [-156, 325, 823])
def test_a_device_clock_that_is_off_changes_nothing_but_a_note(tmp_path, offset_ms):
    right = analyze(training(10).write(tmp_path / "right.sqlite"))
    export = training(10)
    for table in (KERNEL, MEMCPY):
        for row in export.tables[table]:
            row["start"] += offset_ms * MS
            row["end"] += offset_ms * MS
    report = analyze(export.write(tmp_path / "off.sqlite"))
    assert report.steps.time_ns == right.steps.time_ns
    assert report.ranks[0].busy_ratio == pytest.approx(right.ranks[0].busy_ratio, abs=0.01)
    assert any("its records were moved" in note for note in report.trust.notes)
    assert not any("its records were moved" in note for note in right.trust.notes)


def test_operators_of_an_export_are_measured(tmp_path):
    export = training(10)
    for step in range(10):
        begun = (step + 1) * 10_000_000
        export.range("aten::mm, op_id = 4", begun + 200_000, begun + 900_000)
    assert signal(analyze(export.write(tmp_path / "a.sqlite")), "operator trace").state == "measured"


def copied_aside(path, *, begins_ms, copied_ms, launched_ms, held_by=None, tid=TID):
    """Steps of 100 ms: a copy of 13 ms on a stream of its own, then kernels up to 99 ms; ``held_by`` it is a call."""
    export = Export().gpu(0, "NVIDIA A100-SXM4-40GB", 108)
    for step in range(12):
        at = (step + 1) * 100 * MS
        begun, copied = at + int(copied_ms * MS), at + int((copied_ms + 13) * MS)
        export.copy(begun, copied, stream=20, size=300 << 20, tid=tid)
        if held_by:
            export.call(held_by, begun - 3_000, copied + 10_000, tid=tid)
        launched = at + int(launched_ms * MS)
        first = max(launched, copied) + 10_000
        length = (at + 99 * MS - first) // 20
        for number in range(20):
            start = first + number * length
            where = {"start": start, "end": start + length - 1_000, "grid": (108 * 16, 1, 1)}
            export.launch("ampere_bf16_gemm<128>", launched + number * 6_000, **where)
        export.call("cudaStreamSynchronize_v3020", launched + MS, at + 99 * MS + 20_000)
        export.range(f"step {step}", at + int(begins_ms * MS), at + 99 * MS + 50_000)
    return analyze(export.write(path))


@pytest.mark.parametrize(
    "loop",
    [
        {"begins_ms": 0, "copied_ms": 0.3, "launched_ms": 0.4},  # an event holds the stream that computes
        {"begins_ms": 0, "copied_ms": 0.3, "launched_ms": 13.4, "held_by": "cudaStreamSynchronize_v3020"},
        # A loader of its own copies, and the loop waits for it.
        {"begins_ms": 28.5, "copied_ms": 15, "launched_ms": 28.6, "held_by": "cudaEventSynchronize_v3020", "tid": 200},
    ],
)
def test_copies_on_a_stream_of_their_own_that_something_waits_for_have_a_saving(tmp_path, loop):
    report = copied_aside(tmp_path / "a.sqlite", **loop)
    (finding,) = next(outcome.findings for outcome in report.outcomes if outcome.rule == "IN010")
    assert finding.saving.expected == pytest.approx(0.13, abs=0.01)
    assert "one batch earlier" in finding.fix.text
    waits = [outcome.findings[0] for outcome in report.outcomes if outcome.rule == "IN001" and outcome.findings]
    if loop["begins_ms"]:  # of which the copies are no part
        assert waits[0].saving.high == pytest.approx(0.16, abs=0.01)
    assert report.verdict.bound == "input-bound"


def test_copies_ahead_that_only_a_late_host_exposes_have_none(tmp_path):
    report = copied_aside(tmp_path / "a.sqlite", begins_ms=0, copied_ms=0.3, launched_ms=40)
    outcome = next(outcome for outcome in report.outcomes if outcome.rule == "IN010")
    assert (outcome.status, outcome.findings) == ("passed", ())


def test_processes_of_one_export_are_the_ranks_of_a_job(tmp_path):
    export = Export().gpu(0).gpu(1)
    for rank in range(2):
        training(10, pid=PID + rank, device=rank, export=export, busy_ms=8 - 4 * rank)
    report = analyze(export.write(tmp_path / "a.sqlite"))
    assert [(rank.rank, round(rank.busy_ratio, 1)) for rank in report.ranks] == [(0, 0.8), (1, 0.4)]
    assert sum("holds 2 processes that trained" in note for note in report.trust.notes) == 1


def test_a_rank_of_an_export_that_the_others_wait_for_is_named(tmp_path):
    export = Export().gpu(0).gpu(1)
    for rank in range(2):
        training(10, step_ms=100, pid=PID + rank, device=rank, export=export, busy_ms=40)
        for step in range(10):
            at = (step + 1) * 100 * MS + (45 + 30 * rank) * MS  # rank 1 comes 30 ms later
            ends = (step + 1) * 100 * MS + 80 * MS
            where = {"pid": PID + rank, "device": rank, "stream": 9}
            export.launch("ncclDevKernel_AllReduce_Sum_f32_RING_LL", at - 20_000, at, ends, **where)
    report = analyze(export.write(tmp_path / "a.sqlite"))
    (finding,) = next(outcome.findings for outcome in report.outcomes if outcome.rule == "CO003")
    assert "rank 1" in finding.title
    assert finding.saving.high == pytest.approx(0.3, abs=0.02)


def test_files_of_several_processes_each_are_one_job_whose_ranks_have_no_number(tmp_path):
    for node in range(2):
        export = Export().gpu(0).gpu(1)
        for rank in range(2):
            training(10, pid=PID + rank, device=rank, export=export)
            export.launch("ncclDevKernel_AllReduce", 15 * MS, 16 * MS, 17 * MS, pid=PID + rank, device=rank, stream=9)
        export.write(tmp_path / f"node{node}.sqlite")
    report = analyze(tmp_path)
    assert [rank.rank for rank in report.ranks] == [None] * 4


def test_a_directory_of_exports_is_read_beside_what_they_were_exported_from(tmp_path):
    for name in ("rank0", "rank1"):
        training(10).write(tmp_path / f"{name}.sqlite")
        (tmp_path / f"{name}.nsys-rep").write_bytes(b"nsys")
    assert analyze(tmp_path).run.files == ("rank0.sqlite", "rank1.sqlite")


@pytest.mark.parametrize("name", ["a.nsys-rep", "a.qdrep"])
def test_a_recording_that_was_not_exported_says_how_to(tmp_path, name):
    (tmp_path / name).write_bytes(b"\0\1\2")
    for path in (tmp_path, tmp_path / name):
        with pytest.raises(UnreadableInputError) as caught:
            analyze(path)
        assert "nsys export -t sqlite" in caught.value.hint


def test_two_exports_are_compared(tmp_path):
    before = analyze(training(12, step_ms=20).write(tmp_path / "before.sqlite"))
    after = analyze(training(12, step_ms=10).write(tmp_path / "after.sqlite"))
    found = diff(before, after)
    assert found.verdict == "faster"
    assert found.step.mean.expected == pytest.approx(-0.5, abs=0.01)


def test_calls_without_work_of_a_device_say_so(tmp_path):
    export = Export()
    for number in range(20):
        export.call("cudaLaunchKernel_v7000", number * 10_000, number * 10_000 + 5_000)
    report = analyze(export.write(tmp_path / "a.sqlite"))
    assert [part.part for part in report.breakdown] == ["over.dispatch"]
    assert report.verdict.bound == "inconclusive"
    assert any("holds none of its events" in note for note in report.trust.notes)


@real
def test_a_healthy_export_is_told_to_change_nothing():
    report = analyze(TRACES / "nsys_healthy" / "nsys_healthy.sqlite")
    assert report.run.devices == ("NVIDIA H100 80GB HBM3",)
    assert [finding.title for finding in findings(report) if finding.saving is not None] == []


@real
def test_of_a_real_pair_the_whole_did_not_change_and_what_ran_before_the_first_pause_did(tmp_path):
    before, after = (analyze(TRACES / "nsys_mfu_pair" / f"mfu_2gpu_{side}.sqlite") for side in ("before", "after"))
    for report in (before, after):
        assert [rank.rank for rank in report.ranks] == [0, 1]
        assert signal(report, "operator trace").state == "measured"
    found = diff(before, after)
    assert found.verdict == "no real change"
    whole, first = found.spans
    # Of both GPUs together 598.52 and 598.46 ms, and 482.87 and 340.77 ms, as nsys-ai has them.
    assert (whole.span, first.span) == ("device", "stretch")
    assert whole.before_ns == pytest.approx(598.52e6 / 2, rel=0.005)
    assert whole.after_ns == pytest.approx(598.46e6 / 2, rel=0.005)
    assert first.before_ns == pytest.approx(482.87e6 / 2, rel=0.005)
    assert first.after_ns == pytest.approx(340.77e6 / 2, rel=0.005)
    assert first.change == pytest.approx(-0.294, abs=0.003)
    text = found.to_markdown()
    assert "−29 %" in text
    assert "no interval" in text


@real
def test_an_export_without_kernels_says_what_is_missing():
    with pytest.raises(UnreadableInputError, match="holds no GPU work") as caught:
        analyze(TRACES / "nsys_no_kernels" / "nsys_no_kernels.sqlite")
    assert "CUPTI_ACTIVITY_KIND_KERNEL" in caught.value.cause
