"""IN010 (R10): the device waits for the copies of its batches, which need not be pinned any more."""

from dataclasses import dataclass
from typing import ClassVar

from profilerkit.analysis.device.records import CopyFacts
from profilerkit.analysis.facts import Facts
from profilerkit.analysis.leaves import WAITS
from profilerkit.analysis.whatif import saving
from profilerkit.model.finding import Evidence, Fix
from profilerkit.rules.rule import Fired, Passed, Result, Rule, each, evidence_of, finding_for, no_device_events
from profilerkit.units import format_ns, format_ratio

#: Share of the copies' time on the stream that computes, from which they are in line with the kernels (a choice).
_IN_LINE = 0.5


@dataclass(frozen=True)
class SerialCopy(Rule):
    """Batch copies not overlapped (R10).

    Claim: The device computes nothing while its batches are copied, from pinned memory or such as no name tells.
    Evidence: Copies to the device of at least 64 KiB during which the device does nothing else; the stream they run
        on; whether the next kernel was issued, or the loop waited for its batch, before they ended.
    Threshold: 3 % of the step.
    Fix: Copy the next batch on a stream of its own while this one is trained on; where that is done, start the copy
        one batch earlier. Fewer bytes where copies take longer than the computation.
    Saving: Bound: the exposed time of these copies that something waits for. Expected: as much of it as there is
        computation to hide it behind, beside the copies that it hides already.
    Traps: A copy longer than the computation stays the limit. The copied tensors must be marked with record_stream, or
        their memory may be used again too early. While the host has not issued the next kernel a copy delays nothing.
    Confidence: High; medium on a stream of their own, where a loader that copies may wait for something else.
    """

    code: ClassVar[str] = "IN010"
    name: ClassVar[str] = "serial_copy"
    family: ClassVar[str] = "input"
    summary: ClassVar[str] = "The device waits for the copies of its batches"

    smallest_share: float = 0.03

    def check(self, facts: Facts) -> Result:
        """Fires when batch copies are exposed, and something waits for them."""
        copies = facts.pinned
        if copies is None:
            return no_device_events(facts, "no device events: nothing is copied to a device")
        if not copies.per_step:
            return Passed("no batch is copied, or all are from pageable memory")
        step = facts.mean_step_ns or 1.0
        exposed = min(copies.exposed_ns / step, 1.0)
        bound = exposed * _awaited_ratio(facts)
        if bound < self.smallest_share:
            return Passed(f"the device waits {format_ratio(bound)} of the step for batch copies")
        room = max(facts.share("compute.", "mem.recompute") - max(copies.time_ns / step - exposed, 0.0), 0.0)
        expected = min(bound, room)
        if not self.worth_saying(facts, expected):
            return Passed(f"there is {format_ratio(expected)} of the step to hide the copies behind")
        in_line = copies.in_line_ratio >= _IN_LINE
        finding = finding_for(
            facts,
            bound="input-bound",
            title=f"The device waits {format_ns(bound * step)} of {each(facts)} step for batch copies",
            why="The copies stand in the same stream as the kernels: what comes after them starts when they are done."
            if in_line
            else "The copies have a stream of their own, but start when their batch is needed: no kernel is left.",
            evidence=_evidence(facts, copies, exposed),
            at_most="high" if in_line else "medium",
            detail="h2d",
            saving=saving(expected, bound),
            fix=_fix(in_line=in_line, too_long=room < bound),
            confirm="In the next trace the copies must run beside kernels of the step before.",
        )
        return Fired((finding,))


def _awaited_ratio(facts: Facts) -> float:
    """Return the part of the exposed copies that a kernel already issued waits for, or the loop waits with."""
    share = facts.share("input.h2d")
    if not facts.alone or not share:
        return 1.0
    return min((facts.alone_share("input.h2d") + facts.hidden_share(*WAITS)) / share, 1.0)


def _evidence(facts: Facts, copies: CopyFacts, exposed: float) -> tuple[Evidence, ...]:
    values = (
        ("Device does nothing but copy, share of the step", exposed, "ratio", "arithmetic on its streams"),
        ("Bytes copied per step", copies.bytes_per_step, "bytes", "copies to the device"),
        ("Their time per step", copies.time_ns, "ns", "copies to the device"),
        ("Of that on the stream that computes", copies.in_line_ratio, "ratio", "copies to the device"),
    )
    return tuple(
        evidence_of(facts, label, value, unit, origin, behind=("input.h2d",)) for label, value, unit, origin in values
    )


def _fix(*, in_line: bool, too_long: bool) -> Fix:
    text = (
        "Copy the next batch on a stream of its own while the present one is trained on."
        if in_line
        else "Start the copy of the next batch before the work of the present step is issued, one batch earlier. "
        "Give a loader that copies itself a deeper queue, such as prefetch_queue_depth=3 in DALI."
    )
    if too_long:
        text += " The copies take longer than the computation: send uint8, and convert on the device."
    return Fix(
        text=text,
        code="side = torch.cuda.Stream()\n"
        "with torch.cuda.stream(side):  # before the work of this step\n"
        '    following = next_batch.to("cuda", non_blocking=True)  # from pinned memory\n'
        "# before it is used:\n"
        "torch.cuda.current_stream().wait_stream(side)\n"
        "following.record_stream(torch.cuda.current_stream())",
    )
