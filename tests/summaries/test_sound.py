"""Facts whose arrays do not belong together are refused before anything is computed from them."""

import numpy as np
import pytest
from scale_benchmark.fill import template
from scale_benchmark.job import facts_of, job_of, write_ranks

import profilerkit
from profilerkit.summaries.compact import sound
from profilerkit.summaries.files import Header, write
from tests.recipes import replace


@pytest.fixture(scope="module")
def facts():
    job = job_of(24)
    return facts_of(job, template(), 1, np.arange(1, 1001, dtype=np.int64) * 7_500_000)


def shorter(values):
    return values[:-1]


def mislabelled(segments):
    return replace(segments, label=segments.label + 500)


BROKEN = {
    "a log's starts": lambda f: replace(f, collectives=replace(f.collectives, start=shorter(f.collectives.start))),
    "a log's sizes": lambda f: replace(f, collectives=replace(f.collectives, size=shorter(f.collectives.size))),
    "a channel": lambda f: replace(f, collectives=replace(f.collectives, channel=f.collectives.channel + 99)),
    "a name": lambda f: replace(f, collectives=replace(f.collectives, name=f.collectives.name - 1)),
    "a kind": lambda f: replace(f, collectives=replace(f.collectives, kind=f.collectives.kind + 100)),
    "order": lambda f: replace(f, collectives=replace(f.collectives, start=f.collectives.start[::-1])),
    "states": lambda f: replace(f, steps=replace(f.steps, state=f.steps.state[1:])),
    "step numbers": lambda f: replace(f, steps=replace(f.steps, index=shorter(f.steps.index))),
    "parts": lambda f: replace(f, partition=replace(f.partition, per_step=f.partition.per_step[:, 1:])),
    "the window": lambda f: replace(f, window=replace(f.window, start=shorter(f.window.start))),
    "how many are steady": lambda f: replace(f, n_steady=f.n_steady + 1),
    "labels": lambda f: replace(f, partition=replace(f.partition, segments=mislabelled(f.partition.segments))),
}


def test_whole_facts_are_sound(facts):
    assert sound(facts) is facts


@pytest.mark.parametrize("what", BROKEN)
def test_broken_facts_are_refused(facts, what):
    with pytest.raises(ValueError, match=r"^(its|an array) "):
        sound(BROKEN[what](facts))


def header(**changes):
    known = {"version": profilerkit.__version__, "origin": "x.json", "trace_bytes": 0, "trace_mtime_ns": 0}
    return Header(**{**known, "reading": "", **changes})


@pytest.mark.parametrize("what", BROKEN)
def test_one_broken_summary_costs_its_rank_and_is_said(facts, what, tmp_path):
    write_ranks(job_of(24), template(), tmp_path, range(4))
    told = replace(facts, meta=replace(facts.meta, rank=20))
    write(BROKEN[what](told), tmp_path / "broken.pksum", header())
    report = profilerkit.reduce(tmp_path)
    assert report.crowd.unreadable == (what != "labels")  # of which only the details know
    assert any("broken.pksum" in note for note in report.trust.notes)


def test_another_version_is_refused_and_said(facts, tmp_path):
    write_ranks(job_of(24), template(), tmp_path, range(4))
    write(facts, tmp_path / "old.pksum", header(version="0.0.0"))
    report = profilerkit.reduce(tmp_path)
    assert report.crowd.unreadable == 1
    assert any("made by profilerkit 0.0.0" in note for note in report.trust.notes)


def test_of_several_windows_the_last_that_most_ranks_have_is_judged(facts, tmp_path):
    for rank in (0, 1, 2):
        for first, kind in ((5, "scheduled"), (100, "scheduled"), (200, "anomaly")):
            if (rank, first) != (1, 100):
                told = replace(facts, meta=replace(facts.meta, rank=rank))
                place = tmp_path / f"r{rank}w{first}.pksum"
                write(told, place, header(origin=place.name, rank=rank, kind=kind, first_step=first))
    report = profilerkit.reduce(tmp_path)
    assert report.crowd.ranks == 3
    assert set(report.run.files) == {"r0w5.pksum", "r1w5.pksum", "r2w5.pksum"}
