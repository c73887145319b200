"""Findings beside what the probes of the run measured: whether they agree."""

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
    """The outcomes, each finding with the probe that measured the most its fix can save."""
    if not facts.probes:
        return outcomes
    return [
        revise(entry, findings=tuple(_beside(facts, entry.rule, finding) for finding in entry.findings))
        for entry in outcomes
    ]


def _beside(facts: Facts, rule: str, finding: Finding) -> Finding:
    found = _closest(facts.probes, PROBES_OF.get(rule, ()))
    if found is None:
        return finding
    agreement = _agreement(finding.saving, found) if finding.saving is not None else None
    if agreement != "agrees" and found.name == "workers":
        agreement = None  # the fix may be of other numbers than the probe's
    return revise(finding, probed=revise(found, agreement=agreement))


def _closest(probes: Sequence[Probed], names: Sequence[ProbeName]) -> Probed | None:
    """The probe with a result that comes first in ``names``, of several the one that saved most; else one without."""
    for name in names:
        made = [probe for probe in probes if probe.name == name and probe.share is not None]
        if made:
            return max(made, key=lambda probe: probe.share or 0.0)
    return next((probe for name in names for probe in probes if probe.name == name), None)


def _agreement(saving: Saving, probe: Probed) -> Agreement | None:
    if probe.low is None or probe.high is None:
        return None
    if probe.high + _APART < saving.low:
        return "below"
    return "above" if probe.low - _APART > saving.most else "agrees"
