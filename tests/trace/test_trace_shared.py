"""Real traces of many releases and devices, against json.load and integer arithmetic."""

import gc
import gzip
import json
from collections import Counter
from decimal import Decimal
from pathlib import Path

import msgspec
import numpy as np
import pytest

from profilerkit.formats.kineto.records import launches_nothing
from profilerkit.formats.registry import read_trace
from profilerkit.model import revise
from profilerkit.trace.columns import Category, Damage, Wanted
from profilerkit.trace.launches import launch_of

TRACES = Path(__file__).resolve().parents[3] / "shared" / "traces"
FILES = sorted(TRACES.glob("*/*.json.gz")) + sorted(TRACES.glob("torch_legacy_list/*.json"))
# Written in spring 2024.
EPOCH_WITH_DECIMALS = {"ns_resolution"}
DEVICE = (Category.KERNEL, Category.MEMCPY, Category.MEMSET)
#: Larger files are longer than these, and laid out as they are: of them, the columns alone are compared.
MOST_BYTES = 1_200_000

pytestmark = [
    pytest.mark.shared_traces,
    pytest.mark.skipif(not FILES, reason=f"no shared traces beside the repository, at {TRACES}"),
]


@pytest.fixture(autouse=True)
def uncollected():
    """Parsed documents are millions of objects and no cycles; looking for some takes longer than parsing."""
    gc.disable()
    yield
    gc.enable()


@pytest.fixture(scope="module", params=FILES, ids=lambda path: f"{path.parent.name}/{path.name.split('.')[0]}")
def path(request):
    return request.param


@pytest.fixture(scope="module")
def columns(path):
    """All that the file holds, read once for the tests of it."""
    return read_trace(path, wanted=Wanted.EVERYTHING)


def loaded(path):
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    document = json.loads(text, parse_float=Decimal)
    return (document, {}) if isinstance(document, list) else (document["traceEvents"], document)


def exact_ns(us):
    return int((Decimal(us) * 1000).to_integral_value())


def test_columns_equal_the_parsed_document(path, columns):
    events, document = loaded(path)
    spans = [event for event in events if event["ph"] == "X"]
    args = [event.get("args") or {} for event in spans]

    assert columns.damage == Damage()
    assert columns.ts_ns.tolist() == [exact_ns(event["ts"]) for event in spans]
    assert columns.dur_ns.tolist() == [exact_ns(event["dur"]) for event in spans]
    assert [columns.strings[i] for i in columns.name] == [event["name"] for event in spans]
    assert [columns.threads[i] for i in columns.thread] == [(str(e["pid"]), str(e["tid"])) for e in spans]
    assert columns.correlation.tolist() == [found.get("correlation", -1) for found in args]
    assert columns.stream.tolist() == [int(str(found.get("stream", -1)), 0) for found in args]
    assert columns.bytes.tolist() == [int(found.get("bytes", -1)) for found in args]
    said = {i: json.loads(columns.strings[i], parse_float=Decimal) for i in set(columns.input_dims.tolist()) - {-1}}
    shapes = [said.get(i) for i in columns.input_dims.tolist()]
    names = [event["name"] for event in spans]
    whole = [found.get("Input Dims") for found in args]
    assert shapes == [None if launches_nothing(name) else found for name, found in zip(names, whole, strict=True)]
    assert [found.row for found in columns.collectives] == [i for i, a in enumerate(args) if "Collective name" in a]
    phases = Counter(event["ph"] for event in events)
    assert len(columns.flows.id) == phases["s"] + phases["f"]
    assert len(columns.memory.bytes) == sum(event["name"] == "[memory]" for event in events)
    assert columns.meta.base_time_ns == document.get("baseTimeNanoseconds")
    assert columns.meta.rank == document.get("distributedInfo", {}).get("rank")


