"""Logs of nvidia-smi and memory snapshots to a report: alone, beside a trace, and from real runs."""

import sys
from pathlib import Path

import msgspec
import pytest

from profilerkit.api import analyze, diff
from profilerkit.errors import UnreadableInputError, UsageError
from profilerkit.model import revise
from profilerkit.report import terminal
from profilerkit.report.json import load
from profilerkit.report.json import render as to_json
from profilerkit.report.sections.samples import logs as logs_section
from profilerkit.results import as_report
from profilerkit.rundir.layout import SAMPLES
from profilerkit.rundir.sampled import GpuSample, Sample
from tests.recipes import Log, training, write_run

sys.path.insert(0, str(Path(__file__).parent / "trace"))
from log_recipes import FRAMES, KIB, MIB, cycles, event, gpus, grown, out_of_memory, pickled, smi, snapshot

SHARED = Path(__file__).resolve().parents[2] / "shared" / "traces"
START_NS = 1_795_348_800 * 1_000_000_000
needs_shared = pytest.mark.skipif(
    not (SHARED / "nvidia_smi_nanogpt").is_dir(), reason="no shared traces beside the repository"
)


def written(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def outcome(report, code):
    return next(entry for entry in report.outcomes if entry.rule == code)


def notes(report):
    return "\n".join(report.trust.notes)


@pytest.fixture
def hot(tmp_path):
    """Eight devices of which number 1 is hotter at more power."""
    return written(tmp_path / "gpu.csv", gpus(38, 60, 37, 37, 40, 35, 38, 36, watts=380, gpu1=420.0))


def trace_of(path, **fields):
    """A trace whose first step begins at noon and whose steps of 2 s last for 20 s."""
    return training(10, kernels=10, kernel=200_000, baseTimeNanoseconds=START_NS, **fields).write(path)


def test_a_log_alone_says_what_was_seen_and_that_there_are_no_steps(hot):
    report = analyze(hot)
    assert (report.verdict.bound, report.verdict.confidence) == ("compute-bound", "low")
    assert report.verdict.headline == "GPU 1 runs 23 °C hotter than the 7 others, at 11 % more power"
    assert "profilerkit run" in report.verdict.refuted_by
    assert (report.run.kind, report.trust.mode, report.ranks) == ("logs", "logs", ())
    assert "no steps, kernels or waits" in notes(report)
    assert "clocks.sm" in notes(report)


def test_without_steps_only_rules_about_samples_end_in_anything_but_missing_data(hot):
    statuses = {entry.rule: entry.status for entry in analyze(hot).outcomes}
    assert (statuses.pop("CP012"), statuses.pop("RU008")) == ("fired", "passed")
    assert set(statuses.values()) == {"missing_data"}
    assert all(entry.hint for entry in analyze(hot).outcomes if entry.status == "missing_data")


def test_devices_that_are_alike_and_fewer_than_three_tell_no_hot_one(tmp_path):
    alike = analyze(written(tmp_path / "a.csv", gpus(38, 41, 37)))
    assert outcome(alike, "CP012").status == "passed"
    assert alike.verdict.headline == "3 GPUs were busy 98 % of the sampled time"
    assert outcome(analyze(written(tmp_path / "b.csv", gpus(38, 60))), "CP012").status == "missing_data"
    idle = analyze(written(tmp_path / "c.csv", gpus(38, 60, 37, use="3 %")))
    assert outcome(idle, "CP012").status == "missing_data"


@pytest.mark.parametrize(
    ("heats", "headline"),
    [
        (((40,), (41,), (40,)), "In 3 logs of one GPU each, the GPU was busy 98 % of the sampled time"),
        (((40, 41), (40,)), "In 2 logs, the GPUs were busy 98 % of the sampled time"),
        (((40, 41),), "2 GPUs were busy 98 % of the sampled time"),
        (((40,),), "The GPU was busy 98 % of the sampled time"),
    ],
)
def test_devices_of_several_logs_may_be_the_same_and_are_not_added(tmp_path, heats, headline):
    logs = [written(tmp_path / f"{number}.csv", gpus(*devices)) for number, devices in enumerate(heats)]
    report = analyze(*logs)
    assert report.verdict.headline == headline
    assert ("The logs do not say whether they share a run or a device" in notes(report)) == (len(logs) > 1)


def test_a_clock_that_heat_holds_down_is_told_of_its_device(tmp_path):
    header = (
        "timestamp, index, utilization.gpu [%], clocks.sm [MHz], clocks.max.sm [MHz], clocks_throttle_reasons.active"
    )
    rows = [
        f"2026/11/22 12:00:{second:02}, {gpu}, 98 %, {900 if gpu else 1400} MHz, 1410 MHz, {'0x40' if gpu else '0x0'}"
        for second in range(20)
        for gpu in range(2)
    ]
    found = outcome(analyze(written(tmp_path / "a.csv", "\n".join([header, *rows, ""]))), "CP009")
    assert found.findings[0].title == "Heat holds GPU 1's clock down 100 % of the time at work"
    assert (found.findings[0].saving, found.findings[0].confidence) == (None, "high")


def test_a_full_device_is_told(tmp_path):
    text = "index, memory.used [MiB], memory.total [MiB]\n0, 10 MiB, 100 MiB\n1, 95 MiB, 100 MiB\n"
    report = analyze(written(tmp_path / "a.csv", text))
    assert outcome(report, "ME003").findings[0].title.startswith("Device memory is 95 % full")


def test_the_series_of_a_log_are_of_its_devices(hot):
    samples = analyze(hot).run.samples
    assert {(series.device, series.rank) for series in samples} == {(f"GPU {gpu}", None) for gpu in range(8)}
    assert {series.name for series in samples} == {"gpu.utilization", "gpu.temperature", "gpu.power"}


def test_a_snapshot_alone_tells_peak_idle_and_who_asked(tmp_path):
    report = analyze(written(tmp_path / "mem.pickle", pickled(grown())))
    (found,) = report.snapshots
    assert (found.start_in_use_bytes, found.peak_bytes, found.in_use_bytes) == (4 * KIB, 10 * KIB, 6 * KIB)
    assert (found.reserved_at_peak_bytes, found.split_bytes) == (16 * KIB, 10 * KIB)
    assert found.idle_ratio == pytest.approx(6 / 16)
    assert found.is_lower_bound
    assert [(row.line, row.count, row.bytes) for row in found.live] == [
        ("/data/job/data.py:7 load", 2, 6 * KIB),
        ("/data/job/train.py:33 step", 1, 4 * KIB),
    ]
    assert report.verdict.headline == "Activations hold 4.00 KiB of 10.0 KiB, most of it for train.py:33 step"
    assert report.verdict.bound == "inconclusive"
    assert "its peak is a lower bound" in notes(report)
    assert report.memory.peak_allocated_bytes == 10 * KIB


def test_a_history_from_the_very_beginning_has_no_lower_bound(tmp_path):
    document = grown()
    document["device_traces"][0].insert(0, {**document["device_traces"][0][0], "addr": 0x1000})
    (found,) = analyze(written(tmp_path / "mem.pickle", pickled(document))).snapshots
    assert (found.start_in_use_bytes, found.is_lower_bound) == (0, False)


def test_a_snapshot_without_a_history_has_no_peak(tmp_path):
    document = {**grown(), "device_traces": []}
    report = analyze(written(tmp_path / "mem.pickle", pickled(document)))
    (found,) = report.snapshots
    assert (found.peak_bytes, found.in_use_bytes, found.idle_ratio) == (None, 6 * KIB, 10 / 16)
    assert report.memory.peak is None
    assert "mem.pickle has no history" in notes(report)
    assert report.verdict.headline == "6.00 KiB were in use when mem.pickle was taken, 100 % for data.py:7 load"


def test_shares_of_nothing_reserved_are_not_known_in_the_table(tmp_path):
    (found,) = analyze(written(tmp_path / "mem.pickle", pickled(grown()))).snapshots
    nothing = revise(found, reserved_bytes=0, peak_bytes=0, reserved_at_peak_bytes=0)
    report = revise(analyze(tmp_path / "mem.pickle"), snapshots=(nothing,))
    _, snapshots, *live = logs_section(report).blocks
    (row,) = snapshots.rows
    assert [row[snapshots.columns.index(column)] for column in ("Idle", "Split")] == ["not known"] * 2
    assert {line[-1] for table in live[1::2] for line in table.rows} == {"not known"}


def test_a_request_that_failed_is_told_first_with_its_lines(tmp_path):
    report = analyze(written(tmp_path / "mem.pickle", pickled(grown(oom=True))))
    assert (report.oom.requested_bytes, report.oom.free_bytes, report.oom.step) == (64 * KIB, KIB, None)
    assert report.oom.frames[-1] == "/data/job/train.py:33 step"
    text = terminal.render(report)
    assert "Out of memory on cuda:0: 64.0 KiB were asked for with 1.00 KiB free" in " ".join(text.split())
    assert "train.py:33" in report.to_html()


def test_a_trace_is_joined_with_a_log_and_a_snapshot_of_the_same_time(tmp_path):
    trace = trace_of(tmp_path / "trace.json")
    log = written(tmp_path / "gpu.csv", gpus(40, seconds=40))
    memory = written(tmp_path / "mem.pickle", pickled(grown(start_us=START_NS // 1000 + 1_000_000)))
    report = analyze(trace, log, memory)
    assert "gpu.csv is joined with trace.json on the clock" in notes(report)
    assert "mem.pickle is joined with trace.json on the clock" in notes(report)
    assert report.run.files == ("trace.json", "gpu.csv", "mem.pickle")
    assert report.verdict.bound == analyze(trace).verdict.bound
    (inside,) = [
        series for series in report.run.samples if series.device == "GPU 0, recorded steps" if series.unit == "°C"
    ]
    assert 3 <= inside.n < 40
    assert report.memory.peak_allocated_bytes == 10 * KIB


def test_logs_of_another_time_are_kept_apart_with_the_reason(tmp_path):
    trace = trace_of(tmp_path / "trace.json")
    log = written(tmp_path / "gpu.csv", gpus(40, start="2026-11-22T18:00:{:02}Z"))
    memory = written(tmp_path / "mem.pickle", pickled(grown(start_us=1)))
    report = analyze(trace, log, memory)
    assert "gpu.csv is kept apart from trace.json: 0 samples of GPU 0" in notes(report)
    assert "the log begins 6 h after them" in notes(report)
    assert (
        "mem.pickle is kept apart from trace.json: its history and the recorded steps are from different times"
        in notes(report)
    )
    assert report.memory.peak_allocated_bytes is None
    assert not [series for series in report.run.samples if "recorded steps" in series.device]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("utilization.gpu [%]\n85 %\n", "the log has no times"),
        (gpus(40, 41).replace("Z, 0", "Z, 6").replace("Z, 1", "Z, 7"), "it is unknown which of its 2 devices"),
    ],
)
def test_what_the_clock_does_not_decide_is_kept_apart(tmp_path, text, why):
    report = analyze(trace_of(tmp_path / "trace.json"), written(tmp_path / "gpu.csv", text))
    assert f"gpu.csv is kept apart from trace.json: {why}" in notes(report)


A100, H100 = "NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3"


def one_gpu(index=None, *, name=A100, uuid=""):
    """A log of one device of which only some of index, name and UUID are said."""
    said = {"index": index, "name": name, "uuid": uuid}
    known = {key: value for key, value in said.items() if value not in (None, "")}
    header = ", ".join(["timestamp", *known, "temperature.gpu"])
    rows = [", ".join([f"2026-11-22T12:00:{second:02}Z", *map(str, known.values()), "40"]) for second in range(20)]
    return "\n".join([header, *rows, ""])


@pytest.mark.parametrize(
    ("log", "recorded", "said"),
    [
        (one_gpu(), {}, "as each has only one"),
        (one_gpu(0), {"devices": [{"id": 0, "name": A100}]}, "which is the recorded device 0 unless"),
        (one_gpu(name="A100-SXM4-80GB"), {"devices": [{"id": 0, "name": A100}]}, "as each has only one"),
        (one_gpu(0), {"rank": 0, "world_size": 2, "devices": [{"id": 0, "name": A100}]}, "the recorded device 0"),
    ],
)
def test_a_log_of_one_device_is_joined_where_it_is_the_recorded_one(tmp_path, log, recorded, said):
    found = notes(analyze(trace_of(tmp_path / "trace.json", **recorded), written(tmp_path / "gpu.csv", log)))
    assert "gpu.csv is joined with trace.json" in found
    assert said in found


@pytest.mark.parametrize(
    ("log", "recorded", "said"),
    [
        (one_gpu(3), {"devices": [{"id": 0, "name": A100}]}, "it is of GPU 3, and the recording numbers its device 0"),
        (one_gpu(name=H100), {"devices": [{"id": 0, "name": A100}]}, f"its device is a {H100}"),
        (one_gpu(0, name=H100), {"devices": [{"id": 0, "name": A100}]}, f"its device is a {H100}"),
        (one_gpu(), {"rank": 0, "world_size": 2}, "it is of one device, the run has several, and it is unknown"),
    ],
)
def test_a_log_of_one_device_is_kept_apart_where_it_may_be_another(tmp_path, log, recorded, said):
    report = analyze(trace_of(tmp_path / "trace.json", **recorded), written(tmp_path / "gpu.csv", log))
    assert f"gpu.csv is kept apart from trace.json: {said}" in notes(report)
    assert not [series for series in report.run.samples if "recorded steps" in series.device]


@pytest.mark.parametrize(("uuid", "joined"), [("GPU-1", True), ("GPU-2", False)])
def test_a_uuid_decides(tmp_path, uuid, joined):
    run = write_run(
        tmp_path / "run",
        [Log().steps(30, 500_000)],
        device_uuid="GPU-1",
        device_name=A100,
        anchor_unix_ns=START_NS,
    )
    found = notes(analyze(run, written(tmp_path / "gpu.csv", one_gpu(5, uuid=uuid))))
    assert ("by its UUID" in found) == joined
    assert ("none of its devices has the UUID of the recorded one" in found) != joined


def test_a_log_without_a_time_zone_is_joined_as_utc_and_that_is_said(tmp_path):
    log = written(tmp_path / "gpu.csv", gpus(40, start="2026/11/22 12:00:{:02}"))
    assert "read as UTC" in notes(analyze(trace_of(tmp_path / "trace.json"), log))


def test_a_log_beside_a_run_directory_and_within_a_directory_of_traces_is_read(tmp_path, hot):
    run = write_run(tmp_path / "run", [Log().steps(30, 1_000, wait=600)])
    report = analyze(run, hot)
    assert report.verdict.bound == analyze(run).verdict.bound
    assert "gpu.csv" in report.run.files
    assert "gpu.csv is kept apart from rank_00000" in notes(report)
    assert outcome(report, "CP012").status == "missing_data"
    trace_of(tmp_path / "trace.json")
    beside = analyze(tmp_path)
    assert beside.run.files == ("trace.json", "gpu.csv")
    assert outcome(beside, "CP012").status == "fired"


def test_a_log_given_twice_is_refused_and_a_bad_one_is_refused_or_left_out(tmp_path, hot):
    with pytest.raises(UsageError, match="given twice"):
        analyze(hot, hot)
    bad = written(tmp_path / "bad.pickle", b"\x80\x04X\x08\0\0\0segmentscos\nsystem\n.")
    with pytest.raises(UnreadableInputError, match="not a readable memory snapshot"):
        analyze(hot, bad)
    assert "bad.pickle is not a log that can be read and was left out" in notes(analyze(tmp_path))


@pytest.mark.parametrize("kind", ["hot", "snapshot"])
def test_every_renderer_shows_a_report_of_logs(tmp_path, hot, kind):
    path = hot if kind == "hot" else written(tmp_path / "mem.pickle", pickled(grown(oom=True)))
    report = analyze(path)
    assert as_report(load(to_json(report))) == report
    texts = [terminal.render(report, verbose=True), terminal.render(report, width=40, verbose=True), report.to_html()]
    for text in texts:
        assert ("GPU 1" if kind == "hot" else "10.0 KiB") in text
        assert ("GPUs in the logs" if kind == "hot" else "Memory snapshots") in text
    assert max(map(len, texts[0].splitlines())) <= 80
    assert max(map(len, texts[1].splitlines())) <= 40


def test_hostile_names_stay_text(tmp_path):
    text = "uuid, utilization.gpu [%]\n<script>alert(1)</script>\x1b[31m, 3 %\n"
    report = analyze(written(tmp_path / "a.csv", text))
    assert "<script>alert(1)" not in report.to_html()
    assert "\x1b" not in terminal.render(report)


@needs_shared
@pytest.mark.shared_traces
def test_the_hot_device_of_a_real_run_is_named():
    report = analyze(SHARED / "nvidia_smi_nanogpt" / "nvidia_smi_nanogpt.csv")
    found = outcome(report, "CP012").findings[0]
    assert found.title.startswith("GPU 1 runs 19 °C hotter than the 7 others")
    assert "more power" in found.title
    use = [series.mean for series in report.run.samples if series.name == "gpu.utilization"]
    assert len(use) == 8
    assert min(use) > 0.9


@needs_shared
@pytest.mark.shared_traces
@pytest.mark.parametrize("path", sorted((SHARED / "nvidia_smi_small").glob("*.csv")), ids=lambda path: path.name)
def test_dialects_of_real_logs_are_read(path):
    report = analyze(path)
    (use,) = [series for series in report.run.samples if series.name == "gpu.utilization"]
    assert use.n > 20
    assert 0.3 < use.mean <= 1.0


@needs_shared
@pytest.mark.shared_traces
def test_three_real_logs_of_other_times_are_not_three_devices():
    report = analyze(SHARED / "nvidia_smi_small")
    assert len(report.run.files) == 3
    assert report.verdict.headline.startswith("The GPU of gpu_usage.csv is idle 40 %")


@needs_shared
@pytest.mark.shared_traces
def test_the_backward_pass_of_a_real_snapshot_is_told_by_its_nodes():
    (found,) = analyze(SHARED / "memory_snapshots" / "mem_snapshot.pickle").snapshots
    assert found.live[0].line == "backward DivBackward0"
    assert found.held("gradients") > 0.8 * found.peak_bytes


@needs_shared
@pytest.mark.shared_traces
def test_peaks_and_fragmentation_of_real_snapshots_are_told():
    report = analyze(*sorted((SHARED / "memory_snapshots").glob("*.pickle")))
    by_name = {found.origin: found for found in report.snapshots}
    assert len(by_name) == 4
    assert by_name["mem.pickle"].peak_bytes is None
    assert "mem.pickle has no history" in notes(report)
    for name, found in by_name.items():
        assert found.reserved_bytes or found.peak_reserved_bytes, name
        assert found.events == 0 or found.peak_bytes > 0


def test_a_log_and_a_snapshot_without_a_trace_are_joined_where_they_are_of_the_same_time(tmp_path):
    log = written(tmp_path / "gpu.csv", gpus(40))
    same = written(tmp_path / "same.pickle", pickled(grown(start_us=START_NS // 1000)))
    report = analyze(log, same)
    assert "same.pickle is joined with gpu.csv on the clock" in notes(report)
    assert report.memory.peak_allocated_bytes == 10 * KIB
    other = written(tmp_path / "other.pickle", pickled(grown(start_us=1)))
    report = analyze(log, other)
    assert "other.pickle is kept apart from gpu.csv: they are from different times" in notes(report)
    assert report.memory.peak_allocated_bytes is None


def test_whether_idle_memory_matters_is_judged_where_a_log_tells_how_large_the_device_is(tmp_path):
    memory = written(tmp_path / "mem.pickle", pickled(grown(start_us=START_NS // 1000)))
    unknown = outcome(analyze(memory), "ME002")
    assert (unknown.status, "how large the device is" in unknown.reason) == ("missing_data", True)
    rows = "".join(f"2026-11-22T12:00:{second:02}Z, 0.02 MiB, 0.03125 MiB\n" for second in range(5))
    log = written(tmp_path / "gpu.csv", f"timestamp, memory.used [MiB], memory.total [MiB]\n{rows}")
    assert outcome(analyze(log, memory), "ME002").status == "passed"


def test_the_hot_device_of_a_recorded_run_is_told_by_its_rank(tmp_path):
    run = write_run(tmp_path / "run", [Log().steps(30, 100_000) for _ in range(3)])
    for rank, heat in enumerate((40, 41, 62)):
        gpu = GpuSample(utilization_ratio=0.9, temperature_c=heat)
        lines = [msgspec.json.encode(Sample(t_ns=second * 10**8, gpu=gpu)) for second in range(20)]
        (run / f"rank_{rank:05}" / SAMPLES).write_bytes(b"".join(line + b"\n" for line in lines))
    found = outcome(analyze(run), "CP012")
    assert found.findings[0].title == "The GPU of rank 2 runs 22 °C hotter than the 2 others"


def test_a_snapshot_of_a_failed_request_says_what_failed_who_holds_the_memory_and_what_to_do(tmp_path):
    report = analyze(written(tmp_path / "mem.pickle", pickled(out_of_memory())))
    verdict = report.verdict
    assert (verdict.bound, verdict.detail, verdict.confidence) == ("memory-bound", "capacity", "high")
    assert verdict.headline == "cuda:0 had no memory left for 1.00 GiB at model.py:88 forward"
    (found,) = report.snapshots
    assert [(entry.kind, entry.bytes, entry.count) for entry in found.kinds] == [
        ("activations", 512 * MIB, 4),
        ("parameters", 256 * MIB, 2),
        ("optimizer state", 256 * MIB, 2),
    ]
    texts = [terminal.render(report, verbose=True), report.to_html()]
    for text in texts:
        assert "pieces of the sequence" in " ".join(text.split())
        assert "of this one fits" in " ".join(text.split())
    assert "activations 50 %, weights 25 %, optimizer 25 %" in logs_section(report).blocks[3].caption


@pytest.mark.parametrize(
    ("stack", "is_told"), [("backward", True), ("optimizer", True), ("block", False), ("batch", False), ("none", False)]
)
def test_a_batch_that_fits_is_told_only_where_all_activations_are_known_to_exist(tmp_path, stack, is_told):
    document = out_of_memory()
    document["device_traces"][0][-1]["frames"] = FRAMES[stack]
    report = analyze(written(tmp_path / "mem.pickle", pickled(document)))
    fixes = " ".join(found.fix.text for found in outcome(report, "ME010").findings)
    assert ("of this one fits" in fixes) is is_told


def test_a_failed_request_beside_idle_pieces_is_told_as_fragmentation_first(tmp_path):
    document = out_of_memory(loss=False, idle=1000 * MIB)
    report = analyze(written(tmp_path / "mem.pickle", pickled(document)))
    assert [entry.rule for entry in report.outcomes if entry.status == "fired"] == ["ME002", "ME010"]
    assert "expandable_segments:True" in outcome(report, "ME002").findings[0].fix.code
    document["allocator_settings"]["expandable_segments"] = True
    report = analyze(written(tmp_path / "grows.pickle", pickled(document)))
    assert "expandable already" in outcome(report, "ME002").findings[0].fix.text


def test_kinds_come_from_the_innermost_line_that_tells(tmp_path):
    document = out_of_memory(layers=1, optimizer=0)
    held = document["segments"][0]["blocks"]
    for number, stack in enumerate(("backward", "again", "load")):
        entry = {**held[0], "address": 0x7000 + number, "frames": FRAMES[stack], "size": MIB, "requested_size": MIB}
        held.append(entry)
    (found,) = analyze(written(tmp_path / "mem.pickle", pickled({**document, "device_traces": []}))).snapshots
    kinds = {entry.kind: entry.bytes for entry in found.kinds}
    assert kinds == {"parameters": 256 * MIB, "activations": 129 * MIB, "gradients": MIB, "other": MIB}
    assert "backward MmBackward0" in {row.line for row in found.live}


@pytest.mark.parametrize(("leak", "status"), [(20 * MIB, "fired"), (0, "passed")])
def test_lows_that_rise_are_growth_and_those_that_do_not_are_none(tmp_path, leak, status):
    report = analyze(written(tmp_path / "mem.pickle", pickled(cycles(60, leak=leak))))
    assert outcome(report, "ME004").status == status
    assert report.snapshots[0].growth.bytes_per_step == pytest.approx(leak)
    if leak:
        assert report.verdict.headline == "Allocated memory grows by 20.0 MiB in every step"
        assert "data.py:7 load: 1.17 GiB in 60 blocks" in outcome(report, "ME004").findings[0].why


@pytest.mark.parametrize(("again", "bound"), [(20, "memory-bound"), (19, "inconclusive")])
def test_a_snapshot_bounds_a_run_only_where_the_allocator_went_to_the_device_again_and_again(tmp_path, again, bound):
    document = cycles(12)
    segments = [event(f"segment_{what}", 0x9000, MIB) for _ in range(again) for what in ("free", "alloc")]
    document["device_traces"][0] += segments
    verdict = analyze(written(tmp_path / "mem.pickle", pickled(document))).verdict
    assert (verdict.bound, "200 MiB" in verdict.headline) == (bound, bound == "inconclusive")


@pytest.mark.parametrize("then", ["backward", "again", "function", "compiled", "none", "batch"])
def test_rises_with_a_backward_pass_or_a_batch_of_their_own_are_steps(tmp_path, then):
    document = cycles(60, leak=20 * MIB, lines=("block", then, "block"))
    report = analyze(written(tmp_path / "mem.pickle", pickled(document)))
    assert report.snapshots[0].growth is not None
    assert outcome(report, "ME004").status == "fired"


@pytest.mark.parametrize("lines", [("block", "block", "block"), ("again", "backward", "again"), ("optimizer",) * 3])
def test_rises_within_one_pass_are_layers_not_steps(tmp_path, lines):
    document = cycles(60, leak=20 * MIB, lines=lines)
    report = analyze(written(tmp_path / "mem.pickle", pickled(document)))
    assert (report.snapshots[0].growth, report.snapshots[0].rises) == (None, 60)
    found = outcome(report, "ME004")
    assert found.status == "missing_data"
    assert found.reason.startswith("the rises and falls of the memory look like layers of one pass")


def test_a_single_rise_is_no_growth(tmp_path):
    report = analyze(written(tmp_path / "mem.pickle", pickled(out_of_memory())))
    assert report.snapshots[0].growth is None
    assert outcome(report, "ME004").status == "missing_data"


def used(values, *, start=0):
    columns = "timestamp, utilization.gpu [%], power.draw [W], power.limit [W]"
    rows = [
        (f"2026-11-22T12:{second // 60:02}:{second % 60:02}Z", f"{value} %", "200.00 W", "400.00 W")
        for second, value in enumerate(values, start)
    ]
    return smi(rows, columns=columns)


def test_rests_at_intervals_are_told_with_a_figure_over_time(tmp_path):
    values = [0] * 30 + ([97] * 48 + [2] * 12) * 9 + [97] * 20 + [0] * 40
    report = analyze(written(tmp_path / "gpu.csv", used(values)))
    title = outcome(report, "RU008").findings[0].title
    assert title.startswith("The GPU is idle 21 % of the time: for 12 s every 60 s")
    assert (report.verdict.bound, report.verdict.headline) == ("inconclusive", title)
    assert "profilerkit run" in report.verdict.refuted_by
    strips = [series for series in report.run.samples if series.strip is not None]
    assert {series.name for series in strips} == {"gpu.utilization", "gpu.power"}
    page = report.to_html()
    assert 'id="logged-strips"' in page
    assert "Seconds since the first sample" in page
    assert "Share of limit" in page


def test_rests_without_a_distance_and_waits_shorter_than_a_sample_are_told_apart(tmp_path):
    irregular = [97] * 20 + [0] * 9 + [97] * 50 + [0] * 30 + [97] * 150 + [0] * 4 + [97] * 90
    found = outcome(analyze(written(tmp_path / "a.csv", used(irregular))), "RU008").findings[0]
    assert "most of it in 3 stretches of about 9" in found.title
    found = outcome(analyze(written(tmp_path / "b.csv", used([50, 70, 60, 65] * 20))), "RU008").findings[0]
    assert found.title == "The GPU is idle 39 % of the time, in waits shorter than a sample"
    light = used([24, 28, 21, 35, 23, 42] * 30)  # it never rests, and never works much
    assert outcome(analyze(written(tmp_path / "d.csv", light)), "RU008").findings[0].title.endswith("than a sample")
    busy = analyze(written(tmp_path / "c.csv", used([0] * 40 + [99] * 60)))
    assert outcome(busy, "RU008").status == "passed"
    said = " ".join(terminal.render(busy).split())
    assert "Record what they compute" in said  # that kernels run says not that none is needless
    assert "Nothing needs to change" not in said


@pytest.mark.parametrize(("first", "bound"), [(92, "compute-bound"), (45, "inconclusive")])
def test_a_device_that_nobody_used_is_no_idle_one(tmp_path, first, bound):
    blips = {10, 70, 75}  # a desktop's
    rows = [
        (f"2026-11-22T12:{second // 60:02}:{second % 60:02}Z", f"{index}", f"{use} %")
        for second in range(100)
        for index, use in ((0, first), (1, 1 if second in blips else 0))
    ]
    log = written(tmp_path / "gpu.csv", smi(rows, columns="timestamp, index, utilization.gpu [%]"))
    found = analyze(log).verdict
    assert found.bound == bound
    assert found.headline.startswith("1 of 2 GPUs was in use" if first > 90 else "GPU 0 is idle 55 %")


def test_a_log_without_times_is_drawn_by_sample(tmp_path):
    report = analyze(
        written(tmp_path / "gpu.csv", "utilization.gpu [%]\n" + "97 %\n" * 20 + "1 %\n" * 9 + "97 %\n" * 20)
    )
    assert "Seconds since the first sample" not in report.to_html()
    assert 'id="logged-strips"' in report.to_html()
    assert outcome(report, "RU008").findings[0].title.endswith("in one stretch of about 9 samples")
    short = "".join("97 %\n" * busy + "1 %\n" for busy in (2, 5, 3, 7, 2, 6))
    report = analyze(written(tmp_path / "short.csv", "utilization.gpu [%]\n" + short))
    assert outcome(report, "RU008").findings[0].title.endswith("stretches of about one sample")


def test_two_snapshots_are_compared_by_their_peaks(tmp_path):
    before = written(tmp_path / "before.pickle", pickled(out_of_memory()))
    after = written(tmp_path / "after.pickle", pickled(out_of_memory(layers=1)))
    found = diff(before, after)
    assert (found.verdict, found.memory.before_bytes, found.memory.after_bytes) == (
        "less memory",
        1024 * MIB,
        640 * MIB,
    )
    assert found.headline == "The memory peak is 38 % lower: 1.00 GiB → 640 MiB, 384 MiB less activations"
    assert (found.memory.kinds[0].name, found.memory.kinds[0].bytes) == ("activations", -384 * MIB)
    for text in (terminal.render(found), found.to_markdown(), found.to_html()):
        assert "What holds the memory" in text
        assert "model.py:21 forward" in text
    assert diff(after, before).verdict == "more memory"
    assert diff(after, after).verdict == "no real change"


def test_a_peak_is_not_compared_with_a_snapshot_without_a_history(tmp_path):
    before = written(tmp_path / "before.pickle", pickled(out_of_memory()))
    after = written(tmp_path / "after.pickle", pickled({**out_of_memory(), "device_traces": []}))
    found = diff(before, after)
    assert (found.verdict, found.memory) == ("not comparable", None)


@pytest.mark.parametrize(("rounds", "status"), [(20, "passed"), (21, "fired")])
def test_a_history_in_which_segments_come_and_go_says_so(tmp_path, rounds, status):
    events = [event(action, 0x10_0000, 2 * MIB) for _ in range(rounds) for action in ("segment_alloc", "segment_free")]
    old = [{key: value for key, value in entry.items() if key != "time_us"} for entry in events]
    untimed = {**snapshot([]), "device_traces": [old]}
    path = tmp_path / "old.pickle"
    path.write_bytes(pickled(untimed))
    found = outcome(analyze(path), "ME001")
    assert found.status == status
    if status == "fired":
        assert "20 times after giving some back" in found.findings[0].title
        assert "empty_cache()" in found.findings[0].why
