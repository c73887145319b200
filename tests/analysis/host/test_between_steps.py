"""Input that no event names: the pauses between the ranges that mark the steps of an export without operators."""

import pytest

from profilerkit import analyze
from profilerkit.analysis.host.host_facts import GAPS
from profilerkit.analysis.host.names import QUIET_NS
from profilerkit.analysis.trace_facts import trace_facts
from profilerkit.formats.registry import read_trace
from profilerkit.model.finding import in_order
from tests.recipes import named
from tests.trace.nsys_exports import Export

MS = 1_000_000
STEPS = 12


def waiting(pauses, *, busy_ms=10, inside=None, ranges=("step {}",)):
    """Steps of a copy and four kernels under ranges, each after a pause in ms that nothing names.

    ``inside`` adds to the pause that begins at its first argument, in ns; several ranges share the step evenly.
    """
    export, at = Export().gpu(), MS
    for number, pause in enumerate(pauses):
        if inside is not None:
            inside(export, at)
        began = at + round(pause * MS)
        part = busy_ms * MS // len(ranges)
        for place, text in enumerate(ranges):
            export.range(text.format(number), began + place * part, began + (place + 1) * part - 10_000)
        export.copy(began + 20_000, began + 100_000)
        each = (busy_ms * MS - 200_000) // 4
        for place in range(4):
            start = began + 100_000 + place * each
            export.launch("ampere_bf16_gemm<128>", start - 9_000, start, start + each)
        at = began + busy_ms * MS
    return export


def parts(export, path):
    return named(trace_facts(read_trace(export.write(path))).totals)


def test_a_pause_between_the_ranges_of_steps_is_input(tmp_path):
    report = analyze(waiting([10] * STEPS).write(tmp_path / "a.sqlite"))
    assert (report.verdict.bound, report.verdict.confidence) == ("input-bound", "medium")
    (finding,) = [finding for outcome, finding in in_order(report.outcomes) if outcome.rule == "IN001"]
    assert GAPS["between steps"] in {entry.origin for entry in finding.evidence}
    assert finding.saving.expected == pytest.approx(0.5 * 0.9, abs=0.06)
    assert "num_workers × 3" in finding.fix.text


def test_bursts_of_workers_are_told_and_are_no_noise(tmp_path):
    report = analyze(waiting([1.5, 60] * 14).write(tmp_path / "a.sqlite"))
    assert report.verdict.bound == "input-bound"
    (finding,) = [finding for outcome, finding in in_order(report.outcomes) if outcome.rule == "IN001"]
    assert "It waits every 2 steps" in finding.why
    assert not [outcome for outcome, _ in in_order(report.outcomes) if outcome.rule == "RU002"]


@pytest.mark.parametrize(("pause", "seen"), [(QUIET_NS / MS - 0.1, False), (QUIET_NS / MS + 0.1, True)])
def test_a_gap_between_two_calls_is_no_pause(tmp_path, pause, seen):
    assert ("input.wait" in parts(waiting([pause] * STEPS), tmp_path / "a.sqlite")) is seen


def test_ranges_that_follow_the_first_of_a_turn_belong_to_its_step(tmp_path):
    def loss(export, at):
        export.range("loss", at + 5 * MS, at + 6 * MS)

    export = waiting([10] * STEPS, ranges=("forward", "backward", "optimizer"), inside=loss)
    found = parts(export, tmp_path / "a.sqlite")
    steady = STEPS - 2
    assert found["input.wait"] == pytest.approx(4 * MS * steady, rel=0.15)  # behind the last range
    assert found["idle.unknown"] == pytest.approx(6 * MS * steady, rel=0.15)


def test_a_pause_with_a_name_is_what_its_name_says(tmp_path):
    export = waiting([10] * STEPS, inside=lambda export, at: export.range("save checkpoint", at, at + 9 * MS))
    found = parts(export, tmp_path / "a.sqlite")
    assert "other.ckpt" in found
    assert found.get("input.wait", 0) < found["other.ckpt"] / 5


def test_a_stall_inside_a_range_is_not_recorded_and_no_fix_is_made_up_for_it(tmp_path):
    export, at = Export().gpu(), MS
    for number in range(STEPS):
        export.range(f"step {number}", at, at + 20 * MS)
        for place in range(2):
            start = at + 100_000 + place * 15 * MS
            export.launch("ampere_bf16_gemm<128>", start - 9_000, start, start + 4 * MS)
        at += 20 * MS + 5_000
    report = analyze(export.write(tmp_path / "a.sqlite"))
    assert {part.part: part.share for part in report.breakdown}["idle.unknown"] == pytest.approx(0.55, abs=0.1)
    assert not [outcome.rule for outcome, _ in in_order(report.outcomes) if outcome.rule in ("OV005", "IN001")]
    assert "nsys" in report.verdict.refuted_by
