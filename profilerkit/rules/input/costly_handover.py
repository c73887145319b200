"""IN008: bringing finished samples to the training process is the cost."""

from profilerkit.analysis.whatif import CHEAPER_TRANSFORM, cheaper_batch, half_sure
from profilerkit.analysis.workers.anatomy import on_its_way
from profilerkit.model.run import Workers
from profilerkit.rules.api import WAITS, Facts, Fix, Passed, Result, Rule, fired, saving
from profilerkit.rules.evidence import in_line, line_evidence, told_line
from profilerkit.rules.input.loader import measured, part_evidence, recorded_workers
from profilerkit.units import format_bytes, format_ns, format_ratio

#: Bytes that one core copies in a nanosecond, of many small arrays (a choice: a tenth of its speed for large ones).
_COPIED_BYTES_PER_NS = 1.0
#: And takes up for each sample, in one torch.stack: 0.2 to 0.5 µs a tensor, measured on a two-core machine.
_STACKED_NS = 500.0
_PIECEWISE_TIMES = 10.0  #: times a copy of the bytes from which joining is no copying (a choice)


class CostlyHandover(Rule, frozen=True):
    """Find batches that spend {smallest_share} of their work in collate and hand-over, or that arrive late.

    Why it costs: The samples are ready, but the batch is copied, pickled and sent before training gets it.

    Example:
        def collate(samples):
            return torch.tensor([[float(value) for value in x] for x, _ in samples])
        batch = collate([dataset[0], dataset[1]])
    Use instead:
        def collate(samples):
            return torch.stack([x for x, _ in samples])
        batch = collate([dataset[0], dataset[1]])
    How it is measured: Workers time collate and hand-over. The rule also fires if awaited batches are in transit for
        {on_its_way_share} of the wait. The saving models half of that cost. A collate that takes ten times as long as
        one copy of its bytes joins objects one by one. All time beyond one copy counts.
    When it is wrong: The thread that pins memory is not measured. A hand-over that waits for room in the queue costs
        nothing and is not counted.
    Sources: https://docs.pytorch.org/docs/stable/data.html
    """

    code = "IN008"
    summary = "Joining and handing over batches is the cost"

    smallest_share: float = 0.2
    on_its_way_share: float = 0.5

    def check(self, facts: Facts) -> Result:
        workers = recorded_workers(facts)
        if not isinstance(workers, Workers):
            return workers
        share = workers.share("collate", "handover")
        on_the_way = on_its_way(workers, facts.input.cpu_ratio if facts.input else None)
        if share < self.smallest_share and on_the_way < self.on_its_way_share:
            return Passed(f"collate and hand-over are {format_ratio(share)} of a batch")
        time_ns, joining = workers.time_ns("collate", "handover"), workers.time_ns("collate")
        joins = joining > workers.time_ns("handover") and on_the_way < self.on_its_way_share
        items, copying = facts.loading.items if facts.loading is not None else None, 0.0
        if items and workers.batch_bytes:  # in one call
            copying = workers.batch_bytes / _COPIED_BYTES_PER_NS + items * _STACKED_NS
        is_piecewise = joins and 0 < _PIECEWISE_TIMES * copying < joining
        removed = joining - copying if is_piecewise else CHEAPER_TRANSFORM * time_ns
        expected = cheaper_batch(facts, removed, removed) if share >= self.smallest_share else 0.0
        if on_the_way >= self.on_its_way_share:
            expected = max(expected, CHEAPER_TRANSFORM * on_the_way * facts.share(*WAITS))
        if not self.worth_saying(facts, expected):
            return Passed(f"collate and hand-over are {format_ratio(share)} of a batch; the step hardly waits for it")
        line = facts.lines.get("collate") if joins else None
        value = saving(expected, facts.share(*WAITS))
        text = _JOIN.format(in_line(line)) if joins else _SEND
        if is_piecewise:
            text = _STACK.format(in_line(line), format_bytes(workers.batch_bytes or 0))
        size = f" of {format_bytes(workers.batch_bytes)}" if workers.batch_bytes is not None else ""
        return fired(
            facts,
            bound="input-bound",
            title=f"Joining and handing over every batch{size} takes {format_ns(time_ns)} of a worker",
            why="The samples are ready. Joining them to a batch and sending it to the training process takes the "
            f"time.{told_line(line, 'the joining')}",
            evidence=(
                *part_evidence(facts, workers),
                measured(facts, workers, "Joining and handing over a batch", time_ns, "ns"),
                measured(facts, workers, "Bytes of a batch", workers.batch_bytes, "bytes"),
                measured(facts, workers, "From the end of collating to the training loop", workers.delivery_ns, "ns"),
                measured(facts, workers, "Wait for batches on their way, share of the wait", on_the_way, "ratio"),
                *line_evidence(facts, "Joining", line),
            ),
            at_most="high" if workers.share("collate", "handover") >= 0.5 else "medium",
            detail="ipc",
            # The user's function may be made twice as quick or ten times: 52 to 66 % were measured for 40 % expected.
            saving=half_sure(value) if joins and not is_piecewise else value,
            fix=Fix(text=text),
            confirm="Time collate_fn on the samples of one batch."
            if joins
            else "A batch of half the bytes must take about half the time.",
        )


_JOIN = (
    "Halve the cost of collate_fn{}: join the samples into one tensor in one call, in smaller types. Move reads "
    "and computation of single samples into the dataset."
)
_STACK = (
    "Join the samples in one call{}: np.stack or torch.stack instead of torch.tensor or loops over lists. One copy of "
    "{} takes less than a tenth of this."
)
_SEND = "Halve the cost of the hand-over: collate into one tensor, send uint8 instead of float32, cast on the device."
