"""profilerkit: what bounds a PyTorch training run, what to change, and what it will gain."""

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from profilerkit.api import analyze as analyze
    from profilerkit.api import diff as diff
    from profilerkit.api import load as load
    from profilerkit.api import reduce as reduce
    from profilerkit.errors import ProfilerkitError as ProfilerkitError
    from profilerkit.results import Diff as Diff
    from profilerkit.results import Report as Report
    from profilerkit.results import profile as profile
    from profilerkit.summaries.one import summarise as summarise

# Public names and where they live. They are imported on first use: `import profilerkit` must not load numpy.
_PUBLIC = {
    "analyze": "profilerkit.api",
    "diff": "profilerkit.api",
    "load": "profilerkit.api",
    "reduce": "profilerkit.api",
    "summarise": "profilerkit.summaries.one",
    "profile": "profilerkit.results",
    "ProfilerkitError": "profilerkit.errors",
    "Diff": "profilerkit.results",
    "Report": "profilerkit.results",
}

__all__ = [
    "Diff",
    "ProfilerkitError",
    "Report",
    "__version__",
    "analyze",
    "diff",
    "load",
    "profile",
    "reduce",
    "summarise",
]


def __getattr__(name: str) -> object:
    """Import a public name when it is first asked for."""
    if name not in _PUBLIC:
        raise AttributeError(f"module 'profilerkit' has no attribute {name!r}")
    return getattr(import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
