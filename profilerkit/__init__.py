"""Find what bounds a PyTorch training run, what to change, and what that saves."""

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from profilerkit.api import analyze as analyze
    from profilerkit.api import diff as diff
    from profilerkit.api import load as load
    from profilerkit.api import reduce as reduce
    from profilerkit.capture.trace_handler import TraceHandler as TraceHandler
    from profilerkit.config import Settings as Settings
    from profilerkit.config import Suppression as Suppression
    from profilerkit.errors import ProfilerkitError as ProfilerkitError
    from profilerkit.experiment.trying import try_fixes as try_fixes
    from profilerkit.model.finding import Finding as Finding
    from profilerkit.model.finding import Fix as Fix
    from profilerkit.model.finding import Outcome as Outcome
    from profilerkit.model.finding import Saving as Saving
    from profilerkit.model.verdict import Verdict as Verdict
    from profilerkit.profiling import Profile as Profile
    from profilerkit.profiling import profile as profile
    from profilerkit.profiling import trace_handler as trace_handler
    from profilerkit.results import Diff as Diff
    from profilerkit.results import Report as Report
    from profilerkit.results import Trial as Trial
    from profilerkit.summaries.mapping import summarise as summarise

# Public names by where they live. They are imported on first use: `import profilerkit` must not load numpy.
_PUBLIC = {
    name: module
    for module, names in {
        "profilerkit.api": "analyze diff load reduce",
        "profilerkit.config": "Settings Suppression",
        "profilerkit.errors": "ProfilerkitError",
        "profilerkit.experiment.trying": "try_fixes",
        "profilerkit.model.finding": "Finding Fix Outcome Saving",
        "profilerkit.model.verdict": "Verdict",
        "profilerkit.capture.trace_handler": "TraceHandler",
        "profilerkit.profiling": "Profile profile trace_handler",
        "profilerkit.results": "Diff Report Trial",
        "profilerkit.summaries.mapping": "summarise",
    }.items()
    for name in names.split()
}

__all__ = [
    "Diff",
    "Finding",
    "Fix",
    "Outcome",
    "Profile",
    "ProfilerkitError",
    "Report",
    "Saving",
    "Settings",
    "Suppression",
    "TraceHandler",
    "Trial",
    "Verdict",
    "__version__",
    "analyze",
    "diff",
    "load",
    "profile",
    "reduce",
    "summarise",
    "trace_handler",
    "try_fixes",
]


def __getattr__(name: str) -> object:
    """Import a public name when it is first asked for."""
    if name not in _PUBLIC:
        raise AttributeError(f"module 'profilerkit' has no attribute {name!r}")
    return getattr(import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
