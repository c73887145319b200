"""CO008: DistributedDataParallel does extra work that its settings could avoid."""

from profilerkit.analysis.communication.whatif import exposed_of, rows, share_of_step
from profilerkit.model.finding import Fix, SettingChange
from profilerkit.rules.api import Facts, MissingData, NotApplicable, Passed, Result, Rule, fired, saving, spent
from profilerkit.rules.comm.exposed_collectives import unseen
from profilerkit.rules.comm.transfers import by_ddp, evidence, models
from profilerkit.units import format_bytes, format_ns


class DdpSettings(Rule, frozen=True):
    """Find DDP models that search for unused parameters without need, or copy gradients from their buckets.

    Why it costs: The search walks the graph in every step, and the copy moves every gradient once more.

    Example:
        ddp = nn.parallel.DistributedDataParallel(
            model, find_unused_parameters=True
        )
    Use instead:
        ddp = nn.parallel.DistributedDataParallel(
            model, gradient_as_bucket_view=True
        )
    How it is measured: The reducer's own events are timed, with the small all-reduce of the search where it is exposed.
        DDP's log shows which parameters had no gradient. The saving must reach 2 % of the step.
    When it is wrong: Where parameters go without a gradient, training fails without the search. The rule does not
        advise it then. Gradients that are views of buckets cannot be detached in place.
    Sources: https://docs.pytorch.org/docs/stable/notes/ddp.html
    """

    code = "CO008"
    summary = "DDP does extra work that its settings could avoid"

    def check(self, facts: Facts) -> Result:
        if (unable := unseen(facts)) is not None:
            return unable
        if not by_ddp(facts) and (facts.collective_work is None or facts.collective_work.reducer is None):
            return NotApplicable("no DistributedDataParallel was seen")
        if facts.collective_work is None:
            return MissingData("what the reducer does is only seen in a trace", "profilerkit.profile(..., deep=True)")
        work = facts.collective_work.reducer
        if work is None:
            return Passed("its reducer neither searches the graph nor copies gradients back")
        unused = sum(model.unused_parameter_bytes or 0 for model in models(facts))
        search = work.searches > 0 and not unused
        expected = share_of_step(facts, work.copy_ns)
        if search:
            expected += share_of_step(facts, work.search_ns) + exposed_of(
                facts, rows(facts, lambda row: row.kind == "all_reduce" and row.dtype == "Int")
            )
        if not self.worth_saying(facts, expected):
            needed = f"; {format_bytes(unused)} of parameters need the search" if unused else ""
            time = format_ns(expected * (facts.mean_step_ns or 0.0))
            return Passed(f"searches and copies that settings could avoid take {time} a step{needed}")
        texts, changes = [], []
        if search:
            known = any(model.unused_parameter_bytes is not None for model in models(facts))
            given = "every parameter got a gradient" if known else "if every parameter gets a gradient"
            changes.append(SettingChange("find_unused_parameters", True, False))
            texts.append(f"{changes[-1].text} ({given})")
        if work.copies:
            changes.append(SettingChange("gradient_as_bucket_view", False, True))
            texts.append(changes[-1].text)
        why = f"Its reducer copies {work.copies:.0f} gradients a step back from the buckets, {format_ns(work.copy_ns)}"
        why += f", and searches the graph, {format_ns(work.search_ns)} beside nothing." if search else "."
        if unused:
            why += f" {format_bytes(unused)} of parameters had no gradient: the search of the graph is needed."
        return fired(
            facts,
            bound=None,
            title=f"DDP spends {spent(facts, expected)} on work that settings avoid",
            why=why,
            evidence=(
                evidence(facts, "Copies back from buckets per step", work.copy_ns, "ns", "DDP's reducer", "measured"),
                evidence(facts, "Searches of the graph per step", work.search_ns, "ns", "DDP's reducer", "measured"),
            ),
            at_most="medium",
            saving=saving(expected, expected),
            fix=Fix(
                text="; ".join(texts) + ".",
                code=f"DistributedDataParallel(model, {', '.join(f'{one.setting}={one.proposed}' for one in changes)})",
                changes=tuple(changes),
            ),
            confirm="Record again: the reducer's events must be gone from the trace.",
        )
