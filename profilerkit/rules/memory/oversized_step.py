"""ME010: a step asks for memory that the device does not have, or that it could do without."""

from collections.abc import Iterator

from profilerkit.analysis.memory.history import file_and_line, kind_of, own_line
from profilerkit.model.finding import Confidence, Evidence, Finding, Fix
from profilerkit.model.memory import FailedRequest, MemorySnapshot
from profilerkit.rules.api import Facts, Fired, MissingData, NotApplicable, Passed, Result, Rule, finding_for
from profilerkit.units import format_bytes, format_ratio

_TOLD = 0.05  #: lines that hold less of the activations do not tell how many layers there are (a choice)
#: How sure a claim is, its title, why it holds, sizes that show it, and what helps.
_Claim = tuple[Confidence, str, str, dict[str, int | None], Fix]
#: Pieces that the loss is computed in: an eighth of the scores is no longer the largest request (a choice).
_PIECES = 8
_CHUNKED = """\
def loss_of_chunk(h, y):
    return F.cross_entropy(head(h).flatten(0, 1), y.flatten())

for h, y in zip(hidden.chunk(8, dim=1), labels.chunk(8, dim=1)):
    loss = loss + checkpoint(loss_of_chunk, h, y, use_reentrant=False) / 8"""
_CHECKPOINT = "x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)"


class OversizedStep(Rule, frozen=True):
    """Find requests that failed, and the tensors that fill the memory at the peak.

    Why it costs: The run ends, or it runs with a smaller batch than the device could hold.

    Example:
        logits = torch.randn(64, 50, requires_grad=True)
        labels = torch.randint(50, (64,))
        F.cross_entropy(logits, labels).backward()
    Use instead:
        logits = torch.randn(64, 50, requires_grad=True)
        labels = torch.randint(50, (64,))
        for x, y in zip(logits.split(16), labels.split(16)):
            (F.cross_entropy(x, y) / 4).backward()
    How it is measured: A memory snapshot names failed requests and the blocks in use at the peak. The loss counts from
        {loss_ratio} of the peak, activations from {activation_ratio}, the optimizer from {optimizer_ratio}. No time is
        saved.
    When it is wrong: Without a failed request it is unknown whether memory is short. The history of a snapshot may
        begin late.
    Sources: https://pytorch.org/docs/stable/notes/cuda.html
    """

    code = "ME010"
    summary = "A step requests more memory than exists, or than it needs"
    reads_logs = True

    loss_ratio: float = 0.20
    activation_ratio: float = 0.25
    optimizer_ratio: float = 0.25

    def check(self, facts: Facts) -> Result:
        own = facts.logs.own if facts.logs is not None else ()
        if facts.mode == "cpu":
            return NotApplicable("no device")
        if not own:
            hint = "torch.cuda.memory._dump_snapshot(path), given as a file"
            return MissingData("no memory snapshot of the run was given", hint)
        one = max(own, key=lambda known: (bool(known.failed), known.peak_bytes or known.in_use_bytes))
        failed = one.failed[-1] if one.failed else None
        if failed is None and facts.logs is not None and not facts.logs.alone:
            return Passed("no request failed in the snapshot of these steps")
        claims = [*self._loss(one, failed), *self._activations(one, failed)]
        if failed is not None:
            claims += [*self._optimizer(one, failed), *_failure(one, failed)]
        if claims:
            return Fired(tuple(_finding(facts, one, failed, *claim) for claim in claims))
        spared = max(one.loss.bytes if one.loss else 0, one.held("activations"))
        ratio = format_ratio(spared / max(one.peak_bytes or one.in_use_bytes, 1))
        return Passed(f"no request failed, and no more than {ratio} of the peak can be spared")

    def _loss(self, one: MemorySnapshot, failed: FailedRequest | None) -> Iterator[_Claim]:
        """Yield the scores of all classes at every position, and what the loss makes of them."""
        asked = failed.requested_bytes if failed is not None and failed.is_of_loss else 0
        held = one.loss.bytes if one.loss is not None else 0
        if asked + held < self.loss_ratio * _needed(one, failed) or not asked + held:
            return
        line = own_line(failed.frames) if failed is not None and asked else one.loss.line if one.loss else None
        left = format_bytes((asked + held) / _PIECES)
        room, used = (failed.room_bytes, failed.in_use_bytes) if failed is not None else (None, None)
        fits = asked and None not in (room, used) and asked / _PIECES <= (room or 0) - (used or 0)
        yield (
            "medium",
            f"The loss over the classes takes {format_bytes(asked + held)} at {file_and_line(line)}",
            "The scores of every class at every position, and what the loss makes of them, are there all at once.",
            {"Blocks of the loss at the peak": held, "Its request that failed": asked},
            Fix(
                text=f"Compute the scores and the loss in {_PIECES} pieces of the sequence, each made again in the "
                f"backward pass: {format_bytes(asked + held)} → {left}{', for which there was room' if fits else ''}.",
                code=_CHUNKED,
            ),
        )

    def _activations(self, one: MemorySnapshot, failed: FailedRequest | None) -> Iterator[_Claim]:
        """Yield what the forward pass keeps for the backward pass, apart from the loss."""
        held = one.held("activations")
        if one.loss is not None and one.loss.kind == "activations":
            held -= one.loss.bytes
        rows = [row for row in one.live if row.kind == "activations"]
        if held < self.activation_ratio * _needed(one, failed) or not rows:
            return
        most = max(rows, key=lambda row: row.bytes)
        # A line that runs once in each block has as many blocks of memory as the model has layers; others have more.
        layers = min((row.count for row in rows if row.count > 1 and row.bytes >= _TOLD * held), default=1)
        text = "Make the activations of each block again in the backward pass, for up to a third more computation"
        if layers > 1:
            text += f": {format_bytes(held)} → about {format_bytes(held / layers)} and the input of each block"
        yield (
            "medium",
            f"Activations hold {format_bytes(held)} of {format_bytes(_needed(one, failed))}, most of it for "
            f"{file_and_line(most.line)}",
            "They stay from the forward pass until the backward pass needs them"
            + (f"; the lines hold {layers:,} blocks of memory each, or more." if layers > 1 else "."),
            {"Activations at the peak": held, "Those of the largest line": most.bytes},
            Fix(text=f"{text}.", code=_CHECKPOINT),
        )

    def _optimizer(self, one: MemorySnapshot, failed: FailedRequest) -> Iterator[_Claim]:
        held = one.held("optimizer state")
        if held < self.optimizer_ratio * _needed(one, failed):
            return
        yield (
            "medium",
            f"The optimizer holds {format_bytes(held)} of {format_bytes(_needed(one, failed))}",
            "Its state is as large in every step, whatever the batch.",
            {"State of the optimizer at the peak": held},
            Fix(
                text=f"Keep the state in 8 bit, or divide it among ranks: {format_bytes(held)} → "
                f"{format_bytes(held / 4)} from 32 bit, or its share of a rank.",
                code="from torch.distributed.optim import ZeroRedundancyOptimizer",
            ),
        )


