"""Compressed files: told by content, joined from members, and kept up to their damaged spot."""

import gzip
import zlib

import pytest
from trace_recipes import FIRST_US, N_EVENTS, document, event_text, write

from profilerkit.formats import blocks
from profilerkit.formats.registry import read_trace

CONTENT = document([event_text(index) for index in range(N_EVENTS)]).encode()
STAMPS = [FIRST_US * 1000 + 1 + index * 1000 for index in range(N_EVENTS)]


@pytest.fixture(params=[256, 16 * 1024], ids=["256B", "16KiB"], autouse=True)
def feed_bytes(request, monkeypatch):
    monkeypatch.setattr(blocks, "FEED_BYTES", request.param)


def read(tmp_path, content, name="trace.json.gz"):
    return read_trace(write(tmp_path, content, name))


def inflatable_events(packed):
    """How many whole events can be inflated, byte by byte, from the beginning of a compressed text."""
    inflater = zlib.decompressobj(wbits=31)
    held = b"".join(inflater.decompress(packed[index : index + 1]) for index in range(len(packed)))
    return held.count(b"    }\n  }")


@pytest.mark.parametrize("name", ["trace.json.gz", "trace.json", "trace.json.tmp", "trace"])
@pytest.mark.parametrize("compress", [gzip.compress, bytes], ids=["gzip", "plain"])
def test_the_name_does_not_matter(tmp_path, name, compress):
    columns = read(tmp_path, compress(CONTENT), name)
    assert columns.ts_ns.tolist() == STAMPS
    assert columns.damage.notes == ()


@pytest.mark.parametrize("padding", [b"", b"\0" * 700], ids=["", "zeros"])
def test_members_are_joined(tmp_path, padding):
    half = len(CONTENT) // 2
    members = [gzip.compress(part) for part in (CONTENT[:half], b"", CONTENT[half:])]
    columns = read(tmp_path, padding.join(members) + padding)
    assert columns.ts_ns.tolist() == STAMPS
    assert (columns.damage.truncated, columns.damage.notes) == (False, ())


def test_garbage_after_the_end_is_noted(tmp_path):
    columns = read(tmp_path, gzip.compress(CONTENT) + b"garbage" * 100)
    assert columns.ts_ns.tolist() == STAMPS
    assert columns.damage.notes == ("bytes that are not gzip follow the compressed data and were ignored",)
    assert not columns.damage.truncated


@pytest.mark.parametrize("share", [0.05, 0.3, 0.6, 0.99])
def test_early_end_keeps_every_event_before_it(tmp_path, share):
    packed = gzip.compress(CONTENT)
    packed = packed[: int(len(packed) * share)]
    columns = read(tmp_path, packed)
    assert columns.ts_ns.tolist() == STAMPS[: inflatable_events(packed)]
    assert columns.damage.truncated
    assert columns.damage.dropped <= 1
    assert "the compressed data ends early" in columns.damage.notes


@pytest.mark.parametrize("lost", [1, 4, 8])
def test_missing_checksum_loses_no_event_and_cuts_nothing_off(tmp_path, lost):
    columns = read(tmp_path, gzip.compress(CONTENT)[:-lost])
    assert columns.ts_ns.tolist() == STAMPS
    assert columns.damage.notes == ("the compressed data ends early",)
    assert not columns.damage.truncated


def test_without_the_end_of_its_document_a_file_is_cut_off_though_no_event_is_missing(tmp_path):
    end = CONTENT.rindex(b"]")
    columns = read(tmp_path, gzip.compress(CONTENT[:end])[:-8])
    assert columns.ts_ns.tolist() == STAMPS
    assert columns.damage.truncated


def test_wrong_checksum_is_flagged_and_loses_no_event(tmp_path):
    packed = bytearray(gzip.compress(CONTENT))
    packed[-6] ^= 1
    columns = read(tmp_path, bytes(packed))
    assert columns.ts_ns.tolist() == STAMPS
    assert ["checksum" in note for note in columns.damage.notes] == [True]


@pytest.mark.parametrize("damage", [b"\xff" * 40, b"\0" * 40, b"\x55" * 400], ids=["ones", "zeros", "bits"])
def test_damaged_spot_keeps_every_event_before_it(tmp_path, damage):
    packed = bytearray(gzip.compress(CONTENT))
    middle = len(packed) // 2
    packed[middle : middle + len(damage)] = damage
    held = inflatable_events(bytes(packed[:middle]))
    assert held > 1000
    columns = read(tmp_path, bytes(packed))
    assert columns.ts_ns[:held].tolist() == STAMPS[:held]
    assert any("damaged" in note or "checksum" in note for note in columns.damage.notes)


def test_second_member_that_is_damaged_keeps_the_first(tmp_path):
    half = len(CONTENT) // 2
    second = bytearray(gzip.compress(CONTENT[half:]))
    second[10:60] = b"\xff" * 50
    columns = read(tmp_path, gzip.compress(CONTENT[:half]) + bytes(second))
    held = CONTENT[:half].count(b"    }\n  }")
    assert columns.ts_ns.tolist() == STAMPS[:held]
    assert columns.damage.truncated
