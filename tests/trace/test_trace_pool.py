"""Windows of one process as one trace."""

import numpy as np
from trace_recipes import plain, span, write

from profilerkit.formats.registry import read_trace
from profilerkit.trace.columns import Category
from profilerkit.trace.launches import launch_of
from profilerkit.trace.merged import pooled


def window(tmp_path, name, first, *, base=0, thread=1, extra=()):
    """A launch and its kernel 20 µs later in each window, with the same correlation in all of them."""
    events = [
        span(f"ProfilerStep#{first}", cat="user_annotation", ts=1000, dur=100, tid=thread),
        span("aten::mm", ts=1010, tid=thread, **{"Input Dims": [[2, first]], "Input type": ["float"]}),
        span("cudaLaunchKernel", cat="cuda_runtime", ts=1020, dur=5, tid=thread, correlation=7),
        span(f"k{first}", cat="kernel", ts=1040, dur=50, pid=0, tid=9, device=0, stream=9, correlation=7),
        *extra,
    ]
    return read_trace(write(tmp_path, plain(events, baseTimeNanoseconds=base), name))


def test_nothing_links_events_of_different_windows(tmp_path):
    found = pooled([window(tmp_path, f"{n}.json", n, base=10**15 + n * 10**9) for n in range(3)])
    launches = launch_of(found)
    work = np.flatnonzero(launches >= 0)
    assert (found.ts_ns[work] - found.ts_ns[launches[work]]).tolist() == [20_000] * 3
    assert [found.strings[name] for name in found.name[work].tolist()] == ["k0", "k1", "k2"]


def test_windows_stand_on_the_clock_of_the_first(tmp_path):
    found = pooled([window(tmp_path, f"{n}.json", n, base=10**15 + n * 10**9) for n in range(2)])
    kernels = found.ts_ns[found.category == Category.KERNEL]
    assert np.diff(kernels).tolist() == [10**9]
    assert np.diff(found.windows).tolist() == [10**9]


def test_threads_and_shapes_keep_what_they_say(tmp_path):
    found = pooled([window(tmp_path, "a.json", 0), window(tmp_path, "b.json", 1, thread=2)])
    operators = np.flatnonzero(found.category == Category.CPU_OP)
    assert [found.threads[thread] for thread in found.thread[operators].tolist()] == [("1", "1"), ("1", "2")]
    assert [found.strings[dims] for dims in found.input_dims[operators].tolist()] == ["[[2, 0]]", "[[2, 1]]"]
    assert (found.input_dims[found.category == Category.KERNEL] == -1).all()


def test_damage_is_that_of_all_windows(tmp_path):
    bad = span("bad", ts=1, dur=-5)
    found = pooled([window(tmp_path, "a.json", 0, extra=[bad]), window(tmp_path, "b.json", 1, extra=[bad])])
    assert found.damage.dropped == 2
    assert len(found.damage.notes) == 1


def test_one_window_is_itself(tmp_path):
    alone = window(tmp_path, "a.json", 0)
    assert pooled([alone]) is alone
