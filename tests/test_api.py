import gzip
import json
from decimal import Decimal
from functools import cache
from pathlib import Path

import msgspec
import pytest

from profilerkit.api import analyze, load
from profilerkit.errors import ProfilerkitError, UnreadableInputError, UsageError
from profilerkit.model.step import WAITS
from profilerkit.report.sections import document
from profilerkit.report.terminal import render
from profilerkit.rules import RULES
from profilerkit.rundir.layout import END, META, RankEnd, rank_directory
from profilerkit.rundir.sampled import HostSample, Sample
from tests.recipes import ALL_REDUCE, Log, S, Trace, host_training, training, write_run
from tests.report.pages import spaces

SHARED = Path(__file__).resolve().parents[2] / "shared" / "traces"


def said(report):
    """What a report says, without the names of files and the time it was made."""
    ranks = tuple(msgspec.structs.replace(rank, origin="") for rank in report.ranks)
    run = msgspec.structs.replace(report.run, name="", files=(), created="")
    return msgspec.structs.replace(report, ranks=ranks, run=run)


def straggling(directory, ranks=3, late=1, delay=800, suffix=".json"):
    """Traces of a job in which one rank is late by Python."""
    directory.mkdir(exist_ok=True)
    for rank in range(ranks):
        comm = 50 + delay * (rank != late)
        trace = training(12, rank=rank, world_size=ranks, python=delay * (rank == late), comm=comm)
        trace.write(directory / f"rank{rank}{suffix}")
    return directory


def test_a_trace_becomes_a_report(tmp_path):
    report = analyze(training(12, fetch=900).write(tmp_path / "trace.json"))
    # 900 of 1,910 µs of each step are waiting.
    assert (report.verdict.bound, report.verdict.detail) == ("input-bound", "wait")
    assert report.verdict.headline == "The GPU waits 900 µs of every 1.91 ms step for data"
    assert (report.steps.count, report.steps.steady) == (12, 10)
    assert (report.run.kind, report.run.files, report.run.name) == ("trace", ("trace.json",), "trace.json")
    assert {part.part: part.time_ns for part in report.breakdown} == {
        "compute.math": 1_000_000,
        "input.wait": 900_000,
        "over.dispatch": 8_000,
        "over.launch": 2_000,
    }
    assert [outcome.rule for outcome in report.outcomes] == [rule.code for rule in RULES]


def test_a_compressed_trace_says_the_same(tmp_path):
    trace = training(12, fetch=900)
    plain, packed = trace.write(tmp_path / "a.json"), trace.write(tmp_path / "b.json.gz")
    assert said(analyze(plain)) == said(analyze(packed))


def test_a_path_may_be_text(tmp_path):
    path = training(12).write(tmp_path / "trace.json")
    assert said(analyze(str(path))) == said(analyze(path))


def test_a_directory_of_traces_is_a_job(tmp_path):
    report = analyze(straggling(tmp_path / "job"))
    assert (report.verdict.bound, report.verdict.rank) == ("overhead-bound", 1)
    assert [rank.rank for rank in report.ranks] == [0, 1, 2]
    assert (report.run.world_size, report.run.missing_ranks, report.run.ranks) == (3, 0, (0, 1, 2))


def test_the_order_in_which_ranks_are_named_does_not_matter(tmp_path):
    files = sorted(straggling(tmp_path / "job").iterdir())
    assert said(analyze(*files)) == said(analyze(*reversed(files)))
    assert said(analyze(*files)) == said(analyze(tmp_path / "job"))


def test_a_report_beside_the_traces_is_no_rank(tmp_path):
    job = straggling(tmp_path / "job")
    before = analyze(job)
    before.to_json(job / "report.json")
    (job / "trace.report.json").write_text("{}")
    (job / "notes.txt").write_text("mine")
    assert said(analyze(job)) == said(before)


def test_the_rank_that_is_asked_for_is_told_in_detail_and_all_are_compared(tmp_path):
    job = straggling(tmp_path / "job")
    report, whole = analyze(job, rank=2), analyze(job)
    assert [rank.rank for rank in report.ranks] == [0, 1, 2]
    assert report.verdict == whole.verdict
    assert report.breakdown == whole.ranks[2].breakdown != whole.breakdown
    assert max(report.breakdown, key=lambda part: part.time_ns).part in ("compute.math", "comm.skew")
    assert report.run.missing_ranks == 0


