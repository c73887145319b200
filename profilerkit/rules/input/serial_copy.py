"""IN010 (R10): the batch copy is pinned, and the device still waits for it."""

from dataclasses import dataclass
from typing import ClassVar

from profilerkit.analysis.facts import Facts
from profilerkit.analysis.whatif import saving
from profilerkit.model.finding import Evidence, Fix
from profilerkit.rules.rule import Fired, Passed, Result, Rule, each, finding_for, no_device_events
from profilerkit.units import format_ns, format_ratio

_ORIGIN = "Memcpy HtoD (Pinned -> Device)"


@dataclass(frozen=True)
class SerialCopy(Rule):
    """Pinned copies not overlapped (R10).

    Claim: Batches are copied from pinned memory in line with the kernels: the device computes nothing meanwhile.
    Evidence: Memcpy HtoD (Pinned -> Device) of at least 64 KiB during which the device does nothing else; the stream
        they run on.
    Threshold: 3 % of the step, and most of the copying on the stream that computes.
    Fix: Copy the next batch on a stream of its own while this one is trained on.
    Saving: Bound: the exposed time of these copies. Expected: as much of it as there is computation to hide it behind.
    Traps: A copy longer than the computation stays the limit. The copied tensors must be marked with record_stream, or
        their memory may be used again too early. Copies that are alone on another stream wait for something else.
    Confidence: High.
    """

    code: ClassVar[str] = "IN010"
    name: ClassVar[str] = "serial_copy"
    family: ClassVar[str] = "input"
    summary: ClassVar[str] = "Pinned batch copies run in line with the kernels"

    smallest_share: float = 0.03
    in_line_ratio: float = 0.5

    def check(self, facts: Facts) -> Result:
        """Fires when pinned batch copies are exposed on the stream that computes."""
        copies = facts.pinned
        if copies is None:
            return no_device_events(facts, "no device events: nothing is copied to a device")
        if not copies.per_step:
            return Passed("no batch is copied from pinned memory")
        step = facts.mean_step_ns or 1.0
        bound = min(copies.exposed_ns / step, 1.0)
        if bound < self.smallest_share:
            return Passed(f"the device waits {format_ratio(bound)} of the step for pinned copies")
        if copies.in_line_ratio < self.in_line_ratio:
            return Passed("the pinned copies have a stream of their own")
        expected = min(bound, facts.share("compute.", "mem.recompute"))
        if not self.worth_saying(facts, expected):
            return Passed(f"there is {format_ratio(expected)} of the step to hide the copies behind")

        def evidence(label: str, value: float, unit: str, origin: str = _ORIGIN) -> Evidence:
            return Evidence(
                label=label,
                value=value,
                unit=unit,
                source="measured",
                origin=origin,
                n=facts.steps.steady,
                rank=facts.rank.rank,
            )

        finding = finding_for(
            facts,
            bound="input-bound",
            title=f"The device waits {format_ns(bound * step)} of {each(facts)} for pinned batch copies",
            why="The copies stand in the same stream as the kernels: what comes after them starts when they are done.",
            evidence=(
                evidence("Device waits for them, share of the step", bound, "ratio", "arithmetic on its streams"),
                evidence("Pinned bytes per step", copies.bytes_per_step, "bytes"),
                evidence("Their time per step", copies.time_ns, "ns"),
                evidence("Of that on the stream that computes", copies.in_line_ratio, "ratio"),
            ),
            at_most="high",
            detail="h2d",
            saving=saving(facts, expected, bound),
            fix=Fix(
                text="Copy the next batch on a stream of its own while the present one is trained on.",
                code="side = torch.cuda.Stream()\n"
                "with torch.cuda.stream(side):\n"
                '    following = batch.to("cuda", non_blocking=True)\n'
                "# before it is used:\n"
                "torch.cuda.current_stream().wait_stream(side)\n"
                "following.record_stream(torch.cuda.current_stream())",
            ),
            confirm="In the next trace the copies must run beside kernels, on another stream.",
        )
        return Fired((finding,))
