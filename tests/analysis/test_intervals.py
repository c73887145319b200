"""Interval arithmetic against a brute force that looks at every instant."""

import doctest

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profilerkit.analysis import intervals
from profilerkit.analysis.intervals import (
    NO_LABEL,
    Segments,
    Spans,
    clip,
    innermost_owner,
    intersect,
    latest_end_owner,
    paint,
    subtract,
    union,
    with_label,
)

RANGE = 40

settings.register_profile("quick", max_examples=60, deadline=None, derandomize=True)
quick = settings(settings.get_profile("quick"))


def test_the_examples_in_the_docstrings_hold():
    assert doctest.testmod(intervals).failed == 0


interval = st.tuples(st.integers(0, RANGE), st.integers(0, 12)).map(lambda pair: (pair[0], pair[0] + pair[1]))
intervals_list = st.lists(interval, max_size=12)


def arrays(pairs):
    """Starts and ends as int64."""
    table = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    return table[:, 0], table[:, 1]


def instants(pairs):
    """Every unit of time any of the pairs covers."""
    return {instant for start, end in pairs for instant in range(start, end)}


def covered(spans):
    return instants(zip(spans.start.tolist(), spans.end.tolist(), strict=True))


def owner_at(segments):
    """Instant to label; fails if two segments claim one instant."""
    owners = {}
    for start, end, label in zip(segments.start.tolist(), segments.end.tolist(), segments.label.tolist(), strict=True):
        assert start < end
        for instant in range(start, end):
            assert instant not in owners
            owners[instant] = label
    return owners


@quick
@given(intervals_list)
def test_a_union_covers_what_any_interval_covers_with_gaps_between_its_spans(pairs):
    merged = union(*arrays(pairs))
    assert covered(merged) == instants(pairs)
    assert merged.total_ns == len(instants(pairs))
    assert (merged.start[1:] > merged.end[:-1]).all()


@quick
@given(intervals_list)
def test_a_union_is_idempotent(pairs):
    once = union(*arrays(pairs))
    twice = union(once.start, once.end)
    assert (twice.start.tolist(), twice.end.tolist()) == (once.start.tolist(), once.end.tolist())


@quick
@given(intervals_list, intervals_list)
def test_intersection_and_difference_split_the_first_set_exactly(first, second):
    a, b = union(*arrays(first)), union(*arrays(second))
    both, rest = intersect(a, b), subtract(a, b)
    assert covered(both) == instants(first) & instants(second)
    assert covered(rest) == instants(first) - instants(second)
    assert both.total_ns + rest.total_ns == a.total_ns


@quick
@given(intervals_list, st.integers(0, RANGE), st.integers(0, RANGE))
def test_clipping_keeps_what_lies_inside(pairs, low, length):
    spans = clip(union(*arrays(pairs)), low, low + length)
    assert covered(spans) == instants(pairs) & set(range(low, low + length))


@quick
@given(intervals_list)
def test_the_interval_that_ends_last_owns_the_instant_among_those_begun(pairs):
    start, end = arrays(pairs)
    owners = owner_at(latest_end_owner(start, end, end))  # the end itself is the label
    assert set(owners) == instants(pairs)
    for instant, label in owners.items():
        assert label == max(stop for begin, stop in pairs if begin <= instant < stop)


@st.composite
def nested(draw, low=0, high=RANGE, depth=0):
    """Properly nested intervals, each with its depth: what one thread's call stack looks like."""
    out = []
    while low < high and draw(st.booleans()):
        start = draw(st.integers(low, high - 1))
        end = draw(st.integers(start + 1, high))
        out.append((start, end, depth))
        if depth < 3:
            out += draw(nested(start, end, depth + 1))
        low = end
    return out


@quick
@given(nested(), st.randoms(use_true_random=False))
def test_the_most_deeply_nested_interval_owns_the_instant(tree, random):
    random.shuffle(tree)
    start, end = arrays([entry[:2] for entry in tree])
    # One extent may be used by parent and child; then neither order can be told from the times, so both own it.
    owned = owner_at(innermost_owner(start, end, np.arange(len(tree))))
    assert set(owned) == instants(entry[:2] for entry in tree)
    for instant, row in owned.items():
        around = [entry for entry in tree if entry[0] <= instant < entry[1]]
        deepest = max(around, key=lambda entry: entry[2])
        assert tree[row][:2] == deepest[:2]


@quick
@given(intervals_list)
def test_intervals_that_overlap_improperly_still_partition_their_union(pairs):
    start, end = arrays(pairs)
    assert set(owner_at(innermost_owner(start, end, np.zeros(len(pairs), dtype=np.int64)))) == instants(pairs)


layer = intervals_list.map(lambda pairs: union(*arrays(pairs)))


@quick
@given(intervals_list, st.lists(layer, max_size=4))
def test_painting_gives_every_instant_the_first_layer_that_has_one(window, layers):
    window = union(*arrays(window))
    painted = paint(window, [with_label(spans, index) for index, spans in enumerate(layers)])
    owners = owner_at(painted)
    assert set(owners) == covered(window)
    for instant, label in owners.items():
        expected = next((index for index, spans in enumerate(layers) if instant in covered(spans)), NO_LABEL)
        assert label == expected


def test_painting_cuts_at_the_boundary_between_two_adjacent_spans():
    window = Spans(np.array([0, 10]), np.array([10, 20]))
    painted = paint(window, [Segments(np.array([5]), np.array([15]), np.array([3]))])
    assert list(zip(painted.start.tolist(), painted.end.tolist(), painted.label.tolist(), strict=True)) == [
        (0, 5, NO_LABEL),
        (5, 10, 3),
        (10, 15, 3),
        (15, 20, NO_LABEL),
    ]


@pytest.mark.parametrize("owner", [latest_end_owner, innermost_owner])
def test_of_two_intervals_with_the_same_extent_the_same_one_owns_it_in_any_order(owner):
    start, end = np.array([0, 0]), np.array([9, 9])
    forward = owner(start, end, np.array([4, 7]))
    backward = owner(start, end, np.array([7, 4]))
    assert forward.label.tolist() == backward.label.tolist()


@pytest.mark.parametrize("offset", [0, -(2**62), 2**62])
def test_nanoseconds_are_exact_at_either_end_of_the_clock(offset):
    spans = union(np.array([offset + 1, offset + 5]), np.array([offset + 4, offset + 6]))
    left = subtract(spans, Spans(np.array([offset + 2]), np.array([offset + 3])))
    assert (left.start - offset).tolist() == [1, 3, 5]
    assert left.total_ns == 3
