"""The machine that measured, for the benchmarks' documents and pages: nothing that names it."""

import os
import platform
from typing import Any


def machine() -> dict[str, Any]:
    """The machine as a record."""
    return {
        "cores": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": platform.system(),
        "architecture": platform.machine(),
        "python": platform.python_version(),
    }


def words(of: dict[str, Any], more: str = "") -> str:
    """The machine of a record in words."""
    gib = round(of["memory_bytes"] / 2**30)
    return (
        f"{of['cores']} cores ({of['architecture']}), {gib} GiB of memory, {of['system']}, Python {of['python']}{more}"
    )


def short() -> str:
    """This machine in a few words."""
    return f"{os.cpu_count()} cores, {platform.system()} on {platform.machine()}, Python {platform.python_version()}"
