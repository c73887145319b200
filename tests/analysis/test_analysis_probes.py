"""What the probes of a rank amount to, once each."""

from profilerkit.analysis.probes import probed
from profilerkit.rundir.probes import ProbeRun, ProbesRecord


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
