"""Which runtime call launched which device work."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trace_recipes import plain, span, write

from profilerkit.formats.registry import read_trace
from profilerkit.trace.launches import launch_of


@pytest.fixture
def links(tmp_path):
    return lambda events: launch_of(read_trace(write(tmp_path, plain(events)))).tolist()


def call(name="cudaLaunchKernel", correlation=7, cat="cuda_runtime", **where):
    args = {} if correlation is None else {"correlation": correlation}
    return span(name, cat=cat, **where, **args)


def kernel(correlation=7, cat="kernel", **where):
    args = {} if correlation is None else {"correlation": correlation}
    return span("k", cat=cat, pid=0, **where, **args)


def flow(phase, number, *, ts, pid, tid, cat="ac2g"):
    return {"ph": phase, "id": number, "cat": cat, "name": cat, "pid": pid, "tid": tid, "ts": ts}


@pytest.mark.parametrize("cat", ["kernel", "gpu_memcpy", "gpu_memset"])
def test_device_work_is_joined_by_correlation(links, cat):
    assert links([call(), kernel(cat=cat), call(correlation=8), kernel(9)]) == [-1, 0, -1, -1]


def test_one_graph_launch_has_many_kernels(links):
    assert links([call("cudaGraphLaunch"), kernel(), kernel(), kernel()]) == [-1, 0, 0, 0]


def test_device_and_sync_rows_with_the_same_correlation_are_no_launch(links):
    assert links([kernel(), span("Stream Sync", cat="cuda_sync", correlation=7), kernel()]) == [-1, -1, -1]
    assert links([kernel(), span("op", correlation=7), call(), kernel()]) == [2, -1, -1, 2]


@pytest.mark.parametrize(
    "name", ["cudaLaunchKernel", "cuLaunchKernelEx", "hipModuleLaunchKernel", "cudaMemcpyAsync", "hipMemsetAsync"]
)
def test_launch_wins_over_other_calls_with_its_correlation(links, name):
    assert links([call("cudaStreamIsCapturing"), call(name), call("cudaStreamSynchronize"), kernel()])[3] == 1


def test_without_a_launch_name_the_first_call_wins(links):
    assert links([call("INVALID"), call("other"), kernel()]) == [-1, -1, 0]


def test_unknown_correlations_are_not_joined_to_each_other(links):
    assert links([call(correlation=None), kernel(None)]) == [-1, -1]
    assert links([call(correlation=2**70), kernel(2**70)]) == [-1, -1]


def test_work_without_a_correlation_is_joined_by_its_flow(links):
    events = [
        call(correlation=None, ts=100, tid=5),
        call("cudaStreamSynchronize", correlation=None, ts=200, tid=5),
        kernel(None, ts=150, tid=7),
        kernel(None, ts=180, tid=7),
        flow("s", 3, ts=100, pid=1, tid=5),
        flow("f", 3, ts=150, pid=0, tid=7),
    ]
    assert links(events) == [-1, -1, 0, -1]


def test_forward_backward_flows_link_no_device_work(links):
    events = [
        call(correlation=None, ts=100, tid=5),
        kernel(None, ts=150, tid=7),
        flow("s", 3, ts=100, pid=1, tid=5, cat="fwdbwd"),
        flow("f", 3, ts=150, pid=0, tid=7, cat="fwdbwd"),
    ]
    assert links(events) == [-1, -1]


def test_trace_without_device_work_has_no_links(links):
    assert links([span(), span()]) == [-1, -1]
    assert links([call()]) == [-1]


rows = st.lists(st.tuples(st.sampled_from(["call", "launch", "kernel"]), st.integers(-1, 6)), min_size=1, max_size=25)


@settings(deadline=None)
@given(rows)
def test_links_agree_with_a_search_row_by_row(tmp_path_factory, rows):
    makers = {"call": lambda c: call("cudaFree", c), "launch": lambda c: call("cudaLaunchKernel", c), "kernel": kernel}
    columns = read_trace(
        write(tmp_path_factory.mktemp("trace"), plain([makers[kind](number) for kind, number in rows]))
    )

    def expected(number):
        for wanted in ("launch", "call"):
            for row, (kind, found) in enumerate(rows):
                if kind == wanted and found == number >= 0:
                    return row
        return -1

    assert launch_of(columns).tolist() == [expected(number) if kind == "kernel" else -1 for kind, number in rows]
