"""Memory of a run from its samples: peaks, growth, and the time to a full device or host."""

import pytest

from profilerkit.analysis.facts import Facts
from profilerkit.analysis.memory.allocator import with_samples
from profilerkit.analysis.memory.use import copied_pages
from profilerkit.analysis.rank_facts import rank_facts
from profilerkit.analysis.steps.log import read_log
from profilerkit.model import revise
from profilerkit.model.memory import Memory
from profilerkit.rundir.reader import read_run
from profilerkit.rundir.sampled import GpuSample, HostSample, Sample, WorkerPages, WorkerSample
from tests.recipes import MS, Log, Trace, training, write_run

GIB = 1 << 30
MIB = 1 << 20


def log(steps=100):
    """Steps of one second from 0 on, numbered from 0."""
    return read_log(Log().steps(steps, 1_000_000).data, {})


def traced(start_us, end_us):
    """Records of 40 steps of one second with a trace window."""
    steps = Log().steps(40, 1_000_000)
    steps.window(start_us, end_us, 10)
    return steps.data


def host(second, rss, *, used=8 * GIB, total=64 * GIB):
    seen = HostSample(process_rss_bytes=rss, memory_used_bytes=used, memory_total_bytes=total)
    return Sample(t_ns=round((second + 0.5) * 1_000 * MS), host=seen)


def gpu(second, used, *, total=80 * GIB):
    return Sample(
        t_ns=round((second + 0.5) * 1_000 * MS), gpu=GpuSample(memory_used_bytes=used, memory_total_bytes=total)
    )


def test_a_process_that_grows_fills_the_host_in_so_many_steps():
    found = with_samples(Memory(), [host(s, GIB + s * 50 * MIB) for s in range(100)], log())
    (grown,) = found.growth
    assert (grown.of, grown.grows) == ("process", True)
    assert grown.bytes_per_step == pytest.approx(50 * MIB)
    assert grown.headroom_bytes == 56 * GIB
    assert grown.steps_to_full == pytest.approx(56 * 1024 / 50)
    assert grown.ns_to_full == pytest.approx(grown.steps_to_full * 1_000 * MS, rel=1e-6)
    assert (found.peak_process_bytes, found.host_capacity_bytes) == (GIB + 99 * 50 * MIB, 64 * GIB)


def test_a_device_that_fills_up_at_first_and_stays_does_not_grow():
    found = with_samples(Memory(), [gpu(s, min(10 + 5 * s, 40) * GIB) for s in range(100)], log())
    (grown,) = found.growth
    assert (grown.of, grown.grows, grown.steps_to_full) == ("device", False, None)
    assert (found.peak_device_used_bytes, found.capacity_bytes) == (40 * GIB, 80 * GIB)


def test_twelve_samples_are_needed_to_claim_growth():
    samples = [host(s, GIB + s * 50 * MIB) for s in range(100)]
    assert with_samples(Memory(), samples[:12], log()).growth == ()  # one of them in the warm-up step
    (grown,) = with_samples(Memory(), samples[:13], log()).growth
    assert (grown.grows, grown.n, grown.steps_to_full) == (True, 12, None)


def test_twelve_samples_of_memory_that_fills_up_are_no_growth():
    samples = [host(s, GIB + min(s, 7) * 50 * MIB) for s in range(13)]
    assert not with_samples(Memory(), samples, log()).growth[0].grows


@pytest.mark.parametrize(("own", "grows"), [(0, False), (50 * MIB, True)])
def test_pages_of_a_file_that_is_read_for_the_first_time_are_no_growth(own, grows):
    def mapped(s):
        found = HostSample(process_rss_bytes=GIB + s * (own + 80 * MIB), process_file_bytes=s * 80 * MIB)
        return Sample(t_ns=round((s + 0.5) * 1_000 * MS), host=found)

    found = with_samples(Memory(), [mapped(s) for s in range(40)], log())
    (grown,) = found.growth
    assert (grown.grows, grown.bytes_per_step) == (grows, own)
    assert found.peak_process_bytes == GIB + 39 * (own + 80 * MIB)


