"""Paths to recordings: what may be named together, what is left out of a directory, and what is said about it."""

import os
import time
from pathlib import Path

import pytest

import profilerkit
from profilerkit.api import analyze
from profilerkit.cli import main
from profilerkit.errors import UnreadableInputError, UsageError
from profilerkit.formats.directories import named_as_traces, traces_below
from profilerkit.report import terminal
from profilerkit.report.sections.fixes import limits_of
from profilerkit.rundir.layout import END, LAUNCH, MANIFEST, META, WINDOW_STATUS
from tests.recipes import Log, training, write_run
from tests.xplane_recipes import gpu, jax_json, space

SHARED = Path(__file__).resolve().parents[2] / "shared" / "traces"


def trace_at(path, **fields):
    path.parent.mkdir(parents=True, exist_ok=True)
    return training(12, **fields).write(path)


def run_at(path):
    return write_run(path, [Log().steps(30, 1_000, wait=600)])


@pytest.fixture
def job(tmp_path):
    for rank in range(2):
        trace_at(tmp_path / "job" / f"rank{rank}.json", rank=rank, world_size=2)
    return tmp_path / "job"


def test_a_path_that_is_not_there_is_unreadable_input(tmp_path, job):
    with pytest.raises(UnreadableInputError) as caught:
        analyze(job, tmp_path / "no.json")
    assert caught.value.what == f"{tmp_path / 'no.json'} does not exist"
    assert caught.value.cause
    assert caught.value.hint


@pytest.mark.parametrize(
    ("again", "cause"),
    [
        ("rank0.json", "by itself or within a directory"),
        (".", "by itself or within a directory"),
        ("../job/rank0.json", "it is the same file as"),
        ("../link.json", "it is the same file as"),
    ],
)
def test_a_file_given_twice_is_no_second_rank(job, again, cause):
    (job.parent / "link.json").symlink_to(job / "rank0.json")
    with pytest.raises(UsageError, match=r"rank0\.json was given twice|link\.json was given twice") as caught:
        analyze(job / "rank0.json", job / again)
    assert cause in caught.value.cause
    assert caught.value.hint


@pytest.mark.parametrize("other", ["b", "trace.json", "a"])
def test_a_run_directory_is_analyzed_alone(tmp_path, other):
    run_at(tmp_path / "a")
    run_at(tmp_path / "b")
    trace_at(tmp_path / "trace.json")
    for paths in ((tmp_path / "a", tmp_path / other), (tmp_path / other, tmp_path / "a")):
        with pytest.raises(UsageError, match="a run directory can only be combined with logs") as caught:
            analyze(*paths)
        assert str(tmp_path / other) in caught.value.cause
        assert caught.value.hint


def test_what_is_no_trace_is_left_out_of_a_directory_and_named(job):
    (job / "config.json").write_text('{"epochs": 3}')
    (job / "empty.json").write_text("")
    report = analyze(job)
    assert report.run.files == ("rank0.json", "rank1.json")
    assert report.trust.notes[:2] == (
        "config.json is not a trace that can be read and was left out: it is JSON, but without a 'traceEvents' list.",
        "empty.json is not a trace that can be read and was left out: the file is empty.",
    )


@pytest.mark.parametrize(
    ("count", "more", "verb"), [(12, "9 more files", "were"), (4, "1 more file", "was"), (3, "", "")]
)
def test_many_files_that_are_no_traces_are_counted(job, count, more, verb):
    for number in range(count):
        (job / f"config{number:02}.json").write_text("")
    report = analyze(job)
    assert report.trust.notes[2].startswith("config02.json is not a trace")
    assert any(note.startswith(f"{more} there cannot be read") for note in report.trust.notes) is bool(more)
    assert report.run.left_out[2:] == ("config02.json (the file is empty)", *([more] if more else []))
    shown = " ".join(terminal.render(report).split())
    assert "Left out: config00.json (the file is empty); config01.json (the file is empty)" in shown
    assert more in shown


def test_a_file_that_was_named_must_be_a_trace(job):
    (job / "config.json").write_text("{}")
    with pytest.raises(UnreadableInputError, match=r"config\.json is not a trace"):
        analyze(job / "rank0.json", job / "config.json")


def test_a_file_that_cannot_be_read_names_everything_that_could(tmp_path):
    (tmp_path / "notes.txt").write_text("nothing of any kind")
    with pytest.raises(UnreadableInputError) as caught:
        analyze(tmp_path / "notes.txt")
    for name in ("kineto", "nsys", "xplane", "memory snapshot", "nvidia-smi", "flight recorder dump"):
        assert name in caught.value.hint


