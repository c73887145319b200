"""Intervals rest on applied fixes where enough were applied, and on a guess where not; bounds hold either way."""

from dataclasses import replace

import pytest

from profilerkit.analysis.whatif import MODEL_ERROR, Z90, made_in_line
from profilerkit.model.finding import Evidence, Finding, Outcome, Saving
from profilerkit.rules.calibrated import WITHIN, _narrowed, calibrated
from tests.recipes import INPUT, STEP_NS
from tests.recipes import facts as facts_of


def outcome(rule, told):
    seen = Evidence(label="a", value=1.0, unit="count", source="measured", origin="b")
    found = Finding(title="a", confidence="high", why="b", evidence=(seen,), bound=None, saving=told)
    return Outcome(rule=rule, name="a", summary="b", status="fired", findings=(found,))


def facts(step_error_ns=0.0):
    return facts_of(step_error_ns=step_error_ns)


def saving(expected, low, high, method="replay"):
    return Saving(low=low, expected=expected, high=high, method=method)


def guessed(expected, high):
    return saving(expected, expected * (1 - Z90 * MODEL_ERROR), high)


def test_it_reaches_as_far_up_as_down():
    found = _narrowed(facts(), guessed(0.4, 1.0), 0.25, 13)
    assert (found.low, found.high) == (pytest.approx(0.3), pytest.approx(0.5))
    assert (found.expected, found.calibration) == (0.4, "calibrated on 13 cases")


def test_it_never_goes_beyond_the_bound():
    assert _narrowed(facts(), guessed(0.4, 0.42), 0.25, 13).high == 0.42


def test_a_rule_that_doubts_is_heard():
    usual = guessed(0.4, 1.0)
    doubted = saving(0.4, usual.low / 2, 1.0)
    found = _narrowed(facts(), doubted, 0.25, 13)
    assert found.low == pytest.approx(0.15)
    assert found.high == pytest.approx(0.65)


def test_noise_of_the_steps_widens_it():
    quiet, noisy = (_narrowed(facts(error), guessed(0.4, 1.0), 0.1, 9) for error in (0.0, 0.05 * STEP_NS))
    assert noisy.low < quiet.low
    assert noisy.high > quiet.high


def test_a_calibrated_interval_is_narrower_than_a_guessed_one():
    assert all(0 < within < MODEL_ERROR * Z90 for within, _ in WITHIN.values())


def test_a_saving_that_may_be_nothing_was_not_among_those():
    before = [outcome("OV001", saving(0.05, 0.0, 0.24, "analytic"))]
    ((found,),) = (entry.findings for entry in calibrated(replace(facts(), mode="cpu"), before))
    assert (found.saving.high, found.saving.calibration) == (0.24, before[0].findings[0].saving.calibration)


def test_batches_that_the_training_thread_makes_were_not_among_those():
    known = facts_of({"input.prep": 0.5}, mode="cpu", input=replace(INPUT, single_process=None))
    assert made_in_line(known)
    before = [outcome("IN001", saving(0.4, 0.1, 0.9))]
    ((found,),) = (entry.findings for entry in calibrated(known, before))
    assert found.saving.calibration.startswith("uncalibrated")


def test_where_the_training_thread_makes_its_batches_what_saves_in_another_place_is_told_as_elsewhere():
    known = facts_of({"input.prep": 0.5}, mode="cpu", input=replace(INPUT, single_process=None))
    assert made_in_line(known)
    before = [outcome("OV005", saving(0.4, 0.1, 0.9)), outcome("ME001", saving(0.4, 0.1, 0.9, "analytic"))]
    for entry in calibrated(known, before):
        assert entry.findings[0].saving.calibration.startswith("calibrated")


@pytest.mark.parametrize(("expected", "is_told"), [(0.2, True), (0.1, False)])
def test_first_workers_are_told_as_calibrated_where_handing_over_is_small_beside_the_errors(expected, is_told):
    """1.6 % of a step of 100 ms is more than 12 % of a saving of 10 %."""
    known = facts_of({"input.wait": 0.4}, mode="cpu", input=replace(INPUT, single_process=True))
    for rule, told in (("IN001", is_told), ("IN002", is_told), ("IN003", True)):
        ((found,),) = (e.findings for e in calibrated(known, [outcome(rule, saving(expected, 0.05, 0.9))]))
        assert found.saving.calibration.startswith("calibrated" if told else "uncalibrated")


@pytest.mark.parametrize(
    ("rule", "method", "is_told"),
    [
        ("IN001", "replay", True),
        ("IN001", "analytic", False),
        ("CO001", "replay", False),
        ("CO001", "analytic", True),
        ("CP001", "analytic", False),
        ("OV001", "bound", False),
        ("OV002", "replay", False),
        ("RU900", "analytic", False),
    ],
)
def test_only_kinds_that_were_applied_are_told_as_calibrated(rule, method, is_told):
    before = outcome(rule, saving(0.4, 0.1, 0.9, method))
    ((found,),) = (entry.findings for entry in calibrated(replace(facts(), mode="cpu"), [before]))
    assert found.saving.calibration.startswith("calibrated" if is_told else "uncalibrated")
    assert found.saving.most == 0.9
    assert (found.saving.high < 0.9) is is_told


def test_what_a_device_runs_is_not_told_as_calibrated():
    before = outcome("IN001", saving(0.4, 0.1, 0.9))
    ((found,),) = (entry.findings for entry in calibrated(replace(facts(), mode="gpu"), [before]))
    assert found.saving == before.findings[0].saving
