"""CO002: there is computing that could hide the communication, and it does not."""

from collections.abc import Sequence

from profilerkit.analysis.communication.table import SMALL_COLLECTIVE_BYTES, Traffic
from profilerkit.analysis.communication.whatif import (
    available,
    could_hide,
    exposed_of,
    hidden,
    may_overlap,
    overlap_ratio,
    rows,
    transferred,
)
from profilerkit.rules.api import Facts, Fix, NotApplicable, Passed, Result, Rule, SettingChange, spent, unsure
from profilerkit.rules.comm.transfers import (
    by_ddp,
    divides,
    evidence,
    kinds,
    models,
    transfer_saving,
    transfers_fired,
    untold,
)
from profilerkit.units import format_ns, format_ratio

# A smaller share prints as 0.0 %.
_TOLD = 0.001
_MIB = 1 << 20
#: DDP's bucket_cap_mb unless it is set (torch 2.13), and what is proposed for larger ones (a choice).
_DEFAULT_CAP_MB = 25.0
_SMALLER_CAP_MB = 10.0
#: Mean size over the default cap from which buckets must be larger than that (a choice: one may hold a large tensor).
_SURELY_LARGER = 1.5
_PIECES = 4  #: buckets that a model smaller than one bucket is divided into (a choice)


class UnhiddenCollectives(Rule, frozen=True):
    """Find collectives that overlap less than {overlap_ratio} with computation, although nothing prevents it.

    Why it costs: A reduction can run while backward computes the next gradients. Here it starts too late.

    Example:
        ddp = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=500)
    Use instead:
        ddp = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=25)
    How it is measured: The collectives must take {smallest_share} of the step. The computation they could overlap must
        be {available_ratio} as long as they are. The last of n pieces stays exposed, so the saving is at most exposed -
        total / n.
    When it is wrong: Tensor, expert and pipeline groups are on the data path and are left out. Smaller buckets cost
        latency. Confidence is low where transfer and waiting look the same.
    Sources: https://docs.pytorch.org/docs/stable/notes/ddp.html
    """

    code = "CO002"
    summary = "Collectives could run beside computation, and do not"

    overlap_ratio: float = 0.70
    smallest_share: float = 0.05
    available_ratio: float = 0.50

    def check(self, facts: Facts) -> Result:
        if (unable := untold(facts)) is not None:
            return unable
        chosen = rows(facts, lambda row: may_overlap(facts, row))
        if not chosen:
            return NotApplicable("every collective is on the data path: the next operator waits for it")
        total, ratio = transferred(facts, chosen), overlap_ratio(facts, chosen)
        if total < self.smallest_share:
            return Passed(f"collectives that could be overlapped take {format_ratio(total)} of the step")
        if ratio >= self.overlap_ratio:
            return Passed(f"{format_ratio(ratio)} of the communication runs beside computing")
        behind = could_hide(facts, chosen)
        if behind < self.available_ratio:
            return Passed(f"computation could overlap only {format_ratio(behind)} of the communication")
        mean = _mean_bytes(chosen)
        if by_ddp(facts) and mean is not None and mean < 2 * SMALL_COLLECTIVE_BYTES:
            return Passed("DDP's buckets are below 2 MB already: smaller ones would only add latency")
        fix, pieces = _fix(facts, chosen)
        expected, bound = hidden(facts, chosen, pieces)
        if not self.worth_saying(facts, expected):
            return unsure("only some of it could run beside computation", expected)
        step = facts.mean_step_ns or 1.0
        left, held = available(facts, chosen), exposed_of(facts, chosen)
        of_backward = facts.collective_work is not None and facts.collective_work.backward_alone_ns is not None
        little = f"Only {format_ratio(ratio)}" if ratio >= _TOLD else "Hardly any"
        where = "the backward pass" if of_backward else "the whole step"
        return transfers_fired(
            facts,
            title=f"{little} of the {kinds(chosen)} time runs beside computing",
            why=f"For {spent(facts, left)} {where} computes beside no collective, and for "
            f"{format_ns(held * step)} these collectives hold the step.",
            evidence=(
                evidence(facts, "Overlapped share of these collectives", ratio, "ratio", "kernels beside collectives"),
                evidence(facts, "Their share of the step", total, "ratio", "collectives"),
                evidence(facts, "Computation that could run beside them, share of the step", left, "ratio", where),
                evidence(facts, "Held by these collectives, share of the step", held, "ratio", "collectives"),
            ),
            sure="medium",
            detail="no-overlap",
            saving=transfer_saving(facts, expected, bound),
            fix=fix,
            confirm=f"more than {format_ratio(self.overlap_ratio)} of it must run beside computing.",
        )


