"""How evenly the grids of math kernels fill the device's multiprocessors."""

import numpy as np

from profilerkit.analysis.device.kernels import SMALL_KERNEL_NS
from profilerkit.analysis.kernel_losses.records import Grid
from profilerkit.analysis.waste.judged import F64, Judged

#: Kinds of grid that are told, those with most time.
_MOST_GRIDS = 64
#: Files write six digits, the columns hold seven: a grid this close to a whole number of rounds is one.
_ROUNDING = 1e-4


def idle_ratio(blocks_per_sm: F64) -> F64:
    """Share of the multiprocessors' time that the last round of blocks leaves idle, all blocks taking equally long.

    >>> idle_ratio(np.array([0.25, 1.0, 1.25, 4.8])).round(3).tolist()
    [0.75, 0.0, 0.375, 0.04]
    """
    rounds = np.maximum(np.ceil(blocks_per_sm - _ROUNDING), 1.0)
    return np.maximum(1.0 - blocks_per_sm / rounds, 0.0)


def grids(work: Judged) -> tuple[Grid, ...] | None:
    """The grids of math kernels of at least 10 µs; ``None`` where no kernel of the trace says its grid."""
    blocks = work.columns.blocks_per_sm[work.rows].astype(np.float64)
    if not blocks.any():
        return None
    chosen = work.kinds.math[work.name] & (blocks > 0) & (work.dur_ns >= SMALL_KERNEL_NS)
    idle = idle_ratio(blocks) * work.dur_ns
    beyond = work.dur_ns - work.roof.least_ns[work.at]
    idle = np.where(np.isfinite(beyond), np.minimum(idle, beyond), idle)
    keys = np.stack([work.name, np.round(blocks, 4).view(np.int64)])
    places = np.flatnonzero(chosen)
    distinct, member = np.unique(keys[:, places], axis=1, return_inverse=True)
    time = np.bincount(member, weights=work.dur_ns[places], minlength=distinct.shape[1])
    found = []
    for kind in np.argsort(-time, kind="stable")[:_MOST_GRIDS].tolist():
        own = np.zeros(len(chosen), dtype=np.bool_)
        own[places[member == kind]] = True
        found.append(
            Grid(
                kernel=work.columns.strings[int(distinct[0, kind])],
                blocks_per_sm=float(blocks[own][0]),
                share=work.share(own),
                idle_share=work.part(idle, own),
                per_step=float(own.sum()) / work.steps,
            )
        )
    return tuple(found)
