"""What some steps take beyond what a steady one does, and of which of their parts that is taken."""

from itertools import pairwise

import msgspec
import numpy as np

from profilerkit.analysis.events import Timed
from profilerkit.analysis.intervals import I64, Mask
from profilerkit.model.step import StepState


class StepKinds(msgspec.Struct, frozen=True):
    """Masks ``(n_steps,)``: the first steps, those a profiler's window touched, and those they are compared with."""

    first: Mask
    profiled: Mask
    usual: Mask


def step_kinds(steps: Timed, windows: Timed, state: tuple[StepState, ...]) -> StepKinds:
    """Which steps are compared with which. A window also disturbs the step behind it."""
    first = np.array([value == "warmup" for value in state], dtype=np.bool_)
    touched = np.zeros(len(steps), dtype=np.bool_)
    low = np.searchsorted(steps.end, windows.start, side="right")
    high = np.searchsorted(steps.start, windows.end, side="left")
    for begin, stop in zip(low.tolist(), high.tolist(), strict=True):
        touched[begin : stop + 1 if stop > begin else begin] = True
    usual = ~first & ~touched & np.array([value == "steady" for value in state], dtype=np.bool_)
    return StepKinds(first=first, profiled=touched & ~first, usual=usual)


def excess(per_step: I64, rows: Mask, usual: Mask) -> I64:
    """``(n_parts,)`` ns by which the chosen steps exceed as many usual ones, taken from the parts that grew.

    The sum is the excess over the median usual step; 0 without any usual step.

    Args:
        per_step: ``(n_parts, n_steps)`` ns; the parts of a step sum to it.
        rows: the steps in question.
        usual: the steps they are compared with.

    >>> per_step = np.array([[70, 10, 10, 10], [30, 20, 20, 20]])
    >>> excess(per_step, np.array([True, False, False, False]), np.array([False, True, True, True])).tolist()
    [60, 10]
    """
    count = int(rows.sum())
    if not count or not usual.any():
        return np.zeros(len(per_step), dtype=np.int64)
    spent = per_step[:, rows].sum(axis=1)
    expected = np.rint(count * np.median(per_step[:, usual], axis=1)).astype(np.int64)
    grown = np.maximum(spent - expected, 0)
    total = int(spent.sum()) - round(count * float(np.median(per_step[:, usual].sum(axis=0))))
    return shared_out(min(total, int(grown.sum())), grown)


def shared_out(total: int, weights: I64) -> I64:
    """``total`` ns in proportion to the weights, none of which is exceeded; it sums to ``total`` exactly.

    >>> shared_out(10, np.array([5, 0, 15])).tolist(), shared_out(-4, np.array([1])).tolist()
    ([2, 0, 8], [0])
    """
    known = [int(weight) for weight in weights]
    whole = sum(known)
    if total <= 0 or not whole:
        return np.zeros(len(known), dtype=np.int64)
    reached = [total * sum(known[: place + 1]) // whole for place in range(len(known))]
    return np.array([after - before for before, after in pairwise([0, *reached])], dtype=np.int64)
