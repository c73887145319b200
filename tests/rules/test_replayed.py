"""Savings of findings from the replay: where it is used, what it may not exceed, and when a finding is none."""

import random

import pytest
from simulator.job import Data, Host, Job, Memory, Model, Odd, Reads
from simulator.kineto import text_of
from simulator.parallel import simulate
from simulator.truth import done_step_ns
from simulator.whatifs import WHATIFS

from profilerkit import analyze
from profilerkit.analysis.facts import Facts
from profilerkit.analysis.rank_facts import rank_facts
from profilerkit.analysis.trace_facts import trace_facts
from profilerkit.diagnosis.savings import best_per_bound, waterfall
from profilerkit.diagnosis.verdict import diagnose
from profilerkit.formats.registry import read_trace
from profilerkit.model import revise
from profilerkit.model.finding import in_order
from profilerkit.model.step import WAITS
from profilerkit.rules import RULES
from profilerkit.rules.calibrated import priced, with_replay
from profilerkit.rules.runner import run_rules
from tests.recipes import replace

LEAN = Model(tokens=4096)
FED_LATE = Job(1, model=LEAN, data=Data(workers=1, produce_us=20_000.0), before=5)
DRAINED = Job(2, model=LEAN, reads=Reads(4, 600.0))
BOTH = Job(3, model=LEAN, data=Data(workers=0, produce_us=4_000.0), reads=Reads(4, 600.0))
IN_LINE = Job(6, model=LEAN, data=Data(bytes=1 << 25))
SAVING = Job(5, model=LEAN, steps=40, odd=Odd(checkpoint_every=2, checkpoint_us=9_000.0))
RETRIES = Job(4, model=LEAN, memory=Memory(retries=2, free_us=900.0, malloc_us=900.0))


def facts_of(tmp_path, job):
    return facts_from(tmp_path, text_of(job, simulate(job)[0]))


def facts_from(tmp_path, text):
    path = tmp_path / "trace.json"
    path.write_text(text, "utf-8")
    return Facts([rank_facts("trace.json", trace_facts(read_trace(path)), None)])


def closed(facts):
    return replace(facts, replay=replace(facts.replay, error=0.2))


def findings(facts):
    return {outcome.rule: outcome.findings[0] for outcome in run_rules(facts, RULES) if outcome.findings}


@pytest.mark.parametrize(
    ("job", "rule"), [(FED_LATE, "IN001"), (DRAINED, "OV002"), (RETRIES, "ME001"), (IN_LINE, "IN010")]
)
def test_a_finding_is_priced_by_the_replay_where_the_gate_is_open(tmp_path, job, rule):
    facts = facts_of(tmp_path, job)
    ours, theirs = findings(facts)[rule].saving, findings(closed(facts))[rule].saving
    assert (ours.method, theirs.method) == ("replay", "analytic")
    assert 0.0 <= ours.low <= ours.expected <= ours.high <= 1.0
    assert ours.calibration.startswith("checked on 7 recordings") is (rule != "OV002")
    assert theirs.calibration == "uncalibrated"


def test_copies_that_take_longer_than_the_computation_keep_their_formula(tmp_path):
    facts = facts_of(tmp_path, IN_LINE)
    outcomes = run_rules(closed(facts), RULES)
    part = facts.share("compute.", "mem.recompute")
    assert "IN010" in [entry.rule for entry in priced(facts, outcomes)]
    longer = [
        revise(outcome, findings=(revise(finding, saving=revise(finding.saving, high=part + 0.01)),))
        for outcome in outcomes
        for finding in outcome.findings
        if outcome.rule == "IN010"
    ]
    assert not priced(facts, longer)


