"""What the rules about worker processes share: when they speak at all, and the evidence they print."""

from profilerkit.analysis.whatif import workers_now
from profilerkit.analysis.workers.anatomy import named_wait
from profilerkit.model.workers import WORKER_PARTS, WorkerPartName, Workers
from profilerkit.rules.api import WAITS, Evidence, Facts, MissingData, NotApplicable, Passed, Result
from profilerkit.rules.lines import line_evidence
from profilerkit.units import format_ratio

#: Where the workers' numbers come from.
ORIGIN = "timers in the worker processes"
#: Share of the step below which a wait is not worth dividing.
SMALLEST_WAIT = 0.03


def recorded_workers(facts: Facts) -> Workers | Result:
    """Return the workers' record of a loader the step waits for; else how a rule about them ends."""
    if facts.input is None:
        return MissingData("no loader was seen", "wrap the loader: for batch in prof.wrap(loader)")
    current = workers_now(facts)
    if current == 0:
        return NotApplicable("the loader has no worker processes")
    share = facts.share(*WAITS)
    if share < SMALLEST_WAIT:
        return Passed(f"the step waits {format_ratio(share)} of its time for data")
    if facts.workers is None:
        return MissingData(
            "what the loader's workers do was not recorded",
            "run the loop under profilerkit.profile(...): it times the batches of torch's DataLoader",
        )
    return facts.workers


def part_evidence(facts: Facts, workers: Workers, *parts: WorkerPartName) -> tuple[Evidence, ...]:
    """Return the wait, the time of a batch, and the share of each part in it."""
    return (
        facts.share_evidence("Input wait, share of the step", *WAITS),
        measured(facts, workers, "Work on one batch", float(workers.producer_ns), "ns"),
        *(
            measured(facts, workers, f"{WORKER_PARTS[entry.part]}, share of it", entry.share, "ratio")
            for entry in workers.parts
            if entry.part in parts
        ),
        *line_evidence(facts, "Workers' time", facts.lines.get("workers")),
    )


def measured(facts: Facts, workers: Workers, label: str, value: float | None, unit: str) -> Evidence:
    """Return a mean over the batches that the judged steps got."""
    return facts.evidence(label, value, unit, ORIGIN, n=workers.batches, steps=facts.judged_steps)


def wait_detail(facts: Facts, workers: Workers) -> str:
    """Return which part of the wait is most of it, without its family."""
    return named_wait(workers, facts.input.cpu_ratio if facts.input else None).removeprefix("input.")


def cores_evidence(facts: Facts) -> Evidence:
    """Return the cores that the process may use."""
    return Evidence("Usable cores", facts.usable_cores, "count", "measured", "affinity and quota")
