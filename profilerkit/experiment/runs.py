"""Run the user's command once, with changes or without, for a few steps, and read what it recorded."""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import psutil

from profilerkit import api
from profilerkit.capture.guard import tried
from profilerkit.capture.profiler import profile
from profilerkit.capture.settings import START_DIRECTORY, RunOptions
from profilerkit.compare.steps import Timed, timed_steps
from profilerkit.errors import ProfilerkitError
from profilerkit.experiment.plan import VARIABLE
from profilerkit.model import revise
from profilerkit.model.finding import CodeLine, SettingChange
from profilerkit.model.report import Report
from profilerkit.rundir.files import read_document

#: Keeps what trackers of experiments store out of the user's own records, unless the user set them.
_APART = {"WANDB_MODE": "offline", "WANDB_DIR": "{}", "MLFLOW_TRACKING_URI": "file:{}/mlruns"}
#: A program may load data for minutes before its first step; after its last one it has this long to end by itself
#: (choices).
_MOST_START_S, _MOST_END_S = 600.0, 60.0
#: How a program is asked to end, and how long each is waited for, s: torchrun gives its ranks 30 s (choices).
_ENDS = ((signal.SIGINT, 10.0), (signal.SIGTERM, 35.0), (signal.SIGKILL, 5.0))
_LAST_BYTES = 4096


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank of a run with changes leaves behind; see ``capture.trial``."""

    #: Setting to the lines of the program where what it changed was made: file, line, function, and the package that
    #: the line calls for it.
    applied: dict[str, list[tuple[str, int, str, str]]] = {}
    refused: dict[str, str] = {}  #: setting to the reason why it changed nothing
    losses: list[float | None] = []  #: in their order
    ended: str = ""  #: ``steps`` or ``time`` where its end was asked for, ``program`` where it ended by itself
    steps: int = 0


class Ran(msgspec.Struct, frozen=True, kw_only=True):
    """One run, begun so long after the first. ``problem`` says why it cannot be used; empty where it can."""

    place: Path
    report: Report | None = None
    timed: Timed | None = None
    ended: Ended = Ended()
    began_s: float = 0.0
    seconds: float = 0.0
    problem: str = ""

    @property
    def waited_ratio(self) -> float:
        """Share of the steps in which the training thread waited for a processor that others had; 0 if not known."""
        return self.timed.queued_ratio or 0.0 if self.timed else 0.0

    @property
    def lines(self) -> tuple[CodeLine, ...]:
        """Lines of the program where what was changed was made; files as seen from the working directory."""
        found = (
            CodeLine(min(file, os.path.relpath(file), key=len), line, function)
            for lines in self.ended.applied.values()
            for file, line, function, _ in lines
        )
        return tuple(dict.fromkeys(found))

    @property
    def packages(self) -> dict[str, str]:
        """Return setting to the package whose call made what was changed."""
        return {name: lines[0][3] for name, lines in self.ended.applied.items() if lines}


class Runner(msgspec.Struct, kw_only=True):
    """Start the command again and again."""

    command: Sequence[str]  #: in full, as a process is started
    directory: Path  #: of the trial; every run has one of its own in it
    steps: int  #: after so many a run ends
    seconds: float  #: from its first step on, after so many a run ends
    start_directory: str = START_DIRECTORY  #: what lets a Python below the command record
    longest_s: float = _MOST_START_S  #: no run takes longer from start to end

    def run(self, name: str, changes: Sequence[SettingChange] = (), *, deep: bool = False) -> Ran:
        """Run it once and read what it recorded; ``deep`` also traces a window of steps."""
        place, out = self.directory / name, self.directory / "ends" / name
        out.mkdir(parents=True)
        began_s = time.monotonic()
        problem = self._start(place, out, changes, deep=deep)
        seconds = time.monotonic() - began_s
        said = _last_line(out / "output.txt") if problem else ""
        problem = f"{problem}: {said}" if said else problem
        ends = [end for file in sorted(out.glob("rank_*.json")) if (end := tried(read_document, file, Ended)[0])]
        if not (out / "rank_00000.json").exists() or not ends:
            return Ran(place=place, seconds=seconds, problem=problem or "it ended before it trained")
        # What only some of the ranks do can be changed on those only.
        applied = {name: lines for end in reversed(ends) for name, lines in end.applied.items()}
        return _judged(place, revise(ends[0], applied=applied), changes, seconds, problem)

    def _start(self, place: Path, out: Path, changes: Sequence[SettingChange], *, deep: bool) -> str:
        """Run the command to its end; why it ended badly, empty where it did not."""
        with (out / "output.txt").open("wb") as output:
            process = subprocess.Popen(  # noqa: S603  the user's own command, no shell
                self.command,
                env=self._variables(place, out, changes, deep=deep),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            longest_s = self.longest_s + self.seconds + _MOST_END_S
            try:
                code = process.wait(longest_s)
            except subprocess.TimeoutExpired:
                return f"it did not end within {longest_s:.0f} s"
            finally:
                if process.poll() is None:
                    _stop(process)
                _kill(process, signal.SIGKILL)  # what it left behind would run beside the next one
        return f"exit code {code}" if code else ""

    def _variables(self, place: Path, out: Path, changes: Sequence[SettingChange], *, deep: bool) -> dict[str, str]:
        apart = {name: value.format(out) for name, value in _APART.items()}
        own = {c.setting.removeprefix(VARIABLE): str(c.proposed) for c in changes if c.setting.startswith(VARIABLE)}
        variables = {"PYTHONHASHSEED": "0", **apart, **os.environ, **own}
        RunOptions(
            pid=-1,  # nobody says what was recorded
            start_directory=self.start_directory,
            directory=str(Path.cwd()),
            began_unix_ns=time.time_ns(),
            path=str(place),
            choices={"analyze": False, "deep": deep},
            quiet=True,
            trial={"changes": _made(changes), "steps": self.steps, "seconds": self.seconds, "seed": 0, "out": str(out)},
        ).put(variables)
        return variables


def _stop(process: "subprocess.Popen[bytes]") -> None:
    """Ask all processes of the run to end, and wait for the first of them; another Ctrl-C does not cut this short.

    Ranks that torchrun starts have sessions of their own, and outlive it where it is killed.
    """
    is_main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGINT, signal.SIG_IGN) if is_main else None
    below: list[psutil.Process] = []
    with suppress(psutil.Error):
        below = psutil.Process(process.pid).children(recursive=True)
    try:
        for number, seconds in _ENDS:
            _kill(process, number)
            with suppress(subprocess.TimeoutExpired):
                process.wait(seconds)
                break
    finally:
        for child in below:
            with suppress(psutil.Error):
                child.kill()
        if is_main:
            signal.signal(signal.SIGINT, before)


def _kill(process: "subprocess.Popen[bytes]", number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def _last_line(output: Path) -> str:
    """The last line that is not empty of what a program printed."""
    try:
        with output.open("rb") as file:
            file.seek(max(output.stat().st_size - _LAST_BYTES, 0))
            lines = file.read().decode("utf-8", "replace").strip().splitlines()
    except OSError:
        return ""
    return lines[-1].strip()[:200] if lines else ""


def _made(changes: Sequence[SettingChange]) -> list[tuple[str, Any]]:
    """What is changed in the training process; variables of the environment are set before it starts."""
    return [(change.setting, change.proposed) for change in changes if not change.setting.startswith(VARIABLE)]


def _judged(place: Path, ended: Ended, changes: Sequence[SettingChange], seconds: float, problem: str) -> Ran:
    """What a run recorded; one that ended badly after its end was asked for is as good as another."""
    names = [name for name, _ in _made(changes) if name not in ended.applied]
    left = (f"{name}: {ended.refused.get(name, 'the change was not made')}" for name in names)
    problem = next(left, problem if ended.ended == "program" else "")
    if problem:
        return Ran(place=place, seconds=seconds, ended=ended, problem=problem)
    try:
        report = api.read_report(place)
    except ProfilerkitError as error:
        return Ran(place=place, seconds=seconds, ended=ended, problem=error.in_one_line)
    timed = timed_steps(report)
    problem = "" if timed else f"too few of its {report.steps.count} steps can be compared"
    return Ran(place=place, report=report, timed=timed, ended=ended, seconds=seconds, problem=problem)


class InProcess(msgspec.Struct, kw_only=True):
    """Call a function again and again, in this process: for notebooks, whose functions no other process knows."""

    train: Callable[[], object]  #: makes its model anew and trains it
    directory: Path
    steps: int
    seconds: float

    def run(self, name: str, changes: Sequence[SettingChange] = (), *, deep: bool = False) -> Ran:
        """Call it once and read what it recorded."""
        place = self.directory / name
        if any(change.setting.startswith(VARIABLE) for change in changes):
            return Ran(place=place, problem="a variable of the environment needs a new process: use profilerkit try")
        began_s = time.monotonic()
        made, problem = tried(self._call, place, changes, deep)
        ended = Ended() if made is None else msgspec.convert(made, Ended)
        return _judged(place, ended, changes, time.monotonic() - began_s, problem)

    def _call(self, place: Path, changes: Sequence[SettingChange], deep: bool) -> dict[str, Any]:
        """Call the function once; what came of the changes."""
        from profilerkit.capture.trial import Order, changed

        order = Order(changes=_made(changes), steps=self.steps, seconds=self.seconds)
        with profile(place, deep=deep, analyze=False), changed(order) as made:
            self.train()
        return made.document()
