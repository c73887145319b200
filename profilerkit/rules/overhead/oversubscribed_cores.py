"""OV008: more threads than cores compute, and the training thread or the loader's workers wait for one."""

import math

from profilerkit.analysis.parts import WAITS
from profilerkit.analysis.whatif import at_most, cheaper_batch, saving
from profilerkit.analysis.workers.capacity import OWN_CORES, own_cores
from profilerkit.model.finding import Evidence, Finding, Fix
from profilerkit.rules.api import Facts, Fired, MissingData, NotApplicable, Passed, Result, Rule, finding_for, fired
from profilerkit.rules.evidence import over_all_samples, queued_evidence
from profilerkit.rules.input.loader import cores_evidence, measured
from profilerkit.units import format_count, format_ratio


class OversubscribedCores(Rule, frozen=True):
    """Find runs with more threads than cores whose training thread waits {queued_ratio} of its time for a core.

    Why it costs: Threads that take turns on a core lose time to switching, and the training thread has to wait.

    Example:
        torch.set_num_threads(64)

    Use instead:
        import os
        torch.set_num_threads(len(os.sched_getaffinity(0)))

    How it is measured: The kernel's scheduler statistics give the wait. The rank must use {own_ratio} of its cores
        itself. For workers, threads other than those that make batches must use {other_threads_ratio} of their cores.
        The saving is half of the wait, a guess.

    When it is wrong: Threads of OpenCV or BLAS are not counted in the training process. Where other programs take the
        cores, fewer threads make the run slower.

    Sources:
        https://docs.pytorch.org/docs/stable/generated/torch.set_num_threads.html
    """

    code = "OV008"
    summary = "More threads than cores compete"

    queued_ratio: float = 0.2
    #: Share of its cores that the rank uses itself, below which others take them (a choice).
    own_ratio: float = OWN_CORES
    #: Part of the cores used by workers that their other threads take.
    other_threads_ratio: float = 0.5

    def check(self, facts: Facts) -> Result:
        in_workers = self._in_workers(facts)
        return Fired((in_workers,)) if in_workers is not None else self._in_training(facts)

    def _in_workers(self, facts: Facts) -> Finding | None:
        """Workers whose batches queue for the cores that their own further threads take."""
        workers, sampled, cores = facts.workers, facts.series("host.worker_cores"), facts.usable_cores
        if workers is None or sampled is None or workers.cpu_cores is None or not cores:
            return None
        others = sampled.mean - workers.cpu_cores
        if sampled.mean < self.own_ratio * cores or others < self.other_threads_ratio * sampled.mean:
            return None
        queued = workers.share("core")
        expected = cheaper_batch(facts, workers.time_ns("core"))
        if queued < self.queued_ratio or not self.worth_saying(facts, expected):
            return None
        title = f"Threads of {_count(workers.count, 'worker')} share {cores:g} cores: a batch waits "
        return finding_for(
            facts,
            bound="input-bound",
            title=f"{title}{format_ratio(queued)} of its time",
            why=f"The threads that make the batches use {format_count(workers.cpu_cores)} cores, and their processes "
            f"{format_count(sampled.mean)}: operators divide their work among more threads than there are cores.",
            evidence=(
                facts.share_evidence("Input wait, share of the step", *WAITS),
                measured(facts, workers, "Waiting for a core, share of the work on a batch", queued, "ratio"),
                measured(facts, workers, "num_workers", workers.count, "count"),
                measured(facts, workers, "Cores of the threads that make batches", workers.cpu_cores, "count"),
                facts.evidence(
                    "Cores that the workers' processes use",
                    sampled.mean,
                    "count",
                    "CPU time of the worker processes",
                    n=sampled.n,
                    behind=(sampled.name,),
                ),
                cores_evidence(facts),
            ),
            at_most="medium",
            detail="wait",
            saving=saving(expected, facts.share(*WAITS)),
            fix=Fix(
                text="One thread in each worker: torch.set_num_threads(1) in worker_init_fn; OpenCV and BLAS have "
                "settings of their own.",
                code="def one_thread(worker): torch.set_num_threads(1)\nDataLoader(..., worker_init_fn=one_thread)",
            ),
            confirm="A batch must wait less for a core, and take less of a worker.",
        )

    def _in_training(self, facts: Facts) -> Result:
        """Torch's own threads beside the training thread."""
        threads, cores = facts.host.threads, facts.usable_cores
        if threads is None or cores is None:
            return MissingData(
                "how many threads torch uses was not recorded", "run the loop under profilerkit.profile(...)"
            )
        if threads <= max(cores, 1.0):
            return Passed(f"torch uses {_threads(threads)} on {cores:g} cores of this rank")
        queued = queued_evidence(facts, "Training thread waits for a core, share of the time")
        if queued is None:
            has_host = any(series.name.startswith("host.") for series in facts.samples)
            if has_host:
                return NotApplicable("this system does not record how long a thread waits for a core")
            return MissingData("the host was not sampled", "profilerkit.profile(..., host=True), for at least 2 s")
        share = min(queued.value or 0.0, 1.0)
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
        value = at_most(min(share, waits_for_host))
        if not self.worth_saying(facts, value.expected):
            lost = format_ratio(value.expected)
            return Passed(f"the training thread waits for a core, and the step loses {lost} by it")
        proposed = max(math.floor(cores), 1)

        def evidence(label: str, value: float, unit: str, origin: str) -> Evidence:
            return facts.evidence(label, value, unit, origin, n=None)

        return fired(
            facts,
            bound="overhead-bound",
            title=f"{_threads(threads)} on {cores:g} cores: training waits {format_ratio(share)} of the time",
            why=f"{over_all_samples(facts, queued)}With more threads than cores some always wait, and an operator "
            "waits for the last of them.",
            evidence=(
                queued,
                evidence("Intra-op threads", threads, "count", "torch.get_num_threads"),
                evidence("Cores that its processes use", used, "count", "CPU time of the process and its workers"),
                evidence("Usable cores of this rank", cores, "count", "affinity and quota, divided among ranks"),
            ),
            at_most="medium",
            detail="contention",
            saving=value,
            fix=Fix(
                text=f"Threads {threads} → {proposed}, in the environment of every rank.",
                code=f"OMP_NUM_THREADS={proposed} python train.py  # or torch.set_num_threads({proposed})",
            ),
            confirm="The share of time in the run queue must fall.",
        )


def _threads(count: int) -> str:
    return _count(count, "thread")


def _count(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
