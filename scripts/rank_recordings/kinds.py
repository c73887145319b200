"""What each kind of run injects, and what has to be said about it."""

from dataclasses import dataclass

WORLD_SIZE = 2
#: Ways to reduce gradients: in DDP's backward pass, or by a call of one's own.
LOOPS = ("ddp", "explicit")
#: What a recording holds: traces of torch.profiler, and a run directory of profilerkit.
SOURCES = ("trace", "run")
#: Steps after those in which DDP rebuilds its buckets and torch.profiler warms up; the traces hold them all, a run
#: directory traces a window of them.
WARMUP_STEPS, STEPS = 4, 30
#: The rank that is made late.
LATE_RANK = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of run. Costs are ms per step, on both ranks unless they are named late.

    Attributes:
        bounds: verdicts that are right.
        rank: the rank that has to be named; ``None`` if none may be.
        cause: how the part begins that makes it late.
        input_ms: the loader sleeps.
        compute_ms: matrix products are computed.
        late_input_ms: the loader of ``LATE_RANK`` sleeps longer.
        late_compute_ms: ``LATE_RANK`` computes longer.
        jitter_ms: upper end of a uniformly drawn sleep before the forward pass, drawn by each rank for itself.
        gradient_bytes: what is reduced.
    """

    bounds: tuple[str, ...]
    rank: int | None = None
    cause: str = ""
    input_ms: float = 1.0
    compute_ms: float = 20.0
    late_input_ms: float = 0.0
    late_compute_ms: float = 0.0
    jitter_ms: float = 0.0
    gradient_bytes: int = 16_384


#: A collective of two ranks takes 1-5 ms on two busy cores, whatever its size: a healthy step has to be long.
#: The late rank's cost nearly doubles the step (25 to 45 ms), as in the reference measurements of the diagnosis.
KINDS = {
    "healthy": Kind(bounds=("compute-bound", "balanced"), compute_ms=80.0),
    "comm": Kind(bounds=("comm-bound",), compute_ms=2.0, gradient_bytes=16_777_216),
    "late_input": Kind(bounds=("input-bound",), rank=LATE_RANK, cause="input.", late_input_ms=22.0),
    "late_compute": Kind(bounds=("compute-bound",), rank=LATE_RANK, cause="compute.", late_compute_ms=22.0),
    "jitter": Kind(bounds=("compute-bound", "balanced", "overhead-bound"), jitter_ms=16.0),
}
