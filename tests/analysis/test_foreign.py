"""A profile of JAX in the report: what is judged, what is said to be missing, and no word of PyTorch's."""

import pytest

from profilerkit.api import analyze
from profilerkit.model.finding import in_order
from tests.xplane_recipes import Plane, gpu, host, jax_json, space, tpu

OF_TORCH = ("torch", "ProfilerStep", "ProfilerActivity", "prof.", "DataLoader", "record_shapes", "profilerkit.profile")


def report_of(tmp_path, content, name="host.xplane.pb"):
    (tmp_path / name).write_bytes(content)
    return analyze(tmp_path / name)


def share(report, *parts):
    return sum(part.share for part in report.breakdown if part.part.startswith(parts))


def said(report):
    """What stands in the report beside the list of rules."""
    verdict, trust = report.verdict, report.trust
    signals = [text for signal in trust.signals for text in (signal.name, signal.reason, signal.hint) if text]
    return "\n".join(
        [verdict.headline, verdict.consequence, verdict.refuted_by, report.steps.found_by, *trust.notes, *signals]
        + [text for _, finding in in_order(report.outcomes) for text in (finding.title, finding.why, finding.confirm)]
        + [outcome.reason for outcome in report.verdict.ruled_out]
    )


def test_a_gpu_s_steps_are_those_of_the_profile_and_its_time_is_told_by_kind(tmp_path):
    report = report_of(tmp_path, space(gpu()))
    assert report.steps.count == 12
    assert report.steps.found_by == "the profile's line of steps"
    assert not report.steps.inferred
    assert report.steps.time_ns.median == 10_000_000
    assert share(report, "compute.") == pytest.approx(0.5)
    assert share(report, "comm.") == pytest.approx(0.2)
    assert share(report, "input.h2d") == pytest.approx(0.1)
    assert share(report, "idle.") == pytest.approx(0.2)
    assert report.ranks[0].busy_ratio == pytest.approx(0.8)


def test_idle_time_is_nobody_s_as_the_host_is_not_read(tmp_path):
    report = report_of(tmp_path, space(gpu(busy_ps=4_000_000_000), host()))
    assert {part.part for part in report.breakdown if part.share > 0.5} == {"idle.unknown"}
    assert report.verdict.bound == "inconclusive"
    assert "XProf" in report.verdict.refuted_by


def test_a_tpu_s_copies_and_reductions_are_told_apart(tmp_path):
    report = report_of(tmp_path, space(tpu()))
    assert report.steps.inferred
    assert report.steps.found_by == "runs of the XLA module with most time"
    assert share(report, "comm.") == pytest.approx(0.2)
    assert share(report, "input.h2d") == pytest.approx(0.1)
    assert [(row.name, row.kind) for row in report.collectives] == [("all-reduce.7", "all_reduce")]
    assert "GPU" not in said(report)
    assert "The TPU" in report.verdict.headline or report.verdict.bound == "inconclusive"


@pytest.mark.parametrize(
    ("content", "name"),
    [
        (space(gpu(), host()), "host.xplane.pb"),
        (space(gpu(busy_ps=1_000_000_000)), "host.xplane.pb"),
        (space(tpu()), "host.xplane.pb"),
        (space(Plane("/device:GPU:0").line("Stream #1", ("k", 0, 10**9))), "host.xplane.pb"),
        (jax_json(), "host.trace.json"),
    ],
    ids=["gpu", "idle gpu", "tpu", "one kernel", "json"],
)
def test_nothing_is_said_of_torch(tmp_path, content, name):
    report = report_of(tmp_path, content, name)
    text = said(report)
    assert [word for word in OF_TORCH if word in text.replace("PyTorch", "")] == []
    assert "This is a profile of JAX or TensorFlow" in report.verdict.consequence
    for outcome in report.outcomes:
        if outcome.rule in ("CP012", "RU003", "RU004"):  # about steps and devices of any framework
            assert outcome.status in ("fired", "passed", "missing_data")
        else:
            assert outcome.status == "not_applicable", outcome.rule
            assert "JAX" in outcome.reason


def test_what_a_profile_lacks_is_not_measured(tmp_path):
    report = report_of(tmp_path, space(gpu(marks="")))
    states = {signal.name: signal.state for signal in report.trust.signals}
    assert states["device events"] == "measured"
    assert states["step marks"] == states["input wait"] == states["launch calls of device work"] == "missing"
    assert "StepTraceAnnotation" in said(report)
    assert report.steps.found_by == "the whole trace"


def test_json_of_a_profile_says_the_same(tmp_path):
    report = report_of(tmp_path, jax_json(), "host.trace.json.gz")
    assert report.steps.found_by == "the profile's line of steps"
    assert report.steps.count == 12
    assert "JAX or TensorFlow" in report.to_markdown()


def test_what_the_host_did_is_never_a_zero(tmp_path):
    report = report_of(tmp_path, space(gpu()))
    assert report.memory.allocator_calls_per_step is None
    overhead = next(entry for entry in report.verdict.ruled_out if entry.bound == "overhead-bound")
    assert (overhead.share, overhead.state) == (None, "not measured")
    assert "No rule found a change" not in report.to_markdown()


def test_hours_of_a_tpu_are_no_gpu_hours(tmp_path):
    assert report_of(tmp_path, space(tpu())).cost.unit == "rank"
    assert report_of(tmp_path, space(gpu())).cost.unit == "GPU"