def test_where_nobody_is_late_the_verdict_is_about_the_rank_that_is_asked_for(tmp_path):
    job = straggling(tmp_path / "job", delay=0)
    assert analyze(job).breakdown == analyze(job).ranks[0].breakdown
    report = analyze(job, rank=2)
    assert report.breakdown == report.ranks[2].breakdown


def test_a_rank_that_was_not_given_is_missing(tmp_path):
    job = straggling(tmp_path / "job")
    report = analyze(job / "rank0.json", job / "rank1.json")
    assert report.run.missing_ranks == 1
    assert "1 of 3 ranks is missing" in report.verdict.consequence


def test_rules_can_be_chosen(tmp_path):
    path = training(12, fetch=900).write(tmp_path / "trace.json")
    report = analyze(path, select=("IN",), ignore=("IN009",))
    chosen = {rule.code for rule in RULES if rule.code.startswith("IN")} - {"IN009"}
    assert {entry.rule for entry in report.outcomes if entry.status != "off"} == chosen


def test_rules_are_named_in_any_case_and_one_alone_may_be_text(tmp_path):
    path = training(12, fetch=900).write(tmp_path / "trace.json")
    reports = [analyze(path, select=wanted) for wanted in (["IN", "CO001"], ["in", "Co001"])]
    assert said(reports[0]) == said(reports[1])
    assert said(analyze(path, select="in")) == said(analyze(path, select=["IN"]))


@pytest.mark.parametrize("option", ["select", "ignore"])
def test_an_unknown_rule_is_an_error_before_anything_is_read(tmp_path, option):
    with pytest.raises(UsageError, match="unknown rule 'IN0002'") as caught:
        analyze(tmp_path / "absent.json", **{option: ["IN", "IN0002"]})
    assert caught.value.cause
    assert caught.value.hint == "did you mean IN002?"


def test_switched_off_rules_are_said_where_the_verdict_could_have_been_theirs(tmp_path):
    verdict = analyze(training(12, fetch=900).write(tmp_path / "trace.json"), ignore=["in"]).verdict
    (row,) = [row for row in verdict.ruled_out if row.bound == "input-bound"]
    assert row.reason == "waiting for data takes 47 % of the step; its rules were switched off"


def test_a_report_is_shown_as_its_verdict(tmp_path):
    report = analyze(training(12, fetch=900).write(tmp_path / "trace.json"))
    assert repr(report) == "<Report input-bound: The GPU waits 900 µs of every 1.91 ms step for data>"
    hostile = msgspec.structs.replace(report.verdict, headline="a\x1b[31m\nb")
    assert repr(msgspec.structs.replace(report, verdict=hostile)) == "<Report input-bound: a?[31m?b>"
    assert report == msgspec.structs.replace(report)
    assert report != msgspec.structs.replace(report, schema_version=2)


def test_kernels_of_the_users_own_can_be_communication(tmp_path):
    trace = training(10, comm=3_000)
    own = trace.changed(lambda event: {**event, "name": "my_sum<4>"} if event["name"] == ALL_REDUCE else {**event})
    (told,) = analyze(own.write(tmp_path / "told.json")).collectives
    assert (told.kind, told.name) == ("all_reduce", "allreduce")  # its metadata says so
    path = own.changed(without_collective_name).write(tmp_path / "trace.json")
    assert analyze(path).collectives == ()
    (row,) = analyze(path, communication_kernels=["all_reduce=^my_sum"]).collectives
    assert (row.kind, row.name) == ("all_reduce", "my_sum<4>")
    with pytest.raises(UsageError, match="not a regular expression"):
        analyze(path, communication_kernels=["("])


def without_collective_name(event):
    event["args"].pop("Collective name", None)
    return event


def test_a_device_can_be_named(tmp_path):
    trace = training(12, devices=({"id": 0, "name": "Unheard of", "computeMajor": 8},))
    path = trace.write(tmp_path / "trace.json")

    def saving(report):
        (finding,) = next(entry for entry in report.outcomes if entry.rule == "CP001").findings
        return finding.saving

    assert saving(analyze(path)) is None
    assert saving(analyze(path, device="h100-sxm")).expected > 0


def test_an_idle_second_device_changes_no_verdict(tmp_path):
    trace = training(12, fetch=300, python=200)
    before = analyze(trace.write(tmp_path / "one.json"))
    trace.memset(2_000, 2_001, device=1)
    trace.kernel(9_000, 9_001, device=1)
    after = analyze(trace.write(tmp_path / "two.json"))
    assert after.verdict == before.verdict
    assert after.breakdown == before.breakdown


