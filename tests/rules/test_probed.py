"""Findings beside probes: which probe belongs to which rule, and whether the two agree."""

import pytest

from profilerkit.model.finding import Evidence, Finding, Fix, Outcome, Probed, Saving, SettingChange
from profilerkit.report.findings import probed_words
from profilerkit.rules import RULES
from profilerkit.rules.calibrated import PROBES_OF, with_probes
from tests.recipes import STEP_NS, facts


def outcome(rule, low=0.2, high=0.3, *, bound=None, workers=None):
    finding = Finding(
        title="it waits",
        bound="input-bound",
        confidence="high",
        why="because",
        evidence=(Evidence(label="wait", value=0.3, unit="ratio", source="measured", origin="timers"),),
        saving=Saving(low=low, expected=(low + high) / 2, high=high, method="analytic", bound=bound),
        fix=Fix(text="load faster", changes=() if workers is None else (SettingChange("num_workers", *workers),)),
    )
    return Outcome(rule=rule, name="x", summary="x", status="fired", findings=(finding,))


def probe(name="input", share=0.25, **changes):
    changes = {"change": "a → b", **changes}
    return Probed(name=name, share=share, low=share - 0.01, high=share + 0.01, steps=20, **changes)


def unmade(name, reason):
    return Probed(name=name, reason=reason)


def joined(rule, *probes, **saving):
    (found,) = with_probes(facts(probes=probes), [outcome(rule, **saving)])
    return found.findings[0]


def test_every_rule_named_here_exists():
    assert set(PROBES_OF) <= {rule.code for rule in RULES}


@pytest.mark.parametrize(
    ("share", "agreement"), [(0.25, "agrees"), (0.22, "agrees"), (0.21, "below"), (0.32, "agrees"), (0.35, "above")]
)
def test_measured_interval_that_lies_apart_from_the_prediction_does_not_agree(share, agreement):
    assert joined("IN004", probe(share=share)).probed.agreement == agreement


def test_more_than_predicted_is_only_more_than_the_bound():
    assert joined("IN004", probe(share=0.4), bound=0.45).probed.agreement == "agrees"


def test_low_end_of_nothing_protects_no_prediction():
    assert joined("CO001", probe("comm", 0.03), low=0.0, high=0.4).saving.most == pytest.approx(0.04)


def test_bound_is_what_a_probe_measured_where_that_is_clearly_less():
    found = joined("IN004", probe(share=0.05))
    assert (found.saving.low, found.saving.expected, found.saving.high) == pytest.approx((0.0, 0.05, 0.06))
    assert (found.saving.method, found.saving.calibration) == ("bound", "measured in this run")
    assert (found.predicted.low, found.predicted.high) == (0.2, 0.3)
    for share in (0.24, 0.35):
        assert joined("IN004", probe(share=share)).predicted is None
        assert joined("IN004", probe(share=share)).saving.method == "analytic"


def test_fix_that_saved_nothing_worth_naming_is_not_proposed():
    for share in (0.01, -0.3):
        found = joined("IN004", probe(share=share))
        assert (found.saving, found.fix) == (None, None)
        assert found.predicted.expected == 0.25
        assert probed_words(found).endswith("so no fix is proposed.")


def test_steps_that_are_not_like_those_of_the_run_check_nothing():
    mean_ns = facts().mean_step_ns
    for times, agreement in ((0.7, "unlike"), (0.8, "below"), (1.3, "below"), (1.4, "unlike")):
        found = joined("IN004", probe(share=0.05, step_ns=round(times * mean_ns)))
        assert found.probed.agreement == agreement
        assert (found.predicted is None) == (agreement == "unlike")


def test_saving_is_within_the_step_whatever_the_record_says():
    saving = joined("IN003", probe("workers", 9.5, change="num_workers 1 → 2"), workers=(1, 2)).saving
    assert saving.low <= saving.expected <= saving.high == 1.0


def test_only_a_number_of_workers_is_taken_for_a_fix():
    found = joined("IN004", probe(share=0.6, change="epochs"))
    assert found.predicted is None


def test_probe_of_the_very_fix_is_right_in_both_directions():
    more = joined("IN003", probe("workers", 0.6, change="num_workers 1 → 2"), workers=(1, 2))
    assert more.probed.agreement == "above"
    assert more.saving.expected == 0.6
    assert more.predicted.expected == 0.25
    assert probed_words(more).endswith("gained more than predicted, so the saving is what was measured.")
    less = joined("IN003", probe("workers", 0.1, change="num_workers 1 → 2"), workers=(1, 2))
    assert less.saving.expected == 0.1


def test_probe_of_another_number_of_workers_is_no_check_of_the_fix():
    for share in (0.05, 0.25, 0.6):
        found = joined("IN003", probe("workers", share, change="num_workers 1 → 2"), workers=(1, 24))
        assert found.probed.agreement == "other"
        assert found.predicted is None
        assert probed_words(found).endswith("so this does not check its prediction.")


def test_fix_itself_comes_before_its_bound_and_that_before_other_values():
    halved = probe("workers", -0.3, change="num_workers 2 → 1")
    doubled, none = probe("workers", 0.2, change="num_workers 2 → 4"), probe("input", 0.5)
    same, other = (2, 4), (2, 3)
    assert joined("IN003", halved, none, doubled, workers=same).probed.share == 0.2
    assert joined("IN003", halved, none, doubled, workers=other).probed.name == "input"
    assert joined("IN003", halved, doubled, workers=other).probed.share == 0.2
    missing = unmade("workers", "its data set is iterable")
    assert joined("IN003", missing, none, workers=same).probed.name == "input"
    assert joined("IN003", missing, workers=same).probed == missing


def test_finding_without_a_probe_of_its_kind_stays_as_it_is():
    assert joined("IN009", probe()).probed is None
    assert joined("CO001", probe()).probed is None
    assert joined("CO001", probe("comm")).probed is not None
    assert joined("CP001", probe("bf16")).probed is None  # TF32 is not bf16
    assert joined("CO010", probe("comm")).probed is None  # half of the exchange is not all of it
    assert joined("IN004", probe("workers"), probe("input")).probed.name == "input"


def test_words_say_predicted_beside_probed_and_a_contradiction():
    times = {"step_ns": STEP_NS, "without_ns": STEP_NS, "probed_ns": STEP_NS * 95 // 100}
    said = probed_words(joined("IN001", probe(share=0.05, **times)))
    assert said.startswith("5.0 % measured (4.0–6.0 %), predicted 20–30 %. ")
    assert "Probe input, a → b, in 20 steps, 100 ms → 95.0 ms." in said
    assert "contradicts the prediction" in said
    left_out = unmade("input", "no loader feeds the steps")
    assert probed_words(joined("IN001", left_out)) == "Not probed: no loader feeds the steps."


def test_words_tell_a_loss_and_no_difference_from_a_gain():
    said = [probed_words(joined("IN004", one)) for one in (probe(share=-0.3), probe(share=0.005))]
    assert said[0].startswith("30 % longer measured (29–31 %), predicted")
    assert said[1].startswith("no clear difference measured (0.5 % longer to 1.5 % shorter), predicted")
