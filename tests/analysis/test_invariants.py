"""What no analyser may change its answer for (§4.5 of the diagnosis method), on random traces."""

from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profilerkit.analysis.intervals import Spans
from profilerkit.formats.registry import read_trace
from profilerkit.model.step import LEAVES
from tests.recipes import (
    ALL_REDUCE,
    AUTOGRAD,
    ELEMENTWISE,
    GEMM,
    MAIN,
    OTHER_KERNEL,
    SINGLE,
    US,
    WORKERS,
    Trace,
    cut,
    named,
    training,
)

quick = settings(max_examples=100, deadline=None, derandomize=True)
slow = settings(max_examples=15, deadline=None, derandomize=True)

EDGES = (100, 400, 700, 1_000, 1_300)
WINDOW = Spans(np.array(EDGES[:-1]) * US, np.array(EDGES[1:]) * US)

times = st.tuples(st.integers(0, 1_400), st.integers(0, 120)).map(lambda pair: (pair[0], pair[0] + pair[1]))
host_threads = st.sampled_from([MAIN, AUTOGRAD])
launches = st.none() | st.tuples(st.integers(0, 1_400), st.integers(0, 15)).map(lambda p: (p[0], p[0] + p[1]))


def host_event(method, *names, tids=host_threads):
    chosen = {"name": st.sampled_from(names)} if names else {}
    return st.tuples(st.just(method), times, st.fixed_dictionaries({**chosen, "tid": tids}))


def device_event(method, streams=(7, 8), **choices):
    fields = {"launch": launches, "stream": st.sampled_from(streams)}
    fields |= {key: st.sampled_from(values) for key, values in choices.items()}
    return st.tuples(st.just(method), times, st.fixed_dictionaries(fields))


only_main = st.just(MAIN)
FRAMES = (
    "train.py(1): get_batch",
    "PIL/Image.py(2100): resize",
    "torch/utils/data/_utils/collate.py(340): default_collate",
    "<built-in function open>",
    "<built-in function print>",
    "torch/autograd/graph.py(300): unpack_from_cpu",
)
events = st.one_of(
    device_event("kernel", name=[GEMM, ELEMENTWISE, OTHER_KERNEL], tid=[MAIN, AUTOGRAD]),
    device_event("copy", kind=["HtoD", "DtoH", "DtoD"], size=[4, 1 << 20, None]),
    device_event("memset"),
    device_event("collective", streams=(20,), elements=[None, 1 << 10]),
    host_event("op", "aten::add", "aten::mm", "gc.collect", "backend_compile"),
    host_event("sync"),
    host_event("malloc"),
    host_event("loader", SINGLE, WORKERS, tids=only_main),
    host_event("frame", *FRAMES),
    host_event("annotation", "Optimizer.step#SGD.step", "torch.save", "get_batch"),
)


@st.composite
def messy(draw, host_only=False):
    """Four steps full of events of any kind, anywhere, overlapping as they like."""
    trace = Trace()
    trace.steps(*EDGES)
    for method, (start, end), fields in draw(st.lists(events, min_size=1, max_size=25)):
        if host_only and "stream" in fields:
            continue
        if method in ("annotation", "frame"):
            getattr(trace, method)(fields["name"], start, end, tid=fields["tid"])
        else:
            getattr(trace, method)(start, end, **fields)
    return trace


def parts_in_window(trace):
    """Parts per step of a fixed window, whatever the steps are found to be."""
    return [named(row) for row in parts_of(trace.read()).per_step]


def told_of(trace):
    """Parts per step of a fixed window, and which of them held the device alone or hidden."""
    found = parts_of(trace.read())
    return [table.tolist() for table in (found.per_step, found.alone, found.hidden) if table is not None]


def parts_of(columns):
    return cut(columns, WINDOW, is_marked=True)


@quick
@given(messy())
def test_parts_are_never_negative_and_sum_to_the_window_exactly(trace):
    for row, start, end in zip(parts_in_window(trace), EDGES, EDGES[1:], strict=False):
        assert all(value > 0 for value in row.values())
        assert sum(row.values()) == (end - start) * US


@quick
@given(messy())
def test_what_held_the_device_is_within_what_it_did_not_compute(trace):
    found = parts_of(trace.read())
    if found.alone is None:
        return
    lost = [label for label, name in enumerate(LEAVES) if not name.startswith("compute.")]
    held, hidden = found.alone.sum(axis=1), found.hidden.sum(axis=1)
    assert (found.alone >= 0).all()
    assert (found.hidden >= 0).all()
    assert (held + hidden <= found.per_step[:, lost].sum(axis=1)).all()
    moving = [
        label for label, name in enumerate(LEAVES) if name.startswith(("comm.", "input.h2d", "sync.d2h", "mem.off"))
    ]
    assert (hidden <= found.per_step[:, moving].sum(axis=1)).all()


@quick
@given(messy(host_only=True))
def test_parts_of_a_host_without_a_device_sum_to_the_window_exactly(trace):
    assert all(sum(row.values()) == 300 * US for row in parts_in_window(trace))