def test_a_report_survives_its_json(tmp_path):
    report = analyze(straggling(tmp_path / "job"))
    report.to_json(tmp_path / "out.json", redact=False)
    assert load(tmp_path / "out.json") == report


def run_of(tmp_path, logs=None, **parts):
    return write_run(tmp_path / "run", logs or [Log().steps(30, 1_000, wait=600, wait_cpu=540)], **parts)


def test_a_run_directory_of_timers_alone_is_read(tmp_path):
    report = analyze(run_of(tmp_path))
    # The only rank, no worker, and the CPU busy for nine tenths of the wait.
    assert (report.verdict.bound, report.verdict.detail) == ("input-bound", "prep")
    assert report.verdict.headline == "Training waits 600 µs of every 1.00 ms step for data"
    assert (report.run.kind, report.run.command, report.run.ended) == ("run", "train.py --lr 1", "finished")
    assert (report.run.world_size, report.run.missing_ranks) == (1, 0)
    assert report.run.loader.num_workers == 0
    assert report.run.settings == {"trace_steps": "10", "OMP_NUM_THREADS": "1"}
    assert report.trust.mode == "steps"


def test_a_run_directory_with_a_trace_joins_both(tmp_path):
    report = analyze(run_of(tmp_path, traces={0: host_training(8, fetch=500, compute=400, python=100)}))
    assert report.trust.mode == "cpu"
    assert {part.part: part.share for part in report.breakdown} == {
        "input.prep": pytest.approx(0.6),
        "compute.math": pytest.approx(0.32),
        "over.python": pytest.approx(0.08),
    }
    assert report.steps.count == 30


@pytest.mark.parametrize("damaged", [b"", b"\x1f\x8b not gzip", b'{"traceEvents": [', b"{}"])
def test_a_damaged_trace_costs_the_trace_and_not_the_run(tmp_path, damaged):
    report = analyze(run_of(tmp_path, traces={0: damaged}))
    assert report.verdict.bound == "input-bound"
    assert any("000000/trace.json cannot be read" in note for note in report.trust.notes)


def test_a_run_that_was_killed_is_read_and_says_so(tmp_path):
    report = analyze(run_of(tmp_path, ended=False))
    assert report.run.ended == "killed, or still running"
    assert report.verdict.bound == "input-bound"
    assert report.run.failure.startswith(
        "The run left no word of its end: it was killed, or still runs. Its last record"
    )
    assert report.run.failure in document(report).first.lines
    assert any("end.json is missing" in note for note in report.trust.notes)


def failed(run, rank, *, at_s, exception, steps):
    """End a rank of the run with an exception."""
    end = RankEnd(reason="exception", exception=exception, steps=steps, dropped_records=0, end_perf_ns=at_s * S)
    (rank_directory(run, rank) / END).write_bytes(msgspec.json.encode(end))


def test_the_failure_that_came_first_is_told_wherever_the_verdict_is(tmp_path):
    logs = [Log().steps(30, 1_000, wait=600, wait_cpu=540) for _ in range(2)]
    run = run_of(tmp_path, logs)
    failed(run, 0, at_s=3, exception="RuntimeError: closed by peer", steps=30)
    failed(run, 1, at_s=2, exception="ValueError: own", steps=30)
    report = analyze(run)
    told = "Rank 1 failed first, after 30 steps and 1.00 s before rank 0: ValueError: own"
    assert report.run.failure == told
    assert report.run.ended == "ValueError: own (rank 1)"
    assert told in render(report, width=200)
    assert told in report.to_markdown(redact=False)
    assert told.removesuffix(": own") in report.to_markdown()
    assert "Rank 1 failed first, after 30 steps" in spaces(report.to_html())


def test_a_rank_that_died_before_its_first_step_is_not_asked_to_call_step(tmp_path):
    run = run_of(tmp_path, [Log(), Log()])
    failed(run, 1, at_s=2, exception="ValueError: own", steps=0)
    report = analyze(run)
    assert report.verdict.headline == "The run ended before its first step did"
    assert "prof.step()" not in report.verdict.consequence
    signals = {signal.name: signal.reason for signal in report.trust.signals}
    assert signals["step timers, every step"] == signals["unprofiled step time"] == "no step was recorded"
    assert signals["device events"] == "there is no trace"
    assert report.run.missing_ranks == 0


