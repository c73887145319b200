"""What a sample's JSON holds, and what it says of how it came about: simulated, by which command, beside what."""

import msgspec

from gallery.samples import Sample
from profilerkit.model import revise
from profilerkit.model.diff import Diff
from profilerkit.model.report import Report
from profilerkit.report import json as report_json
from profilerkit.rules.run.contended_host import ContendedHost
from profilerkit.units import format_ratio

SIMULATED = "These are the numbers of a simulated run: no device ran it."
#: Of the time of a comparison's side: more than this and the numbers are as much the others' as the run's.
_MOST_QUEUED = 0.1
_PRESSURE = "host.cpu_pressure"


def load(text: bytes) -> Report | Diff:
    """The record in this JSON. A comparison's verdict is a word, a report's a record."""
    if isinstance(msgspec.json.decode(text)["verdict"], str):
        return msgspec.json.decode(text, type=Diff)
    return report_json.load(text)


def verdict_of(found: Report | Diff) -> str:
    """A report's bound and sub-cause, or a comparison's judgement: ``input-bound (fetch)``, ``faster``."""
    if isinstance(found, Diff):
        return found.verdict
    verdict = found.verdict
    return f"{verdict.bound} ({verdict.detail})" if verdict.detail else verdict.bound


def labelled(sample: Sample, found: Report | Diff) -> Report | Diff:
    """The record with the command that makes it again, and the mark of a simulated run; labelled twice is as once."""
    if isinstance(found, Diff):
        return found
    run, trust = found.run, found.trust
    if run.command is not None:
        run = revise(run, command=f"scripts/make_reports --record {sample.name}")
    if sample.is_simulated:
        run = revise(run, name=f"{sample.name}, simulated")
        trust = revise(trust, notes=(SIMULATED, *(note for note in trust.notes if note != SIMULATED)))
    return revise(found, run=run, trust=trust)


def contention(found: Report | Diff) -> str:
    """A sentence on what other programs took of the processors while this was recorded; empty for little or nothing.

    As the rule about it says; a run too short for that rule is judged by the pressure alone, at the rule's threshold.
    """
    if isinstance(found, Diff):
        queued = [side.queued_ratio for side in (found.before, found.after)]
        if max(ratio or 0.0 for ratio in queued) <= _MOST_QUEUED:
            return ""
        before, after = ("not measured" if ratio is None else f"{format_ratio(ratio)} of the time" for ratio in queued)
        return f"Other programs had the training thread's processor: {before} before, {after} after."
    outcome = next((outcome for outcome in found.outcomes if outcome.rule == ContendedHost.code), None)
    if outcome is not None and outcome.status == "fired":
        return f"{outcome.findings[0].title}."
    if outcome is None or outcome.status != "missing_data":
        return ""
    pressure = max((series.mean for series in found.run.samples if series.name == _PRESSURE), default=0.0)
    is_told = pressure > ContendedHost().pressure_ratio
    return f"Some task waits for a processor: {format_ratio(pressure)} of the time." if is_told else ""
