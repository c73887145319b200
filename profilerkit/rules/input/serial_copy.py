"""IN010: the device waits for the copies of its batches, which need not be pinned any more."""

from functools import partial

from profilerkit.rules.api import WAITS, Facts, Fix, Passed, Result, Rule, fired, no_device, saving, spent
from profilerkit.units import format_ratio

#: Share of the copies' time on the stream that computes, from which they are in line with the kernels (a choice).
_IN_LINE = 0.5
_IN_LINE_WHY = "The copies are on the stream of the kernels: the next kernel starts when they are done."
_ASIDE_WHY = "The copies have their own stream, but start when their batch is needed: no kernel is left to overlap."


class SerialCopy(Rule, frozen=True):
    """Find batch copies that run while the device does nothing else, for {smallest_share} of the step.

    Why it costs: The copy engine can work beside the kernels. A copy that runs alone adds its whole time to the step.

    Example:
        for x, y in loader:
            x, y = x.to(device), y.to(device)
            train_step((x, y))
    Use instead:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            following = x.to(device, non_blocking=True)
        torch.cuda.current_stream().wait_stream(stream)
        following.record_stream(torch.cuda.current_stream())
    How it is measured: Copies of 64 KiB and more count, where the next kernel was issued or the loop waited for them.
        The saving is what the kernels can still overlap.
    When it is wrong: A copy longer than the computation stays the limit. Without record_stream the memory may be used
        again too early. A copy that nothing waits for costs nothing.
    Sources:
        https://docs.pytorch.org/tutorials/intermediate/pinmem_nonblock.html
        https://docs.pytorch.org/docs/stable/generated/torch.Tensor.record_stream.html
    """

    code = "IN010"
    summary = "The device waits for the copies of its batches"

    smallest_share: float = 0.03

    def check(self, facts: Facts) -> Result:
        copies = facts.pinned
        if copies is None:
            return no_device(facts, "no device events: nothing is copied to a device")
        if not copies.per_step:
            return Passed("no batch is copied, or all are from pageable memory")
        step = facts.mean_step_ns or 1.0
        exposed = min(copies.exposed_ns / step, 1.0)
        bound, share = exposed, facts.share("input.h2d")
        if facts.alone and share:  # what a kernel already issued waits for, or the loop waits with
            bound *= min((facts.alone_share("input.h2d") + facts.hidden_share(*WAITS)) / share, 1.0)
        if bound < self.smallest_share:
            return Passed(f"the device waits {format_ratio(bound)} of the step for batch copies")
        room = max(facts.share("compute.", "mem.recompute") - max(copies.time_ns / step - exposed, 0.0), 0.0)
        expected = min(bound, room)
        if not self.worth_saying(facts, expected):
            return Passed(f"only {format_ratio(expected)} of the step can overlap the copies")
        in_line = copies.in_line_ratio >= _IN_LINE
        row = partial(facts.evidence, origin="copies to the device", behind=("input.h2d",))
        alone = "Device does nothing but copy, share of the step"
        return fired(
            facts,
            bound="input-bound",
            title=f"The device waits {spent(facts, bound)} for batch copies",
            why=_IN_LINE_WHY if in_line else _ASIDE_WHY,
            evidence=(
                row(alone, exposed, "ratio", origin="arithmetic on its streams"),
                row("Bytes copied per step", copies.bytes_per_step, "bytes"),
                row("Their time per step", copies.time_ns, "ns"),
                row("Copy time on the stream that computes", copies.in_line_ratio, "ratio"),
            ),
            at_most="high" if in_line else "medium",
            detail="h2d",
            saving=saving(expected, bound),
            fix=_fix(in_line=in_line, too_long=room < bound),
            confirm="In the next trace the copies must run beside kernels of the step before.",
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
