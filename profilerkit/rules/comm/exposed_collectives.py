"""CO001: the step waits for collectives that nothing hides."""

from statistics import median

from profilerkit.analysis.communication.table import TRANSFER, CommFacts
from profilerkit.analysis.communication.whatif import could_hide, exposed, may_overlap, rows
from profilerkit.analysis.ranks.waiting import LATENCY_FLOOR_NS
from profilerkit.analysis.whatif import alone_compute, at_most, overlapped, saving
from profilerkit.model import revise
from profilerkit.rules.api import Facts, MissingData, NotApplicable, Passed, Result, Rule, each, fired
from profilerkit.units import format_ns, format_ratio

_NOTED_SURPLUS = 0.10  #: surplus over the usual duration that is worth a sentence


class ExposedCollectives(Rule, frozen=True):
    """Find collectives that no compute kernel overlaps for {smallest_share} of the step.

    Why it costs: The device transfers data or waits instead of computing.

    Example:
        for parameter in model.parameters():
            torch.distributed.all_reduce(parameter.grad)
    Use instead:
        model = nn.parallel.DistributedDataParallel(model)
    How it is measured: Communication kernels that no compute kernel overlaps are summed. Waiting for another rank is
        subtracted where the ranks' traces could be matched. The saving is what the remaining computation could overlap.
        With {small_ratio} of the time in messages below 1 MB, latency is the limit. Missing overlap is the limit below
        {overlap_ratio} overlap, if there is computation to overlap {available_ratio} of it.
    When it is wrong: In the trace of one rank, transfer and waiting for a late rank look the same: confidence is low
        then. Tensor-parallel collectives cannot be overlapped.
    Sources: https://docs.pytorch.org/docs/stable/notes/ddp.html
    """

    code = "CO001"
    summary = "The step waits for exposed communication"

    smallest_share: float = 0.05
    #: Share of the communication's time in collectives below 1 MB from which latency is the limit (a choice).
    small_ratio: float = 0.50
    overlap_ratio: float = 0.30  #: hidden part of the communication below which there is no overlap to speak of
    #: Part of the communication that computing could hide, below which its size is the limit and not the missing
    #: overlap (CO002 has the same).
    available_ratio: float = 0.50

    def check(self, facts: Facts) -> Result:
        unable, comm = unseen(facts), facts.comm
        if unable is not None or comm is None:
            return unable or NotApplicable("no collective was seen")
        share = _not_waiting(facts)
        if share < self.smallest_share:
            return Passed(f"{format_ratio(share)} of the step is exposed communication")
        step = facts.mean_step_ns or 1.0
        unknown = undivided(facts)
        detail = self._kind(facts, comm)
        if detail == "latency":
            expected = _latency(facts, comm) * (1.0 - 1.0 / max(comm.per_step, 1.0))
            reason = "in collectives so small and few that none can be saved"
        else:
            is_hidden = comm.small_ratio is not None and comm.overlap_ratio >= self.overlap_ratio
            expected = min(share, alone_compute(facts)) if is_hidden else overlapped(facts, share)
            reason = "but no computation could overlap it"
        if not self.worth_saying(facts, expected):
            return Passed(f"{format_ratio(share)} is exposed, {reason}")
        first = to_divide(facts)
        origin = comm.table[0].name if comm.table else "communication kernels"
        exposure = facts.share_evidence("Exposed communication, share of the step", *TRANSFER, origin=origin)
        beside, overlap = "Overlapped share of the communication", comm.overlap_ratio
        text = f"{format_ratio(overlap)} of the communication overlaps with computation; the rest is exposed."
        if unknown:
            text += f" {unknown}: transfer and waiting for a late rank look the same."
            if comm.surplus_ratio >= _NOTED_SURPLUS:
                surplus = format_ratio(comm.surplus_ratio)
                text += f" {surplus} of the time is what some take beyond the median of their kind: probably waiting."
        return fired(
            facts,
            bound="comm-bound",
            title=f"{format_ns(share * step)} of communication in {each(facts)} is exposed",
            why=text,
            evidence=(
                revise(exposure, value=share),
                facts.evidence(beside, overlap, "ratio", "interval arithmetic on the device's streams"),
                facts.evidence("Collectives per step", comm.per_step, "count", "communication kernels"),
            ),
            at_most="low" if unknown else "medium" if facts.mode == "cpu" else "high",
            detail=detail,
            saving=at_most(share, expected) if unknown else saving(expected, share),
            # To record more is no fix: it saves nothing.
            confirm=f"{first or 'Record every rank'}: if one rank's collectives are much shorter, it is late and the "
            "others wait for it."
            if unknown or first
            else "Record again: the exposed communication must fall, and the step with it.",
        )

    def _kind(self, facts: Facts, comm: CommFacts) -> str:
        rest = exposed(facts) - _latency(facts, comm)
        small = comm.small_ratio is not None and comm.small_ratio >= self.small_ratio
        if (small or facts.share("comm.lat")) and _latency(facts, comm) > rest:
            return "latency"
        if comm.small_ratio is None:
            return "no-overlap"
        behind = could_hide(facts, rows(facts, lambda row: may_overlap(facts, row)))
        could = comm.overlap_ratio < self.overlap_ratio and behind >= self.available_ratio
        return "no-overlap" if could else "bandwidth"


