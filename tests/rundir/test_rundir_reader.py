import json

import msgspec
import pytest

from profilerkit.errors import RunDirectoryError
from profilerkit.rundir import layout, reader, sampled
from profilerkit.rundir.reader import is_run_directory, read_run
from profilerkit.rundir.writer import RankWriter, write_manifest

STEP = (layout.EventKind.STEP, 0, 0, 100, 50, 0)


def manifest(world_size=1):
    return layout.RunManifest(
        format_version=1,
        profilerkit_version="0",
        created_unix_ns=1,
        argv=("train.py",),
        world_size=world_size,
        settings={},
        environment={},
        versions={},
    )


def meta(rank=0):
    return layout.RankMeta(
        format_version=1,
        rank=rank,
        local_rank=rank,
        pid=1,
        host="h",
        anchor_unix_ns=0,
        anchor_perf_ns=0,
        usable_cores=2.0,
    )


@pytest.fixture
def run(tmp_path):
    write_manifest(tmp_path, manifest())
    writer = RankWriter(tmp_path, 0)
    writer.write("meta.json", meta())
    writer.append_events([STEP, STEP])
    writer.append_name(1, "checkpoint")
    writer.append_sample(sampled.Sample(t_ns=1))
    writer.write(
        "end.json", layout.RankEnd(reason="finished", exception=None, steps=2, dropped_records=0, end_perf_ns=1)
    )
    writer.close()
    return tmp_path


def test_everything_written_comes_back(run):
    record = read_run(run)
    (rank,) = record.ranks
    assert list(layout.EVENT.iter_unpack(rank.events)) == [STEP, STEP]
    assert rank.names == {1: "checkpoint"}
    assert [sample.t_ns for sample in rank.samples] == [1]
    assert rank.meta == meta()
    assert rank.end is not None
    assert rank.end.steps == 2
    assert record.manifest == manifest()
    assert record.notes == rank.notes == ()


def test_directory_without_a_run_is_refused(tmp_path):
    assert not is_run_directory(tmp_path)
    with pytest.raises(RunDirectoryError, match="not a run directory"):
        read_run(tmp_path)
    with pytest.raises(RunDirectoryError):
        read_run(tmp_path / "missing")


def test_missing_end_is_said_to_be_a_kill(run):
    (run / "rank_00000" / layout.END).unlink()
    (rank,) = read_run(run).ranks
    assert rank.end is None
    assert any("killed" in note for note in rank.notes)


@pytest.mark.parametrize(
    ("runs", "fate"),
    [
        (True, "the process still runs"),
        (False, "the process was killed"),
        (None, "the process was killed, or still runs"),
    ],
)
def test_what_is_known_of_a_process_without_an_end_is_said(run, monkeypatch, runs, fate):
    monkeypatch.setattr(reader, "still_runs", lambda meta: runs)
    (run / "rank_00000" / layout.END).unlink()
    assert f"end.json is missing: {fate}" in read_run(run).ranks[0].notes


@pytest.mark.parametrize("empty", ["run.json.part", "rank_00000/end.json.part", "rank_00000/events.bin"])
def test_a_disk_that_took_nothing_is_known_by_the_empty_file_it_left(run, empty):
    for name in ("run.json", "rank_00000/end.json", "rank_00000/meta.json"):
        (run / name).unlink()
    assert not read_run(run).ranks[0].refused
    (run / empty).write_bytes(b"")
    (rank,) = read_run(run).ranks
    assert rank.refused
    assert "end.json is missing: the disk took nothing: it was full, or the host went down" in rank.notes


def test_an_empty_file_beside_its_document_is_of_a_later_write(run):
    (run / "rank_00000" / layout.END).unlink()
    (run / "run.json.part").write_bytes(b"")
    assert not read_run(run).ranks[0].refused


@pytest.mark.parametrize("cut", range(1, layout.EVENT.size))
def test_torn_event_tail_is_ignored(run, cut):
    path = run / "rank_00000" / layout.EVENTS
    path.write_bytes(path.read_bytes()[:-cut])
    assert len(read_run(run).ranks[0].events) == layout.EVENT.size


@pytest.mark.parametrize("content", [b"", b"PK", b"x" * 64, layout.HEADER.pack(layout.MAGIC, 99, 32)])
def test_unknown_event_file_gives_no_events_and_a_note(run, content):
    (run / "rank_00000" / layout.EVENTS).write_bytes(content)
    (rank,) = read_run(run).ranks
    assert rank.events == b""
    assert any(layout.EVENTS in note for note in rank.notes)


