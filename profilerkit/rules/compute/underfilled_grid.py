"""CP003: the last round of blocks leaves multiprocessors without work."""

import math
from collections.abc import Sequence

from profilerkit.analysis.device.shape_losses import Grid
from profilerkit.model.finding import Evidence, Fix, Saving
from profilerkit.rules.api import Facts, MissingData, Passed, Result, Rule, at_most, fired, no_device
from profilerkit.rules.evidence import kernel_share
from profilerkit.units import format_ratio


class UnderfilledGrid(Rule, frozen=True):
    """Find matrix kernels that keep {idle_ratio} of the device idle, for {smallest_share} of the step.

    Why it costs: A grid of 1.25 blocks for each multiprocessor needs two rounds. The second keeps a quarter of them
        busy.

    Example:
        y = nn.Linear(4, 4)(torch.randn(33, 4))
    Use instead:
        y = nn.Linear(4, 4)(torch.randn(64, 4))
    How it is measured: Blocks of each kernel of 10 µs or more are divided by the multiprocessors. The saving is half of
        the idle time, at most what exceeds the least time of the shapes.
    When it is wrong: Persistent and stream-K kernels divide their work differently. Blocks of unequal length fill gaps.
        A larger batch does more work in the same time; the step gets no shorter.
    Sources: https://docs.nvidia.com/deeplearning/performance/dl-performance-matrix-multiplication/index.html
    """

    code = "CP003"
    summary = "Grids of matrix kernels keep multiprocessors idle"

    smallest_share: float = 0.03
    idle_ratio: float = 0.20

    def check(self, facts: Facts) -> Result:
        if facts.kernel_losses is None:
            return no_device(facts, "no device events: there are no grids")
        grids = facts.kernel_losses.grids
        if grids is None:
            hint = "traces of NVIDIA devices do: keep `blocks per SM` in the file"
            return MissingData("the trace does not say how many blocks a kernel has", hint)
        found = [grid for grid in grids if grid.idle_share >= self.idle_ratio * grid.share]
        share = sum(grid.share for grid in found)
        if share < self.smallest_share:
            return Passed(f"kernels with badly filled grids take {format_ratio(share)} of the step")
        idle = min(sum(grid.idle_share for grid in found), 1.0)
        value = at_most(idle)
        if not self.worth_saying(facts, value.expected):
            return Passed(f"badly filled grids cost {format_ratio(idle)} of the step")
        return _finding(facts, found, min(share, 1.0), value)


def _finding(facts: Facts, found: Sequence[Grid], share: float, saving: Saving) -> Result:
    worst = max(found, key=lambda grid: grid.idle_share)
    by_shape = facts.compute is not None and (facts.compute.by_shape_ratio or 0.0) > 0.5
    rounds = max(math.ceil(worst.blocks_per_sm), 1)
    full = f"{worst.blocks_per_sm:.2f} → {rounds} blocks for each multiprocessor"
    if facts.kernel_losses is not None and (multiprocessors := facts.kernel_losses.multiprocessors):
        now = round(worst.blocks_per_sm * multiprocessors)
        full = f"{now} → {rounds * multiprocessors} blocks on {multiprocessors} multiprocessors"
    n, blocks = round(sum(grid.per_step for grid in found) * facts.steps.steady), "launch geometry in the trace"
    return fired(
        facts,
        bound="compute-bound",
        title=f"Badly filled grids keep multiprocessors idle for {format_ratio(saving.high)} of the step",
        why=f"The worst kernel has {worst.blocks_per_sm:.2f} blocks for each multiprocessor and takes as long as one "
        f"with {rounds}.",
        evidence=(
            kernel_share("Kernels with badly filled grids", share, worst.kernel, n),
            Evidence("Blocks for each multiprocessor, worst kernel", worst.blocks_per_sm, "blocks", "measured", blocks),
        ),
        at_most="medium" if by_shape else "low",
        detail="grid",
        saving=saving,
        fix=Fix(
            text=f"Fill the grid, {full}: merge products that follow each other, or change the batch or hidden size by "
            f"up to {rounds / worst.blocks_per_sm:.2f} ×."
        ),
        confirm="Blocks for each multiprocessor must come close to a whole number, and the kernel must not get longer.",
    )
