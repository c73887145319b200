"""Hours and money: shares and savings of the step, carried over to the run and all its ranks."""

import math

import pytest

from profilerkit.api import analyze
from profilerkit.cli import main
from profilerkit.diagnosis.cost import cost_of, with_cost
from profilerkit.model import revise
from profilerkit.model.finding import in_order
from profilerkit.model.ledger import ENTRIES, Ledger, LedgerEntry, RankWall
from profilerkit.model.step import Rank
from tests.recipes import training
from tests.report import samples

HOUR_NS = 3_600_000_000_000


def entry(name, time_ns, wall_ns, source="measured"):
    return LedgerEntry(entry=name, stage=ENTRIES[name][0], time_ns=time_ns, share=time_ns / wall_ns, source=source)


def ledger(ranks=(), **times):
    """A ledger with these entries, ns, their dots as ``_``."""
    named = {name.replace("_", ".", 1): time for name, time in times.items()}
    wall = sum(named.values())
    return Ledger(
        rank=0,
        wall_ns=wall,
        from_process_start=True,
        to_last_record=False,
        loader_seen=True,
        steps=100,
        unexplained_ns=0,
        entries=tuple(entry(name, time, wall) for name, time in named.items()),
        ranks=tuple(ranks),
    )


def report(parts, *, run=None, **changes):
    """One rank whose step divides into these parts, ns and source."""
    own = samples.parts(parts)
    base = samples.balanced()
    known = revise(base, breakdown=own, outcomes=(), ranks=(rank(0, own),), **changes)
    return revise(known, run=revise(base.run, **({"world_size": 1, "devices": ("A100",)} | (run or {}))))


def rank(number, breakdown):
    return Rank(rank=number, origin=f"rank {number}", breakdown=breakdown, busy_ratio=0.5, step_ns=100)


HALF = {"compute.math": (50, "measured"), "input.wait": (40, "measured"), "over.dispatch": (10, "estimated")}


def hours(cost):
    return {row.cause: pytest.approx(row.hours) for row in cost.lost}


def test_a_part_costs_its_share_of_the_time_in_steps():
    run = ledger(step_forward=8 * HOUR_NS, start_inside=HOUR_NS, checkpoint=HOUR_NS)
    cost = cost_of(report(HALF, ledger=run), None)
    assert (cost.unit, cost.scope, cost.ranks, cost.hours) == ("GPU", "run", 1, 10.0)
    assert hours(cost) == {"input.wait": 3.2, "start.inside": 1.0, "checkpoint": 1.0, "over.dispatch": 0.8}
    assert [row.share for row in cost.lost] == pytest.approx([0.32, 0.1, 0.1, 0.08])
    assert {row.cause: row.source for row in cost.lost} == {
        "input.wait": "derived",
        "start.inside": "measured",
        "checkpoint": "measured",
        "over.dispatch": "estimated",
    }
    assert all(row.cost is None for row in cost.lost)


def test_checkpoints_are_counted_once():
    """A step of 100 of which 20 is the checkpoint: the ledger's steps hold 80 of it."""
    parts = {"compute.math": (60, "measured"), "input.wait": (20, "measured"), "other.ckpt": (20, "measured")}
    run = ledger(step_forward=8 * HOUR_NS, checkpoint=2 * HOUR_NS)
    cost = cost_of(report(parts, ledger=run), None)
    assert hours(cost) == {"input.wait": 2.0, "checkpoint": 2.0}
    assert hours(cost_of(report(parts), None)).keys() == {"input.wait", "other.ckpt"}


def test_a_saving_is_of_the_step_with_its_checkpoints():
    finding = samples.starved()
    parts = {"compute.math": (80, "measured"), "other.ckpt": (20, "measured")}
    run = ledger(step_forward=8 * HOUR_NS, checkpoint=2 * HOUR_NS)
    known = revise(report(parts, ledger=run), outcomes=samples.outcomes(finding))
    (fix,) = cost_of(known, None).fixes
    assert fix.expected == pytest.approx(10 * finding.saving.expected)


def test_what_is_computed_again_is_lost():
    parts = {"compute.math": (60, "measured"), "mem.recompute": (40, "measured")}
    assert hours(cost_of(report(parts, ledger=ledger(step_forward=10 * HOUR_NS)), None)) == {"mem.recompute": 4.0}


def test_useful_work_outside_of_steps_is_not_lost():
    run = ledger(step_forward=HOUR_NS, evaluation=HOUR_NS, between_uncounted=HOUR_NS)
    assert "evaluation" not in hours(cost_of(report(HALF, ledger=run), None))
    assert "between.uncounted" not in hours(cost_of(report(HALF, ledger=run), None))