def test_damaged_lines_are_dropped_and_counted(run):
    path = run / "rank_00000" / layout.SAMPLES
    path.write_bytes(b'{"t_ns":1}\nnot json\n\xff\xfe\n{"t_ns":2}\n{"t_ns":')
    (rank,) = read_run(run).ranks
    assert [sample.t_ns for sample in rank.samples] == [1, 2]
    assert "samples.jsonl: 2 of 4 lines are damaged and were left out" in rank.notes


@pytest.mark.parametrize("size", [-1, 2**63, 10**30])
def test_memory_of_a_size_that_no_host_has_is_a_damaged_line(run, size):
    good, bad = (
        msgspec.json.encode(
            sampled.Sample(t_ns=1, host=sampled.HostSample(worker_pages=sampled.WorkerPages(9, value, 1)))
        )
        for value in (1, size)
    )
    (run / "rank_00000" / layout.SAMPLES).write_bytes(good + b"\n" + bad + b"\n")
    (rank,) = read_run(run).ranks
    assert len(rank.samples) == 1
    assert "samples.jsonl: 1 of 2 lines are damaged and were left out" in rank.notes


@pytest.mark.parametrize("name", [layout.META, layout.END])
@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"rank": "x"}', b"\xff"])
def test_damaged_document_is_none_with_a_note(run, name, content):
    (run / "rank_00000" / name).write_bytes(content)
    (rank,) = read_run(run).ranks
    assert (rank.meta if name == layout.META else rank.end) is None
    assert any("damaged" in note for note in rank.notes)


def test_damaged_manifest_keeps_the_ranks(run):
    (run / layout.MANIFEST).write_bytes(b"{")
    record = read_run(run)
    assert record.manifest is None
    assert len(record.ranks) == 1


def test_missing_ranks_are_named(run):
    write_manifest(run, manifest(world_size=4))
    RankWriter(run, 2).close()
    record = read_run(run)
    assert [rank.rank for rank in record.ranks] == [0, 2]
    assert record.missing_ranks == (1, 3)
    assert "Ranks 1 and 3 of 4 left nothing." in record.notes


def test_window_without_status_is_not_ok(run):
    directory = layout.window_directory(run / "rank_00000", 6)
    directory.mkdir(parents=True)
    (directory / (layout.WINDOW_TRACE + layout.PART_SUFFIX)).write_text("{")
    ((status, trace),) = read_run(run).ranks[0].windows
    assert not status.ok
    assert (status.first_step, trace) == (6, None)


def test_window_with_trace_is_found_plain_or_compressed(run):
    writer = RankWriter(run, 1)
    writer.trace_part(6).write_text("{}")
    status = layout.WindowStatus(first_step=6, last_step=9, ok=True, trace=layout.WINDOW_TRACE)
    writer.finish_window(6, status)
    ((found, trace),) = read_run(run).ranks[1].windows
    assert found == status
    assert trace is not None
    assert trace.name == layout.WINDOW_TRACE
    trace.rename(trace.with_name(layout.WINDOW_TRACE_GZ))
    ((_, packed),) = read_run(run).ranks[1].windows
    assert packed is not None
    assert packed.name == layout.WINDOW_TRACE_GZ


def test_future_fields_are_accepted(run):
    path = run / layout.MANIFEST
    document = msgspec.json.decode(path.read_bytes())
    path.write_bytes(msgspec.json.encode({**document, "added_later": 1}))
    assert read_run(run).manifest == manifest()


def test_future_format_is_said(run):
    write_manifest(run, msgspec.structs.replace(manifest(), format_version=2))
    assert any("format 2" in note for note in read_run(run).notes)


@pytest.mark.parametrize("number", [10**30, 2**63, -(2**63), 2**62])
@pytest.mark.parametrize(
    ("name", "field"),
    [
        (layout.END, "end_perf_ns"),
        (layout.META, "anchor_perf_ns"),
        (layout.META, "process_start_perf_ns"),
        (layout.SAMPLES, "t_ns"),
        (layout.CLOCK, "perf_ns"),
    ],
)
def test_a_time_that_cannot_be_costs_its_record(run, name, field, number):
    """Arithmetic on it would overflow."""
    path = run / "rank_00000" / name
    fields = msgspec.json.decode(path.read_bytes()) if path.exists() and path.stat().st_size else {}
    path.write_text(json.dumps({"perf_ns": 1, "unix_ns": 1, "width_ns": 1, **fields, field: number}) + "\n")
    (rank,) = read_run(run).ranks
    assert any(name in note for note in rank.notes)
