"""Two recordings of loops whose host runs ahead: a change of the device is found, and no change is none."""

import pytest
from device_loops.kinds import KINDS, sped_up
from device_loops.loop import Every, Fetch, Item, Loop, train
from device_loops.program import simulate
from device_loops.recording import write_run

import profilerkit


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """Compare a kind with a loop like it."""

    def compare(name, after):
        path = tmp_path_factory.mktemp(name)
        before = KINDS[name].loop
        sides = [write_run(path / side, loop, simulate(loop)) for side, loop in (("before", before), ("after", after))]
        return profilerkit.diff(*sides, fail_if=["step_time:+5%"])

    return compare


@pytest.mark.parametrize("name", ["item_every_10", "item_every_50", "item_never", "hidden_wait"])
def test_a_quarter_more_of_the_devices_time_is_found_and_fails_a_gate(compared, name):
    found = compared(name, sped_up(KINDS[name].loop, 1.25))
    assert found.verdict == "slower"
    assert found.step.mean.expected == pytest.approx(0.25, abs=0.02)
    (gate,) = found.gates
    assert gate.status == "failed"


@pytest.mark.parametrize("every", [10, 50])
def test_two_recordings_of_one_loop_are_no_change(compared, every):
    """The second draws other lengths: its kernels jitter from another seed."""
    again = Loop((Fetch(0.06), *train(), Every(every, (Item(),))), steps=300)
    found = compared(f"item_every_{every}", again)
    assert found.verdict == "no real change"
    (gate,) = found.gates
    assert gate.status == "passed"


def test_reading_the_loss_more_often_is_no_change_where_the_device_never_idles(compared):
    again = Loop((Fetch(), *train(), Every(25, (Item(),))), steps=300)
    assert compared("item_every_50", again).verdict == "no real change"
