"""Record programs whose cause is known, quiet and beside busy processes, and hold the report against the truth."""

import contextlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
from measured_processes import environment, tried

from profilerkit import analyze
from profilerkit.errors import ProfilerkitError
from profilerkit.model.finding import Finding, in_order
from profilerkit.model.trial import Attempt

_MOST_SECONDS = 300
#: Records a program that does not know profilerkit in a ``profile()`` block: arguments are the run directory, the
#: program and the program's own.
_IN_A_BLOCK = """
import runpy, sys, profilerkit, torch
out, sys.argv = sys.argv[1], sys.argv[2:]
with profilerkit.profile(out):
    runpy.run_path(sys.argv[0], run_name="__main__")
"""
_TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
FOUND_FIRST = 2


class Program(msgspec.Struct, frozen=True, kw_only=True):
    """A program and what is true of it.

    Attributes:
        bounds: verdicts that are right.
        causes: rules one of which must be in the first two places; empty where nothing can be named. Findings that
            overlap take one place: they are ways to the same end.
        ranks: processes.
        arguments: the program's own; ``None`` for those that take ``OUT [--fixed] [--mode …]``.
        fixed: arguments that apply the fix, for programs that print their training time after ``TRAIN``.
        late: the late rank.
        ways: how it is recorded: in a ``profile()`` block, under ``profilerkit run``.
        setting: whose change is the fix, for programs that have such a fix.
    """

    bounds: tuple[str, ...]
    causes: tuple[str, ...]
    ranks: int = 1
    arguments: tuple[str, ...] | None = None
    fixed: tuple[str, ...] | None = None
    late: int | None = None
    ways: tuple[str, ...] = ("profile", "run")
    setting: str = ""


