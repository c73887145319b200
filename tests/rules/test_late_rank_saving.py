"""What evening out the work of a late rank saves: the other ranks take over their part of it."""

import pytest

from profilerkit.model import revise
from tests.recipes import replace
from tests.rules.test_rules import finding, late


@pytest.mark.parametrize(("ranks", "saved"), [(2, 0.15), (4, 0.225), (8, 0.2625)])
def test_evened_work_saves_what_the_others_do_not_take_over(ranks, saved):
    found = finding("CO003", replace(late(0.3, cause="compute.math", jitter=0.0), world_size=ranks))
    assert found.saving.expected == pytest.approx(saved)
    assert found.saving.high == pytest.approx(0.3)


@pytest.mark.parametrize("cause", ["input.wait", "over.python", "mem.alloc", "other.ckpt", None])
def test_what_only_one_rank_loses_is_saved_whole(cause):
    known = replace(late(0.3, cause=cause, jitter=0.0), world_size=2)
    assert finding("CO003", known).saving.expected == pytest.approx(0.3)


def test_a_slower_rank_with_the_same_work_gives_none_of_it_away():
    known = late(0.3, cause="compute.math", jitter=0.0)
    slower = tuple(revise(one, same_work=True) for one in known.communication.late)
    known = replace(known, world_size=2, communication=revise(known.communication, late=slower))
    assert finding("CO003", known).saving.expected == pytest.approx(0.3)


def test_transfers_that_only_the_late_rank_hides_are_promised_beside_the_waiting():
    saving = finding("CO003", replace(late(0.2, jitter=0.01), shown_share=0.1)).saving
    assert (saving.expected, saving.high) == (pytest.approx(0.29), pytest.approx(0.3))
