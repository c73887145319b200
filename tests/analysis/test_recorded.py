"""From a run directory to what its rules say of memory, pauses and surroundings."""

import pytest

from profilerkit.api import analyze
from profilerkit.rundir.sampled import AllocatorSample, GpuFacts, GpuSample, HostSample, Sample
from tests.recipes import Log, S, training, write_run

GIB = 1 << 30
MIB = 1 << 20
GPU = GpuFacts(found_by="uuid", pcie_generation_max=4, pcie_width_max=16)


def sample(second, **host):
    return Sample(
        t_ns=round((second + 0.5) * S),
        gpu=GpuSample(
            utilization_ratio=0.3,
            memory_used_bytes=40 * GIB,
            memory_total_bytes=80 * GIB,
            pcie_generation=4,
            pcie_width=8,
            other_processes=1 if second == 0 else None,
            other_processes_bytes=2 * GIB if second == 0 else None,
            other_pids=(4242,) if second == 0 else (),
        ),
        host=HostSample(**host),
        allocator=AllocatorSample(
            allocated_bytes=20 * GIB,
            reserved_bytes=36 * GIB,
            inactive_split_bytes=12 * GIB,
            requested_bytes=15 * GIB,
            alloc_retries=second // 30,
        ),
    )


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    log = Log()
    for number in range(60):
        saves = number % 10 == 9
        log.step(1_300_000 if saves else 1_000_000, phase=("checkpoint", 300_000) if saves else None)
    samples = [sample(second, steal_ratio=0.1) for second in range(60)]
    traces = {0: training(10, kernels=10, kernel=90_000)}
    directory = tmp_path_factory.mktemp("recorded") / "run"
    return analyze(write_run(directory, [log], traces=traces, samples=samples, gpu=GPU))


def fired(report, code):
    (outcome,) = (outcome for outcome in report.outcomes if outcome.rule == code)
    assert outcome.status == "fired", outcome.reason
    return outcome.findings[0]


def test_every_signal_reaches_its_rule(report):
    assert fired(report, "ME001").title == "The allocator gave back its cache once to serve a request"
    assert fired(report, "ME002").title.startswith("33 % of 36.0 GiB reserved memory")
    assert fired(report, "ME009").title == "Rounding takes 5.00 GiB, 25 % of what is allocated"
    (hardware,) = (outcome for outcome in report.outcomes if outcome.rule == "ME006")
    assert "on a device of half the speed" in hardware.reason
    assert fired(report, "RU001").title == "Checkpoint stops training for 300 ms every 10 steps"
    assert "10 % of the time" in fired(report, "RU005").title
    assert fired(report, "RU006").title == "1 other process uses the same device and 2.00 GiB of its memory"
    assert fired(report, "RU007").fix.text.startswith("PCIe lanes 8 → 16: reseat")


def test_no_rule_breaks_on_them(report):
    assert not [outcome.reason for outcome in report.outcomes if outcome.status == "error"]


def test_checkpoints_are_spread_over_the_steps_of_the_whole_run(report):
    found = fired(report, "RU001")
    share = found.evidence[1]
    assert (share.label, share.n) == ("Checkpoint, share of the recorded steps", 59)
    assert share.value == pytest.approx(6 * 0.3 / (59 + 1.8))
    assert found.saving.expected <= share.value <= found.saving.high


def test_the_allocators_settings_come_from_the_environment_of_the_run(report):
    assert fired(report, "ME002").fix.code == "PYTORCH_ALLOC_CONF=expandable_segments:True"


def test_processor_time_taken_by_other_guests_is_a_doubt(report):
    assert any("Other guests of this machine took 10 %" in note for note in report.trust.notes)
    assert fired(report, "RU001").confidence == "medium"
