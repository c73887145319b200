"""``scripts/benchmark_speed``: the base trace, its growth, and a small run of the whole script."""

import gzip
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from profilerkit.formats.registry import read_trace
from tests.once import made_once

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = ROOT / "scripts"
BASE = ROOT / "tests" / "data" / "speed_base.json.gz"


@pytest.fixture(scope="module")
def parts():
    sys.path.insert(0, str(SCRIPTS))
    try:
        from speed_benchmark import growth, recipe, results

        yield {"growth": growth, "recipe": recipe, "results": results}
    finally:
        sys.path.remove(str(SCRIPTS))


@pytest.fixture(scope="module")
def base(parts):
    return parts["growth"].read_base(BASE)


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """The script run once on two tiny traces."""

    def make(out):
        command = [sys.executable, SCRIPTS / "benchmark_speed", "--sizes", "1,7", "--rounds", "1", "--ours-only"]
        subprocess.run([*command, "--out", out], check=True, capture_output=True, cwd=ROOT)

    return made_once(tmp_path_factory, "speed", make)


def test_the_committed_base_is_what_the_recipe_writes(parts, base):
    assert base == parts["recipe"].base_trace()


def test_the_base_has_the_shape_of_a_real_trace(base):
    events = json.loads(base)["traceEvents"]
    kinds = {(event["ph"], event.get("cat")) for event in events}
    assert {("X", "kernel"), ("X", "cuda_runtime"), ("X", "cpu_op"), ("s", "ac2g"), ("f", "fwdbwd")} <= kinds
    assert ("i", "cpu_instant_event") in kinds
    names = {event["name"] for event in events}
    assert {"ProfilerStep#10", "Optimizer.step#AdamW.step", "record_param_comms", "[memory]"} <= names
    assert 200 <= len(base) / len(events) <= 600


def test_a_grown_trace_goes_on_where_its_copy_ended(parts, base, tmp_path):
    grown = tmp_path / "grown.json"
    count = parts["growth"].grow(base, 3 * len(base), grown)
    events, small = json.loads(grown.read_text("utf-8"))["traceEvents"], json.loads(base)["traceEvents"]
    assert count == len(events) == 3 * len(small)
    for key in ("correlation", "External id", "Sequence number"):
        of = [[e["args"][key] for e in part if key in e.get("args", {})] for part in (small, events)]
        assert len(set(of[1])) == 3 * len(set(of[0]))
    steps = [event["name"] for event in events if event["name"].startswith("ProfilerStep#")]
    assert steps == [f"ProfilerStep#{number}" for number in range(10, 19)]
    copies = [[e["ts"] for e in events[i : i + len(small)] if e["ph"] == "X"] for i in range(0, count, len(small))]
    assert max(copies[0]) < min(copies[1])
    assert max(copies[1]) < min(copies[2])
    assert len(read_trace(grown)) == 3 * sum(event["ph"] == "X" for event in small)


def test_a_base_in_another_layout_is_refused(parts, tmp_path):
    with pytest.raises(ValueError, match="native layout"):
        parts["growth"].grow('{"traceEvents":[]}', 1_000, tmp_path / "grown.json")


def test_the_script_writes_both_reports(reports):
    document = json.loads((reports / "speed.json").read_text("utf-8"))
    assert document["schema_version"] == 1
    small, large = document["traces"]
    assert large["events"] == 2 * small["events"]
    assert set(large["stages_cpu_s"]) == {"import", "read", "analyze", "html"}
    for trace in document["traces"]:
        assert {row["tool"] for row in trace["measurements"]} == {
            "profilerkit analyze", "profilerkit analyze .gz", "profilerkit reader"
        }  # fmt: skip
        assert all(row["wall_s"]["low"] > 0 and row["peak_bytes"]["median"] > 0 for row in trace["measurements"])
    assert any(note.startswith("Columns cache:") for note in document["notes"])


def test_the_page_loads_nothing_and_names_no_machine(reports):
    page = (reports / "speed.html").read_text("utf-8")
    assert not re.search(r"""(?:src|href)\s*=|@import|url\(|https?://""", page)
    for text in (page, (reports / "speed.json").read_text("utf-8")):
        assert str(ROOT) not in text
        assert str(Path.home()) not in text


def test_a_ratio_pairs_the_runs_of_one_round(parts):
    results = parts["results"]
    cost = sys.modules["speed_benchmark.measure"].Cost
    runs = {"a": [cost(1, 1, 1, 0, ""), cost(4, 1, 1, 0, "")], "b": [cost(2, 1, 1, 0, ""), cost(8, 1, 1, 0, "")]}
    trace = results.Trace(100, 10**8, 10**7, 10**6, runs)
    assert results.ratios(trace, "a", "b", results.wall_s) == [0.5, 0.5]
    assert results.ratios(trace, "a", "missing", results.wall_s) == []


@pytest.mark.parametrize(
    ("events", "analyze", "held"), [(10**6, 0.99, True), (10**6, 1.01, False), (10**6 - 1, 1.01, None)]
)
def test_judging_a_million_events_takes_no_longer_than_reading_them(parts, events, analyze, held):
    stages = {"import": 9.0, "read": 1.0, "analyze": analyze, "html": 9.0}
    trace = parts["results"].Trace(300, 3 * 10**8, 10**7, events, {}, stages)
    found = {check.claim: check.holds for check in parts["results"].checks([trace])}
    assert found.get("analysis and rules, CPU time ÷ reading") is held


def test_the_committed_report_is_complete():
    document = json.loads((ROOT / "reports" / "speed.json").read_text("utf-8"))
    assert [trace["megabytes"] for trace in document["traces"]] == [100, 500, 1000]
    assert {row["tool"] for row in document["tools"]} >= {"profilerkit analyze", "json.load", "orjson", "HTA"}


def test_the_packed_base_stays_small():
    assert BASE.stat().st_size < 400_000
    assert gzip.decompress(BASE.read_bytes())[:1] == b"{"
