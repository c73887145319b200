"""CO004: large collectives run slower than the links allow."""

from profilerkit.analysis.communication.table import Traffic
from profilerkit.analysis.communication.whatif import exposed, less, rows
from profilerkit.analysis.job_facts import ONE_SWITCH
from profilerkit.rules.api import Facts, Fix, MissingData, NotApplicable, Passed, Result, Rule, Source, fired
from profilerkit.rules.comm.exposed_collectives import to_divide
from profilerkit.rules.comm.transfers import evidence, kinds, surest, transfer_saving, untold
from profilerkit.units import format_decimal, format_ratio


class SlowLink(Rule, frozen=True):
    """Find collectives of 64 MB and more that run below {slow_ratio} of what the links usually reach.

    Why it costs: The ranks talk over a slower path than the hardware has, such as PCIe instead of NVLink.

    Example:
        $ NCCL_P2P_DISABLE=1 torchrun --nproc-per-node 8 train.py
    Use instead:
        $ NCCL_DEBUG=INFO torchrun --nproc-per-node 8 train.py
    How it is measured: Bus bandwidth is measured from the arrival of the last rank to the first end. The reference is
        {normal_ratio} of the link one way: good all-reduces reach 78 % on A100 and 82 % on H200. The saving is the
        exposed part of the time above the reference.
    When it is wrong: Only groups of up to 8 ranks at one switch are judged. Bus bandwidth is not the link's rate where
        the switch reduces, as with NVLS, or with trees.
    Sources:
        https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md
        https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html
    """

    code = "CO004"
    summary = "Large collectives run slower than the links allow"

    slow_ratio: float = 0.60
    normal_ratio: float = 0.80  #: share of the link's peak that large collectives normally reach

    def check(self, facts: Facts) -> Result:
        if (unable := untold(facts)) is not None:
            return unable
        if facts.mode != "gpu":
            return NotApplicable("the collectives run on the host")
        large = rows(facts, lambda row: row.size == "large")
        if not large:
            if rows(facts, lambda row: row.size is None) == rows(facts, lambda _: True):
                why = "the sizes of the collectives were not recorded"
                return MissingData(why, "torch.profiler: record_shapes=True")
            return NotApplicable("no collective moves 64 MB or more")
        link = facts.spec.link_gb_per_s if facts.spec is not None and not facts.spec.link_is_optional else None
        if link is None:
            return MissingData("the speed of the link between the devices is not known", "--device, if it is another")
        if (facts.world_size or ONE_SWITCH + 1) > ONE_SWITCH:
            return NotApplicable("the job may span hosts, whose network's speed is not known")
        timed = [row for row in large if row.bus_bytes_per_s is not None]
        if not timed:
            record = to_divide(facts) or "record every rank and analyze all of them together"
            return MissingData("how long the transfers took without waiting is not known", record)
        return self._judged(facts, timed, self.normal_ratio * link * 1e9)

    def _judged(self, facts: Facts, timed: list[Traffic], reference: float) -> Result:
        slow = [row for row in timed if (row.bus_bytes_per_s or 0.0) < self.slow_ratio * reference]
        if not slow:
            least = min(row.bus_bytes_per_s or 0.0 for row in timed)
            reached = format_ratio(least / reference)
            return Passed(f"the slowest large collectives reach {reached} of a good link's rate")
        savings = [less(facts, [row], 1.0 - (row.bus_bytes_per_s or 0.0) / reference) for row in slow]
        bound = min(sum(found[1] for found in savings), exposed(facts))
        expected = min(sum(found[0] for found in savings), bound)
        if not self.worth_saying(facts, expected):
            return Passed("large collectives are slower than the link, but overlapped, or take little of the step")
        guess: Source = "estimated"
        slow_ns = sum(row.transfer_ns for row in slow)
        rate = sum((row.bus_bytes_per_s or 0.0) * row.transfer_ns for row in slow) / slow_ns if slow_ns else 0.0
        return fired(
            facts,
            bound="comm-bound",
            title=f"Large {kinds(slow)} run at {format_ratio(rate / reference)} of what the link carries",
            why=f"They reach {_rate(rate)}; the link normally carries {_rate(reference)}, "
            f"{format_ratio(self.normal_ratio)} of its peak, and they are large enough to show it. Waiting for other "
            "ranks is not in this time.",
            evidence=(
                evidence(facts, "Bus bandwidth of large collectives", rate, "bytes_per_s", kinds(slow)),
                evidence(facts, "Reached share of what the link carries", rate / reference, "ratio", "the two rates"),
                evidence(facts, "What the link normally carries", reference, "bytes_per_s", "device table", guess),
                evidence(facts, "Share of the link's peak", self.normal_ratio, "ratio", "option normal_ratio", guess),
            ),
            at_most=surest(facts, "medium"),
            detail="bandwidth",
            saving=transfer_saving(facts, expected, bound),
            fix=Fix(
                text=f"Give the ranks their link: {_rate(rate)} → {_rate(reference)}. `nvidia-smi topo -m` and "
                "NCCL_DEBUG=INFO say whether they talk over it, over PCIe, or over sockets.",
                code="nvidia-smi topo -m\nNCCL_DEBUG=INFO torchrun ...",
            ),
            confirm=f"Record again: the bus bandwidth must pass {_rate(self.slow_ratio * reference)}.",
        )


def _rate(bytes_per_s: float) -> str:
    return format_decimal(bytes_per_s, "B/s")
