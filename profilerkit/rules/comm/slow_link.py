"""CO004 (R37): large collectives run slower than the links allow."""

from dataclasses import dataclass
from typing import ClassVar

from profilerkit.analysis.communication.whatif import exposed, less, rows
from profilerkit.analysis.communication.wire import Traffic
from profilerkit.analysis.facts import Facts
from profilerkit.analysis.run_facts import ONE_SWITCH
from profilerkit.model.finding import Fix
from profilerkit.rules.comm.exposed_collectives import to_divide
from profilerkit.rules.comm.transfers import evidence, kinds, surest, transfer_saving, untold
from profilerkit.rules.rule import (
    Fired,
    MissingData,
    NotApplicable,
    Passed,
    Result,
    Rule,
    finding_for,
)
from profilerkit.units import format_decimal, format_ratio


@dataclass(frozen=True)
class SlowLink(Rule):
    """Collective bandwidth below the fabric (R37).

    Claim: Large collectives run slower than the links between the devices allow.
    Evidence: Bus bandwidth (nccl-tests' factors) of collectives of at least 64 MB, from the last rank's arrival to the
        first one's end, against 80 % of the device's link, one way: what good all-reduces reach (A100 78 %, H200 82 %).
    Threshold: Below 60 % of that.
    Fix: Look at what the ranks really talk over, then give them the link.
    Saving: Bound: min(exposed, transfer of these × (1 - reached / reference)). Expected: no more than what of them is
        exposed.
    Traps: Only groups beside one switch are judged: up to 8 ranks of a job that is no larger; the speed of a network is
        not known. Cards whose link needs a bridge are left out. Bus bandwidth is not wire speed where the switch
        reduces (NVLS) or a tree is used. From one rank the time holds waiting.
    Confidence: Medium.
    """

    code: ClassVar[str] = "CO004"
    name: ClassVar[str] = "slow_link"
    family: ClassVar[str] = "comm"
    summary: ClassVar[str] = "Large collectives run slower than the links allow"

    slow_ratio: float = 0.60
    #: Share of the link's peak that large collectives normally reach.
    normal_ratio: float = 0.80

    def check(self, facts: Facts) -> Result:
        """Fires when large collectives stay far below what the link normally carries."""
        if (unable := untold(facts)) is not None:
            return unable
        if facts.mode != "gpu":
            return NotApplicable("the collectives run on the host")
        large = rows(facts, lambda row: row.size == "large")
        if not large:
            if rows(facts, lambda row: row.size is None) == rows(facts, lambda _: True):
                return MissingData(
                    "the sizes of the collectives were not recorded", "torch.profiler: record_shapes=True"
                )
            return NotApplicable("no collective moves 64 MB or more")
        link = facts.spec.link_gb_per_s if facts.spec is not None and not facts.spec.link_is_optional else None
        if link is None:
            return MissingData("the speed of the link between the devices is not known", "--device, if it is another")
        if (facts.world_size or ONE_SWITCH + 1) > ONE_SWITCH:
            return NotApplicable("the job may span hosts, whose network's speed is not known")
        timed = [row for row in large if row.bus_bytes_per_s is not None]
        if not timed:
            return MissingData("how long the transfers took without waiting is not known", _to_time(facts))
        reference = self.normal_ratio * link * 1e9
        return self._judged(facts, timed, reference)

    def _judged(self, facts: Facts, timed: list[Traffic], reference: float) -> Result:
        slow = [row for row in timed if (row.bus_bytes_per_s or 0.0) < self.slow_ratio * reference]
        if not slow:
            least = min(row.bus_bytes_per_s or 0.0 for row in timed)
            return Passed(
                f"the slowest large collectives reach {format_ratio(least / reference)} of a good link's rate"
            )
        savings = [less(facts, [row], 1.0 - (row.bus_bytes_per_s or 0.0) / reference) for row in slow]
        bound = min(sum(found[1] for found in savings), exposed(facts))
        expected = min(sum(found[0] for found in savings), bound)
        if not self.worth_saying(facts, expected):
            return Passed("large collectives are slower than the link, but hidden, or hardly any of the step")
        reached = sum(row.transfer_ns for row in slow)
        rate = sum((row.bus_bytes_per_s or 0.0) * row.transfer_ns for row in slow) / reached if reached else 0.0
        found = finding_for(
            facts,
            bound="comm-bound",
            title=f"Large {kinds(slow)} run at {format_ratio(rate / reference)} of what the link carries",
            why=f"They reach {_rate(rate)}; the link normally carries {_rate(reference)}, "
            f"{format_ratio(self.normal_ratio)} of its peak, and they are large enough to show it. Waiting for other "
            "ranks is not in this time.",
            evidence=(
                evidence(facts, "Bus bandwidth of large collectives", rate, "bytes_per_s", kinds(slow)),
                evidence(facts, "Reached of what the link carries", rate / reference, "ratio", "the two rates"),
                evidence(
                    facts, "What the link normally carries", reference, "bytes_per_s", "device table", "estimated"
                ),
                evidence(facts, "That of its peak", self.normal_ratio, "ratio", "option normal_ratio", "estimated"),
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
        return Fired((found,))


def _rate(bytes_per_s: float) -> str:
    return format_decimal(bytes_per_s, "B/s")


def _to_time(facts: Facts) -> str:
    return to_divide(facts) or "record every rank and analyze all of them together"
