"""What ``profilerkit run`` was asked to record, carried to the training process by one environment variable."""

import json
import os
from collections.abc import MutableMapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from profilerkit.capture.environment import script_name
from profilerkit.capture.settings import Settings, probes_of

#: Set from ``profilerkit run`` until the first process below it records; that process unsets it for its children.
VARIABLE = "PROFILERKIT_RUN"


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """Options of ``profilerkit run``; ``None`` leaves the choice to the script.

    Attributes:
        pid: the process that became the command.
        start_directory: what stands in ``PYTHONPATH`` to be run at the start of every Python.
        directory: where the command was started; the script may have gone elsewhere when it records.
        began_unix_ns: when it was started.
        path: absolute run directory.
        quiet: say nothing on standard error.
    """

    pid: int
    start_directory: str
    directory: str
    began_unix_ns: int = 0
    path: str | None = None
    trace_steps: int | None = None
    warmup_steps: int | None = None
    trace_every: int | None = None
    with_stack: bool | None = None
    deep: bool | None = None
    nvml: bool | None = None
    host: bool | None = None
    analyze: bool | None = None
    summaries: bool | None = None
    probes: tuple[str, ...] | None = None
    quiet: bool = False

    def put(self, variables: MutableMapping[str, str]) -> None:
        """Hand the order to every Python that is started with ``variables``."""
        variables[VARIABLE] = json.dumps(asdict(self))
        others = _python_path_without(self.start_directory, variables)
        variables["PYTHONPATH"] = os.pathsep.join([self.start_directory, *others])

    def settings(self, script: Settings) -> Settings:
        """What the script asked for, less what the command line says otherwise."""
        asked = {name: getattr(self, name) for name in _CHOICES if getattr(self, name) is not None}
        if self.probes is not None:
            asked["probes"] = probes_of(self.probes)  # JSON knows lists only
        named = self.path or script.path
        path = Path(named) if named else self.run_directory(script_name())
        return replace(script, path=path, quiet=self.quiet, **asked)

    def run_directory(self, script: str) -> Path:
        """Where a program of that name records, if it does not say otherwise; or beside that, with a number."""
        return Path(self.path or Path(self.directory, "runs", script))


_CHOICES = (
    *("trace_steps", "warmup_steps", "trace_every", "with_stack"),
    *("deep", "nvml", "host", "analyze", "summaries", "probes"),
)


def read_order(variables: MutableMapping[str, str]) -> Order | None:
    """The order that no process has taken yet; ``None`` also for what is no order of this version."""
    try:
        return Order(**json.loads(variables.get(VARIABLE, "null")))
    except (TypeError, ValueError):
        return None


def take_order(variables: MutableMapping[str, str]) -> Order | None:
    """The order, if this process is the first to record; its children find neither it nor our start directory."""
    order = read_order(variables)
    if order is None:
        return None
    variables.pop(VARIABLE, None)
    others = _python_path_without(order.start_directory, variables)
    if others:
        variables["PYTHONPATH"] = os.pathsep.join(others)
    else:
        variables.pop("PYTHONPATH", None)
    return order


def _python_path_without(directory: str, variables: MutableMapping[str, str]) -> list[str]:
    given = variables.get("PYTHONPATH", "")
    return [entry for entry in given.split(os.pathsep) if entry != directory] if given else []
