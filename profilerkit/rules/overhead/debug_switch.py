"""OV009: a switch made for debugging is on, and slows the training."""

from typing import NamedTuple

from profilerkit.model.finding import Evidence, Finding, Fix, Saving, SettingChange
from profilerkit.rules.api import WAITS, Facts, Fired, MissingData, Passed, Result, Rule, at_most, finding_for, saving


class _Switch(NamedTuple):
    """A switch: how it begins in the record, what it does, how to put it off, and the value of a variable then."""

    name: str
    does: str
    off: str
    value_off: str = ""


#: What checks each gradient for NaN, beside every node of the backward pass, while it is on.
ANOMALY = "torch.autograd.set_detect_anomaly"
_BLOCKING = "CUDA_LAUNCH_BLOCKING"
_SWITCHES = (
    _Switch(
        ANOMALY,
        "It records a stack for each operator and looks for NaN in each gradient.",
        "torch.autograd.set_detect_anomaly(False)",
    ),
    _Switch(_BLOCKING, "Each launch waits for its kernel, so that host and device never overlap.", "unset it", "0"),
    _Switch(
        "TORCH_DISTRIBUTED_DEBUG", "Each collective is checked against all ranks before it runs.", "unset it", "OFF"
    ),
    _Switch("TORCH_SHOW_CPP_STACKTRACES", "Errors and warnings gather the stacks of C++ as well.", "unset it", "0"),
    _Switch(
        "torch.use_deterministic_algorithms",
        "Slower algorithms replace those whose sums vary.",
        "leave it out, unless results must repeat",
    ),
)


class DebugSwitch(Rule, frozen=True):
    """Find anomaly detection, blocking launches and other debugging switches that were on.

    Why it costs: Anomaly detection checks every gradient. Blocking launches stop the CPU at each kernel.

    Example:
        torch.autograd.set_detect_anomaly(True)
    Use instead:
        torch.autograd.set_detect_anomaly(False)
    How it is measured: The recording holds each switch. Anomaly detection is expected to cost {anomaly_ratio} of the
        step without its input wait, {anomaly_most} at most. Blocking launches cost at most the CPU's own work. Others
        have no number.
    When it is wrong: Deterministic algorithms may be wanted.
    Sources:
        https://pytorch.org/docs/stable/_modules/torch/autograd/anomaly_mode
        https://pytorch.org/docs/stable/generated/torch.use_deterministic_algorithms.html
    """

    code = "OV009"
    summary = "A switch made for debugging is on"

    #: Of two small programs without it a step took 65 and 71 % less (stopwatch, on a CPU); larger kernels lose less.
    anomaly_ratio: float = 0.5
    anomaly_most: float = 0.75

    def check(self, facts: Facts) -> Result:
        on = facts.host.switches
        if on is None:
            return MissingData("which switches were on was not recorded", "run the loop under profilerkit.profile(...)")
        switches = [switch for switch in _SWITCHES if facts.on_device or switch.name != _BLOCKING]
        found = [(switch, said) for switch in switches for said in on if said.startswith(switch.name)]
        if not found:
            return Passed("no switch made for debugging was on")
        return Fired(tuple(self._finding(facts, switch, said) for switch, said in found))

    def _finding(self, facts: Facts, switch: _Switch, said: str) -> Finding:
        value = self._saving(facts, switch.name)
        return finding_for(
            facts,
            bound="overhead-bound" if value is not None else None,
            detail="debug",
            title=f"{said} is on",
            why=switch.does,
            evidence=(Evidence(said, 1, "count", "measured", "torch, in the run"),),
            at_most="medium",
            saving=value,
            fix=Fix(text=f"Switch it off: {switch.off}.", changes=_changes(switch, said)),
            confirm="Train again without it: the step must get shorter.",
        )

    def _saving(self, facts: Facts, name: str) -> Saving | None:
        if facts.mean_step_ns is None:
            return None
        if name == ANOMALY:
            own = 1.0 - facts.share(*WAITS)
            value = saving(self.anomaly_ratio * own, self.anomaly_most * own)
        else:
            host = facts.share("over.", "sync.", "idle.unknown") if facts.on_device and name == _BLOCKING else 0.0
            value = at_most(host)
        return value if self.worth_saying(facts, value.expected) else None


def _changes(switch: _Switch, said: str) -> tuple[SettingChange, ...]:
    """Return the change of a switch that can be made at a start; none of one that decides about the results."""
    if switch.name == ANOMALY:
        return (SettingChange("anomaly", True, False),)
    name, _, value = said.partition("=")
    return (SettingChange(f"env:{name}", value, switch.value_off),) if switch.value_off else ()
