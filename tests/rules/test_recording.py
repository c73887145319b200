"""What the recorder's own weight does to savings, to the verdict and to what is said."""

import pytest

from profilerkit.analysis.facts import Facts
from profilerkit.analysis.job_facts import HostFacts
from profilerkit.analysis.rank_facts import rank_facts
from profilerkit.analysis.steps.phases import CALL_NS, OPERATOR_NS, RecordingFacts
from profilerkit.analysis.whatif import saving
from profilerkit.diagnosis.verdict import diagnose
from profilerkit.model import revise
from profilerkit.model.finding import Evidence, Fix, Outcome, Throughput
from profilerkit.model.run import Trust
from profilerkit.rules import RULES
from profilerkit.rules.api import finding_for
from profilerkit.rules.calibrated import without_recording
from profilerkit.rules.runner import run_rules
from tests.recipes import MS, STEP_NS, Trace, facts, replace

ALONE = Trust(mode="gpu")
PLAIN = RecordingFacts(options=(), events=1_000.0, waited_ns=0.1 * STEP_NS, hidden_ns=0.0)
STACKS = replace(PLAIN, options=("with_stack",))


def recorded(shares, recorder=STACKS, *, trust=ALONE, **changes):
    return facts(shares, trust=trust, host=HostFacts(recording=recorder), **changes)


def ended(rule, known, expected, bound="overhead-bound", high=None):
    evidence = Evidence(label="share", value=expected, unit="ratio", source="measured", origin="a test")
    found = finding_for(
        known,
        bound=bound,
        title="a title",
        why="Why.",
        evidence=(evidence,),
        at_most="high",
        saving=saving(expected, high or expected),
        fix=Fix(text="Do it."),
    )
    outcome = Outcome(rule=rule, name="a", summary="b", status="fired", findings=(found,))
    return found, without_recording(known, [outcome])[0]


@pytest.mark.parametrize("rule", ["OV001", "OV002", "OV003", "OV005"])
def test_what_recording_takes_is_no_saving_of_the_hosts_time(rule):
    known = recorded({"over.dispatch": 0.5})
    before, outcome = ended(rule, known, 0.5)
    (after,) = outcome.findings
    assert after.saving.low == 0.0 < before.saving.low
    assert after.saving.expected == pytest.approx((0.5 - 0.1) / 0.9)
    assert after.saving.high == before.saving.high
    assert after.confidence == "medium"
    assert "The recorder itself slows the host (with_stack), here by 10.0 ms" in after.why
    assert after.confirm.startswith("Record again without with_stack")


def test_a_saving_that_is_mostly_the_recorders_is_of_low_confidence_or_gone():
    known = recorded({"over.dispatch": 0.2}, replace(STACKS, waited_ns=0.15 * STEP_NS))
    assert ended("OV001", known, 0.2)[1].findings[0].confidence == "low"
    nearly_all = recorded({"over.dispatch": 0.2}, replace(STACKS, waited_ns=0.19 * STEP_NS))
    gone = ended("OV001", nearly_all, 0.2)[1]
    assert (gone.status, gone.findings) == ("passed", ())
    assert "recording itself takes 19 % of the step" in gone.reason


def test_of_two_waits_for_the_host_each_loses_its_part_of_the_recorders_time():
    known = recorded({"over.dispatch": 0.3, "sync.drain": 0.1}, replace(STACKS, waited_ns=0.2 * STEP_NS))
    launch, sync = (ended(rule, known, share)[1].findings[0].saving for rule, share in (("OV001", 0.3), ("OV002", 0.1)))
    assert (launch.expected, sync.expected) == (pytest.approx(0.15 / 0.8), pytest.approx(0.05 / 0.8))


def test_fewer_kernels_that_save_the_hosts_time_are_not_made_larger():
    _, outcome = ended("CP006", recorded({"over.dispatch": 0.5}), 0.2, bound="overhead-bound")
    assert outcome.findings[0].saving.expected == pytest.approx(0.2 * 0.8 / 0.9)


def test_where_the_queue_is_empty_all_that_is_recorded_counts():
    hidden = replace(STACKS, hidden_ns=0.2 * STEP_NS)
    known = recorded({"over.dispatch": 0.5}, hidden)
    known = replace(known, device=replace(known.device, queue_empty_ratio=0.5))
    assert ended("OV001", known, 0.5)[1].findings[0].saving.expected == pytest.approx((0.5 - 0.2) / 0.8)


def test_kernels_are_a_larger_share_of_the_step_without_the_recorder():
    known = recorded({"over.dispatch": 0.5, "compute.math": 0.5})
    before, outcome = ended("CP001", known, 0.3, bound="compute-bound", high=0.4)
    after = outcome.findings[0].saving
    assert after.expected == pytest.approx(0.3 / 0.9)
    assert after.high == pytest.approx(before.saving.high / 0.5)
    assert after.low == before.saving.low


@pytest.mark.parametrize(
    "known",
    [
        recorded({"over.dispatch": 0.5}, trust=Trust(mode="gpu", inflation_ratio=1.4)),
        recorded({"over.dispatch": 0.5}, PLAIN),
        recorded({"over.dispatch": 0.5}, None),
    ],
)
def test_untraced_steps_tell_more_and_a_plain_recording_changes_nothing(known):
    before, outcome = ended("OV001", known, 0.5)
    assert outcome.findings == (before,)


