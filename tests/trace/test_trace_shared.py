"""Real traces of many releases and devices, against json.load and integer arithmetic."""

import gzip
import json
from collections import Counter
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest

from profilerkit.trace.columns import Category, Damage, Wanted
from profilerkit.trace.links import launch_of
from profilerkit.trace.readers import read_trace

TRACES = Path(__file__).resolve().parents[3] / "shared" / "traces"
FILES = sorted(TRACES.glob("*/*.json.gz")) + sorted(TRACES.glob("torch_legacy_list/*.json"))
DEVICE = (Category.KERNEL, Category.MEMCPY, Category.MEMSET)

pytestmark = [
    pytest.mark.shared_traces,
    pytest.mark.skipif(not FILES, reason=f"no shared traces beside the repository, at {TRACES}"),
]


def loaded(path):
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    document = json.loads(text, parse_float=Decimal)
    return (document, {}) if isinstance(document, list) else (document["traceEvents"], document)


def exact_ns(us):
    return int((Decimal(us) * 1000).to_integral_value())


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.name.split('.')[0]}")
def test_columns_equal_the_parsed_document(path):
    events, document = loaded(path)
    spans = [event for event in events if event["ph"] == "X"]
    args = [event.get("args") or {} for event in spans]
    columns = read_trace(path, wanted=Wanted.EVERYTHING)

    assert columns.damage == Damage()
    assert columns.ts_ns.tolist() == [exact_ns(event["ts"]) for event in spans]
    assert columns.dur_ns.tolist() == [exact_ns(event["dur"]) for event in spans]
    assert [columns.strings[i] for i in columns.name] == [event["name"] for event in spans]
    assert [columns.threads[i] for i in columns.thread] == [(str(e["pid"]), str(e["tid"])) for e in spans]
    assert columns.correlation.tolist() == [found.get("correlation", -1) for found in args]
    assert columns.stream.tolist() == [int(str(found.get("stream", -1)), 0) for found in args]
    assert columns.bytes.tolist() == [int(found.get("bytes", -1)) for found in args]
    shapes = [json.loads(columns.strings[i], parse_float=Decimal) if i >= 0 else None for i in columns.input_dims]
    assert shapes == [found.get("Input Dims") for found in args]
    assert [found.row for found in columns.collectives] == [i for i, a in enumerate(args) if "Collective name" in a]
    phases = Counter(event["ph"] for event in events)
    assert len(columns.flows.id) == phases["s"] + phases["f"]
    assert len(columns.memory.bytes) == sum(event["name"] == "[memory]" for event in events)
    assert columns.meta.base_time_ns == document.get("baseTimeNanoseconds")
    assert columns.meta.rank == document.get("distributedInfo", {}).get("rank")


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.name.split('.')[0]}")
def test_every_link_joins_equal_correlations(path):
    columns = read_trace(path, wanted=Wanted.EVERYTHING)
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
