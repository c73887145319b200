"""Versions, what ``profilerkit doctor`` says, and the driver's state, which is read and never changed."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import torch

from gpu_truth_parts.checks import Check
from gpu_truth_parts.device import Device
from gpu_truth_parts.program import environment

_MOST_SECONDS = 60.0
#: What ``nvidia-smi --query-gpu`` is asked for: nothing that names a card.
_QUERIED = (
    "name,driver_version,vbios_version,pstate,persistence_mode,mig.mode.current,ecc.mode.current,power.limit,"
    "clocks.max.sm,clocks.max.mem,memory.total,pcie.link.gen.max,pcie.link.width.max,compute_mode"
)


def checks(device: Device, _place: Path) -> Iterator[Check]:
    """Versions, doctor, driver."""
    versions = {"torch": str(torch.__version__), "cuda": torch.version.cuda or "none", "python": sys.version.split()[0]}
    yield Check(name="versions", value=versions)
    yield Check(name="one piece of work, µs", value=[1e6 * seconds for seconds in device.piece_s])
    command = [sys.executable, "-m", "profilerkit", "doctor", "--json"]
    said = subprocess.run(
        command, capture_output=True, text=True, check=False, env=environment(), timeout=_MOST_SECONDS
    )
    found = json.loads(said.stdout)["checks"] if said.returncode == 0 else []
    states = {check["name"]: f"{check['state']}: {check['text']}" for check in found}
    yield Check(name="doctor", value=states, reference="exit 0", passed=said.returncode == 0, why=said.stderr[-500:])
    if device.name != "cuda":
        return
    for name in ("tracing", "nvml"):
        yield Check(name=f"doctor: {name}", value=states.get(name), passed=states.get(name, "").startswith("ok"))
    yield Check(name="driver", value=queried(_QUERIED))


def queried(fields: str) -> dict[str, str]:
    """What ``nvidia-smi`` says of the first device, by field."""
    command = ["nvidia-smi", "-i", "0", f"--query-gpu={fields}", "--format=csv,noheader,nounits"]
    said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=_MOST_SECONDS).stdout
    return dict(zip(fields.split(","), (value.strip() for value in said.split(",")), strict=True))
