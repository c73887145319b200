"""IN015: batches hold padding, or are fetched and dropped."""

from functools import partial

from profilerkit.analysis.events import SkippedBatches
from profilerkit.analysis.workers.queue import PaddingFacts
from profilerkit.model.finding import Finding, Fix
from profilerkit.model.run import STEP_TIMERS
from profilerkit.rules.api import Facts, Fired, MissingData, Passed, Result, Rule, at_most, finding_for, saving
from profilerkit.units import format_count, format_long_ns, format_ratio

_TO_THE_LONGEST = Fix(
    text="Pad to the longest sequence of each batch, not to a fixed length.",
    code='tokenizer.pad(samples, padding="longest")',
)
_BY_LENGTH = Fix(
    text="Put sequences of similar length into a batch: sample by length, or pack several into one row.",
    code="order = sorted(range(len(dataset)), key=lambda index: len(dataset[index]))\n"
    "batches = [order[at : at + 32] for at in range(0, len(order), 32)]  # shuffled: batch_sampler=batches",
)
_START_THERE = Fix(
    text="Start the sampler where the run ended: StatefulDataLoader, or accelerate's skip_first_batches.",
    code="loader.load_state_dict(checkpoint['loader'])",
)


class UnneededBatches(Rule, frozen=True):
    """Find batches with {smallest_padding} of padding tokens, and batches that are never trained on.

    Why it costs: The model computes padding like any other token. A dropped batch is loaded without being used.

    Example:
        samples = [torch.ones(length) for length in (3, 5, 2)]
        batch = torch.stack([F.pad(x, (0, 512 - len(x))) for x in samples])
    Use instead:
        samples = [torch.ones(length) for length in (3, 5, 2)]
        batch = nn.utils.rnn.pad_sequence(samples, batch_first=True)
    How it is measured: The rule looks at {fewest_looks} or more batches of integers. Padding to the batch's own longest
        row is advised where {beyond_share} of the padding is beyond it. Grouping by length avoids {avoidable_ratio} of
        the rest. Dropped batches are reported from {smallest_skip} of the time, or {longest_skip_ns}.
    When it is wrong: Kernels for variable-length sequences skip padding. A loop that reads all data once before it
        trains drops nothing.
    """

    code = "IN015"
    summary = "Batches hold padding, or are fetched and dropped"

    smallest_padding: float = 0.2
    fewest_looks: int = 3
    beyond_share: float = 0.3  #: share of the padding from which the length of the batch is the fix
    #: What batches of like lengths spare of the padding within (a choice).
    avoidable_ratio: float = 0.8
    smallest_skip: float = 0.05
    longest_skip_ns: float = 60_000_000_000

    def check(self, facts: Facts) -> Result:
        loading = facts.loading
        if loading is None or not (loading.padding or loading.skipped or facts.measured(STEP_TIMERS)):
            return MissingData("no fetches were recorded", "profilerkit.profile(...)")
        padding, skipped = loading.padding, loading.skipped
        found = [] if padding is None else self._padded(facts, padding)
        if skipped and (skipped.ratio >= self.smallest_skip or skipped.time_ns >= self.longest_skip_ns):
            found.append(_dropped(facts, skipped))
        if found:
            return Fired(tuple(found))
        held = "no padding was seen" if padding is None else f"{format_ratio(padding.padded_ratio)} of it is padding"
        return Passed(f"the batches are trained on; {held}")

    def _padded(self, facts: Facts, padding: PaddingFacts) -> list[Finding]:
        within = padding.padded_ratio - padding.beyond_ratio
        spared = padding.beyond_ratio + self.avoidable_ratio * within
        optimizer = _optimizer_share(facts)
        # Parameters and their updates are as many however long the batch is.
        computes = max(facts.share("compute.") - (optimizer or 0.0), 0.0)
        expected = spared * computes
        if padding.looks < self.fewest_looks or padding.padded_ratio < self.smallest_padding:
            return []
        if computes and not self.worth_saying(facts, expected):
            return []
        # On a processor the host's own work may be that of each token, as in a recurrent loop.
        touched = computes + (facts.share("over.dispatch", "over.python") if facts.mode == "cpu" else 0.0)
        bound = touched * (1.0 - (1.0 - padding.padded_ratio) ** 2)
        bound = max(bound, expected)
        # A bound where nothing tells the optimizer from what grows with the batch's length.
        value = at_most(bound, expected) if optimizer is None else saving(expected, bound)
        is_fixed_length = padding.beyond_ratio >= self.beyond_share * padding.padded_ratio
        row, beyond = partial(facts.evidence, origin="looks at batches", n=padding.looks), padding.beyond_ratio
        found = finding_for(
            facts,
            bound="compute-bound" if computes else None,
            detail="padding",
            title=f"{format_ratio(padding.padded_ratio)} of the tokens in a batch are padding",
            why=f"The model computes padding like any token; {format_ratio(beyond)} of all tokens are beyond the "
            "longest sequence of their batch.",
            evidence=(
                row("Padding, of the tokens", padding.padded_ratio, "ratio"),
                row("Beyond the longest sequence, of the tokens", beyond, "ratio"),
            ),
            at_most="medium",
            saving=value if computes else None,
            fix=_TO_THE_LONGEST if is_fixed_length else _BY_LENGTH,
            confirm="Tokens per second stay the same, and steps get shorter.",
        )
        return [found]


def _optimizer_share(facts: Facts) -> float | None:
    if facts.kernel_losses is not None:
        return facts.kernel_losses.optimizer.share if facts.kernel_losses.optimizer is not None else None
    if facts.host.held is None:
        return None
    return next((one.share for one in facts.host.held if one.place == "optimizer"), 0.0)


def _dropped(facts: Facts, skipped: SkippedBatches) -> Finding:
    count, row = format_count(skipped.count), partial(facts.evidence, origin="step timers", n=None)
    return finding_for(
        facts,
        bound=None,
        title=f"{count} batches were fetched and dropped before training began: {format_long_ns(skipped.time_ns)}",
        why="Each batch was loaded in full, and no backward pass followed. A loop that resumes a run does so.",
        evidence=(
            row("Batches dropped", skipped.count, "count"),
            row("Time from the first to the last of them", skipped.time_ns, "ns"),
        ),
        at_most="medium",
        fix=_START_THERE,
        confirm="The first batch that is fetched must be the first one that trains.",
    )
