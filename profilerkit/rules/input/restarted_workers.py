"""IN011: every epoch starts its worker processes again."""

from functools import partial

from profilerkit.analysis.whatif import at_most, saving, workers_now
from profilerkit.analysis.workers.queue import EpochFacts
from profilerkit.model.finding import Finding, Fix, SettingChange
from profilerkit.model.run import STEP_TIMERS
from profilerkit.rules.api import (
    SMALLEST_SAVING,
    Facts,
    Fired,
    MissingData,
    NotApplicable,
    Passed,
    Result,
    Rule,
    finding_for,
    record_longer,
)
from profilerkit.units import format_count, format_ns, format_ratio

_PERSIST = SettingChange("persistent_workers", False, True)


class RestartedWorkers(Rule, frozen=True):
    """Find epochs that lose {smallest_gap_ns} and 2 % of their time to stopping and starting workers.

    Why it costs: New workers import modules, open the data and fill the queue while the device waits.

    Example:
        loader = DataLoader(dataset, batch_size=4, num_workers=2)
    Use instead:
        loader = DataLoader(
            dataset, batch_size=4, num_workers=2, persistent_workers=True
        )
    How it is measured: The first fetches of an epoch, one for each worker, and the last fetch are compared with the
        usual fetch. The saving excludes one batch in its usual time. For an iterable dataset it is the start and the
        end of the workers.
    When it is wrong: Long epochs are hardly affected. Kept workers keep the state of their dataset object, and restart
        an iterable dataset. Confidence is low without the workers' own records.
    Sources: https://docs.pytorch.org/docs/stable/data.html
    """

    code = "IN011"
    summary = "Worker processes are started again in every epoch"

    smallest_gap_ns: float = 20_000_000

    def check(self, facts: Facts) -> Result:
        if workers_now(facts) == 0:
            return NotApplicable("the loader has no worker processes")
        epochs = facts.loading.epochs if facts.loading is not None else None
        if epochs is None:
            return MissingData("no start of an epoch was recorded", "wrap a torch DataLoader: prof.wrap(loader)")
        kept = facts.loader.persistent_workers if facts.loader is not None else None
        if kept or epochs.renewed is False:
            return Passed("the workers are kept from epoch to epoch")
        if epochs.renewed is None and not (workers_now(facts) and kept is False):
            return MissingData("whether the loader has worker processes is not known", "wrap a torch DataLoader")
        if epochs.boundary_ns is None or not epochs.steps:
            return MissingData("no end of an epoch was recorded", record_longer(facts, "two epochs"))
        lost_ns = epochs.restart_ns if epochs.restart_ns is not None else epochs.boundary_ns
        if lost_ns < self.smallest_gap_ns:
            return Passed(f"a new epoch starts its workers in {format_ns(lost_ns)}")
        # The judged steps may hold fewer openings than the epochs do, where windows were traced.
        whole_ns = epochs.time_ns or epochs.steps * (facts.mean_step_ns or 1.0)
        bound, expected = min(epochs.boundary_ns / whole_ns, 1.0), min(lost_ns / whole_ns, 1.0)
        if expected < SMALLEST_SAVING:  # each boundary was timed: how much other steps vary says nothing of it
            return Passed(f"starting workers again costs {format_ratio(expected)} of an epoch")
        return Fired((_finding(facts, epochs, lost_ns, expected, max(bound, expected)),))


def _finding(facts: Facts, epochs: EpochFacts, lost_ns: float, expected: float, bound: float) -> Finding:
    seen = epochs.restart_ns is not None
    steps = format_count(round(epochs.steps or 0))
    timed = "step timers" if facts.measured(STEP_TIMERS) else "events of the loader"
    origin = f"{timed} and the workers' records" if seen else timed
    row = partial(facts.evidence, origin=origin, source="measured" if seen else "derived", n=epochs.count)
    return finding_for(
        facts,
        bound="input-bound",
        title=f"New workers in every epoch cost {format_ns(lost_ns)} per {steps} steps",
        why="Between two epochs all workers end and new ones start; training waits for the first batch.",
        evidence=(
            row("Starting, opening and stopping workers, per epoch", lost_ns, "ns"),
            row("Between two epochs, beyond a usual fetch", epochs.boundary_ns or 0.0, "ns"),
            row("Steps in an epoch", epochs.steps or 0.0, "count", source="measured"),
        ),
        at_most="high" if seen and epochs.renewed else "medium" if seen else "low",
        detail="wait",
        saving=saving(expected, bound) if seen else at_most(bound, expected),
        fix=Fix(
            text=f"{_PERSIST.text}, of a loader that is made once: its workers go on with the next epoch.",
            code="loader = DataLoader(..., persistent_workers=True)  # before the loop over epochs",
            changes=(_PERSIST,),
        ),
        confirm="The first step of an epoch must get shorter; the first batch is all that is left to wait for.",
    )
