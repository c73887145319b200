"""Dumps of flight recorders: plain data is read, and nothing of them is looked up, called or believed."""

import json
import pickle

import pytest
from damage import Hostile
from flight_recipes import START_NS, as_json, as_pickle, call, dump, stepping

from profilerkit.api import analyze
from profilerkit.errors import UnreadableInputError
from profilerkit.formats.readers import flight_recorder, memory_snapshot
from tests.recipes import training


def read(tmp_path, content):
    path = tmp_path / "fr_rank_0"
    path.write_bytes(content if isinstance(content, bytes) else as_pickle(content))
    assert flight_recorder.sniff(path.read_bytes())
    return flight_recorder.read(path)


def refused(tmp_path, content):
    path = tmp_path / "fr_rank_0"
    path.write_bytes(content if isinstance(content, bytes) else as_pickle(content))
    with pytest.raises(UnreadableInputError) as caught:
        analyze(path)
    return caught.value.cause


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_pickle_and_json_are_the_same_dump(tmp_path, protocol):
    document = stepping(steps=3)
    found = read(tmp_path, as_pickle(document, protocol))
    assert found == read(tmp_path, as_json(document))
    assert (len(found.flight.entries), found.flight.made, found.world_size, found.notes) == (6, 6, 2, ())
    first = found.flight.entries[0]
    assert (first.sequence, first.input_elements, first.duration_ns) == (1, 1000, None)


def test_traces_and_snapshots_are_no_dumps():
    trace = {"schemaVersion": 1, "distributedInfo": {"pg_config": []}, "traceEvents": []}
    assert not flight_recorder.sniff(json.dumps(trace).encode())
    assert not flight_recorder.sniff(training(3, kernels=3, kernel=100).bytes())
    snapshot = pickle.dumps({"segments": [], "device_traces": [], "pg_config": ""})
    assert not flight_recorder.sniff(snapshot)
    assert memory_snapshot.sniff(snapshot)
    assert not flight_recorder.sniff(b"")
    assert not memory_snapshot.sniff(as_pickle(stepping()))


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_a_pickle_that_calls_something_is_refused_and_nothing_runs(tmp_path, protocol):
    target = tmp_path / "made"
    content = as_pickle(dump([call(1, START_NS), Hostile(target)]), protocol)
    assert "names a class or a function" in refused(tmp_path, content)
    assert not target.exists()
    pickle.loads(content)  # what it would have done
    assert target.is_dir()


WRONG = [
    {"time_created_ns": -1},
    {"time_created_ns": "x"},
    {"time_created_ns": 1 << 80},
    {"collective_seq_id": -5},
    {"record_id": 1 << 70},
    {"input_sizes": [[-1]]},
    {"input_sizes": [[1] * 65]},
    {"input_sizes": 3},
    {"duration_ms": float("inf")},
    {"duration_ms": -1.0},
    {"profiling_name": 7},
    {"is_p2p": 2},
    {"process_group": [1]},
]


@pytest.mark.parametrize("change", WRONG, ids=str)
def test_an_entry_that_cannot_be_is_left_out_and_counted(tmp_path, change):
    found = read(tmp_path, dump([call(1, START_NS), call(2, START_NS, **change), 7]))
    assert found.notes == ("2 of its entries are damaged and were left out.",)
    assert len(found.flight.entries) == 1


def test_groups_of_another_form_have_no_size(tmp_path):
    for config in (None, [], {"0": 1}, {"0": {"ranks": 3}}, {7: {"ranks": "[0]"}}):
        assert read(tmp_path, {**dump([]), "pg_config": config}).world_size is None


@pytest.mark.parametrize(
    ("content", "cause"),
    [
        (b'{"entries": 3, "pg_config": {}}', "no list of entries"),
        (b'{"pg_config": {}', "truncated"),
        (b'{"pg_config": ' + b"[" * 100_000, "nested too deeply"),
        (b'{"pg_config": "\xff"}', "damaged"),
        (as_pickle({"pg_config": {}}), "no list of entries"),
        (as_pickle({"pg_config": {}})[:-1], "ends early"),
    ],
    ids=range(6),
)
def test_what_is_no_dump_is_refused_with_the_cause(tmp_path, content, cause):
    assert cause in refused(tmp_path, content)


def test_lists_that_are_there_many_times_are_not_followed_without_end(tmp_path, monkeypatch):
    monkeypatch.setattr(flight_recorder, "MOST_ITEMS", 10_000)
    shape = [1] * 50
    one = call(1, START_NS, input_sizes=[shape] * 50)
    assert "more than 10,000 sizes" in refused(tmp_path, dump([one] * 50))
    apart = [call(place, START_NS, group=(str(place), "")) for place in range(1, 300)]
    assert "more than 256 process groups" in refused(tmp_path, dump(apart))
    monkeypatch.setattr(flight_recorder, "MOST_ENTRIES", 10)
    assert "more than 10 entries" in refused(tmp_path, dump([call(1, START_NS)] * 11))


def test_names_of_a_stranger_run_no_script_in_the_report(tmp_path):
    evil = "</script><script>alert(1)</script>"
    for rank in range(2):
        document = stepping(rank * 20_000_000, name="gloo:" + evil, group=(evil, evil), output_dtypes=[evil])
        (tmp_path / f"fr_rank_{rank}").write_bytes(as_pickle(document))
    html = analyze(tmp_path).to_html()
    assert "alert(1)" in html
    assert evil not in html
