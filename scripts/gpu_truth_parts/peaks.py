"""Rates of matrix products and copies beside the table of hardware."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch

from gpu_truth_parts.checks import Check, between
from gpu_truth_parts.device import Device
from profilerkit.hardware import lookup

#: A real kernel reaches at least half of a peak that is right, and never more than it, give or take the clock.
_LOW, _HIGH = 0.5, 1.02
_SIDE, _COPIED_BYTES = 8192, 1 << 30
_MATRICES = {"bf16": torch.bfloat16, "tf32": torch.float32, "fp32": torch.float32}


def checks(device: Device, _place: Path) -> Iterator[Check]:
    """The device's row of the table, and each rate as a share of it."""
    spec = lookup(device.label, torch.cuda.get_device_properties(0).total_memory)
    yield Check(name="row of the table", value=spec and spec.name, reference=device.label, passed=spec is not None)
    if spec is None:
        return
    before = torch.get_float32_matmul_precision()
    for name, dtype in _MATRICES.items():
        matrix = torch.randn(_SIDE, _SIDE, device="cuda", dtype=dtype)
        torch.set_float32_matmul_precision("high" if name == "tf32" else "highest")
        seconds = min(device.seconds(partial(torch.mm, matrix, matrix)) for _ in range(3))
        yield _rate(f"{name}, TFLOP/s", 2 * _SIDE**3 / seconds / 1e12, getattr(spec, f"{name}_tflops"))
    torch.set_float32_matmul_precision(before)
    target, source = (torch.empty(_COPIED_BYTES, dtype=torch.uint8, device="cuda") for _ in range(2))
    rate = 2 * target.nbytes / device.seconds(lambda: target.copy_(source)) / 1e9
    yield _rate("device memory, GB/s", rate, spec.hbm_gb_per_s)
    host = torch.empty(_COPIED_BYTES // 4, dtype=torch.uint8).pin_memory()
    seconds = device.seconds(lambda: target[: host.nbytes].copy_(host, non_blocking=True))
    yield _rate("host to device, pinned, GB/s", host.nbytes / seconds / 1e9, spec.pcie_gb_per_s)


def _rate(name: str, rate: float, peak: float | None) -> Check:
    return Check(name=name, value=rate) if peak is None else between(name, rate, _LOW * peak, _HIGH * peak)
