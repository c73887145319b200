"""IN002: the main process loads the data itself."""

from profilerkit.analysis.whatif import loader_fix, saving, waited_share, workers_now
from profilerkit.model.finding import Evidence
from profilerkit.rules.api import WAITS, Facts, MissingData, NotApplicable, Passed, Result, Rule, each, fired, unsure
from profilerkit.rules.input.loader import cores_evidence, worker_fix
from profilerkit.rules.input.starved_device import frames_evidence, in_function
from profilerkit.units import format_ns, format_ratio

#: What a step waits for once there are workers.
_LIMITS = {"compute": "everything it does except loading", "workers": "the workers' rate", "cores": "the host's cores"}


class NoWorkers(Rule, frozen=True):
    """Find a loader without worker processes that holds up the step by {smallest_share} and {smallest_wait_ns}.

    Why it costs: Loading and training take turns in one process. Workers make the next batches while this one trains.

    Example:
        loader = DataLoader(dataset, batch_size=4)
    Use instead:
        loader = DataLoader(
            dataset, batch_size=4, num_workers=2, persistent_workers=True
        )
    How it is measured: The loader's num_workers, or the event of its single-process iterator, is compared with the
        input wait. The saving is 1 - max(compute + 1.6 ms, producer / workers, CPU / cores) / step: 1.6 ms is the
        hand-over of a batch. Confidence is high when the settings are known, medium from a trace alone.
    When it is wrong: For a small dataset in memory, handing batches between processes can cost more than fetching them.
        Workers cannot read tensors on a device. On a host whose cores are busy, workers gain little.
    Sources:
        https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html
        https://docs.pytorch.org/docs/stable/data.html
    """

    code = "IN002"
    summary = "The main process loads the data itself"

    smallest_share: float = 0.03
    #: Handing a batch from a worker to the main process took 1.6 ms for 32 KiB in tests.
    smallest_wait_ns: float = 2_000_000

    def check(self, facts: Facts) -> Result:
        if facts.input is None:
            return MissingData("no loader was seen", "wrap the loader: for batch in prof.wrap(loader)")
        workers = workers_now(facts)
        if workers is None:
            return MissingData("the loader's settings are not known", "wrap a torch DataLoader: prof.wrap(loader)")
        if workers:
            return NotApplicable("the loader uses worker processes")
        share, wait = waited_share(facts), format_ns(facts.time_ns(*WAITS))
        if share < self.smallest_share or facts.time_ns(*WAITS) < self.smallest_wait_ns:
            costs = f"{wait} ({format_ratio(share)}) of the step"
            return Passed(f"the main process loads the data, but that costs only {costs}")
        fix = loader_fix(facts)
        if fix is None or (fix.limited_by == "cores" and not self.worth_saying(facts, fix.expected)):
            return Passed("workers would not shorten the step: the host's cores are the limit")
        if not self.worth_saying(facts, fix.expected):
            return unsure(f"the step waits {format_ratio(share)} of its time for data", fix.expected)
        known = facts.loader is not None and facts.loader.num_workers is not None
        return fired(
            facts,
            bound="input-bound",
            title=f"num_workers = 0: loading costs {wait} in {each(facts)}{in_function(facts)}",
            why="While the main process loads a batch it issues no work, so loading and computing never overlap.",
            evidence=(
                Evidence("num_workers", 0, "count", "measured", "DataLoader settings" if known else facts.input.origin),
                facts.share_evidence("Input wait, share of the step", *WAITS),
                *frames_evidence(facts),
                cores_evidence(facts),
            ),
            at_most="high" if known else "medium",
            saving=saving(fix.expected, share),
            fix=worker_fix(facts, fix),
            detail=max(WAITS, key=facts.share).removeprefix("input."),
            confirm="Train again: the wait for data must fall and the step with it. "
            f"What limits it afterwards is {_LIMITS[fix.limited_by]}.",
        )