def layouts(path):
    """The same document in other layouts than the file's, most of which are gzip; all but the last keep every digit."""
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    yield "plain", text
    yield "indent 1", msgspec.json.format(text, indent=1)
    yield "compact", msgspec.json.format(text, indent=-1)
    if EPOCH_WITH_DECIMALS.intersection(path.parts):
        return  # their digits are lost in a float64
    document = msgspec.json.decode(text)
    reordered = [dict(reversed(event.items())) for event in events_of(document)]
    if isinstance(document, dict):
        reordered = dict(reversed(({**document, "traceEvents": reordered}).items()))
    yield "keys reversed", msgspec.json.encode(reordered)


def events_of(document):
    return document if isinstance(document, list) else document["traceEvents"]


def spelt(ids, texts, known):
    """Ids of texts as ids that are the same for the same texts in any file; -1 stays."""
    own = np.array([known.setdefault(text, len(known)) for text in texts] + [-1])
    return own[ids]


def contents(columns, known):
    """Every array that was read, and the rest but the path; shapes are compared as what they say."""
    passed = (columns.input_dims, columns.input_types, columns.concrete_inputs)
    used = {text for ids in passed for text in ids.tolist()}
    shapes = [repr(json.loads(t)) if i in used else "" for i, t in enumerate(columns.strings)]
    arrays = [
        getattr(columns, name)
        for name in ("category", "ts_ns", "dur_ns", "correlation", "external_id", "stream", "device", "bytes")
    ]
    flows, memory = columns.flows, columns.memory
    arrays += [flows.id, flows.starts, flows.ts_ns, *(getattr(memory, field) for field in memory.__slots__)]
    arrays += [spelt(ids, columns.strings, known) for ids in (columns.name, flows.kind)]
    arrays += [spelt(ids, shapes, known) for ids in passed]
    arrays += [spelt(ids, columns.threads, known) for ids in (columns.thread, flows.thread)]
    names = {columns.threads[thread]: name for thread, name in columns.thread_names.items()}
    return arrays, (names, columns.collectives, revise(columns.meta, path=""))


def test_layout_and_compression_do_not_change_the_columns(path, columns, tmp_path):
    if path.stat().st_size > MOST_BYTES:
        pytest.skip("a file of this size has no layout of its own")
    known = {}
    arrays, rest = contents(columns, known)
    for layout, text in layouts(path):
        (tmp_path / "trace").write_bytes(text)
        found, found_rest = contents(read_trace(tmp_path / "trace", wanted=Wanted.EVERYTHING, strict=True), known)
        assert found_rest == rest, layout
        assert [np.array_equal(a, b) for a, b in zip(found, arrays, strict=True)] == [True] * len(arrays), layout


def test_every_link_joins_equal_correlations(columns):
    launch = launch_of(columns)
    linked = np.flatnonzero(launch >= 0)
    assert columns.is_a(*DEVICE)[linked].all()
    assert columns.is_a(Category.RUNTIME)[launch[linked]].all()
    correlated = linked[columns.correlation[linked] >= 0]
    assert (columns.correlation[correlated] == columns.correlation[launch[correlated]]).all()
    calls = set(columns.correlation[columns.is_a(Category.RUNTIME)].tolist())
    loose = columns.is_a(*DEVICE) & (launch < 0) & (columns.correlation >= 0)
    assert calls.isdisjoint(columns.correlation[loose].tolist())


def test_graph_kernels_share_their_launch():
    columns = read_trace(TRACES / "ddp2_graphs" / "ddp2_graphs.json.gz")
    launch = launch_of(columns)
    row, kernels = Counter(launch[launch >= 0].tolist()).most_common(1)[0]
    assert (columns.strings[columns.name[row]], kernels) == ("cudaGraphLaunch", 502)


def test_loader_events_of_2021_are_annotations():
    columns = read_trace(TRACES / "resnet50_workers0" / "resnet50_workers0.json.gz")
    annotations = Counter(columns.strings[i].split("#")[0] for i in columns.name[columns.is_a(Category.ANNOTATION)])
    assert annotations["enumerate(DataLoader)"] > 0
    assert annotations["ProfilerStep"] > 0
    assert columns.is_a(Category.KERNEL).sum() == 8772
