"""The innermost event around an instant, for all threads at once."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from profilerkit.analysis.enclosing import innermost_at
from profilerkit.trace.columns import Category
from tests.recipes import US, Trace


def around(trace, *instants, tid=100):
    """Names of the innermost operators around µs of a thread, ``None`` for none."""
    columns = trace.read()
    thread = np.full(len(instants), [texts[1] for texts in columns.threads].index(str(tid)), np.int32)
    operators = np.flatnonzero(columns.category == Category.CPU_OP)
    rows = innermost_at(columns, operators, thread, np.array(instants) * US)
    return [columns.strings[columns.name[row]] if row >= 0 else None for row in rows.tolist()]


def nested():
    trace = Trace()
    trace.op(100, 200, name="outer")
    trace.op(110, 120, name="first")
    trace.op(130, 160, name="second")
    trace.op(135, 140, name="deep")
    trace.op(300, 310, name="later")
    return trace


def test_the_innermost_open_event_is_found():
    found = around(nested(), 99, 100, 115, 120, 125, 136, 150, 170, 200, 305, 400)
    expected = [None, "outer", "first", "outer", "outer", "deep", "second", "outer", None, "later", None]
    assert found == expected


def test_threads_do_not_see_each_other():
    trace = nested()
    trace.op(140, 145, name="elsewhere", tid=101)
    assert around(trace, 142, tid=101) == ["elsewhere"]
    assert around(trace, 142) == ["second"]
    assert around(trace, 150, tid=101) == [None]


@pytest.mark.parametrize("turned", [False, True])
def test_of_two_with_the_same_extent_the_one_entered_later_is_inner(turned):
    trace = Trace()
    for number, name in sorted(enumerate(("linear", "addmm")), reverse=turned):
        trace.event(name, "cpu_op", 100, 200, **{"External id": number + 1})
    assert around(trace, 150) == ["addmm"]


def test_an_event_is_found_behind_any_number_that_ended():
    trace = Trace()
    trace.op(0, 10_000, name="loop")
    for start in range(1, 2_000, 2):
        trace.op(start, start + 1, name="child")
    # Instants in all children, so that none is left out before.
    assert around(trace, *range(1, 2_000, 2), 200, 5_000)[-2:] == ["loop", "loop"]


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 40)), min_size=1, max_size=12), st.integers(0, 99))
def test_what_is_found_is_open_and_nothing_open_started_later(spans, instant):
    trace = Trace()
    for number, (start, length) in enumerate(spans):
        trace.op(start, start + length, name=f"{number}")
    (found,) = around(trace, instant)
    is_open = {f"{n}": start for n, (start, length) in enumerate(spans) if start <= instant < start + length}
    if not is_open:
        assert found is None
    else:
        assert is_open[found] == max(is_open.values())
