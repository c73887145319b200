"""What files that lie elsewhere are called here: whatever is in a URL, never with what opens it."""

import argparse
import os
import tempfile
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

import profilerkit
from profilerkit.cli import main
from profilerkit.cli.analyze import _next
from profilerkit.errors import UsageError
from profilerkit.formats.remote import RemoteFile, fetched, listed
from profilerkit.summaries.files import SUFFIX, place_of
from tests.recipes import training
from tests.report import samples

fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed: pip install fsspec")

SECRET = "hunter2"


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty working directory, and another one for copies."""
    for name in ("here", "copies", "served"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "copies"))
    return tmp_path / "here"


@pytest.fixture
def memory(here):
    system = fsspec.filesystem("memory")
    yield system
    for place in system.ls("/", detail=False):
        system.rm(place, recursive=True)


@pytest.fixture
def server(here):
    """The address of two traces on a web server that pays no heed to queries, and what it is asked."""
    pytest.importorskip("aiohttp", reason="aiohttp is not installed")
    served = here.parent / "served" / "run"
    served.mkdir()
    for rank in (0, 1):
        training(6, kernels=4, rank=rank).write(served / f"rank{rank}.json")
    asked = []

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, *_words):
            asked.append((self.command, self.path))

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(served.parent))) as listening:
        threading.Thread(target=listening.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{listening.server_port}/run", asked
        listening.shutdown()


@pytest.mark.parametrize("signed", [f"?sig={SECRET}", f"?st=16:51:14Z&sig=a/{SECRET}", f"#access_token={SECRET}"])
def test_what_signs_a_url_is_in_no_name_and_no_report(server, here, capsys, signed):
    address, _ = server
    url = f"{address}/rank0.json{signed}"
    (here / "shared").mkdir()
    assert main(["analyze", url, "-f", "html,json,md,text", "--no-redact"]) == 0
    assert main(["analyze", url, "-f", "html,json", "-o", "shared"]) == 0
    assert main(["map", url, "-o", "summaries", "--engine", "inline"]) == 0
    assert main(["reduce", "summaries", "-f", "json", "-o", "shared"]) == 0
    written = [path for path in here.rglob("*") if path.is_file()]
    assert sorted(path.name for path in here.glob("*.*")) == [
        f"rank0.report.{kind}" for kind in ("html", "json", "md", "txt")
    ]
    assert profilerkit.load("rank0.report.json").run.files == ("rank0.json",)
    assert [path.name[:11] for path in here.rglob(f"*{SUFFIX}")] == ["rank0.json."]
    assert len(written) == 4 + 2 + 1 + 1
    for path in written:
        assert SECRET not in path.name
        assert SECRET.encode() not in path.read_bytes()
    said = capsys.readouterr()
    assert SECRET not in said.out + said.err


def test_traces_that_only_a_query_tells_apart_have_a_summary_each(server, here):
    address, _ = server
    words = [f"{address}/rank0.json?id={number}" for number in (1, 2)]
    assert main(["map", *words, "-o", "summaries", "--engine", "inline"]) == 0
    assert len(list(here.rglob(f"*{SUFFIX}"))) == 2


def test_archives_with_files_of_one_name_have_a_summary_each():
    traces = [RemoteFile(None, "a.json", f"zip://a.json::s3://b/{name}.zip") for name in "cd"]
    assert len({place_of(trace, Path()) for trace in traces}) == 2


def test_a_file_is_read_once_and_a_page_that_ends_in_a_slash_lists_others(server):
    address, asked = server
    with fetched([f"{address}/rank0.json"]):
        pass
    assert [command for command, _ in asked].count("GET") == 1
    assert [file.name for file in listed(f"{address}/")] == ["rank0.json", "rank1.json"]
    with fetched([f"{address}/"]) as copies:
        assert sorted(path.name for path in copies.paths[0].iterdir()) == ["rank0.json", "rank1.json"]


@pytest.mark.parametrize("file", ["x[1].json", "x*.json", "x?.json", "run?1/a.json"])
def test_a_name_may_look_like_a_pattern(memory, file):
    memory.pipe(f"/bucket/{file}", b"{}")
    memory.pipe("/bucket/x1.json", b"other")
    with fetched([f"memory://bucket/{file}"]) as copies:
        assert copies.paths[0].read_bytes() == b"{}"
    (found,) = listed(f"memory://bucket/{file.partition('/')[0]}")
    assert found.path == f"/bucket/{file}"


def test_long_names_are_cut_and_keep_both_ends(memory, here):
    text = training(6, kernels=4, rank=0).write(here / "trace.json").read_bytes()
    name = f"host0.{'é' * 200}.pt.trace.json"
    memory.pipe(f"/bucket/{name}", text)
    memory.pipe(f"/bucket/{name.replace('host0', 'host1')}", text)
    url = f"memory://bucket/{name}"
    assert profilerkit.analyze(url).run.name == url
    assert main(["map", "memory://bucket", "-o", "summaries", "--engine", "inline"]) == 0
    kept = sorted(path.name for path in here.rglob(f"*{SUFFIX}"))
    assert [word[:6] for word in kept] == ["host0.", "host1."]
    assert all(".pt.trace.json." in word and len(os.fsencode(word)) < 200 for word in kept)


def test_errors_of_summaries_tell_no_credentials(memory):
    for rank in (0, 1):
        memory.pipe(f"/jo:{SECRET}@bucket/rank{rank}.json", b"{}")
    for url in (f"memory://jo:{SECRET}@bucket", f"memory://jo:{SECRET}@bucket/*.json"):
        with pytest.raises(UsageError, match="is not a trace") as raised:
            profilerkit.summarise(url, Path())
        assert SECRET not in str(raised.value)
    assert SECRET not in repr(listed(f"memory://jo:{SECRET}@bucket"))
    trace = training(6, kernels=4, rank=0).write(Path("trace.json"))
    memory.pipe(f"/jo:{SECRET}@bucket/rank0.json", trace.read_bytes())
    with pytest.raises(UsageError, match="cannot summarise") as raised:
        profilerkit.summarise(f"memory://jo:{SECRET}@bucket/rank0.json", Path("missing"))
    assert SECRET not in str(raised.value)


def test_the_next_command_tells_no_credentials():
    words = argparse.Namespace(open=False, verb="analyze", paths=[f"https://host/a.json?sig={SECRET}"])
    said = _next(samples.balanced(), (), words)
    assert "https://host/a.json" in said
    assert SECRET not in said
