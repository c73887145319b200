"""From a number to its raw events: what they are, where they lie, and that they sum to the number."""

import pytest

from profilerkit.analysis.rank_facts import rank_facts
from profilerkit.analysis.raw_events import MOST_ROWS, files_of, raw_events
from profilerkit.analysis.trace_facts import trace_facts
from profilerkit.formats.jobs import read_pooled
from profilerkit.formats.registry import read_trace
from profilerkit.model.finding import STEP_LENGTHS, Evidence
from profilerkit.rundir.reader import read_run
from profilerkit.rundir.sampled import HostSample, Sample
from tests.recipes import GEMM, MAIN, MS, US, WORKERS, Log, Trace, host_training, training, write_run


def evidence(*behind, **fields):
    return Evidence(label="a number", value=1.0, unit="ratio", source="measured", origin="x", behind=behind, **fields)


def traced(trace, directory):
    path = trace.write(directory / "trace.json")
    return rank_facts("trace.json", trace_facts(read_trace(path)), None)


def recorded(run, log, **fields):
    write_run(run, [log], **fields)
    (record,) = read_run(run).ranks
    return rank_facts("rank_00000", None, record)


def shown(rank, *behind, **fields):
    return raw_events(evidence(*behind, **fields), rank, read_pooled)


def unread(path):
    raise AssertionError(f"{path} is not needed")


BUSY = training(6, fetch=3000, kernels=3, gap=20, comm=50, batch_copy=30)


