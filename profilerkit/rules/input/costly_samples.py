"""IN007 (R07): the workers compute all the time."""

from dataclasses import dataclass
from typing import ClassVar

from profilerkit.analysis.facts import Facts
from profilerkit.analysis.leaves import WAITS
from profilerkit.analysis.whatif import CHEAPER_TRANSFORM, cheaper_batch, saving
from profilerkit.model.finding import Fix
from profilerkit.model.workers import Workers
from profilerkit.rules.input.worker_evidence import measured, optional, part_evidence, recorded_workers
from profilerkit.rules.lines import in_line, line_evidence, told_line
from profilerkit.rules.rule import Fired, Passed, Result, Rule, finding_for
from profilerkit.units import format_ns, format_ratio


@dataclass(frozen=True)
class CostlySamples(Rule):
    """Decode or augment bound (R07).

    Claim: The workers spend their time computing samples.
    Evidence: CPU share of a batch while its samples are made, from the CPU clock of the worker's thread.
    Threshold: 70 % of the work on a batch.
    Fix: A faster decoder, smaller files, fewer conversions per sample, or the transform on the device.
    Saving: Bound: the input share. Expected: the fluid model with half of the CPU cost.
    Traps: Libraries with threads of their own compute beside the worker's thread and are not counted; torch sets its
        own to one per worker.
    Confidence: High.
    """

    code: ClassVar[str] = "IN007"
    name: ClassVar[str] = "costly_samples"
    family: ClassVar[str] = "input"
    summary: ClassVar[str] = "Workers spend their time computing samples"

    computing_share: float = 0.7

    def check(self, facts: Facts) -> Result:
        """Fires when most of a batch is computing its samples."""
        workers = recorded_workers(facts)
        if not isinstance(workers, Workers):
            return workers
        share = workers.share("prep")
        if share < self.computing_share:
            return Passed(f"computing samples is {format_ratio(share)} of a batch")
        removed = CHEAPER_TRANSFORM * workers.time_ns("prep")
        expected = cheaper_batch(facts, removed, removed)
        if not self.worth_saying(facts, expected):
            return Passed(f"computing samples is {format_ratio(share)} of a batch, and the step hardly waits for it")
        line = facts.lines.get("fetch")
        finding = finding_for(
            facts,
            bound="input-bound",
            title=f"Workers compute {format_ns(workers.time_ns('prep'))} for the samples of every batch",
            why=f"{format_ratio(share)} of the work on a batch is CPU time while its samples are made."
            f"{told_line(line, 'that time')}",
            evidence=(
                *part_evidence(facts, workers, "prep", "fetch"),
                measured(facts, workers, "Computing the samples of a batch", workers.time_ns("prep"), "ns"),
                *optional(facts, workers, "Cores that the workers keep busy", workers.cpu_cores, "count"),
                *line_evidence(facts, "Of the making of samples", line),
            ),
            at_most="high",
            detail="prep",
            saving=saving(expected, facts.share(*WAITS)),
            fix=Fix(
                text=f"Halve the cost of a sample{in_line(line)}: a faster decoder, files stored in the size that is "
                "used, fewer conversions, or the transform on the device."
            ),
            confirm="A dataset that returns ready tensors shows the floor.",
        )
        return Fired((finding,))
