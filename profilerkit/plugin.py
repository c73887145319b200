"""Name what rules, readers and renderers of other packages may import; everything else may change without notice."""

from profilerkit.capture.changes.making import Changes
from profilerkit.errors import UnreadableInputError
from profilerkit.formats.blocks import plain_bytes
from profilerkit.model.run import Trust
from profilerkit.model.step import Part, Rank, Steps, StepTimes
from profilerkit.plugins import project_rules
from profilerkit.rules.api import (
    Evidence,
    Facts,
    Fired,
    Fix,
    MissingData,
    NotApplicable,
    Passed,
    Result,
    Rule,
    SettingChange,
    each,
    fired,
    no_device,
    revise,
    saving,
)
from profilerkit.trace.columns import Category, Damage, DeviceProperties, TraceColumns, TraceMeta, Wanted, trace_columns
from profilerkit.units import format_bytes, format_count, format_ns, format_ratio

__all__ = [
    "Category",
    "Changes",
    "Damage",
    "DeviceProperties",
    "Evidence",
    "Facts",
    "Fired",
    "Fix",
    "MissingData",
    "NotApplicable",
    "Part",
    "Passed",
    "Rank",
    "Result",
    "Rule",
    "SettingChange",
    "StepTimes",
    "Steps",
    "TraceColumns",
    "TraceMeta",
    "Trust",
    "UnreadableInputError",
    "Wanted",
    "each",
    "fired",
    "format_bytes",
    "format_count",
    "format_ns",
    "format_ratio",
    "no_device",
    "plain_bytes",
    "project_rules",
    "revise",
    "saving",
    "trace_columns",
]
