"""16-bit matrix products whose sizes do not fit the granularity of the matrix units."""

import numpy as np

from profilerkit.analysis.costs.formulas import sizes
from profilerkit.analysis.costs.operators import DTYPES
from profilerkit.analysis.kernel_losses.records import Alignment
from profilerkit.analysis.waste.judged import Bools, Judged

#: Elements of 16 bits in one load of 128: the granularity that PyTorch's own pattern matcher asks for.
GRANULE = 8


def misaligned(work: Judged) -> Alignment | None:
    """The products of which M, N or K is no multiple of eight; ``None`` without any."""
    halves = np.isin(work.roof.dtype[work.at], [DTYPES.index("fp16"), DTYPES.index("bf16")])
    chosen = halves & work.kinds.math[work.name] & (work.roof.flops[work.at] > 0)
    member, calls = work.calls(chosen)
    found = {
        index: (name, shape)
        for index, name, passed in calls
        if (shape := sizes(name, passed)) and any(size % GRANULE for size in shape)
    }
    odd = work.of_calls(chosen, member, found)
    if not odd.any():
        return None
    member = member[np.isin(member, list(found))]
    lost = work.dur_ns - work.roof.least_ns[work.at]
    is_priced = bool(np.isfinite(lost[odd]).all())
    weight = np.bincount(member, weights=(lost if is_priced else work.dur_ns)[odd])
    name, shape = found[int(weight.argmax())]
    return Alignment(
        share=work.share(odd),
        lost_share=work.part(lost, odd) if is_priced else None,
        sizes=shape,
        operator=name,
        calls_per_step=len(np.unique(work.operator[odd])) / work.steps,
        others_ratio=_reached(work, odd, chosen & ~odd),
    )


def _reached(work: Judged, odd: Bools, others: Bools) -> float | None:
    """Least time over time of ``others``, weighted by time; ``None`` where they take less than half of ``odd``'s."""
    least, time = work.roof.least_ns[work.at], work.dur_ns
    others = others & np.isfinite(least)
    if 2 * float(time[others].sum()) < float(time[odd].sum()):
        return None
    return float(least[others].sum()) / float(time[others].sum())
