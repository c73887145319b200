"""What the user asked capture to do, checked before anything starts."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path

from profilerkit.errors import UsageError
from profilerkit.model.probe_names import PROBE_WORDS, ProbeName

#: The most that recording every step may cost, of the step's time: what a user does not feel.
OVERHEAD_BUDGET = 0.01
BUDGET_VARIABLE = "PROFILERKIT_OVERHEAD_BUDGET"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Arguments of ``profile``, and ``quiet``: say nothing. ``path`` is ``None`` for ``runs/<script name>``."""

    path: Path | None
    trace_steps: int
    warmup_steps: int
    light: bool
    deep: bool
    nvml: bool
    host: bool
    analyze: bool
    enabled: bool
    trace_every: int | None = None
    max_trace_bytes: int = 1 << 30
    with_stack: bool = False
    overhead_budget: float = OVERHEAD_BUDGET
    summaries: bool = False
    probes: tuple[ProbeName, ...] = ()
    quiet: bool = False

    def __post_init__(self) -> None:
        """Refuse what cannot be carried out.

        Raises:
            UsageError: a number of steps is not a whole number in range, or the budget is no positive number.
        """
        for name, least in (("trace_steps", 1), ("warmup_steps", 0), ("trace_every", 1), ("max_trace_bytes", 0)):
            value = getattr(self, name)
            if name == "trace_every" and value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise UsageError(
                    f"{name} is {value!r}",
                    cause=f"it must be a whole number of at least {least}",
                    hint="pass deep=False to record without a trace",
                )
        if not isinstance(self.overhead_budget, (int, float)) or not self.overhead_budget > 0:
            raise UsageError(
                f"overhead_budget is {self.overhead_budget!r}",
                cause="it must be a positive share of the step's time",
                hint="the default is 0.01; 1.0 never turns anything off",
            )

    def as_text(self) -> dict[str, str]:
        """Every setting but the path, for the manifest."""
        values = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "path"}
        return {
            name: ", ".join(value) or "none" if isinstance(value, tuple) else str(value)
            for name, value in values.items()
        }


def path_of(path: str | os.PathLike[str] | None) -> Path | None:
    """``path`` as a ``Path``.

    Raises:
        UsageError: it is empty, or not a path.
    """
    if path is None:
        return None
    if not isinstance(path, (str, os.PathLike)) or not os.fspath(path):
        raise UsageError(f"not a directory name: {path!r}", hint='pass a path such as "runs/resnet50"')
    return Path(path)


def probes_of(names: Iterable[str]) -> tuple[ProbeName, ...]:
    """``names`` as probes, each once.

    Raises:
        UsageError: there is no such probe.
    """
    wanted = (names,) if isinstance(names, str) else tuple(dict.fromkeys(names))
    unknown = [name for name in wanted if name not in PROBE_WORDS]
    if unknown:
        raise UsageError(f"no such probe: {unknown[0]!r}", hint=f"the probes are {', '.join(PROBE_WORDS)}")
    return tuple(name for name in PROBE_WORDS if name in wanted)


def budget_of(given: float | None, environment: Mapping[str, str]) -> float:
    """The share of a step that capture may cost: as ``given``, else from the environment, else the default.

    Raises:
        UsageError: the variable holds no number.
    """
    text = environment.get(BUDGET_VARIABLE)
    if given is not None or not text:
        return OVERHEAD_BUDGET if given is None else given
    try:
        return float(text)
    except ValueError:
        raise UsageError(
            f"{BUDGET_VARIABLE} is {text!r}", cause="it must be a share of the step's time", hint="for example 0.01"
        ) from None
