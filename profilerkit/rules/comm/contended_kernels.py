"""CO012: collectives take multiprocessors or bandwidth from the kernels beside them."""

from profilerkit.analysis.communication.whatif import exposed, share_of_step
from profilerkit.model.finding import Fix, SettingChange
from profilerkit.rules.api import Facts, MissingData, NotApplicable, Passed, Result, Rule, fired, saving, spent
from profilerkit.rules.comm.exposed_collectives import unseen
from profilerkit.rules.comm.transfers import evidence
from profilerkit.units import format_count, format_ratio

_FIX = Fix(
    text="Fewer multiprocessors for NCCL: NCCL_MAX_CTAS from its default, up to 32 on a ring, → 8; try 16 and 4 as "
    "well.",
    code="NCCL_MAX_CTAS=8 torchrun ...",
    changes=(SettingChange("env:NCCL_MAX_CTAS", "", 8),),
)


class ContendedKernels(Rule, frozen=True):
    """Find kernels that run {slower_ratio} slower beside a collective than alone.

    Why it costs: A collective takes multiprocessors and memory bandwidth from the kernels it overlaps.

    Example:
        $ torchrun --nproc-per-node 8 train.py
    Use instead:
        $ NCCL_MAX_CTAS=16 torchrun --nproc-per-node 8 train.py
    How it is measured: Kernels of one name and shape, 10 µs and longer, are compared with at least three that ran
        alone. If {compared_ratio} could be compared, the others are assumed to slow equally. In six simulated jobs this
        was 2.6 points off at most.
    When it is wrong: Bandwidth is shared with any setting. Fewer multiprocessors slow the collectives, so nothing is
        advised if these are exposed for {most_exposed} of the step. Without shapes, one name can mean many sizes.
    Sources: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html
    """

    code = "CO012"
    summary = "Collectives slow the kernels that they overlap"

    slower_ratio: float = 0.10
    #: Share of the time beside collectives that must be compared to speak for the rest (a choice).
    compared_ratio: float = 0.10
    most_exposed: float = 0.05  #: exposed communication from which slower collectives would hold the step longer

    def check(self, facts: Facts) -> Result:
        if (unable := unseen(facts)) is not None:
            return unable
        if facts.mode != "gpu" or facts.collective_work is None:
            return NotApplicable("no device computed")
        found = facts.collective_work.contention
        if found is None:
            if not facts.measured("operator shapes"):
                return MissingData("kernels of one shape cannot be distinguished", "torch.profiler: record_shapes=True")
            return NotApplicable("no kernel of one shape ran both beside a collective and alone")
        slower = found.excess_ns / found.usual_ns if found.usual_ns else 0.0
        if slower < self.slower_ratio:
            return Passed(f"beside collectives kernels take {format_ratio(slower)} longer than alone")
        # What all kernels beside collectives take beyond their usual time, as far as the compared ones can tell.
        excess_ns = found.beside_ns * slower / (1.0 + slower)
        if found.usual_ns + found.excess_ns < self.compared_ratio * found.beside_ns:
            excess_ns = found.excess_ns
        expected = share_of_step(facts, excess_ns)
        if not self.worth_saying(facts, expected):
            return Passed(f"{format_ratio(slower)} slower beside collectives is {format_ratio(expected)} of the step")
        held = exposed(facts)
        harmful = held >= self.most_exposed
        why = f"{found.kernels} calls of {found.groups} kernels with shapes were compared with the same ones alone."
        if harmful:
            why += (
                f" {format_ratio(held)} of the step already waits for communication: fewer multiprocessors for it "
                "would make that longer, so that nothing is advised."
            )
        return fired(
            facts,
            bound=None if harmful else "comm-bound",
            title=f"Kernels beside collectives are {format_ratio(slower)} slower: {spent(facts, expected)}",
            why=why,
            evidence=(
                evidence(facts, "Slower beside collectives than alone", slower, "ratio", "kernels of one shape"),
                evidence(facts, "Time of kernels beside collectives", found.beside_ns, "ns", "kernels", "measured"),
                evidence(facts, "Kernels compared", found.kernels, "count", format_count(found.groups) + " groups"),
            ),
            at_most="medium",
            detail="contention",
            saving=None if harmful else saving(expected, share_of_step(facts, found.beside_ns)),
            fix=None if harmful else _FIX,
            confirm="" if harmful else "Record again: kernels beside collectives must be as quick as alone.",
        )