def forked(second, private, anonymous=GIB, *, pid=9):
    """A second in which the pages of one of two workers were counted."""
    workers = (WorkerSample(pid, 0.5, anonymous), WorkerSample(3, 0.5, anonymous))
    seen = HostSample(workers=workers, worker_pages=WorkerPages(pid, anonymous, private), memory_total_bytes=64 * GIB)
    return Sample(t_ns=round((second + 0.5) * 1_000 * MS), host=revise(seen, memory_used_bytes=8 * GIB))


def test_pages_that_a_worker_shared_and_copied_are_counted():
    counts = [(2, 50), (4, 150), (6, 200), (10, 220)]
    samples = [forked(s, mib * MIB) for s, mib in counts] + [forked(s, 5 * MIB, pid=4) for s in (20, 21)]
    copied = copied_pages(samples, log(), {9, 4})
    assert (copied.counts, copied.first_step, copied.last_step) == (4, 2, 10)
    assert (copied.private_bytes, copied.copied_bytes, copied.at_once_bytes) == (220 * MIB, 170 * MIB, 100 * MIB)
    assert copied.shared_bytes == GIB - 220 * MIB
    assert copied_pages(samples[:1], log(), {9}) is None
    assert with_samples(Memory(), samples, log()).growth == ()


@pytest.mark.parametrize(("private", "copied"), [(400, 400 - 24), (700, None)])
def test_a_worker_that_shares_most_of_its_pages_was_forked_and_had_copied_none(private, copied):
    parent = HostSample(process_rss_bytes=1_100 * MIB, process_file_bytes=100 * MIB)
    samples = [Sample(t_ns=500 * MS, host=parent), forked(2, private * MIB)]  # 24 MiB are new
    found = copied_pages(samples, log(), {9, 4})
    assert (found and found.copied_bytes) == (copied and copied * MIB)


def test_what_a_worker_asks_for_anew_was_never_shared_and_is_its_growth():
    samples = [forked(s, (50 + 10 * s) * MIB, GIB + 10 * s * MIB) for s in range(1, 9)]
    assert copied_pages(samples, log(), {9, 4}).copied_bytes == 0
    (grown,) = with_samples(Memory(), samples, log(), workers={9}).growth
    assert (grown.of, grown.grows, grown.bytes_per_step) == ("worker", True, 10 * MIB)
    assert grown.headroom_bytes == 28 * GIB  # each of the two workers has half of it


def test_a_process_that_is_no_worker_of_a_loader_says_nothing_of_them():
    samples = [forked(s, 50 * s * MIB, GIB + 10 * s * MIB) for s in range(1, 9)]
    assert with_samples(Memory(), samples, log(), workers={3}).growth == ()
    assert copied_pages(samples, log(), {3}) is None


def test_samples_outside_the_judged_steps_do_not_make_growth():
    samples = [host(s, GIB) for s in range(100)] + [host(s, GIB + s * 50 * MIB) for s in range(100, 200)]
    assert with_samples(Memory(), samples, log(100)).growth[0].bytes_per_step == 0.0


def test_what_the_recording_takes_in_a_trace_window_is_no_need_of_a_step():
    records = traced(10_000_000, 12_000_000)
    used = [GIB + (s == 11) * GIB + (s > 11) * 600 * MIB for s in range(40)]
    found = with_samples(Memory(), [host(s, rss) for s, rss in enumerate(used)], log(40), records)
    assert [row.index for row in found.rows if row.index in range(9, 14)] == [9, 12, 13]
    assert (found.peak_process_bytes, found.traced_process_bytes) == (GIB + 600 * MIB, GIB)
    assert found.kept_process_bytes == 600 * MIB


@pytest.mark.parametrize(("leak", "grows"), [(0, False), (5 * MIB, True)])
def test_what_three_windows_kept_is_no_growth_and_a_leak_beside_them_is(leak, grows):
    windows, steps = (20, 45, 70), Log().steps(100, 1_000_000)
    for start in windows:
        steps.window(start * 1_000_000, (start + 2) * 1_000_000, 10)
    used = [GIB + s * leak + sum(300 * MIB for start in windows if s > start) for s in range(100)]
    found = with_samples(Memory(), [host(s, rss) for s, rss in enumerate(used)], log(), steps.data)
    (grown,) = found.growth
    assert grown.grows is grows
    assert grown.bytes_per_step == pytest.approx(leak, rel=0.15)
    assert (found.peak_process_bytes, found.rows[-1].peak_bytes) == (used[-1], used[-1])


