"""A fault of the disk that passes costs nothing: records wait, writing is tried again, and what is lost is counted."""

import errno
import os
import shutil
import time
import warnings
from types import SimpleNamespace

import pytest

import profilerkit
from profilerkit.diagnosis.refusal import what_to_record
from profilerkit.rundir import files, layout
from profilerkit.rundir.reader import read_run
from profilerkit.rundir.writer import RankWriter

STEP = (1, 0, 0, 1_000, 500, 0)


@pytest.fixture
def disk(monkeypatch):
    """A disk that can be full, seen by every write, and a clock that only moves when it is told to."""

    class Disk:
        is_full = False
        now = 1_000.0

    write = os.write

    def full_or_not(number, data):
        if Disk.is_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(number, data)

    monkeypatch.setattr(os, "write", full_or_not)
    monkeypatch.setattr(files.time, "monotonic", lambda: Disk.now)
    return Disk


def test_records_wait_while_the_disk_is_full(tmp_path, disk):
    writer = RankWriter(tmp_path, 0)
    writer.append_events([STEP] * 100)
    disk.is_full = True
    for _ in range(20):
        writer.append_events([STEP] * 100)
    assert writer.events.stopped == "No space left on device"
    assert writer.dropped_records == 2_000
    disk.is_full = False
    disk.now += 60
    writer.append_events([STEP] * 3_000)
    writer.close()
    assert (writer.events.stopped, writer.stopped, writer.dropped_records) == (None, None, 0)
    assert read_run(tmp_path).ranks[0].events == layout.EVENT.pack(*STEP) * 5_100


def test_it_is_not_tried_at_every_record(tmp_path, disk, monkeypatch):
    writer = RankWriter(tmp_path, 0)
    disk.is_full = True
    tried = []
    full = os.write
    monkeypatch.setattr(os, "write", lambda *given: tried.append(given) or full(*given))
    for _ in range(1_000):
        disk.now += 0.25
        writer.append_events([STEP])
    assert 15 < len(tried) < 40  # 250 s: after 0.25, 0.5, 1 … 15 s, and every 15 s from then on


def test_what_no_room_is_left_for_is_counted(tmp_path, disk):
    writer = RankWriter(tmp_path, 0)
    disk.is_full = True
    for _ in range(11):
        writer.append_events([STEP] * 20_000)
    disk.is_full = False
    disk.now += 60
    writer.append_events([STEP])
    writer.close()
    assert writer.dropped_records == 20_000
    assert writer.stopped == "events.bin: No space left on device"
    assert len(read_run(tmp_path).ranks[0].events) == 200_001 * layout.EVENT.size


def test_a_disk_that_is_full_in_the_middle_of_a_record(tmp_path, disk, monkeypatch):
    writer = RankWriter(tmp_path, 0)
    room = [50]
    real = os.write

    def short(number, data):
        if disk.is_full and not room[0]:
            raise OSError(errno.ENOSPC, "full")
        size = min(len(data), room[0]) if disk.is_full else len(data)
        room[0] -= size if disk.is_full else 0
        disk.is_full, before = False, disk.is_full
        try:
            return real(number, bytes(data[:size]))
        finally:
            disk.is_full = before

    monkeypatch.setattr(os, "write", short)
    disk.is_full = True
    writer.append_events([STEP] * 10)
    assert writer.dropped_records == 9  # the torn one is not whole yet
    disk.is_full = False
    disk.now += 60
    writer.append_events([STEP])
    writer.close()
    assert read_run(tmp_path).ranks[0].events == layout.EVENT.pack(*STEP) * 11


def test_a_removed_file_is_made_anew(tmp_path, disk):
    writer = RankWriter(tmp_path / "run", 0)
    writer.append_name(1, "checkpoint")
    writer.append_events([STEP] * 3)
    shutil.rmtree(tmp_path / "run")
    disk.now += 1
    writer.append_events([STEP] * 2)
    writer.append_name(2, "evaluation")
    writer.close()
    found = read_run(tmp_path / "run").ranks[0]
    assert found.events == layout.EVENT.pack(*STEP) * 2
    assert found.names == {1: "checkpoint", 2: "evaluation"}
    assert writer.stopped == "events.bin: it was removed while it was written, and was made anew"


def test_a_file_that_was_emptied_or_removed_with_a_torn_record_begins_anew(tmp_path, disk):
    writer = RankWriter(tmp_path / "run", 0)
    writer.append_name(1, "checkpoint")
    writer.append_events([STEP] * 3)
    file = writer.path / layout.EVENTS
    os.truncate(file, 0)
    disk.now += 1
    writer.append_events([STEP] * 2)
    assert file.read_bytes() == layout.HEADER.pack(layout.MAGIC, layout.FORMAT_VERSION, layout.EVENT.size) + (
        layout.EVENT.pack(*STEP) * 2
    )
    writer.events._waiting += b"12 of 32 ..."
    shutil.rmtree(tmp_path / "run")
    disk.now += 1
    writer.append_events([STEP] * 4)
    writer.close()
    found = read_run(tmp_path / "run").ranks[0]
    assert (found.events, found.names) == (layout.EVENT.pack(*STEP) * 4, {1: "checkpoint"})


def test_a_run_removed_while_it_is_recorded_goes_on_and_says_so(tmp_path):
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with profilerkit.profile(tmp_path / "run", deep=False, nvml=False, analyze=False) as prof:
            for index, _ in enumerate(prof.wrap(range(60))):
                time.sleep(0.02)
                if index == 10:
                    shutil.rmtree(tmp_path / "run")
    found = read_run(tmp_path / "run").ranks[0]
    assert found.meta is not None
    assert found.end is not None
    assert "was removed" in found.end.stopped_because
    assert len(found.events) > 30 * layout.EVENT.size
    assert sum("was removed while it was recorded into" in str(each.message) for each in said) == 1


def test_a_run_removed_a_second_time_is_whole_again_too(tmp_path):
    run = tmp_path / "run"
    found = []

    def record(prof):
        for _ in range(2):
            shutil.rmtree(run)
            until = time.monotonic() + 20
            while not (run / "rank_00000" / "meta.json").exists() and time.monotonic() < until:
                prof.step()
                time.sleep(0.02)
            found.append({file.name for file in run.glob("**/*.json")})

    with profilerkit.profile(run, deep=False, nvml=False, analyze=False) as prof, pytest.warns(RuntimeWarning) as said:
        record(prof)
    assert [len({"run.json", "meta.json"} & names) for names in found] == [2, 2]
    assert sum("was removed while it was recorded into" in str(each.message) for each in said) == 1


def test_after_records_were_lost_the_advice_names_that_cause():
    lost = "events.bin: No space left on device"
    found = SimpleNamespace(unwritten=lost, taken=0.5)
    assert what_to_record(found) == (f"Record it again where every record can be written: {lost}.", "")
