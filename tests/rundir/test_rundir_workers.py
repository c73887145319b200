"""What DataLoader workers leave in a run directory, in whatever state."""

import pytest

from profilerkit.rundir import layout
from profilerkit.rundir.reader import read_run
from tests.recipes import Log, worker_batch, write_run


def worker_file_of(run, pid=7, number=0, data=b""):
    path = layout.worker_file(layout.rank_directory(run, 0), pid, number)
    path.write_bytes(data)
    return path


WORKER_HEADER = layout.HEADER.pack(layout.WORKER_MAGIC, layout.FORMAT_VERSION, layout.WORKER.size)


def test_whole_records_of_workers_are_read_and_torn_ones_ignored(tmp_path):
    run = write_run(tmp_path / "run", [Log().steps(2, 10)])
    rows = b"".join(worker_batch(number, number) for number in range(3))
    worker_file_of(run, 7, 0, WORKER_HEADER + rows + rows[:50])
    worker_file_of(run, 8, 1, WORKER_HEADER)
    (rank,) = read_run(run).ranks
    assert [(entry.pid, entry.number, entry.batches) for entry in rank.workers] == [(7, 0, rows), (8, 1, b"")]
    assert rank.notes == ()


@pytest.mark.parametrize(
    ("data", "note"),
    [
        (b"", "worker.7.0.bin has no header"),
        (WORKER_HEADER[:20], "worker.7.0.bin has no header"),
        (layout.HEADER.pack(b"PKEVENTS", 1, 32), "unknown format: b'PKEVENTS'"),
        (layout.HEADER.pack(layout.WORKER_MAGIC, 9, layout.WORKER.size), "unknown format: b'PKWORKER' version 9"),
    ],
)
def test_a_damaged_worker_file_costs_its_batches_and_says_so(tmp_path, data, note):
    run = write_run(tmp_path / "run", [Log().steps(2, 10)])
    worker_file_of(run, data=data)
    (rank,) = read_run(run).ranks
    assert rank.workers[0].batches == b""
    assert note in rank.notes[0]


def test_a_worker_that_stopped_says_why_and_other_names_are_no_workers(tmp_path):
    run = write_run(tmp_path / "run", [Log().steps(2, 10)])
    path = worker_file_of(run, data=WORKER_HEADER)
    path.with_suffix(layout.FAILED_SUFFIX).write_bytes(b"ValueError in x: \xff" + b"y" * 1000)
    for name in ("worker.a.0.bin", "worker.7.bin", "worker..bin", "worker.7.0.bin.part"):
        path.with_name(name).write_bytes(b"?")
    (rank,) = read_run(run).ranks
    assert len(rank.workers) == 1
    (note,) = rank.notes
    assert note.startswith("worker.7.0 stopped recording: ValueError in x: ")
    assert len(note) < 400
