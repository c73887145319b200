"""Draws of every class and of healthy runs, analysed and judged: one record per draw, one summary per class."""

import itertools
import random
import statistics
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from profilerkit import analyze
from profilerkit.model.finding import Saving, in_order
from profilerkit.model.report import Report
from simulator import classes, healthy
from simulator.job import Job
from simulator.kineto import text_of
from simulator.machine import Rank
from simulator.parallel import simulate
from simulator.right import SEEN_FROM, Case, measured, no_alarm
from simulator.truth import done_step_ns

#: Goals: right draws where the fault takes at least ``SEEN_FROM``, alarms on healthy draws.
LEAST_RIGHT, MOST_ALARMS = 0.97, 0.02
#: Edges of the detection curve.
EDGES = (0.0, 0.02, 0.05, 0.10, 0.15, 0.20, 0.30, 0.40, 1.0)
_REASONS = 5


@dataclass(frozen=True, slots=True)
class Draw:
    """One simulated and analysed run.

    Attributes:
        injected: what share of the step the fault takes in truth.
        why: why the analysis is wrong; empty when it is right.
        named: a finding or the verdict is about the fault; ``None`` where no rule is.
        moved: share of the step that is booked on a wrong leaf, mean over the ranks.
        saved: how much shorter the step is without the fault, ``None`` where nothing is to save.
        saving: what the best finding about it promises: low, expected, high.
    """

    code: str
    index: int
    injected: float
    why: str
    named: bool | None = None
    moved: float = 0.0
    saved: float | None = None
    saving: tuple[float, float, float] | None = None


def job_of(code: str, index: int, count: int) -> Job:
    """The ``index``-th of ``count`` draws of a class, by the code alone: the same anywhere, any time."""
    rng = random.Random(f"{code}/{index}/{count}")
    if code in healthy.BY_CODE:
        return healthy.BY_CODE[code].draw(rng)
    of = classes.BY_CODE[code]
    return of.inject(rng, of.low + (of.high - of.low) * (index + rng.random()) / count)


def recorded(job: Job) -> tuple[list[Rank], Report]:
    """Simulate a job, write its traces and analyse them."""
    ranks = simulate(job)
    with tempfile.TemporaryDirectory() as place:
        paths = [Path(place) / f"rank{rank.index}.json" for rank in ranks]
        for path, rank in zip(paths, ranks, strict=True):
            path.write_text(text_of(job, rank), "utf-8")
        return ranks, analyze(*paths)


def draw(code: str, index: int, count: int) -> Draw:
    """Simulate, analyse and judge one draw."""
    job = job_of(code, index, count)
    ranks, report = recorded(job)
    case = Case.of(job, ranks)
    if code in healthy.BY_CODE:
        return Draw(code, index, 0.0, no_alarm(case, report), moved=_moved(case, report))
    of = classes.BY_CODE[code]
    return Draw(
        code, index, of.severity(case) if of.severity else 0.0,
        why="; ".join(why for check in of.checks if (why := check(case, report))),
        named=_named(of, case, report),
        moved=_moved(case, report),
        saved=_saved(of, job, ranks),
        saving=_promised(of, report),
    )  # fmt: skip


def _moved(case: Case, report: Report) -> float:
    found = measured(report)
    if len(found) != len(case.truth) or not case.job.recording.has_device:
        return 0.0
    off = [
        sum(abs(ours.get(leaf, 0.0) - truth.get(leaf, 0.0)) for leaf in {*ours, *truth}) / 2
        for ours, truth in zip(found, case.truth, strict=True)
    ]
    return sum(off) / len(off)


def _named(of: classes.Class, case: Case, report: Report) -> bool | None:
    if case.job.late.rank >= 0:
        return report.verdict.rank == case.job.late.rank
    if not of.bound:
        return None
    return report.verdict.bound == of.bound or any(finding.bound == of.bound for finding in report.findings)


