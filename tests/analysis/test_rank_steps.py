"""Every rank in every step: the ledger by step, and what stands for it where nobody knows who waited for whom."""

import json
from pathlib import Path

import pytest

from profilerkit.analysis.facts import Facts
from profilerkit.analysis.rank_facts import rank_facts
from profilerkit.analysis.ranks.job import compare
from profilerkit.analysis.ranks.waiting import MOST_ROWS, MOST_STEPS, rank_steps
from profilerkit.api import analyze
from profilerkit.report.sections.ranks import rank_chart
from tests.analysis.communication.jobs import job, late
from tests.recipes import Log, training, write_run

US = 1_000
TRACES = Path(__file__).resolve().parents[3] / "shared" / "traces"
MANIFEST = TRACES / "MANIFEST.json"
shared = pytest.mark.skipif(not MANIFEST.is_file(), reason=f"no shared traces beside the repository, at {TRACES}")


def ranks_of(traces):
    return [rank_facts(f"rank{index}.json", trace.facts(), None) for index, trace in enumerate(traces)]


def steps_of(traces):
    found = compare(ranks_of(traces), len(traces))
    return rank_steps(found.ranks, found.ledger), found


def test_the_waiting_that_a_rank_causes_is_told_step_by_step_for_each_of_the_others():
    late_in_odd = lambda rank, step, _: 700 if rank == 1 and step % 2 else 0  # noqa: E731
    steps, found = steps_of(job(3, 10, python=late_in_odd))
    assert (steps.of, steps.group, steps.count) == ("caused", 1, 8)
    assert steps.index == tuple(range(1, 9))  # the first and the last of 10 steps are not judged
    assert steps.time_ns[1] == (700 * US, 0) * 4
    assert steps.time_ns[0] == steps.time_ns[2] == (0,) * 8
    # Two others waited: the ledger books both.
    assert 2 * sum(steps.time_ns[1]) == found.ledger.caused[1]


def test_several_collectives_of_a_step_add_up():
    steps, found = steps_of(job(2, 6, per_step=3, python=late(0, 500)))
    assert steps.time_ns[0] == (3 * 500 * US,) * 4
    assert sum(steps.time_ns[0]) == found.ledger.caused[0]


def test_many_steps_are_thinned_evenly_and_counted():
    steps, _ = steps_of(job(2, 252, python=late(0, 500)))
    assert steps.count == 250
    assert len(steps.index) == MOST_STEPS == len(steps.time_ns[0])
    assert (steps.index[0], steps.index[-1]) == (1, 250)
    assert {later - first for first, later in zip(steps.index, steps.index[1:], strict=False)} == {2, 3}


def test_of_very_many_ranks_neighbours_share_a_row_with_the_slowest(tmp_path):
    logs = [Log().steps(8, 1_000 + 500 * (rank == 100), wait=10) for rank in range(130)]
    report = analyze(write_run(tmp_path / "run", logs))
    steps = report.rank_steps
    assert (steps.of, steps.group, len(steps.time_ns)) == ("step", 3, 44)
    assert len(steps.time_ns) <= MOST_ROWS
    assert {row for row, times in enumerate(steps.time_ns) if max(times) > 1_200 * US} == {33}


def test_where_nothing_matches_exposed_communication_is_taken_off():
    traces = [training(6, kernels=count, comm=200, rank=rank) for rank, count in enumerate((5, 9))]
    ranks = ranks_of(traces)
    steps = rank_steps(ranks, None)
    assert steps.of == "own"
    for rank, row in zip(ranks, steps.time_ns, strict=True):
        exposed = sum(part.share for part in rank.parts if part.part.startswith("comm."))
        total = sum(rank.series.time[rank.series.steady])
        assert exposed > 0
        assert sum(row) == pytest.approx(total * (1 - exposed), rel=1e-3)


def test_a_rank_that_lacks_a_step_has_no_time_for_it(tmp_path):
    logs = [Log().steps(count, 1_000, wait=10) for count in (9, 12)]
    steps = analyze(write_run(tmp_path / "run", logs)).rank_steps
    short, long = steps.time_ns
    assert None in short
    assert None not in long
    assert steps.count == len(steps.index)


def test_one_rank_is_compared_with_nobody():
    assert Facts(ranks_of([training(6)])).rank_steps is None


def report_of(name):
    entry = json.loads(MANIFEST.read_text("utf-8"))["sets"][name]
    return analyze(*(TRACES / file["file"] for file in entry["files"]))


@shared
@pytest.mark.shared_traces
@pytest.mark.parametrize(
    ("name", "rank"), [("torchrec_late_rank_1s", 2), ("torchrec_late_rank_20ms", 2), ("megatron_tp2", 0)]
)
def test_the_planted_late_rank_is_the_one_that_is_labelled(name, rank):
    report = report_of(name)
    chart = rank_chart(report)
    assert [tick.label for tick in chart.y.ticks if "late" in tick.label] == [f"late ▸ {rank}"]
    assert chart.title.startswith(f"Rank {rank} is late in ")
    steps = report.rank_steps
    others = len(report.ranks) - 1
    for position, entry in enumerate(report.ranks):
        # Each step is rounded to a nanosecond.
        assert others * sum(steps.time_ns[position]) == pytest.approx(entry.caused_ns, abs=others * steps.count)
    assert chart.table.rows[0][0] == f"Rank {rank}"
