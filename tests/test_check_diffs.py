"""What scripts/check_diffs trains does what it says."""

import pytest
from diff_pairs.kinds import CHANGE, KINDS, LOOPS, USUAL


def test_two_loops_are_equal_and_the_third_does_a_tenth_more():
    assert sorted(LOOPS.values()) == [1.0, 1.0, 1.0 + CHANGE]


@pytest.mark.parametrize("name", KINDS)
def test_a_tenth_more_is_a_whole_number_of_passes(name):
    more = KINDS[name].passes * (1.0 + CHANGE)
    assert round(more) == pytest.approx(more)
    assert set(USUAL) <= set(KINDS)


@pytest.mark.torch
def test_a_loop_is_recorded_and_compared_with_itself(tmp_path, monkeypatch):
    pytest.importorskip("torch")
    from diff_pairs import train

    import profilerkit

    monkeypatch.setattr(train, "STEPS", 40)
    kind = KINDS["sleeping"]._replace(asleep_s=0.002)
    train.train(kind, 1.0, str(tmp_path / "run"))
    report = profilerkit.analyze(tmp_path / "run")
    diff = profilerkit.diff(report, report)
    assert diff.verdict == "no real change"
    assert diff.before.steady >= 20
