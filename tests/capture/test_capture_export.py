"""Exported traces are looked at before they count; finished ones are compressed beside the training."""

import gzip
import os
import subprocess
import threading
import time

import pytest

from profilerkit.capture import deep
from profilerkit.capture.deep import examine
from profilerkit.capture.handoff import Packer, compress
from profilerkit.rundir.files import read_document, write_document
from profilerkit.rundir.layout import WindowStatus
from profilerkit.rundir.process import own_environment, own_program

STEP = b'{"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#3"}, '
KERNEL = b'{"ph": "X", "cat": "kernel", "name": "gemm"}, '
COPY = b'{"ph": "X", "cat": "gpu_memcpy", "name": "kernel"}, '


def flaw_of(path, data):
    path.write_bytes(data)
    return examine(path).flaw


def test_a_file_that_was_never_written_is_a_flaw(tmp_path):
    assert examine(tmp_path / "trace.json").flaw == "torch wrote no trace file; the disk may be full"
    assert flaw_of(tmp_path / "trace.json", b"") == "torch wrote no trace file; the disk may be full"


def test_a_file_that_is_cut_is_a_flaw(tmp_path):
    assert flaw_of(tmp_path / "trace.json", STEP * 3) == "the trace file is cut; the disk may be full"


def test_a_file_without_a_step_is_a_flaw(tmp_path):
    assert flaw_of(tmp_path / "trace.json", KERNEL + b"]}\n").startswith("the trace holds no step")


@pytest.mark.parametrize("chunk", [1, 7, 16, 64, 1 << 20])
def test_steps_and_kernels_are_counted_across_the_edges_of_what_is_read(tmp_path, monkeypatch, chunk):
    monkeypatch.setattr(deep, "_CHUNK_BYTES", chunk)
    path = tmp_path / "trace.json"
    path.write_bytes(b"[" + (STEP + KERNEL * 3 + COPY) * 5 + b"{}]}\n")
    found = examine(path)
    assert (found.flaw, found.marks, found.kernels) == ("", 5, 15)
    assert found.size_bytes == path.stat().st_size


def window_in(rank_path, step, size=100_000):
    window = rank_path / "windows" / f"{step:06d}"
    window.mkdir(parents=True)
    (window / "trace.json").write_bytes(os.urandom(size // 2) + bytes(size // 2))
    write_document(
        window / "status.json", WindowStatus(first_step=step, last_step=step + 2, ok=True, trace="trace.json")
    )
    return window


def files_of(window):
    return sorted(file.name for file in window.iterdir())


def test_a_trace_is_compressed_while_the_training_goes_on(tmp_path):
    window = window_in(tmp_path, 6)
    plain = (window / "trace.json").read_bytes()
    packer = Packer(tmp_path, summaries=False)
    packer.beat()
    assert files_of(window) == ["status.json", "trace.json"]
    packer.wanted = True
    packer.beat()
    deadline = time.monotonic() + 60
    while (window / "trace.json").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert files_of(window) == ["status.json", "trace.json.gz"]
    assert gzip.decompress((window / "trace.json.gz").read_bytes()) == plain
    assert read_document(window / "status.json", WindowStatus).trace == "trace.json.gz"
    packer.finish(10.0)


def test_only_one_process_compresses_at_a_time(tmp_path):
    window_in(tmp_path, 6, size=20_000_000)
    packer = Packer(tmp_path, summaries=False)
    packer.wanted = True
    packer.beat()
    first = packer._process
    window_in(tmp_path, 1006)
    packer.wanted = True
    packer.beat()
    assert packer._process is first
    assert packer.wanted  # looked at again with the next beat
    packer.finish(60.0)
    assert [files_of(window) for window in sorted((tmp_path / "windows").iterdir())] == [
        ["status.json", "trace.json.gz"]
    ] * 2


def test_a_process_that_has_compressed_is_no_child_any_more(tmp_path):
    window_in(tmp_path, 6)
    packer = Packer(tmp_path, summaries=False)
    packer.wanted = True
    packer.beat()
    for thread in threading.enumerate():  # nothing else waits for it: ``beat`` may never come again
        if thread.name == "profilerkit-packer":
            thread.join(60)
    with pytest.raises(ChildProcessError):
        os.waitpid(packer._process.pid, os.WNOHANG)


def test_compression_ends_with_the_process_that_trained(tmp_path):
    window = window_in(tmp_path, 6, size=50_000_000)
    command = own_program("profilerkit.capture.handoff", str(tmp_path), "1")  # not its parent: that one is gone
    subprocess.run(command, env=own_environment(), timeout=60, check=True)
    assert files_of(window) == ["status.json", "trace.json"]


def test_a_window_without_a_status_is_not_finished_and_is_left_alone(tmp_path):
    window = window_in(tmp_path, 6)
    (window / "status.json").unlink()
    assert compress(window)
    assert files_of(window) == ["trace.json"]
