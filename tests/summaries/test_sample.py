"""Of too many collectives those are kept in which a late rank shows, and the report says how many."""

import doctest

import numpy as np
import pytest
from scale_benchmark import job as plan
from scale_benchmark.fill import template

from profilerkit import __version__, api
from profilerkit.analysis.communication.log import Channel
from profilerkit.analysis.steps.find import in_step
from profilerkit.formats.jobs import Reading
from profilerkit.report import terminal
from profilerkit.summaries import compact
from profilerkit.summaries.compact import spread, stretch
from profilerkit.summaries.files import SUFFIX, Header, digest, open_summary, write
from tests.recipes import replace

RANKS, LATE, FROM_STEP = 40, 13, 15
#: Ten of the fifty steps of twenty collectives.
KEPT = 200


@pytest.fixture(scope="module")
def facts():
    return template()


@pytest.fixture(autouse=True)
def little_room(monkeypatch):
    monkeypatch.setattr(compact, "MOST_COLLECTIVES", KEPT)


def of_rank(facts, rank=0, *, late=-1):
    job = plan.Job(RANKS, late=late, slow=-1, missing=frozenset())
    return plan.facts_of(job, facts, rank, plan._ends())


def steps_of(log, known):
    return set(known.steps.index[in_step(log.start, known.steps.start, known.steps.end)].tolist())


def test_the_example_in_the_docstring_holds():
    assert doctest.testmod(compact).failed == 0


def test_whole_steps_are_kept_all_over_the_trace(facts):
    known = of_rank(facts)
    found = spread(known.collectives, known.steps)
    steps = sorted(steps_of(found, known))
    assert len(found) == KEPT
    assert len(steps) == KEPT // plan.PER_STEP
    assert max(np.diff([0, *steps, plan.STEPS])) <= 2 * plan.STEPS * plan.PER_STEP // KEPT
    assert (np.diff(found.start) > 0).all()


def test_the_same_steps_are_kept_of_a_capture_that_begins_later(facts):
    known = of_rank(facts)
    later = np.flatnonzero(known.steps.index >= 3)
    first = known.steps.start[later[0]]
    log = known.collectives
    short = replace(log, **{name: getattr(log, name)[log.start >= first] for name in compact._ARRAYS})
    steps = replace(
        known.steps,
        index=known.steps.index[later],
        start=known.steps.start[later],
        end=known.steps.end[later],
        state=known.steps.state[3:],
        optimizes=known.steps.optimizes[later],
    )
    whole, begun = (spread(*pair) for pair in ((log, known.steps), (short, steps)))
    assert steps_of(whole, known) - {0, 1, 2} <= steps_of(begun, known)


def test_of_two_ranks_the_one_with_more_keeps_a_part_of_what_the_other_keeps(facts, monkeypatch):
    few = of_rank(facts)
    monkeypatch.setattr(plan, "PER_STEP", 30)
    many = of_rank(facts)
    kept, less = (steps_of(spread(known.collectives, known.steps), known) for known in (few, many))
    assert less < kept
    assert len(less) == KEPT // 30


def test_one_step_that_is_too_large_is_kept_in_part(facts, monkeypatch):
    monkeypatch.setattr(plan, "PER_STEP", KEPT + 50)
    known = of_rank(facts)
    found = spread(known.collectives, known.steps)
    assert len(found) == KEPT
    assert len(steps_of(found, known)) == 1


def test_without_numbers_the_first_are_kept_side_by_side(facts):
    known = of_rank(facts)
    log, steps = known.collectives, known.steps
    nameless = replace(log, channels=(Channel("", 0),))
    unnumbered = replace(log, sequence=np.full(len(log), -1))
    for found in (
        spread(nameless, steps),
        spread(unnumbered, steps),
        spread(log, replace(steps, inferred=True)),
        stretch(unnumbered, steps),
    ):
        assert found.start.tolist() == log.start[:KEPT].tolist()


def test_a_rank_alone_is_told_by_the_first_of_its_judged_steps(facts):
    known = of_rank(facts)
    for warm in (7, 45):
        steps = replace(known.steps, state=("warmup",) * warm + ("steady",) * (plan.STEPS - warm))
        first = min(warm * plan.PER_STEP, len(known.collectives) - KEPT)
        found = stretch(known.collectives, steps)
        assert found.start.tolist() == known.collectives.start[first : first + KEPT].tolist()


def test_little_is_left_as_it_is(facts):
    known = of_rank(facts)
    log = replace(known.collectives, **{name: getattr(known.collectives, name)[:KEPT] for name in compact._ARRAYS})
    assert spread(log, known.steps) is stretch(log, known.steps) is log
    assert spread(None, known.steps) is stretch(None, known.steps) is None


def late_from(facts, rank):
    """Facts of a rank of a job in which one is late from a step on."""
    known = of_rank(facts, rank, late=LATE)
    if rank != LATE:
        return known
    count = FROM_STEP * plan.PER_STEP
    log, in_time = known.collectives, of_rank(facts, rank).collectives
    return replace(known, collectives=replace(log, start=np.r_[in_time.start[:count], log.start[count:]]))


def reduced(facts, place):
    for rank in range(RANKS):
        name = f"rank{rank}.json"
        header = Header(version=__version__, origin=name, trace_bytes=0, trace_mtime_ns=0, reading=digest(Reading()))
        write(late_from(facts, rank), place / f"{name}{SUFFIX}", header)
    return api.reduce(place)


def test_a_rank_that_is_late_only_later_is_found_and_the_sample_is_told(facts, tmp_path):
    report = reduced(facts, tmp_path)
    assert [row.ranks for row in report.crowd.culprits] == [(LATE,)]
    # 20 collectives a step, each 3 ms late, in 35 of 50 steps.
    assert report.crowd.culprits[0].waited_ns == pytest.approx(42e6, rel=0.25)
    assert report.crowd.sampled.ranks == RANKS
    assert (report.crowd.sampled.kept, report.crowd.sampled.of) == (RANKS * KEPT, RANKS * plan.STEPS * plan.PER_STEP)
    text = " ".join(terminal.render(report, width=100, verbose=True).split())
    assert "40 ranks have more collectives than a summary keeps: 8,000 of 40,000 are compared" in text


def test_by_the_first_collectives_alone_it_would_be_missed(facts, tmp_path, monkeypatch):
    monkeypatch.setattr(compact, "_is_numbered", lambda log: False)
    assert reduced(facts, tmp_path).crowd.culprits == ()


def test_a_summary_with_more_than_is_kept_is_refused(facts, tmp_path, monkeypatch):
    from profilerkit.errors import UnreadableInputError
    from profilerkit.summaries import files

    reduced(facts, tmp_path)
    summary = open_summary(next(tmp_path.glob(f"*{SUFFIX}")))
    assert len(summary.outline().collectives) == KEPT
    monkeypatch.setattr(files, "MOST_COLLECTIVES", KEPT - 1)
    with pytest.raises(UnreadableInputError, match="not a readable summary") as caught:
        summary.outline()
    assert "more collectives than a summary keeps" in caught.value.cause
