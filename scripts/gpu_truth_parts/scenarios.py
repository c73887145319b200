"""Loops whose fault and fix are really run: verdicts beside causes, predicted savings beside measured ones."""

import statistics
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import msgspec
import torch

from gpu_truth_parts.checks import NEEDS_GPU, Check, holds, near
from gpu_truth_parts.clock import MOST_REPORT_RATIO
from gpu_truth_parts.device import MS, Device
from gpu_truth_parts.loop import Loop, findings, mean_step_ms, record, wall_s
from profilerkit.model.report import Report

#: Advice on a healthy run may save less than this.
_MOST_ADVICE = 0.05
#: Of the time of a step on a CPU: below it the savings below keep their margin.
_MOST_QUEUED = 0.02
_DISTURBED = "not judged: other programs took the processors"
HEALTHY = ("compute-bound", "balanced", "memory-bound")


@dataclass(frozen=True, slots=True)
class Scenario:
    """A known cause.

    Attributes:
        fault: the loop.
        fix: the loop without the fault; ``None`` for a healthy loop, or where there is no fix to apply.
        bounds: verdicts that are right.
        rules: rules of which one has to fire, first the one whose fix is applied.
        needs_gpu: a CPU does not have this cause.
    """

    fault: Loop
    fix: Loop | None = None
    bounds: tuple[str, ...] = HEALTHY
    rules: tuple[str, ...] = ()
    needs_gpu: bool = False


def _eight_pieces(*, read: bool) -> Callable[[Device], None]:
    def body(device: Device) -> None:
        for _ in range(8):
            device.burn(1.5 * MS)
            if read:
                device.read()

    return body


def _many(device: Device) -> None:
    device.tiny(_TINY)


_TINY = 600


class _Replayed:
    """The same small kernels as one CUDA graph, captured at first use; on a CPU a few of them."""

    def __init__(self) -> None:
        self._graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, device: Device) -> None:
        if device.name != "cuda":
            device.tiny(20)
            return
        if self._graph is None:
            device.sync()
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph):
                _many(device)
        self._graph.replay()


class _Fp32:
    """Products of FP32 matrices at a precision of torch's."""

    def __init__(self, precision: str) -> None:
        self._precision = precision
        self._matrix: torch.Tensor | None = None

    def __call__(self, device: Device) -> None:
        if self._matrix is None:
            self._matrix = torch.randn(4096, 4096, device=device.name)
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision(self._precision)
        for _ in range(8):
            self._matrix @ self._matrix
        torch.set_float32_matmul_precision(before)


def _waves(found: torch.Tensor) -> torch.Tensor:
    for _ in range(12):
        found = torch.sin(found) * 1.01 + 0.5
    return found


def _pointwise(device: Device) -> None:
    _waves(device.large)


@cache
def _compiled() -> Callable[[torch.Tensor], torch.Tensor]:
    return torch.compile(_waves)


def _pointwise_compiled(device: Device) -> None:
    _compiled()(device.large)


def _save(every: int) -> Callable[[Device, int], None]:
    """Write 128 MiB of the device's memory every so many steps."""

    def after(device: Device, step: int) -> None:
        if step % every == 0:
            with tempfile.TemporaryFile() as file:
                torch.save(torch.zeros(1 << 25, device=device.name), file)

    return after


def _allocating(*, release: bool) -> Callable[[Device], None]:
    def body(device: Device) -> None:
        large = torch.empty(64 << 20, dtype=torch.uint8, device=device.name)
        device.burn(6 * MS)
        del large
        if release:
            torch.cuda.empty_cache()

    return body


_STARVED = Loop(10 * MS, sample_s=30 * MS, pinned=False, loader={"num_workers": 1}, item_every=1)
_PAGEABLE = Loop(8 * MS, sample_bytes=64 << 20, pinned=False, item_every=1)
_SYNCED = Loop(host_s=6 * MS, item_every=0)
_OPTIMIZER = Loop(1 * MS, layers=48, width=256)

