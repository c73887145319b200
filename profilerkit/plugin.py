"""Name what rules, readers and renderers of other packages may import; everything else may change without notice."""

from profilerkit.capture.changes.making import Changes
from profilerkit.errors import UnreadableInputError
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
    fired,
)
from profilerkit.trace.columns import Category, Damage, DeviceProperties, TraceColumns, TraceMeta, Wanted, trace_columns

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
    "Passed",
    "Result",
    "Rule",
    "SettingChange",
    "TraceColumns",
    "TraceMeta",
    "UnreadableInputError",
    "Wanted",
    "fired",
    "trace_columns",
]