def _saved(of: classes.Class, job: Job, ranks: Sequence[Rank]) -> float | None:
    if of.relieve is None:
        return None
    better = of.relieve(job)
    return 1.0 - done_step_ns(better, simulate(better)[0]) / done_step_ns(job, ranks[0])


def _promised(of: classes.Class, report: Report) -> tuple[float, float, float] | None:
    about = [f.saving for _, f in in_order(report.outcomes) if f.bound == of.bound and f.saving is not None]
    best: Saving | None = max(about, key=lambda saving: saving.expected, default=None)
    return (best.low, best.expected, best.high) if best else None


def summary_of_class(of: classes.Class, draws: Sequence[Draw]) -> dict[str, Any]:
    """How the draws of a class went; ``right_ratio`` counts those with a fault worth seeing."""
    counted = [d for d in draws if of.severity is None or d.injected >= SEEN_FROM]
    right = sum(not d.why for d in counted)
    return {
        "code": of.code, "what": of.what, "group": of.group, "draws": len(draws),
        "counted": len(counted), "right": right, "right_ratio": right / len(counted) if counted else None,
        "holds": bool(counted) and right / len(counted) >= LEAST_RIGHT,
        "injected": [round(d.injected, 4) for d in draws],
        "flags": "".join("01"[not d.why] for d in draws),
        "curve": _curve(draws, lambda d: not d.why),
        "named_curve": _curve([d for d in draws if d.named is not None], lambda d: bool(d.named)),
        "moved": {"median": _median(d.moved for d in draws), "largest": max(d.moved for d in draws)},
        "saving": _saving_errors(draws),
        "reasons": _reasons(counted),
    }  # fmt: skip


def summary_of_healthy(variant: healthy.Variant, draws: Sequence[Draw]) -> dict[str, Any]:
    """How many healthy draws were alarmed about."""
    alarms = sum(bool(d.why) for d in draws)
    return {
        "code": variant.code, "what": variant.what, "draws": len(draws), "alarms": alarms,
        "alarm_ratio": alarms / len(draws), "holds": alarms / len(draws) <= MOST_ALARMS,
        "flags": "".join("01"[not d.why] for d in draws),
        "moved": {"median": _median(d.moved for d in draws), "largest": max(d.moved for d in draws)},
        "reasons": _reasons(draws),
    }  # fmt: skip


def _median(values: Iterable[float]) -> float:
    return round(statistics.median(values), 5)


def _curve(draws: Sequence[Draw], holds: Any) -> list[dict[str, float]]:
    """Share of draws for which ``holds``, by injected share."""
    out = []
    for low, high in itertools.pairwise(EDGES):
        chosen = [d for d in draws if low <= d.injected < high]
        if chosen:
            middle = sum(d.injected for d in chosen) / len(chosen)
            out.append(
                {"injected": round(middle, 4), "draws": len(chosen), "ratio": sum(map(holds, chosen)) / len(chosen)}
            )
    return out


def _saving_errors(draws: Sequence[Draw]) -> dict[str, float] | None:
    """Promised against true saving, where a finding promises one for this fault."""
    pairs = [(d.saved, d.saving) for d in draws if d.saved is not None and d.saving is not None]
    if not pairs:
        return None
    off = [promised[1] - saved for saved, promised in pairs]
    return {
        "draws": len(pairs),
        "median_error": _median(map(abs, off)),
        "bias": round(sum(off) / len(off), 5),
        "covered_ratio": sum(low <= saved <= high for saved, (low, _, high) in pairs) / len(pairs),
    }


def _reasons(draws: Sequence[Draw]) -> list[dict[str, Any]]:
    """The most frequent reasons, numbers left out, each with one draw to look at."""
    wrong = [d for d in draws if d.why]
    counts = Counter(_shape(d.why) for d in wrong)
    return [
        {"count": count, "draw": first.index, "why": first.why}
        for shape, count in counts.most_common(_REASONS)
        for first in [next(d for d in wrong if _shape(d.why) == shape)]
    ]


def _shape(why: str) -> str:
    return "".join("#" if char.isdigit() else char for char in why).replace("#.#", "#").replace("##", "#")
