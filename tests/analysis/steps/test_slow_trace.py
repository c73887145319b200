"""What grew in a traced slow step."""

import pytest

from profilerkit.analysis.steps.table import slow_trace
from tests.recipes import MS, US, Trace, host_training


def with_slow_step(*, slow=3, python=500, fetch=0, count=5, first=400):
    """Steps of 100 µs of operators; the slow one spends longer in Python, or in a fetch."""
    trace, at = Trace(), 1_000
    for number in range(count):
        began = at
        if number == slow:
            if fetch:
                trace.loader(at, at + fetch)
            at += fetch + python
        trace.op(at, at + 100, name="aten::mm")
        at += 100
        trace.step(first + number, began, at)
    return trace.facts()


def test_the_part_that_grew_is_named_with_how_much():
    found = slow_trace(with_slow_step(), None, 403)
    assert (found.step, found.time_ns, found.usual_ns, found.beside) == (403, 600 * US, 100 * US, True)
    assert found.grown == (("over.python", 500 * US),)
    assert found.told("steps recur") == (
        "Slow step 403 was traced because steps recur: it took 600 µs, 500 µs longer than the steps beside it, of that "
        "500 µs Python between operators."
    )


def test_parts_are_named_by_how_much_they_grew_and_small_ones_are_not():
    grown = slow_trace(with_slow_step(fetch=800, python=300), None, 403).grown
    assert [ns for _, ns in grown] == [800 * US, 300 * US]
    assert grown[0][0].startswith("input.")
    assert len(slow_trace(with_slow_step(fetch=800, python=50), None, 403).grown) == 1


def test_without_a_known_number_the_longest_step_is_the_slow_one():
    assert slow_trace(with_slow_step(slow=1), None, None).step == 401


def test_a_window_in_which_no_step_is_slow_shows_nothing():
    assert slow_trace(with_slow_step(python=40), None, None) is None
    assert slow_trace(with_slow_step(python=60), None, None) is not None


def test_a_slow_step_by_itself_is_compared_with_the_typical_window():
    alone = with_slow_step(slow=0, count=1)
    assert slow_trace(alone, None, 400) is None
    found = slow_trace(alone, host_training(6, compute=100).facts(), 400)
    assert (found.usual_ns, found.beside) == (100 * US, False)
    assert found.grown == (("over.python", 500 * US),)
    assert "than the typical traced step" in found.told("x")


@pytest.mark.parametrize(("comm", "python", "own"), [(5_000, 0, 0), (5_000, 1_000, 1_000)])
def test_waiting_for_others_is_not_the_ranks_own(comm, python, own):
    trace, at = Trace(backend="gloo"), 1_000
    for number in range(5):
        began, slow = at, number == 2
        at += python * slow
        trace.op(at, at + 1_000, name="aten::mm")
        at += 1_000
        trace.gloo(at, at + 100 + comm * slow)
        at += 100 + comm * slow
        trace.step(number, began, at)
    found = slow_trace(trace.facts(), None, 2)
    assert found.time_ns >= 6 * MS
    assert found.own_ns == own * US
