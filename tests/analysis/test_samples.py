"""Samples to one summary per signal."""

import msgspec
import pytest

from profilerkit.analysis.samples import FEWEST_FOR_SLOPE, MOST_POINTS, summarise
from profilerkit.analysis.trust import counter_signals
from profilerkit.api import analyze
from profilerkit.rundir.layout import Feature
from profilerkit.rundir.reader import read_run
from profilerkit.rundir.sampled import GpuFacts, GpuSample, HostSample, Sample, WorkerSample
from tests.recipes import Log, write_run

SECOND = 10**9


def gpu(**fields):
    """One device sample per second: each field as a list of its values, ``None`` where it was not read."""
    rows = zip(*fields.values(), strict=True)
    records = [GpuSample(**dict(zip(fields, row, strict=True))) for row in rows]
    return [Sample(t_ns=second * SECOND, gpu=record) for second, record in enumerate(records)]


def host(*records):
    return [Sample(t_ns=second * SECOND, host=record) for second, record in enumerate(records)]


def by_name(samples):
    return {series.name: series for series in summarise(samples, rank=0)}


def test_samples_become_one_series_per_signal_that_was_read():
    samples = [
        Sample(t_ns=i, gpu=GpuSample(utilization_ratio=i / 10), host=HostSample(cpu_ratio=0.5 if i == 3 else None))
        for i in range(11)
    ]
    series = {entry.name: entry for entry in summarise(samples, rank=2)}
    assert set(series) == {"gpu.utilization", "host.cpu"}
    utilization = series["gpu.utilization"]
    assert (utilization.n, utilization.rank, utilization.unit) == (11, 2, "ratio")
    assert (utilization.mean, utilization.maximum) == (pytest.approx(0.5), 1.0)
    assert (utilization.p10, utilization.p90) == (pytest.approx(0.1), pytest.approx(0.9))
    assert series["host.cpu"].n == 1


def test_no_samples_are_no_series():
    assert summarise([], rank=0) == ()


def test_power_is_the_growth_of_the_energy_counter():
    # 100 J in the first second, 300 J in the second; the driver's own average is not asked.
    power = by_name(gpu(energy_mj=[0, 100_000, 400_000], power_mw=[1, 1, 1]))["gpu.power"]
    assert (power.n, power.mean, power.maximum, power.unit) == (2, 200_000, 300_000, "mW")


def test_power_without_a_counter_is_the_drivers_average():
    power = by_name(gpu(energy_mj=[None, None], power_mw=[100_000, 300_000]))["gpu.power"]
    assert (power.n, power.mean) == (2, 200_000)


def test_a_counter_that_was_reset_says_nothing_of_that_second():
    power = by_name(gpu(energy_mj=[500_000, 600_000, 50_000, 150_000]))["gpu.power"]
    assert (power.n, power.mean) == (2, 100_000)


