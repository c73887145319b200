"""The device's own step times beside a wall clock that waits for the device, host-bound and device-bound."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from gpu_truth_parts.checks import Check, between, near
from gpu_truth_parts.device import MS, Device
from gpu_truth_parts.loop import Loop, mean_step_ms, record, wall_s
from profilerkit.analysis.events import EVENT_DTYPE
from profilerkit.rundir.layout import EventFlag, EventKind
from profilerkit.rundir.reader import read_run

#: Loops, and the share of steps at whose end the host is ahead; ``None`` where it depends on the machine.
_LOOPS = {
    "device_bound": (Loop(20 * MS, 2 * MS, item_every=0), (0.9, 1.0)),
    "host_bound": (Loop(2 * MS, 20 * MS, item_every=0), (0.0, 0.1)),
    "short": (Loop(1 * MS, 0.2 * MS, item_every=0), None),
}
#: How far the device's median may be from the wall clock of a bare loop.
_MOST_RATIO = 0.02
#: How far the report's mean step may be from the wall clock of the recorded loop: it leaves out other first steps.
MOST_REPORT_RATIO = 0.03
#: Steps before the queue is full.
_WARM = 10


def checks(device: Device, place: Path) -> Iterator[Check]:
    """For each loop: the device's records, how often the host is ahead, and the step of the report."""
    for name, (loop, ahead) in _LOOPS.items():
        wall_ms = 1e3 * wall_s(loop, device, device.steps(100))
        path = place / "runs" / f"clock_{name}"
        report, recorded_ms = record(loop, device, path, device.steps(150), deep=False)
        events = np.frombuffer(read_run(path).ranks[0].events, dtype=EVENT_DTYPE)
        records = events[events["kind"] == EventKind.DEVICE][_WARM:]
        if len(records):
            yield near(f"{name}: device record, ms", float(np.median(records["dur"])) / 1e6, wall_ms, _MOST_RATIO)
            share = float(np.mean(records["flags"] & EventFlag.CAUGHT_UP == 0))
            yield (
                Check(name=f"{name}: host ahead", value=share)
                if ahead is None
                else between(f"{name}: host ahead", share, *ahead)
            )
        else:
            why = "no device record" if device.is_asynchronous else "a CPU has no queue of its own"
            passed = False if device.is_asynchronous else None
            yield Check(name=f"{name}: device record, ms", reference=wall_ms, passed=passed, why=why)
        yield near(f"{name}: step of the report, ms", mean_step_ms(report), recorded_ms, MOST_REPORT_RATIO)