def test_a_directory_without_any_readable_trace_says_what_was_tried(tmp_path):
    for name in ("a.json", "b.json"):
        (tmp_path / name).write_text("{}")
    with pytest.raises(UnreadableInputError) as caught:
        analyze(tmp_path)
    assert caught.value.what == f"no trace in {tmp_path} can be read"
    assert caught.value.cause.startswith("2 files were tried; a.json: it is JSON")
    assert caught.value.hint


@pytest.mark.parametrize(
    ("named", "what"),
    [("", "the recordings in {} are of an unsupported kind"), ("a.nsys-rep", "{} is of an unsupported kind")],
)
def test_recordings_of_other_tools_are_not_supported_yet(tmp_path, named, what):
    (tmp_path / "a.nsys-rep").write_text("")
    with pytest.raises(UnreadableInputError) as caught:
        analyze(tmp_path / named)
    assert caught.value.what == what.format(tmp_path / named)
    assert caught.value.cause == "a.nsys-rep of Nsight Systems"
    assert "torch.profiler" in caught.value.hint


def test_a_second_document_in_a_file_is_said_below_the_headline(tmp_path):
    content = training(6).bytes()
    (tmp_path / "two.json").write_bytes(content + content)
    report = analyze(tmp_path / "two.json")
    assert "The file holds a second document after the first: only the first was read." in limits_of(report)
    (tmp_path / "one.json").write_bytes(content)
    assert not list(limits_of(analyze(tmp_path / "one.json")))


def test_of_many_recordings_of_other_tools_some_are_named(tmp_path):
    for number in range(5):
        (tmp_path / f"{number}.nsys-rep").write_text("")
    (tmp_path / "a.ncu-rep").write_text("")
    with pytest.raises(UnreadableInputError) as caught:
        analyze(tmp_path)
    assert caught.value.cause == ("0.nsys-rep, 1.nsys-rep, 2.nsys-rep … of Nsight Systems; a.ncu-rep of Nsight Compute")