PROGRAMS = {
    "anomaly_left_on": Program(bounds=("overhead-bound",), causes=("OV009",), setting="anomaly"),
    "busy_host_transforms": Program(bounds=("input-bound",), causes=("IN001", "IN002"), arguments=()),
    "collate_lists": Program(bounds=("input-bound",), causes=("IN007", "IN008")),
    "cow_workers": Program(bounds=("input-bound", "memory-bound"), causes=("ME004",)),
    "ddp_accum": Program(bounds=("comm-bound",), causes=("CO007",), ranks=2, setting="no_sync"),
    "ddp_uneven": Program(bounds=("compute-bound",), causes=("CO003",), ranks=2, late=1),
    "epoch_restart": Program(bounds=("input-bound",), causes=("IN011",), setting="persistent_workers"),
    "few_busy_steps": Program(bounds=("inconclusive", "compute-bound", "overhead-bound"), causes=(), arguments=("4",)),
    "frequent_eval": Program(bounds=("overhead-bound",), causes=("RU002",), arguments=("20",), fixed=("40",)),
    "grad_histograms": Program(bounds=("overhead-bound",), causes=("OV010",)),
    "graph_grows": Program(bounds=("overhead-bound", "compute-bound", "balanced"), causes=("RU009",)),
    "manual_sgd_eval": Program(bounds=("overhead-bound",), causes=("RU002",), arguments=()),
    "one_batch_eval": Program(bounds=("overhead-bound",), causes=("RU002",), arguments=("1",)),
    "recompile_step": Program(bounds=("overhead-bound",), causes=("OV006",), setting="compile_dynamic"),
    "stateful_ctx": Program(
        bounds=("input-bound",), causes=("IN003", "IN005", "IN006"), arguments=("OUT", "1"), ways=("profile",)
    ),
    "stateful_run": Program(
        bounds=("input-bound",), causes=("IN003", "IN005", "IN006"), arguments=("1",), ways=("run",)
    ),
    "tiny_hand_steps": Program(bounds=("overhead-bound",), causes=("OV001", "OV005"), arguments=()),
    "validation_slow": Program(bounds=("overhead-bound",), causes=("RU002",)),
    "workers_slower": Program(bounds=("input-bound",), causes=("IN008", "IN013")),
}


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One recording of a program beside the truth.

    Attributes:
        name: the program.
        way: how it was recorded.
        busy: processes that kept a core busy beside it.
        said: verdict, and rules in the first two places; or what failed.
        headline: of the verdict.
        machine: other work was said to take processor time.
        family: the verdict is right.
        cause: the true cause is in the first two places.
        saving: lowest, expected and highest saving of the finding of the cause, ratio of the time; ``None`` unpriced.
    """

    name: str
    way: str
    busy: int
    said: str
    headline: str = ""
    machine: bool = False
    family: bool = False
    cause: bool = False
    saving: tuple[float, float, float] | None = None


def recorded(name: str, way: str, busy: int, programs: Path, place: Path) -> Row:
    """Record the program once and judge the report."""
    program = PROGRAMS[name]
    with _busy_processes(busy):
        failed = _run(_command(program, way, programs / f"{name}.py", place), programs, place)
    if failed:
        return Row(name=name, way=way, busy=busy, said=f"failed: {failed}")
    try:
        report = analyze(place / "run")
    except ProfilerkitError as error:
        return Row(name=name, way=way, busy=busy, said=f"error: {error.cause}")
    # What takes processor time from the run is the other statement: it stands beside the findings of the program.
    found = [(outcome.rule, finding) for outcome, finding in in_order(report.outcomes) if outcome.rule != "RU005"]
    verdict, first = report.verdict, places(found)[:FOUND_FIRST]
    saving = next((finding.saving for rule, finding in found if rule in program.causes), None)
    return Row(
        name=name,
        way=way,
        busy=busy,
        said=" · ".join([f"{verdict.bound} {verdict.detail}".strip(), *("=".join(rules) for rules in first)]),
        headline=verdict.headline,
        machine=any(outcome.rule == "RU005" for outcome, _ in in_order(report.outcomes)),
        family=verdict.bound in program.bounds and program.late in (None, verdict.rank),
        cause=not program.causes or any(rule in program.causes for rules in first for rule in rules),
        saving=saving and (saving.low, saving.expected, saving.high),
    )


def places(found: Sequence[tuple[str, Finding]]) -> list[list[str]]:
    """Rules of the findings in their order, each beside the one that its finding overlaps: two ways to one end."""
    taken: list[list[str]] = []
    for rule, finding in found:
        beside = next((rules for rules in taken if finding.overlaps in rules), None)
        if beside is None:
            taken.append([rule])
        elif rule not in beside:
            beside.append(rule)
    return taken


def measured_saving(name: str, programs: Path, place: Path, rounds: int) -> tuple[float, float] | None:
    """Lowest and highest ratio of the time that the real fix saves, over rounds in turn; ``None`` without a fix."""
    program = PROGRAMS[name]
    if program.arguments is not None and program.fixed is None:
        return None
    ratios = []
    for _ in range(rounds):
        before, after = (_time(program, fixed, programs / f"{name}.py", programs, place) for fixed in (False, True))
        ratios.append(1 - after / before)
    return min(ratios), max(ratios)


def tried_saving(name: str, programs: Path, place: Path) -> tuple[Attempt | None, list[Attempt]]:
    """What ``profilerkit try`` measured of the fix, ``None`` where it did not try it; and the other attempts."""
    program = PROGRAMS[name]
    launcher = _TORCHRUN if program.ranks > 1 else ()
    command = [sys.executable, *launcher, str(programs / f"{name}.py"), "-", "--mode", "plain"]
    trial = tried(command, place, variables={"PYTHONDONTWRITEBYTECODE": "1"})
    fix = next((one for one in trial.attempts if [c.setting for c in one.changes] == [program.setting]), None)
    return fix, [one for one in trial.attempts if one is not fix]


def _time(program: Program, fixed: bool, script: Path, programs: Path, place: Path) -> float:
    """Time of the program without a recorder, by its own stopwatch: mean step, or what it prints after TRAIN."""
    if program.arguments is None:
        arguments = ["-", "--mode", "none", *(["--fixed"] if fixed else [])]
    else:
        arguments = list((program.fixed or ()) if fixed else program.arguments)
    launcher = _TORCHRUN if program.ranks > 1 else ()
    done = _completed([sys.executable, *launcher, str(script), *arguments], programs, place)
    # Ranks that print at once share a line. What gloo aborts after that, as the ranks end, is no part of the time.
    told = re.findall(r"\{[^{}]*\}" if program.arguments is None else r"TRAIN\s+(\S+)", done.stdout)
    if not told:
        done.check_returncode()
    return max(json.loads(one)["mean_ms"] if program.arguments is None else float(one) for one in told)


def _command(program: Program, way: str, script: Path, place: Path) -> list[str]:
    launcher = _TORCHRUN if program.ranks > 1 else ()
    out = str(place / "run")
    if program.arguments is None:
        mode = "ctx" if way == "profile" else "plain"
        own = [str(script), out if way == "profile" else "-", "--mode", mode]
    else:
        own = [str(script), *(out if argument == "OUT" else argument for argument in program.arguments)]
    if way == "run":
        return [sys.executable, "-m", "profilerkit", "run", "-o", out, *launcher, *own]
    if program.arguments is None or "OUT" in program.arguments:
        return [sys.executable, *launcher, *own]
    return [sys.executable, "-c", _IN_A_BLOCK, out, *own]


def _run(command: list[str], programs: Path, place: Path) -> str:
    """Why the program failed, or nothing."""
    try:
        done = _completed(command, programs, place)
    except subprocess.TimeoutExpired:
        return f"not done after {_MOST_SECONDS} s"
    return (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1] if done.returncode else ""


def _completed(command: list[str], programs: Path, place: Path) -> subprocess.CompletedProcess[str]:
    where = environment()
    where |= {"PYTHONPATH": f"{programs}:{where['PYTHONPATH']}", "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        command, env=where, cwd=place, capture_output=True, text=True, timeout=_MOST_SECONDS, check=False
    )


@contextlib.contextmanager
def _busy_processes(count: int) -> Iterator[None]:
    started = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()
