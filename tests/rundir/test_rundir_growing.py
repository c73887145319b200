"""A run directory read while it grows: each look gives what is whole by then, the last what ``read_run`` gives."""

import os

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profilerkit.rundir import follow
from profilerkit.rundir.files import GrowingLines, GrowingRecords, ReplacedDocument
from profilerkit.rundir.follow import FollowedRun, state_of
from profilerkit.rundir.layout import (
    CLOCK,
    END,
    EVENT,
    EVENTS,
    FORMAT_VERSION,
    HEADER,
    MAGIC,
    SAMPLES,
    WORKER,
    WORKER_MAGIC,
    EventKind,
    RankEnd,
    WindowStatus,
    rank_directory,
    worker_file,
)
from profilerkit.rundir.process import this_process
from profilerkit.rundir.reader import read_run
from profilerkit.rundir.sampled import Sample
from profilerkit.rundir.writer import RankWriter
from tests.recipes import Log, rank_meta, worker_batch, write_run

HEAD = HEADER.pack(MAGIC, FORMAT_VERSION, EVENT.size)


def events(first, count):
    return b"".join(EVENT.pack(EventKind.STEP, 0, 0, number, 1, number) for number in range(first, first + count))


def numbers(records):
    return [fields[5] for fields in EVENT.iter_unpack(records)]


def growing(path, most=1000):
    return GrowingRecords(path, MAGIC, EVENT.size, most)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, len(HEAD) + 10 * EVENT.size), max_size=8))
