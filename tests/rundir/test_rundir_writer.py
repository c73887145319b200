import errno
import os
import threading
import time

import msgspec
import pytest

from profilerkit.errors import RunDirectoryError
from profilerkit.rundir import layout
from profilerkit.rundir import places as claiming
from profilerkit.rundir.files import AppendFile, write_document
from profilerkit.rundir.places import claim
from profilerkit.rundir.reader import read_run
from profilerkit.rundir.sampled import Sample
from profilerkit.rundir.writer import RankWriter

STEP = (layout.EventKind.STEP, 0, 0, 100, 50, 0)


def disk_of(room, monkeypatch, chunk=1 << 20):
    """A disk that takes ``room`` more bytes, at most ``chunk`` per call."""
    real = os.write
    left = [room]

    def write(fd, data):
        if not left[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        taken = real(fd, bytes(data)[: min(left[0], chunk)])
        left[0] -= taken
        return taken

    monkeypatch.setattr(os, "write", write)


def test_short_writes_lose_nothing(tmp_path, monkeypatch):
    writer = RankWriter(tmp_path, 0)
    disk_of(1 << 20, monkeypatch, chunk=7)
    writer.append_events([STEP] * 5)
    writer.close()
    assert read_run(tmp_path).ranks[0].events == layout.EVENT.pack(*STEP) * 5
    assert writer.dropped_records == 0


def test_full_disk_keeps_whole_records_and_counts_the_rest(tmp_path, monkeypatch):
    writer = RankWriter(tmp_path, 0)
    disk_of(2 * layout.EVENT.size + 11, monkeypatch)
    writer.append_events([STEP] * 5)
    writer.append_events([STEP])
    assert writer.stopped == "events.bin: No space left on device"
    assert writer.dropped_records == 4
    writer.close()
    assert read_run(tmp_path).ranks[0].events == layout.EVENT.pack(*STEP) * 2


def test_samplers_write_at_once_and_each_sample_stands_once(tmp_path, monkeypatch):
    """On a disk that takes its time, one thread appends while another is still inside of its write."""
    writer, real = RankWriter(tmp_path, 0), os.write

    def slow(fd, data):
        view = memoryview(data)  # a real write holds the buffer as well
        time.sleep(0.002)
        return real(fd, view)

    monkeypatch.setattr(os, "write", slow)
    failed = []

    def sample(place):
        try:
            for at in range(20):
                writer.append_sample(Sample(t_ns=100 * place + at))
        except BufferError as error:
            failed.append(error)

    threads = [threading.Thread(target=sample, args=(place,)) for place in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    writer.close()
    lines = [msgspec.json.decode(line)["t_ns"] for line in (writer.path / layout.SAMPLES).read_bytes().splitlines()]
    assert not failed
    assert sorted(lines) == [100 * place + at for place in range(3) for at in range(20)]


def test_a_sampler_that_hangs_in_its_write_keeps_no_other_file_open(tmp_path, monkeypatch):
    monkeypatch.setattr("profilerkit.rundir.writer._SAMPLE_SECONDS", 0.01)
    writer = RankWriter(tmp_path, 0)
    with writer._sampling:
        writer.close()
    assert (writer.events.is_closed, writer._clock.is_closed, writer._samples.is_closed) == (True, True, False)


def test_appending_after_close_keeps_nothing(tmp_path):
    file = AppendFile(tmp_path / "lines")
    file.close()
    file.append(b"x")
    assert (file.unwritten_bytes, (tmp_path / "lines").read_bytes()) == (1, b"")


def test_document_is_replaced_as_a_whole(tmp_path):
    path = tmp_path / "launch.json"
    write_document(path, layout.Launch(id="a"))
    write_document(path, layout.Launch(id="b"))
    assert path.read_bytes() == b'{"id":"b"}\n'
    assert list(tmp_path.iterdir()) == [path]


def test_unusable_window_keeps_no_trace(tmp_path):
    writer = RankWriter(tmp_path, 0)
    part = writer.trace_part(6)
    part.write_text("{")
    part.with_name(f"{part.name}.tmp").write_text("{")  # as torch leaves it on a full disk
    writer.finish_window(6, layout.WindowStatus(first_step=6, last_step=5, ok=False, reason="cut"))
    assert [file.name for file in part.parent.iterdir()] == [layout.WINDOW_STATUS]
    writer.close()


def test_directory_that_holds_a_run_is_left_alone(tmp_path):
    first = claim(tmp_path / "x", "a", 0)
    second = claim(tmp_path / "x", "b", 0)
    third = claim(tmp_path / "x", "c", 0)
    assert [path.name for path in (first, second, third)] == ["x", "x-2", "x-3"]


def test_run_of_an_earlier_version_without_a_mark_is_left_alone(tmp_path):
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / layout.MANIFEST).write_text("{}")
    assert claim(tmp_path / "x", "a", 0).name == "x-2"


def test_directory_with_other_files_is_used(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    assert claim(tmp_path, "a", 0) == tmp_path


def test_ranks_of_one_job_meet_in_one_directory_however_they_arrive(tmp_path):
    claim(tmp_path / "x", "earlier", 0)
    found = []

    def arrive(rank):
        found.append(claim(tmp_path / "x", "job", rank))

    threads = [threading.Thread(target=arrive, args=(rank,)) for rank in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {path.name for path in found} == {"x-2"}
    assert len(found) == 8


@pytest.mark.parametrize("look", ["is_run_directory", "exists"])
def test_a_rank_that_begins_while_another_one_looks_gets_the_same_directory(tmp_path, monkeypatch, look):
    wanted = tmp_path / "x"

    def begin():
        monkeypatch.undo()
        RankWriter(claim(wanted, "job", 0), 0)

    if look == "exists":
        real = claiming.Path.exists
        monkeypatch.setattr(claiming.Path, "exists", lambda path: (real(path), begin())[0])
    else:
        real = claiming.is_run_directory
        monkeypatch.setattr(claiming, "is_run_directory", lambda path: (real(path), begin())[0])
    assert claim(wanted, "job", 1) == wanted


def test_same_launch_id_with_the_rank_already_there_is_another_run(tmp_path):
    run = claim(tmp_path / "x", "job", 1)
    RankWriter(run, 1).close()
    assert claim(tmp_path / "x", "job", 1).name == "x-2"


def test_no_free_number_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(claiming, "_MOST_NUMBERS", 3)
    claim(tmp_path / "x", "a", 0)
    claim(tmp_path / "x", "b", 0)
    with pytest.raises(RunDirectoryError, match="no free directory"):
        claim(tmp_path / "x", "c", 0)


def test_the_end_is_written_when_the_disk_is_full(tmp_path):
    """A document that is no longer than its room takes no more of the disk, and is one when it is."""
    writer = RankWriter(tmp_path, 0)
    part = writer.path / (layout.END + layout.PART_SUFFIX)
    room = part.stat()
    assert room.st_size == 4096
    end = layout.RankEnd(reason="finished", exception=None, steps=1, dropped_records=0, end_perf_ns=1)
    writer.write("end.json", end)
    assert (writer.path / layout.END).stat().st_ino == room.st_ino
    assert read_run(tmp_path).ranks[0].end == end
    assert not part.exists()
    writer.close()


def test_a_killed_run_leaves_room_that_is_no_end(tmp_path):
    RankWriter(tmp_path, 0).close()
    assert read_run(tmp_path).ranks[0].end is None


def test_the_first_file_that_the_disk_refuses_is_named(tmp_path):
    writer = RankWriter(tmp_path, 0)
    assert writer.stopped is None
    writer.stop("meta.json", OSError(errno.ENOSPC, "No space left on device"))
    writer.stop("end.json", OSError(errno.EIO, "Input/output error"))
    assert writer.stopped == "meta.json: No space left on device"
    writer.close()