@pytest.mark.parametrize(
    ("name", "text"),
    [("model.pb", ""), ("metrics.csv", "step,loss,memory_used\n1,2.3,100\n"), ("a.csv", "time,utilization_gpu\n1,2\n")],
)
def test_an_ordinary_file_is_of_no_other_tool(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    with pytest.raises(UnreadableInputError, match="no trace in"):
        analyze(tmp_path)


def test_any_other_table_is_no_recording_and_a_trace_beside_one_is_read(tmp_path):
    (tmp_path / "loss.csv").write_text("step,loss\n1,2\n")
    with pytest.raises(UnreadableInputError, match="no trace in"):
        analyze(tmp_path)
    (tmp_path / "gpu.csv").write_text("timestamp,utilization.gpu\n")
    trace_at(tmp_path / "trace.json")
    report = analyze(tmp_path)
    assert report.run.files == ("trace.json",)
    assert "gpu.csv is not a log that can be read and was left out: it has no samples." in report.trust.notes


def test_documents_of_a_run_directory_are_never_taken_for_traces(job):
    before = analyze(job)
    for name in (LAUNCH, META, END, WINDOW_STATUS):
        (job / name).write_text('{"traceEvents": []}')
    after = analyze(job)
    assert after.run.files == before.run.files
    assert after.trust.notes == before.trust.notes


def test_a_run_directory_without_a_rank_holds_no_recording(tmp_path):
    manifest = (run_at(tmp_path / "whole") / MANIFEST).read_bytes()
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare" / MANIFEST).write_bytes(manifest)
    with pytest.raises(UnreadableInputError, match="bare holds no recording") as caught:
        analyze(tmp_path / "bare")
    assert caught.value.cause == "it has run.json but the files of no rank; Rank 0 of 1 left nothing."
    assert "rank_*" in caught.value.hint


def test_the_run_directory_above_or_below_is_pointed_out(tmp_path):
    run = run_at(tmp_path / "runs" / "a")
    for place in (run.parent, run / "rank_00000"):
        with pytest.raises(UnreadableInputError) as caught:
            analyze(place)
        assert caught.value.hint == f"analyze the run directory {run}"


def test_a_directory_of_several_runs_lists_them_with_their_ages_and_names_the_newest(tmp_path, capsys):
    place = tmp_path / "all runs"
    for name, hours in (("old", 30), ("newest", 3), ("older", 5)):
        for file in run_at(place / name).rglob("*"):
            os.utime(file, (time.time() - hours * 3_600,) * 2)
    (place / "notes").mkdir()
    assert main(["watch", str(place)]) == 2
    what, cause, hint = capsys.readouterr().err.splitlines()[-3:]
    assert what == f"error: {place} holds 3 runs"
    assert cause == "cause: last written to: newest (3 h ago), older (5 h ago), old (30 h ago)"
    assert hint == f"hint:  profilerkit watch '{place / 'newest'}'"


def test_of_very_many_runs_the_newest_are_listed(tmp_path):
    for number in range(9):
        run_at(tmp_path / f"run-{number}")
    with pytest.raises(UnreadableInputError, match="holds 9 runs") as caught:
        analyze(tmp_path)
    assert caught.value.cause.count("(now)") == 6
    assert caught.value.cause.endswith(" and 3 more")


def refused(*paths):
    """Why traces are no ranks of one job."""
    with pytest.raises(UsageError, match="not the ranks of one job") as caught:
        analyze(*paths)
    assert "profilerkit diff" in caught.value.hint
    return caught.value.cause


def test_files_of_one_rank_are_no_ranks_of_a_job(tmp_path):
    for name in ("a.json", "b.json"):
        trace_at(tmp_path / "job" / name, rank=0, world_size=2)
    assert (
        refused(tmp_path / "job")
        == "a.json and b.json are both of rank 0: from several runs, or from one at several times"
    )


def test_files_of_one_name_are_told_apart_by_their_directories(tmp_path):
    paths = [trace_at(tmp_path / place / "rank0.json", rank=0, world_size=2) for place in ("old", "new")]
    assert "old/rank0.json and new/rank0.json are both of rank 0" in refused(*paths)


def test_jobs_of_different_sizes_are_two(tmp_path):
    paths = [trace_at(tmp_path / f"{rank}.json", rank=rank, world_size=2 + 2 * rank) for rank in range(2)]
    assert refused(*paths) == "0.json is of a job of 2 ranks, 1.json of a job of 4 ranks"


def test_files_that_say_nothing_of_a_job_are_of_none(tmp_path):
    paths = [trace_at(tmp_path / name) for name in ("a.json", "b.json", "c.json", "d.json")]
    assert refused(*paths) == "none of a.json, b.json, c.json and 1 more names a rank or shows a collective"
    assert analyze(*(trace_at(tmp_path / f"rank{rank}.json") for rank in range(2))).verdict


@pytest.mark.parametrize(("apart_s", "is_one"), [(3_500, True), (3_700, False)])
def test_collectives_an_hour_apart_are_of_two_runs_unless_the_files_name_their_ranks(tmp_path, apart_s, is_one):
    def traces(**fields):
        start_us = 1_700_000_000 * 1_000_000
        for rank in range(2):
            told = {name: rank if name == "rank" else value for name, value in fields.items()}
            yield trace_at(tmp_path / f"{rank}.json", comm=400, start=start_us + rank * apart_s * 1_000_000, **told)

    assert analyze(*traces(rank=0, world_size=2)).verdict
    unnamed = list(traces())
    if is_one:
        assert analyze(*unnamed).verdict
    else:
        assert refused(*unnamed).startswith("0.json ends 62 min before 1.json begins")


def test_unnamed_ranks_on_different_devices_are_of_two_runs(tmp_path):
    def traces(*names, **fields):
        for rank, name in enumerate(names):
            told = {key: rank if key == "rank" else value for key, value in fields.items()}
            yield trace_at(tmp_path / f"{rank}.json", comm=400, devices=({"id": 0, "name": name},), **told)

    assert refused(*traces("NVIDIA H100", "NVIDIA A100")) == "0.json is of NVIDIA H100, 1.json of NVIDIA A100"
    assert analyze(*traces("NVIDIA H100", "NVIDIA A100", rank=0, world_size=2)).verdict


def test_summaries_of_jobs_of_different_sizes_are_not_reduced_to_one(tmp_path):
    for rank in range(2):
        path = trace_at(tmp_path / f"{rank}.json", rank=rank, world_size=2 + 2 * rank, comm=400)
        profilerkit.summarise(path, tmp_path)
    with pytest.raises(UsageError, match="not the ranks of one job") as caught:
        profilerkit.reduce(tmp_path)
    assert caught.value.cause == "0.json is of a job of 2 ranks, 1.json of a job of 4 ranks"


@pytest.mark.shared_traces
@pytest.mark.skipif(not SHARED.is_dir(), reason=f"no shared traces beside the repository, at {SHARED}")
def test_two_real_recordings_of_before_and_after_are_no_ranks():
    cause = refused(*(SHARED / "nsys_mfu_pair" / f"mfu_2gpu_{side}.sqlite" for side in ("before", "after")))
    assert cause.startswith("mfu_2gpu_before.sqlite ends 80 min before mfu_2gpu_after.sqlite begins")


def test_a_damaged_trace_is_read_around_unless_strict(tmp_path):
    whole = training(12).write(tmp_path / "trace.json").read_text("utf-8")
    cut = tmp_path / "cut.json"
    cut.write_text(whole[: int(len(whole) * 0.9)], "utf-8")
    report = analyze(cut)
    assert report.trust.truncated
    assert report.verdict.confidence == "low"
    doubt = "The end of the file is missing, with some device events: the device did more than is shown."
    assert doubt in report.trust.notes
    assert any(note.startswith("Damaged: event ") for note in report.trust.notes)
    with pytest.raises(UnreadableInputError, match="damaged"):
        analyze(cut, strict=True)


def profile_at(directory, name="host", **settings):
    directory.mkdir(parents=True, exist_ok=True)
    (directory / f"{name}.xplane.pb").write_bytes(space(gpu(**settings)))
    (directory / f"{name}.trace.json.gz").write_bytes(jax_json())
    (directory / "perfetto_trace.json.gz").write_bytes(jax_json())


@pytest.mark.parametrize("below", ["plugins/profile/2026_01_02", "."])
def test_a_profile_of_jax_is_found_where_jax_puts_it_and_its_copies_are_not_read_beside_it(tmp_path, below):
    profile_at(tmp_path / below)
    report = analyze(tmp_path)
    assert report.run.files == ("host.xplane.pb",)
    assert report.steps.count == 12


def test_of_several_profiles_below_a_log_directory_the_newest_is_read_and_the_others_are_told(tmp_path):
    for steps, taken in ((6, "2026_01_02"), (9, "2026_01_03"), (4, "2025_12_31")):
        profile_at(tmp_path / "logs" / "plugins" / "profile" / taken, steps=steps)
    (tmp_path / "logs" / "plugins" / "profile" / "empty").mkdir()
    report = analyze(tmp_path / "logs")
    assert report.steps.count == 9
    assert report.trust.notes[0] == (
        "Of logs only the newest profile was read, 2 older profiles left out; name the directory of another."
    )


def test_every_host_of_a_profile_is_a_rank(tmp_path):
    for name in ("host0", "host1"):
        profile_at(tmp_path / "plugins" / "profile" / "run", name)
    assert analyze(tmp_path).run.files == ("host0.xplane.pb", "host1.xplane.pb")


@pytest.mark.parametrize("below", ["plugins/profile/2026_01_02", "."])
@pytest.mark.parametrize("name", ["renamed.pb", "renamed.pb.gz"])
def test_a_profile_of_another_name_is_found_by_its_content(tmp_path, below, name):
    profile_at(tmp_path / below, "renamed")
    (tmp_path / below / "renamed.xplane.pb").rename(tmp_path / below / name)
    (tmp_path / below / "model.pb").write_bytes(b"\x08\x01\x12\x00")
    report = analyze(tmp_path)
    assert report.run.files == (name,)
    assert report.steps.count == 12
    assert main(["map", str(tmp_path)]) == 0
    assert (tmp_path / below / f"{name}.pksum").is_file()


def test_json_of_jax_alone_is_read(tmp_path):
    (tmp_path / "host.trace.json.gz").write_bytes(jax_json(packed=True))
    assert analyze(tmp_path).steps.count == 12


@pytest.mark.shared_traces
@pytest.mark.skipif(not (SHARED / "jax_trace").is_dir(), reason="no shared traces beside the repository")
def test_real_profiles_whose_names_say_nothing_are_found(tmp_path):
    for file in (SHARED / "jax_trace").glob("*.pb"):
        (tmp_path / file.name).symlink_to(file)
    names = {path.name for path in tmp_path.iterdir()}
    assert {path.name for path in named_as_traces(tmp_path)} == names
    assert {path.name for path in traces_below(tmp_path)} == names
    assert len(names) == 2
