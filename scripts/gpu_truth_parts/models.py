"""Ordinary programs under ``profilerkit run``: the verdict beside the fault, the saving beside the fix really run."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import profilerkit
from gpu_truth_parts.checks import Check, near
from gpu_truth_parts.device import Device
from gpu_truth_parts.program import python, step_ms
from gpu_truth_parts.scenarios import HEALTHY, said, saved

_STEPS, _QUICK_STEPS = 150, 60
#: How far the report's median step may be from the mean of the bare program.
_MOST_RATIO = 0.05
_OVERHEAD, _COMPUTE = ("overhead-bound",), ("compute-bound", "memory-bound")
#: Verdicts that are right, and rules of which one has to fire, by program. Without rules there is no fix.
_CAUSES = {
    "gpt_fp32": (_COMPUTE, ("CP001",)),
    "gpt_eager": (_COMPUTE, ("CP004", "CP005")),
    "gpt_norms": (_OVERHEAD, ()),
    "pictures": (("input-bound",), ("IN002", "IN001")),
    "small_kernels": (_OVERHEAD, ("OV001",)),
    "images_amp": ((*_OVERHEAD, *HEALTHY), ("OV001",)),
    "scores": (("memory-bound",), ("CP005",)),
    "tables": (("memory-bound",), ("CP013",)),
    "actor": (_OVERHEAD, ("OV001",)),
    "boxes": (_OVERHEAD, ("OV001",)),
}


def checks(device: Device, place: Path) -> Iterator[Check]:
    """For each program: how it ended, its verdict, its step, its saving."""
    for name, (bounds, rules) in _CAUSES.items():
        path = place / "runs" / f"model_{name}"
        shutil.rmtree(path, ignore_errors=True)
        steps = _QUICK_STEPS if device.quick else _STEPS
        program = ["-m", "gpu_truth_parts.networks", name, "--steps", str(steps)]
        recorded = python("-m", "profilerkit", "run", "-o", str(path), "--no-analyze", *program)
        if recorded.returncode or not path.exists():
            yield Check(name=name, passed=False, why=recorded.stderr[-500:])
            continue
        report = profilerkit.analyze(str(path))
        yield said(f"{name}: trace", report, bounds, rules)
        fault_ms = step_ms(python(*program))
        yield Check(name=f"{name}: mean step recorded and bare, ms", value=[step_ms(recorded), fault_ms])
        yield near(f"{name}: step, ms", report.steps.time_ns.median / 1e6, fault_ms, _MOST_RATIO)
        if rules:
            yield saved(name, report, rules, 1 - step_ms(python(*program, "--fixed")) / fault_ms)
