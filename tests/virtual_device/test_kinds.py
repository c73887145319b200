"""Every kind of loop, recorded in every way: healthy ones raise no alarm, faulty ones are named or honestly not."""

import pytest
from device_loops.judge import MODES, judge
from device_loops.kinds import KINDS


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_the_cause_of_a_loop_is_told_and_nothing_else(kind, mode):
    judged = judge(kind, mode)
    assert not judged.wrong, judged.report.verdict.headline
