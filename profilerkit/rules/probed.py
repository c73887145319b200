"""Findings beside what the probes of the run measured: whether they agree."""

import re
from collections.abc import Sequence

from profilerkit.analysis.facts import Facts
from profilerkit.model.change import revise
from profilerkit.model.finding import Finding, Outcome, Saving
from profilerkit.model.probe import Agreement, Probed
from profilerkit.model.probe_names import ProbeName

_INPUT: tuple[ProbeName, ...] = ("input",)
_WORKERS: tuple[ProbeName, ...] = ("workers", "input")
_COMM: tuple[ProbeName, ...] = ("comm",)
#: The probes that measure the bound of a rule's saving, the closest first. Of rules that are not here none does: a
#: probe leaves copies to the device, ends of epochs and exchanges other than of DDP's gradients as they are; what a
#: better exchange saves is a part of what none saves; and no rule's fix is bf16 alone (CP001's is TF32 first).
PROBES_OF: dict[str, tuple[ProbeName, ...]] = {
    **dict.fromkeys(("IN001", "IN004", "IN005", "IN006", "IN007", "IN008", "IN013"), _INPUT),
    **dict.fromkeys(("IN002", "IN003"), _WORKERS),
    "CO001": _COMM,
}
#: Intervals have to be this far apart before they contradict each other, of the step (the accuracy that is promised of
#: predictions is some points).
_APART = 0.02


def with_probes(facts: Facts, outcomes: Sequence[Outcome]) -> Sequence[Outcome]:
    """The outcomes, each finding with the probe that measured the most its fix can save.

    Where the two are clearly apart, what was measured is the finding's saving: less than was predicted, or another
    value where the probe made the very change that the fix proposes.
    """
    if not facts.probes:
        return outcomes
    return [
        revise(entry, findings=tuple(_beside(facts, entry.rule, finding) for finding in entry.findings))
        for entry in outcomes
    ]


def _beside(facts: Facts, rule: str, finding: Finding) -> Finding:
    found = _closest(facts.probes, PROBES_OF.get(rule, ()), finding)
    if found is None:
        return finding
    saving = finding.saving
    if saving is None or found.share is None:
        return revise(finding, probed=found)
    agreement = _agreement(saving, found)
    is_fix = _is_of(finding, found)
    if found.name == "workers" and not is_fix:
        agreement = "other"
    found = revise(found, agreement=agreement)
    if agreement == "below" or (agreement == "above" and is_fix):
        return revise(finding, probed=found, saving=_measured(found), predicted=saving)
    return revise(finding, probed=found)


def _closest(probes: Sequence[Probed], names: Sequence[ProbeName], finding: Finding) -> Probed | None:
    """The probe with a result that measures the fix itself, else its bound, else what comes close; else one without."""
    made = [probe for name in names for probe in probes if probe.name == name and probe.share is not None]
    bounds = [probe for probe in made if probe.name != "workers"]
    near = sorted(made, key=lambda probe: probe.share or 0.0, reverse=True)
    asked = [probe for name in names for probe in probes if probe.name == name]
    return next(iter([*(probe for probe in made if _is_of(finding, probe)), *bounds, *near, *asked]), None)


def _is_of(finding: Finding, probe: Probed) -> bool:
    """Whether the fix proposes just the values that the probe tried."""
    if finding.fix is None or not probe.change:
        return False
    return re.search(re.escape(probe.change) + r"(?!\w)", finding.fix.text.replace("`", "")) is not None


def _measured(probe: Probed) -> Saving:
    share, low, high = (max(value or 0.0, 0.0) for value in (probe.share, probe.low, probe.high))
    return Saving(low=low, expected=share, high=high, method="probe", calibration="measured in this run")


def _agreement(saving: Saving, probe: Probed) -> Agreement | None:
    if probe.low is None or probe.high is None:
        return None
    if probe.high + _APART < saving.low:
        return "below"
    return "above" if probe.low - _APART > saving.most else "agrees"
