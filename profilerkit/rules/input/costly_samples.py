"""IN007: the workers compute all the time."""

from profilerkit.analysis.whatif import CHEAPER_TRANSFORM, cheaper_batch
from profilerkit.model.run import Workers
from profilerkit.rules.api import WAITS, Facts, Fix, Passed, Result, Rule, fired, saving
from profilerkit.rules.evidence import in_line, line_evidence, told_line
from profilerkit.rules.input.loader import measured, part_evidence, recorded_workers
from profilerkit.units import format_ns, format_ratio


class CostlySamples(Rule, frozen=True):
    """Find workers that compute for {computing_share} of the work on a batch.

    Why it costs: Decoding and augmenting on the CPU sets the pace of training.

    Example:
        class Slow(Dataset):
            def __getitem__(self, index):
                return torch.tensor([float(value) for value in range(1000)])
    Use instead:
        class Fast(Dataset):
            def __getitem__(self, index):
                return torch.arange(1000, dtype=torch.float32)
    How it is measured: The CPU clock of the worker's thread gives the computing share. The saving models a transform of
        half the CPU cost.
    When it is wrong: Threads that a library starts are not counted. PyTorch itself uses one thread in each worker.
    Sources: https://docs.pytorch.org/docs/stable/data.html
    """

    code = "IN007"
    summary = "Workers spend their time computing samples"

    computing_share: float = 0.7

    def check(self, facts: Facts) -> Result:
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
        return fired(
            facts,
            bound="input-bound",
            title=f"Workers compute {format_ns(workers.time_ns('prep'))} for the samples of every batch",
            why=f"{format_ratio(share)} of the work on a batch is CPU time while its samples are made."
            f"{told_line(line, 'that time')}",
            evidence=(
                *part_evidence(facts, workers, "prep", "fetch"),
                measured(facts, workers, "Computing the samples of a batch", workers.time_ns("prep"), "ns"),
                measured(facts, workers, "Cores that the workers keep busy", workers.cpu_cores, "count"),
                *line_evidence(facts, "Making samples", line),
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
