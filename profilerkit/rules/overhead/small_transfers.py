"""OV003: many tiny copies cross the bus in every step."""

from profilerkit.analysis.device.device_facts import SmallCopyFacts
from profilerkit.rules.api import Evidence, Facts, Fix, Passed, Result, Rule, fired, no_device, saving, spent
from profilerkit.units import format_count, format_ratio

_CREATE = Fix(
    text="Create these values on the device, or send them together as one tensor per step.",
    code='torch.zeros(n, device="cuda")  # instead of torch.zeros(n).to("cuda")',
)
_READ = Fix(
    text="Keep these values on the device and read them together, every 50 steps instead of in each.",
    code='values = torch.stack(values).to("cpu", non_blocking=True)  # one copy instead of one per value',
)


class SmallTransfers(Rule, frozen=True):
    """Find more than {most_per_step} copies below 4 KiB per step between host and device.

    Why it costs: A copy of a few bytes takes as long to issue as one of a megabyte. A copy back stops the CPU.

    Example:
        weights = [torch.tensor(i / 10).to(device) for i in range(20)]
    Use instead:
        weights = torch.arange(20, device=device) / 10
    How it is measured: Copies without other device work are summed, with the idle time after those that the CPU waits
        for. That idle time is at most the time that the CPU was blocked.
    When it is wrong: In a launch-bound step the GPU would idle anyway. The idle time is in OV002 as well: count one.
    Sources: https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html
    """

    code = "OV003"
    summary = "Many tiny copies cross the bus in every step"

    most_per_step: float = 10.0

    def check(self, facts: Facts) -> Result:
        copies = facts.small_copies
        if copies is None:
            return no_device(facts, "no device events: nothing crosses a bus")
        if copies.per_step <= self.most_per_step:
            return Passed(f"{copies.per_step:,.1f} copies below 4 KiB per step")
        step = facts.mean_step_ns or 1.0
        bound = min((copies.exposed_ns + copies.drained_ns) / step, 1.0)
        blocked_ns = facts.syncs.blocked_ns if facts.syncs is not None else copies.drained_ns
        expected = min((copies.exposed_ns + min(copies.drained_ns, blocked_ns)) / step, bound)
        if not self.worth_saying(facts, expected):
            lost = format_ratio(expected)
            return Passed(f"{copies.per_step:,.1f} copies below 4 KiB per step cost the device {lost} of it")
        return fired(
            facts,
            bound="overhead-bound",
            title=f"{copies.per_step:,.0f} tiny copies cost {spent(facts, expected)}",
            why="A copy of a few bytes takes as long to issue as one of a megabyte. A copy back stops the CPU "
            "until the device has reached it.",
            evidence=_evidence(facts, copies, step),
            at_most="medium",
            detail="sync",
            saving=saving(expected, bound),
            fix=_READ if copies.to_host >= copies.to_device else _CREATE,
            confirm=f"Copies below 4 KiB per step must fall to {format_count(self.most_per_step)} or fewer.",
        )


def _evidence(facts: Facts, copies: SmallCopyFacts, step: float) -> tuple[Evidence, ...]:
    issued = ", ".join(f"{count} × {name}" for name, count in copies.operators)
    evidence = facts.evidence
    return (
        evidence("Copies below 4 KiB to the device, per step", copies.to_device, "count", issued or "Memcpy HtoD"),
        evidence("Copies below 4 KiB to the host, per step", copies.to_host, "count", issued or "Memcpy DtoH"),
        evidence("Device runs only such a copy, share of the step", copies.exposed_ns / step, "ratio", "its streams"),
        evidence("Device idle after one, share of the step", copies.drained_ns / step, "ratio", "launches and copies"),
    )
