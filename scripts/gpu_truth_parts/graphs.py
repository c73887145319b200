"""Whole steps captured as CUDA graphs, ``torch.compile``'s graphs, and forked workers: recording may break none."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from gpu_truth_parts.checks import Check
from gpu_truth_parts.device import Device
from gpu_truth_parts.program import run
from profilerkit.rundir.reader import read_run

#: Program and its arguments. By default a window opens after five steps; after one it is open as the graph is captured.
_RUNS: dict[str, tuple[object, ...]] = {
    "whole step captured": ("whole_step", 5),
    "whole step captured inside a window": ("whole_step", 1),
    "compile reduce-overhead": ("compiled",),
    "forked workers": ("forked",),
}


def checks(_device: Device, place: Path) -> Iterator[Check]:
    """For each program how it ended, and which features the recording had to switch off."""
    paths = [place / "runs" / f"graphs_{name.replace(' ', '_')}" for name in _RUNS]
    with ThreadPoolExecutor() as pool:  # only how they end is judged
        ended = pool.map(lambda path, asked: run(str(asked[0]), path, *asked[1:]), paths, _RUNS.values())
    for name, path, done in zip(_RUNS, paths, ended, strict=True):
        meta = read_run(path).ranks[0].meta if path.exists() else None
        off = {key: feature.reason for key, feature in (meta.features if meta else {}).items() if not feature.on}
        passed = done.returncode == 0 and "device_clock" not in off
        value = {"exit": done.returncode, "off": off}
        yield Check(name=name, value=value, reference="exit 0, device clock on", passed=passed, why=done.stderr[-500:])
