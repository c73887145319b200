"""What the probes of a rank timed, as savings: how much shorter the steps were, and how sure that is."""

import numpy as np

from profilerkit.analysis.intervals import I64
from profilerkit.model.change import revise
from profilerkit.model.probe import Probed
from profilerkit.rundir.documents import ProbeRun, ProbesRecord

#: Resamples of the steps, and the share of their results that the interval leaves out at each end.
_RESAMPLES, _TAIL = 1_000, 0.05
#: Fewer timed steps of a kind say nothing.
_FEWEST = 5
#: More, and times beyond this, are no recording of ours.
_MOST, _LONGEST_NS = 10_000, 1 << 50


def probed(record: ProbesRecord | None) -> tuple[Probed, ...]:
    """Every probe that was asked for, with its result or the reason why there is none: once, where two share one."""
    made = [] if record is None else [_probed(run) for run in record.probes]
    first = {(probe.name, probe.reason): number for number, probe in reversed(list(enumerate(made)))}
    return tuple(
        probe
        for number, probe in enumerate(made)
        if probe.share is not None or first[probe.name, probe.reason] == number
    )


def _probed(run: ProbeRun) -> Probed:
    about = Probed(name=run.name, change=run.change, first_step=run.first_step, last_step=run.last_step)
    usual, control, timed = (_times(values) for values in (run.usual_ns, run.control_ns, run.probed_ns))
    reason = run.reason
    if not reason and (usual is None or control is None or timed is None or min(len(usual), len(timed)) < _FEWEST):
        reason = "its record is damaged"
    if reason or usual is None or control is None or timed is None:
        return revise(about, reason=reason)
    share, low, high = saved(usual, control, timed)
    return revise(
        about,
        share=share,
        low=low,
        high=high,
        steps=len(timed),
        step_ns=round(float(usual.mean())),
        without_ns=round(float((control if len(control) else usual).mean())),
        probed_ns=round(float(timed.mean())),
        reason=run.note,
    )


def _times(values: tuple[int, ...]) -> I64 | None:
    if len(values) > _MOST or any(not 0 < value < _LONGEST_NS for value in values):
        return None
    return np.array(values, dtype=np.int64)


def saved(usual: I64, control: I64, timed: I64) -> tuple[float, float, float]:
    """How much shorter the ``timed`` steps are, as a share of the ``usual`` ones; its 90 % interval by bootstrap.

    Means are compared, not medians: with several workers most batches may come in bursts, and then the median step
    waits for nothing while the mean one does.

    Args:
        usual: steps of the run.
        control: steps that differ from ``timed`` in the change alone; empty where the usual ones do.
        timed: steps with the change.

    >>> usual, timed = np.full(8, 100), np.full(8, 60)
    >>> saved(usual, np.empty(0, dtype=np.int64), timed)
    (0.4, 0.4, 0.4)
    >>> saved(usual, np.full(8, 80), timed)
    (0.2, 0.2, 0.2)
    """
    random = np.random.default_rng(0)

    def means(values: I64) -> I64:
        resampled: I64 = values[random.integers(0, len(values), (_RESAMPLES, len(values)))].mean(axis=1)
        return resampled

    before, of = control if len(control) else usual, means(usual)
    shares = ((of if before is usual else means(before)) - means(timed)) / of
    low, high = np.quantile(shares, [_TAIL, 1.0 - _TAIL])
    share = float((before.mean() - timed.mean()) / usual.mean())
    return share, min(float(low), share), max(float(high), share)
