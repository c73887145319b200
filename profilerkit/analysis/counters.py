"""Whether the samplers had anything to say, and why not."""

from collections.abc import Sequence

from profilerkit.model.run import Series, Signal
from profilerkit.rundir.reader import RankRecord

#: Signals of the trust section, the feature that gives them, and how the names of its series begin.
_COUNTERS = (("GPU counters", "nvml", "gpu."), ("host counters", "host", "host."))


def counter_signals(record: RankRecord | None, samples: Sequence[Series], hint: str) -> tuple[Signal, ...]:
    """What was sampled of the device and of the host; ``hint`` is how to get what is missing.

    A device that was lost in the run was measured in part. GPM is told only of a device that was found.
    """
    meta = record.meta if record is not None else None
    said = []
    for name, feature, prefix in _COUNTERS:
        state = meta.features.get(feature) if meta is not None else None
        reason = state.reason if state is not None and not state.on else ""
        if not any(series.name.startswith(prefix) for series in samples):
            reason = reason or ("nothing was sampled" if record is not None else "a trace holds no counters")
            said.append(Signal(name=name, state="missing", reason=reason, hint=hint))
        elif reason:
            said.append(Signal(name=name, state="partial", reason=reason))
        else:
            said.append(Signal(name=name, state="measured"))
    gpu = meta.gpu if meta is not None else None
    if gpu is not None and gpu.gpm:
        said.insert(1, Signal(name="busy parts of the GPU (GPM)", state="missing", reason=gpu.gpm))
    elif gpu is not None:
        said.insert(1, Signal(name="busy parts of the GPU (GPM)", state="measured"))
    return tuple(said)
