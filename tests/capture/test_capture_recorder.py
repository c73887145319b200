"""The buffer between the training and the disk."""

import os
import threading
import time

import pytest

from profilerkit.capture import background as module
from profilerkit.capture.background import Recorder
from profilerkit.rundir.layout import EventKind
from profilerkit.rundir.writer import RankWriter

RECORD = (EventKind.STEP, 0, 0, 1, 1, 0)


@pytest.fixture
def hung(monkeypatch):
    """A disk that does not answer the writer thread until it is told to."""
    answers, asked, write = threading.Event(), threading.Event(), os.write

    def hang(descriptor, data):
        if threading.current_thread().name == "profilerkit-writer":
            asked.set()
            answers.wait(60)
        return write(descriptor, data)

    monkeypatch.setattr(os, "write", hang)
    asked.answers = answers
    yield asked
    answers.set()
    for thread in threading.enumerate():
        if thread.name == "profilerkit-writer":
            thread.join(10)


@pytest.fixture
def recorder(tmp_path):
    made = Recorder(RankWriter(tmp_path, 0), lambda: made.flush(), 0.01)  # noqa: PLW0108  it is not made yet
    return made


def test_a_disk_that_hangs_holds_neither_a_new_name_nor_the_end(recorder, hung, monkeypatch):
    monkeypatch.setattr(module, "_JOIN_SECONDS", 0.2)
    recorder.record(RECORD)
    recorder.start()
    assert hung.wait(10)
    began = time.monotonic()
    assert recorder.name_id("a phase of its own") == 1
    assert recorder.stop(lambda: None) is False
    assert time.monotonic() - began < 5


def test_a_block_ends_while_the_disk_hangs_and_says_so(light, hung, monkeypatch):
    monkeypatch.setattr(module, "_JOIN_SECONDS", 0.2)

    def train():
        with light() as prof:
            assert list(prof.wrap(range(3))) == [0, 1, 2]
            assert hung.wait(10)

    with pytest.warns(RuntimeWarning, match="the disk does not respond"):
        train()


def test_what_a_disk_takes_late_is_written_with_the_end(recorder, hung, monkeypatch):
    monkeypatch.setattr(module, "_JOIN_SECONDS", 0.2)
    ended = threading.Event()
    recorder.record(RECORD)
    recorder.start()
    assert hung.wait(10)
    recorder.record(RECORD)
    assert recorder.stop(ended.set) is False
    hung.answers.set()
    assert ended.wait(10)
    assert (recorder._writer.path / "events.bin").stat().st_size == 64 + 2 * 32


def test_what_a_hung_disk_does_not_take_is_bounded_and_told(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MOST_RECORDS", 100)
    writer = RankWriter(tmp_path, 0)
    made = Recorder(writer, lambda: None, 60)
    for _ in range(250):
        made.record(RECORD)
    made.flush()
    assert (writer.path / "events.bin").stat().st_size == 64 + 100 * 32
    assert writer.stopped == "events.bin: the disk did not respond for a long time, and the oldest records are lost"
