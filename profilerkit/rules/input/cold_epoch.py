"""IN012: the first epoch waits for data that later epochs find in memory."""

from functools import partial

from profilerkit.analysis.workers.queue import EpochFacts
from profilerkit.rules.api import Facts, MissingData, NotApplicable, Passed, Result, Rule, fired, record_longer
from profilerkit.units import format_ns, format_ratio


class ColdEpoch(Rule, frozen=True):
    """Find a first epoch whose fetches take {slower_ratio} times as long as later ones.

    Why it costs: The first epoch reads from storage and fills the file cache. Later epochs read from memory.

    Example:
        $ torchrun train.py --data shared/dataset
    Use instead:
        $ cp -r shared/dataset local/dataset
        $ torchrun train.py --data local/dataset
    How it is measured: The usual fetch of the first epoch is compared with that of later ones; the difference must take
        {smallest_share} of the step. Confidence is high only if the share of bytes from storage falls by {stored_fall}.
        No saving is given: the wait comes once.
    When it is wrong: A verdict on the first epoch does not hold for the run. A dataset that caches decoded samples
        looks the same where the bytes are unknown.
    """

    code = "IN012"
    summary = "The first epoch waits for data that later epochs find in memory"

    slower_ratio: float = 2.0
    smallest_share: float = 0.02  #: the general floor of a saving, here of what the first epoch's fetches take more
    #: How much less of the bytes must come from storage later to say that the cache is why (a choice).
    stored_fall: float = 0.5

    def check(self, facts: Facts) -> Result:
        if facts.input is None:
            return MissingData("no loader was seen", "wrap the loader: for batch in prof.wrap(loader)")
        epochs = facts.loading.epochs if facts.loading is not None else None
        if epochs is None or epochs.first_wait_ns is None:
            return MissingData("no start of an epoch was recorded", "record the whole run, with a torch DataLoader")
        if epochs.later_wait_ns is None:
            stored = epochs.first_stored_ratio
            if stored is None or stored < self.stored_fall:
                return NotApplicable("a single epoch was recorded")
            return MissingData(
                f"a single epoch was recorded, and {format_ratio(stored)} of what it read came from storage: a later "
                "one may wait less",
                record_longer(facts, "two epochs"),
            )
        more = epochs.first_wait_ns - epochs.later_wait_ns
        slow = epochs.first_wait_ns >= self.slower_ratio * epochs.later_wait_ns
        if not slow or more < self.smallest_share * (facts.mean_step_ns or 0.0):
            first, later = format_ns(epochs.first_wait_ns), format_ns(epochs.later_wait_ns)
            return Passed(f"a fetch takes {first} in the first epoch and {later} in later ones")
        return self._finding(facts, epochs, epochs.first_wait_ns, epochs.later_wait_ns)

    def _finding(self, facts: Facts, epochs: EpochFacts, first_ns: float, later_ns: float) -> Result:
        first, later = epochs.first_stored_ratio, epochs.later_stored_ratio
        cached = first is not None and later is not None and first - later >= self.stored_fall
        row = partial(facts.evidence, n=epochs.count)
        return fired(
            facts,
            bound=None,
            title=f"The first epoch waits {format_ns(first_ns)} for a batch, later ones {format_ns(later_ns)}",
            why="The first epoch reads from storage what later ones find in memory."
            if cached
            else "Something is done once in the first epoch; the recording does not show that it is the file cache.",
            evidence=(
                row("Usual fetch, first epoch", first_ns, "ns", "step timers"),
                row("Usual fetch, later epochs", later_ns, "ns", "step timers"),
                row("Read from storage, first epoch", first, "ratio", "counters of the worker processes"),
                row("Read from storage, later epochs", later, "ratio", "counters of the worker processes"),
            ),
            at_most="high" if cached else "low",
            confirm="Judge the run by its later epochs. For a run of one or two epochs copy the data to local storage "
            "ahead, or read it once before.",
        )
