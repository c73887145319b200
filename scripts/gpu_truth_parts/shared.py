"""Another process on the same GPU: is it seen, and what does it cost?"""

import subprocess
from collections.abc import Iterator
from pathlib import Path

from gpu_truth_parts.checks import Check
from gpu_truth_parts.device import Device
from gpu_truth_parts.loop import Loop, findings, record, wall_s
from gpu_truth_parts.program import command, environment


def checks(device: Device, place: Path) -> Iterator[Check]:
    """The step alone and beside a neighbour, and the rules that fire beside it."""
    alone_s = wall_s(Loop(), device, 60)
    with subprocess.Popen(command("neighbour"), env=environment(), stdout=subprocess.PIPE, text=True) as other:
        try:
            assert other.stdout is not None
            other.stdout.readline()
            beside_s = wall_s(Loop(), device, 60)
            report, _ = record(Loop(), device, place / "runs" / "shared", 120)
        finally:
            other.terminate()
    yield Check(name="step alone and beside, ms", value=[1e3 * alone_s, 1e3 * beside_s])
    fired = sorted(findings(report))
    yield Check(name="the neighbour is named", value=fired, reference="RU006", passed="RU006" in fired)
