"""CO007: gradients are reduced in every micro-batch of a step, and not once."""

from profilerkit.analysis.communication.table import Accumulation
from profilerkit.analysis.communication.whatif import exposed, exposed_time, share_of_step
from profilerkit.analysis.whatif import half_sure
from profilerkit.model.finding import Fix, Saving, SettingChange
from profilerkit.rules.api import Facts, MissingData, NotApplicable, Passed, Result, Rule, each, revise
from profilerkit.rules.comm.transfers import divides, evidence, transfer_saving, transfers_fired, untold


class RepeatedReductions(Rule, frozen=True):
    """Find gradient accumulation that reduces the gradients in each backward pass.

    Why it costs: One reduction before the optimizer step is enough. The others move the same bytes without need.

    Example:
        ddp = nn.parallel.DistributedDataParallel(model)
        for x, y in loader:
            loss_fn(ddp(x), y).backward()
    Use instead:
        ddp = nn.parallel.DistributedDataParallel(model)
        for x, y in list(loader)[:-1]:
            with ddp.no_sync():
                loss_fn(ddp(x), y).backward()
    How it is measured: Backward passes of a step that start equal reductions in the same order count. The saving is the
        exposed part of all but the last pass, with DDP's copies into buckets. Random waiting in p passes shrinks by 1 -
        1 / sqrt(p).
    When it is wrong: Two models that train in one step need two reductions. Without reducing, FSDP keeps whole
        gradients, which needs memory.
    Sources: https://docs.pytorch.org/docs/stable/notes/ddp.html
    """

    code = "CO007"
    summary = "Gradients are reduced in every micro-batch"

    def check(self, facts: Facts) -> Result:
        if (unable := untold(facts)) is not None:
            return unable
        collective_work = facts.collective_work
        if collective_work is None or collective_work.passes is None:
            return MissingData("the backward passes of a step do not show", "ProfilerActivity.CPU")
        if collective_work.passes < 2:
            return NotApplicable("a step has one backward pass")
        found = collective_work.accumulation
        if found is None:
            return Passed(f"the {collective_work.passes} backward passes of a step do not reduce the same gradients")
        work, waited, copied = collective_work.reducer, _waited(facts), 0.0
        if work is not None:  # gradients of all passes but the last are copied into DDP's buckets and back
            copied = share_of_step(facts, (work.fill_ns + work.copy_ns) * (found.passes - 1) / found.passes)
        expected = exposed_time(facts, found.early_exposed_ns) + copied + waited * (1.0 - found.passes**-0.5)
        bound = max(min(exposed(facts), share_of_step(facts, found.early_ns)) + copied + waited, expected)
        if not self.worth_saying(facts, expected):
            why = "the reductions of all passes but the last overlap with computation, or take little of the step"
            return Passed(why)
        unit, kind = ("step", "a step") if found.groups is None else ("optimizer step", "an optimizer step")
        step = each(facts) if found.groups is None else kind
        sharded = divides(facts, "sharded data")
        what = "set_requires_gradient_sync(False)" if sharded else "no_sync()"
        memory = " Whole gradients then stay in memory until the last one." if sharded else ""
        code = "with model.no_sync():  # all micro-batches but the last\n    loss.backward()"
        if sharded:
            code = "model.set_requires_gradient_sync(is_last_micro_batch)\nloss.backward()"
        return transfers_fired(
            facts,
            title=f"Gradients are reduced {found.passes} times in {step}, once per micro-batch",
            why=f"Each of the {found.passes} backward passes of {kind} runs the same {found.reductions} reductions; "
            "the sum over all micro-batches needs them once.",
            evidence=(
                evidence(facts, f"Backward passes per {unit}", found.passes, "count", "autograd nodes", "measured"),
                evidence(facts, "Reductions in each", found.reductions, "count", "collectives in order", "measured"),
                evidence(facts, "Exposed time of those that repeat", found.early_exposed_ns, "ns", "collectives"),
                evidence(facts, "Copies to and from buckets for them", copied, "ratio", "DDP's reducer"),
            ),
            sure="high",
            detail="bandwidth",
            saving=_saving(facts, found, expected, bound),
            fix=Fix(
                text=f"Reductions per {unit} {found.passes * found.reductions} → {found.reductions}: {what} around the "
                f"first {found.passes - 1} micro-batches.{memory}",
                code=code,
                changes=() if sharded else (SettingChange("no_sync", False, True),),
            ),
            confirm=f"there must be {found.reductions} reductions {kind}.",
        )


def _saving(facts: Facts, found: Accumulation, expected: float, bound: float) -> Saving:
    """The saving; on a host with a wider interval, as transfers take cores and caches from the computing there."""
    value = transfer_saving(facts, expected, bound)
    if facts.mode != "cpu" or value.method == "bound":
        return value
    # Of two ranks on two cores 34 to 38 % of the CPU time and 48 to 63 % of the time were saved where 31 to 39 % were
    # expected, as the model just fits a cache.
    slowed = (1.0 - 1.0 / found.passes) * facts.share("compute.")
    return revise(half_sure(value), high=min(value.high + slowed, 1.0))


def _waited(facts: Facts) -> float:
    """Return the share of the step in which a rank waits for another one in the mean, where no rank is late.

    After one reduction for all passes ranks that are late by turns wait for what is left of it.
    """
    if facts.waiting_share is not None or not facts.ranks:
        return 0.0
    waits = (part.share for rank in facts.ranks for part in rank.breakdown if part.part == "comm.skew")
    return sum(waits) / len(facts.ranks)
