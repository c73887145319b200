"""Offer everything that a rule is written with, from one place."""

from profilerkit.analysis.facts import Facts
from profilerkit.analysis.parts import WAITS
from profilerkit.analysis.whatif import at_most, saving
from profilerkit.model.change import revise
from profilerkit.model.finding import STEP_LENGTHS, Bound, Confidence, Evidence, Finding, Fix, Saving, Source
from profilerkit.rules.rule import (
    SMALLEST_SAVING,
    STEPS_FOR_HIGH,
    Fired,
    MissingData,
    NotApplicable,
    Passed,
    Result,
    Rule,
    each,
    finding_for,
    fired,
    no_device,
    part_words,
    record_longer,
    sampled_evidence,
    spent,
    unsure,
    used_steps,
)

__all__ = [
    "SMALLEST_SAVING",
    "STEPS_FOR_HIGH",
    "STEP_LENGTHS",
    "WAITS",
    "Bound",
    "Confidence",
    "Evidence",
    "Facts",
    "Finding",
    "Fired",
    "Fix",
    "MissingData",
    "NotApplicable",
    "Passed",
    "Result",
    "Rule",
    "Saving",
    "Source",
    "at_most",
    "each",
    "finding_for",
    "fired",
    "no_device",
    "part_words",
    "record_longer",
    "revise",
    "sampled_evidence",
    "saving",
    "spent",
    "unsure",
    "used_steps",
]
