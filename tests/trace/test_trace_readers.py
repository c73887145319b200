"""Which reader gets a file, and what is said of a file that none can read."""

import doctest
import importlib
import os
from importlib.metadata import EntryPoint

import pytest
from trace_recipes import plain, span, write

from profilerkit.errors import UnreadableInputError, UsageError
from profilerkit.formats import registry
from profilerkit.formats.directories import named_as_traces
from profilerkit.formats.registry import read_trace
from profilerkit.trace.columns import TraceMeta, trace_columns


@pytest.fixture(autouse=True)
def _readers_of_this_test():
    registry.installed_readers.cache_clear()
    yield
    registry.installed_readers.cache_clear()


class PlainTextReader:
    """A reader as a third party would register it."""

    name = "plaintext"

    def sniff(self, head):
        return head.startswith(b"TRACE")

    def read(self, path, *, wanted, strict):
        return trace_columns(TraceMeta(path=path.name), [], [], name=[], category=[], ts_ns=[], dur_ns=[], thread=[])


def register(monkeypatch, loaded):
    """Register ``PlainTextReader``; names it in ``loaded`` when it is imported."""

    class Registered(EntryPoint):
        def load(self):
            loaded.append(self.name)
            return PlainTextReader()

    def found(*, group):
        assert group == "profilerkit.readers"
        return [Registered("plaintext", "elsewhere:reader", group)]

    monkeypatch.setattr(registry, "entry_points", found)


def test_third_party_reader_gets_what_no_built_in_reader_claims(tmp_path, monkeypatch):
    loaded = []
    register(monkeypatch, loaded)
    assert read_trace(write(tmp_path, "TRACE 1")).meta.path == "trace.json"
    assert loaded == ["plaintext"]


def test_third_party_reader_is_not_loaded_for_a_file_that_a_built_in_reader_claims(tmp_path, monkeypatch):
    loaded = []
    register(monkeypatch, loaded)
    assert len(read_trace(str(write(tmp_path, plain([span()]))))) == 1
    assert loaded == []


def test_a_reader_of_others_finds_its_files_in_a_directory(tmp_path, monkeypatch):
    register(monkeypatch, [])
    monkeypatch.setattr(PlainTextReader, "suffixes", (".acme",), raising=False)
    monkeypatch.setattr(PlainTextReader, "shared_suffixes", (".dat",), raising=False)
    for name, text in (("a.acme", "?"), ("b.dat", "TRACE 1"), ("c.dat", "other"), ("d.txt", "TRACE 1")):
        (tmp_path / name).write_text(text)
    assert [path.name for path in named_as_traces(tmp_path)] == ["a.acme", "b.dat"]


def test_a_reader_that_cannot_be_loaded_costs_nobody_else_anything(tmp_path, monkeypatch, caplog):
    broken = EntryPoint("broken", "no_such_module:reader", registry.ENTRY_POINTS)
    monkeypatch.setattr(registry, "entry_points", lambda group: [broken])
    (tmp_path / "a.json").write_text("{}")
    assert [path.name for path in named_as_traces(tmp_path)] == ["a.json"]
    assert "The reader broken of the package no_such_module was left out: ModuleNotFoundError" in caplog.text


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
    assert [[reader.name for reader in registry.readers_of(kind)] for kind in ("trace", "log", "dump")] == [
        ["kineto", "nsys", "xplane"],
        ["memory snapshot", "nvidia-smi"],
        ["flight recorder dump"],
    ]
    assert all(callable(reader.sniff) and callable(reader.read) for reader in registry.readers_of("trace"))


@pytest.mark.parametrize("head", [b"", b"\0", b"\xff", b"{", b"[", b"\x1f\x8b", b'{"traceEvents', b"\n", b"\n\xff\x12"])
def test_sniffing_any_bytes_never_raises(head):
    readers = [reader for kind in ("trace", "log", "dump") for reader in registry.readers_of(kind)]
    assert all(reader.sniff(head) in (True, False) for reader in readers)


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

    monkeypatch.setattr("profilerkit.formats.blocks.BlockSource.beginning", refuse)
    with pytest.raises(UnreadableInputError) as caught:
        read_trace(path)
    assert caught.value.cause == "Permission denied"
    assert caught.value.hint


@pytest.mark.parametrize(
    "module",
    [
        *("trace.launches", "trace.merged", "trace.classify", "formats.values", "formats.kineto.records"),
        *("formats.nsys.database", "formats.xspace", "formats.xla", "formats.inputs", "formats.remote"),
    ],
)
def test_examples_in_docstrings_hold(module):
    results = doctest.testmod(importlib.import_module(f"profilerkit.{module}"))
    assert results.attempted > 0
    assert results.failed == 0
