"""Records whose times cannot be are left out before anything is computed from them, and that is said."""

import struct

import pytest

import profilerkit
from profilerkit.rundir.follow import FollowedRun
from profilerkit.rundir.layout import EVENT, FORMAT_VERSION, HEADER, WORKER, WORKER_MAGIC
from profilerkit.rundir.reader import read_run
from tests.recipes import Log, worker_batch, write_run

FARTHEST_NS = 1 << 60


@pytest.fixture
def run(tmp_path):
    return write_run(tmp_path / "run", [Log().steps(30, 1_000, wait=600)])


def with_time(path, at, value):
    """The file with another number in the place of a record's time."""
    data = bytearray(path.read_bytes())
    data[at : at + 8] = struct.pack("<q", value)
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("at", "value"),
    [(8, -(1 << 63)), (8, (1 << 63) - 1), (8, FARTHEST_NS), (8, -FARTHEST_NS - 1), (16, -1), (16, FARTHEST_NS)],
)
def test_an_event_of_an_impossible_time_is_left_out_and_said(run, at, value):
    events = run / "rank_00000" / "events.bin"
    with_time(events, HEADER.size + 5 * EVENT.size + at, value)
    record = read_run(run).ranks[0]
    assert len(record.events) == 59 * EVENT.size
    assert "events.bin: 1 of 60 records have impossible times and were left out" in record.notes
    assert len(FollowedRun(run).look().ranks[0].events) == 59 * EVENT.size
    report = profilerkit.analyze(run)
    assert [outcome for outcome in report.outcomes if outcome.status == "error"] == []


@pytest.mark.parametrize(("at", "value"), [(8, FARTHEST_NS - 1), (8, -FARTHEST_NS), (16, 0), (16, FARTHEST_NS - 1)])
def test_an_event_of_a_possible_time_is_kept(run, at, value):
    with_time(run / "rank_00000" / "events.bin", HEADER.size + 5 * EVENT.size + at, value)
    record = read_run(run).ranks[0]
    assert len(record.events) == 60 * EVENT.size
    assert not any("impossible" in note for note in record.notes)


def test_a_batch_of_an_impossible_time_is_left_out_and_said(run):
    worker = run / "rank_00000" / "worker.7.0.bin"
    batches = [worker_batch(number * 1_000, number) for number in range(4)]
    worker.write_bytes(HEADER.pack(WORKER_MAGIC, FORMAT_VERSION, WORKER.size) + b"".join(batches))
    with_time(worker, HEADER.size + WORKER.size, 1 << 62)
    record = read_run(run).ranks[0]
    assert record.workers[0].batches == b"".join([batches[0], *batches[2:]])
    assert "worker.7.0.bin: 1 of 4 records have impossible times and were left out" in record.notes


def test_steps_without_length_are_reported_and_not_divided_by(tmp_path):
    log = Log()
    for number in range(40):
        log.step(0 if number < 30 else 1_000)
    report = profilerkit.analyze(write_run(tmp_path / "run", [log]))
    assert report.steps.count == 40
