"""A part read ahead changes nothing: columns, ids, damage and errors are those of reading alone."""

import gzip
import json
import random

import msgspec
import numpy as np
import pytest
import trace_recipes as recipes
from test_trace_shared import FILES, TRACES
from trace_mutations import TRACES as REAL_SHAPED
from trace_mutations import gpu_events, mutated, native

from profilerkit.errors import UnreadableInputError
from profilerkit.trace import blocks, limits
from profilerkit.trace.columns import ANALYZED, Wanted
from profilerkit.trace.kineto import cutting
from profilerkit.trace.kineto.parts import Ahead, read_part
from profilerkit.trace.readers import kineto, read_trace


@pytest.fixture
def joins(monkeypatch):
    """Whether each part that was offered was taken."""
    taken, join = [], kineto.join
    monkeypatch.setattr(kineto, "join", lambda *a: taken.append(join(*a)) or taken[-1])
    return taken


def outcome(path, wanted=ANALYZED, **options):
    """All that is read of a file, or all that the error says."""
    try:
        return plain(read_trace(path, wanted=wanted, **options))
    except UnreadableInputError as error:
        return error.what, error.cause, error.hint


def plain(value):
    """Columns as values that compare equal only where type, order and every element do."""
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.tolist()
    if isinstance(value, msgspec.Struct):
        return {name: plain(getattr(value, name)) for name in value.__struct_fields__}
    return list(value.items()) if isinstance(value, dict) else value


def ahead_of(path, middle, wanted=ANALYZED):
    return Ahead(middle, lambda: read_part(path, middle, wanted))


def compare(path, middles, wanted=ANALYZED, **options):
    """Hold that reading with a part ahead gives the same, wherever it begins; gives that."""
    alone = outcome(path, wanted, **options)
    for middle in middles:
        assert outcome(path, wanted, ahead=ahead_of(path, middle, wanted), **options) == alone, f"differs at {middle}"
    return alone


def cuts(path, block_bytes, count=4):
    """Places all over a file where blocks end."""
    size = path.stat().st_size
    return [size * number // (count + 1) // block_bytes * block_bytes for number in range(1, count + 1)]


def collective(index):
    return {"Collective name": "allreduce", "In msg nelems": index, "Group size": 8, "dtype": "Float", "Seq": index}


def rich_events():
    """GPU events whose later half brings names, threads and kinds of its own, and everything that is kept by row."""
    events = gpu_events(40)
    for index, event in enumerate(events):
        if index % 17 == 3:
            name, args = f"nccl_{index % 23}", collective(index) if index % 2 else {}
            event.update(ph="X", cat="kernel", name=name, tid=index % 5, dur=3, args=args)
        if index > 340 and index % 29 == 0:
            event.update(ph="X", cat=f"kind {index % 3}", name="Stream Wait Event", pid=str(index), dur=1)
        if index > 470 and index % 31 == 0:
            event.update(ph="M", name="thread_name", args={"name": f"named {index}"})
    return events


def dialects():
    events = rich_events()
    x = [event for event in events if event["ph"] == "X"]
    waits = [{"stream": index, "wait_on_stream": 7} for index in range(len(x))]
    return {
        "rich": events,
        "epoch": [{**event, "ts": 1711964646000000 + index} for index, event in enumerate(events)],
        "waits": [{**e, "cat": "cuda_sync", "name": "Stream Wait Event", "args": waits[i]} if i % 3 else e
                  for i, e in enumerate(x)],
        "waits of another kind": [{**e, "cat": ("cuda_sync", "runtime")[i > 130], "name": "Stream Wait Event",
                                   "args": waits[i]} for i, e in enumerate(x)],
        "2021": [{**e, "cat": ("Operator", "Runtime", "Kernel")[i % 3], "args": {"external id": i}}
                 for i, e in enumerate(x)],
        "2021, calls later": [{**e, "cat": ("Operator", "Runtime")[i > 80], "args": {"external id": i}}
                              for i, e in enumerate(x)],
        "loose work": [{**e, "args": {}} for e in events],
        "frames": [{**e, "cat": "python_function", "name": ("gc.collect", f"f{i}")[i % 9 > 0]}
                   for i, e in enumerate(x)],
        "unpaired": [{**e, "ph": "BE"[i % 2]} if i % 3 else e for i, e in enumerate(events)],
    }  # fmt: skip


LAYOUTS = {
    "native": lambda events: native(events, recipes.HEAD, recipes.TAIL),
    "indented": lambda events: json.dumps({"schemaVersion": 1, "traceEvents": events}, indent=2),
    "crlf": lambda events: json.dumps({"schemaVersion": 1, "traceEvents": events}, indent=1).replace("\n", "\r\n"),
    "compact": lambda events: json.dumps({"traceEvents": events, "deviceProperties": [{"id": 3, "name": "A100"}] * 400},
                                         separators=(",", ":")),
    "list": json.dumps,
}  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dialect", dialects())
def test_every_dialect_and_layout_is_read_as_alone(tmp_path, monkeypatch, joins, dialect, layout):
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 4096)
    path = recipes.write(tmp_path, LAYOUTS[layout](dialects()[dialect]))
    for wanted in (ANALYZED, Wanted.EVERYTHING, Wanted.NOTHING):
        compare(path, cuts(path, 4096), wanted)
    compare(path, cuts(path, 4096), strict=True)
    assert joins.count(True) >= 4


