"""The record of what training stands still for."""

from typing import Literal

import msgspec

from profilerkit.analysis.host.host_facts import HotLine

PauseKind = Literal["checkpoint", "evaluation", "logging"]


class Pause(msgspec.Struct, frozen=True):
    """What training stands still for, from the first judged step to the end of the last step.

    Attributes:
        kind: what for.
        count: how often in that time.
        run_count: how often in the whole run, the start of it and what lies behind the last step among it.
        time_ns: all of them together.
        share: of the time in question, the writing of traces left out.
        steps: steps in that time.
        steps_apart: from one to the next, the median; ``None`` for a single one.
        batches: that an evaluation reads from loaders, on average; ``None`` where it reads none.
        records_graphs: autograd records the operators of evaluations, which nothing needs.
        inferred: nobody named all of them; evaluation is also told by passes that train nothing.
        line: of the user's that holds most of them; ``None`` where sampled stacks do not tell.
    """

    kind: PauseKind
    count: int
    run_count: int
    time_ns: int
    share: float
    steps: int
    steps_apart: float | None = None
    inferred: bool = False
    batches: float | None = None
    records_graphs: bool = False
    line: HotLine | None = None

    @property
    def each_ns(self) -> float:
        """Mean length of one."""
        return self.time_ns / max(self.count, 1)
