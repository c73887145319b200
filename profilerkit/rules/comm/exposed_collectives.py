"""CO001 (R34): the step waits for collectives that nothing hides."""

from dataclasses import dataclass
from typing import ClassVar

from profilerkit.analysis.communication.relabel import LATENCY_FLOOR_NS
from profilerkit.analysis.facts import CommFacts, Facts
from profilerkit.analysis.whatif import alone_compute, at_most, overlapped, saving
from profilerkit.model.finding import Evidence, Fix
from profilerkit.rules.rule import (
    Fired,
    MissingData,
    NotApplicable,
    Passed,
    Result,
    Rule,
    each,
    finding_for,
    share_evidence,
    worth_saying,
)
from profilerkit.units import format_ns, format_ratio

_FIX = {
    "latency": Fix(
        text="Many small collectives → few large ones: larger gradient buckets, or one flattened tensor.",
        code="DistributedDataParallel(model, bucket_cap_mb=100)",
    ),
    "no-overlap": Fix(
        text="Start collectives during backward instead of after it: DDP buckets, FSDP prefetch, async_op=True.",
        code="work = dist.all_reduce(grad, async_op=True)\n# more backward work\nwork.wait()",
    ),
    "bandwidth": Fix(
        text="Send fewer bytes: 16-bit gradients on the wire, or accumulate before reducing.",
        code="model.register_comm_hook(None, default_hooks.bf16_compress_hook)",
    ),
}
#: Where DistributedDataParallel overlaps by itself, smaller buckets than its default are what is left to try.
_SMALLER_BUCKETS_MB = 10

#: Surplus over the usual duration that is worth a sentence.
_NOTED_SURPLUS = 0.10
#: Exposed communication that is not known to be waiting for another rank.
_TRANSFER = ("comm.bw", "comm.lat", "comm.other")


@dataclass(frozen=True)
class ExposedCollectives(Rule):
    """Exposed communication (R34).

    Claim: The step waits for collectives that no computation hides.
    Evidence: Time of communication kernels with no compute kernel beside them; on a CPU-only run, of the transfers
        beside which no operator runs. Waiting for another rank is left out where the ranks could be matched.
    Threshold: 5 % of the step (TraceLens warns at 5 %, torch-tb-profiler at 10 %).
    Fix: By kind: larger buckets when messages are small, overlap when nothing is hidden (smaller buckets where DDP does
        that by itself), else fewer bytes. Where transfer and waiting look the same, the traces of every rank first.
    Saving: Bound: the exposed share. Expected: what could be hidden, min(exposed, compute that runs alone); where
        nothing overlaps yet, min(exposed × (1 - 1 / collectives per step), that compute), because the last has nothing
        left to hide behind (a single one would be divided in two); of small messages what one message in place of all
        would save, latency × (1 - 1 / messages per step). The latency is measured where the ranks were matched; from
        one rank it is at most 44 µs a message (R38), the rest is waiting.
    Traps: From one rank, transfer and waiting for a late rank look the same. Communication that is hidden costs
        nothing here. Tensor-parallel collectives are on the data path and cannot be hidden.
    Confidence: High with every rank's trace, on a CPU-only run medium. Low where transfer and waiting could not be told
        apart: then the saving is a bound alone.
    """

    code: ClassVar[str] = "CO001"
    name: ClassVar[str] = "exposed_collectives"
    family: ClassVar[str] = "comm"
    summary: ClassVar[str] = "The step waits for collectives that nothing hides"

    smallest_share: float = 0.05
    #: Share of the communication's time in collectives below 1 MB from which latency is the limit (R38 counts them).
    small_ratio: float = 0.50
    #: Hidden part of the communication below which there is no overlap to speak of.
    overlap_ratio: float = 0.30

    def check(self, facts: Facts) -> Result:
        """Fires when exposed communication reaches ``smallest_share``."""
        if facts.comm is None:
            if facts.trace_read or (facts.world_size or 1) <= 1:
                return NotApplicable("no collective was seen")
            return MissingData("collectives are only seen in a trace", "profilerkit.profile(..., deep=True)")
        comm = facts.comm
        share = facts.share(*_TRANSFER)
        if share < self.smallest_share:
            return Passed(f"{format_ratio(share)} of the step is exposed communication")
        step = facts.mean_step_ns or 1.0
        unknown = undivided(facts)
        detail = self._kind(facts, comm)
        if detail == "latency":
            expected = _latency(facts, comm) * (1.0 - 1.0 / max(comm.per_step, 1.0))
            reason = "in collectives so small and few that none can be saved"
        else:
            hidden = detail == "no-overlap"
            expected = overlapped(facts, share) if hidden else min(share, alone_compute(facts))
            reason = "but there is no computation to hide it behind"
        if not worth_saying(facts, expected):
            return Passed(f"{format_ratio(share)} is exposed, {reason}")
        finding = finding_for(
            facts,
            bound="comm-bound",
            title=f"{format_ns(share * step)} of communication in {each(facts)} step is not hidden",
            why=_why(comm, unknown),
            evidence=_evidence(facts, comm),
            at_most="low" if unknown else "medium" if facts.mode == "cpu" else "high",
            detail=detail,
            saving=at_most(expected, share) if unknown else saving(facts, expected, share),
            fix=_fix(facts, detail),
            confirm="Record every rank: if one rank's collectives are much shorter, it is late and the others "
            "wait for it."
            if unknown
            else "Record again: the communication that is not hidden must fall, and the step with it.",
        )
        return Fired((finding,))

    def _kind(self, facts: Facts, comm: CommFacts) -> str:
        rest = facts.share(*_TRANSFER) - _latency(facts, comm)
        small = comm.small_ratio is not None and comm.small_ratio >= self.small_ratio
        if (small or facts.share("comm.lat")) and _latency(facts, comm) > rest:
            return "latency"
        if comm.small_ratio is None or comm.overlap_ratio < self.overlap_ratio:
            return "no-overlap"
        return "bandwidth"


