"""ME005: activations are recomputed although there is room to keep them."""

from profilerkit.model.finding import Fix, SettingChange
from profilerkit.rules.api import Facts, MissingData, NotApplicable, Passed, Result, Rule, fired, saving, spent
from profilerkit.rules.memory.room import room_of
from profilerkit.units import format_bytes, format_ratio


class NeedlessRecompute(Rule, frozen=True):
    """Find runs that recompute for {smallest_share} of the step with the peak below {roomy_ratio} of the memory.

    Why it costs: Activation checkpointing runs forward code twice: up to a third more compute. Keeping activations
        costs only memory.

    Example:
        from torch.utils.checkpoint import checkpoint
        y = checkpoint(model, torch.randn(4, 4), use_reentrant=False)
    Use instead:
        y = model(torch.randn(4, 4))
    How it is measured: Forward code that runs during backward is timed. The saving is the part whose activations fit
        below {full_ratio} of the memory. Without memory events it is {assumed_ratio} of the recomputation.
    When it is wrong: The judged steps may not contain the run's peak: longer sequences may come later.
    Sources: https://arxiv.org/abs/1604.06174
    """

    code = "ME005"
    summary = "Activations are recomputed although there is room to keep them"

    smallest_share: float = 0.10
    roomy_ratio: float = 0.70  #: of the capacity, above which there is no room to speak of
    full_ratio: float = 0.90  #: of the capacity, up to which memory may be filled, as for a device that is almost full
    assumed_ratio: float = 0.50  #: part of the layers taken to fit where their size is not known (a guess)

    def check(self, facts: Facts) -> Result:
        if not facts.trace_read:
            return MissingData("recomputation is only seen in a trace", "profilerkit.profile(..., deep=True)")
        share = facts.share("mem.recompute")
        if not share:
            return NotApplicable("nothing is recomputed")
        if share < self.smallest_share:
            return Passed(f"recomputation takes {format_ratio(share)} of the step")
        room = room_of(facts)
        if room is None:
            return MissingData("the peak of the memory was not recorded", "torch.profiler: profile_memory=True")
        if room.ratio >= self.roomy_ratio:
            return Passed(f"{format_ratio(room.ratio)} of the memory is needed: recomputation makes room for it")
        kept, fits = facts.memory_use.recomputed_bytes or None, self.assumed_ratio
        if kept is not None:
            fits = min((self.full_ratio * room.capacity_bytes - room.needed_bytes) / kept, 1.0)
        if not self.worth_saying(facts, fits * share):
            return Passed(f"only {format_ratio(fits)} of what is recomputed would fit")
        layers = "no layer" if fits >= 1.0 else f"{format_ratio(1.0 - fits)} of the layers"
        return fired(
            facts,
            bound="memory-bound",
            title=f"Recomputation takes {spent(facts, share)}, memory is {format_ratio(room.ratio)} full",
            why=f"{format_bytes(room.capacity_bytes - room.needed_bytes)} are free at the peak: "
            "activations that fit need no second forward pass.",
            evidence=(
                facts.share_evidence("Forward code that runs again, share of the step", "mem.recompute"),
                room.evidence(facts),
                facts.evidence("Recomputed activations of a step", kept, "bytes", "[memory] instants", "derived"),
            ),
            at_most="high" if kept is not None and room.is_own else "medium",
            detail="capacity",
            saving=saving(fits * share, share),
            fix=Fix(
                text=f"Activation checkpointing on all layers → on {layers}"
                + ("." if kept is not None else ", then fewer while the peak allows."),
                code="checkpoint(layer, x, use_reentrant=False) if number < kept_out else layer(x)"
                if fits < 1.0
                else "x = layer(x)  # instead of checkpoint(layer, x)",
                changes=(SettingChange("checkpointing", True, False),) if fits >= 1.0 else (),
            ),
            confirm=f"The peak must stay below {format_ratio(self.full_ratio)} of the capacity.",
        )
