"""The mean untraced step, put together from what its timers measured and how a traced window was composed.

Timers see every step: its length, the waits, the named phases. A trace sees a few steps in detail, and slows the host
while it does. So the lengths come from the timers, the composition of the rest from the trace, and what neither
explains stays unexplained.
"""

from collections.abc import Mapping

import msgspec
import numpy as np

from profilerkit.analysis.intervals import I64
from profilerkit.analysis.steps.log import exposed
from profilerkit.model.finding import Source

#: Untraced steps may be longer than the traced composition by this ratio before the rest of them is unexplained.
SAME_RATIO = 1.25

#: Parts in which the device works; the rest is the host keeping it waiting.
_WORK = ("compute.", "comm.", "input.h2d", "sync.d2h")

#: The part that the profiler does not slow on a CPU, and the least that it leaves of the others (a choice).
_BLOCKED = "input.fetch"
_LEAST_RATIO = 0.5

Times = dict[str, tuple[float, Source]]


class Measured(msgspec.Struct, frozen=True):
    """What the timers saw of each judged step; arrays are ``(n_steps,)`` int64 ns.

    Attributes:
        time: the step.
        spent: leaf to time of waits, named phases and collections, in the order in which they claim the step.
        stall_ns: mean time per step of an unnamed periodic stall.
        on_gpu: a device works beside the host, so that waits and phases may be hidden behind it.
        room: time of the step in which the device may have stood still, as far as its clock tells; all of it without.
    """

    time: I64
    spent: Mapping[str, I64]
    stall_ns: float
    on_gpu: bool
    room: I64


def compose(measured: Measured, traced: Mapping[str, float]) -> Times:
    """Leaf to mean time per judged step, ns, and how it came about; the times sum to the mean step.

    Steps that are longer than the typical one by more than their own waits and phases are a periodic stall or stay
    unexplained: the trace of other steps does not tell what happened in them.

    Args:
        measured: the timers.
        traced: leaf to mean time per traced step, ns, without the leaves in ``measured``; empty without a trace.

    >>> seen = Measured(np.full(4, 100), {"input.wait": np.full(4, 30)}, 0.0, on_gpu=False, room=np.full(4, 100))
    >>> {name: round(value) for name, (value, _) in compose(seen, {"compute.math": 50.0, "over.python": 20.0}).items()}
    {'input.wait': 30, 'compute.math': 50, 'over.python': 20}
    """
    work = {name: value for name, value in traced.items() if name.startswith(_WORK)}
    host = {name: value for name, value in traced.items() if name not in work}
    time = measured.time.astype(np.float64)
    idle = np.maximum(time - sum(work.values()), 0.0) if measured.on_gpu else time
    taken = exposed(measured.spent, np.minimum(measured.room, idle))
    rest = time - sum(taken.values())
    source: Source = "derived" if measured.on_gpu else "measured"
    out: Times = {name: (float(values.mean()), source) for name, values in taken.items()}
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
    the host. On a CPU-only run it slows operators and collectives as well, so these are scaled alike: of gloo runs
    whose traced steps took 1.3 and 1.5 times as long, operators and transfers had grown as much as Python, or more.
    What is blocked on reading is not slowed: of a loop that sleeps for 24 ms of each step 20 were left otherwise.
    """
    if not on_gpu and (blocked := _blocked(typical, {**work, **host})):
        rest = {name: value for name, value in host.items() if name != _BLOCKED}
        return {**_shared_out(typical - blocked, work, rest, on_gpu=False), _BLOCKED: (blocked, "derived")}
    working, waiting = sum(work.values()), sum(host.values())
    if not working + waiting:
        return {"idle.unknown": (typical, "derived")}
    if on_gpu:
        kept = min(1.0, typical / working) if working else 1.0
        left = typical - kept * working
        bent = min(left / waiting, SAME_RATIO) if waiting else 0.0
    else:
        kept = bent = min(typical / (working + waiting), SAME_RATIO)
    exact = on_gpu and kept == 1.0
    out: Times = {name: (kept * value, "measured" if exact else "derived") for name, value in work.items()}
    out |= {name: (bent * value, "derived") for name, value in host.items()}
    unknown = out.get("idle.unknown", (0.0, "derived"))[0] + typical - kept * working - bent * waiting
    return {**out, "idle.unknown": (unknown, "derived")}


def _blocked(typical: float, traced: Mapping[str, float]) -> float:
    """Time blocked on reading, ns, where all of the traced step does not fit the typical one; 0 where it does.

    It keeps its length while the others keep ``_LEAST_RATIO`` of theirs, and is never scaled by more than they are.
    """
    blocked, whole = traced.get(_BLOCKED, 0.0), sum(traced.values())
    if typical >= whole or not blocked:
        return 0.0
    return max(min(blocked, typical - _LEAST_RATIO * (whole - blocked)), blocked * typical / whole)
