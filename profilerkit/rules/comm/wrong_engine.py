"""CO009: the engine or the back-end of the parallel training is not the one for devices."""

from profilerkit.analysis.communication.whatif import share_of_step
from profilerkit.rules.api import Facts, Fix, MissingData, NotApplicable, Passed, Result, Rule, fired, saving, spent
from profilerkit.rules.comm.transfers import evidence
from profilerkit.units import format_ratio

#: What each engine does, and what helps.
_ENGINES = {
    "DataParallel": (
        "One process copies the model to all devices and gathers their results in each step.",
        "DataParallel → DistributedDataParallel, one process per device: no copies of the model, no gathering.",
        "torchrun --nproc-per-node=gpu train.py  # with DistributedDataParallel(model)",
    ),
    "gloo": (
        "Each gradient goes to the host, through gloo, and back, while the device waits.",
        "Back-end gloo → nccl: gradients go from device to device and not through the host.",
        'torch.distributed.init_process_group("nccl")',
    ),
}


class WrongEngine(Rule, frozen=True):
    """Find DataParallel, or gloo as the backend for tensors on devices.

    Why it costs: DataParallel runs all devices from one process and copies the model in each step. gloo moves tensors
        through host memory.

    Example:
        torch.distributed.init_process_group("gloo")
        parallel = nn.DataParallel(model)
    Use instead:
        torch.distributed.init_process_group("nccl")
        parallel = nn.parallel.DistributedDataParallel(model)
    How it is measured: The forward pass of DataParallel, or gloo transfers without a collective on the device, count.
        Transfer time without computation is summed. The saving is {saved_ratio} of it, a guess: the right engine
        communicates too.
    When it is wrong: gloo next to NCCL is usual for barriers and Python objects, and is not reported.
    Sources: https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html
    """

    code = "CO009"
    summary = "The parallel engine is slow for this device"

    saved_ratio: float = 0.70

    def check(self, facts: Facts) -> Result:
        if not facts.trace_read:
            return MissingData("the parallel engine is only seen in a trace", "profilerkit.profile(..., deep=True)")
        if facts.mode != "gpu" or facts.collective_work is None:
            return NotApplicable("no device computed")
        engine = facts.collective_work.engine
        if engine is None:
            return Passed("neither DataParallel nor gloo transfers tensors of a device")
        bound = share_of_step(facts, engine.exposed_ns)
        expected = self.saved_ratio * bound
        if not self.worth_saying(facts, expected):
            return Passed(f"{engine.name} exposes {format_ratio(bound)} of the step")
        why, fix, code = _ENGINES[engine.name]
        return fired(
            facts,
            bound="comm-bound",
            title=f"{engine.name} keeps the device from computing for {spent(facts, bound)}",
            why=why,
            evidence=(
                evidence(facts, "Transfers beside which nothing computes", engine.exposed_ns, "ns", engine.name),
            ),
            at_most="high",
            detail="engine",
            saving=saving(expected, bound),
            fix=Fix(text=fix, code=code),
            confirm=f"Record again: {engine.name} must be gone from the trace, and the step must be shorter.",
        )
