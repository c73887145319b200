"""CO005: many collectives are too small to use the links, and each pays the latency."""

from collections.abc import Sequence

from profilerkit.analysis.communication.table import Traffic
from profilerkit.analysis.communication.whatif import exposed_of, floor_ns, joined, may_overlap, rows
from profilerkit.rules.api import Facts, Fix, MissingData, Passed, Result, Rule, SettingChange, Source, each
from profilerkit.rules.comm.transfers import by_ddp, evidence, kinds, models, transfer_saving, transfers_fired, untold
from profilerkit.units import format_bytes, format_count, format_ns, format_ratio

_MIB = 1 << 20
_DEFAULT_CAP_MB = 25.0  #: DDP's bucket_cap_mb unless it is set (torch 2.13)


class SmallCollectives(Rule, frozen=True):
    """Find steps where {small_ratio} of the collectives are below 1 MB and take about as long as an empty one.

    Why it costs: Each collective pays the latency of its start, whatever its size.

    Example:
        for parameter in model.parameters():
            torch.distributed.all_reduce(parameter.grad)
    Use instead:
        grads = [parameter.grad for parameter in model.parameters()]
        flat = torch._utils._flatten_dense_tensors(grads)
        torch.distributed.all_reduce(flat)
    How it is measured: The latency is the median transfer below 64 KB of matched ranks, or 44 µs measured on 8 A100. A
        collective counts as small up to {floor_factor} times that. The saving is the exposed latency of all but one
        message of each kind.
    When it is wrong: A small collective that takes longer waits for a rank, or the link is slow. Collectives on the
        data path cannot be joined. Overlapped messages cost nothing.
    Sources:
        https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md
        https://docs.pytorch.org/docs/stable/notes/ddp.html
    """

    code = "CO005"
    summary = "Many collectives are too small to use the links"

    small_ratio: float = 0.30
    floor_factor: float = 2.5

    def check(self, facts: Facts) -> Result:
        if (unable := untold(facts)) is not None:
            return unable
        sized = rows(facts, lambda row: row.size is not None)
        if not sized:
            return MissingData("the sizes of the collectives were not recorded", "torch.profiler: record_shapes=True")
        small = [row for row in sized if row.size == "small"]
        count, total = sum(row.per_step for row in small), sum(row.per_step for row in sized)
        if count < self.small_ratio * total:
            return Passed(f"{format_ratio(count / total)} of the collectives are smaller than 1 MB")
        floor = floor_ns(facts)
        most = self.floor_factor * floor
        chosen = [row for row in small if may_overlap(facts, row) and row.median_ns <= most]
        if not chosen:
            shortest = format_ns(min(row.median_ns for row in small))
            usual = f"not the latency of {format_ns(floor)}, or are on the data path"
            return Passed(f"small collectives take {shortest} and more, {usual}")
        expected, bound = joined(facts, chosen, all_small=len(chosen) == len(small))
        if not self.worth_saying(facts, expected):
            many = format_count(round(count, 1))
            return Passed(f"joining {many} small collectives a step would save hardly any of it")
        count = sum(row.per_step for row in chosen)
        size = sum(row.bytes_per_step or 0.0 for row in chosen) / count
        many = format_count(round(count, 1))
        work = facts.collective_work
        measured = work is not None and work.floor_ns is not None
        # From the first of those that come one after the other to the last: nothing on a device.
        burst_ns = work.burst_ns or None if work is not None else None
        burst = "From the first of a burst to its last, per step"
        source: Source = "derived" if measured else "estimated"
        tiny = "transfers below 64 KB" if measured else "32 KB over 8 A100"
        median, held = max(chosen, key=lambda row: row.per_step).median_ns, exposed_of(facts, chosen)
        return transfers_fired(
            facts,
            title=f"{many} {kinds(chosen)} of {format_bytes(size)} in {each(facts)} pay the latency one by one",
            why=f"Each takes {format_ns(median)} however little it moves: an empty one takes {format_ns(floor)}. "
            f"{format_ratio(held)} of the step is exposed in them.",
            evidence=(
                evidence(facts, "Collectives below 1 MB per step", count, "count", kinds(chosen), "measured"),
                evidence(facts, "Mean size", size, "bytes", kinds(chosen)),
                evidence(facts, "Time of one, median", median, "ns", "the most frequent of them"),
                evidence(facts, "Exposed in them, share of the step", held, "ratio", kinds(chosen)),
                evidence(facts, burst, burst_ns, "ns", "collectives on the host"),
                evidence(facts, "Latency floor", floor, "ns", tiny, source),
            ),
            sure="high",
            detail="latency",
            saving=transfer_saving(facts, expected, bound),
            fix=_fix(facts, chosen, many),
            confirm=f"there must be far fewer than {many} collectives a step.",
        )


def _fix(facts: Facts, chosen: Sequence[Traffic], many: str) -> Fix:
    caps = {model.bucket_cap_bytes for model in models(facts) if model.bucket_cap_bytes}
    current = caps.pop() / _MIB if len(caps) == 1 else None
    if by_ddp(facts) and current is not None and current < _DEFAULT_CAP_MB and chosen[0].kind == "all_reduce":
        return Fix(
            text=f"Fewer and larger gradient buckets: bucket_cap_mb {current:g} → {_DEFAULT_CAP_MB:g}, its default.",
            code=f"DistributedDataParallel(model, bucket_cap_mb={_DEFAULT_CAP_MB:g})",
            changes=(SettingChange("bucket_cap_mb", current, _DEFAULT_CAP_MB),),
        )
    return Fix(
        text=f"{many} messages a step → one per kind: flatten the tensors into one, or reduce them in one group; what "
        "is only logged, every 50 steps.",
        code="flat = torch.cat([t.reshape(-1) for t in tensors])\ndist.all_reduce(flat)",
    )
