"""What a trace window costs: runs with one beside runs without, and the steps inside it beside the others."""

import statistics
from time import perf_counter_ns
from typing import Any

from overhead_benchmark.variants import Variants

#: Enough for a window of ten steps after the warm-up, and not less than this long.
_STEPS, _SECONDS = 60, 0.5


def measure(variants: Variants, step_s: float, rounds: int) -> dict[str, list[float]]:
    """Per round: ns by which a run is longer per window, ns of a step inside and outside, and the run's windows."""
    steps = max(_STEPS, round(_SECONDS / step_s))
    found: dict[str, list[float]] = {"per_window_ns": [], "inside_ns": [], "outside_ns": [], "windows": []}
    _run(variants, steps, deep=True)  # the first session of a process loads what the profiler needs
    for _ in range(rounds):
        bare = _run(variants, steps, deep=False)
        laps = _run(variants, steps, deep=True)
        inside = _traced(variants.directory)
        if not inside:
            continue
        outside = [lap for number, lap in enumerate(bare) if number >= 5]
        found["windows"].append(len(inside))
        found["per_window_ns"].append((sum(laps) - sum(bare)) / len(inside))
        found["inside_ns"].append(statistics.median(laps[number] for steps_ in inside for number in steps_))
        found["outside_ns"].append(statistics.median(outside))
    return found


def _run(variants: Variants, steps: int, *, deep: bool) -> list[int]:
    """Time of every step of one recorded run, ns."""
    laps = []
    with variants.light(deep=deep) as step:
        last_ns = perf_counter_ns()
        for _ in range(steps):
            step()
            now_ns = perf_counter_ns()
            laps.append(now_ns - last_ns)
            last_ns = now_ns
    return laps


def _traced(directory: Any) -> list[range]:
    """The steps inside each window but its last, in which it ends."""
    from profilerkit.rundir.reader import read_run  # noqa: PLC0415 - the peers' environments do not have it

    windows = read_run(directory).ranks[0].windows
    return [range(status.first_step, status.last_step) for status, _ in windows if status.last_step > status.first_step]
