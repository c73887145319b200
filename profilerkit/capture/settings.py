"""What the user asked capture to do; what is wrong is refused by the command line, and replaced in a training."""

import json
import os
import stat
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypeVar, TypeVarTuple

from profilerkit.capture.guard import announce
from profilerkit.errors import UsageError

_R = TypeVar("_R")
_Ts = TypeVarTuple("_Ts")

#: The most that recording every step may cost, of the step's time: what a user does not feel.
OVERHEAD_BUDGET = 0.01
BUDGET_VARIABLE = "PROFILERKIT_OVERHEAD_BUDGET"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Arguments of ``profile``, and ``quiet``: say nothing. ``path`` is ``None`` for ``runs/<script name>``.

    ``command`` are the words that ``profilerkit run`` was given, without secrets.
    """

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
    quiet: bool = False
    command: tuple[str, ...] = ()

    def as_text(self) -> dict[str, str]:
        """Every setting but path and command, for the manifest."""
        return {one.name: str(getattr(self, one.name)) for one in fields(self) if one.name not in ("path", "command")}


class Faults:
    """Collect what is wrong with the arguments of a recording, which uses defaults instead: a training goes on."""

    def __init__(self) -> None:
        self._said: list[str] = []

    def spare(self, default: _R, read: Callable[[*_Ts], _R], *given: *_Ts) -> _R:
        """Return what ``read`` makes of an argument, or the default where it raises ``UsageError``."""
        try:
            return read(*given)
        except UsageError as error:
            used = "the default" if default is None else default
            self._said.append(f"{error.in_one_line}. {used} is used instead")
            return default

    def announce(self, what: str) -> None:
        """Warn once, of everything."""
        if self._said:
            announce(f"{what}: {'. '.join(self._said)}")


def path_of(path: str | os.PathLike[str] | None) -> Path | None:
    """Return ``path`` as a ``Path``. Raises ``UsageError`` for none, an empty one, a file, or an impossible name."""
    if path is None:
        return None
    wanted, cause = None, "it is not a path"
    if isinstance(path, (str, os.PathLike)) and os.fspath(path):
        try:
            wanted, cause = Path(path), "it is a file"
            is_usable = stat.S_ISDIR(wanted.stat().st_mode)
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            is_usable = True  # where it cannot be written after all, the start finds another place
        except (OSError, ValueError, TypeError) as error:
            is_usable, cause = False, getattr(error, "strerror", None) or str(error)
    if wanted is None or not is_usable:
        raise UsageError(f"path is {path!r:.60}", cause=cause, hint='pass a directory such as "runs/resnet50"')
    return wanted


def whole(name: str, value: int, least: int) -> int:
    """Return a number of steps or bytes. Raises ``UsageError`` where it is not a whole number in range."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise UsageError(
            f"{name} is {value!r:.60}",
            cause=f"it must be a whole number of at least {least}",
            hint="pass deep=False to record without a trace" if name == "trace_steps" else "",
        )
    return value


def budget_of(given: float | None, environment: Mapping[str, str]) -> float:
    """The share of a step that capture may cost: as ``given``, else from the environment, else the default.

    Raises ``UsageError`` where it is no number above 0, up to 1.
    """
    name, value = "overhead_budget", given
    if value is None:
        name, text = BUDGET_VARIABLE, environment.get(BUDGET_VARIABLE) or str(OVERHEAD_BUDGET)
        try:
            value = float(text)
        except ValueError:
            value = text  # type: ignore[assignment]  # refused below
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= 1:
        raise UsageError(
            f"{name} is {value!r:.60}",
            cause="it must be a share of the step's time, above 0 and up to 1",
            hint=f"for example {OVERHEAD_BUDGET}; 1.0 never turns anything off",
        )
    return value


#: What stands in ``PYTHONPATH`` of a command that is recorded.
START_DIRECTORY = str(Path(__file__).absolute().parents[1] / "cli" / "start")
#: Set from ``profilerkit run`` until the first process below it records; that process unsets it for its children.
VARIABLE = "PROFILERKIT_RUN"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """Options of ``profilerkit run``: ``choices`` are ``Settings`` that go before those of the script."""

    pid: int  #: the process that became the command
    start_directory: str  #: what stands in ``PYTHONPATH`` to be run at the start of every Python
    directory: str  #: where the command was started; the script may have gone elsewhere when it records
    began_unix_ns: int = 0
    path: str | None = None  #: absolute run directory
    choices: dict[str, Any] = field(default_factory=dict)
    quiet: bool = False
    command: Sequence[str] = ()
    #: What ``profilerkit try`` changes in the program, and when that ends; see ``trial.Order``.
    trial: dict[str, Any] | None = None

    def put(self, variables: MutableMapping[str, str]) -> None:
        """Hand the order to every Python that is started with ``variables``."""
        variables[VARIABLE] = json.dumps(asdict(self))
        others = _python_path_without(self.start_directory, variables)
        variables["PYTHONPATH"] = os.pathsep.join([self.start_directory, *others])

    def settings(self, script: Settings) -> Settings:
        """What the script asked for, less what the command line says otherwise."""
        known = {one.name for one in fields(Settings)}  # another version may offer more
        asked = {name: value for name, value in self.choices.items() if name in known}
        from profilerkit.capture.environment import script_name

        named = self.path or script.path
        path = Path(named) if named else self.run_directory(script_name())
        return replace(script, path=path, quiet=self.quiet, command=tuple(self.command), **asked)

    def run_directory(self, script: str) -> Path:
        """Where a program of that name records, if it does not say otherwise; or beside that, with a number."""
        return Path(self.path or Path(self.directory, "runs", script))


def read_options(variables: MutableMapping[str, str]) -> RunOptions | None:
    """The order that no process has taken yet; ``None`` also for what is no order of this version."""
    try:
        return RunOptions(**json.loads(variables.get(VARIABLE, "null")))
    except (TypeError, ValueError):
        return None


def take_options(variables: MutableMapping[str, str]) -> RunOptions | None:
    """The order, if this process is the first to record; its children find neither it nor our start directory."""
    order = read_options(variables)
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
