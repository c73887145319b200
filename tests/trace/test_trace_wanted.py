"""What is read is what was asked for, and nothing else changes with it."""

import json

import numpy as np
import pytest
from trace_mutations import TRACES
from trace_recipes import plain, span, write

from profilerkit.formats.registry import read_trace
from profilerkit.trace.columns import ANALYZED, Category, Wanted

ALWAYS = ("name", "category", "ts_ns", "dur_ns", "thread", "correlation", "external_id", "stream", "device", "bytes")
PARTS = (Wanted.PYTHON, Wanted.FLOWS, Wanted.MEMORY, Wanted.SHAPES)


@pytest.fixture
def read(tmp_path):
    path = tmp_path / "trace.json"
    path.write_bytes(TRACES["stacked"])
    return lambda wanted: read_trace(path, wanted=wanted)


def names(columns, rows=slice(None)):
    return [columns.strings[name] for name in columns.name[rows]]


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.name)
def test_what_is_not_wanted_is_empty_and_the_rest_is_the_same(read, part):
    whole, less = read(Wanted.EVERYTHING), read(Wanted.EVERYTHING & ~part)
    assert (whole.read, less.read) == (Wanted.EVERYTHING, Wanted.EVERYTHING & ~part)
    sizes = {
        Wanted.PYTHON: lambda columns: int(columns.is_a(Category.PYTHON).sum()),
        Wanted.FLOWS: lambda columns: len(columns.flows.id),
        Wanted.MEMORY: lambda columns: len(columns.memory.bytes),
        Wanted.SHAPES: lambda columns: int((columns.input_dims >= 0).sum() + (columns.input_types >= 0).sum()),
    }
    for other, size in sizes.items():
        assert size(whole) > 0
        assert size(less) == (0 if other is part else size(whole))
    rows = np.flatnonzero(~whole.is_a(Category.PYTHON)) if part is Wanted.PYTHON else slice(None)
    for column in ALWAYS:
        if column not in ("name", "thread"):
            assert getattr(less, column).tolist() == getattr(whole, column)[rows].tolist()
    assert names(less) == names(whole, rows)
    assert [less.threads[i] for i in less.thread] == [whole.threads[i] for i in whole.thread[rows]]


def test_default_is_what_the_analysis_uses(read, tmp_path):
    assert ANALYZED == Wanted.PYTHON | Wanted.MEMORY | Wanted.SHAPES
    assert read_trace(tmp_path / "trace.json").read == ANALYZED


def test_frames_left_out_are_counted_and_those_that_explain_a_pause_are_read(tmp_path):
    frames = [
        "train.py(3): step",
        "gc.py(1): gc.collect",
        "torch/_dynamo/convert_frame.py(7): compile_inner",
        "a(1): b",
    ]
    events = [span("aten::mm"), *(span(name, cat="python_function") for name in frames)]
    columns = read_trace(write(tmp_path, plain(events)), wanted=Wanted.NOTHING)
    assert names(columns) == ["aten::mm", frames[1], frames[2]]
    assert columns.frames_left_out == 2


def test_frames_that_the_analysis_looks_for_are_always_read(tmp_path):
    host = pytest.importorskip("profilerkit.analysis.host.names")
    found = ["gc.collect", "Python GC", "dynamo_timed", "entire_frame_compile", "backend_compile", "compile_inner"]
    found += ["dynamo", "inductor_codecache", "entire_backward_compile"]
    events = [span("aten::mm"), *(span(name, cat="python_function") for name in found)]
    columns = read_trace(write(tmp_path, plain(events)), wanted=Wanted.NOTHING)
    assert names(columns)[1:] == found
    masks = host.HostNames.of(columns)
    assert (masks.compiles | masks.collects)[columns.name[1:]].all()


def test_trace_of_frames_alone_is_read_although_they_are_not_wanted(tmp_path):
    columns = read_trace(write(tmp_path, plain([span("a", cat="python_function")])), wanted=Wanted.NOTHING)
    assert (names(columns), columns.read, columns.frames_left_out) == (["a"], Wanted.PYTHON, 0)


@pytest.mark.parametrize("correlation", [None, 5])
def test_flows_are_read_unasked_where_device_work_has_nothing_else_to_be_joined_by(tmp_path, correlation):
    link = {"ph": "s", "id": 1, "cat": "ac2g", "name": "ac2g", "pid": 1, "tid": 1, "ts": 5}
    events = [span("k", cat="kernel", correlation=correlation), link]
    columns = read_trace(write(tmp_path, plain(events)), wanted=Wanted.NOTHING)
    assert (len(columns.flows.id), columns.read) == ((1, Wanted.FLOWS) if correlation is None else (0, Wanted.NOTHING))


def test_not_wanting_frames_keeps_rows_of_collectives_and_places_of_impossible_events(tmp_path):
    events = [
        span("frame", cat="python_function"),
        span("impossible", dur=-4),
        span("frame", cat="python_function"),
        span("nccl", cat="kernel", **{"Collective name": "allreduce", "In msg nelems": 3}),
    ]
    columns = read_trace(write(tmp_path, plain(events)), wanted=Wanted.NOTHING)
    assert names(columns) == ["nccl"]
    assert [(found.row, found.name, found.in_elements) for found in columns.collectives] == [(0, "allreduce", 3)]
    assert columns.damage.samples[0].startswith("event 1 at byte ")
    assert '"impossible"' in columns.damage.samples[0]


def test_place_of_a_sample_is_where_the_text_stands(tmp_path):
    text = plain([span("fine"), span("bad"), span("fine")]).replace('"bad"', '"b\\q"')
    columns = read_trace(write(tmp_path, text))
    (sample,) = columns.damage.samples
    place, _, shown = sample.partition(", repaired: ")
    event, offset = (int(word) for word in place.split() if word.isdigit())
    assert event == 1
    assert text[offset:].startswith(shown[:20])
    assert text.encode()[offset:].startswith(b'{"ph"')
    assert json.loads(text[offset : text.index("}}", offset) + 2].replace("\\q", ""))["name"] == "b"
