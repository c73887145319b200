"""How far a clock was held down, from samples."""

import pytest

from profilerkit import analyze
from profilerkit.analysis.surroundings import throttling
from profilerkit.rundir.sampled import GpuFacts, GpuSample, Sample
from tests.recipes import Log, write_run

HEAT, BRAKE, CAP, IDLE = 0x20, 0x80, 0x4, 0x1


def sampled(*gpu):
    return [Sample(t_ns=number * 10**9, gpu=one) for number, one in enumerate(gpu)]


def at_work(clock=1_400, reasons=0, utilization=0.9, **fields):
    return GpuSample(sm_clock_mhz=clock, throttle_reasons=reasons, utilization_ratio=utilization, **fields)


def of_one(*gpu):
    return throttling([sampled(*gpu)], 0)


def test_the_clock_at_work_and_the_reasons_for_it():
    found = of_one(
        at_work(sm_clock_max_mhz=1_500, power_limit_mw=400_000, power_mw=300_000),
        at_work(1_000, HEAT, power_mw=200_000),
        at_work(1_200, BRAKE),
        at_work(1_380, CAP),
    )
    assert (found.n, found.slowed_ratio, found.thermal_ratio, found.brake_ratio) == (4, 0.5, 0.25, 0.25)
    assert (found.capped_ratio, found.clock_mhz, found.free_clock_mhz) == (0.25, 1_245.0, 1_390.0)
    assert (found.max_clock_mhz, found.power_mw, found.power_limit_mw) == (1_500, 250_000.0, 400_000)


def test_an_idle_device_may_have_any_clock():
    found = of_one(at_work(), at_work(300, HEAT, utilization=0.5), at_work(200, IDLE, utilization=0.0))
    assert (found.n, found.slowed_ratio, found.clock_mhz) == (1, 0.0, 1_400.0)


def test_counters_say_how_long_and_bits_only_that():
    found = of_one(
        at_work(1_000, HEAT, sw_thermal_throttle_ratio=0.25, power_throttle_ratio=0.5),
        at_work(1_400, 0, sw_thermal_throttle_ratio=0.0, power_throttle_ratio=0.0),
    )
    assert (found.slowed_ratio, found.capped_ratio) == (0.125, 0.25)


def test_a_device_that_was_slowed_all_the_time_has_no_free_clock():
    assert of_one(at_work(1_000, HEAT)).free_clock_mhz is None


@pytest.mark.parametrize(
    "samples",
    [
        (),
        (GpuSample(is_lost=True),),
        (GpuSample(sm_clock_mhz=1_400, utilization_ratio=0.9),),
        (GpuSample(throttle_reasons=HEAT, utilization_ratio=0.9),),
        (at_work(utilization=0.2),),
    ],
)
def test_without_a_clock_its_reasons_or_work_nothing_is_known(samples):
    assert of_one(*samples) is None


def test_the_other_ranks_say_what_is_normal():
    ranks = [sampled(at_work(1_100, CAP)), sampled(at_work(1_400)), sampled(at_work(1_440)), []]
    found = throttling(ranks, 0)
    assert (found.capped_ratio, found.other_clock_mhz, found.others_capped_ratio) == (1.0, 1_420.0, 0.0)
    assert throttling(ranks, 3) is None


def test_a_limit_below_the_devices_default_is_told_from_its_facts(tmp_path):
    samples = sampled(*[at_work(1_000, CAP, sm_clock_max_mhz=1_500, power_limit_mw=350_000)] * 5)
    gpu = GpuFacts(found_by="the only device", power_limit_default_mw=700_000)
    report = analyze(write_run(tmp_path / "run", [Log().steps(30, 1_000)], samples=samples, gpu=gpu))
    (found,) = next(outcome.findings for outcome in report.outcomes if outcome.rule == "CP009")
    assert found.title.startswith("A power limit of 350 W, where 700 W is the default")


def test_a_throttled_run_is_told_from_its_samples(tmp_path):
    samples = sampled(*[at_work(1_400, sm_clock_max_mhz=1_500)] * 5, *[at_work(1_000, HEAT)] * 5)
    report = analyze(write_run(tmp_path / "run", [Log().steps(30, 1_000)], samples=samples))
    (found,) = next(outcome.findings for outcome in report.outcomes if outcome.rule == "CP009")
    assert found.title == "Heat holds the device's clock down 50 % of the time at work"
