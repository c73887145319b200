"""Records a kind in one way, has it analysed, and holds what the report says against the truth."""

import statistics
import tempfile
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Literal

from device_loops.kinds import UNSEEN, Kind
from device_loops.loop import Loop
from device_loops.program import WINDOW_FIRST, WINDOW_STEPS, Recorded, simulate
from device_loops.recording import device_steps_ns, write_run, write_traces
from profilerkit import analyze
from profilerkit.model.finding import in_order
from profilerkit.model.report import Report

Mode = Literal["light", "drained", "queued", "drained alone", "queued alone"]
#: The light tier; with a window that waits for the device as it opens, and one that does not; their traces alone.
MODES: tuple[Mode, ...] = ("light", "drained", "queued", "drained alone", "queued alone")

#: A saving from which a finding is one.
LEAST_SAVING = 0.05
#: How far the reported step may be from the device's.
STEP_TOLERANCE = 0.02
#: How far an expected saving may lie below and above the true one. The fixed loop has no cause left at all, which few
#: fixes reach: below is wider.
BELOW, ABOVE = 0.25, 0.08
_WARMUP = 10
#: Of a run the cause has the same share with a window and without.
_SEEN = ("light", "drained alone", "queued alone")


@dataclass(frozen=True)
class Judged:
    """One kind in one mode.

    Attributes:
        wrong: what is wrong with the report; empty when it is right.
        step_ms: step of the report, its median or mean; ``None`` where it has none. ``true_step_ms`` is the device's.
        true_saving: how much shorter the mean step is without the cause; ``None`` where that is not told.
    """

    kind: Kind
    mode: Mode
    report: Report
    wrong: tuple[str, ...]
    step_ms: float | None
    true_step_ms: float
    true_saving: float | None


def recorded(loop: Loop, window: str | None) -> tuple[Recorded, ...]:
    """The simulated run, made once for all that differ only in what the profiler sees."""
    return _simulated(replace(loop, cupti="kernels", annotated=False), window)


@lru_cache(8)  # the ways of one kind follow each other
def _simulated(loop: Loop, window: str | None) -> tuple[Recorded, ...]:
    return tuple(simulate(loop, window))


def judge(kind: Kind, mode: Mode) -> Judged:
    """Record, analyse, compare."""
    window = None if mode == "light" else mode.split()[0]
    ranks = recorded(kind.loop, window)
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "run"
        if mode.endswith("alone"):
            report = analyze(*write_traces(path, kind.loop, ranks))
        else:
            report = analyze(write_run(path, kind.loop, ranks))
    steps = true_steps_ns(ranks, mode)
    truth = (statistics.fmean(steps) if kind.by_mean else statistics.median(steps)) / 1e6
    times = report.steps.time_ns
    step = None if times is None else (times.mean if kind.by_mean else times.median) / 1e6
    savings = true_savings(kind, mode)
    told = sees_kernels(kind, mode) or not mode.endswith("alone")  # operators alone do not show the device's steps
    wrong = (*(_wrong_step(step, truth) if told else ()), *(_alarms(kind, mode, report) if kind.is_healthy else
                                          _missed(kind, mode, report, savings)))  # fmt: skip
    return Judged(kind, mode, report, wrong, step, truth, savings[0] if savings else None)


def true_steps_ns(ranks: tuple[Recorded, ...], mode: Mode) -> list[int]:
    """Steps of the device: of the window where nothing else is read, else of the run but for warm-up and window."""
    steps, past = device_steps_ns(ranks[0]), WINDOW_FIRST + WINDOW_STEPS
    if mode.endswith("alone"):
        return steps[WINDOW_FIRST - 1 : past - 1]
    return steps[_WARMUP:] if mode == "light" else [*steps[_WARMUP : WINDOW_FIRST - 2], *steps[past:]]


def true_savings(kind: Kind, mode: Mode) -> tuple[float, ...]:
    """How much shorter the mean step is without the cause: of the whole run, and of the window where it is alone."""
    if kind.fixed is None:
        return ()
    after = statistics.fmean(true_steps_ns(recorded(kind.fixed, None), "light"))
    run = recorded(kind.loop, None)
    before = [statistics.fmean(true_steps_ns(run, of)) for of in dict.fromkeys(("light", mode)) if of in _SEEN]
    return tuple(1.0 - after / one for one in before)


def said(report: Report) -> str:
    """Bound and detail."""
    verdict = report.verdict
    return f"{verdict.bound}/{verdict.detail}" if verdict.detail else verdict.bound


def _wrong_step(step: float | None, truth: float) -> tuple[str, ...]:
    if step is None:
        return ("no step time",)
    off = step / truth - 1.0
    return () if abs(off) <= STEP_TOLERANCE else (f"step {step:.2f} ms, true {truth:.2f} ms ({off:+.0%})",)


def _alarms(kind: Kind, mode: Mode, report: Report) -> tuple[str, ...]:
    found = [
        f"{outcome.rule} saves {finding.saving.expected:.0%}"
        for outcome, finding in in_order(report.outcomes)
        if finding.saving is not None and finding.saving.expected >= LEAST_SAVING
    ]
    return (*_wrong_verdict(kind, mode, report), *found)


def _is_among(allowed: tuple[str, ...], report: Report) -> bool:
    return bool({said(report), report.verdict.bound} & {*allowed})


def sees_kernels(kind: Kind, mode: Mode) -> bool:
    """Whether the recording has a trace with kernels."""
    return mode != "light" and kind.loop.cupti == "kernels"


def _wrong_verdict(kind: Kind, mode: Mode, report: Report) -> tuple[str, ...]:
    allowed = kind.traced if sees_kernels(kind, mode) else kind.light
    if mode.endswith("alone") and kind.alone:
        allowed = kind.alone
    return () if _is_among(allowed, report) else (f"{said(report)} is none of {', '.join(allowed)}",)


def _missed(kind: Kind, mode: Mode, report: Report, savings: tuple[float, ...]) -> tuple[str, ...]:
    wrong = list(_wrong_verdict(kind, mode, report))
    ended = {outcome.rule: outcome.status for outcome in report.outcomes}
    is_alone = mode.endswith("alone")
    rules = () if is_alone else kind.sampled or (kind.rules if sees_kernels(kind, mode) else kind.light_rules)
    if rules and not any(ended[rule] == "fired" for rule in rules):
        wrong.append(f"{' or '.join(rules)} did not fire")
    blind = (*kind.unseen, *(kind.sampled if is_alone else ()))
    wrong += [f"{rule} does not say that it cannot tell" for rule in blind if ended[rule] != "missing_data"]
    verdict = report.verdict
    if kind.rank is not None and sees_kernels(kind, mode) and verdict.rank != kind.rank:
        wrong.append(f"rank {verdict.rank} is named, late is {kind.rank}")
    if savings and verdict.saving is not None and verdict.bound != UNSEEN:
        expected = verdict.saving.expected
        if not min(savings) - BELOW <= expected <= max(savings) + ABOVE:
            wrong.append(f"saves {expected:.0%}, true {' or '.join(f'{one:.0%}' for one in savings)}")
    return tuple(wrong)
