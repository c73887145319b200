"""OV008 (R53): the process has more threads than cores, and the training thread waits for one."""

import math
from dataclasses import dataclass
from typing import ClassVar

from profilerkit.analysis.facts import Facts
from profilerkit.analysis.whatif import at_most
from profilerkit.analysis.workers.capacity import own_cores
from profilerkit.model.change import revise
from profilerkit.model.finding import Evidence, Fix
from profilerkit.rules.rule import Fired, MissingData, NotApplicable, Passed, Result, Rule, finding_for, worth_saying
from profilerkit.units import format_ratio

#: Where the run queue's share comes from; the verdict's headline knows the finding by it.
ORIGIN = "run queue of the training thread"
_RUN_QUEUE = "host.thread_queue"


@dataclass(frozen=True)
class OversubscribedCores(Rule):
    """CPU thread oversubscription (R53).

    Claim: More threads than cores compete, and the training thread waits for its turn.
    Evidence: Share of the time in which the training thread could run and had no core, from the kernel's scheduler
        statistics; torch's intra-op threads against the cores of this rank; cores that the rank's processes use.
    Threshold: More threads than cores per rank; the rank itself uses 80 % of its cores; and its training thread waits
        for a core for a fifth of the time it could have computed at most.
    Fix: OMP_NUM_THREADS current → cores per rank, or torch.set_num_threads with the same number.
    Saving: Bound: the share of the run queue; with a device no more than the share in which it waits for the host.
        Expected: half of it (a guess: the same work is left for the same cores, without the waiting in line).
    Traps: Threads of other libraries (OpenCV, NumPy's BLAS) are not counted. Where other processes take the cores, more
        threads get the run a larger part of them, and fewer make it slower: no fewer are advised there.
    Confidence: Medium.
    """

    code: ClassVar[str] = "OV008"
    name: ClassVar[str] = "oversubscribed_cores"
    family: ClassVar[str] = "overhead"
    summary: ClassVar[str] = "More threads than cores compete with the training thread"

    queued_ratio: float = 0.2
    #: Share of its cores that the rank uses itself, below which others take them (a choice).
    own_ratio: float = 0.8
    recovered_ratio: float = 0.5

    def check(self, facts: Facts) -> Result:
        """Fires when torch has more threads than cores and the training thread queues."""
        threads, cores = facts.host.threads, facts.usable_cores
        if threads is None or cores is None:
            return MissingData(
                "how many threads torch uses was not recorded", "run the loop under profilerkit.profile(...)"
            )
        if threads <= max(cores, 1.0):
            return Passed(f"torch uses {_threads(threads)} on {cores:g} cores of this rank")
        queue = facts.series(_RUN_QUEUE)
        if queue is None:
            has_host = any(series.name.startswith("host.") for series in facts.samples)
            if has_host:
                return NotApplicable("this system does not tell how long a thread waits for a core")
            return MissingData("the host was not sampled", "profilerkit.profile(..., host=True), for at least 2 s")
        share = min(queue.mean, 1.0)
        # What the thread computed was not sampled: it is at most the rest of the time.
        if share <= self.queued_ratio * (1.0 - share):
            return Passed(f"the training thread waits {format_ratio(share)} of the time for a core")
        used = own_cores(facts)
        if used is None:
            return MissingData(
                "how many cores the rank itself uses was not sampled", "profilerkit.profile(..., host=True), on Linux"
            )
        if used < self.own_ratio * cores:
            return Passed(f"the rank uses {used:.1f} of its {cores:g} cores: other processes take them")
        waits_for_host = 1.0 - facts.device.busy_ratio if facts.device is not None else 1.0
        bound = min(share, waits_for_host)
        expected = self.recovered_ratio * bound
        if not worth_saying(facts, expected):
            return Passed(f"the training thread waits for a core, and the step loses {format_ratio(expected)} by it")
        proposed = max(math.floor(cores), 1)

        def evidence(label: str, value: float, unit: str, origin: str) -> Evidence:
            return Evidence(label=label, value=value, unit=unit, source="measured", origin=origin, rank=facts.rank.rank)

        queued = evidence("Training thread waits for a core, share of the time", share, "ratio", ORIGIN)

        finding = finding_for(
            facts,
            bound="overhead-bound",
            title=f"{_threads(threads)} on {cores:g} cores: training waits {format_ratio(share)} of the time",
            why="It waits for a core: of more threads than cores some always do, and an operator for the last of them.",
            evidence=(
                revise(queued, n=queue.n, behind=(_RUN_QUEUE,)),
                evidence("Intra-op threads", threads, "count", "torch.get_num_threads"),
                evidence("Cores that its processes use", used, "count", "CPU time of the process and its workers"),
                evidence("Usable cores of this rank", cores, "count", "affinity and quota, divided among ranks"),
            ),
            at_most="medium",
            detail="contention",
            saving=at_most(expected, bound),
            fix=Fix(
                text=f"Threads {threads} → {proposed}, in the environment of every rank.",
                code=f"OMP_NUM_THREADS={proposed} python train.py  # or torch.set_num_threads({proposed})",
            ),
            confirm="The share of time in the run queue must fall.",
        )
        return Fired((finding,))


def _threads(count: int) -> str:
    return f"{count} thread{'' if count == 1 else 's'}"
