"""RU006: another process uses the same GPU."""

from functools import partial

from profilerkit.rules.api import Facts, Fix, MissingData, NotApplicable, Passed, Result, Rule, fired
from profilerkit.units import format_bytes


class SharedDevice(Rule, frozen=True):
    """Find processes on the GPU that are neither ranks of the run nor their workers.

    Why it costs: Kernels of both take turns. Your step gets longer and varies from run to run.

    Example:
        $ python train.py
    Use instead:
        $ CUDA_VISIBLE_DEVICES=1 python train.py
    How it is measured: NVML lists the processes. No saving is given.
    When it is wrong: In a container, process ids are those of the host, so the list cannot be used.
    Sources:
        https://docs.nvidia.com/datacenter/tesla/mig-user-guide/index.html
        https://docs.nvidia.com/deploy/mps/introduction.html
    """

    code = "RU006"
    summary = "Another process uses the same GPU"

    def check(self, facts: Facts) -> Result:
        if facts.mode == "cpu":
            return NotApplicable("no device")
        strangers = facts.surroundings.strangers
        if strangers:
            return _listed(facts, strangers)
        if strangers is None:
            return MissingData(
                "another process on the device is not visible without the list of processes, which was not recorded",
                "profilerkit.profile(..., nvml=True); in a container with the host's process numbers (--pid=host)",
            )
        own = facts.surroundings.siblings
        return Passed(f"only the run itself is on the device{f', with {own} other processes of it' if own else ''}")


def _listed(facts: Facts, strangers: int) -> Result:
    held = facts.surroundings.strangers_bytes
    processes = "1 other process uses" if strangers == 1 else f"{strangers} other processes use"
    row = partial(facts.evidence, origin="NVML", n=None)
    count = row("Other processes on the device, most at once", strangers, "count", behind=("gpu.other_processes",))
    memory = row("Device memory of other processes", held, "bytes", behind=("gpu.other_processes_memory",))
    return fired(
        facts,
        bound=None,
        title=f"{processes} the same device{f' and {format_bytes(held)} of its memory' if held else ''}",
        why="Kernels of theirs take turns with the run's. NVML does not show whether they run any.",
        evidence=(count, memory),
        at_most="high",
        fix=Fix(text="Shared device → a device that nobody else uses, or a MIG slice of its own."),
        confirm="NVML must list no other process.",
    )
