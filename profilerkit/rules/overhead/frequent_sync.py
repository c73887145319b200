"""OV002: the host waits for the device, and the device computes nothing meanwhile or after."""

from profilerkit.analysis.device.device_facts import SyncFacts
from profilerkit.rules.api import Facts, Fix, Passed, Result, Rule, each, fired, no_device, revise, saving
from profilerkit.rules.parts import WARN, awaited_share, synced_share
from profilerkit.units import format_count, format_ns, format_ratio

_DRAINED = "After each one the device has nothing to run until the host has issued work again."
_COPYING = "The device computes nothing while such a copy runs, and the host waits for it before it issues more work."
_FEWER_SYNCS = Fix(
    text="Read values back every 50 steps instead of in each; keep loss.detach() on the device.", code=WARN
)
#: Of waits that read nothing, by the end of the call that comes most often.
_FEWER_WAITS = {
    "DeviceSynchronize": "Call torch.cuda.synchronize() every 50 steps instead of in each.",
    "EventSynchronize": "Call event.synchronize() every 50 steps instead of in each; set cudnn.benchmark to False "
    "where shapes change.",
}
_FEWER_COPIES = Fix(
    text="Copy to the host every 50 steps instead of in each, and reduce on the device what is copied.", code=WARN
)


class FrequentSync(Rule, frozen=True):
    """Find more than {most_per_step} host syncs in a step, or fewer that cost {large_share} of it.

    Why it costs: The CPU waits for the GPU, then the GPU waits until the CPU has issued new kernels.

    Example:
        total = 0.0
        for batch in loader:
            total += train_step(batch).item()
    Use instead:
        total = torch.zeros((), device=device)
        for batch in loader:
            total += train_step(batch).detach()
        print(total.item())
    How it is measured: Blocking calls over 10 µs are counted, with the idle time after each and copies to the host that
        nothing overlaps. The saving is at most min(device idle, time blocked). Removing 21 syncs saved 16 % where 16 %
        were predicted.
    When it is wrong: The GPU works during most of a call, so its length is not its cost. In a launch-bound step
        removing syncs gains little. A copy whose call returns at once is not counted.
    Sources:
        https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html
        https://pytorch.org/docs/stable/notes/cuda.html
    """

    code = "OV002"
    summary = "Host syncs keep the GPU idle"

    most_per_step: float = 2.0
    large_share: float = 0.10  #: a single call that drains or copies for this much of the step matters as well

    def check(self, facts: Facts) -> Result:
        if facts.syncs is None or facts.device is None:
            return no_device(facts, "no device events: a CPU has no queue to drain")
        syncs = facts.syncs
        step = facts.mean_step_ns or 1.0
        lost = synced_share(facts)
        often = syncs.per_step > self.most_per_step
        if not often and lost < self.large_share:
            return Passed(f"{syncs.per_step:,.1f} blocking calls per step")
        copying = awaited_share(facts)
        bound = min(1.0 - facts.device.busy_ratio + copying, syncs.blocked_ns / step)
        expected = min(lost, bound)
        if not self.worth_saying(facts, expected):
            held = format_ratio(lost)
            return Passed(f"{syncs.per_step:,.1f} blocking calls per step leave the device idle for {held} of it")
        copies = copying > lost / 2
        calls = ", ".join(f"{count} × {name}" for name, count in syncs.culprits)
        idle = facts.share_evidence("Idle after them, share of the step", "sync.drain")
        blocked = facts.share_evidence("Host blocked in them, share of the step", "sync.drain")
        confirm = "The idle time after blocking calls must fall."
        if copies:
            confirm = "The time of copies to the host must fall."
        elif often:
            confirm = f"Blocking calls per step must fall to {format_count(self.most_per_step)} or fewer."
        return fired(
            facts,
            bound="overhead-bound",
            title=_title(facts, (copying if copies else lost) * step, often=often, copies=copies),
            why=_COPYING if copies else _DRAINED,
            evidence=(
                facts.evidence("Blocking calls per step", syncs.per_step, "count", calls),
                revise(idle, value=lost - copying, source="derived"),
                revise(blocked, value=min(syncs.blocked_ns / step, 1.0), source="measured", origin=calls, behind=()),
                *((facts.share_evidence("Copying to the host, share of the step", "sync.d2h"),) if copying else ()),
            ),
            at_most="medium",
            detail="sync",
            saving=revise(saving(expected, expected), bound=bound),
            fix=_FEWER_COPIES if copies else _fewer(syncs),
            confirm=confirm,
        )


def _fewer(syncs: SyncFacts) -> Fix:
    """Return the fix of what most of the calls do: reading values, or waiting alone."""
    most = syncs.culprits[0][0] if syncs.culprits and syncs.reads_per_step < syncs.per_step / 2 else ""
    return next((Fix(text=text) for end, text in _FEWER_WAITS.items() if most.endswith(end)), _FEWER_SYNCS)


def _title(facts: Facts, lost_ns: float, *, often: bool, copies: bool) -> str:
    if copies:
        return f"Copies to the host stop the device for {format_ns(lost_ns)} of {each(facts)}"
    if often and facts.syncs is not None:
        return f"Host syncs drain the queue {facts.syncs.per_step:,.0f} times in {each(facts)}"
    return f"A host sync drains the queue for {format_ns(lost_ns)} of {each(facts)}"
