"""Memory snapshots: plain data is read, and nothing of a pickle is ever looked up, called or believed."""

import pickle
import struct

import pytest
from damage import Hostile
from log_recipes import KIB, block, event, grown, pickled, segment, snapshot

from profilerkit.api import analyze
from profilerkit.errors import UnreadableInputError
from profilerkit.formats import plain_pickle
from profilerkit.formats.plain_pickle import NotPlainError, plain_data
from profilerkit.formats.readers import memory_snapshot
from profilerkit.formats.registry import reader_of


def read(tmp_path, content):
    path = tmp_path / "mem.pickle"
    path.write_bytes(content if isinstance(content, bytes) else pickled(content))
    assert reader_of(path, "log") is memory_snapshot
    return memory_snapshot.read(path)


def refused(tmp_path, content):
    path = tmp_path / "mem.pickle"
    path.write_bytes(content if isinstance(content, bytes) else pickled(content))
    with pytest.raises(UnreadableInputError) as caught:
        memory_snapshot.read(path)
    assert "_dump_snapshot" in caught.value.hint
    return caught.value.cause


PLAIN = [
    *(
        None,
        True,
        False,
        0,
        -1,
        255,
        65_535,
        -(2**31),
        2**40,
        -(2**63),
        1.5,
        float("inf"),
        "",
        "ä" * 300,
        b"x",
        b"y" * 300,
    ),
    *([], [1, [2, [3]]], {}, {"a": {"b": [1.0, None]}, 7: "c"}, (), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4)),
    *(list(range(5000)), {str(number): number for number in range(5000)}, ["a", "a", ("b", "a")], "x" * 70_000),
]


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_plain_data_comes_back_as_it_was(protocol):
    # Protocol 2 has no bytes: it calls a function for them.
    for value in PLAIN:
        if protocol > 2 or not isinstance(value, bytes):
            assert plain_data(pickle.dumps(value, protocol)) == value


def test_a_list_that_is_there_twice_is_one_list():
    shared = ["frame"]
    first, second = plain_data(pickle.dumps([shared, shared]))
    assert first is second


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_a_pickle_that_calls_something_is_refused_and_nothing_runs(tmp_path, protocol):
    target = tmp_path / "made"
    content = pickle.dumps({"segments": [], "device_traces": [[Hostile(target)]]}, protocol)
    assert "names a class or a function" in refused(tmp_path, content)
    assert not target.exists()
    pickle.loads(content)  # what it would have done
    assert target.is_dir()


@pytest.mark.parametrize(
    "code",
    [
        *(pickle.GLOBAL + b"os\nsystem\n", pickle.INST + b"os\nsystem\n", pickle.STACK_GLOBAL, pickle.REDUCE),
        *(pickle.OBJ, pickle.NEWOBJ, pickle.NEWOBJ_EX, pickle.BUILD, pickle.EXT1 + b"\1", pickle.PERSID + b"1\n"),
        *(pickle.BINPERSID, pickle.EXT2 + b"\1\1", pickle.EXT4 + b"\1\1\1\1"),
    ],
)
def test_every_instruction_that_looks_up_or_calls_is_refused(code):
    with pytest.raises(NotPlainError, match="names a class or a function"):
        plain_data(b"\x80\x04" + code + b".")


def nested_key(depth):
    return b"\x80\x04}(K\x01" + b"\x85" * depth + b"K\x01u."


BOMBS = {
    "a text of 2^62 bytes": b"\x80\x04\x8d" + struct.pack("<Q", 1 << 62) + b"x.",
    "bytes of 4 GB": b"\x80\x04B\xff\xff\xff\xffx.",
    "a memo of 4 billion places": b"\x80\x04K\x01r\xff\xff\xff\xff.",
    "a frame of 2^62 bytes": b"\x80\x04\x95" + struct.pack("<Q", 1 << 62) + b"]",
    "a key that is nested a million times": nested_key(1_000_000),
    "a number of 255 bytes": b"\x80\x04\x8a\xff" + b"\x7f" * 255 + b".",
    "an end without a beginning": b"\x80\x04.",
    "a mark that was never set": b"\x80\x04]u.",
    "nothing": b"\x80\x04",
    "a memo that was never written": b"\x80\x04h\x05.",
    "a list as a dict": b"\x80\x04](K\x01K\x02u.",
    "a hundred thousand marks": b"\x80\x04" + b"(" * 100_000 + b".",
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_bomb_is_refused_or_harmless(tmp_path, bomb):
    assert refused(tmp_path, BOMBS[bomb])


def test_lists_within_lists_are_not_followed_without_end(tmp_path, monkeypatch):
    """A pickle of a kilobyte in which 200 segments are one, and each of its 200 blocks one."""
    monkeypatch.setattr(memory_snapshot, "MOST_ENTRIES", 10_000)
    held = {**segment(0), "total_size": 1, "blocks": [block(0, 1)] * 200}
    assert "more than 10,000 entries" in refused(tmp_path, {"segments": [held] * 200, "device_traces": []})


def test_too_many_containers_and_instructions_are_refused(monkeypatch):
    monkeypatch.setattr(plain_pickle, "MOST_CONTAINERS", 10)
    with pytest.raises(NotPlainError, match="more than 10 lists"):
        plain_data(pickle.dumps([[] for _ in range(20)]))
    monkeypatch.setattr(plain_pickle, "MOST_INSTRUCTIONS", 10)
    with pytest.raises(NotPlainError, match="more than 10 instructions"):
        plain_data(pickle.dumps(list(range(20))))


def test_a_file_larger_than_the_limit_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(memory_snapshot, "MOST_BYTES", 100)
    with pytest.raises(UnreadableInputError, match="too large"):
        read(tmp_path, grown())


def test_a_snapshot_is_its_segments_and_events_by_device(tmp_path):
    log = read(tmp_path, grown(oom=True))
    (device,) = log.devices
    assert (device.device, len(device.segments), len(device.events)) == (0, 1, 5)
    assert [one.in_use for one in device.segments[0].blocks] == [True, False, True, False]
    assert device.events[0].frames == (
        "/opt/venv/site-packages/torch/nn/modules/linear.py:125 forward",
        "/data/job/train.py:33 step",
    )
    assert (device.events[-1].action, device.events[-1].free_bytes) == ("oom", KIB)
    assert device.events[1].time_ns == 1_000_000


def test_a_list_of_segments_alone_has_no_history(tmp_path):
    log = read(tmp_path, [segment(0, block(0, 512), device=3)])
    assert [(device.device, device.events) for device in log.devices] == [(3, ())]


@pytest.mark.parametrize("content", [{"a": 1}, [], 7, "text", None, [1, 2]])
def test_another_pickle_is_no_snapshot(tmp_path, content):
    assert "without segments" in refused(tmp_path, content)
    assert reader_of(tmp_path / "mem.pickle", "log") is None
    with pytest.raises(UnreadableInputError) as caught:
        analyze(tmp_path / "mem.pickle")
    assert caught.value.cause == "it is a pickle, and no CUDA memory snapshot"


def test_damaged_records_are_counted_and_the_others_read(tmp_path):
    held = segment(0, block(0, 512))
    held["blocks"].append({"size": "x"})
    document = snapshot([held, 7, {"total_size": -1}], [event("alloc", 0, 512)])
    document["device_traces"][0] += [None, {"action": 3, "size": 1}, {"action": "alloc", "size": True}]
    log = read(tmp_path, document)
    assert log.notes == ("6 of the snapshot's records are damaged and were left out.",)
    assert len(log.devices[0].events) == 1
