"""Files that lie elsewhere: fetched whole or not at all, read as if they were here, and named by their URL."""

import io
import pickle
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import pytest

import profilerkit
from profilerkit.cli import main
from profilerkit.errors import UnreadableInputError, UsageError
from profilerkit.formats import remote
from profilerkit.formats.remote import fetched, is_remote, listed, shown
from profilerkit.summaries.files import SUFFIX

fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed: pip install fsspec")

STEP = """{{"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#{n}", "pid": 1, "tid": 1, "ts": {at},
"dur": 1000}}, {{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": {op}, "dur": 800}}"""


def trace(rank):
    events = ",\n".join(STEP.format(n=n, at=1000 * n, op=1000 * n + 100) for n in range(1, 9))
    about = f'"distributedInfo": {{"backend": "nccl", "rank": {rank}, "world_size": 2}}'
    return f'{{"schemaVersion": 1, {about}, "deviceProperties": [], "traceEvents": [{events}]}}'


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """Two traces in memory, and in a zip file there; the working directory and that of copies are empty."""
    for name in ("here", "copies"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "copies"))
    memory = fsspec.filesystem("memory")
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for rank in (0, 1):
            archive.writestr(f"traces/rank{rank}.json", trace(rank))
            memory.pipe(f"/bucket/run/rank{rank}.json", trace(rank).encode())
    memory.pipe("/bucket/traces.zip", packed.getvalue())
    yield memory
    memory.rm("/bucket", recursive=True)


def files_in(memory):
    return sorted(memory.find("/bucket"))


def copies_left(tmp_path):
    return list((tmp_path / "copies").iterdir())


@pytest.mark.parametrize(
    ("url", "ranks"),
    [
        ("memory://bucket/run/rank1.json", [1]),
        ("zip://traces/rank0.json::memory://bucket/traces.zip", [0]),
        ("memory://bucket/run", [0, 1]),
        ("memory://bucket/run/*.json", [0, 1]),
        ("zip://traces/*::memory://bucket/traces.zip", [0, 1]),
    ],
)
def test_a_url_is_analysed_and_nothing_of_it_stays(elsewhere, tmp_path, url, ranks):
    before = files_in(elsewhere)
    report = profilerkit.analyze(url)
    assert list(report.run.ranks) == ranks
    assert report.run.name == url
    assert files_in(elsewhere) == before
    assert copies_left(tmp_path) == []


def test_the_report_lies_in_the_working_directory_under_its_url(elsewhere, tmp_path, capsys):
    assert main(["analyze", "memory://bucket/run/rank0.json", "-f", "json,html"]) == 0
    assert sorted(path.name for path in Path().iterdir()) == ["rank0.report.html", "rank0.report.json"]
    assert profilerkit.load("rank0.report.json").run.name == "memory://…/rank0.json"
    assert str(tmp_path) not in Path("rank0.report.html").read_text("utf-8") + capsys.readouterr().err
    assert copies_left(tmp_path) == []


def test_two_urls_are_compared(elsewhere, tmp_path, capsys):
    words = ["memory://bucket/run/rank0.json", "zip://traces/rank0.json::memory://bucket/traces.zip"]
    assert main(["diff", *words, "-f", "json", "-o", "-"]) == 0
    said = capsys.readouterr().out
    shown = ["memory://…/rank0.json", "zip://…/traces.zip"]
    assert all(f'"name":"{word}"' in said.replace('": "', '":"') for word in shown)
    assert copies_left(tmp_path) == []


def test_summaries_of_remote_traces_lie_here_and_are_skipped_until_the_trace_changes(elsewhere, tmp_path, capsys):
    before = files_in(elsewhere)
    words = ["map", "memory://bucket/run", "-o", "summaries", "--engine", "inline"]
    assert main(words) == 0
    assert "wrote 2 summaries in summaries" in capsys.readouterr().err
    assert main(words) == 0
    assert "2 were there already" in capsys.readouterr().err
    elsewhere.pipe("/bucket/run/rank1.json", trace(1).replace("aten::mm", "aten::addmm").encode())
    assert main(words) == 0
    assert "wrote 1 summary" in capsys.readouterr().err
    assert files_in(elsewhere) == before
    assert len(list(Path("summaries").glob(f"*{SUFFIX}"))) == 2
    assert copies_left(tmp_path) == []
    for summary in Path("summaries").iterdir():
        elsewhere.put(str(summary), f"/bucket/summaries/{summary.name}")
    assert main(["reduce", "memory://bucket/summaries", "-f", "json"]) == 0
    assert list(profilerkit.load("report.json").run.ranks) == [0, 1]


def test_shards_of_remote_traces_are_all_of_them(elsewhere):
    for index in range(3):
        main(["map", "memory://bucket/run/*.json", "-o", "summaries", "--engine", "inline", "--shard", f"{index}/3"])
    assert len(list(Path("summaries").iterdir())) == 2


