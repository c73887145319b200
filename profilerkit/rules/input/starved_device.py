"""IN001 (R01): the step waits for the data loader."""

from dataclasses import dataclass
from typing import ClassVar

from profilerkit.analysis.facts import Facts
from profilerkit.analysis.whatif import LoaderFix, cheaper_input, loader_fix, saving, workers_now
from profilerkit.model.finding import Evidence, Fix
from profilerkit.rules.rule import (
    Fired,
    MissingData,
    Passed,
    Result,
    Rule,
    finding_for,
    judged_steps,
    share_evidence,
    worth_saying,
)
from profilerkit.units import format_ns, format_ratio

WAITS = ("input.fetch", "input.prep", "input.wait")
_DETAIL = {"input.fetch": "fetch", "input.prep": "prep", "input.wait": "wait"}


@dataclass(frozen=True)
class StarvedDevice(Rule):
    """Input wait dominates (R01).

    Claim: The run loses time waiting for the data loader.
    Evidence: Share of the steady step in which the device is idle, or on a CPU-only run the main thread is held, while
        the loop fetches a batch. From the wrapper's timer, or from the loader's own event in a trace.
    Threshold: 5 % of the step (XProf calls 5 % moderate and 20 % high; torch-tb-profiler uses 5 %).
    Fix: More workers where the host has cores for them; else a cheaper transform. Without workers, see IN002.
    Saving: Bound: the share. Expected: that of the printed fix: the fluid model of the loader, T' = max(compute,
        producer / workers, CPU / cores), or half of the wait.
    Traps: The first batch after worker start, and the last fetch of an epoch, are no stalls. A wait hidden under
        device work costs nothing and is not counted. Loaders that leave no event need prof.wrap.
    Confidence: High from the wrapper's timer; medium from a trace alone, or with workers, whose own time is not known.
    """

    code: ClassVar[str] = "IN001"
    name: ClassVar[str] = "starved_device"
    family: ClassVar[str] = "input"
    summary: ClassVar[str] = "The step waits for the data loader"

    smallest_share: float = 0.05

    def check(self, facts: Facts) -> Result:
        """Fires when the exposed input wait reaches ``smallest_share``."""
        if facts.input is None:
            return MissingData("no loader was seen", "wrap the loader: for batch in prof.wrap(loader)")
        share = facts.share(*WAITS)
        if share < self.smallest_share:
            return Passed(f"the step waits {format_ratio(share)} of its time for data")
        fix = loader_fix(facts)
        cheaper = cheaper_input(facts)
        by_workers = fix is not None and fix.expected >= cheaper
        expected = fix.expected if fix is not None and by_workers else cheaper
        if not worth_saying(facts, expected):
            return Passed(f"the wait of {format_ratio(share)} is within the noise of the step time")
        wait = facts.time_ns(*WAITS)
        leading = max(WAITS, key=facts.share)
        step = facts.mean_step_ns or 0.0
        proposal: Fix | None = _cheaper_fix(facts)
        if fix is not None and by_workers:
            # Without workers IN002 proposes them; the same change is not listed twice.
            proposal = worker_fix(facts, fix) if fix.current else None
        finding = finding_for(
            facts,
            bound="input-bound",
            title=f"The step waits {format_ns(wait)} of {format_ns(step)} for data",
            why=_why(facts),
            evidence=_evidence(facts, wait),
            at_most="high" if facts.input.source == "measured" and not workers_now(facts) else "medium",
            detail=_DETAIL[leading],
            saving=saving(facts, expected, share),
            fix=proposal,
            confirm="Record again after the change: the input share must fall and the step with it. "
            "A batch cached in memory shows the floor.",
        )
        return Fired((finding,))


def worker_fix(facts: Facts, fix: LoaderFix) -> Fix:
    """The proposal of more workers, with a word on torch's warning where there are fewer cores."""
    text = f"num_workers {fix.current} → {fix.workers}, and keep the workers between epochs."
    if facts.usable_cores is not None and fix.workers > facts.usable_cores:
        text += " That is more than there are cores, which torch warns about; these workers wait most of the time."
    return Fix(text=text, code=f"DataLoader(..., num_workers={fix.workers}, persistent_workers=True)")


def _cheaper_fix(facts: Facts) -> Fix:
    if facts.share("input.fetch") > facts.share("input.prep", "input.wait"):
        return Fix(text="Halve the time blocked on reading: larger files read in sequence, a local copy, or a cache.")
    if facts.share("input.prep") > facts.share("input.fetch", "input.wait"):
        return Fix(text="Halve the cost of preparing a batch: decode and resize ahead, or transform on the device.")
    return Fix(text="Halve the time a batch takes: prepare it in parallel, ahead of the step, or more cheaply.")


def _why(facts: Facts) -> str:
    assert facts.input is not None
    if facts.share("input.prep") > facts.share("input.fetch", "input.wait"):
        return "The thread that loads the batch computes all the while: samples are prepared during the step."
    if facts.share("input.fetch") > facts.share("input.prep", "input.wait"):
        return "The thread that loads the batch is blocked, not computing: it reads from storage, network or a lock."
    if facts.mode == "gpu":
        return "The device has nothing to run while the loop is inside the loader."
    return "The training thread is inside the loader and does nothing else."


def _evidence(facts: Facts, wait: float) -> tuple[Evidence, ...]:
    assert facts.input is not None
    entries = [
        Evidence(
            label="Input wait per step",
            value=wait,
            unit="ns",
            source=facts.input.source,
            origin=facts.input.origin,
            n=facts.input.fetches,
            rank=facts.rank.rank,
            steps=judged_steps(facts),
            range_ns=facts.input.longest_ns,
        ),
        share_evidence(facts, "Input wait, share of the step", *WAITS),
    ]
    if facts.input.cpu_ratio is not None:
        entries.append(
            Evidence(
                label="CPU time of the loading thread during the wait",
                value=facts.input.cpu_ratio,
                unit="ratio",
                source="measured",
                origin="thread CPU clock",
                n=facts.input.fetches,
                rank=facts.rank.rank,
            )
        )
    return tuple(entries)