def test_a_counter_read_twice_at_once_says_nothing():
    samples = [Sample(t_ns=t_ns, gpu=GpuSample(energy_mj=t_ns)) for t_ns in (0, SECOND // 100)]
    assert "gpu.power" not in by_name(samples)


def test_throttling_is_counted_time_and_only_without_it_a_state():
    counted = by_name(gpu(throttle_reasons=[4, 4], power_throttle_ratio=[None, 0.25]))
    assert (counted["gpu.power_throttle"].n, counted["gpu.power_throttle"].mean) == (1, 0.25)
    states = by_name(gpu(throttle_reasons=[0x4, 0x20, 0x40 | 0x8, 0]))
    shares = {name: states[f"gpu.{name}"].mean for name in ("power_throttle", "sw_thermal_throttle", "hw_slowdown")}
    assert shares == {"power_throttle": 0.25, "sw_thermal_throttle": 0.25, "hw_slowdown": 0.25}
    assert states["gpu.hw_thermal_throttle"].mean == 0.25


def test_memory_has_a_slope_from_ten_samples_on():
    def grown(n):
        return by_name(host(*(HostSample(process_rss_bytes=1000 + 5 * second) for second in range(n))))

    assert grown(FEWEST_FOR_SLOPE)["host.process_memory"].slope_per_s == pytest.approx(5)
    assert grown(FEWEST_FOR_SLOPE - 1)["host.process_memory"].slope_per_s is None


def test_the_slope_is_that_of_the_time_not_of_the_number():
    times = [0, 1, 2, 3, 4, 5, 6, 7, 8, 18]
    samples = [Sample(t_ns=second * SECOND, host=HostSample(swap_used_bytes=2 * second)) for second in times]
    assert by_name(samples)["host.swap_used"].slope_per_s == pytest.approx(2)


def test_a_ratio_has_no_slope():
    assert by_name(gpu(utilization_ratio=[i / 20 for i in range(20)]))["gpu.utilization"].slope_per_s is None


def test_workers_are_summed_and_the_busiest_is_told():
    first = HostSample(workers=(WorkerSample(1, None, 10), WorkerSample(2, None, 20)))
    second = HostSample(workers=(WorkerSample(1, 0.5, 10), WorkerSample(2, 1.0, 20)))
    series = by_name(host(first, second, HostSample()))
    assert (series["host.worker_cores"].mean, series["host.busiest_worker"].mean) == (1.5, 1.0)
    assert (series["host.worker_memory"].mean, series["host.workers"].maximum) == (30, 2)


def test_reads_and_kills_are_those_of_the_run():
    series = by_name(
        host(HostSample(read_bytes=1000, cgroup_oom_kills=3), HostSample(read_bytes=1500, cgroup_oom_kills=4))
    )
    assert (series["host.process_read"].mean, series["host.process_read"].unit) == (500, "bytes_per_s")
    assert series["host.oom_kills"].maximum == 1


def test_a_lost_device_was_measured_in_part(tmp_path):
    lost = Feature(on=False, reason="the device was lost: GPU is lost")
    features, facts = {"nvml": lost, "host": Feature(on=True)}, GpuFacts(found_by="x", gpm="switched off")
    samples = gpu(utilization_ratio=[0.5])
    write_run(tmp_path, [Log()], samples=samples, features=features, gpu=facts)
    record = read_run(tmp_path).ranks[0]
    signals = counter_signals(record, summarise(record.samples, 0), "hint")
    assert [(signal.name, signal.state, signal.reason) for signal in signals] == [
        ("GPU counters", "partial", "the device was lost: GPU is lost"),
        ("busy parts of the GPU (GPM)", "missing", "switched off"),
        ("host counters", "missing", "nothing was sampled"),
    ]


def test_a_trace_holds_no_counters():
    assert {(signal.state, signal.reason) for signal in counter_signals(None, (), "hint")} == {
        ("missing", "a trace holds no counters")
    }


def test_the_driver_stands_among_the_versions(tmp_path):
    write_run(tmp_path, [Log().steps(6, 1000)], gpu=GpuFacts(found_by="x", driver_version="610.57"))
    assert analyze(tmp_path).run.versions == {"torch": "2.13.0", "driver": "610.57"}


def strips_of(samples, first_step_ns=0):
    return {series.name: series.strip for series in summarise(samples, 0, first_step_ns) if series.strip}


def test_samples_are_kept_only_for_the_figure_and_only_beside_steps():
    both = [*gpu(utilization_ratio=[0.5], memory_used_bytes=[1]), *host(HostSample(cpu_ratio=0.5, iowait_ratio=0.1))]
    assert set(strips_of(both)) == {"gpu.utilization"}
    assert set(strips_of(both[1:])) == {"host.cpu"}
    assert all(series.strip is None for series in summarise(both, 0))


def test_a_strip_is_on_the_clock_of_the_steps():
    strip = strips_of(gpu(sm_clock_mhz=[None, 1980, 1410.123]), first_step_ns=2 * SECOND - 400_000)["gpu.sm_clock"]
    assert strip.at_ns == (-1_000_000_000, 0)
    assert strip.values == (1980.0, 1410.0)


def test_many_samples_are_put_together_by_even_numbers_and_rates_with_the_others():
    n = 2 * MOST_POINTS + 1
    strips = strips_of(gpu(sm_clock_mhz=list(range(n)), energy_mj=[second * 1000 for second in range(n)]))
    clock, power = strips["gpu.sm_clock"], strips["gpu.power"]
    assert len(clock.values) <= MOST_POINTS
    assert clock.values[-3:] == (n - 8.0, n - 5.0, n - 2.0)
    assert clock.at_ns[-2] == (n - 5) * SECOND
    assert set(power.values) == {1000.0}
    assert power.at_ns[1:] == clock.at_ns[1:]


def test_strips_add_a_few_kilobytes(tmp_path):
    samples = gpu(
        utilization_ratio=[0.123456] * 3600,
        sm_clock_mhz=[1980] * 3600,
        power_mw=[412_345] * 3600,
        temperature_c=[61] * 3600,
    )
    report = analyze(write_run(tmp_path, [Log().steps(60, 60_000_000)], samples=samples))
    kept = [series for series in report.run.samples if series.strip]
    assert len(kept) == 4
    assert sum(len(msgspec.json.encode(series.strip)) for series in kept) < 8_000
