"""Runs the parts, each of which writes its own file after every check, and joins the files to one document."""

import platform
import time
from pathlib import Path
from typing import Any

import msgspec
import torch

from gpu_truth_parts import (
    clock,
    graphs,
    micro,
    models,
    nvml,
    oom,
    overhead,
    peaks,
    preflight,
    scenarios,
    shared,
    tries,
    window,
)
from gpu_truth_parts.checks import NEEDS_GPU, Check
from gpu_truth_parts.device import Device
from gpu_truth_parts.fixtures import Cleaner
from profilerkit import __version__

#: In the order they run: the first ones say whether events, CUPTI and NVML work at all.
_MODULES = (preflight, micro, peaks, clock, window, graphs, nvml, scenarios, models, tries, overhead, oom, shared)
PARTS = {module.__name__.rpartition(".")[2]: module for module in _MODULES}
#: A CPU has nothing of what these look at; what recording costs there is in ``reports/overhead.html``.
_GPU_ONLY = (micro, peaks, graphs, nvml, models, tries, overhead, oom, shared)


class PartResult(msgspec.Struct, kw_only=True):
    """``PART.json``.

    Attributes:
        about: what the part compares.
        device: what it ran on; ``None`` where it did not run.
        versions: of what it ran with.
        quick: fewer steps and rounds than a full run.
        seconds: it took.
    """

    part: str
    about: str
    device: str | None = None
    versions: str = ""
    quick: bool = False
    seconds: float = 0.0
    checks: list[Check] = msgspec.field(default_factory=list)


def measure(name: str, device: Device, place: Path, end_s: float) -> PartResult:
    """Run one part and write ``PART.json`` below ``place``. It ends after the check that is done at ``end_s``.

    A part that would begin later does not run, and leaves the file of an earlier run.

    Args:
        name: of :data:`PARTS`.
        device: to run it on.
        place: directory of the parts' files and of the recordings, in ``runs``.
        end_s: of ``time.monotonic``.
    """
    module, began_s = PARTS[name], time.monotonic()
    versions = f"profilerkit {__version__}, torch {torch.__version__}, Python {platform.python_version()}"
    result = PartResult(part=name, about=_about(name), device=device.label, versions=versions, quick=device.quick)
    found = [Check(name=name, why=NEEDS_GPU)] if module in _GPU_ONLY and device.name != "cuda" else None
    clean, over = Cleaner(), Check(name="the rest", why="the time for all parts was over")
    if began_s > end_s:
        result.checks.append(over)
        return result
    try:
        for check in found or module.checks(device, place):
            result.checks.append(check)
            result.seconds = round(time.monotonic() - began_s, 1)
            _write(place / f"{name}.json", clean(msgspec.to_builtins(result)))
            if time.monotonic() > end_s:
                result.checks.append(over)
                break
    except Exception as error:  # noqa: BLE001 - one part must not cost the others; the report says what failed
        result.checks.append(Check(name=name, passed=False, why=f"{type(error).__name__}: {error}"))
    _write(place / f"{name}.json", clean(msgspec.to_builtins(result)))
    return result


def document(place: Path, earlier: Path) -> dict[str, Any]:
    """All parts below ``place`` as one document.

    A part without a file there is that of the ``earlier`` document, or else its name and what it would compare.
    """
    known = (
        {part["part"]: part for part in msgspec.json.decode(earlier.read_bytes())["parts"]} if earlier.exists() else {}
    )
    parts = []
    for name in PARTS:
        path = place / f"{name}.json"
        empty = msgspec.to_builtins(PartResult(part=name, about=_about(name)))
        parts.append(msgspec.json.decode(path.read_bytes()) if path.exists() else known.get(name, empty))
    return {"schema_version": 1, "version": __version__, "parts": parts}


def _about(name: str) -> str:
    return (PARTS[name].__doc__ or "").strip()


def _write(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n")
