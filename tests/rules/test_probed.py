"""Findings beside probes: which probe belongs to which rule, and whether the two agree."""

import pytest

from profilerkit.model.finding import Evidence, Finding, Outcome, Saving
from profilerkit.model.probe import Probed
from profilerkit.report.probes import probed_words
from profilerkit.rules import RULES
from profilerkit.rules.probed import PROBES_OF, with_probes
from tests.recipes import facts


def outcome(rule, low=0.2, high=0.3, *, bound=None):
    finding = Finding(
        title="it waits",
        bound="input-bound",
        confidence="high",
        why="because",
        evidence=(Evidence(label="wait", value=0.3, unit="ratio", source="measured", origin="timers"),),
        saving=Saving(low=low, expected=(low + high) / 2, high=high, method="analytic", bound=bound),
    )
    return Outcome(rule=rule, name="x", summary="x", status="fired", findings=(finding,))


def probe(name="input", share=0.25, **changes):
    return Probed(name=name, change="a → b", share=share, low=share - 0.01, high=share + 0.01, steps=20, **changes)


def unmade(name, reason):
    return Probed(name=name, reason=reason)


def joined(rule, *probes, **saving):
    (found,) = with_probes(facts(probes=probes), [outcome(rule, **saving)])
    return found.findings[0]


def test_every_rule_named_here_exists():
    assert set(PROBES_OF) <= {rule.code for rule in RULES}


@pytest.mark.parametrize(
    ("share", "agreement"), [(0.25, "agrees"), (0.18, "agrees"), (0.16, "below"), (0.32, "agrees"), (0.35, "above")]
)
def test_intervals_that_lie_apart_do_not_agree(share, agreement):
    assert joined("IN001", probe(share=share)).probed.agreement == agreement


def test_more_than_predicted_is_only_more_than_the_bound():
    assert joined("IN001", probe(share=0.4), bound=0.45).probed.agreement == "agrees"


def test_number_of_workers_is_compared_with_workers_before_no_fetch_at_all():
    doubled, halved, none = probe("workers", 0.2), probe("workers", -0.3), probe("input", 0.5)
    assert joined("IN003", halved, doubled, none).probed.share == 0.2
    missing = unmade("workers", "its data set is iterable")
    assert joined("IN003", missing, none).probed.name == "input"
    assert joined("IN003", probe("workers", 0.05)).probed.agreement is None
    assert joined("IN003", probe("workers", 0.6)).probed.agreement is None


def test_finding_without_a_probe_of_its_kind_stays_as_it_is():
    assert joined("IN009", probe()).probed is None
    assert joined("CO001", probe()).probed is None
    assert joined("CO001", probe("comm")).probed is not None
    assert joined("CP001", probe("bf16")).probed is None  # TF32 is not bf16
    assert joined("CO010", probe("comm")).probed is None  # half of the exchange is not all of it
    assert joined("IN004", probe("workers"), probe("input")).probed.name == "input"


def test_words_say_predicted_beside_probed_and_a_contradiction():
    said = probed_words(
        joined("IN001", probe(share=0.05, step_ns=40_000_000, without_ns=40_000_000, probed_ns=38_000_000))
    )
    assert said.startswith("5.0 % measured (4.0–6.0 %), predicted 20–30 %. ")
    assert "Probe input, a → b, in 20 steps, 40.0 ms → 38.0 ms." in said
    assert "contradicts the prediction" in said
    left_out = unmade("input", "no loader feeds the steps")
    assert probed_words(joined("IN001", left_out)) == "Not probed: no loader feeds the steps."
