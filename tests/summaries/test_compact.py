"""Less is kept, and every sum stays what it was."""

import doctest

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from profilerkit.analysis.intervals import NO_SEGMENTS, Segments
from profilerkit.analysis.trace_facts import trace_facts
from profilerkit.formats.registry import read_trace
from profilerkit.summaries import compact
from profilerkit.summaries.compact import coarse, smaller, thin
from tests.recipes import training


@pytest.fixture
def facts(tmp_path):
    return trace_facts(read_trace(training(8, kernels=6).write(tmp_path / "t.json")))


def test_the_example_in_the_docstring_holds():
    assert doctest.testmod(compact).failed == 0


@st.composite
def segments(draw):
    lengths = draw(st.lists(st.integers(1, 9), min_size=1, max_size=30))
    gaps = draw(st.lists(st.integers(0, 2), min_size=len(lengths), max_size=len(lengths)))
    labels = draw(st.lists(st.integers(0, 3), min_size=len(lengths), max_size=len(lengths)))
    start = np.cumsum(np.array(gaps) + np.r_[0, lengths[:-1]])
    cuts = draw(st.lists(st.integers(0, int(start[-1]) + 12), min_size=1, max_size=8))
    return Segments(start, start + lengths, np.array(labels)), np.array(cuts)


def sums(found, cuts):
    """Time of each label between two neighbouring cuts."""
    edges = np.r_[-1, np.unique(cuts), 1_000]
    out = {}
    for start, end, label in zip(found.start.tolist(), found.end.tolist(), found.label.tolist(), strict=True):
        for low, high in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
            inside = min(end, high) - max(start, low)
            if inside > 0:
                out[low, label] = out.get((low, label), 0) + inside
    return out


@given(segments())
def test_every_sum_between_two_cuts_stays(drawn):
    whole, cuts = drawn
    joined = coarse(whole, cuts)
    assert sums(joined, cuts) == sums(whole, cuts)
    assert len(joined) <= len(whole) + 2 * len(np.unique(cuts))
    assert (joined.start[1:] >= joined.end[:-1]).all()


def test_each_form_holds_less_and_the_same_totals(facts):
    forms = [form for _, form in smaller(facts)]
    words = [lost for lost, _ in smaller(facts)]
    coarser, shorter = (words.index(lost) for lost in ("the order of parts between collectives", "the replay"))
    assert [form.totals.tolist() for form in forms] == [facts.totals.tolist()] * len(forms)
    assert facts.lanes is not None
    assert forms[1].lanes is None
    assert len(forms[coarser].partition.segments) <= len(facts.partition.segments)
    assert forms[coarser].replay is facts.replay
    assert forms[shorter].replay is None
    lengths = forms[coarser].partition.segments
    assert int((lengths.end - lengths.start).sum()) == int(facts.partition.per_step.sum())


def test_what_ranks_are_compared_by_has_no_segments_and_all_steps(facts):
    found = thin(facts)
    assert found.partition.segments is NO_SEGMENTS
    assert found.totals.tolist() == facts.totals.tolist()
    assert found.steps is facts.steps
    assert found.kernels == ()
