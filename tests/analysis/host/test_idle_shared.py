"""Idle time of real traces by cause, beside an independent classification of the same instants, and what reports say.

The other classification asks what any host thread did, in a fixed order. Ours asks the thread that launched the work
which ended the gap, until it had launched it. Where the two differ, the table below says why.
"""

import json
from pathlib import Path

import numpy as np
import pytest

from profilerkit.analysis.device.kernels import device_rows
from profilerkit.analysis.intervals import Segments, Spans, paint, subtract, union, with_label
from profilerkit.api import analyze
from profilerkit.formats.registry import read_trace
from profilerkit.model.finding import in_order
from profilerkit.model.step import LEAVES, WAITS
from profilerkit.trace.columns import ANALYZED, Category
from tests.recipes import cut

TRACES = Path(__file__).resolve().parents[4] / "shared" / "traces"
EXPECTED = TRACES / "expected_idle_attribution.json"
KNOWN = json.loads(EXPECTED.read_text())["traces"] if EXPECTED.exists() else {}

pytestmark = [
    pytest.mark.shared_traces,
    pytest.mark.skipif(not KNOWN, reason=f"no shared traces beside the repository, at {TRACES}"),
]

#: Points of the window by which a class may differ without a reason, by which a reason may hold more or less than it
#: did, and by which ours may misread theirs.
TOLERANCE, CLOSE, ARITHMETIC = 2.0, 0.5, 0.02

CLASSES = ("dataloader", "sync", "malloc", "memcpy_api", "runtime_other", "cpu_op", "python", "unattributed")
SAME = {
    **{part: {"dataloader"} for part in WAITS},
    "mem.alloc": {"malloc"},
    "sync.drain": {"sync"},
    **{part: {"memcpy_api"} for part in ("input.h2d", "sync.d2h", "mem.offload")},
    "over.dispatch": {"runtime_other", "cpu_op"},
    "over.python": {"python", "unattributed"},
    "warm.load": {"runtime_other"},
}
#: (their class, our leaf): why both are right, and how much of each trace's window it is, in percent.
MOVES = {
    ("sync", "over.launch"): (
        "the host waits for work it has launched already: the gap is that work's latency",
        {"owlv2_h100": 0.41},
    ),
    ("memcpy_api", "over.launch"): (
        "the work that ends the gap was launched before: what the host does since is no cause",
        {"ns_resolution": 0.12, "ddp2_graphs": 1.4},
    ),
    ("runtime_other", "over.launch"): (
        "the work that ends the gap was launched before: what the host does since is no cause",
        {
            "resnet50_workers0": 0.11,
            "resnet50_workers4": 0.18,
            "qwen_h100": 0.58,
            "ddp2_small_allreduces": 0.11,
            "ns_resolution": 0.46,
            "ddp8_control": 0.33,
            "ddp2_graphs": 0.43,
            "rank0": 0.27,
        },
    ),
    ("cpu_op", "over.launch"): (
        "the work that ends the gap was launched before: what the host does since is no cause",
        {
            "resnet50_workers0": 0.65,
            "resnet50_workers4": 0.97,
            "bert_small_h100": 2.03,
            "qwen_h100": 1.77,
            "owlv2_h100": 0.07,
            "resnet_actckpt_mi300": 0.15,
            "ddp2_small_allreduces": 2.12,
            "nccl_args": 0.82,
            "ns_resolution": 0.66,
            "ddp8_control": 1.91,
            "ddp2_graphs": 1.69,
            "rank0": 19.59,
        },
    ),
    ("python", "over.launch"): (
        "the work that ends the gap was launched before: what the host does since is no cause",
        {"bert_small_h100": 0.18, "qwen_h100": 1.18, "owlv2_h100": 0.06},
    ),
    ("unattributed", "over.launch"): (
        "the work that ends the gap was launched before: the host is free",
        {"resnet50_workers0": 0.08, "resnet50_workers4": 0.26},
    ),
    ("runtime_other", "idle.unknown"): (
        "launched more than 10 ms before it ran: no launch takes that long",
        {"rank0": 0.05},
    ),
    ("cpu_op", "idle.unknown"): ("launched more than 10 ms before it ran: no launch takes that long", {"rank0": 11.89}),
    ("cpu_op", "over.python"): (
        "only a range such as Optimizer.step is open: no operator runs on the launching thread",
        {
            "resnet50_workers0": 0.79,
            "resnet50_workers4": 1.45,
            "resnet_actckpt_mi300": 2.27,
            "ddp2_small_allreduces": 1.1,
            "nccl_args": 11.14,
            "ns_resolution": 0.65,
            "ddp8_control": 3.28,
            "rank0": 16.2,
            "alexnet_sync_events": 0.06,
        },
    ),
    ("cpu_op", "sync.drain"): (
        "work is issued again after a call that had emptied the queue",
        {"qwen_h100": 0.18, "owlv2_h100": 0.07, "ddp8_control": 0.45},
    ),
    ("python", "sync.drain"): (
        "Python up to 1 ms between a call that emptied the queue and the next launch",
        {"qwen_h100": 0.38, "owlv2_h100": 0.1},
    ),
    ("cpu_op", "input.wait"): (
        "a range that is named for loading the batch, in a trace without a DataLoader",
        {"ddp8_control": 0.11, "rank0": 0.3},
    ),
    ("memcpy_api", "over.dispatch"): (
        "issuing a copy that does not hold the host is issuing work",
        {
            "bert_small_h100": 0.18,
            "resnet_actckpt_mi300": 0.38,
            "ddp2_small_allreduces": 0.78,
            "nccl_args": 1.26,
            "ns_resolution": 0.19,
        },
    ),
    ("sync", "over.dispatch"): ("a call below 10 µs did not wait", {"bert_small_h100": 0.22}),
}