def _failure(one: MemorySnapshot, failed: FailedRequest) -> Iterator[_Claim]:
    """Yield the request itself, with the batch that fits as the last resort."""
    asked, ratio = failed.requested_bytes, _fitting(one, failed)
    text = "Make the batch smaller, or the sequence shorter, and accumulate gradients over several"
    if ratio is not None:
        text += f": at most {format_ratio(ratio)} of this one fits, estimated"
    free = f" with {format_bytes(failed.free_bytes)} free" if failed.free_bytes is not None else ""
    yield (
        "high",
        f"A request of {format_bytes(asked)} failed{free} at {file_and_line(own_line(failed.frames))}",
        "PyTorch had freed all unused segments, and asked the device again."
        + (" More requests failed before it." if len(one.failed) > 1 else ""),
        {
            "Request that failed": asked,
            "In use then": failed.in_use_bytes,
            "All that the process could have had": failed.room_bytes,
            "Largest free block when the snapshot was taken": one.largest_free_bytes,
        },
        Fix(text=f"{text}."),
    )


def _fitting(one: MemorySnapshot, failed: FailedRequest) -> float | None:
    """Ratio of the batch of which activations and the failed request fit beside the rest; ``None`` where not known.

    With 10 GiB to be had, 4 GiB that no batch changes, 5 GiB of activations and 3 GiB asked for, 6 of 8 GiB fit: 75 %.
    """
    room, shrinks = failed.room_bytes, one.held("activations")
    peak = one.peak_bytes
    if kind_of(failed.frames, frozenset()) not in ("gradients", "optimizer state") and not failed.is_of_loss:
        return None  # nothing tells what the rest of the forward pass would have taken
    # What was in use at another moment says nothing of this one.
    if room is None or not peak or not shrinks or (failed.in_use_bytes or 0) < 0.9 * peak:
        return None
    ratio = (room - (peak - shrinks)) / (shrinks + failed.requested_bytes)
    return ratio if 0.0 < ratio < 1.0 else None


def _needed(one: MemorySnapshot, failed: FailedRequest | None) -> int:
    """Return the peak, with the request that failed on top of it."""
    return max((one.peak_bytes or one.in_use_bytes) + (failed.requested_bytes if failed else 0), 1)


def _finding(
    facts: Facts,
    one: MemorySnapshot,
    failed: FailedRequest | None,
    sure: Confidence,
    title: str,
    why: str,
    sizes: dict[str, int | None],
    fix: Fix,
) -> Finding:
    """Return the finding; of its sizes those that are known and not zero are evidence, and the peak."""
    of = f" ({one.origin})" if facts.logs is not None and len(facts.logs.own) > 1 else ""
    peak = "In use at the peak" if one.peak_bytes is not None else "In use at the snapshot"
    told = {**sizes, peak: one.peak_bytes if one.peak_bytes is not None else one.in_use_bytes}
    return finding_for(
        facts,
        bound="memory-bound" if failed is not None else None,
        detail="capacity" if failed is not None else "",
        title=title + of,
        why=why,
        evidence=tuple(
            Evidence(label, value, "bytes", "measured", one.origin) for label, value in told.items() if value
        ),
        at_most=sure if failed is not None else "low",
        fix=fix,
        confirm="Another snapshot must show a lower peak: profilerkit diff BEFORE.pickle AFTER.pickle.",
    )
