"""Lost time in hours of all ranks, and in money: shares and savings of a step, carried over to the run."""

from collections.abc import Sequence
from typing import Literal

from profilerkit.model import revise
from profilerkit.model.finding import SOURCES_BY_STRENGTH, Source, in_order
from profilerkit.model.ledger import Cost, FixValue, Ledger, LostTime
from profilerkit.model.report import Report
from profilerkit.model.step import NAMED_PAUSES, Part, own_ratio

#: Steps for which hours are told where the run itself was not recorded (a choice: a round number).
STEPS_TOLD = 1_000
_NS_PER_HOUR = 3.6e12

_USEFUL = ("evaluation", "between.uncounted")  #: entries of the ledger in which a run does what it is for


def with_cost(report: Report, price: float | None) -> Report:
    """The report with what its lost time amounts to; ``price`` is of one GPU for one hour, not applied without one."""
    return revise(report, cost=cost_of(report, price))


def cost_of(report: Report, price: float | None) -> Cost | None:
    """Hours lost by cause: of the run where timers recorded it, else of 1,000 steps; ``None`` without steps and parts.

    A part's hours are its share of a rank's steady step × that rank's time in steps, summed over the ranks; ranks that
    were not read count as the mean of those that were. Savings are of the job's step and count on every rank. Where
    the ledger has checkpoints and the like as stages, they are no part of its steps, and their hours are the ledger's.
    Hours of ranks that have no GPU have no price: ``price`` is a GPU's.
    """
    is_gpu = report.trust.mode == "gpu" if not report.run.devices else not report.run.devices[0].startswith("TPU")
    unit: Literal["GPU", "rank"] = "GPU" if is_gpu else "rank"
    price = price if unit == "GPU" else None
    mean = report.steps.time_ns.mean if report.steps.time_ns else None
    ledger = report.ledger if report.ledger is not None and report.ledger.wall_ns else None
    if ledger is None and not (mean and any(_breakdowns(report))):
        return None  # of dumps alone no part of a step is known, and what is not known is not lost
    read = max(len(report.ranks), 1)
    ranks = max(report.run.world_size or read, read)
    in_steps = _in_steps(report, ledger, mean or 0)
    booked = () if ledger is None else NAMED_PAUSES  # the ledger has stages of its own for them
    step_hours = sum(in_steps) * ranks / read / _NS_PER_HOUR
    hours = step_hours if ledger is None else _wall_ns(ledger) * ranks / _NS_PER_HOUR
    inside = _inside(report, in_steps, ranks / read, booked) if mean else ()
    outside = () if ledger is None else _outside(ledger, ranks)
    lost = sorted((*inside, *outside), key=lambda entry: -entry.hours)
    return Cost(
        unit=unit,
        scope="1000 steps" if ledger is None else "run",
        ranks=ranks,
        ranks_read=read,
        hours=hours,
        price=price,
        lost=tuple(revise(row, share=row.hours / hours, cost=_priced(row.hours, price)) for row in lost if row.hours),
        fixes=_fixes(report, step_hours * own_ratio(report.breakdown), price),
    )


def _priced(hours: float, price: float | None) -> float | None:
    return None if price is None else hours * price


def _wall_ns(ledger: Ledger) -> float:
    """Return the mean wall clock of the ranks whose is known."""
    walls = [rank.wall_ns for rank in ledger.ranks] or [ledger.wall_ns]
    return sum(walls) / len(walls)


def _in_steps(report: Report, ledger: Ledger | None, mean: int) -> list[float]:
    """Return the time in steps of every rank that was read, ns, with what the ledger books apart from them."""
    breakdowns = _breakdowns(report)
    if ledger is None:
        return [float(STEPS_TOLD * mean)] * len(breakdowns)
    known = {rank.rank: float(rank.stages.get("steps", 0)) for rank in ledger.ranks}
    own = float(sum(entry.time_ns for entry in ledger.entries if entry.stage == "steps"))
    bare = [known.get(rank.rank, own) if rank.rank is not None else own for rank in report.ranks] or [own]
    apart = [sum(part.share for part in breakdown if part.part in NAMED_PAUSES) for breakdown in breakdowns]
    return [time / (1.0 - share) if share < 1.0 else time for time, share in zip(bare, apart, strict=True)]


def _breakdowns(report: Report) -> list[Sequence[Part]]:
    """Return the parts of every rank that was read; a single one is told in detail."""
    return [rank.breakdown for rank in report.ranks] if len(report.ranks) > 1 else [report.breakdown]


def _inside(report: Report, in_steps: Sequence[float], factor: float, booked: Sequence[str]) -> tuple[LostTime, ...]:
    """Parts of the step in which nothing new was computed, but for those that are booked elsewhere.

    Kernels that only repeat what was computed before (``mem.recompute``) count as lost: a fix gives their time back.
    The steady steps stand for all of them, so that no hour is better than derived.
    """
    hours: dict[str, float] = {}
    sources: dict[str, list[Source]] = {}
    for breakdown, time_ns in zip(_breakdowns(report), in_steps, strict=True):
        for part in breakdown:
            if part.part.startswith("compute.") or part.part in booked:
                continue
            hours[part.part] = hours.get(part.part, 0.0) + part.share * time_ns * factor / _NS_PER_HOUR
            sources.setdefault(part.part, ["estimated" if factor > 1 else "derived"]).append(part.source)
    weakest = {cause: max(known, key=SOURCES_BY_STRENGTH.index) for cause, known in sources.items()}
    return tuple(
        LostTime(cause=cause, inside=True, hours=value, share=0.0, source=weakest[cause])
        for cause, value in hours.items()
    )


def _outside(ledger: Ledger, ranks: int) -> tuple[LostTime, ...]:
    """Return what the run spent outside of its steps; the told rank stands for all."""
    return tuple(
        LostTime(
            cause=entry.entry,
            inside=False,
            hours=entry.share * _wall_ns(ledger) * ranks / _NS_PER_HOUR,
            share=0.0,
            source=entry.source if ranks == 1 else "estimated",
        )
        for entry in ledger.entries
        if entry.stage != "steps" and entry.entry not in _USEFUL
    )


def _fixes(report: Report, step_hours: float, price: float | None) -> tuple[FixValue, ...]:
    return tuple(
        FixValue(
            rule=outcome.rule,
            title=finding.title,
            method=finding.saving.method,
            low=finding.saving.low * step_hours,
            expected=finding.saving.expected * step_hours,
            high=finding.saving.high * step_hours,
            cost=_priced(finding.saving.expected * step_hours, price),
        )
        for outcome, finding in in_order(report.outcomes)
        if finding.saving is not None
    )
