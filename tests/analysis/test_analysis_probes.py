"""What the probes of a rank amount to, once each."""

import numpy as np

from profilerkit.analysis.job_facts import probed, saved
from profilerkit.rundir.documents import ProbeRun, ProbesRecord


def made(change):
    return ProbeRun(name="workers", change=change, usual_ns=(100,) * 8, probed_ns=(60,) * 8)


def test_probe_that_abstains_twice_for_one_reason_is_told_once():
    same, other = ProbeRun(name="workers", reason="no data set"), ProbeRun(name="workers", reason="one worker")
    record = ProbesRecord(probes=(same, ProbeRun(name="input", reason="no data set"), same, other))
    assert [(probe.name, probe.reason) for probe in probed(record)] == [
        ("workers", "no data set"),
        ("input", "no data set"),
        ("workers", "one worker"),
    ]


def test_two_results_of_one_probe_are_told_both():
    found = probed(ProbesRecord(probes=(made("2 → 4"), made("2 → 1"))))
    assert [(probe.change, probe.share) for probe in found] == [("2 → 4", 0.4), ("2 → 1", 0.4)]


def test_interval_of_what_is_saved_ends_at_the_whole_step():
    steps = np.array([10, 10, 10, 400, 10, 10, 10, 400])
    share, low, high = saved(steps, np.empty(0, dtype=np.int64), np.full(8, 1))
    assert 0.8 < low <= share <= high <= 1.0