SCENARIOS = {
    "healthy_item_every_10": Scenario(Loop()),
    "healthy_item_every_50": Scenario(Loop(item_every=50)),
    "healthy_never_item": Scenario(Loop(item_every=0)),
    "healthy_item_each": Scenario(Loop(item_every=1)),
    "healthy_accumulate_4": Scenario(Loop(40 * MS, accumulate=4, item_every=5)),
    "healthy_wait_hidden": Scenario(Loop(sample_s=12 * MS, item_every=0), needs_gpu=True),
    "input_starved": Scenario(
        _STARVED, replace(_STARVED, loader={"num_workers": 4}), ("input-bound",), ("IN003", "IN006", "IN001")
    ),
    "pageable_copy": Scenario(
        _PAGEABLE, replace(_PAGEABLE, pinned=True), ("input-bound",), ("IN009", "IN010"), needs_gpu=True
    ),
    "sync_each": Scenario(
        replace(_SYNCED, body=_eight_pieces(read=True)),
        replace(_SYNCED, body=_eight_pieces(read=False)),
        ("overhead-bound",),
        ("OV002",),
        needs_gpu=True,
    ),
    "launch_bound": Scenario(Loop(body=_many), Loop(body=_Replayed()), ("overhead-bound",), ("OV001",), needs_gpu=True),
    "fp32_matmul": Scenario(
        Loop(body=_Fp32("highest")), Loop(body=_Fp32("high")), ("compute-bound",), ("CP001",), needs_gpu=True
    ),
    "pointwise_chain": Scenario(
        Loop(body=_pointwise), Loop(body=_pointwise_compiled), ("memory-bound",), ("CP004",), needs_gpu=True
    ),
    "checkpoint_every_16": Scenario(Loop(after=_save(16)), Loop(), ("overhead-bound",), ("RU001",)),
    "empty_cache": Scenario(
        Loop(body=_allocating(release=True), item_every=1),
        Loop(body=_allocating(release=False), item_every=1),
        ("memory-bound", "overhead-bound"),
        ("ME001",),
        needs_gpu=True,
    ),
    "unfused_optimizer": Scenario(
        replace(_OPTIMIZER, adamw={"foreach": False, "fused": False}),
        replace(_OPTIMIZER, adamw={"fused": True}),
        ("overhead-bound", "compute-bound"),
        ("CP006", "OV001"),
        needs_gpu=True,
    ),
}


def checks(device: Device, place: Path) -> Iterator[Check]:
    """For each scenario: step time, verdict and saving with a trace, and what the light tier alone says."""
    for name, scenario in SCENARIOS.items():
        if scenario.needs_gpu and device.name != "cuda":
            yield Check(name=name, why=NEEDS_GPU)
            continue
        fault_s, fixed_s = _timed(scenario, device)
        (traced, _), (light, light_ms) = (
            record(scenario.fault, device, place / "runs" / f"{name}_{tier}", device.steps(240), deep=tier == "traced")
            for tier in ("traced", "light")
        )
        found = [
            said(f"{name}: trace", traced, scenario.bounds, scenario.rules),
            said(f"{name}: light tier", light, (*scenario.bounds, "inconclusive")),
            near(f"{name}: step by the light tier, ms", mean_step_ms(light), light_ms, MOST_REPORT_RATIO),
        ]
        if fixed_s is not None:
            found.append(saved(name, traced, scenario.rules, 1 - fixed_s / fault_s))
        # On a CPU what other programs take is a fault of its own, and rightly named.
        is_disturbed = device.name != "cuda" and max(map(_queued_ratio, (traced, light))) > _MOST_QUEUED
        for check in found:
            yield msgspec.structs.replace(check, passed=None, why=_DISTURBED) if is_disturbed else check


def _queued_ratio(report: Report) -> float:
    """Share of the step in which the training thread waited for a processor that others had."""
    return 1.0 if "RU005" in findings(report) else report.steps.queued_ratio or 0.0


def _timed(scenario: Scenario, device: Device) -> tuple[float, float | None]:
    """Median seconds of a step with the fault and without, in turns: the clock of the chip drifts."""
    loops = (scenario.fault, scenario.fix) if scenario.fix else (scenario.fault,)
    rounds = [[wall_s(loop, device, device.steps(160)) for loop in loops] for _ in range(2 if device.quick else 3)]
    medians = [statistics.median(each) for each in zip(*rounds, strict=True)]
    return medians[0], medians[1] if scenario.fix else None


def said(name: str, report: Report, bounds: tuple[str, ...], rules: tuple[str, ...] = ()) -> Check:
    """The verdict beside the right ones; ``rules`` are those of which one has to fire."""
    verdict, fired = report.verdict, findings(report)
    advice = max((found.saving.expected for each in fired.values() for found in each if found.saving), default=0.0)
    # Advice on a healthy run is the worst error there is.
    right = advice < _MOST_ADVICE if bounds[: len(HEALTHY)] == HEALTHY else not rules or any(r in fired for r in rules)
    value: dict[str, object] = {"verdict": verdict.bound, "confidence": verdict.confidence, "says": verdict.headline}
    value |= {"rules": " ".join(sorted(fired)), "largest saving": advice}
    reference = "; ".join(filter(None, (" or ".join(bounds), " or ".join(rules))))
    return Check(name=name, value=value, reference=reference, passed=right and verdict.bound in bounds)


def saved(name: str, report: Report, rules: tuple[str, ...], measured: float) -> Check:
    """The predicted saving of the first rule that fired beside the measured one, both shares of a step."""
    fired = findings(report)
    saving = next((found.saving for rule in rules for found in fired.get(rule, ())), None)
    predicted = None if saving is None else [saving.low, saving.expected, saving.high]
    return Check(name=f"{name}: saving", value=predicted, reference=measured, passed=holds(saving, measured))
