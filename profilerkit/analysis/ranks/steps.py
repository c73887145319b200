"""Every rank in every judged step: how long the others waited for it, or how long it took itself."""

from collections.abc import Sequence
from typing import Literal

import numpy as np

from profilerkit.analysis.intervals import I64
from profilerkit.analysis.rank_facts import RankFacts
from profilerkit.analysis.ranks.job import comparable
from profilerkit.analysis.ranks.waiting import Ledger
from profilerkit.analysis.steps.series import StepSeries
from profilerkit.analysis.steps.table import queued_per_step, step_times, stretches
from profilerkit.model.step import JobSteps, RankSteps

#: What a figure can show and a report can hold: 6,400 numbers are at most 70 kB of JSON (a choice).
MOST_STEPS, MOST_ROWS = 100, 64
_UNKNOWN = -1


def rank_steps(ranks: Sequence[RankFacts], ledger: Ledger | None) -> RankSteps | None:
    """What tells the ranks apart, step by step; ``None`` where fewer than two can be compared.

    Ranks that train together have equal steps, so who waited for whom tells most. Where that is not known, exposed
    communication is taken off the steps if every rank shows some, because it holds the waiting.

    Args:
        ranks: of one job, in the report's order.
        ledger: who waited for whom; ``None`` where nothing was matched.
    """
    if len(ranks) < 2:
        return None
    if ledger is not None and len(ledger.numbers):
        shown = _shown(len(ledger.numbers))
        return _told("caused", ledger.numbers[shown], _caused(ledger)[:, shown], len(ledger.numbers))
    series = [rank.series if rank.series is not None and rank.series.steady.any() else None for rank in ranks]
    known = [entry for entry in series if entry is not None]
    if len(known) < 2:
        return None
    numbers = np.unique(np.concatenate([entry.index[entry.steady] for entry in known]))
    index = numbers[_shown(len(numbers))]
    exposed = all(any(part.startswith("comm.") for part in entry.parts) for entry in known)
    times = [_times(entry, index, without_communication=exposed) for entry in series]
    return _told("own" if exposed else "step", index, np.stack(times), len(numbers))


def job_steps(ranks: Sequence[RankFacts], judged: int) -> JobSteps | None:
    """Return the judged rank's steady steps as means over all ranks that were recorded alike.

    ``None`` where fewer than two such ranks have steps, or the judged one is none of them.
    """
    alike = [index for index in comparable(ranks) if (own := ranks[index].series) is not None and own.steady.any()]
    chosen, series = ranks[judged], ranks[judged].series
    if len(alike) < 2 or judged not in alike or series is None:
        return None
    numbers = series.index[series.steady]
    times = np.stack([_times(ranks[index].series, numbers, without_communication=False) for index in alike])
    seen = times != _UNKNOWN
    mean: I64 = (np.where(seen, times, 0).sum(axis=0) / seen.sum(axis=0)).round().astype(np.int64)
    found, log = step_times(mean), chosen.log
    queued = queued_per_step(chosen.record.samples, log.start, log.stop - log.start) if log and chosen.record else None
    steady_queued = None if queued is None else queued[series.steady]
    return JobSteps(ranks=len(alike), time_ns=found, stretches=stretches(mean, steady_queued)) if found else None


def _shown(count: int) -> I64:
    """Positions of the steps that are kept: all, or ``MOST_STEPS`` at an even distance."""
    return np.unique(np.linspace(0, count - 1, min(count, MOST_STEPS)).round().astype(np.int64))


def _caused(ledger: Ledger) -> I64:
    """``(n_ranks, n_steps)`` ns that each other member waited for a rank in a step, on average."""
    out = np.zeros(ledger.own.shape)
    np.add.at(out, (ledger.owner, ledger.step), ledger.amount / np.maximum(ledger.members - 1, 1))
    caused: I64 = out.round().astype(np.int64)
    caused[ledger.of == 0] = _UNKNOWN
    return caused


def _times(series: StepSeries | None, index: I64, *, without_communication: bool) -> I64:
    """``(n_steps,)`` ns that a rank took in the steps of these numbers."""
    out: I64 = np.full(len(index), _UNKNOWN, dtype=np.int64)
    if series is None:
        return out
    time = series.time.copy()
    if without_communication:
        for part, spent in series.parts.items():
            if part.startswith("comm."):
                time -= spent
    own, first = np.unique(series.index[series.steady], return_index=True)
    at = np.minimum(np.searchsorted(own, index), len(own) - 1)
    here = own[at] == index
    out[here] = np.maximum(time[series.steady][first[at[here]]], 0)
    return out


def _told(of: Literal["caused", "own", "step"], index: I64, times: I64, count: int) -> RankSteps:
    """The record: of many ranks the slowest of neighbouring ones."""
    group = -(-len(times) // MOST_ROWS)
    rows = [times[first : first + group].max(axis=0).tolist() for first in range(0, len(times), group)]
    return RankSteps(
        of=of,
        group=group,
        count=count,
        index=tuple(index.tolist()),
        time_ns=tuple(tuple(None if value == _UNKNOWN else value for value in row) for row in rows),
    )