def test_a_short_window_in_which_none_was_sampled_is_known_by_the_next_sample():
    records = traced(10_600_000, 10_800_000)
    found = with_samples(Memory(), [host(s, GIB + (s > 10) * 100 * MIB) for s in range(40)], log(40), records)
    assert (found.traced_process_bytes, found.kept_process_bytes, len(found.rows)) == (100 * MIB, 100 * MIB, 40)


def test_a_run_traced_from_end_to_end_keeps_its_samples_and_has_nothing_to_compare_them_with():
    records = traced(0, 40_000_000)
    found = with_samples(Memory(), [host(s, GIB + s * MIB) for s in range(40)], log(40), records)
    assert (found.peak_process_bytes, found.traced_process_bytes) == (GIB + 39 * MIB, None)


def test_memory_that_wanders_in_a_window_is_not_told_as_the_recordings():
    records = traced(10_000_000, 12_000_000)
    found = with_samples(Memory(), [host(s, GIB + s * MIB) for s in range(40)], log(40), records)
    assert (found.traced_process_bytes, found.kept_process_bytes) == (None, None)


def test_the_traces_own_peaks_and_rows_stay():
    trace = training(8, devices=({"id": 0, "name": "NVIDIA A100-SXM4-80GB", "totalGlobalMem": 85_000_000_000},))
    trace.memory(3_000, 10, allocated=500, reserved=600)
    found = with_samples(trace.facts().memory, [gpu(s, 2 * GIB) for s in range(50)], log(50))
    assert (found.peak_allocated_bytes, found.capacity_bytes, found.rows_of) == (500, 85_000_000_000, "allocated")
    assert [row.peak_bytes for row in found.rows] == [500]


def test_without_memory_in_the_trace_the_sampled_steps_have_the_rows_the_device_first():
    samples = [sample for s in range(0, 40, 2) for sample in (host(s, GIB), gpu(s, s * MIB + GIB))]
    found = with_samples(Memory(), samples, log(40))
    assert found.rows_of == "device"
    assert [(row.index, row.peak_bytes) for row in found.rows][:2] == [(0, GIB), (2, GIB + 2 * MIB)]
    assert with_samples(Memory(), samples[::2], log(40)).rows_of == "process"


def test_without_samples_nothing_is_told():
    assert with_samples(Memory(), [], log()) == Memory()
    assert with_samples(Memory(), [Sample(t_ns=5, host=HostSample(), gpu=GpuSample())], log()) == Memory()


def test_a_run_directory_tells_the_memory_of_its_samples(tmp_path):
    run = write_run(tmp_path / "run", [Log().steps(60, 1_000_000)], samples=[host(s, GIB) for s in range(60)])
    memory = Facts([rank_facts("rank_00000", None, read_run(run).ranks[0])]).memory
    assert (memory.peak_process_bytes, memory.rows_of, memory.growth[0].grows) == (GIB, "process", False)


@pytest.mark.parametrize(("sampled", "state"), [(60, "partial"), (0, "missing")])
def test_memory_that_was_only_sampled_is_a_signal_in_part(tmp_path, sampled, state):
    run = write_run(tmp_path / "run", [Log().steps(60, 1_000_000)], samples=[host(s, GIB) for s in range(sampled)])
    signals = Facts([rank_facts("rank_00000", None, read_run(run).ranks[0])]).trust.signals
    (signal,) = [signal for signal in signals if signal.name == "memory"]
    assert (signal.state, signal.hint) == (state, "torch.profiler: profile_memory=True")


def test_a_trace_alone_tells_the_hosts_memory_as_such():
    trace = Trace()
    trace.steps(*range(1_000, 9_000, 1_000))
    for start in range(1_000, 8_000, 1_000):
        trace.op(start, start + 900)
    trace.memory(4_500, 10, allocated=700, reserved=0, device_type=0)
    memory = Facts([rank_facts("trace.json", trace.facts(), None)]).memory
    assert (memory.place, memory.peak_allocated_bytes, memory.peak_reserved_bytes) == ("host", 700, None)
