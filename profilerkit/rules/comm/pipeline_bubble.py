"""CO011: the stages of a pipeline idle at the start and the end of the step."""

from profilerkit.rules.api import Facts, Fix, MissingData, NotApplicable, Passed, Result, Rule, fired, saving, spent
from profilerkit.rules.comm.transfers import evidence
from profilerkit.units import format_ratio


class PipelineBubble(Rule, frozen=True):
    """Find pipeline stages that wait for the first and the last micro-batches.

    Why it costs: With p stages and m micro-batches, each stage idles for (p - 1) / (m + p - 1) of the step.

    Example:
        from torch.distributed.pipelining import ScheduleGPipe
        schedule = ScheduleGPipe(stage, n_microbatches=4, loss_fn=loss_fn)
    Use instead:
        from torch.distributed.pipelining import ScheduleGPipe
        schedule = ScheduleGPipe(stage, n_microbatches=8, loss_fn=loss_fn)
    How it is measured: Exposed point-to-point time is compared with the formula of GPipe and 1F1B. The saving assumes
        {more_micro_batches} times as many micro-batches.
    When it is wrong: Smaller micro-batches fill the device less. A bubble of {unequal_ratio} times the formula means
        unequal stages: balance them first.
    Sources: https://arxiv.org/abs/1811.06965
    """

    code = "CO011"
    summary = "Pipeline stages idle at the start and the end of the step"

    more_micro_batches: int = 2  #: more micro-batches than now that are proposed (a choice)
    #: Bubble over what the schedule explains from which the stages are called unequal (a choice).
    unequal_ratio: float = 1.5

    def check(self, facts: Facts) -> Result:
        known = facts.communication.parallelism if facts.communication is not None else ()
        found = next((entry for entry in known if entry.name == "pipeline"), None)
        if found is None:
            if not facts.trace_read and (facts.world_size or 1) > 1:
                return MissingData("a pipeline only shows in a trace", "profilerkit.profile(..., deep=True)")
            return NotApplicable("no pipeline was seen")
        if found.bubble_share is None or not (found.schedule_share and found.size and found.micro_batches):
            record = "record a run whose stages send and receive one by one, on every rank"
            return MissingData("the stages, micro-batches or transfers of the pipeline do not show", record)
        more = self.more_micro_batches * found.micro_batches
        left = (found.size - 1) / (more + found.size - 1)
        bubble = min(found.bubble_share, 1.0)
        expected = bubble * (1.0 - left / found.schedule_share)
        if not self.worth_saying(facts, expected):
            return Passed(f"the stages idle {format_ratio(bubble)} of the step")
        schedule = found.schedule_share or 0.0
        unequal = bubble >= self.unequal_ratio * schedule
        first = "Move layers until all stages take equally long; then m" if unequal else "M"
        stages = f"{found.size} stages with {found.micro_batches} micro-batches explain {format_ratio(schedule)}"
        return fired(
            facts,
            bound="comm-bound",
            title=f"Pipeline stages idle {spent(facts, bubble)}",
            why=f"{stages} of idle time in the step; {format_ratio(bubble)} was measured."
            + (" The rest is stages of unequal length." if unequal else ""),
            evidence=(
                evidence(facts, "Exposed point-to-point time, share of the step", bubble, "ratio", "send and receive"),
                evidence(facts, "Left idle by the schedule", schedule, "ratio", "(p - 1) / (m + p - 1)"),
                evidence(facts, "Micro-batches per step", found.micro_batches, "count", "receives per step"),
            ),
            at_most="medium",
            detail="bubble",
            saving=saving(expected, bubble),
            fix=Fix(
                text=f"{first}icro-batches {found.micro_batches} → {more} of half the size; or interleaved stages, "
                "which divide the bubble by their number on each rank.",
                code=f"ScheduleInterleaved1F1B(stages, n_microbatches={more})",
            ),
            confirm="Record again: the exposed point-to-point time must fall.",
        )
