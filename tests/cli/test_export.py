"""``profilerkit export -f perfetto``: a document that Perfetto reads, with our tracks, and without names of people."""

import gzip
import json
from collections import Counter, defaultdict

import pytest

from profilerkit.cli import main
from tests.reading.test_schedules import write_window
from tests.recipes import Log, host_training, training, write_run


def exported(capsys, path, *arguments):
    assert main(["export", *map(str, arguments), "-f", "perfetto", "-o", str(path)]) == 0
    capsys.readouterr()
    return json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]


def tracks_of(events):
    return {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}


def on(events, name):
    tracks = tracks_of(events)
    return [e for e in events if e["ph"] != "M" and tracks[e["pid"], e["tid"]] == name]


def require_valid(events):
    """Perfetto's rules: every track is named, slices of a track nest, no time is negative, arrows have both ends."""
    tracks, slices = tracks_of(events), defaultdict(list)
    for event in events:
        assert {"pid", "ph", "name"} <= event.keys()
        if event["ph"] == "M":
            continue
        assert (event["pid"], event["tid"]) in tracks
        assert event["ts"] >= 0
        if event["ph"] == "X":
            assert event["dur"] >= 0
            start = round(event["ts"] * 1000)
            slices[event["pid"], event["tid"]].append((start, -round(event["dur"] * 1000)))
    for known in slices.values():
        ends = []
        for start, length in sorted(known):
            while ends and ends[-1] <= start:
                ends.pop()
            assert not ends or start - length <= ends[-1]
            ends.append(start - length)
    arrows = Counter((event["id"], event["ph"]) for event in events if event["ph"] in "sf")
    assert {identity for identity, _ in arrows} == {identity for identity, phase in arrows if phase == "s"}
    assert set(arrows.values()) <= {1}


def test_every_event_and_our_own_tracks_are_written(tmp_path, capsys):
    trace = training(8, fetch=3_000)
    events = exported(capsys, tmp_path / "out.json.gz", trace.write(tmp_path / "trace.json"))
    require_valid(events)
    assert sum(event["ph"] == "X" for event in on(events, "Stream 7")) == 80
    assert [event["name"] for event in on(events, "Steps")][:2] == ["Step 0, warm-up", "Step 1, steady"]
    idle = on(events, "Device idle, by cause")
    assert any(event["name"].startswith("Input wait") and event["dur"] == 3_000 for event in idle)
    (first, *_) = on(events, "Findings")
    assert first["ph"] == "i"
    assert first["args"]["why"]
    assert Counter(event["ph"] for event in events)["s"] == 80


def test_ranks_are_processes(tmp_path, capsys):
    for rank in range(2):
        training(comm=50, rank=rank, world_size=2).write(tmp_path / f"rank{rank}.json")
    events = exported(capsys, tmp_path / "out.json.gz", tmp_path)
    require_valid(events)
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert names == {0: "Rank 0", 1: "Rank 1"}


def test_events_that_overlap_on_one_stream_get_tracks_of_their_own(tmp_path, capsys):
    trace = training()
    trace.kernel(1_050, 1_150, name="beside")
    events = exported(capsys, tmp_path / "out.json.gz", trace.write(tmp_path / "trace.json"))
    require_valid(events)
    assert [event["name"] for event in on(events, "Stream 7 (2)") if event["ph"] == "X"] == ["beside"]


def test_without_a_device_there_is_no_idle_track(tmp_path, capsys):
    events = exported(capsys, tmp_path / "out.json.gz", host_training().write(tmp_path / "trace.json"))
    require_valid(events)
    assert on(events, "Parts of the step")
    assert "Device idle, by cause" not in tracks_of(events).values()


def test_homes_are_redacted_unless_asked_for(tmp_path, capsys):
    trace = training()
    trace.annotation("/home/alice/secret/train.py", 1_010, 1_020)
    path = trace.write(tmp_path / "trace.json")
    assert "alice" not in json.dumps(exported(capsys, tmp_path / "out.json.gz", path))
    assert "alice" in json.dumps(exported(capsys, tmp_path / "out.json.gz", path, "--no-redact"))


def test_the_file_lies_beside_the_trace_or_in_the_run(tmp_path, capsys):
    training().write(tmp_path / "trace.json")
    assert main(["export", str(tmp_path / "trace.json")]) == 0
    assert (tmp_path / "trace.perfetto.json.gz").is_file()
    assert "ui.perfetto.dev" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["trace.json", "missing/out.json.gz"])
def test_a_place_that_cannot_be_written_is_an_error(tmp_path, capsys, name):
    training().write(tmp_path / "trace.json")
    before = (tmp_path / "trace.json").read_bytes()
    assert main(["export", str(tmp_path / "trace.json"), "-o", str(tmp_path / name)]) == 2
    assert (tmp_path / "trace.json").read_bytes() == before
    assert capsys.readouterr().err.startswith("error:")


def test_a_run_without_a_trace_is_an_error(tmp_path, capsys):
    write_run(tmp_path / "run", [Log().steps(40, 10_000)])
    assert main(["export", str(tmp_path / "run")]) == 2
    assert "holds no trace" in capsys.readouterr().err


def test_all_windows_of_a_process_are_written(tmp_path, capsys):
    for first in (4, 1_013):
        write_window(tmp_path, first)
    events = exported(capsys, tmp_path / "out.json.gz", tmp_path)
    require_valid(events)
    assert sum(event["name"] == "aten::mm" for event in events) == 10
    assert len(on(events, "Steps")) == 10