def test_records_that_are_cut_anywhere_are_read_once_they_are_whole(tmp_path_factory, cuts):
    path = tmp_path_factory.mktemp("growing") / EVENTS
    whole = HEAD + events(0, 10)
    file = growing(path)
    for size in sorted(cuts):
        path.write_bytes(whole[:size])
        assert numbers(file.look()) == list(range(max(0, size - len(HEAD)) // EVENT.size))
    path.write_bytes(whole)
    assert numbers(file.look()) == numbers(file.look()) == list(range(10))


def test_of_a_long_file_the_latest_records_are_kept(tmp_path):
    path = tmp_path / EVENTS
    path.write_bytes(HEAD + events(0, 50) + b"torn")
    file = growing(path, most=7)
    assert numbers(file.look()) == list(range(43, 50))
    path.write_bytes(HEAD + events(0, 52))
    assert numbers(file.look()) == list(range(45, 52))
    path.write_bytes(HEAD + events(0, 90))
    assert numbers(file.look()) == list(range(83, 90))


def test_a_file_that_is_shorter_than_before_is_read_again(tmp_path):
    path = tmp_path / EVENTS
    file = growing(path)
    assert file.look() == b""
    path.write_bytes(HEAD + events(0, 5))
    file.look()
    path.write_bytes(HEAD + events(100, 2))
    assert numbers(file.look()) == [100, 101]


@pytest.mark.parametrize("head", [b"", b"PK", b"x" * HEADER.size, HEADER.pack(MAGIC, 99, EVENT.size)])
def test_a_file_of_another_format_gives_nothing(tmp_path, head):
    path = tmp_path / EVENTS
    path.write_bytes(head + (events(0, 3) if len(head) == HEADER.size else b""))
    assert growing(path).look() == b""


def test_lines_that_are_torn_or_damaged_cost_themselves(tmp_path):
    path = tmp_path / SAMPLES
    file = GrowingLines(path, Sample, 3)
    for content, times in [
        (b"", []),
        (b'{"t_ns":1}\n{"t_', [1]),
        (b'{"t_ns":1}\n{"t_ns":2}\nno json\n\xff\n{"t_ns":3}', [1, 2]),
        (b'{"t_ns":1}\n{"t_ns":2}\nno json\n\xff\n{"t_ns":3}\n{"t_ns":4}\n', [2, 3, 4]),
        (b'{"t_ns":9}\n', [9]),
    ]:
        path.write_bytes(content)
        assert [sample.t_ns for sample in file.look()] == times


def test_of_many_new_lines_the_latest_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr("profilerkit.rundir.files._MOST_LINE_BYTES", 30)
    path = tmp_path / SAMPLES
    path.write_bytes(b"".join(b'{"t_ns":%d}\n' % number for number in range(10, 40)))
    file = GrowingLines(path, Sample, 100)
    assert [sample.t_ns for sample in file.look()] == [38, 39]
    path.write_bytes(path.read_bytes() + b"x" * 50)  # a line without an end is given up
    file.look()
    path.write_bytes(path.read_bytes() + b'\n{"t_ns":40}\n')
    assert file.look()[-1].t_ns == 40


def test_a_document_is_read_again_when_it_was_replaced(tmp_path):
    path = tmp_path / END
    document = ReplacedDocument(path, RankEnd)
    assert document.look() is None
    path.write_bytes(b"{")
    assert document.look() is None
    end = RankEnd(reason="finished", exception=None, steps=2, dropped_records=0, end_perf_ns=1)
    for steps in (2, 3):
        part = tmp_path / "part"
        part.write_bytes(msgspec.json.encode(msgspec.structs.replace(end, steps=steps)))
        part.replace(path)
        assert document.look().steps == steps
    path.unlink()
    assert document.look() is None


def without_notes(record):
    """A run as both readers give it: the follower tells no damage, and reads no trace."""
    ranks = [
        msgspec.structs.replace(rank, notes=(), windows=tuple((status, None) for status, _ in rank.windows))
        for rank in record.ranks
    ]
    return msgspec.structs.replace(record, ranks=tuple(ranks), notes=())


def test_the_last_look_gives_what_reading_the_whole_run_gives(tmp_path):
    run = FollowedRun(tmp_path)
    assert run.look().ranks == ()
    log = Log()
    log.steps(4, 1_000, wait=100, phase=("checkpoint", 50))
    write_run(tmp_path, [log, log], ended=False, samples=[Sample(t_ns=1), Sample(t_ns=2)])
    seen = run.look()
    assert [rank.rank for rank in seen.ranks] == [0, 1]
    assert without_notes(read_run(tmp_path)) == seen

    rank = rank_directory(tmp_path, 1)
    more = b"".join(EVENT.pack(*record) for record in Log(start=4_000).steps(3, 1_000).records)
    with (rank / EVENTS).open("ab") as file:
        file.write(more + more[:5])
    with (rank / CLOCK).open("ab") as file:
        file.write(b'{"perf_ns":5,"unix_ns":100,"width_ns":1}\n')
    worker_file(rank, 77, 0).write_bytes(
        HEADER.pack(WORKER_MAGIC, FORMAT_VERSION, WORKER.size) + worker_batch(0, 0)[:-1]
    )
    (rank / "windows").mkdir()
    window = WindowStatus(first_step=2, last_step=3, ok=False, reason="no room")
    (rank / "windows" / "000002").mkdir()
    (rank / "windows" / "000002" / "status.json").write_bytes(msgspec.json.encode(window))
    end = RankEnd(reason="finished", exception=None, steps=7, dropped_records=0, end_perf_ns=1)
    (rank / END).write_bytes(msgspec.json.encode(end))
    seen = run.look()
    assert without_notes(read_run(tmp_path)) == seen
    assert len(seen.ranks[1].events) == len(seen.ranks[0].events) + 3 * EVENT.size
    assert (seen.ranks[1].end, seen.ranks[1].windows) == (end, ((window, None),))


def test_a_rank_that_comes_later_is_found_and_one_that_is_missing_is_told(tmp_path):
    write_run(tmp_path, [Log().steps(2, 1_000)], world_size=2)
    run = FollowedRun(tmp_path)
    assert run.look().missing_ranks == (1,)
    writer = RankWriter(tmp_path, 1)
    writer.write("meta.json", rank_meta(1))
    writer.close()
    assert run.look().missing_ranks == ()


def test_of_many_workers_the_latest_are_followed(tmp_path, monkeypatch):
    monkeypatch.setattr(follow, "MOST_WORKERS", 2)
    write_run(tmp_path, [Log().steps(2, 1_000)])
    rank = rank_directory(tmp_path, 0)
    run = FollowedRun(tmp_path)
    for pid in (1, 2, 3):
        worker_file(rank, pid, 0).write_bytes(HEADER.pack(WORKER_MAGIC, FORMAT_VERSION, WORKER.size))
        seen = run.look().ranks[0].workers
    assert [worker.pid for worker in seen] == [2, 3]


def test_the_state_of_a_rank_is_its_end_or_that_of_its_process(tmp_path):
    write_run(tmp_path / "ended", [Log().steps(2, 1_000)])
    assert state_of(read_run(tmp_path / "ended").ranks[0]) == "ended"
    for name, process, state in [
        ("here", this_process(), "running"),
        ("gone", msgspec.structs.replace(this_process(), start_ticks=1), "killed"),
        ("elsewhere", msgspec.structs.replace(this_process(), boot_id="another"), "unknown"),
        ("nobody", None, "unknown"),
    ]:
        write_run(tmp_path / name, [Log().steps(2, 1_000)], ended=False, pid=os.getpid(), process=process)
        assert state_of(read_run(tmp_path / name).ranks[0]) == state