@pytest.mark.parametrize(
    ("part", "name", "where"),
    [
        ("input.wait", WORKERS, f"thread {MAIN}"),
        ("compute.math", GEMM, "stream 7"),
        ("comm.other", "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "stream 20"),
        ("input.h2d", "Memcpy HtoD (Pageable -> Device)", "stream 7"),
        ("over.dispatch", "aten::linear", f"thread {MAIN}"),
        ("over.launch", "until Memcpy HtoD (Pageable -> Device) starts", "stream 7"),
    ],
)
def test_intervals_of_a_part_sum_to_it_and_name_what_fills_them(tmp_path, part, name, where):
    rank = traced(BUSY, tmp_path)
    (table,) = shown(rank, part)
    assert {row.name for row in table.rows[:3]} == {name}
    assert {row.where for row in table.rows[:3]} == {where}
    assert table.origin == "trace.json"
    assert table.clock == "trace"
    assert table.count == len(table.rows) <= MOST_ROWS
    per_step = next(entry.time_ns for entry in rank.parts if entry.part == part)
    assert sum(row.value for row in table.rows) == per_step * rank.trace.n_steady
    assert {row.step for row in table.rows} == set(rank.trace.steps.index[rank.trace.steps.judged].tolist())


def test_the_longest_intervals_come_first_and_the_others_are_counted(tmp_path):
    trace = Trace()
    at = 1_000
    for number in range(30):
        trace.loader(at, at + 500 + number)
        trace.op(at + 500 + number, at + 1_000)
        trace.kernel(at + 1_000, at + 2_000, launch=(at + 990, at + 995))
        trace.step(number, at, at + 2_000)
        at += 2_000
    rank = traced(trace, tmp_path)
    (table,) = shown(rank, "input.wait")
    assert len(table.rows) == MOST_ROWS < table.count == rank.trace.n_steady
    lengths = [row.value for row in table.rows]
    assert lengths == sorted(lengths, reverse=True)
    assert table.rows[0].start_ns == (1_000 + 2_000 * table.rows[0].step) * US


def test_kernels_without_a_gap_are_one_interval_that_says_how_many(tmp_path):
    (table,) = shown(traced(training(6, kernels=10), tmp_path), "compute.math")
    assert {row.name for row in table.rows} == {f"{GEMM} and 9 more"}


def test_without_a_device_the_threads_of_the_host_fill_the_intervals(tmp_path):
    rank = traced(host_training(6, compute=400, fetch=300, python=2_000), tmp_path)
    (table,) = shown(rank, "compute.math")
    assert {(row.name, row.where) for row in table.rows} == {("aten::mm", f"thread {MAIN}")}
    (table,) = shown(rank, "over.python")
    assert {(row.name, row.where) for row in table.rows} == {("", "")}


def test_waiting_for_another_rank_is_shown_as_the_communication_the_trace_has(tmp_path):
    rank = traced(BUSY, tmp_path)
    skew, other = shown(rank, "comm.skew"), shown(rank, "comm.other")
    assert skew[0].rows == other[0].rows


def test_a_range_of_time_shows_the_events_within_cut_to_it(tmp_path):
    rank = traced(BUSY, tmp_path)
    low, high = 4_100 * US, 4_250 * US
    (table,) = shown(rank, range_ns=(low, high))
    assert table.rows
    assert all(low <= row.start_ns and row.start_ns + row.value <= high for row in table.rows)
    assert not any(row.name.startswith("ProfilerStep") for row in table.rows)


LOG = Log()
for _step in range(40):
    LOG.step(10_000, wait=1_000 + _step, collect=50, phase=("checkpoint", 3_000) if _step % 10 == 5 else None)


@pytest.mark.parametrize(
    ("part", "name", "count", "largest_ns"),
    [
        ("input.fetch", "wait for a batch", 39, 1_039 * US),
        ("other.ckpt", "checkpoint", 4, 3 * MS),
        ("over.gc", "garbage collection", 39, 50 * US),
    ],
)
def test_records_of_the_timers_lie_behind_what_they_measured(tmp_path, part, name, count, largest_ns):
    rank = recorded(tmp_path / "run", LOG)
    (table,) = raw_events(evidence(part), rank, unread)
    assert (table.origin, table.clock, table.count) == ("rank_00000/events.bin", "run", count)
    assert len(table.rows) == min(count, MOST_ROWS)
    assert {row.name for row in table.rows} == {name}
    assert table.rows[0].value == largest_ns


def test_a_phase_that_gets_a_batch_counts_with_the_waits(tmp_path):
    log = Log()
    log.steps(12, 10_000, wait=100, phase=("data loading", 2_000))
    (table,) = shown(recorded(tmp_path / "run", log), "input.wait")
    assert table.rows[0].name == "data loading"


def test_parts_of_timers_and_of_the_trace_are_two_tables(tmp_path):
    write_run(tmp_path / "run", [LOG], traces={0: BUSY})
    (record,) = read_run(tmp_path / "run").ranks
    (_, path), *_ = record.windows
    rank = rank_facts("rank_00000", trace_facts(read_trace(path)), record)
    by_timers, by_trace = shown(rank, "input.wait", "compute.math")
    assert by_timers.origin == "rank_00000/events.bin"
    assert by_trace.origin == "rank_00000/windows/000000/trace.json"
    assert files_of(rank) == (by_timers.origin, by_trace.origin)
    assert {row.name for row in by_trace.rows} == {GEMM}


def test_samples_are_shown_in_order_at_an_even_distance(tmp_path):
    samples = [Sample(t_ns=n * 10**9, host=HostSample(cpu_ratio=n / 100)) for n in range(50)]
    rank = recorded(tmp_path / "run", LOG, samples=samples)
    (table,) = raw_events(evidence("host.cpu"), rank, unread)
    assert (table.origin, table.unit, table.count, len(table.rows)) == ("rank_00000/samples.jsonl", "ratio", 50, 20)
    assert [row.value for row in table.rows] == sorted(row.value for row in table.rows)
    assert (table.rows[0].start_ns, table.rows[-1].start_ns) == (0, 49 * 10**9)
    assert raw_events(evidence("gpu.utilization"), rank, unread) == ()


def test_the_longest_judged_steps_lie_behind_the_length_of_steps(tmp_path):
    log = Log()
    for number in range(30):
        log.step(40_000 if number == 17 else 10_000 + number)
    rank = recorded(tmp_path / "run", log)
    (table,) = raw_events(evidence(STEP_LENGTHS), rank, unread)
    assert [row.step for row in table.rows[:2]] == [17, 29]
    assert table.rows[0].value == 40 * MS
    assert table.count == rank.steps.steady
    (table,) = shown(traced(BUSY, tmp_path), STEP_LENGTHS)
    assert (table.clock, table.count) == ("trace", 4)


def test_a_number_of_which_nothing_is_known_has_no_events(tmp_path):
    assert raw_events(evidence(), recorded(tmp_path / "run", LOG), unread) == ()
    assert raw_events(evidence("compute.math"), recorded(tmp_path / "two", LOG), unread) == ()
