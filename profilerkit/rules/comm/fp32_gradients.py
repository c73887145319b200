"""CO010: gradients travel in FP32 although the run computes in 16 bits."""

from profilerkit.analysis.communication.whatif import less, may_overlap, rows, share_of_step
from profilerkit.model.finding import Fix, SettingChange
from profilerkit.rules.api import Facts, MissingData, NotApplicable, Passed, Result, Rule, each
from profilerkit.rules.comm.transfers import divides, evidence, kinds, models, transfer_saving, transfers_fired, untold
from profilerkit.units import format_bytes

_REPLICATED = (
    "from torch.distributed.algorithms.ddp_comm_hooks import default_hooks\n"
    "model.register_comm_hook(None, default_hooks.bf16_compress_hook)"
)
_SHARDED = "fully_shard(model, mp_policy=MixedPrecisionPolicy(reduce_dtype=torch.bfloat16))"
#: Types of computing whose gradients have no more digits than 16 bits.
_NARROW = ("bf16", "fp16", "fp8")
_REDUCTIONS = ("all_reduce", "reduce_scatter")
#: Bytes of an element that pass the memory for casting: 4 read and 2 written, then 2 read and 4 written.
_CAST_BYTES_RATIO = (4 + 2 + 2 + 4) / 4
_REACHED_BANDWIDTH = 0.9  #: share of the memory's peak that pointwise kernels reach


class Fp32Gradients(Rule, frozen=True):
    """Find FP32 reductions of 1 MB and more in a run whose FLOPs are mostly 16-bit.

    Why it costs: FP32 gradients move twice the bytes that the computation used.

    Example:
        ddp = nn.parallel.DistributedDataParallel(model)
    Use instead:
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
        ddp = nn.parallel.DistributedDataParallel(model)
        ddp.register_comm_hook(None, default_hooks.bf16_compress_hook)
    How it is measured: The element type of the reductions is compared with that of the computation. The saving is
        {left_ratio} of the exposed transfer, minus the casts where the device is known.
    When it is wrong: Sums over many ranks in bf16 lose digits: watch the loss. Small reductions are norms and losses,
        and stay in FP32.
    Sources: https://pytorch.org/docs/stable/ddp_comm_hooks
    """

    code = "CO010"
    summary = "Gradients travel in FP32 although the run computes in 16 bits"

    left_ratio: float = 0.50  #: bytes on the wire that 16-bit gradients leave

    def check(self, facts: Facts) -> Result:
        if (unable := untold(facts)) is not None:
            return unable
        if facts.mode != "gpu":
            return NotApplicable("on a host the casts take cores that the step needs: 16 bits made it slower in tests")
        precision = facts.compute.precision if facts.compute is not None else None
        if precision is None:
            return MissingData("the type that is computed in was not recorded", "torch.profiler: record_shapes=True")
        if precision not in _NARROW:
            return NotApplicable(f"the run computes in {precision}")
        reduces = rows(facts, lambda row: row.kind in _REDUCTIONS and row.size != "small")
        if reduces and all(row.dtype is None for row in reduces):
            return MissingData("the collectives' types were not recorded", "torch.profiler: record_shapes=True")
        chosen = [row for row in reduces if row.dtype == "Float" and may_overlap(facts, row)]
        if not chosen:
            return Passed("no reduction of 1 MB or more travels in FP32")
        if any(model.hook for model in models(facts)):
            return Passed("a communication hook of DDP decides what travels")
        expected, bound = less(facts, chosen, 1.0 - self.left_ratio)
        moved, casts = sum(row.bytes_per_step or 0.0 for row in chosen), 0.0
        if facts.spec is not None:
            casts_ns = _CAST_BYTES_RATIO * moved / (_REACHED_BANDWIDTH * facts.spec.hbm_gb_per_s)
            casts = share_of_step(facts, casts_ns)
        expected = max(expected - casts, 0.0)
        if not self.worth_saying(facts, expected):
            why = "FP32 gradients overlap with computation, take little of the step, or cost no more than casting"
            return Passed(why)
        # FP16 overflows where gradients are summed; bf16 has the range of FP32.
        left, is_sharded = format_bytes(moved * self.left_ratio), divides(facts, "sharded data")
        fix = Fix(
            text=f"Transferred gradients fp32 → bf16: {format_bytes(moved)} → {left} a step. Watch the loss: sums "
            "lose digits.",
            code=_SHARDED if is_sharded else _REPLICATED,
            changes=() if is_sharded else (SettingChange("comm_hook", "fp32", "bf16"),),
        )
        return transfers_fired(
            facts,
            title=f"{format_bytes(moved)} of FP32 gradients travel in {each(facts)} of a {precision} run",
            why=f"Most arithmetic is in {precision}: half of these bytes can hold all digits of its gradients.",
            evidence=(
                evidence(facts, "FP32 gradients transferred per step", moved, "bytes", kinds(chosen), "measured"),
                evidence(facts, "Their transfer", sum(row.transfer_ns for row in chosen), "ns", kinds(chosen)),
                evidence(facts, "Casts needed instead", casts, "ratio", "memory bandwidth", "estimated"),
            ),
            sure="high",
            detail="bandwidth",
            saving=transfer_saving(facts, expected, bound),
            fix=fix,
            confirm="the type of the reductions must be BFloat16, and the loss must fall as before.",
        )