@pytest.mark.parametrize("wanted", [ANALYZED, Wanted.EVERYTHING])
def test_stamps_with_every_digit_are_read_as_alone(tmp_path, monkeypatch, joins, wanted):
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 4096)
    events = [recipes.event_text(i, ts=f"17119646460{i:05d}.{i % 1000:03d}") for i in range(400)]
    path = recipes.write(tmp_path, recipes.document(events))
    read = compare(path, cuts(path, 4096), wanted)
    assert read["ts_ns"][1][333] == 1711964646000333333
    assert joins == [True] * 4


def test_one_exact_stamp_before_the_part_is_enough_to_refuse_it(tmp_path, monkeypatch, joins):
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 4096)
    events = [recipes.event_text(i, ts=f"1711964646{i:06d}" + ".125" * (i == 5)) for i in range(400)]
    compare(path := recipes.write(tmp_path, recipes.document(events)), cuts(path, 4096))
    assert joins == [False] * 4


def test_names_that_hold_the_separator_are_read_as_alone(tmp_path, monkeypatch, joins):
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 512)
    events = [recipes.span(name={0: "},{" * 60, 5: 'k},{"ph":"X"'}.get(i % 12, "k"), ts=i) for i in range(200)]
    for text in (json.dumps({"traceEvents": events}, separators=(",", ":")), json.dumps(events, separators=(",", ":"))):
        path = recipes.write(tmp_path, text)
        compare(path, range(512, len(text), 1024))
    assert True in joins
    assert False in joins


def test_events_longer_than_a_block_are_read_as_alone(tmp_path, monkeypatch, joins):
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 512)
    events = [recipes.span(name="n" * (1500 if i % 7 == 2 else 5), ts=i) for i in range(120)]
    path = recipes.write(tmp_path, recipes.plain(events))
    compare(path, range(512, path.stat().st_size, 512))
    assert True in joins


@pytest.mark.parametrize("broken", [{"dur": "-0.5"}, {"ts": "truncated"}, {"name": 'a "quote" b'}])
def test_damage_on_either_side_is_told_as_alone(tmp_path, monkeypatch, joins, broken):
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 4096)
    for index in (20, 250):
        events = [recipes.event_text(i, **(broken if i == index else {})) for i in range(400)]
        path = recipes.write(tmp_path, recipes.document(events))
        read = compare(path, cuts(path, 4096))
        assert read["damage"]["dropped"] + read["damage"]["repaired"] == 1
        assert compare(path, cuts(path, 4096), strict=True)[0].endswith("is damaged")
    assert joins.count(True) >= 4


def test_a_dialect_that_shows_in_a_damaged_chunk_counts_for_the_part(tmp_path, monkeypatch, joins):
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 4096)
    events = [json.dumps(recipes.span(cat="Operator", ts=i) | {"args": {"external id": i}}) for i in range(300)]
    events[150] = events[150].replace('"Operator"', '"Runtime"').replace('"op"', '"o"p"')
    path = recipes.write(tmp_path, f"[{', '.join(events)}]")
    read = compare(path, range(4096, path.stat().st_size, 4096))
    assert read["external_id"][1][299] == 299
    assert True in joins
    assert False in joins


@pytest.mark.parametrize("between", [(",", ",\n  "), (", ", None), (None, ", ")])
def test_separators_that_change_are_learnt_as_alone(tmp_path, monkeypatch, joins, between):
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 512)
    monkeypatch.setattr(cutting, "_RELEARN_BYTES", 2000)
    text = "[" + json.dumps(recipes.span())
    for index in range(400):
        separator = between[index // 200] or ",".join((" " * (index % 7), "\t" * (index % 5)))
        text += separator + json.dumps(recipes.span(name=f"k{index % 50}", ts=index))
    path = recipes.write(tmp_path, text + "]")
    compare(path, range(512, path.stat().st_size, 512))
    assert (True in joins) == (between[0] is not None)


@pytest.mark.parametrize(("limit", "value"), [("DISTINCT_TEXTS", 30), ("TEXT_BYTES", 900), ("COLLECTIVES", 12)])
def test_limits_are_reached_as_alone(tmp_path, monkeypatch, joins, limit, value):
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 4096)
    for module in ("strings", "kineto.builder", "kineto.naming", "limits"):
        monkeypatch.setattr(f"profilerkit.trace.{module}.{limit}", value, raising=False)
    path = recipes.write(tmp_path, json.dumps({"traceEvents": rich_events()}))
    read = compare(path, cuts(path, 4096))
    assert "past the limit" in str(read["damage"])
    assert joins == [False] * 4
    assert getattr(limits, limit) == value


@pytest.mark.parametrize("block", range(10))
@pytest.mark.parametrize("trace", REAL_SHAPED)
def test_mutated_traces_are_read_as_alone(tmp_path, monkeypatch, joins, trace, block):
    for seed in range(block * 10, block * 10 + 10):
        rng = random.Random(seed)
        block_bytes = rng.choice([200, 512, 4096])
        monkeypatch.setattr(blocks, "BLOCK_BYTES", block_bytes)
        path = recipes.write(tmp_path, mutated(REAL_SHAPED[trace], rng, rng.choice([1, 1, 1, 3])).text)
        wanted = rng.choice([Wanted.EVERYTHING, ANALYZED])
        ends = range(block_bytes, max(path.stat().st_size, block_bytes + 1), block_bytes)
        compare(path, rng.sample(ends, min(len(ends), 4)), wanted)
    assert True in joins


@pytest.mark.shared_traces
@pytest.mark.skipif(not FILES, reason=f"no shared traces beside the repository, at {TRACES}")
@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.parent.name}/{file.name.split('.')[0]}")
def test_real_traces_are_read_as_alone(file, tmp_path, joins):
    text = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
    path = recipes.write(tmp_path, text)
    compare(path, sorted({*cuts(path, blocks.BLOCK_BYTES, 2)} - {0}))
    assert all(joins)