def test_a_run_that_may_still_be_under_way_has_not_ended(tmp_path):
    run = run_of(tmp_path, [Log()])
    (rank_directory(run, 0) / END).unlink()
    report = analyze(run)
    assert report.verdict.headline == "No step was recorded yet"
    assert "Mend" not in report.verdict.consequence
    shown = render(report)
    assert "INCONCLUSIVE" in shown
    assert "profilerkit run" not in shown, "the same command would record no more"


def test_a_disk_that_took_nothing_is_told_and_not_a_run_under_way(tmp_path):
    run = run_of(tmp_path, [Log()])
    (rank_directory(run, 0) / END).unlink()
    (rank_directory(run, 0) / META).rename(rank_directory(run, 0) / "meta.json.part").write_bytes(b"")
    report = analyze(run)
    assert report.verdict.headline == "Nothing was recorded: the disk was full, or the host went down"
    assert report.run.failure == "The run recorded nothing: the disk took nothing: it was full, or the host went down."
    assert "Make sure that there is room on the disk" in report.verdict.consequence


def test_a_rank_without_a_step_is_named_beside_those_with_steps(tmp_path):
    run = run_of(tmp_path, [Log().steps(30, 1_000, wait=600, wait_cpu=540), Log()])
    report = analyze(run)
    assert "Rank 1 recorded no step." in report.trust.notes
    assert report.verdict.bound == "input-bound"


def test_what_is_missing_of_several_ranks_is_said_with_their_numbers(tmp_path):
    logs = [Log().steps(30, 1_000, wait=600, wait_cpu=540) for _ in range(3)]
    run = run_of(tmp_path, logs)
    (rank_directory(run, 2) / END).unlink()
    notes = analyze(run).trust.notes
    assert "Rank 2: end.json is missing: the process was killed, or still runs" in notes


def test_what_is_missing_of_a_rank_with_steps_and_of_one_without_is_said_with_their_numbers(tmp_path):
    run = run_of(tmp_path, [Log().steps(30, 1_000), Log()])
    (rank_directory(run, 0) / END).unlink()
    (rank_directory(run, 1) / META).unlink()
    notes = analyze(run).trust.notes
    assert "Rank 0: end.json is missing: the process was killed, or still runs" in notes
    assert "Rank 1: meta.json is missing" in notes


def test_a_rank_that_left_nothing_is_missing_even_without_any_trace(tmp_path):
    report = analyze(run_of(tmp_path, world_size=4))
    assert (report.run.world_size, report.run.missing_ranks) == (4, 3)
    assert "3 of 4 ranks are missing" in report.verdict.consequence
    # Without a trace nobody knows what the collectives of the four ranks cost.
    assert next(entry.status for entry in report.outcomes if entry.rule == "CO001") == "missing_data"


def test_without_a_manifest_nobody_knows_who_is_missing(tmp_path):
    run = run_of(tmp_path)
    (run / "run.json").unlink()
    report = analyze(run)
    assert (report.run.world_size, report.run.missing_ranks) == (None, None)
    assert report.verdict.bound == "input-bound"


def test_one_rank_of_a_run_can_be_judged(tmp_path):
    logs = [Log().steps(30, 1_000, wait=600, wait_cpu=540), Log().steps(30, 1_000, wait=700, wait_cpu=630)]
    report = analyze(run_of(tmp_path, logs), rank=1)
    assert report.verdict.headline == "Rank 1 waits 700 µs of every 1.00 ms step for data"
    assert report.run.missing_ranks == 0
    assert [rank.rank for rank in report.ranks] == [0, 1]


def test_a_run_without_any_step_has_no_verdict(tmp_path):
    report = analyze(run_of(tmp_path, [Log()]))
    assert report.verdict.bound == "inconclusive"
    assert report.verdict.headline == "No training step was recorded"


def test_samples_of_the_run_are_summarised(tmp_path):
    samples = [Sample(t_ns=i, host=HostSample(cpu_ratio=0.25)) for i in range(4)]
    (series,) = analyze(run_of(tmp_path, samples=samples)).run.samples
    assert (series.name, series.n, series.mean, series.rank) == ("host.cpu", 4, 0.25, 0)


def empty_directory(place):
    place.mkdir()
    return (place,)


def file_with(text):
    def make(place):
        place.write_text(text)
        return (place,)

    return make


