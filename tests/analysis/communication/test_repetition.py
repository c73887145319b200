"""Steps are found where collectives repeat, and not where they do not."""

import numpy as np
import pytest

from profilerkit.analysis.intervals import EMPTY
from profilerkit.analysis.ranks import dumps
from profilerkit.analysis.ranks.dumps import find_repetition
from profilerkit.analysis.ranks.flight import flight_log
from profilerkit.rundir.documents import Flight, FlightEntry, FlightGroup

WORLD = FlightGroup(name="0", description="default_pg")


def log(sizes, at=None, first=1, group=WORLD):
    """A rank that issued collectives of these sizes, one per 10 ns unless it is said when."""
    at = at or [10 * place for place in range(len(sizes))]
    entries = tuple(
        FlightEntry(
            name=0,
            group=0,
            sequence=first + place,
            between=False,
            created_ns=instant,
            input_elements=size,
            output_elements=size,
            dtype=1,
        )
        for place, (size, instant) in enumerate(zip(sizes, at, strict=True))
    )
    flight = Flight(made=len(sizes), names=("gloo:all_reduce", "Float"), groups=(group,), entries=entries)
    return flight_log([flight], None, EMPTY, np.empty(0, dtype=np.int64))


def bursts(steps, calls, *, step=1000, at=0):
    """When the collectives are issued where each step ends in a burst of them."""
    return [at + number * step + place for number in range(steps) for place in range(calls)]


def test_a_step_begins_after_the_longest_silence():
    found = find_repetition([log([5, 6, 7] * 8, bursts(8, 3))])
    assert found.calls == 3
    assert found.starts.tolist() == [[number * 1000 for number in range(8)]]


def test_ranks_begin_their_steps_at_the_same_collective():
    early = log([5, 6, 7] * 8, bursts(8, 3))
    late = log(([5, 6, 7] * 8)[4:], bursts(8, 3, at=300)[4:], first=5)
    found = find_repetition([early, late])
    assert (found.starts[1] - found.starts[0]).tolist() == [300] * 6
    assert found.starts[0][0] == 2000


def test_the_shortest_period_of_most_calls_is_a_step_not_a_run_of_equal_ones_within():
    # Many equal calls in a row, as the layers of a sharded model issue them.
    found = find_repetition([log(([5] * 9 + [6] + [5, 7] * 4) * 6)])
    assert found.calls == 18


@pytest.mark.parametrize("count", [3, 4])
def test_fewer_than_four_repeats_are_no_habit(count):
    found = find_repetition([log([5, 6, 7] * count, bursts(count, 3))])
    assert (found is None) is (count < dumps.FEWEST_REPEATS)


@pytest.mark.parametrize(("once", "is_found"), [(24, True), (25, False)])
def test_most_of_the_calls_must_repeat(once, is_found):
    found = find_repetition([log([*range(100, 100 + once), *[5, 6, 7] * 8])])
    assert (found is not None) is is_found


def test_no_period_no_group_in_common_and_a_clock_set_back_are_no_steps():
    assert find_repetition([log([number * number for number in range(40)])]) is None
    assert find_repetition([log([5] * 40), log([5] * 40, group=FlightGroup(name="1"))]) is None
    assert find_repetition([log([5] * 40), log([5] * 40, first=1000)]) is None
    assert find_repetition([log([5] * 40, [7] * 40)]) is None


def test_only_the_last_calls_are_looked_at(monkeypatch):
    monkeypatch.setattr(dumps, "MOST_CALLS", 20)
    found = find_repetition([log([*range(100, 500), *[5, 6] * 10])])
    assert (found.calls, found.starts.shape[1]) == (2, 10)
