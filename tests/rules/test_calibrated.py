"""Intervals rest on applied fixes where enough were applied, and on a guess where not; nothing saves computing."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profilerkit.analysis.whatif import made_in_line
from profilerkit.model.finding import Evidence, Finding, Outcome, Saving
from profilerkit.model.step import PAUSES
from profilerkit.rules.calibrated import ON_DEVICE, UNTRIED, WITHIN, calibrated
from profilerkit.rules.parts import COMPUTING, PARTS_OF_RULE
from tests.recipes import INPUT, STEP_NS, replace
from tests.recipes import facts as facts_of

quick = settings(max_examples=60, deadline=None, derandomize=True)


def outcome(rule, told):
    seen = Evidence(label="a", value=1.0, unit="count", source="measured", origin="b")
    found = Finding(title="a", confidence="high", why="b", evidence=(seen,), bound=None, saving=told)
    return Outcome(rule=rule, name="a", summary="b", status="fired", findings=(found,))


def saving(expected, low=None, high=0.9, method="replay"):
    return Saving(low=expected if low is None else low, expected=expected, high=high, method=method)


def on_host(shares=None, **changes):
    return facts_of(shares, mode="cpu", **changes)


def told(known, rule, value):
    """The saving as the report has it."""
    ((found,),) = (entry.findings for entry in calibrated(known, [outcome(rule, value)]))
    return found.saving


def test_it_reaches_as_far_up_as_down():
    found = told(on_host(), "IN003", saving(0.4))
    within, cases = WITHIN["replay"]
    assert (found.low, found.high) == (pytest.approx(0.4 - within * 0.4), pytest.approx(0.4 + within * 0.4))
    assert (found.expected, found.calibration) == (0.4, f"calibrated on {cases} cases")


def test_on_a_device_it_never_goes_beyond_the_bound():
    assert told(facts_of({"input.wait": 0.42}), "IN003", saving(0.4, high=0.42)).high == 0.42


def test_on_a_host_what_is_left_is_off_by_as_much_as_savings_are():
    """Recorded steps are longer than others: the bound is a share of them."""
    found = told(on_host(), "OV004", saving(0.88, high=0.88, method="analytic"))
    assert found.high == found.most == pytest.approx(0.88 + WITHIN["analytic"][0] * 0.12)


def test_a_rule_that_doubts_is_heard():
    sure, unsure = (told(on_host(), "IN003", saving(0.4, low=low)) for low in (0.4, 0.2))
    assert unsure.low == pytest.approx(sure.low / 2)
    assert unsure.high == pytest.approx(0.8 - unsure.low)


def test_noise_of_the_steps_widens_it():
    quiet, noisy = (told(on_host(step_error_ns=error * STEP_NS), "IN003", saving(0.4)) for error in (0.0, 0.05))
    assert noisy.low < quiet.low
    assert noisy.high > quiet.high
    (alone,) = (told(on_host(step_error_ns=None), "OV002", saving(0.4, method="analytic")),)
    assert alone.low == pytest.approx(0.4 - (0.164**2 + (UNTRIED * 0.4) ** 2) ** 0.5)


def test_what_no_fix_was_tried_of_reaches_up_to_the_bound():
    for expected in (0.2, 0.9):
        found = told(on_host(), "OV002", saving(expected, high=0.95, method="analytic"))
        assert found.low == pytest.approx(expected - UNTRIED * min(expected, 1.0 - expected))
        assert (found.high, found.calibration) == (0.95, "uncalibrated")


def test_a_calibrated_interval_is_narrower_than_a_guessed_one():
    assert all(0 < within < UNTRIED for within in (ON_DEVICE, *(share for share, _ in WITHIN.values())))


def test_a_saving_that_may_be_nothing_was_not_among_those():
    found = told(on_host(), "OV001", saving(0.05, low=0.0, high=0.24, method="analytic"))
    assert (found.low, found.high, found.calibration) == (0.0, 0.24, "uncalibrated")


def test_batches_that_the_training_thread_makes_were_not_among_those():
    known = on_host({"input.prep": 0.5}, input=replace(INPUT, single_process=None))
    assert made_in_line(known)
    assert told(known, "IN001", saving(0.4)).calibration == "uncalibrated"
    for rule, method in (("OV005", "replay"), ("ME001", "analytic")):
        assert told(known, rule, saving(0.4, method=method)).calibration.startswith("calibrated")


@pytest.mark.parametrize(("expected", "is_told"), [(0.2, True), (0.1, False)])
def test_first_workers_are_told_as_calibrated_where_handing_over_is_small_beside_the_errors(expected, is_told):
    """1.6 % of a step of 100 ms is more than 12 % of a saving of 10 %."""
    known = on_host({"input.wait": 0.4}, input=replace(INPUT, single_process=True))
    for rule, wanted in (("IN001", is_told), ("IN002", is_told), ("IN003", True)):
        assert told(known, rule, saving(expected)).calibration.startswith("calibrated" if wanted else "uncalibrated")


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
    found = told(on_host(), rule, saving(0.4, low=0.1, method=method))
    assert found.calibration.startswith("calibrated" if is_told else "uncalibrated")
    assert found.most == 0.9
    assert (found.high < 0.9) is is_told


@pytest.mark.parametrize(("method", "is_told"), [("replay", True), ("analytic", False)])
def test_on_a_device_replayed_fixes_were_checked_and_formulas_were_not(method, is_told):
    known = facts_of({"input.wait": 0.8})
    found = told(known, "IN001", saving(0.7, high=0.8, method=method))
    assert found.calibration.startswith("checked" if is_told else "uncalibrated")
    assert found.low == pytest.approx(0.7 - (ON_DEVICE if is_told else UNTRIED) * 0.3)
    assert found.high == pytest.approx(0.7 + ON_DEVICE * 0.3 if is_told else 0.8)
    assert told(known, "IN900", saving(0.7, high=0.8)).calibration == "uncalibrated"


@quick
@given(st.sampled_from(sorted(PARTS_OF_RULE)), st.floats(0.05, 1), st.floats(0, 1), st.floats(0, 0.3))
def test_a_saving_is_ordered_and_leaves_what_the_device_computes(rule, computing, expected, noise):
    known = facts_of({"input.wait": 1 - computing, "compute.math": computing}, step_error_ns=noise * STEP_NS)
    for entry in calibrated(known, [outcome(rule, saving(expected, high=1.0, method="analytic"))]):
        for found in entry.findings:
            value = found.saving
            assert 0.0 <= value.low <= value.expected <= value.high <= value.most <= 1.0
            if PARTS_OF_RULE[rule] and not set(PARTS_OF_RULE[rule]) & {*PAUSES, *COMPUTING}:
                assert value.most <= max(1 - computing, 0.02) + 1e-9


def test_a_fix_for_what_the_device_works_through_is_none():
    (entry,) = calibrated(facts_of({"input.wait": 0.01}), [outcome("IN001", saving(0.4))])
    assert (entry.status, entry.findings) == ("passed", ())
    assert "the device computes" in entry.reason
    # What a host computes is quicker where something else leaves it.
    assert told(on_host({"input.wait": 0.01}), "IN001", saving(0.4)).expected == 0.4