@pytest.mark.parametrize(
    ("paths", "kind"),
    [
        (lambda place: (), UsageError),
        (lambda place: (place,), UnreadableInputError),
        (empty_directory, UnreadableInputError),
        (file_with(""), UnreadableInputError),
        (file_with("hello"), UnreadableInputError),
        (file_with('{"traceEvents": []}'), UnreadableInputError),
        (file_with('{"epochs": 3}'), UnreadableInputError),
    ],
    ids=["none", "missing", "empty directory", "empty file", "text", "no events", "other JSON"],
)
def test_what_cannot_be_read_is_an_error_with_a_reason_and_a_way_on(tmp_path, paths, kind):
    with pytest.raises(kind) as caught:
        analyze(*paths(tmp_path / "place"))
    lines = str(caught.value).splitlines()
    assert lines[0].startswith("error: ")
    assert any(line.startswith("hint:  ") for line in lines)
    assert caught.value.what[0].islower() or caught.value.what.startswith("/")
    assert not caught.value.what.endswith(".")
    if kind is UnreadableInputError:
        assert lines[1].startswith("cause: ")


@pytest.mark.parametrize("text", [None, "{}", "no json"])
def test_what_is_no_saved_report_is_an_error(tmp_path, text):
    place = tmp_path / "report.json"
    if text is not None:
        place.write_text(text)
    with pytest.raises(UnreadableInputError) as caught:
        load(place)
    assert caught.value.cause
    assert caught.value.hint


def test_a_trace_without_steps_is_a_report_and_no_crash(tmp_path):
    trace = Trace()
    trace.op(100, 100)
    report = analyze(trace.write(tmp_path / "trace.json"))
    assert report.verdict.bound == "inconclusive"
    assert report.to_json()


MANIFEST = json.loads((SHARED / "MANIFEST.json").read_text("utf-8"))["sets"] if SHARED.is_dir() else {}
KINETO = [name for name, entry in MANIFEST.items() if {file["format"] for file in entry["files"]} == {"kineto"}]
KINETO_FILES = {file["file"]: name for name in KINETO for file in MANIFEST[name]["files"]}
TIMELINES = json.loads((SHARED / "expected_timelines.json").read_text("utf-8"))["traces"] if SHARED.is_dir() else {}
WINDOW = {
    "window_ns": "total_us",
    "busy_ns": "busy_us",
    "idle_ns": "idle_us",
    "compute_ns": "computation_us",
    "comm_ns": "total_comm_us",
    "exposed_comm_ns": "exposed_comm_us",
    "copy_ns": "total_memcpy_us",
    "exposed_copy_ns": "exposed_memcpy_us",
}
shared_traces = pytest.mark.shared_traces
needs_traces = pytest.mark.skipif(not MANIFEST, reason=f"no real traces beside the repository ({SHARED.name})")


@cache
def shared_report(name):
    return analyze(*(SHARED / file["file"] for file in MANIFEST[name]["files"]))


@shared_traces
@needs_traces
def test_there_are_real_traces_of_many_kinds():
    assert len(KINETO) >= 20


@shared_traces
@needs_traces
@pytest.mark.parametrize("name", KINETO)
def test_a_real_trace_gets_a_verdict_that_is_known_to_be_true(name):
    verdict = shared_report(name).verdict
    assert verdict.bound in (MANIFEST[name]["verdict_one_of"] or [verdict.bound]), verdict.headline
    assert verdict.bound not in MANIFEST[name]["verdict_never"], verdict.headline
    assert len(verdict.headline.split()) <= 14


@shared_traces
@needs_traces
@pytest.mark.parametrize("name", KINETO)
def test_the_parts_of_a_real_trace_sum_to_its_step_on_every_rank(name):
    report = shared_report(name)
    assert not [entry for entry in report.outcomes if entry.status == "error"]
    for rank in report.ranks:
        assert sum(part.share for part in rank.breakdown) == pytest.approx(1.0, abs=1e-6)
        assert all(part.share > 0 for part in rank.breakdown)
    for row in report.steps.rows:
        assert sum(row.parts.values()) == row.time_ns


def device_events(file):
    """Start and end in exact ns of every device event of a file, read without this package."""
    document = json.loads(gzip.decompress((SHARED / file).read_bytes()), parse_float=Decimal)
    kinds = ("kernel", "gpu_memcpy", "gpu_memset")
    events = (event for event in document["traceEvents"] if event.get("ph") == "X" and event.get("cat") in kinds)
    return sorted((int(event["ts"] * 1000), int((event["ts"] + event["dur"]) * 1000)) for event in events)