def test_a_price_multiplies_every_hour():
    run = ledger(step_forward=10 * HOUR_NS)
    cost = cost_of(report(HALF, ledger=run), 2.5)
    assert cost.price == 2.5
    assert [row.cost for row in cost.lost] == pytest.approx([10.0, 2.5])
    free = cost_of(report(HALF, ledger=run), 0.0)
    assert [row.cost for row in free.lost] == [0.0, 0.0]


def test_without_a_recorded_run_a_thousand_steps_are_told():
    known = report(HALF)
    mean_ns = known.steps.time_ns.mean
    cost = cost_of(known, None)
    assert cost.scope == "1000 steps"
    assert cost.hours == pytest.approx(1_000 * mean_ns / HOUR_NS)
    assert hours(cost)["input.wait"] == pytest.approx(0.4 * cost.hours)


def test_ranks_that_were_not_read_count_as_the_mean_of_the_others():
    own, other = samples.parts(HALF), samples.parts({"compute.math": (100, "measured")})
    known = report(HALF, run={"world_size": 8})
    known = revise(known, ranks=(rank(0, own), rank(1, other)))
    cost = cost_of(known, None)
    assert (cost.ranks, cost.ranks_read) == (8, 2)
    assert hours(cost)["input.wait"] == pytest.approx(0.2 * cost.hours)
    assert {row.source for row in cost.lost} == {"estimated"}


def test_every_rank_counts_with_its_own_wall_clock():
    walls = (
        RankWall(rank=0, wall_ns=2 * HOUR_NS, stages={"steps": 2 * HOUR_NS}),
        RankWall(rank=1, wall_ns=4 * HOUR_NS, stages={"steps": 3 * HOUR_NS, "start-up": HOUR_NS}),
    )
    own = samples.parts(HALF)
    known = report(HALF, ledger=ledger(walls, step_forward=2 * HOUR_NS), run={"world_size": 2})
    cost = cost_of(revise(known, ranks=(rank(0, own), rank(1, own))), None)
    assert cost.hours == 6.0
    assert hours(cost)["input.wait"] == pytest.approx(0.4 * 5)


def test_a_fix_gives_back_its_saving_of_the_steps_of_all_ranks():
    run = ledger(step_forward=8 * HOUR_NS, start_inside=2 * HOUR_NS)
    known = revise(samples.input_bound(), ledger=run)
    known = revise(known, run=revise(known.run, world_size=4))
    (outcome, finding), *_ = in_order(known.outcomes)
    cost = cost_of(known, 2.0)
    first = cost.fixes[0]
    assert (first.rule, first.title, first.method) == (outcome.rule, finding.title, finding.saving.method)
    assert (first.low, first.expected, first.high) == pytest.approx(
        [32 * end for end in (finding.saving.low, finding.saving.expected, finding.saving.high)]
    )
    assert first.cost == pytest.approx(2.0 * first.expected)
    assert len(cost.fixes) == sum(found.saving is not None for _, found in in_order(known.outcomes))


def test_without_a_device_it_is_the_ranks_hours():
    known = report(HALF)
    seen = revise(known, run=revise(known.run, devices=()), trust=revise(known.trust, mode="cpu"))
    assert cost_of(seen, None).unit == "rank"
    assert cost_of(seen, 2.5) == cost_of(seen, None)
    assert cost_of(revise(seen, trust=revise(known.trust, mode="gpu")), None).unit == "GPU"


def test_without_steps_and_without_a_run_there_is_nothing_to_tell():
    assert cost_of(samples.empty(), 2.0) is None
    assert with_cost(samples.empty(), 2.0).cost is None


def test_a_run_without_a_whole_step_still_tells_what_it_spent():
    run = ledger(start_inside=HOUR_NS)
    cost = cost_of(revise(samples.empty(), ledger=run), None)
    assert hours(cost) == {"start.inside": 1.0}
    assert cost.hours == 1.0


@pytest.mark.parametrize("name", ["input_bound", "balanced", "compute_bound", "multi_rank", "lengths_only", "hostile"])
def test_no_more_is_lost_than_there_was(name):
    cost = cost_of(getattr(samples, name)(), 1.0)
    if cost is None:
        return
    assert 0 <= sum(row.hours for row in cost.lost) <= cost.hours * (1 + 1e-9)
    assert all(0 < row.share <= 1 and math.isfinite(row.hours) for row in cost.lost)


def test_a_trace_tells_its_lost_time(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    path = training(12, fetch=1_000).write(tmp_path / "trace.json")
    cost = analyze(path, gpu_hour_price=2.5).cost
    assert (cost.unit, cost.scope, cost.price) == ("GPU", "1000 steps", 2.5)
    assert cost.lost[0].cause.startswith("input.")
    assert main(["analyze", str(path), "-v", "--gpu-hour-price", "2.5"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "GPU-seconds of 1,000 steps" in shown
    assert "Priced at 2.50 per GPU-hour." in shown
