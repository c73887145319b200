"""What the rules about the loader share: when they speak, their evidence, and what is proposed."""

import math

from profilerkit.analysis import whatif
from profilerkit.analysis.workers.anatomy import named_wait
from profilerkit.model.run import WORKER_PARTS, WorkerPartName, Workers
from profilerkit.rules.api import WAITS, Evidence, Facts, Fix, MissingData, NotApplicable, Passed, Result, SettingChange
from profilerkit.rules.evidence import line_evidence
from profilerkit.units import format_ratio

ORIGIN = "timers in the worker processes"  #: where the workers' numbers come from
SMALLEST_WAIT = 0.03  #: share of the step below which a wait is not worth dividing


def recorded_workers(facts: Facts) -> Workers | Result:
    """Return the workers' record of a loader the step waits for; else how a rule about them ends."""
    if facts.input is None:
        return MissingData("no loader was seen", "wrap the loader: for batch in prof.wrap(loader)")
    current = whatif.workers_now(facts)
    if current == 0:
        return NotApplicable("the loader has no worker processes")
    share = facts.share(*WAITS)
    if share < SMALLEST_WAIT:
        return Passed(f"the step waits {format_ratio(share)} of its time for data")
    if facts.workers is None:
        hint = "run the loop under profilerkit.profile(...): it times the batches of torch's DataLoader"
        return MissingData("what the loader's workers do was not recorded", hint)
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


#: Share of a wait for batches that others make which goes once enough of them are made at a time. Measured on the U-Net
#: of a course: 8 workers for 2 took 0.94 of it, 16 for 2 0.92, batches made on the device 0.88.
MADE_AHEAD = 0.9


def made_elsewhere(facts: Facts) -> bool:
    """Whether the step waits for batches that others make, or for what no event names, and nobody knows how many."""
    return whatif.workers_now(facts) is None and facts.share("input.wait") > facts.share(*WAITS) / 2


def cheaper_input(facts: Facts) -> float:
    """Return the saving if preparing a batch cost half as much, or where others make it if enough of them did."""
    queue = facts.loading.queue if facts.loading is not None else None
    most = queue.cheaper(whatif.CHEAPER_TRANSFORM) if queue is not None and queue.is_faithful else 1.0
    part = MADE_AHEAD if made_elsewhere(facts) else whatif.CHEAPER_TRANSFORM
    return min(part * whatif.waited_share(facts), max(most, 0.0))


def more_at_a_time(facts: Facts) -> Fix:
    """As many workers as the step needs, by how many there are now, which is not known."""
    step = facts.mean_step_ns or 1.0
    times = max(math.ceil(whatif.WORKER_MARGIN * step / whatif.consumer_ns(facts, step)), 2)
    text = f"num_workers × {times}, or {times} where there are none yet, as far as there are cores."
    return Fix(text=text, code="DataLoader(..., num_workers=…, persistent_workers=True)")


def worker_fix(facts: Facts, fix: whatif.LoaderFix) -> Fix:
    """Return the proposal of more workers."""
    change = SettingChange("num_workers", fix.current, fix.workers)
    kept = f"{change.text}, and keep the workers between epochs."
    text = kept + _parts_of_data(facts, fix) + limits(facts, fix)
    code = f"DataLoader(..., num_workers={fix.workers}, persistent_workers=True)"
    return Fix(text=text, code=code, changes=(change,))


def _parts_of_data(facts: Facts, fix: whatif.LoaderFix) -> str:
    """What has to be done for a dataset that is iterable, or may be as it has no length; empty or after a space."""
    if fix.current > 1 or facts.loader is None or facts.loader.is_iterable is False:
        return ""
    if facts.loader.is_iterable is None and facts.loader.dataset_len is not None:
        return ""
    return " An iterable dataset must give each worker a part, by get_worker_info(): else each gives all of it."


def limits(facts: Facts, fix: whatif.LoaderFix) -> str:
    """Return what keeps the number of workers down, and torch's warning; empty or beginning with a space."""
    text = ""
    beyond = facts.usable_cores is not None and fix.workers > facts.usable_cores
    if fix.capped_by == "memory":
        text += f" The rates ask for {fix.wanted}; the free memory allows no more."
    elif fix.capped_by:
        most = (
            f"more than {whatif.BLOCKED_PER_CORE} per core help little" if beyond else "the usable cores allow no more"
        )
        text += f" The rates ask for {fix.wanted}; {most if facts.usable_cores is not None else 'try fewer first'}."
    if beyond:
        text += " That is more than there are cores, which torch warns about; these workers wait most of the time."
    elif facts.usable_cores is None:
        text += " The recording does not say how many cores there are: no more workers than free cores."
    return text
