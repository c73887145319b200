"""Ranks by the dozen: the planted late rank and the planted slow host are found, and nobody else."""

import json

import pytest
from scale_benchmark.fill import template
from scale_benchmark.job import PER_HOST, Job, job_of, write_ranks

from profilerkit import api
from profilerkit.report import html, markdown, terminal


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
    assert crowd.host_count == job.ranks // PER_HOST
    assert crowd.step_ns.n == crowd.ranks
    assert sum(len(line) for line in crowd.heat.waited_ns) == len(crowd.heat.rows) * len(crowd.heat.columns)


def test_the_heat_is_where_the_late_rank_is(report, job):
    heat = report.crowd.heat
    row = max(range(len(heat.rows)), key=lambda at: max(heat.waited_ns[at]))
    assert 0 <= job.late - heat.rows[row] < heat.ranks_each


def test_every_form_says_who_is_late(report, job):
    for text in (html.render(report, explorer=False), markdown.render(report), terminal.render(report, width=80)):
        assert f"ank {job.late} keeps the median other rank waiting" in " ".join(text.split())


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
