"""What recording costs a step of 1, 5 and 50 ms, one of launches or reads, and what stays of a trace window."""

import json
import shutil
import statistics
from collections.abc import Iterator
from pathlib import Path

from gpu_truth_parts.checks import Check
from gpu_truth_parts.device import MS, Device
from gpu_truth_parts.loop import HOST_LOOPS, Loop, wall_s
from gpu_truth_parts.program import TEARDOWN, python, run, step_ms

_STEPS_MS = (1.0, 5.0, 50.0)
#: Pairs of a bare and a recorded block, and seconds of each.
_PAIRS, _QUICK_PAIRS, _BLOCK_S = 14, 4, 0.75
#: Before a block: the samplers start once, in 5 to 10 ms, and are no part of a step.
_WARM_S = 1.0
#: The shorter side of a step.
_SHORT = 0.2
_MOST_RATIO = 0.01
#: The standard error of a median over that of a mean, for a normal spread.
_OF_MEDIAN = 1.25


def checks(device: Device, place: Path) -> Iterator[Check]:
    """Paired blocks with and without the recording, device-bound and host-bound; then the steps after a window."""
    for bound in ("device", "host"):
        for long_ms in _STEPS_MS:
            long_s, short_s = long_ms * MS, _SHORT * long_ms * MS
            loop = Loop(long_s, short_s) if bound == "device" else Loop(short_s, long_s)
            yield _added(f"{bound}-bound {long_ms:g} ms", loop, device, long_s, place)
    for kind, loop in HOST_LOOPS.items():
        yield _added(f"host-bound by {kind}", loop, device, wall_s(loop, device, 100), place)
    for setting in (None,) if device.quick else (None, "1", "0"):
        for kind in HOST_LOOPS:
            name = f"{kind} after the window, {TEARDOWN} {'as we leave it' if setting is None else setting}"
            # A process each: CUPTI is attached once in a process.
            done = run("after_window", place / "runs" / f"after_window_{setting}", kind, **{TEARDOWN: setting})
            found = json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else None
            within = found is not None and found["after_ms"] <= (1 + _MOST_RATIO) * found["before_ms"]
            # What the variable does by itself is only noted: ours is what has to hold.
            passed = within if setting is None else None
            why = "" if found else done.stderr[-500:]
            yield Check(name=name, value=found, reference="after / before <= 1.01", passed=passed, why=why)
    yield from _under_run(device, place)


def _added(name: str, loop: Loop, device: Device, step_s: float, place: Path) -> Check:
    """The median share that recording adds, and its standard error; which of a pair is first alternates."""
    ratios, path, steps = [], place / "runs" / "overhead", round(_BLOCK_S / step_s)
    for pair in range(_QUICK_PAIRS if device.quick else _PAIRS):
        first, second = (None, path) if pair % 2 else (path, None)
        taken = {at: wall_s(loop, device, steps, at, warm_s=_WARM_S, deep=False) for at in (first, second)}
        ratios.append(taken[path] / taken[None] - 1)
    shutil.rmtree(path, ignore_errors=True)
    ratio, error = statistics.median(ratios), _OF_MEDIAN * statistics.stdev(ratios) / len(ratios) ** 0.5
    passed = ratio - 2 * error <= _MOST_RATIO
    return Check(name=name, value={"ratio": ratio, "error": error}, reference=_MOST_RATIO, passed=passed)


def _under_run(device: Device, place: Path) -> Iterator[Check]:
    """Host-bound programs bare, recorded without a window, and after one, in turns: only noted, a process differs."""
    ways = {"bare": None, "light tier": ["--no-deep"], "after a window": []}
    for name in ("gpt_norms", "small_kernels"):
        program = ["-m", "gpu_truth_parts.networks", name, "--steps", "100"]
        taken: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(1 if device.quick else 3):
            for way, options in ways.items():
                path = place / "runs" / f"under_run_{name}"
                shutil.rmtree(path, ignore_errors=True)
                record = ["-m", "profilerkit", "run", "-o", str(path), "--no-analyze"]
                under = [] if options is None else [*record, *options]
                taken[way].append(step_ms(python(*under, *program)))
        yield Check(name=f"{name} under run, ms", value=taken)
