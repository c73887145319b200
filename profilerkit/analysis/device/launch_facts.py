"""The record of how device events are joined to the calls that launched them."""

from dataclasses import dataclass

#: Share of the launched work that a damaged file may lack. Each kernel is a gap that looks like idle time: a trace of
#: eight ranks' training without 4 % of them turned from bound by communication to bound by the host.
MOST_LOST = 0.02


@dataclass(frozen=True, slots=True)
class LaunchFacts:
    """How the device's events are joined to the calls that launched them, over the whole trace.

    Attributes:
        events: kernels, copies and memsets.
        unlinked: of these, without a launch call in the trace; they count in full, what they waited for is less sure.
        in_graphs: of these, launched by a graph.
        graph_launches: calls that launched a graph.
        lost_ratio: share of the launched work of the judged steps that is not in the trace: calls without their kernel,
            or math operators without a runtime call, whichever is more (0 on all whole CUDA and HIP traces tried);
            ``None`` for a file that is whole.
    """

    events: int
    unlinked: int
    in_graphs: int
    graph_launches: int
    lost_ratio: float | None = None

    @property
    def lost_much(self) -> bool:
        """Whether so much is lost that idle time cannot be told from lost work."""
        return self.lost_ratio is not None and self.lost_ratio >= MOST_LOST
