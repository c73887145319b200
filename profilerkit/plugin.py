"""Name what rules, readers and renderers of other packages may import; everything else may change without notice."""

from profilerkit.errors import UnreadableInputError
from profilerkit.rules.api import Evidence, Facts, Fired, Fix, MissingData, NotApplicable, Passed, Result, Rule, fired
from profilerkit.trace.columns import Category, Damage, DeviceProperties, TraceColumns, TraceMeta, Wanted, trace_columns

__all__ = [
    "Category",
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
    "TraceColumns",
    "TraceMeta",
    "UnreadableInputError",
    "Wanted",
    "fired",
    "trace_columns",
]
