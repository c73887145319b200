"""The one sentence: every verdict is reachable, ranked by saving, and short."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profilerkit.analysis.facts import Facts
from profilerkit.analysis.rank_facts import rank_facts
from profilerkit.analysis.steps.series import Doubt, Stall
from profilerkit.api import analyze
from profilerkit.diagnosis.verdict import diagnose
from profilerkit.model import revise
from profilerkit.model.finding import Evidence, Finding, Fix, Outcome, Saving
from profilerkit.model.run import STEP_TIMERS, Loader, Signal, Trust
from profilerkit.model.step import PARTS, WHOLE_TRACE, Rank, SlowSteps
from profilerkit.model.verdict import RECORD, RECORD_MORE
from profilerkit.report.terminal import render
from profilerkit.rules import RULES
from profilerkit.rules.runner import run_rules
from tests.recipes import INPUT, MS, STEP_NS, facts, host_training, parts, replace, steps, training
from tests.rules.test_rules import FIRES, NO_STEPS, cold, on_host, stalling, timers_only, waiting


def verdict_of(known):
    return diagnose(known, run_rules(known, RULES))


def outcome(bound, expected, *, detail="", confidence="high", code="XX001", fix=True):
    """A rule that fired for a bound with an expected saving."""
    found = Finding(
        title="one thing costs much",
        bound=bound,
        detail=detail,
        why="because",
        confidence=confidence,
        evidence=(Evidence(label="x", value=1, unit="count", source="measured", origin="a recipe"),),
        saving=Saving(low=0.0, expected=expected, high=1.0, method="analytic"),
        fix=Fix(text="a → b") if fix else None,
    )
    return Outcome(rule=code, name="x", summary="x", status="fired", findings=(found,))


REACHED = {
    ("input-bound", "wait"): FIRES["IN001"],
    ("input-bound", "prep"): FIRES["IN002"],
    ("input-bound", "h2d"): FIRES["IN009"],
    ("memory-bound", "bandwidth"): FIRES["CP004"],
    ("memory-bound", "capacity"): FIRES["ME001"],
    ("comm-bound", "bandwidth"): FIRES["CO001"],
    ("compute-bound", "precision"): FIRES["CP001"],
    ("compute-bound", "math"): facts(),
    ("compute-bound", "small kernels"): facts({"compute.small": 0.6}),
    ("compute-bound", ""): facts({"compute.other": 0.6}),
    ("overhead-bound", "launch"): FIRES["OV001"],
    ("overhead-bound", "python"): facts({"over.python": 0.4}),
    ("overhead-bound", "sync"): FIRES["OV002"],
    ("overhead-bound", "checkpoint"): stalling(0.3),
    ("overhead-bound", "evaluation"): stalling(0.3, kind="evaluation", part="other.eval"),
    ("balanced", ""): facts({"over.python": 0.07, "input.wait": 0.07}),
    ("inconclusive", ""): facts(steps=NO_STEPS, step_ns=None, parts=()),
}


@pytest.mark.parametrize(("bound", "detail"), REACHED)
def test_the_verdict_is_reached(bound, detail):
    found = verdict_of(REACHED[bound, detail])
    assert (found.bound, found.detail) == (bound, detail)


@pytest.mark.parametrize(
    ("shares", "bounds", "said"),
    [
        (
            {"compute.membw": 0.3},
            {"memory-bound": 0.2},
            "Computing takes a larger share (70 %, memory traffic 30 %), but that is the work itself.",
        ),
        (
            {"input.wait": 0.6, "over.python": 0.2},
            {"overhead-bound": 0.2, "input-bound": 0.12},
            "Input takes a larger share (60 %, the host's own work 20 %), but its best fix is expected to save 12 %.",
        ),
        (
            {"input.wait": 0.6, "over.python": 0.2},
            {"overhead-bound": 0.2},
            "(60 %, the host's own work 20 %), but no fix for it was found.",
        ),
        ({"compute.membw": 0.6}, {"memory-bound": 0.2}, None),
        ({"input.wait": 0.3}, {"input-bound": 0.2}, None),
    ],
)
def test_a_larger_share_that_is_not_the_bound_says_why(shares, bounds, said):
    outcomes = [outcome(bound, saving, detail="launch") for bound, saving in bounds.items()]
    consequence = diagnose(facts(shares), outcomes).consequence
    assert said in consequence if said else "takes a larger share" not in consequence


def test_what_asks_for_more_steps_says_which_of_many_could_be_used():
    noisy = waiting(0.11, step_error_ns=0.06 * STEP_NS)
    assert verdict_of(noisy).refuted_by == (
        "20 of 21 recorded steps could be judged (1 warm-up): record about 40 like these."
    )
    dropped = {"compile": 30, "warmup": 4}
    late = replace(cold(0.5), steps=revise(steps(2, count=36), dropped=dropped))
    assert verdict_of(late).refuted_by == (
        "2 of 36 recorded steps could be judged (30 compiling, 4 warm-up): "
        "record 10 more once first-use work has ended."
    )
    assert (
        verdict_of(replace(late, steps=steps(2, count=3))).refuted_by == "Record at least 10 steps after the first 5."
    )


@pytest.mark.parametrize(
    ("share", "said"),
    [(0.03, "save 4.0 %, of which at least 1.0 % of the step is in other parts"), (0.04, "save 4.0 %")],
)
def test_a_saving_beyond_its_share_says_that_it_lies_in_other_parts_too(share, said):
    outcomes = [outcome("input-bound", 0.3), outcome("overhead-bound", 0.04)]
    found = diagnose(facts({"input.wait": 0.4, "over.python": share}), outcomes)
    (row,) = (entry for entry in found.ruled_out if entry.bound == "overhead-bound")
    assert row.reason.endswith(said)


def test_every_verdict_of_the_vocabulary_is_reached():
    assert {bound for bound, _ in REACHED} == {
        "input-bound", "memory-bound", "comm-bound", "compute-bound", "overhead-bound", "balanced", "inconclusive"
    }  # fmt: skip


def test_bounds_are_ranked_by_saving_and_not_by_share():
    known = facts({"input.wait": 0.6, "over.python": 0.2})
    found = diagnose(known, [outcome("input-bound", 0.12), outcome("overhead-bound", 0.2, detail="launch")])
    assert (found.bound, found.share) == ("overhead-bound", pytest.approx(0.2))
    assert found.contenders == ("input-bound",)


def test_a_bound_stands_for_its_best_finding():
    outcomes = [outcome("input-bound", 0.12), outcome("input-bound", 0.3), outcome("overhead-bound", 0.2)]
    found = diagnose(facts({"input.wait": 0.4}), outcomes)
    assert (found.bound, found.saving.expected) == ("input-bound", 0.3)


def test_of_two_findings_that_save_the_same_the_one_with_a_fix_is_told():
    with_fix, without = (
        outcome("input-bound", 0.3, detail="prep"),
        outcome("input-bound", 0.3, detail="wait", fix=False),
    )
    for outcomes in ([with_fix, without], [without, with_fix]):
        assert diagnose(facts({"input.wait": 0.4}), outcomes).detail == "prep"


@pytest.mark.parametrize(("second", "contenders"), [(0.05, ("comm-bound",)), (0.0499, ())])
def test_every_other_bound_from_five_percent_on_is_a_contender(second, contenders):
    known = facts({"input.wait": 0.5, "comm.other": 0.2})
    found = diagnose(known, [outcome("input-bound", 0.3), outcome("comm-bound", second)])
    assert found.contenders == contenders
    assert ("comm-bound" in {entry.bound for entry in found.ruled_out}) is not bool(contenders)


@pytest.mark.parametrize(("saving", "bound"), [(0.10, "input-bound"), (0.0999, "balanced")])
def test_a_bound_is_named_from_ten_percent_on(saving, bound):
    assert diagnose(facts({"input.wait": 0.3}), [outcome("input-bound", saving)]).bound == bound


@pytest.mark.parametrize(("saving", "bound"), [(0.05, "balanced"), (0.0499, "compute-bound")])
def test_a_run_without_savings_is_bound_by_its_kernels(saving, bound):
    assert diagnose(facts({"input.wait": 0.2}), [outcome("input-bound", saving)]).bound == bound


#: Parts outside the kernels that no rule of these tests prices, each too small to stand in the way of a verdict.
PIECES = ("other.prof", "other.log", "idle.unknown", "warm.compile")


@pytest.mark.parametrize(("kernels", "bound"), [(0.5, "compute-bound"), (0.4999, "balanced")])
def test_kernels_must_own_half_of_the_step_to_bound_it(kernels, bound):
    known = facts({"compute.math": kernels, **dict.fromkeys(PIECES, (1.0 - kernels) / len(PIECES))})
    assert diagnose(known, []).bound == bound


@pytest.mark.parametrize(("moving", "bound"), [(0.4501, "memory-bound"), (0.45, "compute-bound")])
def test_a_run_without_savings_is_bound_by_what_most_of_its_kernels_do(moving, bound):
    found = verdict_of(facts({"compute.membw": moving, "compute.math": 0.9 - moving, "other.prof": 0.1}))
    assert (found.bound, found.saving) == (bound, None)
    assert found.consequence.startswith("No fix that is known here reaches 5 % of the step.")


def test_kernels_that_move_memory_by_name_are_told_with_medium_confidence():
    found = verdict_of(facts({"compute.membw": 0.6}))
    assert (found.bound, found.detail, found.confidence) == ("memory-bound", "bandwidth", "medium")
    assert found.headline == "The GPU moves memory for 60.0 ms of every 100 ms step"
    assert verdict_of(facts({"compute.membw": 0.3})).confidence == "high"


@pytest.mark.parametrize(("share", "detail"), [(0.25, "likely"), (0.2499, "math")])
@pytest.mark.parametrize(
    ("part", "words", "bound"),
    [
        ("over.gc", "Garbage collection", "overhead-bound"),
        ("mem.alloc", "Allocator calls", "memory-bound"),
        ("other.log", "Logging", "overhead-bound"),
    ],
)
def test_a_large_part_that_no_finding_prices_is_the_likely_bound(part, words, bound, share, detail):
    found = diagnose(facts({part: share}), [])
    assert found.detail == detail
    if detail == "likely":
        assert (found.bound, found.confidence, found.headline) == (bound, "low", f"{words}: 25 % of the step")
        assert "25.0 ms of every 100 ms step" in found.consequence


@pytest.mark.parametrize(("share", "confidence"), [(0.10, "medium"), (0.0999, "high")])
def test_a_noticeable_part_that_no_finding_prices_lowers_the_confidence(share, confidence):
    found = diagnose(facts({"over.gc": share}), [])
    assert (found.bound, found.confidence) == ("compute-bound", confidence)


def test_a_finding_prices_its_own_part_and_not_the_others_of_its_family():
    known = facts({"other.log": 0.4, "over.python": 0.08})
    found = verdict_of(known)  # OV001 prices the Python, nothing the logging
    assert found.headline == "Logging: 40 % of the step"
    assert verdict_of(facts({"input.h2d": 0.3, "input.wait": 0.1})).detail == "likely"


@pytest.mark.parametrize(
    ("known", "bound"),
    [
        (facts({"over.python": 0.3}), "overhead-bound"),
        (FIRES["OV002"], "overhead-bound"),
        (replace(stalling(0.3), parts=parts({"other.ckpt": 0.3, "compute.math": 0.7})), "overhead-bound"),
        (replace(FIRES["ME001"], parts=parts({"mem.alloc": 0.3, "compute.math": 0.7})), "memory-bound"),
        (replace(FIRES["CO001"], parts=parts({"comm.other": 0.3, "compute.math": 0.7})), "comm-bound"),
        (FIRES["IN009"], "input-bound"),
        (waiting(0.3), "input-bound"),
    ],
)
def test_what_a_rule_prices_is_not_called_unpriced(known, bound):
    outcomes = run_rules(known, RULES)
    assert diagnose(known, outcomes).bound == bound
    # The same findings with a saving too small to name a bound, but worth naming.
    small = Saving(low=0.0, expected=0.06, high=0.1, method="analytic")
    shrunk = [
        revise(entry, findings=tuple(revise(f, saving=small) if f.saving else f for f in entry.findings))
        for entry in outcomes
    ]
    assert diagnose(known, shrunk).bound == "balanced"


@pytest.mark.parametrize(
    ("part", "ignore", "named"),
    [
        ("sync.drain", "OV002", False),
        ("input.wait", "IN001", False),
        ("other.log", "RU002", False),
        ("other.prof", "OV", True),
        ("sync.drain", "OV001", True),
        ("input.h2d", "IN002", True),
    ],
)
def test_only_a_part_whose_own_rule_is_off_is_not_called_unpriced(part, ignore, named):
    known = facts({part: 0.4}, input=replace(INPUT, single_process=None), stalls=())
    found = diagnose(known, [revise(entry, findings=()) for entry in run_rules(known, RULES, ignore=(ignore,))])
    assert ("No fix for it is known" in found.refuted_by) is named


def test_a_rule_of_another_package_prices_what_its_bound_is_about():
    known = facts({"over.gc": 0.4})
    found = diagnose(known, [outcome("overhead-bound", 0.07, code="MY001")])
    assert (found.bound, found.contenders) == ("balanced", ("overhead-bound",))
    assert diagnose(known, [outcome("overhead-bound", 0.07, code="OV001")]).detail == "likely"


def test_fewer_chains_of_kernels_do_not_make_allocation_shorter():
    known = facts({"mem.alloc": 0.3})
    assert diagnose(known, [outcome("memory-bound", 0.07, code="CP004")]).detail == "likely"
    assert diagnose(known, [outcome("memory-bound", 0.07, code="ME001")]).bound == "balanced"


@pytest.mark.parametrize(
    ("kernels", "fix", "bound", "contenders"),
    [
        ("compute.membw", "compute-bound", "memory-bound", ("compute-bound",)),
        ("compute.math", "compute-bound", "compute-bound", ()),
        ("compute.math", "overhead-bound", "balanced", ("overhead-bound",)),
    ],
)
def test_kernels_own_a_step_of_which_a_fix_of_theirs_saves_a_little(kernels, fix, bound, contenders):
    found = diagnose(facts({kernels: 0.9, "over.dispatch": 0.1}), [outcome(fix, 0.07)])
    assert (found.bound, found.contenders) == (bound, contenders)
    assert found.saving is not None


@pytest.mark.parametrize(("world", "advice"), [(4, "every rank"), (1, "bus bandwidth")])
def test_communication_that_nothing_could_hide_is_not_called_waiting_nor_transfer(world, advice):
    known = facts({"comm.other": 0.5}, world_size=world)
    found = diagnose(known, [])
    assert found.headline == "50 % of the step is communication that nothing could overlap"
    assert advice in found.refuted_by


def test_where_a_rank_is_missing_the_first_advice_is_to_record_it():
    several = tuple(replace_rank(facts().rank, rank) for rank in range(3))
    known = facts({"comm.other": 0.5}, world_size=4, missing_ranks=1, ranks=several)
    assert diagnose(known, []).refuted_by.startswith("Record every rank and analyze all of them together:")


@pytest.mark.parametrize(("second", "confidence"), [(0.1999, "high"), (0.2001, "medium")])
def test_a_close_second_lowers_the_confidence(second, confidence):
    known = facts({"input.wait": 0.5, "comm.other": 0.3})
    found = diagnose(known, [outcome("input-bound", 0.3), outcome("comm-bound", second)])
    assert found.confidence == confidence


def test_a_verdict_is_no_surer_than_its_finding():
    assert diagnose(facts({"input.wait": 0.5}), [outcome("input-bound", 0.3, confidence="low")]).confidence == "low"


@pytest.mark.parametrize(("steady", "confidence"), [(1, "low"), (2, "medium"), (7, "medium"), (8, "high")])
@pytest.mark.parametrize("shares", [{}, {"input.wait": 0.4}])
def test_few_steps_cap_the_confidence(steady, confidence, shares):
    found = verdict_of(facts(shares, steady=steady))
    assert found.confidence == confidence
    assert (f"Only {steady} steady step" in found.consequence) is (steady < 8)


def test_what_is_not_the_bound_is_ruled_out_with_its_number():
    found = verdict_of(facts({"input.wait": 0.4, "comm.other": 0.02}))
    shares = {entry.bound: entry.share for entry in found.ruled_out}
    assert set(shares) == {"memory-bound", "comm-bound", "compute-bound", "overhead-bound"}
    assert shares["comm-bound"] == pytest.approx(0.02)
    assert all(entry.reason for entry in found.ruled_out)


@pytest.mark.parametrize(
    ("known", "bound"),
    [
        (facts(input=None), "input-bound"),
        (on_host({"input.prep": 0.4}), "memory-bound"),
        (timers_only({"input.wait": 0.4}), "comm-bound"),
        (timers_only({"input.wait": 0.4, "idle.unknown": 0.6}), "compute-bound"),
    ],
)
def test_what_was_not_measured_is_not_ruled_out_by_a_zero(known, bound):
    row = next(entry for entry in verdict_of(known).ruled_out if entry.bound == bound)
    assert (row.state, row.share, row.saving) == ("not measured", None, None)
    assert row.reason


def test_waiting_for_a_processor_is_no_time_that_nothing_explains():
    busy = on_host({"input.prep": 0.4, "idle.unknown": 0.35}, steps=steps(queued_ratio=0.2))
    assert verdict_of(busy).bound == "input-bound"
    more = on_host({"input.prep": 0.2, "idle.unknown": 0.55}, steps=steps(queued_ratio=0.2))
    found = verdict_of(more)
    assert (found.bound, found.confidence) == ("input-bound", "low")
    assert found.refuted_by == (
        "Record it again while nothing else runs on this host: the training thread waited 20 % of the time for a "
        "processor."
    )
    quiet = on_host({"input.prep": 0.4, "idle.unknown": 0.35}, steps=steps(queued_ratio=0.09))
    assert (verdict_of(quiet).bound, verdict_of(quiet).confidence) == ("input-bound", "low")
    assert verdict_of(quiet).refuted_by.startswith("Record more steps, with every stream and the host")
    assert (verdict_of(quiet).command, found.command) == (RECORD, "")
    timed = replace(quiet, trust=revise(quiet.trust, signals=(Signal(name=STEP_TIMERS, state="measured"),)))
    assert verdict_of(timed).refuted_by.startswith("Record more steps, with the names of functions.")
    assert verdict_of(timed).command == RECORD_MORE
    for other in (replace(busy, mode="gpu"), replace(busy, world_size=2)):
        assert verdict_of(other).confidence == "low"


def test_operators_that_move_memory_are_not_left_out_where_their_traffic_is_not_known():
    """The table of parts shows them as bandwidth-limited."""
    for moving, said in ((0.28, "operators of the kind that moves memory take 28 % of the step; no device"), (0, "no")):
        known = on_host({"input.prep": 0.4, "compute.membw": moving})
        row = next(entry for entry in verdict_of(known).ruled_out if entry.bound == "memory-bound")
        assert row.state == "not measured"
        assert row.reason.startswith(said)


def test_collectives_that_a_trace_does_not_have_are_measured():
    row = next(entry for entry in verdict_of(facts({"input.wait": 0.4})).ruled_out if entry.bound == "comm-bound")
    assert (row.state, row.share, row.reason) == ("ruled out", 0.0, "no collective was seen")


def test_a_share_that_a_fix_could_be_worth_says_why_it_is_not_the_verdict():
    reasons = {entry.bound: entry.reason for entry in verdict_of(facts({"input.wait": 0.3})).ruled_out}
    smaller = verdict_of(facts({"input.wait": 0.5, "compute.membw": 0.4, "compute.math": 0.1}))
    (memory,) = [entry.reason for entry in smaller.ruled_out if entry.bound == "memory-bound"]
    assert memory == "memory traffic and allocation take 40 % of the step; no fix for it was found"
    assert reasons["compute-bound"] == "computation takes 70 % of the step; no fix for it was found"
    assert reasons["overhead-bound"] == "the host's own work takes 0 % of the step"
    paused = {
        entry.bound: entry.reason for entry in verdict_of(facts({"input.wait": 0.3, "other.ckpt": 0.1})).ruled_out
    }
    assert paused["overhead-bound"].startswith("the host's own work with pauses takes 10 % of the step")


@pytest.mark.parametrize(
    ("ignore", "reason"),
    [(("OV",), "; its rules were switched off"), (("OV002",), "; 1 of its rules was switched off")],
)
def test_a_bound_whose_rules_were_switched_off_says_so(ignore, reason):
    known = facts({"input.wait": 0.3, "other.eval": 0.1})
    found = diagnose(known, run_rules(known, RULES, ignore=ignore))
    (row,) = [entry for entry in found.ruled_out if entry.bound == "overhead-bound"]
    assert row.reason.endswith(reason)


def test_a_run_without_steps_has_no_verdict():
    found = verdict_of(facts(steps=NO_STEPS, step_ns=None, parts=()))
    assert (found.bound, found.confidence, found.share, found.saving) == ("inconclusive", "low", None, None)
    assert found.headline == "No training step was recorded"


def test_a_window_of_first_use_work_is_a_cold_start():
    known = cold(0.6)
    found = verdict_of(known)
    assert (found.bound, found.headline) == (
        "inconclusive",
        "Only a cold start was recorded: first-use work takes 60 %",
    )
    found = verdict_of(replace(known, parts=parts({"mem.alloc": 0.4, "warm.load": 0.2, "over.dispatch": 0.4})))
    assert (found.bound, found.detail, found.share) == ("overhead-bound", "likely", 0.6)
    assert found.headline == "Only a cold start was recorded: allocator calls take 40 %"
    assert verdict_of(replace(known, cold=None)).bound == "compute-bound"


@pytest.mark.parametrize(
    ("unknown", "bound", "detail", "is_low"),
    [
        (0.2499, "input-bound", "wait", False),
        (0.25, "input-bound", "wait", True),
        (0.35, "overhead-bound", "likely", True),
    ],
)
def test_what_nothing_explains_makes_a_verdict_likely_and_is_named_where_it_is_more(unknown, bound, detail, is_low):
    found = verdict_of(facts({"idle.unknown": unknown, "input.wait": 0.3}))
    assert (found.bound, found.detail, found.confidence == "low") == (bound, detail, is_low)


def test_what_nothing_explains_on_a_host_may_be_anything():
    assert verdict_of(on_host({"idle.unknown": 0.6})).bound == "inconclusive"


def test_timers_alone_ask_for_a_trace():
    found = verdict_of(timers_only({"idle.unknown": 0.91, "input.wait": 0.09}))
    assert (found.bound, found.refuted_by) == ("inconclusive", "Record a trace of some steps.")


@pytest.mark.parametrize(("count", "command"), [(15, ""), (16, RECORD)])
def test_only_a_loop_that_is_long_enough_for_a_trace_is_to_be_recorded_again(count, command):
    assert verdict_of(timers_only({"idle.unknown": 1.0}, steps=steps(14, count=count))).command == command


def test_why_there_is_no_trace_is_said_where_it_is_known():
    known = timers_only({"idle.unknown": 1.0})
    missing = Signal(name="operator trace", state="missing", reason="no window was open", hint="deep=True")
    found = verdict_of(replace(known, trust=Trust(mode="steps", signals=(missing,))))
    assert found.refuted_by == "Record a trace of some steps; this run has none: no window was open."


@pytest.mark.parametrize(("wait", "bound"), [(0.12, "input-bound"), (0.11, "inconclusive")])
def test_timers_alone_may_name_what_they_measured(wait, bound):
    # Nine tenths of the wait are the saving where the number of workers is not known: 10 % names a bound.
    found = verdict_of(timers_only({"idle.unknown": 1.0 - wait, "input.wait": wait}))
    assert found.bound == bound


def test_a_trace_without_the_events_of_its_device_has_no_verdict():
    known = replace(on_host({"input.wait": 0.4}), device_events_missing=True, kernels_unseen="not_asked")
    found = verdict_of(known)
    assert found.headline == "The run used a device, but none of its events is in the trace"
    assert "ProfilerActivity.CUDA" in found.refuted_by
    cut = verdict_of(replace(known, kernels_unseen="cut"))
    assert cut.headline == "The file is cut off before any device event"


@pytest.mark.parametrize(("events", "bound"), [(999, "inconclusive"), (1_000, "input-bound")])
def test_a_scrap_of_a_file_without_steps_has_no_verdict(events, bound):
    cut = Trust(mode="cpu", truncated=True, events=events)
    known = replace(on_host({"input.wait": 0.9}), trust=cut, steps=steps(found_by=WHOLE_TRACE))
    assert verdict_of(known).bound == bound


def test_a_doubt_about_the_split_is_said_and_caps_the_confidence():
    known = facts({"input.wait": 0.4}, loader=Loader(kind="DataLoader", num_workers=0))
    doubtful = replace(
        known, doubts=(Doubt("traced steps", "Traced steps took 1.81 × the time."), Doubt("noise", "Second."))
    )
    assert (verdict_of(known).confidence, verdict_of(doubtful).confidence) == ("high", "medium")
    assert "Traced steps took 1.81 × the time." in verdict_of(doubtful).consequence
    assert "Second." not in verdict_of(doubtful).consequence
    assert "Traced" not in verdict_of(replace(doubtful, waiting_share=0.4)).consequence
    healthy = facts(doubts=(Doubt("traced steps", "Traced steps took 1.81 × the time."),))
    assert (verdict_of(healthy).bound, verdict_of(healthy).confidence) == ("compute-bound", "medium")


@pytest.mark.parametrize(("error", "detail"), [(0.06, "likely"), (0.04, "wait")])
def test_of_steps_that_differ_too_much_the_largest_cause_is_likely_and_the_run_is_not_cleared(error, detail):
    # 11 % of waiting is twice 4 % of noise, but not twice 6 %.
    known = waiting(0.11, step_error_ns=error * STEP_NS)
    found = verdict_of(known)
    assert (found.bound, found.detail) == ("input-bound", detail)
    if detail == "likely":
        assert found.headline == "The 20 steady steps differ too much to name a saving"


def test_noise_is_told_before_a_part_that_a_quiet_run_would_have_priced():
    known = replace(FIRES["ME001"], parts=parts({"mem.alloc": 0.3, "compute.math": 0.7}))
    assert verdict_of(known).bound == "memory-bound"
    noisy = verdict_of(replace(known, step_error_ns=0.2 * STEP_NS))
    assert noisy.headline == "The 20 steady steps differ too much to name a saving"


def test_noise_in_a_run_that_loses_nothing_is_no_doubt():
    assert verdict_of(facts(step_error_ns=0.2 * STEP_NS)).bound == "compute-bound"


def uneven(known, steady=3, cv=0.2):
    """The facts with few judged steps that differ much."""
    times = revise(known.steps.time_ns, cv_ratio=cv)
    return replace(known, steps=revise(known.steps, steady=steady, time_ns=times))


def test_a_mean_of_few_steps_that_differ_much_is_not_said_of_every_step():
    known = uneven(REACHED["memory-bound", "capacity"])
    found = diagnose(known, outcomes := run_rules(known, RULES))
    assert found.headline == "The GPU waits 10.0 ms of the mean 100 ms step for memory allocation"
    (title,) = [finding.title for outcome in outcomes for finding in outcome.findings if outcome.rule == "ME001"]
    assert title.endswith("in the mean step")


HEADLINES = {
    "noisy": waiting(0.11, step_error_ns=0.06 * STEP_NS),
    **REACHED,
    "cold": replace(cold(0.8), steps=steps(2, count=2)),
    "memory": facts({"compute.membw": 0.6}),
    "no device events": replace(on_host(), device_events_missing=True, kernels_unseen="not_asked"),
    **{
        f"late, unpriced {name}": facts({name: 0.5}, waiting_share=0.4)
        for name in PARTS
        if not name.startswith("compute.")
    },
    "late, balanced": facts({"over.python": 0.07, "input.wait": 0.07}, waiting_share=0.4),
    "late, memory": facts({"compute.membw": 0.6}, waiting_share=0.4),
    "late, compute": facts(waiting_share=0.4),
    "unexplained": facts({"idle.unknown": 0.7}),
    "logging": stalling(0.4, kind="logging", part="other.log"),
    "unnamed": stalling(0.4, kind="unnamed", part=None, source="derived"),
    "user phase": stalling(0.4, kind="ema update", part="other.phase"),
    "long user phase": stalling(
        0.4, kind="my very own phase with a name that goes on and on for ever", part="other.phase"
    ),
    "phase without spaces": stalling(0.4, kind="x" * 500, part="other.phase"),
    "on the host": on_host({"input.prep": 0.4}, loader=Loader(kind="DataLoader", num_workers=0)),
    "a late rank": replace(FIRES["OV001"], waiting_share=0.4),
    "a late rank that communicates": replace(FIRES["CO001"], waiting_share=0.4),
}


@pytest.mark.parametrize("differ", [False, True])
@pytest.mark.parametrize("case", HEADLINES, ids=str)
def test_a_headline_has_at_most_fourteen_words(case, differ):
    known = HEADLINES[case]
    known = uneven(known) if differ and known.steps.time_ns else known
    known = replace(known, ranks=(replace_rank(known.rank, 12_345),)) if known.waiting_share is not None else known
    found = verdict_of(known)
    assert 3 <= len(found.headline.split()) <= 14, found.headline
    assert not found.headline.endswith(".")


def test_a_phase_keeps_the_letters_of_its_name():
    assert verdict_of(stalling(0.4, kind="EMA update")).headline.startswith("EMA update stops training")
    assert verdict_of(stalling(0.4, kind="save EMA")).headline.startswith("Save EMA stops training")


@pytest.mark.parametrize("kind", ["x" * 500, "a phase whose name goes on and on", "incomprehensibilities " * 3])
def test_a_long_phase_name_is_cut_where_it_can_be_seen(kind):
    headline = verdict_of(stalling(0.4, kind=kind)).headline
    assert len(headline) < 90
    assert "…" in headline


def replace_rank(rank, number):
    return Rank(rank=number, **{key: getattr(rank, key) for key in ("origin", "breakdown", "busy_ratio", "step_ns")})


@pytest.mark.parametrize(
    ("case", "headline"),
    [
        (("input-bound", "wait"), "The GPU waits 40.0 ms of every 100 ms step for data"),
        (("input-bound", "h2d"), "The GPU spends 30.0 ms of every 100 ms step on batch copies"),
        (("comm-bound", "bandwidth"), "The GPU spends 20.0 ms of every 100 ms step on exposed communication"),
        (("memory-bound", "capacity"), "The GPU waits 10.0 ms of every 100 ms step for memory allocation"),
        (("memory-bound", "bandwidth"), "The GPU moves memory for 50.0 ms of every 100 ms step"),
        (("overhead-bound", "launch"), "The GPU idles 30.0 ms of every 100 ms step while work is issued"),
        (("overhead-bound", "sync"), "The GPU loses 20.0 ms of every 100 ms step after host syncs"),
        (("overhead-bound", "checkpoint"), "Checkpoint stops training for 300 ms every 10 steps"),
        ("on the host", "Training waits 40.0 ms of every 100 ms step for data"),
    ],
)
def test_the_headline_says_who_loses_how_much_of_what_to_what(case, headline):
    assert verdict_of(HEADLINES[case]).headline == headline


@pytest.mark.parametrize(("steady", "cv"), [(8, 0.2), (3, 0.149)])
def test_a_mean_of_many_or_of_even_steps_is_said_of_every_step(steady, cv):
    assert "every 100 ms step" in verdict_of(uneven(REACHED["memory-bound", "capacity"], steady, cv)).headline


@pytest.mark.parametrize(("ratio", "said"), [(1.18, "the mean 118 ms step"), (1.17, "every 117 ms step")])
def test_a_mean_that_is_far_from_the_median_is_not_said_of_every_step(ratio, said):
    known = REACHED["memory-bound", "capacity"]
    times = revise(known.steps.time_ns, mean=round(ratio * STEP_NS))
    assert said in verdict_of(replace(known, steps=revise(known.steps, steady=20, time_ns=times))).headline


@pytest.mark.parametrize(
    ("name", "who"),
    [("aten::mm", "The program"), ("autograd::engine::evaluate_function: MmBackward0", "Training")],
)
def test_a_host_is_said_to_train_where_a_backward_pass_was_recorded(tmp_path, name, who):
    trace = host_training(8, compute=10_000)
    for event in trace.events[::2]:
        event["name"] = name
    assert analyze(trace.write(tmp_path / "a.json")).verdict.headline.startswith(f"{who} computes for")


def test_a_device_that_is_listed_and_not_used_is_asked_about_and_named_nowhere(tmp_path):
    trace = host_training(8, compute=10_000, devices=({"id": 0, "name": "Tesla T4"},))
    report = analyze(trace.write(tmp_path / "a.json"))
    assert (report.verdict.bound, report.verdict.detail, report.run.devices) == ("compute-bound", "math", ())
    text = render(report)
    assert "record ProfilerActivity.CUDA" in text
    assert "Nothing needs to change" not in text
    assert report.verdict.consequence.count(report.verdict.refuted_by) == 1


@pytest.mark.parametrize(
    ("major", "said"),
    [(8, "The fixes named here could not be priced."), (None, "The saving of a lower precision is not known.")],
)
def test_that_no_fix_is_known_is_not_said_of_math_in_32_bits_without_a_price(major, said):
    known = facts({"compute.math": 1.0})
    math = replace(FIRES["CP001"].math, fp32_share=0.8, compute_major=major)
    assert said in verdict_of(replace(known, math=math, spec=None)).consequence


def test_the_headline_about_fp32_counts_only_the_fp32_kernels():
    # Three quarters of the step are math, half of the step is FP32.
    known = facts({"compute.math": 0.75, "compute.membw": 0.25})
    known = replace(known, math=FIRES["CP001"].math, spec=FIRES["CP001"].spec)
    assert verdict_of(known).headline == "The GPU computes in FP32 for 50.0 ms of every 100 ms step"


def test_the_headline_about_an_unnamed_stall_is_about_the_stall():
    known = stalling(0.4, kind="unnamed", part=None, source="derived")
    assert verdict_of(known).headline == "Something unnamed stops training for 300 ms every 10 steps"


@pytest.mark.parametrize("case", [("balanced", ""), "half"])
def test_a_balanced_run_is_not_told_that_its_causes_cost_less_than_they_do(case):
    known = REACHED[case] if case in REACHED else facts({"compute.math": 0.4, **dict.fromkeys(PIECES, 0.15)})
    found = verdict_of(known)
    assert found.bound == "balanced"
    assert "fix" in found.headline  # a cause may own much of the step, and no fix remove it
    assert "cause" not in found.headline


def test_a_balanced_run_tells_the_known_and_the_most_that_a_fix_could_save_without_contradiction():
    fixes = [outcome("comm-bound", 0.07, code="CO001")]
    found = diagnose(facts({"comm.other": 0.16}), fixes)
    assert found.headline == "No fix is known to save 10 % of the 100 ms step"
    assert found.consequence.startswith("The best one is expected to save 7.0 % of it, at most 100 %.")
    late = replace(facts({"comm.other": 0.16}), waiting_share=0.4)
    late = replace(late, ranks=(replace_rank(late.rank, 7),))
    assert diagnose(late, fixes).headline == "No fix is known to save 10 % of rank 7's 100 ms step"


@pytest.mark.parametrize(
    ("expected", "said"),
    [(0.1, "The GPU idles 30.0 ms of every 100 ms step while work is issued"), (0.4, "as the finding has it")],
)
def test_the_headline_states_what_was_measured_and_never_a_saving(expected, said):
    known = FIRES["OV001"]
    (outcome,) = [entry for entry in run_rules(known, RULES) if entry.rule == "OV001"]
    finding = revise(
        outcome.findings[0],
        title="as the finding has it",
        saving=Saving(low=0.0, expected=expected, high=0.5, method="replay"),
    )
    assert diagnose(known, (revise(outcome, findings=(finding,)),)).headline == said


def test_advice_fits_the_tool_that_wrote_the_file():
    for recorder, wanted in (("nsys", "nsys profile"), ("torch", "ProfilerActivity.CUDA")):
        known = facts({"idle.unknown": 0.7}, recorder=recorder, input=None)
        missing = replace(on_host(), device_events_missing=True, kernels_unseen="not_asked", recorder=recorder)
        hints = [entry.hint for case in (known, missing) for entry in run_rules(case, RULES) if entry.hint]
        texts = [*hints, verdict_of(known).refuted_by, verdict_of(missing).refuted_by]
        assert any(wanted in text for text in texts)
        foreign = ("ProfilerActivity", "prof.wrap(loader); without") if recorder == "nsys" else ("nsys", "NVTX")
        assert not [text for text in texts if any(word in text for word in foreign)]


def ranks_of(traces):
    return Facts([rank_facts(f"rank{i}.json", trace.facts(), None) for i, trace in enumerate(traces)])


def test_a_straggler_is_named_with_its_own_cause_and_never_comm_bound():
    delay = 1_800  # µs in one piece: below 1 ms it would count as the gap between two operators
    known = ranks_of(
        training(12, rank=rank, world_size=4, python=delay * (rank == 2), comm=50 + delay * (rank != 2))
        for rank in range(4)
    )
    found = verdict_of(known)
    assert (found.bound, found.detail, found.rank) == ("overhead-bound", "python", 2)
    assert found.headline.startswith("Rank 2 ")


def test_a_straggler_that_computes_longer_is_named_with_what_its_lateness_costs():
    known = ranks_of(
        training(12, rank=rank, world_size=4, kernel=2_000 if rank == 2 else 1_000, comm=200 if rank == 2 else 10_200)
        for rank in range(4)
    )
    found = verdict_of(known)
    assert (found.bound, found.detail, found.rank) == ("compute-bound", "imbalance", 2)
    assert found.headline == "Rank 2 computes 10.0 ms longer than the others in every 20.2 ms step"
    # Evened out, the late rank keeps a quarter of what it has too much.
    assert found.saving.expected == pytest.approx(0.75 * 10.0 / 20.21, abs=0.005)
    assert "The other ranks wait 49 % of the step for rank 2: matrix and convolution math" in found.consequence


def test_of_ranks_that_wait_for_each_other_by_turns_none_is_called_late():
    found = verdict_of(facts({"comm.skew": 0.3}))
    assert (found.bound, found.detail, found.rank) == ("comm-bound", "likely", None)
    assert found.headline == "Ranks wait 30 % of the step for each other, none provably late"


@pytest.mark.parametrize(
    "known",
    [facts(waiting_share=0.4), REACHED["balanced", ""], FIRES["IN001"], facts({"idle.unknown": 0.5}), stalling(0.3)],
)
def test_the_late_rank_is_named_whatever_the_bound(known):
    known = replace(known, waiting_share=0.4, ranks=(replace_rank(known.rank, 7),))
    found = verdict_of(known)
    assert found.rank == 7
    assert "The other ranks wait 40 % of the step for rank 7." in found.consequence
    unmarked = replace(known, steps=revise(known.steps, found_by=WHOLE_TRACE))
    assert "wait 40 % of the recording for rank 7." in verdict_of(unmarked).consequence


def test_a_verdict_about_a_rank_that_is_likely_late_has_low_confidence():
    def story(few):
        delays = [0, 900, 0, 50]
        traces = [training(12, rank=rank, world_size=4, python=us, comm=950 - us) for rank, us in enumerate(delays)]
        known = ranks_of(traces)
        late = revise(known.communication.late[0], few_steps=few)
        return verdict_of(replace(known, communication=revise(known.communication, late=(late,), steps_needed=4)))

    assert (story(False).rank, story(False).confidence) == (1, "high")
    assert "likely" not in story(False).consequence
    assert (story(True).rank, story(True).confidence) == (1, "low")
    assert "Rank 1 is likely late: record at least 10 steps to be sure. The other ranks wait" in story(True).consequence


def test_a_rank_seen_alone_says_how_long_it_waits_at_most_whatever_the_bound():
    found = verdict_of(ranks_of([training(12, rank=0, world_size=4, python=1_800, comm=300)]))
    assert (found.bound, found.rank) == ("overhead-bound", None)
    assert "Rank 0 waits up to 300 µs of every step for others" in found.consequence
    little = verdict_of(ranks_of([training(12, rank=0, world_size=4, python=1_800, comm=50)]))
    assert "waits up to" not in little.consequence


def test_a_straggler_seen_alone_from_a_waiting_rank_is_not_told_with_confidence():
    waits = training(12, rank=0, world_size=4, comm=850)
    found = verdict_of(ranks_of([waits]))
    assert found.bound == "comm-bound"
    assert found.confidence != "high"
    assert "3 of 4 ranks are missing" in found.consequence
    assert "every rank" in found.refuted_by


def test_a_saving_that_is_only_a_bound_is_told_as_one():
    found = verdict_of(ranks_of([training(12, rank=0, world_size=4, comm=850)]))
    assert found.confidence == "low"
    assert found.saving.method == "bound"
    assert found.consequence.startswith(
        "The best fix saves up to 46 % (23 % expected) of the step. Rank 0 waits up to 850 µs of every step for "
        "others: analyze the other ranks' files too to learn for whom. 3 of 4 ranks are missing."
    )


def test_transfer_is_nobodys_own_even_where_a_rank_is_late():
    known = replace(FIRES["CO001"], waiting_share=0.06)
    found = verdict_of(replace(known, ranks=(replace_rank(known.rank, 7),)))
    assert (found.bound, found.rank) == ("comm-bound", None)
    assert found.headline.startswith("The GPU spends")
    assert "for rank 7" in found.consequence


def test_ranks_that_all_communicate_are_comm_bound_together():
    known = ranks_of(training(12, rank=rank, world_size=2, comm=800) for rank in range(2))
    found = verdict_of(known)
    assert (found.bound, found.rank) == ("comm-bound", None)


def test_the_consequence_counts_the_rules():
    known = FIRES["IN001"]
    outcomes = run_rules(known, RULES)
    fired = sum(entry.status == "fired" for entry in outcomes)
    blind = sum(entry.status == "missing_data" for entry in outcomes)
    assert f"{fired} of {len(RULES)} rules fired; {blind} could not run." in diagnose(known, outcomes).consequence


shares = st.dictionaries(
    st.sampled_from([name for name in PARTS if name != "idle.unknown"]), st.floats(0.001, 0.3), max_size=3
)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(shares, st.sampled_from(["gpu", "cpu"]), st.integers(1, 30), st.booleans())
def test_whatever_the_parts_the_verdict_keeps_its_promises(found_shares, mode, steady, named):
    known = replace(
        facts(found_shares, steady=steady),
        mode=mode,
        trust=Trust(mode=mode),
        waiting_share=0.4 if named else None,
        loader=Loader(kind="DataLoader", num_workers=0),
        input=replace(INPUT, single_process=True),
        stalls=(
            Stall(
                kind="checkpoint", part="other.ckpt", count=3, period=None, excess_ns=4.5 * MS,
                share=found_shares.get("other.ckpt", 0.0), source="measured", steps=(1, 2),
            ),
        ),
    )  # fmt: skip
    outcomes = run_rules(known, RULES)
    assert not [entry.reason for entry in outcomes if entry.status == "error"]
    found = diagnose(known, outcomes)
    assert len(found.headline.split()) <= 14, found.headline
    assert found.bound not in found.contenders
    if found.saving is not None:
        assert found.saving.low <= found.saving.expected <= found.saving.high <= 1.0
        best = max(f.saving.expected for entry in outcomes for f in entry.findings if f.saving and f.bound)
        assert found.saving.expected == best


@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.floats(0.02, 0.5), st.floats(0.01, 0.3))
def test_more_of_the_winning_cause_never_unseats_it(share, more):
    def verdict(total):
        return verdict_of(facts({"input.wait": total, "over.python": 0.1}, loader=Loader(kind="x", num_workers=2)))

    if verdict(share).bound == "input-bound":
        assert verdict(min(share + more, 0.85)).bound == "input-bound"


@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.floats(-0.01, 0.01), st.sampled_from([0.04, 0.2, 0.35, 0.5]))
def test_one_percent_of_noise_does_not_flip_a_clear_verdict(noise, share):
    clear = facts({"input.wait": share}, loader=Loader(kind="DataLoader", num_workers=2))
    noisy = replace(clear, parts=parts({"input.wait": share * (1 + noise), "compute.math": 1 - share * (1 + noise)}))
    assert verdict_of(noisy).bound == verdict_of(clear).bound


def test_the_rank_of_a_steady_run_is_not_named():
    assert verdict_of(FIRES["IN001"]).rank is None


def test_a_rank_that_is_waited_for_is_named_where_nobody_knows_what_makes_it_late():
    known = facts({"idle.unknown": 0.9}, waiting_share=0.4)
    assert verdict_of(known).headline == "The others wait 40 % of the step for rank 0, cause unknown"
    assert verdict_of(facts({"idle.unknown": 0.9}, waiting_share=0.2)).headline.endswith("for no recorded reason")


def test_another_profiler_is_named_where_it_kept_the_step_from_being_traced():
    verdict = verdict_of(facts({"idle.unknown": 0.9}, has_rival=True))
    assert verdict.headline == "Another profiler is on, and 90 % of the step cannot be explained"
    assert verdict.refuted_by.startswith("Switch the other profiler off")


COMPUTING = {"compute.math": 0.65, "idle.unknown": 0.33, "over.python": 0.02}


def with_slow_steps(count, *, part=None, share=0.32, known=COMPUTING):
    """200 steps, by default of computation, of which some take much longer for no known reason."""
    slow = SlowSteps(count=count, excess_ns=2_000 * MS, share=share, part=part, first=100, last=100)
    return replace(facts(known), steps=steps(200, slow=slow))


@pytest.mark.parametrize(
    ("known", "bound"),
    [
        (with_slow_steps(1), "compute-bound"),
        (with_slow_steps(10), "compute-bound"),
        (with_slow_steps(11), "overhead-bound"),
        (with_slow_steps(1, part="input.wait"), "overhead-bound"),
        (with_slow_steps(1, share=0.07), "overhead-bound"),
    ],
    ids=[
        "one",
        "one in twenty",
        "more",
        "they were longer by a named part",
        "the other steps are not explained either",
    ],
)
def test_a_few_slow_steps_do_not_hide_what_bounds_the_others(known, bound):
    assert verdict_of(known).bound == bound


def test_where_no_fix_is_known_the_headline_says_what_a_few_slow_steps_take():
    known = {"compute.math": 0.43, "compute.membw": 0.02, "over.python": 0.22, "idle.unknown": 0.33}
    verdict = diagnose(with_slow_steps(1, known=known), ())
    assert verdict.bound == "balanced"
    assert verdict.headline.endswith("step; a few slow steps take 32 %")
    assert verdict.refuted_by.startswith("Look at what the slow steps do")
    assert "slow steps" not in diagnose(with_slow_steps(1, known=known, share=0.07), ()).headline


@pytest.mark.parametrize(
    ("steady", "share", "bound"),
    [(2, 0.3, "inconclusive"), (4, 0.3, "inconclusive"), (5, 0.3, "input"), (2, 0.6, "input")],
)
def test_a_few_timed_steps_name_only_what_holds_most_of_the_step(steady, share, bound):
    timers = {"mode": "steps", "trace_read": False, "device": None, "syncs": None, "allocator": None}
    known = facts({"input.prep": share}, steady=steady, **timers)
    assert diagnose(known, run_rules(known, RULES)).bound.startswith(bound)


def test_a_larger_finding_that_was_set_aside_still_bounds_the_run():
    known = facts({"input.wait": 0.4})
    aside = outcome("input-bound", 0.4, code="IN001")
    aside = revise(aside, status="suppressed", findings=(), suppressed=aside.findings)
    found = diagnose(known, [aside, outcome("input-bound", 0.06, code="IN005")])
    assert (found.bound, found.saving.expected) == ("input-bound", 0.06)
    assert found.headline.startswith("The GPU waits 40.0 ms")
