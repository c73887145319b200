"""What torch says of collectives and of DDP, in the form of a run directory, also where it says strange things."""

import json

import msgspec
import pytest

from profilerkit.rundir.documents import Flight, ddp_model, flight_of
from profilerkit.rundir.files import read_document, write_document


def entry(number, created_ns, **changes):
    """An entry as torch 2.13 dumps it."""
    return {
        "collective_seq_id": number,
        "input_dtypes": ["Float"],
        "input_sizes": [[4, 8], [2]],
        "is_p2p": False,
        "op_id": number,
        "output_dtypes": ["Float"],
        "output_sizes": [[34]],
        "p2p_seq_id": 0,
        "pg_id": 0,
        "process_group": ["0", "default_pg"],
        "profiling_name": "gloo:all_reduce",
        "record_id": number - 1,
        "retired": True,
        "state": "scheduled",
        "time_created_ns": created_ns,
        "timeout_ms": 1800000,
        **changes,
    }


def dump(*entries, **fields):
    return json.dumps({"version": "2.10", "entries": list(entries), **fields}).encode()


def test_a_dump_becomes_a_record_of_what_the_block_issued(tmp_path):
    data = dump(entry(1, 10), entry(3, 30), entry(2, 20), pg_config={"0": {"name": "0", "ranks": "[0, 1, 5]"}})
    found = flight_of([data], 20)
    assert (found.made, found.groups[0].size) == (3, 3)
    assert [(one.sequence, one.created_ns, one.input_elements) for one in found.entries] == [(2, 20, 34), (3, 30, 34)]
    write_document(tmp_path / "flight.json", found)
    assert read_document(tmp_path / "flight.json", Flight) == found
    assert (tmp_path / "flight.json").stat().st_size < 400


def test_timed_and_pairwise_and_mixed_entries_keep_what_they_say():
    timed = entry(1, 10, duration_ms=1.5, profiling_name="nccl:all_gather")
    pair = entry(2, 11, is_p2p=True, p2p_seq_id=9)
    mixed = entry(3, 12, output_dtypes=["Half"])
    one, two, three = flight_of([dump(timed, pair, mixed)], 0).entries
    assert (one.duration_ns, two.duration_ns) == (1_500_000, None)
    assert (two.sequence, two.between) == (9, True)
    assert three.dtype is None


@pytest.mark.parametrize("data", [b"", b"[]", b'{"entries": [{"time_created_ns": "x"}]}', b'{"entries": 3}'])
def test_a_dump_of_another_form_is_refused(data):
    with pytest.raises(ValueError, match=r".+"):
        flight_of([data], 0)


def test_an_empty_dump_is_an_empty_record():
    assert flight_of([b"{}", dump()], 0) == Flight(made=0, names=(), groups=(), entries=())


def test_long_names_are_cut():
    found = flight_of([dump(entry(1, 1, profiling_name="x" * 10_000, process_group=["y" * 10_000]))], 0)
    assert len(msgspec.json.encode(found)) < 700


def test_ddp_says_what_it_measured_and_nothing_is_zero_that_was_not():
    numbers = {"avg_backward_comm_time": 0, "avg_backward_compute_comm_overlap_time": 0, "has_rebuilt_buckets": 1}
    model = ddp_model(numbers, {"bucket_sizes": "1, 2", "rebuilt_bucket_sizes": "30, x, 4"})
    assert (model.comm_ns, model.overlap_ns, model.forward_ns) == (None, None, None)
    assert (model.bucket_bytes, model.rebuilt, model.static_graph) == ((30, 4), True, None)
    measured = ddp_model({**numbers, "avg_backward_comm_time": 5}, {"bucket_sizes": "1, 2"})
    assert (measured.comm_ns, measured.overlap_ns, measured.bucket_bytes) == (5, 0, (1, 2))
