"""Findings beside what the probes of the run measured: whether they agree."""

from collections.abc import Sequence

from profilerkit.analysis.facts import Facts
from profilerkit.model.change import revise
from profilerkit.model.finding import Finding, Outcome, Saving
from profilerkit.model.probe import Agreement, Probed
from profilerkit.model.probe_names import ProbeName
from profilerkit.rules.rule import SMALLEST_SAVING

_INPUT: tuple[ProbeName, ...] = ("input",)
_WORKERS: tuple[ProbeName, ...] = ("workers", "input")
_COMM: tuple[ProbeName, ...] = ("comm",)
_CALIBRATION = "measured in this run"
#: The probes that measure the bound of a rule's saving, the closest first. Of rules that are not here none does: a
#: probe leaves copies to the device, ends of epochs and exchanges other than of DDP's gradients as they are; what a
#: better exchange saves is a part of what none saves; and no rule's fix is bf16 alone (CP001's is TF32 first).
PROBES_OF: dict[str, tuple[ProbeName, ...]] = {
    **dict.fromkeys(("IN004", "IN005", "IN006", "IN007", "IN008", "IN013", "IN014"), _INPUT),
    **dict.fromkeys(("IN001", "IN002", "IN003"), _WORKERS),
    "CO001": _COMM,
}
#: A measured interval has to be this far from a prediction before it contradicts it, of the step (the accuracy that is
#: promised of predictions is some points).
_APART = 0.02
#: The steps beside the probe last this much of those that are judged, at least and at most: what others would save says
#: little of these (a choice).
_ALIKE = (0.75, 1.33)


def with_probes(facts: Facts, outcomes: Sequence[Outcome]) -> Sequence[Outcome]:
    """The outcomes, each finding with the probe that measured its fix, or the most that any fix of its kind can save.

    Where the two are clearly apart, the finding goes by what was measured: by its bound where less can be saved than
    was predicted; by the value itself where the probe made the very change that the fix proposes. A fix that saved
    nothing worth naming is not proposed.
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
    if saving is None or found.share is None or found.low is None or found.high is None:
        return revise(finding, probed=found)
    is_fix = _is_of(finding, found)
    agreement = _agreement(facts, saving, found, is_fix=is_fix)
    finding = revise(finding, probed=revise(found, agreement=agreement))
    if agreement != "below" and not (agreement == "above" and is_fix):
        return finding
    if found.share < SMALLEST_SAVING:
        return revise(finding, saving=None, fix=None, predicted=saving)
    return revise(finding, saving=_measured(found, is_fix=is_fix), predicted=saving)


def _closest(probes: Sequence[Probed], names: Sequence[ProbeName], finding: Finding) -> Probed | None:
    """The probe with a result that measures the fix itself, else its bound, else what comes close; else one without."""
    asked = [probe for name in names for probe in probes if probe.name == name]
    made = [probe for probe in asked if probe.share is not None]
    fixes = [probe for probe in made if _is_of(finding, probe)]
    bounds = [probe for probe in made if probe.name != "workers"]
    near = sorted(made, key=lambda probe: probe.share or 0.0, reverse=True)
    return next(iter([*fixes, *bounds, *near, *asked]), None)


def _is_of(finding: Finding, probe: Probed) -> bool:
    """Return whether the fix proposes just the number of workers that the probe tried."""
    if finding.fix is None or probe.name != "workers" or not probe.change:
        return False
    return any(change.text == probe.change for change in finding.fix.changes)


def _measured(probe: Probed, *, is_fix: bool) -> Saving:
    """Return what the fix saved; of a bound, that it saves no more."""
    low, share, high = (min(max(value or 0.0, 0.0), 1.0) for value in (probe.low, probe.share, probe.high))
    if is_fix:
        return Saving(low=low, expected=share, high=high, method="probe", calibration=_CALIBRATION)
    return Saving(low=0.0, expected=share, high=high, method="bound", calibration=_CALIBRATION)


def _agreement(facts: Facts, saving: Saving, probe: Probed, *, is_fix: bool) -> Agreement:
    assert probe.low is not None
    assert probe.high is not None
    if probe.name == "workers" and not is_fix:
        return "other"
    alike = probe.step_ns / facts.mean_step_ns if probe.step_ns and facts.mean_step_ns else 1.0
    if not _ALIKE[0] <= alike <= _ALIKE[1]:
        return "unlike"
    if probe.high + _APART < saving.expected:
        return "below"
    return "above" if probe.low - _APART > saving.most else "agrees"
