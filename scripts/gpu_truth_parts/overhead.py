"""What recording costs a step of 1, 5 and 50 ms, and what stays of a trace window in the steps after it."""

import json
import shutil
import statistics
from collections.abc import Iterator
from pathlib import Path

from gpu_truth_parts.checks import Check
from gpu_truth_parts.device import MS, Device
from gpu_truth_parts.loop import Loop, wall_s
from gpu_truth_parts.program import TEARDOWN, run

_STEPS_MS = (1.0, 5.0, 50.0)
#: Pairs of a bare and a recorded block, and seconds of each.
_PAIRS, _QUICK_PAIRS, _BLOCK_S = 14, 6, 0.75
#: The shorter side of a step.
_SHORT = 0.2
_MOST_RATIO = 0.01
#: The standard error of a median over that of a mean, for a normal spread.
_OF_MEDIAN = 1.25


def checks(device: Device, place: Path) -> Iterator[Check]:
    """Paired blocks with and without the recording, device-bound and host-bound; then the steps after a window."""
    for bound in ("device", "host"):
        for step_ms in _STEPS_MS:
            long_s, short_s = step_ms * MS, _SHORT * step_ms * MS
            loop = Loop(long_s, short_s) if bound == "device" else Loop(short_s, long_s)
            ratio, error = _added(loop, device, device.steps(round(_BLOCK_S / long_s)), place / "runs" / "overhead")
            passed = ratio - 2 * error <= _MOST_RATIO
            value = {"ratio": ratio, "error": error}
            yield Check(name=f"{bound}-bound {step_ms:g} ms", value=value, reference=_MOST_RATIO, passed=passed)
    for setting in (None,) if device.quick else (None, "1", "0"):
        name = f"step after the window, {TEARDOWN} {'as we leave it' if setting is None else setting}"
        # A process each: CUPTI is attached once in a process.
        done = run("after_window", place / "runs" / f"after_window_{setting}", **{TEARDOWN: setting})
        found = json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else None
        within = found is not None and found["after_ms"] <= (1 + _MOST_RATIO) * found["before_ms"]
        # What the variable does by itself is only noted: ours is what has to hold.
        passed = within if setting is None else None
        yield Check(name=name, value=found, reference="after / before <= 1.01", passed=passed, why=done.stderr[-500:])


def _added(loop: Loop, device: Device, steps: int, path: Path) -> tuple[float, float]:
    """The median share that recording adds, and its standard error; which of a pair is first alternates."""
    ratios = []
    for pair in range(_QUICK_PAIRS if device.quick else _PAIRS):
        first, second = (None, path) if pair % 2 else (path, None)
        taken = {place: wall_s(loop, device, steps, place, deep=False) for place in (first, second)}
        ratios.append(taken[path] / taken[None] - 1)
    shutil.rmtree(path, ignore_errors=True)
    return statistics.median(ratios), _OF_MEDIAN * statistics.stdev(ratios) / len(ratios) ** 0.5