#: How torch starts a collective that the step does not wait for, by kind.
_CALLS = {
    "all_reduce": "all_reduce(grad, async_op=True)",
    "reduce_scatter": "reduce_scatter_tensor(shard, grad, async_op=True)",
    "all_gather": "all_gather_into_tensor(whole, shard, async_op=True)",
    "all_to_all": "all_to_all_single(received, sent, async_op=True)",
}


def _mean_bytes(chosen: Sequence[Traffic]) -> float | None:
    """Of one reduction; ``None`` where some sizes are not known."""
    reduces = [row for row in chosen if row.kind == "all_reduce"]
    count = sum(row.per_step for row in reduces)
    sizes = [row.bytes_per_step for row in reduces]
    return sum(size for size in sizes if size is not None) / count if count and None not in sizes else None


def _fix(facts: Facts, chosen: Sequence[Traffic]) -> tuple[Fix, float]:
    """Return what starts these collectives earlier, and into how many pieces they are divided then."""
    if by_ddp(facts):
        return _fix_of_ddp(facts, chosen)
    count = max(sum(row.per_step for row in chosen), 2.0)
    if divides(facts, "sharded data"):
        text = "Gather the next layer's parameters while this one computes: forward prefetch 0 → 1 layer, backward too."
        code = "layer.set_modules_to_forward_prefetch([next_layer])\nlayer.set_modules_to_backward_prefetch([previous])"
        return Fix(text=text, code=code), count
    text = f"Start each of the {count:.0f} collectives a step when its gradients are there: async_op False → True."
    largest = max(chosen, key=lambda row: row.exposed_ns)
    code = f"work = dist.{_CALLS.get(largest.kind, _CALLS['all_reduce'])}\n# more backward work\nwork.wait()"
    return Fix(text=text, code=code), count


def _fix_of_ddp(facts: Facts, chosen: Sequence[Traffic]) -> tuple[Fix, float]:
    """Smaller buckets than DDP has: it reduces each as soon as its last gradient is there.

    Where DDP did not tell its cap, how many more buckets a smaller one makes is not known, and none are counted on.
    """
    caps = {model.bucket_cap_bytes for model in models(facts) if model.bucket_cap_bytes}
    sizes = {model.parameter_bytes for model in models(facts) if model.parameter_bytes}
    known = caps.pop() / _MIB if len(caps) == 1 else None
    size = sizes.pop() / _MIB if len(sizes) == 1 else None
    mean = (_mean_bytes(chosen) or 0.0) / _MIB
    current, now = _DEFAULT_CAP_MB, f"{_DEFAULT_CAP_MB:g} (its default)"
    if known is not None or mean > _SURELY_LARGER * _DEFAULT_CAP_MB:
        current = known if known is not None else mean
        now = f"{current:.3g}"
    smaller = _SMALLER_CAP_MB if current > _SMALLER_CAP_MB else current / 2
    # The whole model may fit into fewer pieces than it takes to overlap.
    if size is not None and size < _PIECES * smaller:
        smaller = max(round(size / _PIECES, 1), 1.0)
    fix = Fix(
        text=f"DDP already reduces bucket by bucket during backward: bucket_cap_mb {now} → {smaller:g}, so that they "
        "start earlier and less is left after the last.",
        code=f"DistributedDataParallel(model, bucket_cap_mb={smaller:g})",
        changes=(SettingChange("bucket_cap_mb", current, smaller),),
    )
    count = max(sum(row.per_step for row in chosen), 1.0)
    reach = current if size is None else min(current, size)
    return fix, count if known is None else count * max(reach / smaller, 1.0)