def test_evaluation_is_replayed_and_a_fix_beside_that_of_checkpoints(tmp_path):
    first, *saves = text_of(SAVING, simulate(SAVING)[0]).split("save checkpoint")
    named = first + "".join(f"{('save checkpoint', 'evaluation')[n % 2]}{rest}" for n, rest in enumerate(saves))
    facts = facts_from(tmp_path, named)
    (stall,) = facts.stalls
    kinds = {"checkpoint": "other.ckpt", "evaluation": "other.eval"}
    stalls = (replace(stall, kind=kind, part=part, grew=part, share=facts.share(part)) for kind, part in kinds.items())
    facts = replace(facts, stalls=tuple(stalls), step_error_ns=0.0)
    told = findings(facts)
    assert (told["RU001"].saving.method, told["RU002"].saving.method) == ("replay", "replay")
    fixes = {fix.rule: fix for fix in waterfall(facts, run_rules(facts, RULES)).fixes}
    for rule in ("RU001", "RU002"):
        assert fixes[rule].alone == pytest.approx(told[rule].saving.expected)


def test_no_rule_promises_more_than_its_bound_whatever_the_replay_says(tmp_path):
    for job in (FED_LATE, DRAINED, BOTH, RETRIES):
        for finding in findings(facts_of(tmp_path, job)).values():
            if finding.saving is not None:
                assert finding.saving.expected <= finding.saving.high <= 1.0


def test_a_fix_that_the_rest_of_the_step_swallows_is_no_finding(tmp_path):
    facts = facts_of(tmp_path, DRAINED)
    (entry,) = [entry for entry in priced(facts, run_rules(closed(facts), RULES)) if entry.rule == "OV002"]
    shape = facts.replay.graph.shape
    # Work of the host at every mark that takes a hundred steps: what the calls cost is nothing beside it.
    host = facts.replay.graph.host_ns.copy()
    host[shape.marks[1:]] += 100 * facts.replay.plain_ns
    from profilerkit.analysis.replay.graph import replay

    graph = replace(facts.replay.graph, host_ns=host)
    longer = replace(facts, replay=replace(facts.replay, graph=graph, plain=replay(graph)))
    outcomes = {outcome.rule: outcome for outcome in with_replay(longer, run_rules(closed(facts), RULES))}
    assert outcomes["OV002"].status == "passed"
    assert "replayed without it" in outcomes["OV002"].reason
    assert entry.finding.saving.expected > 0.02


def test_noise_of_the_steps_moves_no_expectation(tmp_path):
    quiet = replace(facts_of(tmp_path, FED_LATE), step_series=())
    noisy = replace(quiet, step_error_ns=0.1 * quiet.mean_step_ns)
    expected, doubted = (findings(facts)["IN001"].saving for facts in (quiet, noisy))
    assert doubted.expected == pytest.approx(expected.expected)
    assert doubted.low < expected.low


@pytest.mark.parametrize(("ratio", "used"), [(None, True), (1.49, True), (1.51, False), (0.81, True), (0.79, False)])
def test_traced_steps_unlike_the_others_are_not_replayed_for_them(tmp_path, ratio, used):
    facts = facts_of(tmp_path, FED_LATE)
    facts = replace(facts, trust=revise(facts.trust, inflation_ratio=ratio))
    outcomes = run_rules(closed(facts), RULES)
    assert bool(priced(facts, outcomes)) is used


def test_a_cause_that_was_not_traced_keeps_its_formula(tmp_path):
    facts = facts_of(tmp_path, FED_LATE)
    outcomes = run_rules(closed(facts), RULES)
    for factor, used in ((1.9, True), (2.1, False), (1 / 1.9, True), (1 / 2.1, False)):
        shares = {part: share * factor for part, share in facts.replay.shares.items()}
        other = replace(facts, replay=replace(facts.replay, shares=shares))
        assert bool([entry for entry in priced(other, outcomes) if entry.rule == "IN001"]) is used


def test_the_error_of_the_replay_widens_the_interval(tmp_path):
    facts = facts_of(tmp_path, DRAINED)
    exact, off = (
        findings(replace(facts, replay=replace(facts.replay, error=error)))["OV002"].saving for error in (0.0, -0.04)
    )
    assert off.expected == exact.expected
    assert off.low < exact.low - 0.01