@quick
@given(messy(), st.randoms(use_true_random=False))
def test_the_order_of_the_events_in_the_file_does_not_matter(trace, random):
    before = told_of(trace)
    random.shuffle(trace.events)
    assert told_of(trace) == before


@pytest.mark.parametrize("order", [(1_400, 1_560), (1_560, 1_400)])
def test_of_two_kernels_that_start_together_the_one_issued_last_explains_the_gap(order):
    trace = Trace()
    trace.step(0, 1_000, 2_000)
    trace.op(890, 895)
    trace.kernel(1_000, 1_500)
    for stream, issued in enumerate(order):
        trace.kernel(1_600, 2_000, stream=stream, launch=(issued - 8, issued))
    found = trace.parts()
    assert (found["over.python"], found["over.dispatch"], found["over.launch"]) == (52 * US, 8 * US, 40 * US)


@pytest.mark.parametrize("order", [(1, 2), (2, 1)])
def test_of_two_operators_with_the_same_extent_the_later_one_is_the_inner_one(order):
    names = {1: "aten::zeros", 2: "aten::empty"}
    trace = Trace()
    trace.steps(0, 100, 200)
    for number in order:
        trace.event(names[number], "cpu_op", 110, 150, **{"External id": number})
    assert [(kernel.name, kernel.total_ns) for kernel in trace.facts().kernels if kernel.total_ns] == [
        ("aten::empty", 40 * US)
    ]


def test_a_kernel_without_length_does_not_explain_the_gap_it_stands_behind():
    trace = Trace()
    trace.step(0, 1_000, 2_000)
    trace.kernel(1_000, 1_500)
    trace.kernel(1_600, 2_000, launch=(1_500, 1_560))
    before = trace.parts()
    trace.kernel(1_600, 1_600, stream=9, launch=(1_000, 1_010))
    assert trace.parts() == before


@quick
@given(messy())
def test_events_written_twice_count_once(trace):
    assert told_of(trace.changed(lambda event: [event, event])) == told_of(trace)


@quick
@given(messy(), st.sampled_from([1, 7_500_000_000, 1_712_195_496_004_644]), st.sampled_from(["0", "0.203"]))
def test_a_shift_of_all_times_changes_nothing(trace, microseconds, fraction):
    offset = microseconds + Decimal(fraction)
    shifted = trace.changed(lambda event: {**event, "ts": event["ts"] + offset}).facts()
    plain = trace.facts()
    assert (shifted.steps.start - plain.steps.start == int(offset * 1000)).all()
    assert shifted.partition.per_step.tolist() == plain.partition.per_step.tolist()


@quick
@given(messy())
def test_the_numbers_of_processes_threads_streams_and_correlations_mean_nothing(trace):
    def renumber(event):
        args = event["args"]
        if "stream" in args:
            args["stream"] = 1_000 - args["stream"]
        if "correlation" in args:
            args["correlation"] = 999_999 - args["correlation"]
        return {**event, "pid": f"job {event['pid']}", "tid": 5_000 - event["tid"], "args": args}

    assert told_of(trace.changed(renumber)) == told_of(trace)


@quick
@given(messy(), st.lists(st.tuples(st.integers(0, 1_400), st.integers(0, 4)), min_size=1, max_size=12))
def test_events_without_length_change_nothing(trace, places):
    before = parts_in_window(trace)
    for at, kind in places:
        if kind == 0:
            trace.kernel(at, at, tid=AUTOGRAD, launch=(at, at))
        elif kind == 1:
            trace.op(at, at, name="aten::mm")
        elif kind == 2:
            trace.loader(at, at)
        elif kind == 3:
            trace.sync(at, at)
        else:
            trace.memset(at, at)
    assert parts_in_window(trace) == before


def test_a_launch_without_length_is_no_work_of_a_frame_that_gets_a_batch():
    trace = Trace()
    trace.steps(*EDGES)
    trace.frame("train.py(1): get_batch", 0, 101, tid=AUTOGRAD)
    trace.kernel(101, 102, tid=AUTOGRAD, launch=(101, 102))
    before = parts_in_window(trace)
    trace.kernel(0, 0, tid=AUTOGRAD, launch=(0, 0))
    assert parts_in_window(trace) == before
    assert before[0]["input.prep"] == US


@slow
@given(messy())
def test_compressed_text_and_decimals_read_the_same(tmp_path_factory, trace):
    directory = tmp_path_factory.mktemp("forms")
    decimals = trace.changed(lambda e: {**e, "ts": Decimal(f"{e['ts']}.000"), "dur": Decimal(f"{e['dur']}.0")})
    strings = trace.changed(lambda e: {**e, "pid": str(e["pid"]), "tid": str(e["tid"])})
    forms = [
        read_trace(trace.write(directory / "plain.json")),
        read_trace(trace.write(directory / "packed.json.gz")),
        read_trace(decimals.write(directory / "decimals.json")),
        read_trace(strings.write(directory / "strings.json")),
    ]
    plain, *others = (parts_of(columns).per_step.tolist() for columns in forms)
    assert all(other == plain for other in others)


