"""Which reader gets a file, and what is said of a file that none can read."""

import doctest
import importlib
import os
from importlib.metadata import EntryPoint

import pytest
from trace_recipes import plain, span, write

from profilerkit.errors import UnreadableInputError, UsageError
from profilerkit.trace import readers
from profilerkit.trace.readers import read_trace


class PlainTextReader:
    """A reader as a third party would register it."""

    name = "plaintext"

    def sniff(self, head):
        return head.startswith(b"TRACE")

    def read(self, path, *, wanted, strict):
        return f"read {path.name}"


def register(monkeypatch, loaded):
    """Register ``PlainTextReader``; names it in ``loaded`` when it is imported."""

    class Registered(EntryPoint):
        def load(self):
            loaded.append(self.name)
            return PlainTextReader()

    def found(*, group):
        assert group == "profilerkit.readers"
        return [Registered("plaintext", "elsewhere:reader", group)]

    monkeypatch.setattr(readers, "entry_points", found)


def test_third_party_reader_gets_what_no_built_in_reader_claims(tmp_path, monkeypatch):
    loaded = []
    register(monkeypatch, loaded)
    assert read_trace(write(tmp_path, "TRACE 1")) == "read trace.json"
    assert loaded == ["plaintext"]


def test_third_party_reader_is_not_loaded_for_a_file_that_a_built_in_reader_claims(tmp_path, monkeypatch):
    loaded = []
    register(monkeypatch, loaded)
    assert len(read_trace(str(write(tmp_path, plain([span()]))))) == 1
    assert loaded == []


def test_file_that_no_reader_claims_names_the_known_formats(tmp_path, monkeypatch):
    register(monkeypatch, [])
    with pytest.raises(UnreadableInputError) as caught:
        read_trace(write(tmp_path, b"\x7fELF"))
    assert "kineto" in caught.value.hint


@pytest.mark.parametrize(("text", "told"), [("null", True), ("12.5\n", True), ('"text"', True), ("nullx", False)])
def test_a_single_value_is_called_json(tmp_path, text, told):
    with pytest.raises(UnreadableInputError) as caught:
        read_trace(write(tmp_path, text))
    assert (caught.value.cause == "it is JSON, but a single value instead of a trace") is told


def test_strict_says_how_to_read_what_it_refused(tmp_path):
    with pytest.raises(UnreadableInputError) as caught:
        read_trace(write(tmp_path, plain([span()])[:-3]), strict=True)
    assert caught.value.hint.startswith("read it without --strict")


def test_every_reader_has_a_name_and_two_functions():
    assert [reader.name for reader in readers.READERS] == ["kineto", "nsys", "xplane"]
    assert all(callable(reader.sniff) and callable(reader.read) for reader in readers.READERS)


@pytest.mark.parametrize("head", [b"", b"\0", b"\xff", b"{", b"[", b"\x1f\x8b", b'{"traceEvents', b"\n", b"\n\xff\x12"])
def test_sniffing_any_bytes_never_raises(head):
    assert all(reader.sniff(head) in (True, False) for reader in readers.READERS)


def test_missing_file_is_a_usage_error(tmp_path):
    with pytest.raises(UsageError, match="does not exist"):
        read_trace(tmp_path / "none.json")


def test_directory_is_refused(tmp_path):
    with pytest.raises(UnreadableInputError, match="is a directory"):
        read_trace(tmp_path)


def test_pipe_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UnreadableInputError, match="is not a file") as caught:
        read_trace(tmp_path / "pipe")
    assert "pipe" in caught.value.cause
    assert caught.value.hint


def test_file_that_cannot_be_opened_is_refused_with_the_system_s_reason(tmp_path, monkeypatch):
    path = write(tmp_path, plain([span()]))

    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("profilerkit.trace.blocks.BlockSource.beginning", refuse)
    with pytest.raises(UnreadableInputError) as caught:
        read_trace(path)
    assert caught.value.cause == "Permission denied"
    assert caught.value.hint


@pytest.mark.parametrize(
    "module",
    ["clocks", "strings", "links", "kineto.arguments", "kineto.numbers", "nsys.database", "protobuf", "xla"],
)
def test_examples_in_docstrings_hold(module):
    results = doctest.testmod(importlib.import_module(f"profilerkit.trace.{module}"))
    assert results.attempted > 0
    assert results.failed == 0