def test_on_a_host_nothing_is_for_certain_and_nothing_is_taken_off():
    known = recorded({"over.python": 0.5}, mode="cpu", device=None)
    before, outcome = ended("OV005", known, 0.5)
    assert (outcome.findings[0].saving.low, outcome.findings[0].saving.expected) == (0.0, before.saving.expected)


@pytest.mark.parametrize("rule", ["IN001", "CO001", "OV004"])
def test_waits_for_others_stay_as_they_were(rule):
    before, outcome = ended(rule, recorded({"over.dispatch": 0.5}), 0.3)
    assert outcome.findings == (before,)


def test_kernels_contend_where_only_the_recorder_may_let_them_wait():
    def verdict(share, recorder):
        known = recorded({"over.dispatch": share, "compute.math": 1.0 - share}, recorder)
        return diagnose(known, run_rules(known, RULES))

    assert "compute-bound" in verdict(0.5, STACKS).contenders
    assert "compute-bound" not in verdict(0.5, PLAIN).contenders
    assert "compute-bound" not in verdict(0.8, STACKS).contenders


def launching(*, calls=0, launches=20, steps=12):
    """Kernels of 30 µs that each wait for a host of 20 µs, which recording so many calls for each makes slower."""
    trace, at = Trace(), 1_000.0
    for number in range(steps):
        began = at
        for _ in range(launches):
            for call in range(calls):
                trace.frame("model.py(7): layer", at + 0.36 * call, at + 0.36 * call + 0.3)
            issued = at + 20 + (0.32 + 0.36 * calls if calls else 0.0)
            trace.op(at, issued)
            trace.kernel(issued, issued + 30, launch=(issued - 2, issued))
            at = issued + 30
        trace.step(number, began, at)
    return Facts([rank_facts("trace.json", trace.facts(), None)])


def test_stacks_that_make_a_loop_wait_for_its_host_are_taken_off_what_it_would_save():
    quiet, heavy = launching(), launching(calls=50)
    assert heavy.host.recording.options == ("with_stack",)
    assert heavy.host.recording.waited_ns == pytest.approx(20 * (OPERATOR_NS + 50 * CALL_NS), rel=0.01)

    def saved(known):
        return next(o.findings[0] for o in run_rules(known, RULES) if o.rule == "OV001").saving

    assert heavy.share("over.dispatch") > quiet.share("over.dispatch") + 0.1
    assert saved(heavy).expected == pytest.approx(saved(quiet).expected, abs=0.02)
    assert saved(heavy).low == 0.0 < saved(quiet).low


def test_allocations_are_seen_without_any_word_of_the_file_and_few_of_them_slow_nothing():
    def loop(count):
        trace, at = Trace(), 1_000
        for number in range(6):
            trace.op(at, at + 100)
            trace.kernel(at + 110, at + 200, launch=(at + 90, at + 95))
            for index in range(count):
                trace.memory(at + index, 512, allocated=512, reserved=1024)
            trace.step(number, at, at + 200)
            at += 200
        return trace.facts().recording

    assert loop(20).options == ("profile_memory",)
    assert loop(2).options == ()


def test_an_option_whose_events_are_not_in_the_file_is_known_by_its_word():
    trace = Trace(with_stack=1)
    for number in range(6):
        trace.op(1_000 + 100 * number, 1_050 + 100 * number)
        trace.kernel(1_060 + 100 * number, 1_090 + 100 * number, launch=(1_040 + 100 * number, 1_045 + 100 * number))
        trace.step(number, 1_000 + 100 * number, 1_100 + 100 * number)
    assert trace.facts().recording.options == ("with_stack",)


def test_a_collection_that_is_watched_is_no_stack():
    trace = Trace()
    for number in range(6):
        trace.frame("Python GC", 1_000 + 100 * number, 1_030 + 100 * number)
        trace.kernel(1_060 + 100 * number, 1_090 + 100 * number, launch=(1_040 + 100 * number, 1_045 + 100 * number))
        trace.step(number, 1_000 + 100 * number, 1_100 + 100 * number)
    assert trace.facts().recording.options == ()


def test_the_guard_says_what_recording_takes_and_from_how_many_events():
    known = recorded({"over.dispatch": 0.5}, replace(STACKS, hidden_ns=0.05 * STEP_NS))
    found = next(o.findings[0] for o in run_rules(known, RULES) if o.rule == "OV007")
    assert found.title == "Recorded with with_stack, which slows the host by 15.0 ms of every step or more"
    assert [entry.value for entry in found.evidence] == [1_000, pytest.approx(15 * MS), pytest.approx(10.25 * MS)]


def test_a_larger_batch_gains_less_without_the_recorder():
    known = recorded({"over.dispatch": 0.5, "compute.math": 0.5})
    gain = Throughput(low=0.5, expected=1.0, high=1.5, method="analytic")
    found = revise(ended("CP011", known, 0.3)[0], saving=None, throughput=gain)
    outcome = Outcome(rule="CP011", name="a", summary="b", status="fired", findings=(found,))
    (after,) = without_recording(known, [outcome])[0].findings
    assert (after.throughput.low, after.throughput.expected) == (0.0, pytest.approx(0.8 / 0.9))
