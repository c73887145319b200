"""The mean untraced step, put together from what its timers measured and how a traced window was composed.

Timers see every step: its length, the waits, the named phases. A trace sees a few steps in detail, and slows the host
while it does. So the lengths come from the timers, the composition of the rest from the trace, and what neither
explains stays unexplained.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from profilerkit.analysis.intervals import I64
from profilerkit.model.finding import Source

#: A traced step may differ from an untraced one by this ratio before its composition is bent rather than scaled.
SAME_RATIO = 1.25

#: Parts in which the device works, or on a CPU-only run the main thread; the rest is the host keeping it waiting.
_WORK = ("compute.", "input.h2d", "sync.d2h")
#: So are collectives on a device. On a host they run on threads that need its cores, and wait for the other ranks'
#: hosts: of a gloo run whose traced steps were 1.3 times as long, transfers outside the trace took a seventh.
_WORK_OF_A_DEVICE = (*_WORK, "comm.")

Times = dict[str, tuple[float, Source]]


@dataclass(frozen=True, slots=True)
class Measured:
    """What the timers saw of each judged step; arrays are ``(n_steps,)`` int64 ns.

    Attributes:
        time: the step.
        spent: leaf to time of waits, named phases and collections, in the order in which they claim the step.
        stall_ns: mean time per step of an unnamed periodic stall.
        on_gpu: a device works beside the host, so that waits and phases may be hidden behind it.
    """

    time: I64
    spent: Mapping[str, I64]
    stall_ns: float
    on_gpu: bool


def compose(measured: Measured, traced: Mapping[str, float]) -> Times:
    """Leaf to mean time per judged step, ns, and how it came about; the times sum to the mean step.

    Steps that are longer than the typical one by more than their own waits and phases are a periodic stall or stay
    unexplained: the trace of other steps does not tell what happened in them.

    Args:
        measured: the timers.
        traced: leaf to mean time per traced step, ns, without the leaves in ``measured``; empty without a trace.

    >>> seen = Measured(np.full(4, 100), {"input.wait": np.full(4, 30)}, 0.0, on_gpu=False)
    >>> {name: round(value) for name, (value, _) in compose(seen, {"compute.math": 50.0, "over.python": 20.0}).items()}
    {'input.wait': 30, 'compute.math': 50, 'over.python': 20}
    """
    working = _WORK_OF_A_DEVICE if measured.on_gpu else _WORK
    work = {name: value for name, value in traced.items() if name.startswith(working)}
    host = {name: value for name, value in traced.items() if name not in work}
    time = measured.time.astype(np.float64)
    room = np.maximum(time - sum(work.values()), 0.0) if measured.on_gpu else time.copy()
    rest = time.copy()
    out: Times = {}
    for name, spent in measured.spent.items():
        taken = np.minimum(spent, room)
        room, rest = room - taken, rest - taken
        out[name] = float(taken.mean()), "derived" if measured.on_gpu else "measured"
    typical = min(float(np.median(rest)), float(rest.mean()))
    slow = float(rest.mean()) - typical
    stall = min(measured.stall_ns, slow)
    for name, entry in (
        *_shared_out(typical, work, host, on_gpu=measured.on_gpu).items(),
        ("other.stall", (stall, "derived")),
        ("idle.unknown", (slow - stall, "derived")),
    ):
        out[name] = (out[name][0] if name in out else 0.0) + entry[0], entry[1]
    return {name: entry for name, entry in out.items() if entry[0] > 0}


def _shared_out(typical: float, work: Mapping[str, float], host: Mapping[str, float], *, on_gpu: bool) -> Times:
    """The rest of the typical step by the traced composition.

    Kernels keep their traced length; what is left of the step is host time, less than traced where the profiler slowed
    the host. On a CPU-only run operators are slowed too, so a small difference scales everything alike; a large one is
    taken from the host's own time and from its collectives.
    """
    working, waiting = sum(work.values()), sum(host.values())
    total = working + waiting
    if not total:
        return {"idle.unknown": (typical, "derived")}
    if not on_gpu and 1 / SAME_RATIO <= typical / total <= SAME_RATIO:
        return {name: (value * typical / total, "derived") for name, value in {**work, **host}.items()}
    kept = min(1.0, typical / working) if working else 1.0
    left = typical - kept * working
    bent = min(left / waiting, SAME_RATIO) if waiting else 0.0
    exact = on_gpu and kept == 1.0
    out: Times = {name: (kept * value, "measured" if exact else "derived") for name, value in work.items()}
    out |= {name: (bent * value, "derived") for name, value in host.items()}
    unknown = out.get("idle.unknown", (0.0, "derived"))[0] + left - bent * waiting
    return {**out, "idle.unknown": (unknown, "derived")}