def short(path):
    return path.split("/")[-1].split(".")[0]


@pytest.fixture(scope="module", params=KNOWN, ids=short)
def told(request):
    """The trace, the expected classes and the table of theirs and ours, both in percent of the window."""
    columns = read_trace(TRACES / request.param, wanted=ANALYZED)
    window = step_spans(columns)
    theirs = by_class(columns, window)
    parts = cut(columns, window, is_marked=False)
    return short(request.param), KNOWN[request.param], crossed(theirs, parts.segments, window.total_ns)


def step_spans(columns):
    marks = np.array([text.startswith("ProfilerStep#") for text in columns.strings])[columns.name]
    rows = np.flatnonzero(marks & (columns.category == Category.ANNOTATION))
    if not len(rows):
        work = device_rows(columns)
        return Spans(columns.ts_ns[work].min(keepdims=True), columns.end_ns[work].max(keepdims=True))
    rows = rows[np.argsort(columns.ts_ns[rows])]
    return Spans(columns.ts_ns[rows], columns.end_ns[rows])


def by_class(columns, window):
    """Idle time inside the steps by what any host thread did, in the fixed order of ``CLASSES``."""

    def named(*words):
        return np.array([any(word in text.lower() for word in words) for text in columns.strings])[columns.name]

    def spans(rows):
        return union(columns.ts_ns[rows], columns.end_ns[rows])

    runtime = columns.category == Category.RUNTIME
    ranges = columns.is_a(Category.ANNOTATION, Category.CPU_OP) & ~named("profilerstep#")
    layers = (
        ranges & named("enumerate(dataloader)"),
        runtime & named("synchronize"),
        runtime & named("malloc", "hostalloc", "free"),
        runtime & named("memcpy"),
        runtime,
        ranges,
        columns.category == Category.PYTHON,
    )
    idle = subtract(window, spans(device_rows(columns)))
    painted = paint(idle, [with_label(spans(rows), label) for label, rows in enumerate(layers)])
    return Segments(painted.start, painted.end, np.where(painted.label < 0, len(layers), painted.label))


def crossed(theirs, ours, total_ns):
    """(class, leaf) to percent of the window, over the instants that ``theirs`` covers."""
    cells = {}
    for label, name in enumerate(CLASSES):
        under = paint(theirs.only(label), [ours])
        for part in np.unique(under.label).tolist():
            rows = under.label == part
            cells[name, LEAVES[part]] = 100 * int((under.end - under.start)[rows].sum()) / total_ns
    return cells


def test_the_other_classification_is_read_as_it_was_made(told):
    _, expected, cells = told
    for name in CLASSES:
        found = sum(value for (other, _), value in cells.items() if other == name)
        assert found == pytest.approx(expected[name], abs=ARITHMETIC), name


def test_idle_time_has_the_expected_causes_but_for_the_reasons_in_the_table(told):
    trace, _, cells = told
    reasons = {cell: by_trace.get(trace, 0.0) for cell, (_, by_trace) in MOVES.items()}
    found = {(name, part): value for (name, part), value in cells.items() if name not in SAME.get(part, ())}
    odd = {
        cell: (round(found.get(cell, 0.0), 2), reasons.get(cell, 0.0))
        for cell in found.keys() | reasons.keys()
        if abs(found.get(cell, 0.0) - reasons.get(cell, 0.0)) > CLOSE
    }
    assert odd == {}


@pytest.mark.parametrize(("name", "parts"), [("dataloader", WAITS), ("malloc", ("mem.alloc",))])
def test_input_and_allocation_need_no_reasons(told, name, parts):
    _, expected, cells = told
    ours = sum(value for (_, part), value in cells.items() if part in parts)
    assert ours == pytest.approx(expected[name], abs=TOLERANCE)


