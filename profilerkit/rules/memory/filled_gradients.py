"""ME007: gradients are filled with zeros instead of dropped."""

from profilerkit.model.finding import Fix, SettingChange
from profilerkit.rules.api import Facts, MissingData, NotApplicable, Passed, Result, Rule, fired, rows, saving, spent
from profilerkit.units import format_count, format_ratio


class FilledGradients(Rule, frozen=True):
    """Find optimizers that fill gradients with zeros, so that backward has to add to them.

    Why it costs: Filling writes every gradient, and adding reads and writes it again. A dropped gradient needs neither.

    Example:
        optimizer.zero_grad(set_to_none=False)
    Use instead:
        optimizer.zero_grad(set_to_none=True)
    How it is measured: Kernels of zero_ inside zero_grad are timed, with the matching gradient additions.
        set_to_none=True is the default since PyTorch 2.0.
    When it is wrong: Code that reads gradients between zero_grad and backward finds None. With gradient accumulation,
        only the first addition of a step disappears.
    Sources: https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html
    """

    code = "ME007"
    summary = "Gradients are filled with zeros instead of dropped"

    def check(self, facts: Facts) -> Result:
        if not facts.trace_read:
            return MissingData("what zero_grad does is only seen in a trace", "profilerkit.profile(..., deep=True)")
        zeroed = facts.memory_use.zeroed
        if zeroed is None:
            return NotApplicable("no call clears the gradients in the traced steps")
        if not zeroed.per_step:
            return Passed("gradients are dropped, not filled with zeros")
        expected = zeroed.share + (zeroed.spared_ratio or 0.0) * zeroed.added_share
        if not self.worth_saying(facts, expected):
            return Passed(f"filling gradients with zeros costs {format_ratio(expected)} of the step")
        return fired(
            facts,
            bound="memory-bound",
            title=f"Filling gradients with zeros costs {spent(facts, expected)}",
            why=f"{format_count(zeroed.per_step)} operators per step write zeros that backward then reads and adds to.",
            evidence=(
                *rows(
                    facts,
                    "aten::zero_ under zero_grad",
                    ("Operators that write zeros, per step", zeroed.per_step, "count"),
                    ("Filling with zeros, share of the step", zeroed.share, "ratio"),
                ),
                *rows(
                    facts,
                    "aten::add_ under AccumulateGrad",
                    ("Adding to gradients, share of the step", zeroed.added_share, "ratio"),
                ),
            ),
            at_most="high" if facts.trust.inflation_ratio is not None else "medium",
            detail="bandwidth",
            saving=saving(expected, zeroed.share + zeroed.added_share),
            fix=Fix(
                text="zero_grad(set_to_none=False) → True.",
                code="optimizer.zero_grad(set_to_none=True)",
                changes=(SettingChange("set_to_none", False, True),),
            ),
            confirm="zero_grad must hold no aten::zero_ in the next trace.",
        )
