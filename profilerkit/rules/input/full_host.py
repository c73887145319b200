"""IN005: the host's cores are taken, so more workers would not help."""

from profilerkit.analysis.whatif import CHEAPER_TRANSFORM, cheaper_batch, workers_now
from profilerkit.analysis.workers.capacity import CORES_IN_USE, shortage
from profilerkit.model.run import Workers
from profilerkit.rules.api import WAITS, Facts, Fix, Passed, Result, Rule, fired, saving
from profilerkit.rules.evidence import in_line, line_evidence, told_line
from profilerkit.rules.input.loader import cores_evidence, measured, recorded_workers


class FullHost(Rule, frozen=True):
    """Find a loader whose workers wait for a core, or keep the usable cores busy.

    Why it costs: The loader is limited by CPU time. More workers only take cores from each other.

    Example:
        loader = DataLoader(dataset, batch_size=4, num_workers=64)
    Use instead:
        import os
        cores = len(os.sched_getaffinity(0))
        loader = DataLoader(dataset, batch_size=4, num_workers=cores)
    How it is measured: A batch computes or queues for 90 % of its time, and queues a fifth as long as it computes. Or
        the workers keep 85 % of the usable cores busy. Or a CPU quota stops them 5 % of the time. Or more workers than
        cores compute. The saving models half of the CPU cost, or no time in the queue.
    When it is wrong: Hardware threads count as cores, but compute less. Pressure on the whole host may come from
        another job. Confidence is high where the run queue of the workers is known.
    Sources: https://docs.kernel.org/accounting/psi.html
    """

    code = "IN005"
    summary = "The host has no cores for more workers"

    def check(self, facts: Facts) -> Result:
        workers = recorded_workers(facts)
        if not isinstance(workers, Workers):
            return workers
        reason = shortage(facts)
        if reason is None:
            return Passed("the workers' batches find a core")
        cores = facts.usable_cores
        is_own = cores is not None and workers.cpu_cores is not None and workers.cpu_cores >= CORES_IN_USE * cores
        cpu = CHEAPER_TRANSFORM * workers.cpu_ns
        queued = workers.time_ns("core")
        expected = cheaper_batch(facts, queued) if queued and not is_own else cheaper_batch(facts, cpu, cpu)
        if not self.worth_saying(facts, expected):
            return Passed(f"{reason}, and the step hardly waits for it")
        line, now = facts.lines.get("workers"), workers_now(facts) or workers.count
        fix = "Give the job more cores or a higher CPU quota."
        confirm = "On an idle host the same loader must be faster."
        if is_own:
            fix = f"Halve what a batch computes{in_line(line)}: decode and resize ahead, a cheaper codec, or transform"
            fix += " on the device."
            confirm = "With half of the transform left out the step must get shorter; with more workers it must not."
        known = all(stage.run_queue_ns is not None for stage in workers.stages)
        return fired(
            facts,
            bound="input-bound",
            title=f"More workers will not help, the CPU is full: {reason}",
            why="Making a batch needs a core, and there is none free: more workers would share the same cores."
            f"{told_line(line, 'the time of workers')}",
            evidence=(
                facts.share_evidence("Input wait, share of the step", *WAITS),
                measured(facts, workers, "CPU time of a batch", workers.cpu_ns, "ns"),
                measured(facts, workers, "Waiting for a core, per batch", workers.time_ns("core"), "ns"),
                measured(facts, workers, "Cores that the workers keep busy", workers.cpu_cores, "count"),
                cores_evidence(facts),
                *line_evidence(facts, "Workers' time", line),
                measured(facts, workers, "num_workers", now, "count"),
            ),
            at_most="high" if known else "medium",
            detail="prep" if is_own else "wait",
            saving=saving(expected, facts.share(*WAITS)),
            fix=Fix(text=f"{fix} Keep num_workers {now}: more would compete for the same cores."),
            confirm=confirm,
        )