loops = st.fixed_dictionaries(
    {
        "kernels": st.integers(1, 5),
        "kernel": st.integers(20, 200),
        "name": st.sampled_from([GEMM, ELEMENTWISE]),
        "fetch": st.integers(0, 300),
        "python": st.integers(0, 300),
        "comm": st.integers(0, 300),
        "batch_copy": st.integers(0, 100),
        "gap": st.integers(0, 20),
    }
)


def share(trace, *parts):
    found = trace.parts()
    return sum(found.get(part, 0) for part in parts) / sum(found.values())


@slow
@given(loops)
def test_a_loop_has_the_parts_it_was_built_from(loop):
    found = training(8, **loop).parts()
    steady = 6  # the first is warm-up, the last is cut
    computing = "compute.math" if loop["name"] == GEMM else "compute.membw"
    assert found[computing] == steady * loop["kernels"] * loop["kernel"] * US
    assert found.get("input.wait", 0) == steady * loop["fetch"] * US
    assert found.get("comm.other", 0) == steady * loop["comm"] * US
    assert found.get("input.h2d", 0) == steady * (loop["batch_copy"] + 6 * bool(loop["batch_copy"])) * US
    assert found.get("over.python", 0) == steady * loop["python"] * US


@slow
@given(loops, st.integers(2, 9))
def test_in_another_unit_of_time_the_shares_are_the_same(loop, scale):
    trace = training(5, **loop)
    # The spans begin at a fixed time of the loop, so that all times scale, ends included.
    scaled = trace.changed(lambda event: {**event, "ts": event["ts"] * scale, "dur": event["dur"] * scale})
    assert scaled.parts() == {name: value * scale for name, value in trace.parts().items()}


@slow
@given(loops.map(lambda loop: {**loop, "kernel": loop["kernel"] + 20}))
def test_two_halves_of_a_kernel_are_the_kernel(loop):
    def halve(event):
        if event["cat"] != "kernel":
            return event
        half = event["dur"] // 2
        return [{**event, "dur": half}, {**event, "ts": event["ts"] + half, "dur": event["dur"] - half}]

    trace = training(5, **loop)
    assert trace.changed(halve).parts() == trace.parts()


@slow
@given(
    loops,
    st.sampled_from([("fetch", "input.wait"), ("python", "over.python"), ("comm", "comm.other")]),
    st.integers(1, 400),
)
def test_more_of_a_cause_never_lowers_its_part(loop, cause, more):
    key, part = cause
    worse = {**loop, key: loop[key] + more}
    assert share(training(5, **worse), part) > share(training(5, **loop), part)


@slow
@given(loops)
def test_a_longer_capture_of_the_same_loop_has_the_same_shares(loop):
    short, long = training(5, **loop).parts(), training(9, **loop).parts()
    assert {name: value / 3 for name, value in short.items()} == {name: value / 7 for name, value in long.items()}


def disturbed(trace, *spans, device=0):
    """The same trace with work of every kind in the spans given."""
    for start in spans:
        trace.op(start, start + 50)
        trace.loader(start + 50, start + 400)
        trace.sync(start + 500, start + 600)
        trace.malloc(start + 600, start + 700)
        trace.collective(start + 500, start + 600, name=ALL_REDUCE, device=device)
        trace.copy(start + 600, start + 700, device=device)
        for index in range(10):
            trace.kernel(start + 100 * index, start + 100 * index + 90, device=device, launch=(start, start + 5))
    return trace


def test_what_happens_outside_the_steps_never_counts():
    plain = training(6, fetch=200, python=100, comm=50, start=50_000).facts()
    trace = training(6, fetch=200, python=100, comm=50, start=50_000)
    other = disturbed(trace, 1_000, 40_000, 60_000).facts()
    assert named(other.totals) == named(plain.totals)
    for field in ("device", "input", "copies", "syncs", "allocator", "math", "chains", "comm", "kernels"):
        assert getattr(other, field) == getattr(plain, field), field


def test_a_device_that_worked_outside_the_steps_is_not_the_judged_one():
    plain = training(6, fetch=200, start=50_000).parts()
    trace = training(6, fetch=200, start=50_000)
    for start in range(0, 40_000, 1_000):
        trace.kernel(start, start + 1_000, device=1)
    assert trace.parts() == plain


@pytest.mark.parametrize("length", [1, 60])
def test_a_second_device_changes_nothing_that_is_said_of_the_first(length):
    plain = training(6, fetch=200, python=100, comm=50, name=ELEMENTWISE).facts()
    trace = training(6, fetch=200, python=100, comm=50, name=ELEMENTWISE)
    other = trace.changed(
        lambda event: (
            [event, {**event, "dur": Decimal(length), "args": {**event["args"], "device": 1, "correlation": 90_000}}]
            if event["cat"] == "kernel" and "nccl" not in event["name"]
            else event
        )
    ).facts()
    assert named(other.totals) == named(plain.totals)
    for field in ("device", "syncs", "math", "chains", "comm", "kernels"):
        assert getattr(other, field) == getattr(plain, field), field