def test_every_reason_is_needed():
    used = set()
    for path in KNOWN:
        columns = read_trace(TRACES / path, wanted=ANALYZED)
        window = step_spans(columns)
        parts = cut(columns, window, is_marked=False)
        cells = crossed(by_class(columns, window), parts.segments, window.total_ns)
        used |= {cell for cell, value in cells.items() if value >= 0.05}
    assert set(MOVES) <= used


def report_of(name):
    return analyze(TRACES / name / f"{name}.json.gz")


def evidence_of(report):
    return {entry.label: entry for _, finding in in_order(report.outcomes) for entry in finding.evidence}


def fired(report):
    return {outcome.rule for outcome in report.outcomes if outcome.findings}


def share(report, *parts):
    return sum(part.share for part in report.breakdown if part.part in parts)


def test_a_loader_in_the_main_process_is_told_with_its_time_and_its_cost():
    report = report_of("resnet50_workers0")
    found = evidence_of(report)
    assert found["Time in the loader, overlapped or not, share of the step"].value == pytest.approx(0.396, abs=0.01)
    assert found["Input wait, share of the step"].value == pytest.approx(0.339, abs=0.01)
    assert share(report, "input.prep") > 0.08  # the operators of its transforms
    assert share(report, "input.ipc") > 0.02  # aten::stack


def test_with_workers_what_is_left_is_host_overhead_and_pageable_copies():
    report = report_of("resnet50_workers4")
    assert share(report, *WAITS) < 0.02
    assert share(report, "over.dispatch", "over.python", "over.launch") > 0.15
    copies = next(outcome for outcome in report.outcomes if outcome.rule == "IN009")
    assert copies.findings or "pageable copies cost" in copies.reason


def test_the_resize_that_holds_the_input_is_named():
    report = report_of("owlv2_h100")
    assert (report.verdict.bound, report.verdict.detail) == ("input-bound", "prep")
    found = next(entry for label, entry in evidence_of(report).items() if label.startswith("Input wait in"))
    assert (
        found.origin
        == "resize (owlv2/image_processing_owlv2.py:301) → zoom (ndimage/_interpolation.py:739) → zoom_shift"
    )
    assert found.value == pytest.approx(0.84, abs=0.02)
    assert "image_processing_owlv2.py:301" in report.to_html()


def test_the_host_syncs_of_a_mixture_of_experts_are_seen_and_their_absence_as_well():
    with_syncs, without = report_of("moe_with_syncs"), report_of("moe_without_syncs")
    assert "OV002" in fired(with_syncs)
    assert evidence_of(with_syncs)["Blocking calls per step"].value > 10
    assert share(with_syncs, "sync.drain", "sync.d2h") > 0.03
    assert share(without, "sync.drain", "sync.d2h") < 0.01
    assert "OV002" not in fired(without)


def test_first_use_work_and_allocation_dominate_a_first_iteration():
    report = report_of("alexnet_sync_events")
    assert (report.verdict.bound, report.verdict.detail) == ("overhead-bound", "likely")
    assert {"cudaMalloc", "cudaFree"} & set(evidence_of(report))


def test_one_cold_iteration_is_refused_with_what_it_loaded():
    report = report_of("warmup_only")
    assert report.verdict.bound == "inconclusive"
    found = evidence_of(report)
    assert found["cudaLaunchKernel"].value == pytest.approx(5.6e9, rel=0.02)
    assert "lazily" in found["cudaLaunchKernel"].origin
    assert found["cudaFree"].value == pytest.approx(4.0e9, rel=0.02)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("ddp2_graphs", "614 of 15,632 device events have no launch call in the trace"),
        ("ddp2_graphs", "5,046 of 15,632 device events were launched by 12 graph launches"),
        ("sglang_decode_graphs", "544 of 558 device events were launched by 1 graph launch"),
        ("qwen_h100", "509 of 1,707 device events have no launch call in the trace"),
    ],
)
def test_work_without_a_launch_of_its_own_counts_in_full_and_is_counted(name, said):
    report = report_of(name)
    signal = next(signal for signal in report.trust.signals if signal.name == "launch calls of device work")
    assert said in signal.reason
    assert said in report.to_html()


def test_all_of_a_ddp_run_with_graphs_is_in_its_parts():
    report = report_of("ddp2_graphs")
    idle = share(report, "over.launch", "over.python", "over.dispatch", "idle.unknown", *WAITS)
    assert idle == pytest.approx(0.0366, abs=0.01)


def test_which_stream_waits_for_which_is_read_from_sync_rows():
    columns = read_trace(TRACES / "alexnet_sync_events" / "alexnet_sync_events.json.gz")
    assert columns.stream_waits == {(20, 7), *((7, stream) for stream in range(20, 28))}