def test_nothing_is_written_beside_a_remote_trace(elsewhere, capsys):
    before = files_in(elsewhere)
    assert main(["map", "memory://bucket/run", "--engine", "inline"]) == 2
    assert "-o summaries/" in capsys.readouterr().err
    assert main(["map", "memory://bucket/run", "-o", "memory://bucket/out", "--engine", "inline"]) == 2
    assert "a local directory" in capsys.readouterr().err
    with pytest.raises(UsageError, match="no directory"):
        profilerkit.summarise("memory://bucket/run/rank0.json")
    assert profilerkit.summarise("memory://bucket/run/rank0.json", Path()).is_file()
    assert files_in(elsewhere) == before


def test_an_error_names_the_url_and_not_the_copy(elsewhere, tmp_path):
    elsewhere.pipe("/bucket/no_trace.json", b"nothing")
    with pytest.raises(UnreadableInputError) as raised:
        profilerkit.analyze("memory://bucket/no_trace.json")
    assert "memory://bucket/no_trace.json" in str(raised.value)
    assert str(tmp_path) not in str(raised.value)
    assert copies_left(tmp_path) == []


@pytest.mark.parametrize(
    "url", ["memory://bucket/none.json", "memory://bucket/run/none*", "zip://a::memory://none.zip"]
)
def test_what_is_not_there_is_said(elsewhere, url):
    with pytest.raises(UnreadableInputError, match=re.escape(url)):
        profilerkit.analyze(url)


def test_without_fsspec_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(UsageError) as raised, fetched(["s3://bucket/a.json"]):
        pass
    assert (raised.value.cause, raised.value.hint) == ("fsspec is not installed", "pip install fsspec")


def test_without_the_package_of_a_protocol_the_error_says_which(monkeypatch):
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(UsageError) as raised, fetched(["zip://a.json::s3://bucket/a.zip"]):
        pass
    assert raised.value.hint == "pip install s3fs"


def test_what_a_file_system_fails_with_is_told_without_credentials(monkeypatch, elsewhere):
    def fail(*_args, **_options):
        raise RuntimeError("no access to https://jo:secret@host/a?sig=secret")

    with monkeypatch.context() as patched:
        patched.setattr(type(elsewhere), "info", fail)
        with pytest.raises(UnreadableInputError) as raised:
            profilerkit.analyze("memory://bucket/run/rank0.json")
    assert "RuntimeError: no access to https://***@host/a?***" in raised.value.cause


@pytest.mark.parametrize(("says", "limit"), [(None, "MOST_FILE_BYTES"), (10, "MOST_FILE_BYTES"), (None, "disk")])
def test_too_large_a_file_is_not_fetched_whatever_it_says_of_its_size(monkeypatch, elsewhere, tmp_path, says, limit):
    if limit == "disk":
        monkeypatch.setattr(remote, "_usable_bytes", lambda _room: 0)
    else:
        monkeypatch.setattr(remote, limit, 100)
    monkeypatch.setattr(remote, "_size", lambda _about: says)
    with pytest.raises(UnreadableInputError, match="too large") as raised:
        profilerkit.analyze("memory://bucket/run/rank0.json")
    assert "TMPDIR" in raised.value.hint
    assert copies_left(tmp_path) == []


def test_a_step_up_in_an_archive_does_not_leave_the_directory_of_copies(elsewhere, tmp_path):
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("../../../evil.json", "x")
        archive.writestr("a.json", trace(0))
    elsewhere.pipe("/bucket/evil.zip", packed.getvalue())
    with fetched(["zip://::memory://bucket/evil.zip"]) as copies:
        held = [path for path in (tmp_path / "copies").rglob("*") if path.is_file()]
        assert held
        assert all(copies.paths[0] in path.parents for path in held)
    assert list(tmp_path.rglob("evil.json")) == []


def test_credentials_are_not_shown():
    for url in (
        "https://jo:pw@host/a.json",
        "sftp://jo@host/a.json",
        "https://host/a?X-Amz-Signature=pw",
        "zip://a::s3://jo:pw@b/c",
        "https://host/a?st=2022-05-05T16:51:14Z&sig=pw",
        "https://host/a#access_token=pw",
        "https://jo:x@pw@host/a",
        "https://jo@x:x/pw@host/a",
        "s3://jo:x/pw@b/c",
        "zip://a?x=:pw::https://jo:pw@host/c?x=1::pw",
    ):
        assert is_remote(url)
        assert "pw" not in shown(url)
        assert "jo" not in shown(url)


@pytest.mark.parametrize(
    "url", ["https://host:8080/a@b.json", "zip://a.json::s3://b/c@d.zip", "https://[::1]:80/a", "gs://b/c:d/e.json"]
)
def test_what_opens_nothing_is_shown(url):
    assert shown(url) == url


def test_a_file_that_is_listed_goes_to_another_process(elsewhere):
    found = listed("zip://traces/*::memory://bucket/traces.zip")
    assert [file.url for file in found] == [f"zip://traces/rank{n}.json::memory://bucket/traces.zip" for n in (0, 1)]
    again = pickle.loads(pickle.dumps(found[1]))
    with fetched([again]) as copies:
        assert copies.paths[0].read_text("utf-8") == trace(1)


def test_the_package_does_not_import_fsspec():
    program = "import sys; import profilerkit.api, profilerkit.formats.remote; sys.exit('fsspec' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