def _latency(facts: Facts, comm: CommFacts) -> float:
    """Share of the step that exposed messages take however small they are."""
    floor = comm.per_step * LATENCY_FLOOR_NS / (facts.mean_step_ns or 1.0)
    return facts.share("comm.lat") + min(facts.share("comm.other"), floor)


def undivided(facts: Facts) -> str:
    """Why transfer and waiting for a late rank could not be told apart; empty where they were, or nobody waits."""
    if facts.share("comm.other") <= facts.share("comm.bw", "comm.lat"):
        return ""
    if facts.missing_ranks:
        return (
            f"{facts.missing_ranks} of {facts.world_size} ranks {'is' if facts.missing_ranks == 1 else 'are'} missing"
        )
    if len(facts.ranks) > 1:
        return (
            "Other members were not read" if _traces_matched(facts) else "The ranks' collectives could not be matched"
        )
    # Without a word on the job, a collective is one of several ranks unless its group is known to have a single member.
    sizes = [row.group_size for row in facts.comm.table if row.group_size] if facts.comm else []
    return "From one rank" if (facts.world_size or max(sizes, default=2)) > 1 else ""


def _traces_matched(facts: Facts) -> bool:
    """Whether collectives of traces were matched: those of flight recorders divide no collective."""
    found = facts.communication
    return found is not None and bool(found.matched) and found.matched_in == "traces"


def to_divide(facts: Facts) -> str:
    """What to record so that transfer and waiting for a late rank are told apart; empty where they are."""
    if not undivided(facts):
        return ""
    if len(facts.ranks) > 1 and not facts.missing_ranks and not _traces_matched(facts):
        return "Record the same steps on every rank, at least 3"
    return "Record every rank and analyze all of them together"


def _fix(facts: Facts, detail: str) -> Fix:
    """What helps against transfer; first what tells whether it is transfer, where that is not known."""
    dimensions = facts.communication.parallelism if facts.communication is not None else ()
    by_ddp = any(found.evidence.startswith("DistributedDataParallel") for found in dimensions)
    fix = _fix_of_ddp(facts) if by_ddp and detail == "no-overlap" else _FIX[detail]
    first = to_divide(facts)
    if not first:
        return fix
    return Fix(
        text=f"{first}: one that is late may be what the others wait for. Against transfer: {fix.text}", code=fix.code
    )


def _fix_of_ddp(facts: Facts) -> Fix:
    """Smaller buckets than those that DDP says it has, by default 25 MB (torch 2.13): it reduces them by itself."""
    models = facts.communication.ddp if facts.communication is not None else ()
    caps = {model.bucket_cap_bytes for model in models if model.bucket_cap_bytes}
    current = caps.pop() / (1 << 20) if len(caps) == 1 else None
    smaller = _SMALLER_BUCKETS_MB if current is None or current > _SMALLER_BUCKETS_MB else current / 2
    now = "25 (its default)" if current is None else f"{current:g}"
    return Fix(
        text=f"DDP already reduces bucket by bucket during backward: bucket_cap_mb {now} → {smaller:g}, so that they "
        "start earlier and less is left after the last.",
        code=f"DistributedDataParallel(model, bucket_cap_mb={smaller:g})",
    )


def _why(comm: CommFacts, unknown: str) -> str:
    text = f"{format_ratio(comm.overlap_ratio)} of the communication runs beside computation; the rest stops the step."
    if unknown:
        text += f" {unknown}: transfer and waiting for a late rank cannot be told apart."
        if comm.surplus_ratio >= _NOTED_SURPLUS:
            surplus = format_ratio(comm.surplus_ratio)
            text += f" {surplus} of the time is what some take beyond the median of their like: probably waiting."
    return text


def _evidence(facts: Facts, comm: CommFacts) -> tuple[Evidence, ...]:
    return (
        share_evidence(
            facts,
            "Exposed communication, share of the step",
            *_TRANSFER,
            origin=comm.table[0].name if comm.table else "communication kernels",
        ),
        Evidence(
            label="Hidden part of the communication",
            value=comm.overlap_ratio,
            unit="ratio",
            source="measured",
            origin="interval arithmetic on the device's streams",
            n=facts.steps.steady,
            rank=facts.rank.rank,
        ),
        Evidence(
            label="Collectives per step",
            value=comm.per_step,
            unit="count",
            source="measured",
            origin="communication kernels",
            n=facts.steps.steady,
            rank=facts.rank.rank,
        ),
    )