@shared_traces
@needs_traces
@pytest.mark.parametrize("name", ["qwen_h100", "nccl_args", "moe_with_syncs"])
def test_the_busy_time_of_a_real_trace_is_exact_to_the_nanosecond(name):
    events = device_events(MANIFEST[name]["files"][0]["file"])
    busy, reach = 0, events[0][0]
    for start, end in events:
        busy += max(end - max(start, reach), 0)
        reach = max(reach, end)
    (rank,) = shared_report(name).ranks
    assert (rank.device_window.busy_ns, rank.device_window.window_ns) == (busy, reach - events[0][0])


@shared_traces
@needs_traces
@pytest.mark.parametrize("file", [file for file in KINETO_FILES if TIMELINES.get(file, {}).get("gpu_timeline")])
def test_the_device_window_of_a_real_trace_agrees_with_independent_arithmetic(file):
    expected = TIMELINES[file]["gpu_timeline"]
    window = next(
        rank.device_window for rank in shared_report(KINETO_FILES[file]).ranks if rank.origin == Path(file).name
    )
    # Where stamps have decimals the expected figures are sums of floats, one rounding of 2**-10 µs per event.
    exact = all(float(expected[key]).is_integer() for key in WINDOW.values())
    allowed_us = 0 if exact else TIMELINES[file]["n_gpu_events"] / 1024
    if file.startswith("ns_resolution"):  # counted from the epoch: 0.25 µs per event
        allowed_us = TIMELINES[file]["n_gpu_events"] / 4
    for field, key in WINDOW.items():
        assert getattr(window, field) / 1000 == pytest.approx(expected[key], rel=0, abs=allowed_us), field


@shared_traces
@needs_traces
@pytest.mark.parametrize(
    "name",
    [
        name
        for file, name in KINETO_FILES.items()
        if len(MANIFEST[name]["files"]) == 1 and TIMELINES.get(file, {}).get("step_summary")
    ],
)
def test_the_wait_for_data_of_a_real_trace_agrees_with_independent_arithmetic(name):
    (file,) = MANIFEST[name]["files"]
    expected = TIMELINES[file["file"]]["step_summary"]["gpu_idle_during_dataloader_pct"]
    rows = shared_report(name).steps.rows
    waiting = sum(row.parts.get(part, 0) for row in rows for part in WAITS)
    assert 100 * waiting / sum(row.time_ns for row in rows) == pytest.approx(expected, abs=0.5)


@shared_traces
@needs_traces
def test_ranks_of_a_real_job_that_were_not_sent_are_missing():
    report = shared_report("sampled_2_of_128")
    assert (report.run.world_size, report.run.missing_ranks) == (128, 126)
    assert "126 of 128 ranks are missing" in report.verdict.consequence


@shared_traces
@needs_traces
def test_the_rank_that_sleeps_is_named():
    assert shared_report("torchrec_late_rank_1s").verdict.rank == 2
    assert shared_report("megatron_tp2").verdict.rank == 0


@shared_traces
@needs_traces
def test_one_rank_of_a_real_job_says_that_waiting_and_transfer_look_the_same():
    report = shared_report("resnet_actckpt_mi300")
    (finding,) = next(entry.findings for entry in report.outcomes if entry.rule == "CO001")
    assert "look the same" in finding.why
    assert finding.confidence != "high"


def test_every_error_of_the_package_has_three_parts():
    error = ProfilerkitError("it failed", cause="no disk", hint="buy one")
    assert str(error) == "error: it failed\ncause: no disk\nhint:  buy one"


@pytest.mark.parametrize(
    ("read", "told", "hint"), [(3, "ranks 0, 1 and 2", "one of ranks 0, 1 and 2"), (1, "rank 0", "rank 0")]
)
def test_a_rank_that_is_not_there_is_answered_with_those_that_are(tmp_path, read, told, hint):
    files = sorted(straggling(tmp_path / "job").iterdir())[:read]
    with pytest.raises(UsageError, match="rank 7 was not recorded") as caught:
        analyze(*files, rank=7)
    assert caught.value.cause == f"recorded: {told}"
    assert caught.value.hint == f"name {hint}, or none"


def test_without_any_rank_known_none_can_be_named(tmp_path):
    path = training(12).write(tmp_path / "trace.json")
    with pytest.raises(UsageError) as caught:
        analyze(path, rank=7)
    assert (caught.value.cause, caught.value.hint) == ("no file names its rank", "name no rank")
