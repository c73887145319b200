"""Ranks by the dozen: the planted late rank and the planted slow host are found, and nobody else."""

import json

import pytest
from scale_benchmark.fill import template
from scale_benchmark.job import PER_HOST, Job, job_of, write_ranks

from profilerkit import api
from profilerkit.model import revise
from profilerkit.report import html, terminal
from profilerkit.report.communication import scale_chart, scale_lines
from profilerkit.units import format_ns


@pytest.fixture(scope="module")
def facts():
    return template()


@pytest.fixture(scope="module")
def job():
    return job_of(96)


@pytest.fixture(scope="module")
def report(job, facts, tmp_path_factory):
    place = tmp_path_factory.mktemp("summaries")
    write_ranks(job, facts, place, range(job.ranks))
    return api.reduce(place)


def test_both_culprits_are_found_the_costlier_first(report, job):
    rank, host = report.crowd.culprits
    assert (rank.kind, rank.ranks) == ("rank", (job.late,))
    assert (host.kind, set(host.ranks)) == ("host", set(job.slow_ranks))
    assert host.name == f"node{job.slow:04d}"
    # 20 collectives a step, each 3 ms late; then 1 ms each. Ranks differ by 20 µs.
    assert rank.waited_ns == pytest.approx(60e6, rel=0.02)
    assert host.waited_ns == pytest.approx(20e6, rel=0.04)


def test_the_verdict_names_the_late_rank(report, job):
    assert report.verdict.rank == job.late
    assert report.communication.late[0].rank == job.late
    assert report.communication.late[0].cause == "compute.math"


def test_few_are_told_and_all_are_counted(report, job):
    crowd = report.crowd
    assert crowd.ranks == job.ranks - len(job.missing)
    assert crowd.missing == report.run.missing_ranks == len(job.missing)
    assert job.late in crowd.told
    assert len(report.ranks) == len(crowd.told) < 20
    assert "6 ranks that others wait for are not among them." in next(scale_lines(report))
    assert crowd.host_count == job.ranks // PER_HOST
    assert crowd.step_ns.n == crowd.ranks
    assert sum(len(line) for line in crowd.heat.waited_ns) == len(crowd.heat.rows) * len(crowd.heat.columns)


def test_the_heat_is_where_the_late_rank_is(report, job):
    heat = report.crowd.heat
    row = max(range(len(heat.rows)), key=lambda at: max(heat.waited_ns[at]))
    assert 0 <= job.late - heat.rows[row] < heat.ranks_each


def test_every_form_says_who_is_late(report, job):
    for text in (html.render(report), terminal.render(report, verbose=True)):
        assert f"ank {job.late} keeps the median other rank waiting" in " ".join(text.split())


def test_the_figure_says_of_whom_each_of_its_numbers_is(report, job):
    chart = scale_chart(report)
    first, second = report.crowd.culprits
    assert chart.title == (
        f"Rank {job.late} keeps the median other rank waiting {format_ns(first.waited_ns)} of every step, "
        f"then host {second.name} {format_ns(second.waited_ns)}"
    )
    assert "A cell shows how long the other members" in chart.caption
    assert "The title names the wait of the median other rank" in chart.caption


def heated(report, *, ranks_each, steps_each):
    """The figure of two rows and four columns, in which only the second rank of the third step lets others wait."""
    heat = revise(
        report.crowd.heat,
        rows=(0, ranks_each),
        ranks_each=ranks_each,
        columns=tuple(1_000 + steps_each * column for column in range(4)),
        steps_each=steps_each,
        waited_ns=((0, 0, 0, 0), (0, 0, 10**9, 0)),
    )
    return scale_chart(revise(report, crowd=revise(report.crowd, heat=heat)))


def test_a_row_of_one_rank_and_a_column_of_one_step_are_that_rank_and_step(report):
    chart = heated(report, ranks_each=1, steps_each=1)
    assert (chart.x.name, chart.y.name) == ("Step", "Rank")
    assert (chart.x.ticks[0].at, chart.x.ticks[0].label) == (12.5, "1,000")
    assert [(tick.at, tick.label) for tick in chart.y.ticks] == [(75.0, "0"), (25.0, "1")]
    assert [shape.path for shape in chart.shapes] == ["M50 50H75V100H50z"]
    assert chart.table.columns == ("Rank", "Caused in its worst step", "Worst step")
    assert chart.table.rows[1] == ("1", "1.00 s", "1,002")


def test_a_row_of_several_ranks_and_a_column_of_several_steps_say_where_they_begin(report):
    chart = heated(report, ranks_each=3, steps_each=5)
    assert (chart.x.name, chart.y.name) == ("First step of a column", "First rank of a row")
    assert chart.table.rows[1] == ("from 3", "1.00 s", "from 1,010")
    assert "Each row is the worst of 3 neighbouring ranks. Each column is the worst of 5 steps." in chart.caption


@pytest.mark.parametrize(("kind", "who"), [("rank", "A rank"), ("host", "Host")])
@pytest.mark.parametrize("name", ["", "  "])
def test_a_culprit_without_a_name_is_told_all_the_same(report, kind, who, name):
    nameless = revise(report.crowd.culprits[0], kind=kind, name=name, ranks=())
    bare = revise(report, crowd=revise(report.crowd, culprits=(nameless,)))
    assert scale_chart(bare).title.startswith(f"{who} keeps the median other rank waiting")
    assert any(line.startswith(f"{who} keeps the median other rank waiting") for line in scale_lines(bare))


def test_a_job_in_which_nobody_is_late_accuses_nobody(facts, tmp_path, monkeypatch):
    from scale_benchmark import job as plan

    monkeypatch.setattr(plan, "_LATE_NS", 0)
    monkeypatch.setattr(plan, "_SLOW_NS", 0)
    quiet = Job(40, late=-1, slow=-1, missing=frozenset())
    write_ranks(quiet, facts, tmp_path, range(quiet.ranks))
    report = api.reduce(tmp_path)
    assert report.crowd.culprits == ()
    assert report.verdict.rank is None
    assert json.loads(report.to_json())["crowd"]["culprits"] == []