def test_the_waterfall_replays_the_fixes_together(tmp_path):
    facts = facts_of(tmp_path, BOTH)
    outcomes = run_rules(facts, RULES)
    found = waterfall(facts, outcomes)
    assert {fix.rule[:2] for fix in found.fixes} >= {"IN", "OV"}
    steps = [found.now_ns, *(fix.step_ns for fix in found.fixes), found.floor_ns]
    assert steps == sorted(steps, reverse=True)
    assert found.fixes[-1].saving >= max(fix.alone for fix in found.fixes) - 1e-9
    assert sum(fix.fair for fix in found.fixes) == pytest.approx(found.fixes[-1].saving, abs=1e-6)


def test_each_fix_is_as_large_as_its_own_cause_is_in_the_run(tmp_path):
    facts = facts_of(tmp_path, BOTH)
    outcomes = run_rules(facts, RULES)
    # Waiting for batches is rarer than in the traced steps, reading from the device more frequent.
    factors = {part: 1.9 if part in WAITS else 1 / 1.5 for part in facts.replay.shares}
    shares = {part: share * factors[part] for part, share in facts.replay.shares.items()}
    facts = replace(facts, replay=replace(facts.replay, shares=shares))
    told = {finding.title: finding.saving for outcome in outcomes for finding in outcome.findings}
    found = waterfall(facts, outcomes)
    bound = 0.0
    for fix in found.fixes:
        bound += told[fix.title].high
        assert fix.alone <= told[fix.title].expected
        assert fix.saving <= bound
    assert found.fixes[-1].saving >= max(fix.alone for fix in found.fixes)
    assert sum(fix.fair for fix in found.fixes) == pytest.approx(found.fixes[-1].saving)


def test_the_waterfall_begins_with_what_the_findings_say(tmp_path):
    for job in (FED_LATE, BOTH, IN_LINE):
        facts = facts_of(tmp_path, job)
        outcomes = run_rules(facts, RULES)
        told = {(o.rule, f.title): f.saving.expected for o in outcomes for f in o.findings if f.saving}
        found = waterfall(facts, outcomes)
        assert all(fix.alone == pytest.approx(told[fix.rule, fix.title]) for fix in found.fixes)
        assert found.fixes[0].saving == pytest.approx(max(fix.alone for fix in found.fixes))
        best = max(f.saving.most for o in outcomes for f in o.findings if f.saving)
        assert found.floor_ns <= found.now_ns * (1 - best) + 1e-6
        verdict = diagnose(facts, outcomes)
        assert found.floor_ns <= found.now_ns * (1 - verdict.saving.high) + 1e-6


def test_a_fix_that_no_replay_tells_takes_its_part_of_what_the_others_leave(tmp_path):
    facts = facts_of(tmp_path, FED_LATE)
    outcomes = run_rules(facts, RULES)
    (fired,) = [entry for entry in outcomes if entry.rule == "IN001"]
    own = fired.findings[0]
    other = revise(own, title="kernels", saving=revise(own.saving, low=0.1, expected=0.2, high=0.3, method="analytic"))
    added = revise(fired, rule="CP007", findings=(other,))
    before, after = waterfall(facts, outcomes), waterfall(facts, [*outcomes, added])
    assert [fix.rule for fix in after.fixes if fix.rule not in {known.rule for known in before.fixes}] == ["CP007"]
    assert 1 - after.fixes[-1].saving == pytest.approx(0.8 * (1 - before.fixes[-1].saving))
    assert [fix.alone for fix in after.fixes] == sorted((fix.alone for fix in after.fixes), reverse=True)
    bound = revise(added, findings=(revise(other, saving=revise(other.saving, method="bound")),))
    assert waterfall(facts, [*outcomes, bound]) == after
    # Nothing says of which time the claim of an unknown rule without a bound is.
    unknown = revise(fired, rule="XX001", findings=(revise(other, bound=None),))
    assert waterfall(facts, [*outcomes, unknown]).fixes == before.fixes
    same = revise(fired, findings=(revise(own, overlaps="CP007"),))
    others = [entry for entry in outcomes if entry is not fired]
    assert [fix.rule for fix in waterfall(facts, [*others, same, added]).fixes] == ["CP007"]
    more = revise(other, saving=revise(other.saving, high=0.95))
    assert waterfall(facts, [*outcomes, revise(added, findings=(more,))]).floor_ns == pytest.approx(0.05 * after.now_ns)