def _not_waiting(facts: Facts) -> float:
    """Exposed communication, share of the step, as far as it is not known to be waiting for the late rank.

    Where recorders tell that a rank is late, and traces do not tell transfer from waiting, the others wait in theirs,
    and no rank transfers for longer than they do beside that.
    """
    share = exposed(facts)
    others = [rank for place, rank in enumerate(facts.ranks) if place != facts.judged_rank and rank.step_ns]
    if facts.waiting_share is None or not undivided(facts) or not others:
        return share
    held = [
        sum(part.share for part in rank.breakdown if part.part.startswith("comm.") and part.part != "comm.skew")
        for rank in others
    ]
    return min(share, max(median(held) - facts.waiting_share, 0.0))


def unseen(facts: Facts) -> Result | None:
    """Return why nothing can be said about collectives; ``None`` where some were seen."""
    if facts.comm is not None:
        return None
    if facts.trace_read or (facts.world_size or 1) <= 1:
        return NotApplicable("no collective was seen")
    return MissingData("collectives are only seen in a trace", "profilerkit.profile(..., deep=True)")


def _latency(facts: Facts, comm: CommFacts) -> float:
    """Return the share of the step that exposed messages take however small they are."""
    floor = comm.per_step * LATENCY_FLOOR_NS / (facts.mean_step_ns or 1.0)
    return facts.share("comm.lat") + min(facts.share("comm.other"), floor)


def undivided(facts: Facts) -> str:
    """Why transfer and waiting for a late rank could not be told apart; empty where they were, or nobody waits."""
    if facts.share("comm.other") <= facts.share("comm.bw", "comm.lat"):
        return ""
    if missing := facts.missing_ranks:
        return f"{missing} of {facts.world_size} ranks {'is' if missing == 1 else 'are'} missing"
    if len(facts.ranks) > 1:
        matched = _traces_matched(facts)
        return "Other members were not read" if matched else "The ranks' collectives could not be matched"
    # Without a word on the job, a collective is one of several ranks unless its group is known to have a single member.
    sizes = [row.group_size for row in facts.comm.table if row.group_size] if facts.comm else []
    return "From one rank" if (facts.world_size or max(sizes, default=2)) > 1 else ""


def _traces_matched(facts: Facts) -> bool:
    """Return whether collectives of traces were matched: those of flight recorders divide no collective."""
    found = facts.communication
    return found is not None and bool(found.matched) and found.matched_in == "traces"


def to_divide(facts: Facts) -> str:
    """Return what to record so that transfer and waiting for a late rank are told apart; empty where they are."""
    if not undivided(facts):
        return ""
    if len(facts.ranks) > 1 and not facts.missing_ranks and not _traces_matched(facts):
        return "Record the same steps on every rank, at least 3"
    return "Record every rank and analyze all of them together"
