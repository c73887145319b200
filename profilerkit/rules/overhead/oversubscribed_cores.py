"""OV008: more threads than cores compute, and the training thread waits for one."""

import math
from functools import partial

from profilerkit.analysis.whatif import at_most
from profilerkit.analysis.workers.capacity import OWN_CORES, own_cores
from profilerkit.model.finding import Fix, SettingChange
from profilerkit.rules.api import Facts, MissingData, NotApplicable, Passed, Result, Rule, fired
from profilerkit.rules.evidence import over_all_samples, queued_evidence
from profilerkit.units import format_ratio


class OversubscribedCores(Rule, frozen=True):
    """Find runs with more threads than cores whose training thread waits {queued_ratio} of its time for a core.

    Why it costs: Threads that take turns on a core lose time to switching, and the training thread has to wait.

    Example:
        torch.set_num_threads(64)
    Use instead:
        import os
        torch.set_num_threads(len(os.sched_getaffinity(0)))
    How it is measured: The kernel's scheduler statistics give the wait. The rank must use {own_ratio} of its cores
        itself.
        The saving is half of the wait, a guess.
    When it is wrong: Threads of OpenCV or BLAS are not counted in the training process. Where other programs take the
        cores, fewer threads make the run slower.
    Sources: https://docs.pytorch.org/docs/stable/generated/torch.set_num_threads.html
    """

    code = "OV008"
    summary = "More threads than cores compete"

    queued_ratio: float = 0.2
    #: Share of its cores that the rank uses itself, below which others take them (a choice).
    own_ratio: float = OWN_CORES

    def check(self, facts: Facts) -> Result:
        threads, cores = facts.host.threads, facts.usable_cores
        if threads is None or cores is None:
            hint = "run the loop under profilerkit.profile(...)"
            return MissingData("how many threads torch uses was not recorded", hint)
        if threads <= max(cores, 1.0):
            return Passed(f"torch uses {_threads(threads)} on {cores:g} cores of this rank")
        queued = queued_evidence(facts, "Training thread waits for a core, share of the time")
        if queued is None:
            if any(series.name.startswith("host.") for series in facts.samples):
                return NotApplicable("this system does not record how long a thread waits for a core")
            return MissingData("the host was not sampled", "profilerkit.profile(..., host=True), for at least 2 s")
        share = min(queued.value or 0.0, 1.0)
        # What the thread computed was not sampled: it is at most the rest of the time.
        if share <= self.queued_ratio * (1.0 - share):
            return Passed(f"the training thread waits {format_ratio(share)} of the time for a core")
        used = own_cores(facts)
        if used is None:
            hint = "profilerkit.profile(..., host=True), on Linux"
            return MissingData("how many cores the rank itself uses was not sampled", hint)
        if used < self.own_ratio * cores:
            return Passed(f"the rank uses {used:.1f} of its {cores:g} cores: other processes take them")
        waits_for_host = 1.0 - facts.device.busy_ratio if facts.device is not None else 1.0
        value = at_most(min(share, waits_for_host))
        if not self.worth_saying(facts, lost := value.expected):
            return Passed(f"the training thread waits for a core, and the step loses {format_ratio(lost)} by it")
        proposed, row = max(math.floor(cores), 1), partial(facts.evidence, unit="count", n=None)
        return fired(
            facts,
            bound="overhead-bound",
            title=f"{_threads(threads)} on {cores:g} cores: training waits {format_ratio(share)} of the time",
            why=f"{over_all_samples(facts, queued)}With more threads than cores some always wait, and an operator "
            "waits for the last of them.",
            evidence=(
                queued,
                row("Intra-op threads", threads, origin="torch.get_num_threads"),
                row("Cores that its processes use", used, origin="CPU time of the process and its workers"),
                row("Usable cores of this rank", cores, origin="affinity and quota, divided among ranks"),
            ),
            at_most="medium",
            detail="contention",
            saving=value,
            fix=Fix(
                text=f"Threads {threads} → {proposed}, in the environment of every rank.",
                code=f"OMP_NUM_THREADS={proposed} python train.py  # or torch.set_num_threads({proposed})",
                changes=(SettingChange("threads", threads, proposed),),
            ),
            confirm="The share of time in the run queue must fall.",
        )


def _threads(count: int) -> str:
    return f"{count} thread{'' if count == 1 else 's'}"