def test_a_fix_that_the_replay_overrates_stands_with_what_its_finding_says(tmp_path):
    facts = facts_of(tmp_path, BOTH)
    outcomes = run_rules(facts, RULES)
    plain = waterfall(facts, outcomes)
    first = plain.fixes[0]
    # As where a rule knows of a bound of its own, and the noise of the steps has widened it.
    small = first.alone / 10
    bounded = [
        revise(o, findings=tuple(revise(f, saving=revise(f.saving, low=0.0, expected=small)) for f in o.findings))
        if o.rule == first.rule
        else o
        for o in outcomes
    ]
    found = waterfall(facts, bounded)
    others = max(fix.alone for fix in plain.fixes[1:])
    assert (found.fixes[0].rule, found.fixes[0].saving) == (plain.fixes[1].rule, pytest.approx(others))
    assert found.fixes[-1].saving <= plain.fixes[-1].saving - first.alone + small + others


def test_a_closed_gate_leaves_a_word_and_no_fix(tmp_path):
    facts = closed(facts_of(tmp_path, BOTH))
    found = waterfall(facts, run_rules(facts, RULES))
    assert found.fixes == ()
    assert found.floor_ns is None
    assert "20 % longer" in found.replay.refused


def test_without_anything_to_replay_there_is_no_waterfall(tmp_path):
    facts = replace(facts_of(tmp_path, FED_LATE), replay=None)
    assert waterfall(facts, run_rules(facts, RULES)) is None


def test_a_report_carries_it(tmp_path):
    path = tmp_path / "trace.json"
    job = replace(FED_LATE, odd=Odd(), host=Host())
    path.write_text(text_of(job, simulate(job)[0]), "utf-8")
    report = analyze(path)
    assert report.waterfall.fixes
    assert report.verdict.saving.method == "replay"
    assert '"waterfall"' in report.to_json()


def test_one_fix_saves_no_more_than_its_finding_says(tmp_path):
    facts = facts_of(tmp_path, FED_LATE)
    outcomes = run_rules(facts, RULES)
    expected = {entry.rule: entry.findings[0].saving.expected for entry in outcomes if entry.findings}
    found = waterfall(facts, outcomes)
    assert found.fixes[0].saving <= expected[found.fixes[0].rule] + 1e-9


def test_fixes_of_one_bound_are_taken_together_where_it_is_named(tmp_path):
    copied = Job(6, model=LEAN, data=Data(workers=0, produce_us=4_000.0, bytes=1 << 25))
    facts = facts_of(tmp_path, copied)
    outcomes = run_rules(facts, RULES)
    alone = best_per_bound(outcomes)["input-bound"]
    found = diagnose(facts, outcomes)
    assert {"IN001", "IN010"} <= set(findings(facts))
    assert found.bound == "input-bound"
    assert alone.expected < found.saving.expected <= facts.family("input")
    assert "Its 2 fixes together save" in found.consequence
    assert diagnose(closed(facts), run_rules(closed(facts), RULES)).consequence.startswith("The best fix saves")


def test_promised_intervals_hold_what_the_simulator_saves(tmp_path):
    """One draw of each what-if whose fix a rule proposes; a simulated step is the truth."""
    held, widths = [], []
    for row in (row for row in WHATIFS if row.rule):
        rng = random.Random(row.code)
        job = row.draw(rng, 0.3)
        ranks, better = simulate(job), simulate(row.better(job))
        paths = [tmp_path / f"{row.code}-rank{rank.index}.json" for rank in ranks]
        for path, rank in zip(paths, ranks, strict=True):
            path.write_text(text_of(job, rank), "utf-8")
        place = max(job.late.rank, 0)
        saved = 1.0 - done_step_ns(row.better(job), better[place]) / done_step_ns(job, ranks[place])
        for outcome, finding in in_order(analyze(*paths).outcomes):
            if outcome.rule == row.rule and finding.saving is not None:
                held.append(finding.saving.low - 0.002 <= saved <= finding.saving.high + 0.002)
                widths.append(finding.saving.high - finding.saving.low)
    assert len(held) >= 12
    assert sum(held) >= 0.9 * len(held)
    assert sum(widths) / len(widths) < 0.2
